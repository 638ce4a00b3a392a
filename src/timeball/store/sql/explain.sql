-- The facts for explanations, timelines and forecasts. Nothing here writes, and every read is bounded.

-- name: locate_execution
-- The state table of an unfinished execution, and the columns that only this table has.
SELECT 'due' AS state_table, kind AS due_kind, NULL::text AS stop, NULL::real AS progress, NULL::text AS progress_note
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
-- The state of the gates that an execution has to pass: its queue, its limit and its unique key; and the time of the database.
SELECT coalesce(:now, now()) AS moment,
       queue.paused_at, queue.paused_until, queue.pause_reason, queue.max_running AS queue_limit,
       (SELECT count(*) FROM timeball.running WHERE running.queue = :queue::text AND running.queue_limited) AS queue_taken,
       running_limit.max_running AS key_limit,
       (SELECT count(*) FROM timeball.ready WHERE ready.limit_key = :limit_key::text)
       + (SELECT count(*) FROM timeball.running WHERE running.limit_key = :limit_key::text) AS key_taken,
       (
           SELECT live_key.execution_id
           FROM timeball.live_key
           WHERE live_key.key = :unique_key::text
             AND NOT (live_key.has_ended AND live_key.held_until <= coalesce(:now, now()))
       ) AS key_holder
FROM (VALUES (1)) AS always (one)
LEFT JOIN timeball.queue ON queue.name = :queue::text
LEFT JOIN timeball.running_limit ON running_limit.key = :limit_key::text;

-- name: competitors
-- What may hold an execution up: other executions of its job that run, are ready or will be tried again, and those that have the places of its limit and its queue.
-- What a backfill runs holds no other execution of the job up, unless it has such a place.
(
    SELECT 'job' AS relation, id, job_id, handler, 'running' AS state_table, greatest(claimed_at, run_at) AS started_at
    FROM timeball.running
    WHERE job_id = :job_id::uuid
      AND job_id <> id
      AND origin <> 'backfill'
      AND id <> :id::uuid
    LIMIT :limit
)
UNION ALL
(
    SELECT 'job', id, job_id, handler, 'ready', NULL
    FROM timeball.ready
    WHERE job_id = :job_id::uuid
      AND job_id <> id
      AND origin <> 'backfill'
      AND id <> :id::uuid
    LIMIT :limit
)
UNION ALL
(
    SELECT 'job', id, job_id, handler, 'due', NULL
    FROM timeball.due
    WHERE job_id = :job_id::uuid
      AND job_id <> id
      AND origin <> 'backfill'
      AND id <> :id::uuid
      AND kind IN ('retry', 'snooze', 'put_back')
    LIMIT :limit
)
UNION ALL
(
    SELECT 'limit', id, job_id, handler, 'running', greatest(claimed_at, run_at)
    FROM timeball.running
    WHERE limit_key = :limit_key::text
      AND id <> :id::uuid
    LIMIT :limit
)
UNION ALL
(
    SELECT 'limit', id, job_id, handler, 'ready', NULL
    FROM timeball.ready
    WHERE limit_key = :limit_key::text
      AND id <> :id::uuid
    LIMIT :limit
)
UNION ALL
(
    SELECT 'queue', id, job_id, handler, 'running', greatest(claimed_at, run_at)
    FROM timeball.running
    WHERE queue = :queue::text
      AND queue_limited
    LIMIT :limit
);

-- name: running_on_workers
-- What these workers run, the longest running first. `running` has at most as many rows as all workers have slots.
SELECT id, job_id, handler, 'running' AS state_table, greatest(claimed_at, run_at) AS started_at
FROM timeball.running
WHERE holder = ANY (:holders::uuid[])
  AND run_at <= coalesce(:now, now())
ORDER BY greatest(claimed_at, run_at)
LIMIT :limit;

-- name: queue_position
-- The number of executions before this one in its queue, by the rank of claims: one probe for each priority, each counted up to :limit.
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
        LIMIT :limit
    ) AS few
) AS lane;

-- name: typical_durations_of_jobs
-- The durations of the latest successful executions of each of these jobs, in seconds: median, 95th percentile, and how many there were.
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
    LIMIT :limit
) AS latest
WHERE latest.seconds IS NOT NULL
  AND latest.state = 'succeeded'
