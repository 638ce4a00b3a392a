-- Groups and their parts, as people read them. What begins and closes groups is in follow_ups.sql.

-- fragment: innermost_group
-- The part of a group to which a step of a chain belongs, and how many steps are left: a continuation has the rest of its chain, and what goes on after
-- that further out.
LEFT JOIN LATERAL (
    WITH RECURSIVE walk (rest, steps_left) AS (
        SELECT own.continuation, jsonb_array_length(own.continuation -> 'steps')
        UNION ALL
        SELECT walk.rest -> 'outer', walk.steps_left + coalesce(jsonb_array_length(walk.rest -> 'outer' -> 'steps'), 0)
        FROM walk
        WHERE jsonb_typeof(walk.rest -> 'outer') = 'object'
    )
    SELECT (walk.rest ->> 'number')::integer AS number, walk.steps_left
    FROM walk
    WHERE walk.rest ? 'group'
) AS walked ON own.continuation ? 'steps'

-- name: read_groups
-- Some groups, with how many of their parts have ended so far, and one of their handlers. The parts of closed groups are not counted again.
SELECT execution_group.id, execution_group.state, execution_group.total, execution_group.group_id, execution_group.meta::text AS meta,
       execution_group.created_by, execution_group.created_at, execution_group.closed_at,
       (SELECT job.handler FROM timeball.job WHERE job.group_id = execution_group.id LIMIT 1) AS handler,
       CASE WHEN execution_group.state = 'open' THEN parts.succeeded ELSE execution_group.total - execution_group.failed END AS succeeded,
       CASE WHEN execution_group.state = 'open' THEN parts.failed ELSE execution_group.failed END AS failed
FROM timeball.execution_group
LEFT JOIN LATERAL (
    SELECT count(*) FILTER (WHERE group_part.state = 'succeeded') AS succeeded,
           count(*) FILTER (WHERE group_part.state = 'failed') AS failed
    FROM timeball.group_part
    WHERE execution_group.state = 'open'
      AND group_part.group_id = execution_group.id
) AS parts ON true
WHERE execution_group.id = ANY (:ids::uuid[]);

-- name: parts_of_groups
-- The parts of some groups after a number, in the order of the groups, at most so many of all. Only those that have not ended, if that is asked.
SELECT group_part.group_id, group_part.number, group_part.state, group_part.ended_by
FROM unnest(:ids::uuid[]) WITH ORDINALITY AS chosen (id, place)
JOIN timeball.group_part ON group_part.group_id = chosen.id
WHERE group_part.number > :after
  AND (NOT :is_open OR group_part.state IS NULL)
ORDER BY chosen.place, group_part.number
LIMIT :limit;

-- name: steps_of_parts
-- What these parts of some groups have begun, executions and groups, in the order in which it was begun.
WITH step AS MATERIALIZED (
    SELECT own.group_id, own.id, own.is_group, own.handler, own.created_at, coalesce(walked.steps_left, 0) AS steps_left,
           coalesce((own.continuation ->> 'number')::integer, walked.number) AS number
    FROM (
        SELECT job.group_id, job.id, job.handler, job.continuation, job.created_at, false AS is_group
        FROM timeball.job
        WHERE job.group_id = ANY (:ids::uuid[])
        UNION ALL
        SELECT execution_group.group_id, execution_group.id, NULL, execution_group.continuation, execution_group.created_at, true
        FROM timeball.execution_group
        WHERE execution_group.group_id = ANY (:ids::uuid[])
    ) AS own
    {innermost_group}
)
SELECT step.group_id, step.number, step.id, step.is_group, step.handler, step.steps_left
FROM step
WHERE step.number = ANY (:numbers::integer[])
ORDER BY step.created_at, step.id;

-- name: states_of_executions
-- The states of some executions, and the errors of those that have failed.
SELECT execution.id, execution.state, execution.error_type, left(coalesce(execution.error, execution.reason), 500) AS error
FROM timeball.execution
WHERE execution.id = ANY (:ids::uuid[])
ORDER BY execution.finished_at NULLS FIRST;

-- name: followers_of_group
-- The first of the executions that follow the end of a group. All parts of a group that follows it do.
SELECT job.id
FROM timeball.job
WHERE job.follows = :id
ORDER BY job.id
LIMIT :limit;

-- name: group_of_execution
-- The innermost group that an execution belongs to, and the number of its part.
SELECT own.group_id, coalesce((own.continuation ->> 'number')::integer, walked.number) AS number
FROM timeball.job AS own
{innermost_group}
WHERE own.id = :job_id
  AND own.group_id IS NOT NULL;
