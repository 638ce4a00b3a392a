-- Operations: one action on many executions or jobs.

-- name: add_operation
-- With a holder it begins at once; without one, an API process takes it.
INSERT INTO timeball.operation (id, action, subject, state, actor, place, reason, settles, until_at, total, holder, lease_until, created_at, started_at, backfill)
VALUES (:id, :action, :subject, CASE WHEN :holder::uuid IS NULL THEN 'pending' ELSE 'running' END, :actor, :place, :reason, :settles, :until, :total,
        :holder::uuid, CASE WHEN :holder::uuid IS NOT NULL THEN coalesce(:now, now()) + :lease::interval END, coalesce(:now, now()),
        CASE WHEN :holder::uuid IS NOT NULL THEN coalesce(:now, now()) END, :backfill::text::jsonb)
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
-- The oldest unfinished operation without a living holder. A backfill that has looked for free places rests first; a paused one is taken to be cancelled only.
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
      AND (state <> 'paused' OR cancel_requested)
      AND (next_at IS NULL OR next_at <= coalesce(:now, now()) OR cancel_requested)
    ORDER BY id
    LIMIT 1
    FOR UPDATE SKIP LOCKED
)
RETURNING *;

-- name: housekeeping_work
-- Whether there is an unfinished operation that a process may carry out, now or after a rest, without a living holder; and whether there is any webhook.
SELECT EXISTS (
           SELECT
           FROM timeball.operation
           WHERE finished_at IS NULL
             AND (holder IS NULL OR lease_until <= coalesce(:now, now()))
             AND (cancel_requested OR state <> 'paused')
       ) AS has_operations,
       EXISTS (SELECT FROM timeball.webhook) AS has_webhooks;

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

-- name: pause_operation
-- A backfill creates nothing more until it is resumed; no row if it has finished.
UPDATE timeball.operation
SET state = 'paused',
    holder = NULL,
    lease_until = NULL
WHERE id = :id
  AND finished_at IS NULL
RETURNING *;

-- name: resume_operation
-- A paused backfill goes on; no row if it is not paused.
UPDATE timeball.operation
SET state = 'pending',
    next_at = NULL
WHERE id = :id
  AND state = 'paused'
RETURNING *;

-- name: rest_operation
-- Put a backfill down for a while, so that its holder can do other operations meanwhile, and any process can go on with it.
UPDATE timeball.operation
SET holder = NULL,
    lease_until = NULL,
    next_at = coalesce(:now, now()) + :rest::interval
WHERE id = :id
  AND holder = :holder
  AND finished_at IS NULL
RETURNING *;

-- name: feed_operation
-- Move a backfill on behind the occurrences that it has looked at; no row if it is paused or cancelled, another process holds it, or it was moved already.
UPDATE timeball.operation
SET cursor_at = :cursor,
    lease_until = coalesce(:now, now()) + :lease::interval
WHERE id = :id
  AND holder = :holder
  AND state = 'running'
  AND NOT cancel_requested
  AND finished_at IS NULL
  AND cursor_at IS NOT DISTINCT FROM :previous::timestamptz
RETURNING *;

-- name: lock_to_fill
-- Backfills of a job create executions one after the other: the next statement sees everything that was filled in before. Triggers and claims do not wait.
SELECT id
FROM timeball.job
WHERE id = :job_id
  AND deleted_at IS NULL
FOR NO KEY UPDATE;

-- name: existing_executions
-- Those of some executions that are in any state table.
SELECT id, state, reason
FROM timeball.execution
WHERE id = ANY (:ids::uuid[]);

-- name: count_fed
-- Add the executions that a backfill has created to its items and its total.
WITH item AS (
    INSERT INTO timeball.operation_item (operation_id, number, execution_id, made)
    SELECT :id, operation.total + given.number, given.id, given.id
    FROM unnest(:ids::uuid[]) WITH ORDINALITY AS given (id, number)
    CROSS JOIN timeball.operation
    WHERE operation.id = :id
)
UPDATE timeball.operation
SET total = total + cardinality(:ids::uuid[])
WHERE id = :id
RETURNING *;

-- name: count_filled
-- Count occurrences that were filled in to the skip ranges that hold them.
UPDATE timeball.skip_range
SET filled = filled + held.number
FROM (
    SELECT skip_range.id, count(*) AS number
    FROM unnest(:instants::timestamptz[]) AS filled (at)
    CROSS JOIN LATERAL (
        SELECT earlier.id, earlier.last_at
        FROM timeball.skip_range AS earlier
        WHERE (earlier.job_id, earlier.first_at) >= (:job_id::uuid, '-infinity'::timestamptz)
          AND (earlier.job_id, earlier.first_at) <= (:job_id::uuid, filled.at)
        ORDER BY earlier.job_id DESC, earlier.first_at DESC
        LIMIT 1
    ) AS skip_range
    WHERE skip_range.last_at >= filled.at
    GROUP BY skip_range.id
) AS held
WHERE skip_range.id = held.id;

-- name: retries_of
-- The retries of some executions of a job, and the retries of these.
WITH RECURSIVE retried AS (
    SELECT execution.id, execution.state, execution.retry_of AS root
    FROM timeball.execution
    WHERE execution.job_id = :job_id
      AND execution.job_id <> execution.id
      AND execution.retry_of = ANY (:ids::uuid[])
    UNION ALL
    SELECT execution.id, execution.state, retried.root
    FROM retried
    JOIN timeball.execution ON execution.retry_of = retried.id
    WHERE execution.job_id = :job_id
      AND execution.job_id <> execution.id
)
SELECT root, state
FROM retried;

-- name: cancel_operation
UPDATE timeball.operation
SET cancel_requested = true
WHERE id = :id
  AND finished_at IS NULL
RETURNING *;

-- name: forget_operations
DELETE FROM timeball.operation
WHERE finished_at < coalesce(:now, now()) - :keep::interval;
