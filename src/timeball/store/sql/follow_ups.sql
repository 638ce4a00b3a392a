-- What follows the end of an execution. `timeball.follow_up`, a trigger of the schema, writes it.

-- name: placed_follow_ups
-- What has been written because these executions ended, and waits.
-- OFFSET 0: otherwise the planner may read all that is ready, to join it with a few jobs.
SELECT placed.execution_id, placed.state_table, placed.run_at, job.queue, job.priority, job.shard, job.limit_key
FROM timeball.job
CROSS JOIN LATERAL (
    SELECT ready.id AS execution_id, ready.run_at, 'ready' AS state_table
    FROM timeball.ready
    WHERE ready.id = ANY (ARRAY[job.id])
    UNION ALL
    SELECT blocked.id, blocked.run_at, 'blocked'
    FROM timeball.blocked
    WHERE blocked.id = ANY (ARRAY[job.id])
    OFFSET 0
) AS placed
WHERE job.follows = ANY (:causes::uuid[]);

-- name: cause_of
-- The execution that an execution follows, and how it ended; its state is NULL if its record is gone. No row if it follows none.
SELECT job.follows AS cause_id, cause.state, cause.result::text AS result, coalesce(cause.error, cause.reason) AS error, cause.error_type
FROM timeball.job
LEFT JOIN LATERAL (
    SELECT finished.state, finished.result, finished.error_type, finished.error, finished.reason
    FROM timeball.finished
    WHERE finished.id = job.follows
    ORDER BY finished.finished_at DESC
    LIMIT 1
) AS cause ON true
WHERE job.id = :job_id
  AND job.follows IS NOT NULL;

-- name: links_of_execution
-- The execution that one follows, and those that follow it.
SELECT job.follows AS id, 'follows' AS link
FROM timeball.job
WHERE job.id = :job_id
  AND job.follows IS NOT NULL
UNION ALL
SELECT job.id, job.follows_as
FROM timeball.job
WHERE job.follows = :id;

-- name: put_follow_up
-- The calls that follow an execution, in place of those that follow the executions of its job.
INSERT INTO timeball.follow_up (execution_id, on_success, on_failure)
VALUES (:execution_id, :on_success::text::jsonb, :on_failure::text::jsonb);
