-- What lists and overviews read. store/search composes the filtered lists themselves.

-- name: job_situations
-- For each of these jobs: whether any of its executions waits or runs, its next instant, and its latest finished execution.
-- An enqueued execution has the id of its job; the indexes on job_id leave it out, so both are searched.
-- Rows are compared, not job_id alone: otherwise the planner may read the whole history by id to find the latest execution of one job.
-- `asked` hides the length of the array from the planner, which would otherwise plan the statement anew for every length; that takes twenty times as long
-- as running it.
-- OFFSET 0: otherwise a planner that takes a table for empty reads all of it into a hash table, to look up a few ids.
WITH asked AS MATERIALIZED (
    SELECT :ids::uuid[] AS ids
)
SELECT given.id,
       EXISTS (SELECT 1 FROM timeball.due WHERE due.job_id = given.id AND due.kind = 'occurrence' OFFSET 0)
       OR EXISTS (SELECT 1 FROM timeball.due WHERE due.id = given.id OFFSET 0)
       OR EXISTS (SELECT 1 FROM timeball.due WHERE due.job_id = given.id AND due.job_id <> due.id AND due.kind <> 'resume' OFFSET 0)
       OR EXISTS (SELECT 1 FROM timeball.ready WHERE ready.id = given.id OFFSET 0)
       OR EXISTS (SELECT 1 FROM timeball.ready WHERE ready.job_id = given.id AND ready.job_id <> ready.id OFFSET 0)
       OR EXISTS (SELECT 1 FROM timeball.blocked WHERE blocked.job_id = given.id OFFSET 0)
       OR EXISTS (SELECT 1 FROM timeball.running WHERE running.id = given.id OFFSET 0)
       OR EXISTS (SELECT 1 FROM timeball.running WHERE running.job_id = given.id AND running.job_id <> running.id OFFSET 0) AS is_live,
       (SELECT due.run_at FROM timeball.due WHERE due.job_id = given.id AND due.kind = 'occurrence') AS next_run_at,
       latest.id AS last_id, latest.state AS last_state, latest.finished_at AS last_finished_at
FROM asked
CROSS JOIN unnest(asked.ids) AS given (id)
LEFT JOIN LATERAL (
    SELECT finished.id, finished.state, finished.finished_at
    FROM (
        (
            SELECT id, state, finished_at
            FROM timeball.finished
            WHERE (finished.job_id, finished.id) >= (given.id, '00000000-0000-0000-0000-000000000000'::uuid)
              AND (finished.job_id, finished.id) <= (given.id, 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid)
              AND finished.job_id <> finished.id
            ORDER BY job_id DESC, id DESC
            LIMIT 1
        )
        UNION ALL
        SELECT id, state, finished_at
        FROM timeball.finished
        WHERE finished.id = given.id
    ) AS finished
    ORDER BY id DESC
    LIMIT 1
) AS latest ON true;

-- name: names_of_jobs
SELECT id, name
FROM timeball.job
WHERE id = ANY (:ids::uuid[]);

-- name: recent_runs_of_jobs
-- The states and durations of the latest finished executions of each of these jobs, the latest first; one row for each job, because a page has a thousand
-- of them. Enqueued executions, which have the id of their job, are not included. Rows are compared, and `asked` is there: see job_situations.
WITH asked AS MATERIALIZED (
    SELECT :ids::uuid[] AS ids
)
SELECT given.id, recent.states, recent.milliseconds
FROM asked
CROSS JOIN unnest(asked.ids) AS given (id)
CROSS JOIN LATERAL (
    SELECT array_agg(state) AS states,
           array_agg(coalesce(greatest(date_part('epoch', finished_at - started_at), 0) * 1000, 0)) AS milliseconds
    FROM (
        SELECT state, started_at, finished_at
        FROM timeball.finished
        WHERE (finished.job_id, finished.id) >= (given.id, '00000000-0000-0000-0000-000000000000'::uuid)
          AND (finished.job_id, finished.id) <= (given.id, 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid)
          AND finished.job_id <> finished.id
        ORDER BY job_id DESC, id DESC
        LIMIT :count
    ) AS latest
) AS recent;

