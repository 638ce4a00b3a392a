-- Deleting what has passed its retention, in small steps: each statement deletes at most :limit rows, and is repeated while it finds as many.

-- name: days_outside
-- The days up to today whose records are in the default partitions, because their own partitions were not made in time.
SELECT DISTINCT (at AT TIME ZONE 'UTC')::date AS day
FROM (
    SELECT finished_at AS at FROM timeball.finished_default
    UNION ALL
    SELECT finished_at FROM timeball.attempt_default
    UNION ALL
    SELECT at FROM timeball.log_line_default
) AS outside
WHERE at < coalesce(:now, now())
ORDER BY day
LIMIT :limit;

-- name: trim_settled
-- A dead execution ended before it was settled, so its history is gone already.
DELETE FROM timeball.settled
WHERE execution_id IN (SELECT execution_id FROM timeball.settled WHERE settled_at < :before LIMIT :limit)
RETURNING execution_id;

-- name: trim_skip_range
-- Skipped occurrences from before the beginning of the history: `verify` needs everything after it.
DELETE FROM timeball.skip_range
WHERE id IN (
    SELECT id
    FROM timeball.skip_range
    WHERE recorded_at < :before
      AND last_at <= (SELECT value::timestamptz FROM timeball.fact WHERE key = 'history_from')
    LIMIT :limit
)
RETURNING id;

-- name: trim_queue_interval
-- Pauses and limits of queues that had ended by then.
DELETE FROM timeball.queue_interval
WHERE (queue, kind, from_at) IN (SELECT queue, kind, from_at FROM timeball.queue_interval WHERE until_at < :before LIMIT :limit)
RETURNING queue;

-- name: trim_freeze
-- Freezes from before the beginning of the history: `verify` needs the others.
DELETE FROM timeball.freeze_period
WHERE id IN (
    SELECT id
    FROM timeball.freeze_period
    WHERE ended_at < :before
      AND until_at <= (SELECT value::timestamptz FROM timeball.fact WHERE key = 'history_from')
    LIMIT :limit
)
RETURNING id;

-- name: trim_alert
-- Alerts that had been resolved by then.
DELETE FROM timeball.alert
WHERE id = ANY (ARRAY(SELECT id FROM timeball.alert WHERE resolved_at < :before LIMIT :limit))
RETURNING id;

-- name: trim_live_key
-- Keys that executions which have ended held until an instant before this one.
DELETE FROM timeball.live_key
WHERE key IN (SELECT key FROM timeball.live_key WHERE has_ended AND held_until < :before LIMIT :limit)
  AND has_ended
  AND held_until < :before
RETURNING key;

-- name: trim_audit
DELETE FROM timeball.audit
WHERE id IN (SELECT id FROM timeball.audit WHERE at < :before LIMIT :limit)
RETURNING id;

-- name: trim_idempotency_key
-- As forget_old_requests.
DELETE FROM timeball.idempotency_key
WHERE ctid = ANY (ARRAY(
    SELECT ctid
    FROM timeball.idempotency_key
    WHERE created_at < :before
    ORDER BY created_at
    LIMIT :limit
    FOR UPDATE SKIP LOCKED
))
RETURNING key;

-- name: unused_limits
-- Limits, in order after a key, that no job and no unfinished execution names.
-- OFFSET 0: otherwise PostgreSQL reads everything that is limited, to join it with a few limits.
SELECT key
FROM (
    SELECT key
    FROM timeball.running_limit
    WHERE key > :after
    ORDER BY key
    OFFSET 0
) AS running_limit
WHERE NOT EXISTS (SELECT 1 FROM timeball.job WHERE job.limit_key = running_limit.key OFFSET 0)
  AND NOT EXISTS (SELECT 1 FROM timeball.due WHERE due.limit_key = running_limit.key OFFSET 0)
  AND NOT EXISTS (SELECT 1 FROM timeball.ready WHERE ready.limit_key = running_limit.key OFFSET 0)
  AND NOT EXISTS (SELECT 1 FROM timeball.blocked WHERE blocked.limit_key = running_limit.key OFFSET 0)
  AND NOT EXISTS (SELECT 1 FROM timeball.running WHERE running.limit_key = running_limit.key OFFSET 0)
ORDER BY key
LIMIT :limit;

