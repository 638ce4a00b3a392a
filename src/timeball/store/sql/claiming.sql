-- From `ready` to `running`: what a worker takes, and what it has.

-- name: claim
-- Give the most urgent ready executions of some lanes to one worker: up to :slots that are due, by rank; then up to :holds that are not yet due;
-- never more than :most in all.
-- A lane is a (queue, priority); its rows are read in the order of time and id from its mark on, so dead rows behind that are not visited.
-- `lock_ready` locks them: of one lane as it sees them, of several out of the first :looks of each. MATERIALIZED: otherwise the planner may run a part
-- again and take more than its limit. By ctid: the rows are locked, and no statistics can mislead it.
-- `is_contended` tells an empty lane from one whose rest others take just now, of what is due or of what comes. Of what is due, only what has been so for :unclaimed_for.
-- It also says so if a row was locked that came into the table after this statement had begun, and cannot be taken by it: it has used up a place.
-- Handler and payload are of one version, the row's: the job's own payload is for rows of its present version, an older one is looked up. By a function,
-- because a subquery would open its table for every claim.
-- Counters stay at the ends of their ranges: one row that cannot be counted must not stop the claims of all others.
-- `gate` finds nothing, ever; but it makes whoever limits a queue wait for this claim, and this claim for them (lock_out_claims): by the lock on the
-- table that FOR KEY SHARE takes. It is looked at, so that it can never be planned away.
WITH gate AS MATERIALIZED (
    SELECT 1
    FROM timeball.queue
    WHERE name = ''
    FOR KEY SHARE
),
chosen AS MATERIALIZED (
    SELECT timeball.lock_ready(
               :queues::text[], :priorities::smallint[], :bounds::timestamptz[], :first_ids::uuid[],
               ARRAY(
                   SELECT name
                   FROM timeball.queue
                   WHERE name = ANY (:queues::text[])
                     AND (paused_at IS NOT NULL OR (max_running IS NOT NULL AND NOT :is_limited::boolean))
               ),
               coalesce(:now, now()), coalesce(:now, now()) - :unclaimed_for::interval, :handlers::text[],
               :looks::integer, :slots::integer, :holds::integer, :most::integer
           ) AS tids
    WHERE NOT EXISTS (SELECT 1 FROM gate)
),
taken AS (
    DELETE FROM timeball.ready
    WHERE ctid = ANY ((SELECT tids FROM chosen)::tid[])
    RETURNING *
),
picked AS MATERIALIZED (
    SELECT taken.*,
           CASE WHEN job.version = taken.version THEN job.payload ELSE timeball.payload_of(taken.job_id, taken.version) END AS job_payload,
           job.timeout_ms
    FROM taken
    LEFT JOIN timeball.job ON job.id = taken.job_id
),
claimed AS (
    INSERT INTO timeball.running (id, job_id, origin, version, queue, priority, handler, scheduled_for, run_at, queued_at,
                                  attempts, lost, fence, tzdata, limit_key, unique_key, payload, retry_of, created_by, bound_secrets_only,
                                  holder, claim_id, claimed_at, deadline, queue_limited)
    SELECT id, job_id, origin, version, queue, priority, handler, scheduled_for, run_at, queued_at,
           least(attempts, 2147483646) + 1, lost, least(fence, 9223372036854775806) + 1, tzdata, limit_key, unique_key, payload, retry_of, created_by, bound_secrets_only,
           :incarnation, :claim_id, coalesce(:now, now()),
           greatest(coalesce(:now, now()), run_at) + timeout_ms * interval '1 millisecond' + interval '5 seconds', :is_limited::boolean
    FROM picked
)
SELECT cardinality(chosen.tids) > (SELECT count(*) FROM taken) AS is_contended,
       picked.id,
       picked.job_id,
       least(picked.fence, 9223372036854775806) + 1,
       least(picked.attempts, 2147483646) + 1,
       picked.lost,
       picked.handler,
       coalesce(picked.payload, picked.job_payload)::text,
       picked.run_at,
       picked.scheduled_for,
       picked.timeout_ms,
       picked.queue,
       picked.priority
FROM chosen
LEFT JOIN picked ON true
ORDER BY picked.run_at - picked.priority * interval '12 seconds', picked.id;

