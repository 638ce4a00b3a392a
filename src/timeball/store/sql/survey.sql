-- What is looked at to explain, to draw and to foresee. Nothing here writes, and every read is bounded.

-- name: whereabouts
-- The room an unfinished execution is in, and what is known of it only there.
SELECT 'due' AS room, kind AS due_kind, NULL::text AS stop, NULL::real AS progress, NULL::text AS progress_note
FROM timeball.due
WHERE id = :id
UNION ALL
SELECT 'ready', NULL, NULL, NULL, NULL
FROM timeball.ready
WHERE id = :id
UNION ALL
SELECT 'blocked', NULL, NULL, NULL, NULL
FROM timeball.blocked
WHERE id = :id
UNION ALL
SELECT 'running', NULL, stop, progress, progress_note
FROM timeball.running
WHERE id = :id;

-- name: gate_facts
-- The state of everything with a door: the queue, the limit, the key; and the database's time.
SELECT coalesce(:now, now()) AS moment,
       queue.paused_at, queue.pause_reason, queue.max_running AS queue_limit,
       (SELECT count(*) FROM timeball.running WHERE running.queue = :queue::text AND running.queue_limited) AS queue_taken,
       running_limit.max_running AS key_limit,
       (SELECT count(*) FROM timeball.ready WHERE ready.limit_key = :limit_key::text)
       + (SELECT count(*) FROM timeball.running WHERE running.limit_key = :limit_key::text) AS key_taken,
       (SELECT live_key.execution_id FROM timeball.live_key WHERE live_key.key = :unique_key::text) AS key_holder
FROM (VALUES (1)) AS always (one)
LEFT JOIN timeball.queue ON queue.name = :queue::text
LEFT JOIN timeball.running_limit ON running_limit.key = :limit_key::text;

-- name: rivals
-- What may stand in the way of an execution: others of its job (by the conditions of busy_jobs), and who has the places of its limit and its queue.
(
    SELECT 'job' AS relation, id, job_id, handler, 'running' AS room, greatest(claimed_at, run_at) AS started_at
    FROM timeball.running
    WHERE job_id = :job_id::uuid
      AND job_id <> id
      AND id <> :id::uuid
    LIMIT :most
)
UNION ALL
(
    SELECT 'job', id, job_id, handler, 'ready', NULL
    FROM timeball.ready
    WHERE job_id = :job_id::uuid
      AND job_id <> id
      AND id <> :id::uuid
    LIMIT :most
)
UNION ALL
(
    SELECT 'job', id, job_id, handler, 'due', NULL
    FROM timeball.due
    WHERE job_id = :job_id::uuid
      AND job_id <> id
      AND id <> :id::uuid
      AND kind IN ('retry', 'snooze')
    LIMIT :most
)
UNION ALL
(
    SELECT 'limit', id, job_id, handler, 'running', greatest(claimed_at, run_at)
    FROM timeball.running
    WHERE limit_key = :limit_key::text
      AND id <> :id::uuid
    LIMIT :most
)
UNION ALL
(
    SELECT 'limit', id, job_id, handler, 'ready', NULL
    FROM timeball.ready
    WHERE limit_key = :limit_key::text
      AND id <> :id::uuid
    LIMIT :most
)
UNION ALL
(
    SELECT 'queue', id, job_id, handler, 'running', greatest(claimed_at, run_at)
    FROM timeball.running
    WHERE queue = :queue::text
      AND queue_limited
    LIMIT :most
);

-- name: on_workers
-- What these workers run, the longest running first: the running room is no larger than all slots together.
SELECT id, job_id, handler, 'running' AS room, greatest(claimed_at, run_at) AS started_at
FROM timeball.running
WHERE holder = ANY (:holders::uuid[])
  AND run_at <= coalesce(:now, now())
ORDER BY greatest(claimed_at, run_at)
LIMIT :most;

-- name: place_in_line
-- How many stand before an execution in its queue, by the rank that claims go by; one probe a priority, each counted up to :most.
SELECT coalesce(sum(lane.ahead), 0)::bigint AS ahead
FROM generate_series(0, 100) AS given (priority)
CROSS JOIN LATERAL (
    SELECT count(*) AS ahead
    FROM (
        SELECT 1
        FROM timeball.ready
        WHERE ready.queue = :queue
          AND ready.priority = given.priority
          AND ready.run_at < :run_at::timestamptz + (given.priority - :priority::integer) * interval '12 seconds'
          AND ready.run_at <= coalesce(:now, now())
        LIMIT :most
    ) AS few
) AS lane;

-- name: usual_durations_of_jobs
-- How long the latest successful executions of each of these jobs took, in seconds: median, 95th percentile, and how many were looked at.
SELECT given.id, count(*) AS executions,
       percentile_cont(ARRAY[0.5, 0.95]) WITHIN GROUP (ORDER BY latest.seconds) AS durations
FROM unnest(:ids::uuid[]) AS given (id)
CROSS JOIN LATERAL (
    SELECT extract(epoch FROM finished_at - started_at)::double precision AS seconds, state
    FROM timeball.finished
    WHERE (finished.job_id, finished.id) >= (given.id, '00000000-0000-0000-0000-000000000000'::uuid)
      AND (finished.job_id, finished.id) <= (given.id, 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid)
      AND finished.job_id <> finished.id
    ORDER BY finished.job_id DESC, finished.id DESC
    LIMIT :most
) AS latest
WHERE latest.seconds IS NOT NULL
  AND latest.state = 'succeeded'
GROUP BY given.id;

-- name: usual_durations_of_handlers
-- The same by handler, over the latest finished executions of all: for one-offs, whose jobs have no history.
SELECT handler, count(*) AS executions,
       percentile_cont(ARRAY[0.5, 0.95]) WITHIN GROUP (ORDER BY extract(epoch FROM finished_at - started_at)::double precision) AS durations
FROM (
    SELECT handler, state, started_at, finished_at
    FROM timeball.finished
    ORDER BY id DESC
    LIMIT :most
) AS latest
WHERE started_at IS NOT NULL
  AND state = 'succeeded'
GROUP BY handler;