-- name: lock_unused_limits
-- Lock limits against transactions that name them. The next statement looks whether one does, with a fresh snapshot.
SELECT key
FROM timeball.running_limit
WHERE key = ANY (:keys::text[])
ORDER BY key
FOR UPDATE;

-- name: trim_limits
-- Delete those of the limits that are still unused. The statement before has locked them, so a transaction that names one of them waits, and then inserts
-- it again.
DELETE FROM timeball.running_limit
WHERE key = ANY (:keys::text[])
  AND NOT EXISTS (SELECT 1 FROM timeball.job WHERE job.limit_key = running_limit.key OFFSET 0)
  AND NOT EXISTS (SELECT 1 FROM timeball.due WHERE due.limit_key = running_limit.key OFFSET 0)
  AND NOT EXISTS (SELECT 1 FROM timeball.ready WHERE ready.limit_key = running_limit.key OFFSET 0)
  AND NOT EXISTS (SELECT 1 FROM timeball.blocked WHERE blocked.limit_key = running_limit.key OFFSET 0)
  AND NOT EXISTS (SELECT 1 FROM timeball.running WHERE running.limit_key = running_limit.key OFFSET 0)
RETURNING key;

-- name: deleted_jobs
-- Jobs that were deleted long ago, in the order of their ids.
SELECT id
FROM timeball.job
WHERE deleted_at < :before
  AND id > :after
ORDER BY id
LIMIT :limit;

-- name: lock_jobs
-- Lock jobs that may have no execution left. The next statement checks that, with a fresh snapshot; a transaction that adds an execution locks its job,
-- too.
SELECT id
FROM timeball.job
WHERE id = ANY (:ids::uuid[])
  AND (deleted_at < :before OR (name IS NULL AND kind = 'once'))
ORDER BY id
FOR UPDATE;

-- name: delete_spent_jobs
-- Delete those of the jobs that have no execution left, except in the partition that is about to be dropped.
WITH gone AS (
    DELETE FROM timeball.job
    WHERE id = ANY (:ids::uuid[])
      AND NOT EXISTS (SELECT 1 FROM timeball.finished WHERE finished.job_id = job.id AND finished.job_id <> finished.id AND finished.tableoid <> :partition::oid)
      AND NOT EXISTS (SELECT 1 FROM timeball.due WHERE due.job_id = job.id AND due.job_id <> due.id)
      AND NOT EXISTS (SELECT 1 FROM timeball.ready WHERE ready.job_id = job.id AND ready.job_id <> ready.id)
      AND NOT EXISTS (SELECT 1 FROM timeball.running WHERE running.job_id = job.id AND running.job_id <> running.id)
      AND NOT EXISTS (SELECT 1 FROM timeball.blocked WHERE blocked.job_id = job.id)
      AND (:own_is_there::boolean OR NOT EXISTS (SELECT 1 FROM timeball.execution WHERE execution.id = job.id))
    RETURNING id
),
unversioned AS (
    DELETE FROM timeball.job_version
    USING gone
    WHERE job_version.job_id = gone.id
),
unskipped AS (
    DELETE FROM timeball.skip_range
    USING gone
    WHERE skip_range.job_id = gone.id
),
unused AS (
    DELETE FROM timeball.secret_use
    USING gone
    WHERE secret_use.used_by = 'job:' || gone.id
),
unsummarised AS (
    DELETE FROM timeball.job_summary
    USING gone
    WHERE job_summary.job_id = gone.id
),
unlimited AS (
    DELETE FROM timeball.running_limit
    USING gone
    WHERE running_limit.key = 'job:' || gone.id
)
SELECT id FROM gone;

-- name: trim_alert_delivery
-- Deliveries whose executions are gone. Those of an alert that is not resolved stay: they say who is to hear of its end.
DELETE FROM timeball.alert_delivery
WHERE id = ANY (ARRAY(
    SELECT delivery.id
    FROM timeball.alert_delivery AS delivery
    WHERE delivery.created_at < :before
      AND NOT EXISTS (SELECT 1 FROM timeball.alert WHERE alert.id = delivery.alert_id AND alert.resolved_at IS NULL)
    ORDER BY delivery.created_at
    LIMIT (SELECT :limit::bigint)
))
RETURNING id;
