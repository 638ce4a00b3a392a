-- From `due`, `ready` and `blocked` to `finished`: what has not begun by the instant at which it expires.

-- name: expire_waiting
-- Record the first waiting executions whose time to begin has passed as skipped, up to :limit of each table, and free their unique keys.
-- A row that has `expires_at` has never begun. One that is being claimed, promoted or cancelled is locked, and passed over: the other statement wins.
-- A pending occurrence of a schedule is not taken. A scheduler decides about it, and writes the occurrence after it in the same statement.
-- An occurrence that was to run later counts towards max_executions, as if it had been queued.
WITH moment AS MATERIALIZED (
    SELECT coalesce(:now, now()) AS at
),
locked_due AS MATERIALIZED (
    SELECT ctid AS tid
    FROM timeball.due
    WHERE expires_at <= (SELECT at FROM moment)
      AND NOT (kind = 'occurrence' AND origin = 'schedule')
    ORDER BY expires_at
    LIMIT :limit
    FOR UPDATE SKIP LOCKED
),
locked_ready AS MATERIALIZED (
    SELECT ctid AS tid
    FROM timeball.ready
    WHERE expires_at <= (SELECT at FROM moment)
    ORDER BY expires_at
    LIMIT :limit
    FOR UPDATE SKIP LOCKED
),
locked_blocked AS MATERIALIZED (
    SELECT ctid AS tid
    FROM timeball.blocked
    WHERE expires_at <= (SELECT at FROM moment)
    ORDER BY expires_at
    LIMIT :limit
    FOR UPDATE SKIP LOCKED
),
from_due AS (
    DELETE FROM timeball.due
    WHERE ctid = ANY (ARRAY(SELECT tid FROM locked_due))
    RETURNING id, job_id, origin, version, queue, priority, handler, scheduled_for,
              CASE WHEN origin = 'schedule' THEN coalesce(queued_at, :now, now()) ELSE queued_at END AS queued_at, attempts, lost, fence, tzdata, limit_key, unique_key, payload, retry_of, created_by, bound_secrets_only, meta, has_follow_ups, expires_at
),
from_ready AS (
    DELETE FROM timeball.ready
    WHERE ctid = ANY (ARRAY(SELECT tid FROM locked_ready))
    RETURNING id, job_id, origin, version, queue, priority, handler, scheduled_for, queued_at, attempts, lost, fence, tzdata, limit_key, unique_key, payload, retry_of, created_by, bound_secrets_only, meta, has_follow_ups, expires_at
),
from_blocked AS (
    DELETE FROM timeball.blocked
    WHERE ctid = ANY (ARRAY(SELECT tid FROM locked_blocked))
    RETURNING id, job_id, origin, version, queue, priority, handler, scheduled_for, queued_at, attempts, lost, fence, tzdata, limit_key, unique_key, payload, retry_of, created_by, bound_secrets_only, meta, has_follow_ups, expires_at
),
gone AS (
    SELECT * FROM from_due
    UNION ALL
    SELECT * FROM from_ready
    UNION ALL
    SELECT * FROM from_blocked
),
unkeyed AS (
    DELETE FROM timeball.live_key
    USING gone
    WHERE live_key.key = gone.unique_key
      AND live_key.execution_id = gone.id
),
skipped AS (
    INSERT INTO timeball.finished (id, job_id, state, origin, version, queue, priority, handler, scheduled_for, queued_at, finished_at,
                                   attempts, lost, fence, tzdata, reason, payload, retry_of, created_by, bound_secrets_only, meta, has_follow_ups, expires_at)
    SELECT id, job_id, 'skipped', origin, version, queue, priority, handler, scheduled_for, queued_at, (SELECT at FROM moment),
           attempts, lost, fence, tzdata, :reason, payload, retry_of, created_by, bound_secrets_only, meta, has_follow_ups, expires_at
    FROM gone
)
SELECT id, job_id, limit_key, has_follow_ups AS is_followed
FROM gone;
