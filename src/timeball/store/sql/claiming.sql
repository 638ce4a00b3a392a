-- From `ready` to `running`: workers claim executions by lane, by id or by the tickets of a broker.
--
-- Every claim passes `gate`; then it chooses rows and locks them: the ctids in `locked`, which other claims skip; then `start_claim` moves those rows.
-- CTEs that lock rows are MATERIALIZED. Otherwise the planner may run them again, and take more rows than their limit.

-- fragment: gate
-- It shuts claims out while a queue is being limited: its FOR KEY SHARE takes a lock on the table, for which lock_out_claims waits, and which waits for
-- lock_out_claims. It never finds a row, because no queue has an empty name; but each claim reads it, or PostgreSQL would not run it.
-- `freezing` says whether there is a freeze at all: without one, a claim asks nothing else about freezes. Writing one shuts claims out, too.
gate AS MATERIALIZED (
    SELECT 1
    FROM timeball.queue
    WHERE name = ''
    FOR KEY SHARE
),
freezing AS MATERIALIZED (
    SELECT EXISTS (SELECT 1 FROM timeball.freeze_period WHERE until_at > coalesce(:now, now())) AS is_possible
)

-- fragment: start_claim
-- Move the rows of `locked` from `ready` to `running` under this claim; `started` is what the worker is told about them.
-- It is text and not a function: a function costs a claim of one row a fifth of its time, because its statement is started apart from the outer one.
-- By ctid: the rows are locked, and no statistics can mislead the planner.
-- Handler and payload belong to the version in the row. The job has the payload of its present version; payload_of finds an older one. It is a function
-- because a subquery would open its table for every claim. With meta it is the same.
-- Counters stop at the end of their range, so that one row that cannot be counted does not stop the claims of all others.
-- `thawed` are the rows that no freeze holds; the others go back to `due`.
thawed AS MATERIALIZED (
    SELECT CASE WHEN freezing.is_possible THEN timeball.put_back_frozen(locked.tids, coalesce(:now, now())) ELSE locked.tids END AS tids
    FROM locked
    CROSS JOIN freezing
),
taken AS (
    DELETE FROM timeball.ready
    WHERE ctid = ANY ((SELECT tids FROM thawed)::tid[])
    RETURNING *
),
picked AS MATERIALIZED (
    SELECT taken.*,
           CASE WHEN job.version = taken.version THEN job.payload ELSE timeball.payload_of(taken.job_id, taken.version) END AS job_payload,
           CASE WHEN job.version = taken.version THEN job.meta ELSE timeball.meta_of(taken.job_id, taken.version) END AS job_meta,
           job.timeout_ms, job.name AS job_name
    FROM taken
    LEFT JOIN timeball.job ON job.id = taken.job_id
),
claimed AS (
    INSERT INTO timeball.running (id, job_id, origin, version, queue, priority, handler, scheduled_for, run_at, queued_at,
                                  attempts, lost, fence, tzdata, limit_key, unique_key, payload, retry_of, created_by, bound_secrets_only, meta, has_follow_ups,
                                  expires_at, holder, claim_id, claimed_at, deadline, queue_limited)
    SELECT id, job_id, origin, version, queue, priority, handler, scheduled_for, run_at, queued_at,
           least(attempts, 2147483646) + 1, lost, least(fence, 9223372036854775806) + 1, tzdata, limit_key, unique_key, payload, retry_of, created_by, bound_secrets_only, meta, has_follow_ups,
           expires_at, :incarnation, :claim_id, coalesce(:now, now()),
           greatest(coalesce(:now, now()), run_at) + timeout_ms * interval '1 millisecond' + interval '5 seconds', :is_limited::boolean
    FROM picked
),
started AS (
    SELECT id, job_id, least(fence, 9223372036854775806) + 1 AS fence, least(attempts, 2147483646) + 1 AS attempt, lost, handler,
           coalesce(payload, job_payload, 'null')::text AS payload, run_at, scheduled_for, timeout_ms, queue, priority, origin, version, job_name, expires_at,
           coalesce(meta, job_meta)::text AS meta
    FROM picked
)