GROUP BY given.id;

-- name: typical_durations_of_handlers
-- The same for each handler, over the latest finished executions: for one-offs, whose jobs have no history.
SELECT handler, count(*) AS executions,
       percentile_cont(ARRAY[0.5, 0.95]) WITHIN GROUP (ORDER BY extract(epoch FROM finished_at - started_at)::double precision) AS durations
FROM (
    SELECT handler, state, started_at, finished_at
    FROM timeball.finished
    ORDER BY id DESC
    LIMIT :limit
) AS latest
WHERE started_at IS NOT NULL
  AND state = 'succeeded'
GROUP BY handler;

-- name: futures
-- The pending occurrences of jobs with a schedule, and the columns from which their future is computed. They are few among a million one-offs: only they cite
-- time-zone data, which has an index. This is the only condition of the inner query: a planner without statistics would prefer the index of all
-- occurrences.
SELECT due.id AS execution_id, due.kind AS due_kind, due.scheduled_for, due.executions_left,
       job.id, job.name, job.handler, job.queue, job.kind, job.schedule, job.interval_seconds, job.scheduled_at, job.timezone, job.on_gap,
       job.on_repeat, job.skip_on, job.only_on, job.shift, job.calendars, job.starts_at, job.ends_at, job.jitter_seconds, job.created_at,
       job.tags, job.misfire_cap
FROM (
    SELECT id, job_id, kind, scheduled_for, executions_left
    FROM timeball.due
    WHERE tzdata IS NOT NULL
    ORDER BY tzdata, id
    LIMIT :limit
) AS due
JOIN timeball.job ON job.id = due.job_id;

-- name: future_of_job
-- The same for one job of any kind: there is at most one next occurrence.
SELECT due.id AS execution_id, due.kind AS due_kind, due.scheduled_for, due.executions_left,
       job.id, job.name, job.handler, job.queue, job.kind, job.schedule, job.interval_seconds, job.scheduled_at, job.timezone, job.on_gap,
       job.on_repeat, job.skip_on, job.only_on, job.shift, job.calendars, job.starts_at, job.ends_at, job.jitter_seconds, job.created_at,
       job.tags, job.misfire_cap
FROM timeball.due
JOIN timeball.job ON job.id = due.job_id
WHERE due.job_id = :job_id
  AND due.kind = 'occurrence';

-- name: one_offs
-- What else is due within a span (one-offs, retries, snoozes): the next :each of every shard.
SELECT due.id, due.job_id, due.run_at, due.handler, due.queue, due.kind
FROM timeball.shard
CROSS JOIN LATERAL (
    SELECT *
    FROM timeball.due
    WHERE due.shard = shard.id
      AND due.run_at >= :start::timestamptz
      AND due.run_at < :until::timestamptz
    ORDER BY due.run_at
    LIMIT :each
) AS due
WHERE NOT (due.kind = 'occurrence' AND due.tzdata IS NOT NULL)
  AND due.kind <> 'resume'
  AND (:queue::text IS NULL OR due.queue = :queue::text);

-- name: running_now
-- What runs, the longest running first.
SELECT running.id, running.job_id, running.handler, running.queue, running.holder AS worker,
       greatest(running.claimed_at, running.run_at) AS started_at
FROM timeball.running
WHERE running.run_at <= coalesce(:now, now())
  AND (:queue::text IS NULL OR running.queue = :queue::text)
ORDER BY greatest(running.claimed_at, running.run_at)
LIMIT :limit;

-- name: past
-- What has ended: the latest :limit ids of a span. Ids are in the order of the instants they were made for.
SELECT id, job_id, handler, queue, started_at, worker, finished_at, state
FROM timeball.finished
WHERE id >= :first_id::uuid
  AND id < :last_id::uuid
  AND finished_at >= :start::timestamptz
ORDER BY id DESC
LIMIT :limit;

