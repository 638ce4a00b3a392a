-- For the small databases of tests. These statements read whole tables.

-- name: next_instant
-- The next instant at which something is to happen.
SELECT min(run_at)
FROM (
    SELECT run_at
    FROM timeball.due
    UNION ALL
    SELECT run_at
    FROM timeball.ready
) AS waiting
WHERE run_at > coalesce(:now, now());

-- name: recorded_executions
-- All executions, with the columns of their jobs that tests compare, in the order of their instants.
SELECT execution.*, execution.result::text AS result_text, coalesce(execution.payload, timeball.payload_of(execution.job_id, execution.version))::text AS payload_text,
       coalesce(execution.meta, timeball.meta_of(execution.job_id, execution.version))::text AS meta_text,
       CASE WHEN execution.origin = 'enqueue' THEN job.created_by END AS enqueued_by, job.name AS job_name, job.timezone AS job_timezone
FROM timeball.execution
JOIN timeball.job ON job.id = execution.job_id
ORDER BY execution.scheduled_for, execution.id;