-- name: claim
-- Give the most urgent ready executions of some lanes to one worker: up to :slots that are due, by rank; then up to :holds that come next; never more
-- than :limit together. Of those that are due, only those that have been so for :unclaimed_for.
-- A lane is a queue and a priority. Its rows are read in the order of time and id from its position on, so the dead rows before that are not visited.
-- `is_contended` tells an empty lane from one of which other workers are taking the rest. It is also true if lock_ready has locked a row that was
-- committed after this statement began: the statement cannot take that row, and has lost a place to it.
WITH {gate},
locked AS MATERIALIZED (
    SELECT timeball.lock_ready(
               :queues::text[], :priorities::smallint[], :bounds::timestamptz[], :first_ids::uuid[],
               ARRAY(
                   SELECT name
                   FROM timeball.queue
                   WHERE name = ANY (:queues::text[])
                     AND (paused_at IS NOT NULL OR (max_running IS NOT NULL AND NOT :is_limited::boolean))
               ) || CASE WHEN (SELECT is_possible FROM freezing) THEN timeball.frozen_queues(:queues::text[], coalesce(:now, now())) ELSE '{}' END,
               coalesce(:now, now()), coalesce(:now, now()) - :unclaimed_for::interval, :handlers::text[],
               :lane_limit::integer, :slots::integer, :holds::integer, :limit::integer
           ) AS tids
    WHERE NOT EXISTS (SELECT 1 FROM gate)
),
{start_claim}
SELECT cardinality(locked.tids) > (SELECT count(*) FROM taken) AS is_contended, started.*
FROM locked
LEFT JOIN started ON true
ORDER BY started.run_at - started.priority * interval '12 seconds', started.id;

-- name: claim_by_id
-- Give a worker the one execution that a wake-up names, if it is ready and due, and the worker may run it. This is the usual claim of an idle system.
-- Paused and limited queues give nothing.
-- `named` looks the row up by its id alone. With another condition beside it, a planner that takes the table for empty would read a whole lane.
WITH {gate},
locked AS MATERIALIZED (
    SELECT ARRAY(
               SELECT ready.ctid
               FROM (
                   SELECT ctid AS tid, queue, handler, run_at
                   FROM timeball.ready
                   WHERE id = :id
                   OFFSET 0
               ) AS named
               JOIN timeball.ready ON ready.ctid = named.tid
               WHERE named.handler = ANY (:handlers::text[])
                 AND (:queues::text[] IS NULL OR named.queue = ANY (:queues::text[]))
                 AND named.run_at <= coalesce(:now, now())
                 AND NOT EXISTS (SELECT 1 FROM gate)
                 AND NOT EXISTS (
                     SELECT 1
                     FROM timeball.queue
                     WHERE queue.name = named.queue
                       AND (queue.paused_at IS NOT NULL OR queue.max_running IS NOT NULL)
                 )
                 AND NOT CASE WHEN (SELECT is_possible FROM freezing)
                              THEN timeball.frozen_queues(ARRAY[named.queue], coalesce(:now, now())) <> '{}'
                              ELSE false END
               FOR UPDATE OF ready SKIP LOCKED
           ) AS tids
),
{start_claim}
SELECT false AS is_contended, started.*
FROM started;