-- name: past_of_jobs
-- The same for some jobs: the latest :each of each, by the index on (job_id, id).
SELECT past.id, given.id AS job_id, past.handler, past.queue, past.started_at, past.worker, past.finished_at, past.state
FROM unnest(:ids::uuid[]) AS given (id)
CROSS JOIN LATERAL (
    SELECT id, handler, queue, started_at, worker, finished_at, state
    FROM timeball.finished
    WHERE (finished.job_id, finished.id) >= (given.id, :first_id::uuid)
      AND (finished.job_id, finished.id) < (given.id, :last_id::uuid)
      AND finished.job_id <> finished.id
      AND finished.finished_at >= :start::timestamptz
    ORDER BY finished.job_id DESC, finished.id DESC
    LIMIT :each
) AS past;

-- name: named_jobs
SELECT id, name, handler, queue, kind
FROM timeball.job
WHERE id = ANY (:ids::uuid[])
  AND name IS NOT NULL;

-- name: queue_limits
SELECT name, max_running
FROM timeball.queue
WHERE max_running IS NOT NULL;

-- name: server_facts
-- The server: its version, whether commits are durable, and the oldest transaction of other programs.
SELECT current_setting('server_version') AS version,
       current_setting('server_version_num')::integer / 10000 AS major,
       current_setting('fsync') = 'on' AND current_setting('synchronous_commit') <> 'off' AS is_durable,
       oldest.age AS oldest_transaction,
       oldest.application_name AS oldest_program
FROM (VALUES (1)) AS always (one)
LEFT JOIN LATERAL (
    SELECT coalesce(:now, now()) - xact_start AS age, application_name
    FROM pg_stat_activity
    WHERE xact_start IS NOT NULL
      AND backend_type = 'client backend'
      AND pid <> pg_backend_pid()
    ORDER BY xact_start
    LIMIT 1
) AS oldest ON true;

-- name: installation_facts
-- The state tables at a glance: one probe for each shard for overdue rows, the ends of an index for the time-zone data.
SELECT coalesce(:now, now()) AS moment,
       (SELECT count(*) FROM timeball.api_key) > 0 AS has_keys,
       (SELECT max(tzdata) FROM timeball.due WHERE tzdata IS NOT NULL) AS newest_tzdata,
       (
           SELECT min(first.run_at)
           FROM timeball.shard
           CROSS JOIN LATERAL (SELECT run_at FROM timeball.due WHERE due.shard = shard.id ORDER BY run_at LIMIT 1) AS first
       ) AS oldest_due,
       (SELECT count(*) FROM timeball.running WHERE deadline < coalesce(:now, now()) - interval '10 seconds') AS past_deadline,
       EXISTS (SELECT 1 FROM timeball.finished_default) AS has_unpartitioned_history;

-- name: uses_of_handlers
-- The handlers that each queue uses: of jobs with a schedule, and of waiting executions. A few thousand of each are read.
SELECT queue, handler, count(DISTINCT job_id) AS jobs
FROM (
    (SELECT queue, handler, job_id FROM timeball.due WHERE tzdata IS NOT NULL ORDER BY tzdata, id LIMIT :limit)
    UNION ALL
    (SELECT queue, handler, job_id FROM timeball.ready ORDER BY queue, priority, run_at LIMIT :limit)
) AS used
GROUP BY queue, handler;

-- name: oldest_ready
-- The execution of each of these queues that has waited longest. `everything` as in lanes.
WITH everything AS MATERIALIZED (
    SELECT '-infinity'::timestamptz AS first, 'infinity'::timestamptz AS last
)
SELECT given.queue, oldest.id, oldest.job_id, oldest.run_at
FROM everything
CROSS JOIN unnest(:queues::text[]) AS given (queue)
CROSS JOIN LATERAL (
    SELECT first.id, first.job_id, first.run_at
    FROM generate_series(0, 100) AS level (priority)
    CROSS JOIN LATERAL (
        SELECT id, job_id, run_at
        FROM timeball.ready
        WHERE ready.queue = given.queue
          AND ready.priority = level.priority
          AND ready.run_at BETWEEN everything.first AND everything.last
        ORDER BY run_at
        LIMIT 1
    ) AS first
    ORDER BY first.run_at
    LIMIT 1
) AS oldest;

-- name: versions_of_job
-- The versions of a job that are kept, and the instants that each is responsible for.
SELECT version, effective_from, effective_until
FROM timeball.job_version
WHERE job_id = :job_id
ORDER BY version DESC
LIMIT 1000;

