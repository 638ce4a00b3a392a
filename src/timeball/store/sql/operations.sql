-- Operations: one action on many executions or jobs.

-- name: add_operation
-- With a holder it begins at once; without one, an API process takes it.
INSERT INTO timeball.operation (id, action, subject, state, actor, place, reason, settles, until_at, total, holder, lease_until, created_at, started_at)
VALUES (:id, :action, :subject, CASE WHEN :holder::uuid IS NULL THEN 'pending' ELSE 'running' END, :actor, :place, :reason, :settles, :until, :total,
        :holder::uuid, CASE WHEN :holder::uuid IS NOT NULL THEN coalesce(:now, now()) + :lease::interval END, coalesce(:now, now()),
        CASE WHEN :holder::uuid IS NOT NULL THEN coalesce(:now, now()) END)
RETURNING *;

-- name: add_operation_items
INSERT INTO timeball.operation_item (operation_id, number, execution_id, job_id, made)
SELECT :operation_id, item.number, CASE WHEN :subject::text = 'execution' THEN item.id END, CASE WHEN :subject::text = 'job' THEN item.id END, item.made
FROM unnest(:ids::uuid[], :made::uuid[]) WITH ORDINALITY AS item (id, made, number);

-- name: find_operation
SELECT *
FROM timeball.operation
WHERE id = :id;

-- name: list_operations
-- The latest first, before an id. (SELECT :limit): see next_due.
SELECT *
FROM timeball.operation
WHERE id < :before
ORDER BY id DESC
LIMIT (SELECT :limit::bigint);

-- name: take_operation
-- The oldest unfinished operation without a living holder; or the named one.
UPDATE timeball.operation
SET holder = :holder,
    lease_until = coalesce(:now, now()) + :lease::interval,
    state = 'running',
    started_at = coalesce(started_at, :now, now())
WHERE id = (
    SELECT id
    FROM timeball.operation
    WHERE finished_at IS NULL
      AND (holder IS NULL OR holder = :holder OR lease_until <= coalesce(:now, now()))
    ORDER BY id
    LIMIT 1
    FOR UPDATE SKIP LOCKED
)
RETURNING *;

-- name: items_left
SELECT number, execution_id, job_id, status, made, error
FROM timeball.operation_item
WHERE operation_id = :operation_id
  AND status IS NULL
ORDER BY number
LIMIT :limit;

-- name: operation_items
-- Items after a number; of one status, if it is given.
SELECT number, execution_id, job_id, status, made, error
FROM timeball.operation_item
WHERE operation_id = :operation_id
  AND number > :after
  AND (:status::text IS NULL OR status = :status)
ORDER BY number
LIMIT :limit;

-- name: advance_operation
-- Count the results, and renew the lease; no row if another process holds the operation by now.
UPDATE timeball.operation
SET done = done + :done,
    failed = failed + :failed,
    lease_until = coalesce(:now, now()) + :lease::interval
WHERE id = :id
  AND holder = :holder
  AND finished_at IS NULL
RETURNING *;

-- name: record_items
-- OFFSET 0: otherwise a planner that knows of few items reads all of an operation for every batch. The operation is locked.
UPDATE timeball.operation_item
SET status = result.status,
    made = result.made,
    error = result.error
FROM unnest(:numbers::integer[], :statuses::text[], :made::uuid[], :errors::text[]) AS result (number, status, made, error)
CROSS JOIN LATERAL (
    SELECT item.ctid AS tid
    FROM timeball.operation_item AS item
    WHERE item.operation_id = :operation_id
      AND item.number = result.number
    OFFSET 0
) AS found
WHERE operation_item.ctid = found.tid;

-- name: finish_operation
UPDATE timeball.operation
SET state = :state,
    error = :error,
    finished_at = coalesce(:now, now()),
    holder = NULL,
    lease_until = NULL
WHERE id = :id
  AND holder = :holder
  AND finished_at IS NULL
RETURNING *;

-- name: cancel_operation
UPDATE timeball.operation
SET cancel_requested = true
WHERE id = :id
  AND finished_at IS NULL
RETURNING *;

-- name: forget_operations
DELETE FROM timeball.operation
WHERE finished_at < coalesce(:now, now()) - :keep::interval;
