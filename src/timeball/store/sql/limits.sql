-- What all moves between tables share: the way from `blocked` to `ready`, which every move may open for another, and wishes to stop.

-- name: lock_limits
-- Lock the limits that have a place free, perhaps; counting comes in the next statement, with a fresh snapshot.
SELECT key
FROM timeball.running_limit
WHERE key = ANY (:keys::text[])
ORDER BY key
FOR UPDATE;

-- name: unblock
-- Let blocked executions into ready while their limit has places, most urgent first: by their index, whose rank knows no time zone. By ctid as in claim.
-- `whole` as in lanes.
WITH whole AS MATERIALIZED (
    SELECT '-infinity'::timestamp AS first, 'infinity'::timestamp AS last
),
place AS (
    SELECT running_limit.key,
           running_limit.max_running
             - (SELECT count(*) FROM timeball.ready WHERE ready.limit_key = running_limit.key)
             - (SELECT count(*) FROM timeball.running WHERE running.limit_key = running_limit.key) AS free
    FROM timeball.running_limit
    WHERE running_limit.key = ANY (:keys::text[])
),
chosen AS MATERIALIZED (
    SELECT first.tid
    FROM whole
    CROSS JOIN place
    CROSS JOIN LATERAL (
        SELECT blocked.ctid AS tid
        FROM timeball.blocked
        WHERE blocked.limit_key = place.key
          AND (blocked.run_at AT TIME ZONE 'UTC') - blocked.priority * interval '12 seconds' BETWEEN whole.first AND whole.last
        ORDER BY (blocked.run_at AT TIME ZONE 'UTC') - blocked.priority * interval '12 seconds'
        LIMIT greatest(place.free, 0)
    ) AS first
),
freed AS (
    DELETE FROM timeball.blocked
    WHERE blocked.ctid = ANY (ARRAY(SELECT chosen.tid FROM chosen))
    RETURNING blocked.*
)
INSERT INTO timeball.ready (id, job_id, origin, version, queue, priority, handler, scheduled_for, run_at, queued_at,
                            attempts, lost, fence, tzdata, limit_key, unique_key, payload, retry_of, created_by, bound_secrets_only)
SELECT id, job_id, origin, version, queue, priority, handler, scheduled_for, run_at, queued_at,
       attempts, lost, fence, tzdata, limit_key, unique_key, payload, retry_of, created_by, bound_secrets_only
FROM freed
RETURNING queue, priority, run_at;

-- name: blocked_keys
-- The limits somebody waits for, the first few behind one of them: a loose index scan, one probe a limit.
-- The reaper looks at each again, in case whoever freed a place died before it could unblock. `whole` as in lanes.
WITH RECURSIVE whole AS MATERIALIZED (
    SELECT '-infinity'::timestamp AS first, 'infinity'::timestamp AS last
),
waited_for AS (
    SELECT :behind::text AS limit_key, 0 AS number
    UNION ALL
    SELECT following.limit_key, waited_for.number + 1
    FROM waited_for
    CROSS JOIN whole
    CROSS JOIN LATERAL (
        SELECT blocked.limit_key
        FROM timeball.blocked
        WHERE blocked.limit_key > waited_for.limit_key
          AND (blocked.run_at AT TIME ZONE 'UTC') - blocked.priority * interval '12 seconds' BETWEEN whole.first AND whole.last
        ORDER BY blocked.limit_key
        LIMIT 1
    ) AS following
    WHERE waited_for.number < :limit::integer
)
SELECT limit_key
FROM waited_for
WHERE number > 0
ORDER BY number;

-- name: request_stop
-- Ask the holders of these executions to stop; only the holder and the reaper take a running row away.
-- Locked in the order of ids, as outcomes are, so that two batches do not wait for each other: by the bytes of ids, or a planner that believes the table
-- to be empty would read all of it by their index.
WITH asked AS MATERIALIZED (
    SELECT id
    FROM timeball.running
    WHERE id = ANY (:ids::uuid[])
      AND stop IS NULL
    ORDER BY uuid_send(id)
    FOR UPDATE
)
UPDATE timeball.running
SET stop = :reason
WHERE id = ANY (ARRAY(SELECT asked.id FROM asked))
RETURNING id, holder;

-- name: request_stop_of_jobs
-- Ask the holders of these jobs' executions to stop; in the same order.
WITH asked AS MATERIALIZED (
    SELECT id
    FROM timeball.running
    WHERE job_id = ANY (:job_ids::uuid[])
      AND job_id <> id
      AND stop IS NULL
    ORDER BY uuid_send(id)
    FOR UPDATE
)
UPDATE timeball.running
SET stop = :reason
WHERE id = ANY (ARRAY(SELECT asked.id FROM asked))
RETURNING id, holder;

-- name: request_stop_of_superseded
-- Ask those to stop whose job wants that, and whose next occurrence waits for them behind one of these limits. Who let it wait has asked those that
-- ran; but may have died before, and what was only ready then may run by now. Theirs is a limit of one: under larger ones nobody is looked for.
UPDATE timeball.running
SET stop = :reason
FROM timeball.job
WHERE running.limit_key = ANY (ARRAY(
          SELECT running_limit.key
          FROM timeball.running_limit
          WHERE running_limit.key = ANY (:keys::text[])
            AND running_limit.max_running = 1
      ))
  AND running.stop IS NULL
  AND job.id = running.job_id
  AND job.kind IN ('every', 'cron')
  AND job.overlap = 'cancel_running'
  AND EXISTS (
      SELECT 1
      FROM timeball.blocked
      WHERE blocked.limit_key = running.limit_key
        AND blocked.job_id = running.job_id
        AND blocked.origin = 'schedule'
        AND blocked.scheduled_for > running.scheduled_for
        AND blocked.run_at <= coalesce(:now, now())
  )
RETURNING running.id, running.holder;

-- name: stops
-- What this holder has been asked to stop.
SELECT id, stop
FROM timeball.running
WHERE holder = :incarnation
  AND stop IS NOT NULL;
