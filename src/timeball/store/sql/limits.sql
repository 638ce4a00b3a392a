-- From `blocked` to `ready` where a limit has a free place, and requests to stop running executions.

-- name: lock_limits
-- Lock the limits that may have a free place. The next statement counts, with a fresh snapshot.
-- FOR NO KEY UPDATE does not wait for a transaction that only names a limit: it may be a program's own, and take long.
SELECT key
FROM timeball.running_limit
WHERE key = ANY (:keys::text[])
ORDER BY key
FOR NO KEY UPDATE;

-- name: unblock
-- Move blocked executions to `ready` while their limit has free places, the most urgent first: by their index, whose rank has no time zone.
-- By ctid, under a lock. SKIP LOCKED: a row that a transaction is changing waits for the end of that, which may be a program's own and take long; others do
-- not. The reaper repeats this. `everything` as in `lanes` of claiming.sql.
WITH everything AS MATERIALIZED (
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
    FROM everything
    CROSS JOIN place
    CROSS JOIN LATERAL (
        SELECT blocked.ctid AS tid
        FROM timeball.blocked
        WHERE blocked.limit_key = place.key
          AND (blocked.run_at AT TIME ZONE 'UTC') - blocked.priority * interval '12 seconds' BETWEEN everything.first AND everything.last
        ORDER BY (blocked.run_at AT TIME ZONE 'UTC') - blocked.priority * interval '12 seconds'
        LIMIT greatest(place.free, 0)
        FOR UPDATE SKIP LOCKED
    ) AS first
),
freed AS (
    DELETE FROM timeball.blocked
    WHERE blocked.ctid = ANY (ARRAY(SELECT chosen.tid FROM chosen))
    RETURNING blocked.*
)
INSERT INTO timeball.ready (id, job_id, origin, version, queue, priority, handler, scheduled_for, run_at, queued_at,
                            attempts, lost, fence, tzdata, limit_key, unique_key, payload, retry_of, created_by, bound_secrets_only, meta, has_follow_ups, expires_at)
SELECT id, job_id, origin, version, queue, priority, handler, scheduled_for, run_at, queued_at,
       attempts, lost, fence, tzdata, limit_key, unique_key, payload, retry_of, created_by, bound_secrets_only, meta, has_follow_ups, expires_at
FROM freed
RETURNING queue, priority, run_at;

-- name: blocked_keys
-- The limits that blocked executions wait for, in order, the first few after :after: a loose index scan, with one probe for each limit.
-- The reaper unblocks each of them again, in case a node died between freeing a place and unblocking. `everything` as in `lanes` of claiming.sql.
WITH RECURSIVE everything AS MATERIALIZED (
    SELECT '-infinity'::timestamp AS first, 'infinity'::timestamp AS last
),
waited_for AS (
    SELECT :after::text AS limit_key, 0 AS number
    UNION ALL
    SELECT following.limit_key, waited_for.number + 1
    FROM waited_for
    CROSS JOIN everything
    CROSS JOIN LATERAL (
        SELECT blocked.limit_key
        FROM timeball.blocked
        WHERE blocked.limit_key > waited_for.limit_key
          AND (blocked.run_at AT TIME ZONE 'UTC') - blocked.priority * interval '12 seconds' BETWEEN everything.first AND everything.last
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
-- Ask the holders of these executions to stop. Only the holder and the reaper remove a running row.
-- Rows are locked in the order of ids, as outcomes are, so that two batches do not wait for each other. By the bytes of ids: a planner that takes the
-- table for empty would read all of it by the index of the ids.
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
-- Ask the holders of the executions of these jobs to stop, of those that their next occurrences supersede; locked in the same order. A backfill is not superseded.
WITH asked AS MATERIALIZED (
    SELECT id
    FROM timeball.running
    WHERE job_id = ANY (:job_ids::uuid[])
      AND job_id <> id
      AND origin <> 'backfill'
      AND stop IS NULL
    ORDER BY uuid_send(id)
    FOR UPDATE
)
UPDATE timeball.running
SET stop = :reason
WHERE id = ANY (ARRAY(SELECT asked.id FROM asked))
RETURNING id, holder;

-- name: request_stop_of_superseded
-- Ask for a stop of executions whose job has overlap `cancel_running`, and whose next occurrence waits behind one of these limits.
-- The promotion that blocked the next occurrence has asked those that ran. It may have died before, and an execution that was ready then may run by now.
-- Such a job has a limit of one, so larger limits are not searched.
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
  AND running.origin <> 'backfill'
  AND job.id = running.job_id
  AND job.kind IN ('every', 'cron', 'rrule')
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
-- The executions that this holder has been asked to stop.
SELECT id, stop
FROM timeball.running
WHERE holder = :incarnation
  AND stop IS NOT NULL;
