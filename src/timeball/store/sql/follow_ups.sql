-- What follows the end of an execution. `timeball.follow_up`, a trigger of the schema, writes it.

-- name: placed_follow_ups
-- What has been written because these executions and groups ended, and waits.
-- OFFSET 0: otherwise the planner may read all that is ready, to join it with a few jobs.
-- `given` hides the length of the array from the planner, which would otherwise plan the statement anew for every length.
WITH given AS MATERIALIZED (
    SELECT :causes::uuid[] AS causes
)
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
WHERE job.follows = ANY ((SELECT given.causes FROM given)::uuid[])
   OR job.follows = ANY (ARRAY(SELECT own.group_id FROM timeball.job AS own WHERE own.id = ANY ((SELECT given.causes FROM given)::uuid[]) AND own.group_id IS NOT NULL))
UNION ALL
SELECT placed.execution_id, placed.state_table, placed.run_at, job.queue, job.priority, job.shard, job.limit_key
FROM timeball.followed_success
JOIN timeball.job ON job.id = followed_success.job_id
CROSS JOIN LATERAL (
    SELECT ready.id AS execution_id, ready.run_at, 'ready' AS state_table
    FROM timeball.ready
    WHERE ready.id = ANY (ARRAY[followed_success.execution_id])
    UNION ALL
    SELECT blocked.id, blocked.run_at, 'blocked'
    FROM timeball.blocked
    WHERE blocked.id = ANY (ARRAY[followed_success.execution_id])
    OFFSET 0
) AS placed
WHERE followed_success.cause = ANY ((SELECT given.causes FROM given)::uuid[]);

-- name: close_ended_groups
-- Close those of these groups, and of the groups of these executions, whose parts have all ended: two transactions that ended the last parts at once may both
-- have left that to the other.
-- In the order of their ids, in which all that close several groups lock them. `given`: as in placed_follow_ups.
WITH given AS MATERIALIZED (
    SELECT :causes::uuid[] AS causes
)
SELECT timeball.close_group(ended.id, coalesce(:now, now())) AS is_closed
FROM (
    SELECT job.group_id AS id
    FROM timeball.job
    WHERE job.id = ANY ((SELECT given.causes FROM given)::uuid[])
      AND job.group_id IS NOT NULL
    UNION
    SELECT unnest(given.causes)
    FROM given
    ORDER BY id
    OFFSET 0
) AS ended
WHERE EXISTS (SELECT 1 FROM timeball.execution_group WHERE execution_group.id = ended.id AND execution_group.state = 'open')
  AND NOT EXISTS (SELECT 1 FROM timeball.group_part WHERE group_part.group_id = ended.id AND group_part.state IS NULL);

-- name: close_group
SELECT timeball.close_group(:id::uuid, coalesce(:now, now())) AS is_closed;

-- name: begin_group
-- Write a group and the one-offs that can start now. Done once under the same root; returns the id of the group.
SELECT timeball.follow_up_id(:root::uuid, 'group', :at::timestamptz) AS id,
       timeball.begin_work(:work::text::jsonb, :root::uuid, NULL, 'group', :at::timestamptz, :meta::text::jsonb, :created_by::text, NULL, NULL)::text AS begun;

-- name: cancel_group
-- From now on the chains of a group, and of the groups in it, begin no further step, whatever becomes of what runs. A statement that is about to begin one
-- is awaited.
WITH RECURSIVE groups_in AS (
    SELECT :id::uuid AS id
    UNION ALL
    SELECT execution_group.id
    FROM groups_in
    JOIN timeball.execution_group ON execution_group.group_id = groups_in.id
)
UPDATE timeball.execution_group
SET cancelled_at = coalesce(:now, now())
WHERE id IN (SELECT groups_in.id FROM groups_in)
  AND state = 'open'
  AND cancelled_at IS NULL;

-- name: unfinished_of_group
-- The unfinished executions of a group, and of the groups in it.
WITH RECURSIVE groups_in AS (
    SELECT :id::uuid AS id
    UNION ALL
    SELECT execution_group.id
    FROM groups_in
    JOIN timeball.execution_group ON execution_group.group_id = groups_in.id
)
SELECT job.id
FROM groups_in
JOIN timeball.job ON job.group_id = groups_in.id
WHERE NOT EXISTS (SELECT 1 FROM timeball.finished WHERE finished.id = job.id)
ORDER BY job.id;

-- name: size_of_results
-- How many bytes the results of a group take, with those of the groups in it.
WITH RECURSIVE parts AS (
    SELECT group_part.ended_by
    FROM timeball.group_part
    WHERE group_part.group_id = :id
    UNION ALL
    SELECT group_part.ended_by
    FROM parts
    JOIN timeball.group_part ON group_part.group_id = parts.ended_by
)
SELECT coalesce(sum(length(finished.result::text) + 1), 0) AS size
FROM parts
JOIN timeball.finished ON finished.id = parts.ended_by;

-- name: ends_of_group
-- How each part of a group ended, in order. A part that is a group has neither result nor state of an execution.
SELECT group_part.number, group_part.state AS part_state, group_part.ended_by, finished.state, finished.result::text AS result,
       coalesce(finished.error_type || ': ' || finished.error, finished.error, finished.reason) AS error,
       EXISTS (SELECT 1 FROM timeball.execution_group WHERE execution_group.id = group_part.ended_by) AS is_group