-- name: execution_extras
-- What the timeline of an execution needs beside the execution itself. It runs with its own payload, or that of the job in the version that it cites.
SELECT coalesce(
           payload,
           (SELECT job.payload FROM timeball.job WHERE job.id = execution.job_id AND job.version = execution.version),
           (SELECT definition -> 'payload' FROM timeball.job_version AS kept WHERE kept.job_id = execution.job_id AND kept.version = execution.version)
       )::text AS payload_text,
       fingerprint,
       stop
FROM timeball.execution
WHERE id = :id
LIMIT 1;

-- name: dead_groups
-- The latest dead executions that are not settled, grouped by error, handler or queue. At most :limit of them are read, from their index alone; of each
-- group only the latest is read whole. Deaths are counted in :parts equal parts of the time since the first; parts without a death are left out.
-- The array of ids is built without sorting, the latest id first. Handlers and queues are repeated, because Python removes duplicates in a fraction of the time.
-- OFFSET 0 and (SELECT :limit): otherwise a planner without statistics fetches and sorts all dead executions.
WITH grouped AS MATERIALIZED (
    SELECT key, count(*) AS executions, (array_agg(id))[1] AS latest_id, (array_agg(finished_at))[1] AS latest_at,
           min(finished_at) AS first_at, max(finished_at) AS last_at,
           array_agg(finished_at) AS died_at, array_agg(handler) AS handlers, array_agg(queue) AS queues
    FROM (
        SELECT id, CASE :by::text WHEN 'handler' THEN handler WHEN 'queue' THEN queue ELSE coalesce(fingerprint, :no_fingerprint::text) END AS key,
               handler, queue, finished_at
        FROM timeball.finished
        WHERE state = 'dead'
          AND NOT EXISTS (SELECT 1 FROM timeball.settled WHERE settled.execution_id = finished.id OFFSET 0)
        ORDER BY id DESC
        LIMIT (SELECT :limit::bigint)
    ) AS dead
    GROUP BY key
),
age AS (
    SELECT min(first_at) AS since, greatest(max(last_at), coalesce(:now, now())) AS until
    FROM grouped
),
largest AS (
    SELECT *
    FROM grouped
    ORDER BY executions DESC, last_at DESC
    LIMIT :groups
)
SELECT largest.key, largest.executions, latest.error_type, latest.error AS latest_error, largest.latest_id, last_try.top_frame,
       largest.handlers, largest.queues, largest.first_at, largest.last_at, tallied.parts, tallied.deaths, age.since, age.until
FROM largest
CROSS JOIN age
CROSS JOIN LATERAL (
    SELECT array_agg(part) AS parts, array_agg(deaths) AS deaths
    FROM (
        SELECT width_bucket(date_part('epoch', died_at - age.since), 0, date_part('epoch', age.until - age.since) + 0.001, :parts) AS part,
               count(*) AS deaths
        FROM unnest(largest.died_at) AS died_at
        GROUP BY part
    ) AS counted
) AS tallied
CROSS JOIN LATERAL (
    SELECT error_type, left(error, 500) AS error
    FROM timeball.finished
    WHERE finished.id = largest.latest_id
      AND finished.finished_at = largest.latest_at
    LIMIT 1
) AS latest
LEFT JOIN LATERAL (
    SELECT top_frame
    FROM timeball.attempt
    WHERE attempt.execution_id = largest.latest_id
      AND attempt.finished_at = largest.latest_at
    ORDER BY fence DESC
    LIMIT 1
) AS last_try ON true
ORDER BY largest.executions DESC, largest.last_at DESC;

-- name: count_dead
-- The number of dead executions that are not settled, counted up to :limit; those of one queue may be left out.
SELECT count(*)
FROM (
    SELECT 1
    FROM timeball.finished
    WHERE state = 'dead'
      AND (:apart_from::text IS NULL OR queue <> :apart_from::text)
      AND NOT EXISTS (SELECT 1 FROM timeball.settled WHERE settled.execution_id = finished.id)
    LIMIT :limit
) AS few;

-- name: settle
-- Mark dead executions as settled; others are left alone. OFFSET 0: otherwise a planner without statistics may read all dead executions, to find a few.
INSERT INTO timeball.settled (execution_id, how, settled_at)
SELECT DISTINCT given.id, :how, coalesce(:now, now())
FROM unnest(:ids::uuid[]) AS given (id)
CROSS JOIN LATERAL (
    SELECT finished.state
    FROM timeball.finished
    WHERE finished.id = given.id
    OFFSET 0
) AS ended
WHERE ended.state = 'dead'
ON CONFLICT (execution_id) DO NOTHING
RETURNING execution_id;