-- name: claim_tickets
-- Give the ready executions that some tickets name to one worker: up to :slots that are due, by rank; then up to :holds that come next.
-- A ticket proves nothing: executions that are gone, that another worker is taking, or that this worker may not run stay where they are.
-- `left_ids` are the executions that this worker could have taken with more slots, or that others have locked.
WITH {gate},
named AS MATERIALIZED (
    SELECT candidate.*
    FROM unnest(:ids::uuid[]) AS ticket (id)
    CROSS JOIN LATERAL (
        SELECT ctid AS tid, ready.id, ready.queue, ready.run_at, ready.run_at - ready.priority * interval '12 seconds' AS rank
        FROM timeball.ready
        WHERE ready.id = ticket.id
          AND ready.handler = ANY (:handlers::text[])
          AND (:queues::text[] IS NULL OR ready.queue = ANY (:queues::text[]))
        OFFSET 0
    ) AS candidate
    WHERE NOT EXISTS (
        SELECT 1
        FROM timeball.queue
        WHERE queue.name = candidate.queue
          AND (queue.paused_at IS NOT NULL OR queue.max_running IS NOT NULL)
    )
      AND NOT EXISTS (SELECT 1 FROM gate)
      AND NOT CASE WHEN (SELECT is_possible FROM freezing)
                   THEN timeball.frozen_queues(ARRAY[candidate.queue], coalesce(:now, now())) <> '{}'
                   ELSE false END
),
locked_due AS MATERIALIZED (
    SELECT ready.ctid AS tid
    FROM named
    JOIN timeball.ready ON ready.ctid = named.tid
    WHERE named.run_at <= coalesce(:now, now())
    ORDER BY named.rank
    LIMIT :slots::integer
    FOR UPDATE OF ready SKIP LOCKED
),
locked_next AS MATERIALIZED (
    SELECT ready.ctid AS tid
    FROM named
    JOIN timeball.ready ON ready.ctid = named.tid
    WHERE named.run_at > coalesce(:now, now())
    ORDER BY named.run_at
    LIMIT :holds::integer
    FOR UPDATE OF ready SKIP LOCKED
),
locked AS MATERIALIZED (
    SELECT ARRAY(SELECT tid FROM locked_due UNION ALL SELECT tid FROM locked_next) AS tids
),
{start_claim}
SELECT (SELECT array_agg(named.id) FROM named WHERE named.tid <> ALL ((SELECT tids FROM locked)::tid[])) AS left_ids, started.*
FROM locked
LEFT JOIN started ON true
ORDER BY started.run_at - started.priority * interval '12 seconds', started.id;

-- name: read_tickets
-- The most urgent ready executions of some lanes, up to :limit for each queue, to be published as tickets.
-- None of a paused or frozen queue, which gives nothing, and none of a limited queue, whose running executions are counted under a lock.
SELECT ranked.id, ranked.queue, ranked.rank, ranked.handler, ranked.fence
FROM (
    SELECT ready.id, ready.queue, ready.handler, ready.fence, head.rank,
           row_number() OVER (PARTITION BY ready.queue ORDER BY head.rank, ready.id) AS place
    FROM timeball.lane_heads(:queues::text[], :priorities::smallint[], :bounds::timestamptz[],
                             array_fill('00000000-0000-0000-0000-000000000000'::uuid, ARRAY[cardinality(:queues::text[])]),
                             'infinity', :handlers::text[], :limit::integer) AS head
    JOIN timeball.ready ON ready.ctid = head.tid
    WHERE NOT EXISTS (
        SELECT 1
        FROM timeball.queue
        WHERE queue.name = ready.queue
          AND (queue.paused_at IS NOT NULL OR queue.max_running IS NOT NULL)
    )
      AND timeball.frozen_queues(ARRAY[ready.queue], coalesce(:now, now())) = '{}'
) AS ranked
WHERE ranked.place <= :limit
ORDER BY ranked.rank;

-- name: read_namespace
-- The name of this database among those that share a broker. A copy of the database has another oid or another name.
SELECT installation.id::text || '/' || pg_database.oid || '/' || pg_database.datname
FROM timeball.installation
CROSS JOIN pg_database
WHERE pg_database.datname = current_database();

-- name: lanes
-- The lanes that have ready executions, each with its first one: a loose index scan, with one probe for each lane.
-- `everything` excludes no row. It makes the planner expect few rows: after a vacuum that found the table empty, it would otherwise take the index for
-- more expensive than fetching and sorting the whole table.
WITH RECURSIVE everything AS MATERIALIZED (
    SELECT 0::smallint AS lowest, 100::smallint AS highest, '-infinity'::timestamptz AS first, 'infinity'::timestamptz AS last
),
lane AS (
    (
        SELECT queue, priority, run_at, id
        FROM timeball.ready
        ORDER BY queue, priority, run_at, uuid_send(id)
        LIMIT 1
    )
    UNION ALL
    SELECT following.*
    FROM lane
    CROSS JOIN everything
    CROSS JOIN LATERAL (
        SELECT ready.queue, ready.priority, ready.run_at, ready.id
        FROM timeball.ready
        WHERE (ready.queue, ready.priority) > (lane.queue, lane.priority)
          AND ready.priority BETWEEN everything.lowest AND everything.highest
          AND ready.run_at BETWEEN everything.first AND everything.last
        ORDER BY ready.queue, ready.priority, ready.run_at, uuid_send(ready.id)
        LIMIT 1
    ) AS following
)
SELECT lane.queue, lane.priority, lane.run_at, lane.id, queue.max_running IS NOT NULL AS is_limited
FROM lane
LEFT JOIN timeball.queue ON queue.name = lane.queue
WHERE queue.paused_at IS NULL
  AND timeball.frozen_queues(ARRAY[lane.queue], coalesce(:now, now())) = '{}';