FROM timeball.group_part
LEFT JOIN timeball.finished ON finished.id = group_part.ended_by
WHERE group_part.group_id = :id
ORDER BY group_part.number;

-- name: trim_group
-- Groups that were closed before the beginning of the history.
DELETE FROM timeball.execution_group
WHERE id IN (
    SELECT id
    FROM timeball.execution_group
    WHERE closed_at < :before
    LIMIT :limit
)
RETURNING id;

-- name: cause_of
-- The execution or group that an execution follows, and how it ended; its state is NULL if its record is gone. No row if it follows none.
SELECT job.follows AS cause_id, cause.state, cause.result::text AS result, coalesce(cause.error, cause.reason) AS error, cause.error_type,
       (SELECT execution_group.state FROM timeball.execution_group WHERE execution_group.id = job.follows) AS group_state
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
-- The execution or group that one follows, and the executions that follow it.
SELECT job.follows AS id,
       CASE WHEN EXISTS (SELECT 1 FROM timeball.execution_group WHERE execution_group.id = job.follows) THEN 'follows_group' ELSE 'follows' END AS link
FROM timeball.job
WHERE job.id = :job_id
  AND job.follows IS NOT NULL
UNION ALL
SELECT job.id, job.follows_as
FROM timeball.job
WHERE job.follows = :id
UNION ALL
SELECT followed_success.cause, 'follows'
FROM timeball.followed_success
WHERE followed_success.job_id = :job_id
  AND followed_success.execution_id = :id
UNION ALL
SELECT followed_success.execution_id, 'after'
FROM timeball.followed_success
WHERE followed_success.cause = :id;

-- name: put_follow_up
-- The calls that follow an execution, in place of those that follow the executions of its job.
INSERT INTO timeball.follow_up (execution_id, on_success, on_failure)
VALUES (:execution_id, :on_success::text::jsonb, :on_failure::text::jsonb);

-- name: trim_followed_successes
-- Occurrences of jobs of kind `after` that came before the beginning of the history, and of which nothing else is left.
DELETE FROM timeball.followed_success
WHERE (job_id, scheduled_for) IN (
    SELECT job_id, scheduled_for
    FROM timeball.followed_success
    WHERE at < :before
      AND NOT EXISTS (SELECT 1 FROM timeball.due WHERE due.id = followed_success.execution_id)
      AND NOT EXISTS (SELECT 1 FROM timeball.ready WHERE ready.id = followed_success.execution_id)
      AND NOT EXISTS (SELECT 1 FROM timeball.blocked WHERE blocked.id = followed_success.execution_id)
      AND NOT EXISTS (SELECT 1 FROM timeball.running WHERE running.id = followed_success.execution_id)
      AND NOT EXISTS (SELECT 1 FROM timeball.finished WHERE finished.id = followed_success.execution_id)
    LIMIT :limit
)
RETURNING execution_id;

-- name: lock_out_other_causes
-- Let no other transaction give a job a cause: of two that do so at once, the second one sees the first, so they close no circle.
SELECT pg_advisory_xact_lock(hashtextextended('timeball.job.after', 0))::text AS locked;

-- name: lock_causes
-- The jobs of these names, locked in the order of their ids: their executions, and those that are being added, know from now on that something follows.
SELECT id, name, kind, coalesce(:now, now()) AS moment
FROM timeball.job
WHERE name = ANY (:names::text[])
  AND deleted_at IS NULL
ORDER BY id
FOR UPDATE;

-- name: chain_of_causes
-- A job, the one that it comes after, the one that comes before that, and so on.
WITH RECURSIVE chain AS (
    SELECT id, name, after_id, 1 AS step
    FROM timeball.job
    WHERE id = :id
    UNION ALL
    SELECT job.id, job.name, job.after_id, chain.step + 1
    FROM chain
    JOIN timeball.job ON job.id = chain.after_id
    WHERE chain.step < 10000
)
SELECT id, name
FROM chain
ORDER BY step;

-- name: mark_followed
-- From now on something follows the executions of a job: of its next occurrence, and of all that are added later.
UPDATE timeball.job
SET is_followed = true,
    has_follow_ups = true
WHERE id = :id
  AND is_followed IS NOT TRUE;

-- name: mark_occurrence_followed
UPDATE timeball.due
SET has_follow_ups = true
WHERE job_id = :id
  AND kind = 'occurrence'
  AND has_follow_ups IS NOT TRUE;

-- name: is_occurrence_unmarked
SELECT EXISTS (SELECT 1 FROM timeball.due WHERE job_id = :id AND kind = 'occurrence' AND has_follow_ups IS NOT TRUE);

-- name: rename_cause
-- A job has another name: those that come after it tell it.
UPDATE timeball.job
SET after = :name
WHERE after_id = :id;

-- name: forget_causes
-- Jobs are deleted: those that come after them wait for nothing.
UPDATE timeball.job
SET after_id = NULL,
    after_since = NULL
WHERE after_id = ANY (:ids::uuid[]);