-- name: queue_overview
-- Queues with ready or running executions, a pause, a limit, or a living worker that names them: :rows of them, by name after :after, or by the age of their
-- oldest execution. Depths are counted up to :limit, and only for these queues; the oldest is one probe for each lane. `total` counts all queues.
-- `everything` as in lanes.
WITH RECURSIVE everything AS MATERIALIZED (
    SELECT 0::smallint AS lowest, 100::smallint AS highest, '-infinity'::timestamptz AS first, 'infinity'::timestamptz AS last
),
lane AS (
    (
        SELECT queue, priority, run_at
        FROM timeball.ready
        ORDER BY queue, priority, run_at, uuid_send(id)
        LIMIT 1
    )
    UNION ALL
    SELECT following.*
    FROM lane
    CROSS JOIN everything
    CROSS JOIN LATERAL (
        SELECT ready.queue, ready.priority, ready.run_at
        FROM timeball.ready
        WHERE (ready.queue, ready.priority) > (lane.queue, lane.priority)
          AND ready.priority BETWEEN everything.lowest AND everything.highest
          AND ready.run_at BETWEEN everything.first AND everything.last
        ORDER BY ready.queue, ready.priority, ready.run_at, uuid_send(ready.id)
        LIMIT 1
    ) AS following
),
busy AS (
    SELECT queue, count(*) AS running
    FROM timeball.running
    GROUP BY queue
),
known AS (
    SELECT queue AS name FROM lane
    UNION
    SELECT queue FROM busy
    UNION
    SELECT queue.name FROM timeball.queue
    UNION
    SELECT unnest(queues) FROM timeball.node WHERE kind = 'worker' AND lease_until > coalesce(:now, now())
    UNION
    SELECT :name::text WHERE :name::text IS NOT NULL
),
oldest AS (
    SELECT queue, min(run_at) AS run_at
    FROM lane
    GROUP BY queue
),
chosen AS MATERIALIZED (
    SELECT known.name, busy.running, oldest.run_at, count(*) OVER () AS total
    FROM known
    LEFT JOIN busy ON busy.queue = known.name
    LEFT JOIN oldest ON oldest.queue = known.name
    WHERE (:name::text IS NULL OR known.name = :name::text)
      AND (:after::text IS NULL OR known.name > :after::text)
    ORDER BY CASE WHEN :by_need THEN oldest.run_at END, known.name
    LIMIT :rows
)
SELECT chosen.name, queue.paused_at, queue.paused_until, queue.pause_reason, queue.max_running, queue.max_oldest_wait_seconds, queue.must_be_served,
       coalesce(chosen.running, 0) AS running,
       (SELECT count(*) FROM (SELECT 1 FROM timeball.ready WHERE ready.queue = chosen.name LIMIT :limit + 1) AS few) AS depth,
       chosen.run_at AS oldest_at,
       coalesce(:now, now()) AS moment,
       chosen.total
FROM chosen
LEFT JOIN timeball.queue ON queue.name = chosen.name
ORDER BY CASE WHEN :by_need THEN chosen.run_at END, chosen.name;

-- name: waiting_counts
-- The numbers of waiting and running executions, each counted up to :limit.
SELECT (SELECT count(*) FROM (SELECT 1 FROM timeball.due WHERE kind <> 'resume' AND kind <> 'retry' LIMIT :limit + 1) AS few) AS scheduled,
       (SELECT count(*) FROM (SELECT 1 FROM timeball.due WHERE kind = 'retry' LIMIT :limit + 1) AS few) AS retrying,
       (SELECT count(*) FROM (SELECT 1 FROM timeball.ready LIMIT :limit + 1) AS few)
       + (SELECT count(*) FROM (SELECT 1 FROM timeball.blocked LIMIT :limit + 1) AS few) AS queued,
       (SELECT count(*) FROM (SELECT 1 FROM timeball.running LIMIT :limit + 1) AS few) AS running;

-- name: applied_schema
SELECT max(number)
FROM timeball.migration;

-- name: ownerless_shards
-- The number of shards without a living owner.
SELECT count(*)
FROM timeball.shard
WHERE NOT EXISTS (
    SELECT 1
    FROM timeball.node
    WHERE node.incarnation = shard.owner
      AND node.lease_until > coalesce(:now, now())
);