-- name: has_unclaimed
-- Whether the first execution of one of these lanes, from its position on, has been ready for :age and can be run by these handlers.
SELECT EXISTS (
    SELECT 1
    FROM timeball.lane_heads(:queues::text[], :priorities::smallint[], :bounds::timestamptz[], :first_ids::uuid[], 'infinity', :handlers::text[], 1) AS head
    JOIN timeball.ready ON ready.ctid = head.tid
    WHERE ready.queued_at <= coalesce(:now, now()) - :age::interval
) AS has_unclaimed;

-- name: lock_queue
-- Lock the row of a limited queue, so that the next statement can count its running executions.
SELECT max_running
FROM timeball.queue
WHERE name = :queue
FOR UPDATE;

-- name: count_running_of_queue
-- The running executions that count for the limit of a queue.
SELECT count(*)
FROM timeball.running
WHERE queue = :queue
  AND queue_limited;

-- fragment: counted_for_limit
-- Make executions count for the limit of their queue that were claimed before the queue was limited.
UPDATE timeball.running
SET queue_limited = true
FROM timeball.queue
WHERE queue.name = running.queue
  AND queue.max_running IS NOT NULL
  AND NOT running.queue_limited

-- name: mark_queue_limited
{counted_for_limit};

-- name: tend_queues
-- What the housekeeping does for queues, in one statement: make executions count for the limits of their queues, and find the pauses and freezes whose
-- end has come, the jobs of which an execution has died, and the groups that are open although all of their parts have ended.
WITH marked AS (
    {counted_for_limit}
)
SELECT name, NULL::uuid AS freeze_id, NULL::uuid AS job_id, NULL::uuid AS group_id
FROM timeball.queue
WHERE paused_until <= coalesce(:now, now())
UNION ALL
SELECT NULL, id, NULL, NULL
FROM timeball.freeze_period
WHERE ended_at IS NULL
  AND until_at <= coalesce(:now, now())
UNION ALL
SELECT NULL, NULL, job_id, NULL
FROM timeball.failing_job
UNION ALL
SELECT NULL, NULL, NULL, id
FROM timeball.execution_group
WHERE state = 'open'
  AND NOT EXISTS (SELECT 1 FROM timeball.group_part WHERE group_part.group_id = execution_group.id AND group_part.state IS NULL)
ORDER BY name, freeze_id, job_id, group_id;

-- name: read_back_claim
-- The executions of a claim whose reply was lost, in the order of the reply.
SELECT running.id, running.job_id, running.fence, running.attempts, running.lost, running.handler, coalesce(running.payload, timeball.payload_of(running.job_id, running.version), 'null')::text AS payload,
       running.run_at, running.scheduled_for, job.timeout_ms, running.queue, running.priority,
       running.origin, running.version, job.name, running.expires_at,
       coalesce(running.meta, timeball.meta_of(running.job_id, running.version))::text AS meta, running.claim_id, running.stop
FROM timeball.running
LEFT JOIN timeball.job ON job.id = running.job_id
WHERE running.holder = :incarnation
  AND running.claim_id = :claim_id
ORDER BY running.run_at - running.priority * interval '12 seconds', running.id;

-- name: claim_keys
-- The claims of a worker by the database. It has no index, which every claim would have to maintain, because it runs seldom.
SELECT id, claim_id
FROM timeball.running
WHERE holder = :incarnation;
