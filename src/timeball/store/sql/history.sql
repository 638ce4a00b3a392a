-- Reading executions, and keeping their history in shape.

-- name: find_execution
-- One execution, whatever its room.
SELECT *, result::text AS result_text
FROM timeball.execution
WHERE id = :id
ORDER BY finished_at NULLS FIRST
LIMIT 1;

-- name: payload_override
-- The payload an execution was given of its own, if any.
SELECT payload::text
FROM timeball.execution
WHERE id = :id
LIMIT 1;

-- name: executions_of_job
-- Newest first. An enqueued execution bears its job's id; all others are found by the indexes on job_id, which leave those out.
WITH own AS (
    (
        SELECT *
        FROM timeball.execution
        WHERE job_id = :job_id
          AND job_id <> id
          AND id < :before
        ORDER BY id DESC
        LIMIT :limit
    )
    UNION ALL
    SELECT *
    FROM timeball.execution
    WHERE id = :job_id
      AND id < :before
)
SELECT *, result::text AS result_text
FROM own
ORDER BY id DESC
LIMIT :limit;

-- name: attempts_of
SELECT *
FROM timeball.attempt
WHERE execution_id = :id
ORDER BY fence;

-- name: write_log_lines
INSERT INTO timeball.log_line (execution_id, fence, number, at, level, message)
SELECT *
FROM unnest(:execution_ids::uuid[], :fences::bigint[], :numbers::integer[], :ats::timestamptz[], :levels::text[], :messages::text[])
ON CONFLICT DO NOTHING;

-- name: log_lines_of
SELECT fence, number, at, level, message
FROM timeball.log_line
WHERE execution_id = :id
  AND (fence, number) > (:fence, :number)
ORDER BY fence, number
LIMIT :limit;

-- name: days_kept
-- The days that have a partition of their own.
SELECT relname
FROM pg_class
JOIN pg_inherits ON pg_inherits.inhrelid = pg_class.oid
WHERE pg_inherits.inhparent = 'timeball.finished'::regclass
  AND relname ~ '^finished_[0-9]{8}$'
ORDER BY relname;

-- name: moment
SELECT coalesce(:now, now()) AS moment;

-- name: set_fact
INSERT INTO timeball.fact (key, value)
VALUES (:key, :value)
ON CONFLICT (key) DO UPDATE SET value = excluded.value;

-- name: get_fact
SELECT value
FROM timeball.fact
WHERE key = :key;