-- name: claim_by_id
-- Give a worker the one execution that a hint names, if it is ready and due, and this worker may run it: what an idle system does all day.
-- It need not be looked for, nor is there anything to find out about what else there is; every rule of claim is asked all the same.
-- `found` by the id alone: with anything else beside it, a planner that believes the table to be empty would as soon read a whole lane.
-- `gate` as in claim, and word for word the same from `picked` on (a test compares them).
WITH gate AS MATERIALIZED (
    SELECT 1
    FROM timeball.queue
    WHERE name = ''
    FOR KEY SHARE
),
found AS MATERIALIZED (
    SELECT ctid AS tid, queue, handler, run_at
    FROM timeball.ready
    WHERE id = :id
),
chosen AS MATERIALIZED (
    SELECT ready.ctid AS tid
    FROM found
    JOIN timeball.ready ON ready.ctid = found.tid
    WHERE found.handler = ANY (:handlers::text[])
      AND (:queues::text[] IS NULL OR found.queue = ANY (:queues::text[]))
      AND found.run_at <= coalesce(:now, now())
      AND NOT EXISTS (SELECT 1 FROM gate)
      AND NOT EXISTS (
          SELECT 1
          FROM timeball.queue
          WHERE queue.name = found.queue
            AND (queue.paused_at IS NOT NULL OR queue.max_running IS NOT NULL)
      )
    FOR UPDATE OF ready SKIP LOCKED
),
taken AS (
    DELETE FROM timeball.ready
    WHERE ctid = ANY (ARRAY(SELECT tid FROM chosen))
    RETURNING *
),
picked AS MATERIALIZED (
    SELECT taken.*,
           CASE WHEN job.version = taken.version THEN job.payload ELSE timeball.payload_of(taken.job_id, taken.version) END AS job_payload,
           job.timeout_ms
    FROM taken
    LEFT JOIN timeball.job ON job.id = taken.job_id
),
claimed AS (
    INSERT INTO timeball.running (id, job_id, origin, version, queue, priority, handler, scheduled_for, run_at, queued_at,
                                  attempts, lost, fence, tzdata, limit_key, unique_key, payload, retry_of, created_by, bound_secrets_only,
                                  holder, claim_id, claimed_at, deadline, queue_limited)
    SELECT id, job_id, origin, version, queue, priority, handler, scheduled_for, run_at, queued_at,
           least(attempts, 2147483646) + 1, lost, least(fence, 9223372036854775806) + 1, tzdata, limit_key, unique_key, payload, retry_of, created_by, bound_secrets_only,
           :incarnation, :claim_id, coalesce(:now, now()),
           greatest(coalesce(:now, now()), run_at) + timeout_ms * interval '1 millisecond' + interval '5 seconds', false
    FROM picked
)
SELECT false AS is_contended,
       picked.id,
       picked.job_id,
       least(picked.fence, 9223372036854775806) + 1,
       least(picked.attempts, 2147483646) + 1,
       picked.lost,
       picked.handler,
       coalesce(picked.payload, picked.job_payload)::text,
       picked.run_at,
       picked.scheduled_for,
       picked.timeout_ms,
       picked.queue,
       picked.priority
FROM picked;

-- name: lanes
-- The lanes that have something ready, each with its first: a loose index scan, one probe a lane.
-- `whole` excludes nothing, but how little it leaves is what the planner believes: one that was told by vacuum that the table was empty, and knows
-- from before how rows lay in it, would take a lane's index for dearer than fetching all of the table, and sorting it.
WITH RECURSIVE whole AS MATERIALIZED (
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
    CROSS JOIN whole
    CROSS JOIN LATERAL (
        SELECT ready.queue, ready.priority, ready.run_at, ready.id
        FROM timeball.ready
        WHERE (ready.queue, ready.priority) > (lane.queue, lane.priority)
          AND ready.priority BETWEEN whole.lowest AND whole.highest
          AND ready.run_at BETWEEN whole.first AND whole.last
        ORDER BY ready.queue, ready.priority, ready.run_at, uuid_send(ready.id)
        LIMIT 1
    ) AS following
)
SELECT lane.queue, lane.priority, lane.run_at, lane.id, queue.max_running IS NOT NULL AS is_limited
FROM lane
LEFT JOIN timeball.queue ON queue.name = lane.queue
WHERE queue.paused_at IS NULL;

-- name: has_unclaimed
-- Whether the first of some lanes, from their marks on, has been ready for as long as :age and can be run by these handlers.
SELECT EXISTS (
    SELECT 1
    FROM timeball.lane_heads(:queues::text[], :priorities::smallint[], :bounds::timestamptz[], :first_ids::uuid[], 'infinity', :handlers::text[], 1) AS head
    JOIN timeball.ready ON ready.ctid = head.tid
    WHERE ready.queued_at <= coalesce(:now, now()) - :age::interval
) AS is_left;

-- name: lock_queue
-- Lock a limited queue's row, so that its running executions can be counted in the next statement.
SELECT max_running
FROM timeball.queue
WHERE name = :queue
FOR UPDATE;

-- name: count_running_of_queue
-- How many places of a limited queue are taken.
SELECT count(*)
FROM timeball.running
WHERE queue = :queue
  AND queue_limited;

-- name: mark_queue_limited
-- Count what was claimed before its queue was limited.
UPDATE timeball.running
SET queue_limited = true
FROM timeball.queue
WHERE queue.name = running.queue
  AND queue.max_running IS NOT NULL
  AND NOT running.queue_limited;

-- name: read_back_claim
-- What a claim gave us, when its reply was lost; most urgent first, as the reply had it.
SELECT running.id, running.job_id, running.fence, running.attempts, running.lost, running.handler, coalesce(running.payload, timeball.payload_of(running.job_id, running.version))::text AS payload,
       running.run_at, running.scheduled_for, job.timeout_ms, running.queue, running.priority, running.claim_id, running.stop
FROM timeball.running
LEFT JOIN timeball.job ON job.id = running.job_id
WHERE running.holder = :incarnation
  AND running.claim_id = :claim_id
ORDER BY running.run_at - running.priority * interval '12 seconds', running.id;

-- name: claim_keys
-- What a worker holds by the database. Seldom asked, so it has no index, which every claim would have to keep up.
SELECT id, claim_id
FROM timeball.running
WHERE holder = :incarnation;
