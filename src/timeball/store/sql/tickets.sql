-- What a broker carries: which executions are ready, and the claim of those that tickets name.

-- name: claim_tickets
-- Give the ready executions that some tickets name to one worker: up to :slots that are due, by rank; then up to :holds that are not yet due.
-- A ticket proves nothing: what has gone, what another worker is taking, and what this one may not run stay where they are.
-- `left_ids` are those for which only the table was missing, or that others hold just now.
-- `gate` as in claim: who limits a queue waits for this, and this for them.
-- From `picked` on it is word for word what claim does (a test compares them): two statements share no text, and a function would be planned apart.
WITH gate AS MATERIALIZED (
    SELECT 1
    FROM timeball.queue
    WHERE name = ''
    FOR KEY SHARE
),
found AS MATERIALIZED (
    SELECT looked_up.*
    FROM unnest(:ids::uuid[]) AS ticket (id)
    CROSS JOIN LATERAL (
        SELECT ctid AS tid, ready.id, ready.queue, ready.run_at, ready.run_at - ready.priority * interval '12 seconds' AS rank
        FROM timeball.ready
        WHERE ready.id = ticket.id
          AND ready.handler = ANY (:handlers::text[])
          AND (:queues::text[] IS NULL OR ready.queue = ANY (:queues::text[]))
        OFFSET 0
    ) AS looked_up
    WHERE NOT EXISTS (
        SELECT 1
        FROM timeball.queue
        WHERE queue.name = looked_up.queue
          AND (queue.paused_at IS NOT NULL OR queue.max_running IS NOT NULL)
    )
      AND NOT EXISTS (SELECT 1 FROM gate)
),
chosen AS MATERIALIZED (
    SELECT ready.ctid AS tid
    FROM found
    JOIN timeball.ready ON ready.ctid = found.tid
    WHERE found.run_at <= coalesce(:now, now())
    ORDER BY found.rank
    LIMIT :slots::integer
    FOR UPDATE OF ready SKIP LOCKED
),
held AS MATERIALIZED (
    SELECT ready.ctid AS tid
    FROM found
    JOIN timeball.ready ON ready.ctid = found.tid
    WHERE found.run_at > coalesce(:now, now())
    ORDER BY found.run_at
    LIMIT :holds::integer
    FOR UPDATE OF ready SKIP LOCKED
),
taken AS (
    DELETE FROM timeball.ready
    WHERE ctid = ANY (ARRAY(SELECT tid FROM chosen UNION ALL SELECT tid FROM held))
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
SELECT (SELECT array_agg(found.id) FROM found WHERE found.tid <> ALL (ARRAY(SELECT tid FROM chosen UNION ALL SELECT tid FROM held))) AS left_ids,
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
FROM (VALUES (1)) AS always (one)
LEFT JOIN picked ON true
ORDER BY picked.run_at - picked.priority * interval '12 seconds', picked.id;

-- name: read_tickets
-- The most urgent ready executions of some lanes, up to :limit a queue, for tickets to be published; the heads of lanes as in claim.
-- Paused and limited queues get none: the one has nothing to give, in the other the places are counted under a lock.
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
) AS ranked
WHERE ranked.place <= :limit
ORDER BY ranked.rank;

-- name: read_namespace
-- What tells this database from every other that may share a broker with it: copies of it have another oid or another name.
SELECT installation.id::text || '/' || pg_database.oid || '/' || pg_database.datname
FROM timeball.installation
CROSS JOIN pg_database
WHERE pg_database.datname = current_database();