-- name: attempts_of_some
SELECT *
FROM timeball.attempt
WHERE execution_id = ANY (:ids::uuid[])
ORDER BY execution_id, fence;

-- name: unsuccessful_tries
-- The unsuccessful attempts that ended within a span, the latest first, each with its execution; by attempt_by_end.
SELECT attempt.execution_id, attempt.number, attempt.outcome, attempt.worker, attempt.started_at, attempt.finished_at,
       attempt.error_type, left(attempt.error, 500) AS error, execution.job_id, execution.handler, execution.queue, execution.state
FROM (
    SELECT *
    FROM timeball.attempt
    WHERE finished_at >= :since
      AND finished_at < :until
      AND outcome IN ('failed', 'timed_out', 'lost')
    ORDER BY finished_at DESC, execution_id DESC
    LIMIT :limit
) AS attempt
CROSS JOIN LATERAL (
    SELECT job_id, handler, queue, state
    FROM timeball.execution
    WHERE execution.id = attempt.execution_id
    LIMIT 1
) AS execution
ORDER BY attempt.finished_at DESC, attempt.execution_id DESC;

-- name: next_due
-- What falls due next, in the order of time: the first few of each shard by its index, and the first few of those.
-- (SELECT :limit): a planner that knows the limit, and believes that there are hardly more rows, would fetch and sort all of them.
SELECT first.id, first.job_id, first.handler, first.run_at, job.name
FROM timeball.shard
CROSS JOIN LATERAL (
    SELECT id, job_id, handler, run_at
    FROM timeball.due
    WHERE due.shard = shard.id
      AND due.run_at > coalesce(:now, now())
      AND due.kind <> 'resume'
    ORDER BY due.shard, due.run_at
    LIMIT (SELECT :limit::bigint)
) AS first
LEFT JOIN timeball.job ON job.id = first.job_id
ORDER BY first.run_at, first.id
LIMIT :limit;

-- name: unfinished_at
-- The executions of a job that were unfinished at an instant: first those that still are, then those that have ended since, the latest first.
-- Of the latter, the last :looked_at of the days from :day on are looked at, whatever became of them.
-- What a backfill runs holds up only what has a limit of one with it.
WITH ended AS MATERIALIZED (
    SELECT id, finished_at, origin
    FROM timeball.finished
    WHERE (finished.job_id, finished.id) > (:job_id::uuid, '00000000-0000-0000-0000-000000000000'::uuid)
      AND (finished.job_id, finished.id) < (:job_id::uuid, :before::uuid)
      AND finished.job_id <> finished.id
      AND finished.finished_at >= :day::timestamptz
    ORDER BY finished.job_id DESC, finished.id DESC
    LIMIT :looked_at
)
(
    SELECT id
    FROM timeball.running
    WHERE job_id = :job_id::uuid
      AND job_id <> id
      AND (origin <> 'backfill' OR :with_backfills)
      AND id < :before::uuid
    LIMIT :limit
)
UNION ALL
(
    SELECT id
    FROM timeball.ready
    WHERE job_id = :job_id::uuid
      AND job_id <> id
      AND (origin <> 'backfill' OR :with_backfills)
      AND id < :before::uuid
    LIMIT :limit
)
UNION ALL
(
    SELECT id
    FROM timeball.due
    WHERE job_id = :job_id::uuid
      AND job_id <> id
      AND (origin <> 'backfill' OR :with_backfills)
      AND id < :before::uuid
      AND kind IN ('retry', 'snooze', 'put_back')
    LIMIT :limit
)
UNION ALL
(
    SELECT id
    FROM ended
    WHERE finished_at > :at::timestamptz
      AND (origin <> 'backfill' OR :with_backfills)
    ORDER BY uuid_send(id) DESC
    LIMIT :limit
);

-- name: last_change
-- The latest change of a subject by one of these actions between two ids of the audit. The last :looked_at changes are looked at.
WITH recent AS MATERIALIZED (
    SELECT id, at, actor, action, reason
    FROM timeball.audit
    WHERE subject = :subject::text
      AND id >= :low::uuid
      AND id < :high::uuid
    ORDER BY id DESC
    LIMIT :looked_at
)
SELECT id, at, actor, action, reason
FROM recent
WHERE action = ANY (:actions::text[])
ORDER BY id DESC
LIMIT 1;
