-- The moves between rooms. Each is one statement, so an execution is never in two rooms and never in none.

-- name: look_ahead
-- The rows of our shards that fall due within the horizon, from each shard's bound on: where each stands, not all of it.
-- All of them, however old: a row that was committed late is not lost. Most are held already, so the others are read whole by due_rows.
SELECT due.shard, due.id, due.run_at, due.version
FROM unnest(:shards::smallint[], :bounds::timestamptz[]) AS mine (shard, bound)
CROSS JOIN LATERAL (
    SELECT *
    FROM timeball.due
    WHERE due.shard = mine.shard
      AND due.run_at >= mine.bound
      AND due.run_at <= coalesce(:now, now()) + :horizon::interval
    ORDER BY due.run_at
    LIMIT :limit
) AS due;

-- name: due_rows
-- Some rows of due, whole. Whether its job is paused counts for second tries alone, and is looked up for them alone.
SELECT due.id,
       due.job_id,
       due.kind,
       due.origin,
       due.shard,
       due.run_at,
       due.scheduled_for,
       due.watermark,
       due.tzdata,
       due.version,
       due.executions_left,
       due.limit_key,
       due.queue,
       due.priority,
       coalesce((SELECT job.paused_at IS NOT NULL FROM timeball.job WHERE job.id = due.job_id AND due.kind IN ('retry', 'snooze')), false) AS is_paused
FROM timeball.due
WHERE due.id = ANY (:ids::uuid[]);

-- name: busy_jobs
-- Which of these jobs have an execution that is unfinished and no longer only scheduled.
-- OFFSET 0: otherwise the planner may read a whole room into a hash table, to look a few jobs up in it.
SELECT asked.job_id
FROM unnest(:job_ids::uuid[]) AS asked (job_id)
WHERE EXISTS (SELECT 1 FROM timeball.ready WHERE ready.job_id = asked.job_id AND ready.job_id <> ready.id OFFSET 0)
   OR EXISTS (SELECT 1 FROM timeball.running WHERE running.job_id = asked.job_id AND running.job_id <> running.id OFFSET 0)
   OR EXISTS (SELECT 1 FROM timeball.blocked WHERE blocked.job_id = asked.job_id OFFSET 0)
   OR EXISTS (SELECT 1 FROM timeball.due WHERE due.job_id = asked.job_id AND due.job_id <> due.id AND due.kind IN ('retry', 'snooze') OFFSET 0);

-- name: hoist
-- Take rows out of due, put each recurring job's following occurrence in, and record what becomes of those taken:
-- runs go to ready (blocked if limited, due again if they are to come later), skips into the history.
-- The row itself is compared and set: version is a column of due, because a joined job would not be looked at again after a lock wait.
-- The look-up by OFFSET 0 can only be done by the primary key, whatever the planner believes about the size of the room; it locks, and looks
-- again after a lock wait. What is locked is then deleted by ctid: not before, because servers of 2025 and older do not look again by ctid.
-- `given` hides from the planner how many there are: it would plan the statement anew for every number, which takes two milliseconds.
-- It takes them for few, so `judged` looks into a set and the rows are deleted by ctid: joined, each would be compared with each.
WITH given AS MATERIALIZED (
    SELECT :ids::uuid[] AS ids, :run_ats::timestamptz[] AS run_ats, :versions::integer[] AS versions, :next_ids::uuid[] AS next_ids,
           :next_run_ats::timestamptz[] AS next_run_ats, :next_fors::timestamptz[] AS next_fors, :watermarks::timestamptz[] AS watermarks,
           :lefts::bigint[] AS lefts,
           :shards::smallint[] AS shards, :epochs::bigint[] AS epochs,
           :run_due_ids::uuid[] AS run_due_ids, :run_ids::uuid[] AS run_ids, :run_fors::timestamptz[] AS run_fors,
           :run_run_ats::timestamptz[] AS run_run_ats, :run_targets::text[] AS run_targets,
           :skip_due_ids::uuid[] AS skip_due_ids, :skip_ids::uuid[] AS skip_ids, :skip_fors::timestamptz[] AS skip_fors,
           :skip_reasons::text[] AS skip_reasons,
           :range_due_ids::uuid[] AS range_due_ids, :range_ids::uuid[] AS range_ids, :range_firsts::timestamptz[] AS range_firsts,
           :range_lasts::timestamptz[] AS range_lasts, :range_counts::bigint[] AS range_counts, :range_reasons::text[] AS range_reasons
),
owed AS (
    SELECT o.*
    FROM given
    CROSS JOIN unnest(ids, run_ats, versions, next_ids, next_run_ats, next_fors, watermarks, lefts)
               AS o (id, run_at, version, next_id, next_run_at, next_for, watermark, left_over)
),
owned AS MATERIALIZED (
    SELECT shard.id
    FROM given
    CROSS JOIN unnest(given.shards, given.epochs) AS mine (id, epoch)
    JOIN timeball.shard USING (id, epoch)
    WHERE shard.owner = :incarnation
),
found AS MATERIALIZED (
    SELECT looked_up.tid
    FROM owed
    CROSS JOIN LATERAL (
        SELECT due.ctid AS tid
        FROM timeball.due
        WHERE due.id = owed.id
          AND due.run_at = owed.run_at
          AND due.version = owed.version
          AND due.shard = ANY (ARRAY(SELECT owned.id FROM owned))
          AND due.run_at <= coalesce(:now, now()) + :hoist_window::interval
        OFFSET 0
        FOR UPDATE
    ) AS looked_up
),
gone AS (
    DELETE FROM timeball.due
    WHERE due.ctid = ANY (ARRAY(SELECT found.tid FROM found))
    RETURNING due.*
),
taken AS MATERIALIZED (
    SELECT gone.*, owed.next_id, owed.next_run_at, owed.next_for, owed.watermark AS next_watermark, owed.left_over
    FROM gone
    JOIN owed ON owed.id = gone.id AND owed.run_at = gone.run_at
),
following AS (
    INSERT INTO timeball.due (id, job_id, kind, origin, shard, run_at, scheduled_for, watermark, tzdata, version, queue, priority, handler,
                              executions_left, limit_key, unique_key)
    SELECT next_id, job_id, 'occurrence', origin, shard, next_run_at, next_for, next_watermark, :tzdata, version, queue, priority, handler,
           left_over, limit_key, unique_key
    FROM taken
    WHERE next_id IS NOT NULL
),
run AS (
    SELECT wanted.id AS run_id, wanted.scheduled_for AS run_for, wanted.run_at AS run_run_at, wanted.target, taken.*
    FROM given
    CROSS JOIN unnest(run_due_ids, run_ids, run_fors, run_run_ats, run_targets) AS wanted (due_id, id, scheduled_for, run_at, target)
    JOIN taken ON taken.id = wanted.due_id
),
keyed AS (
    INSERT INTO timeball.live_key (key, execution_id)
    SELECT unique_key, run_id
    FROM run
    WHERE unique_key IS NOT NULL
      AND kind = 'occurrence'
      AND origin = 'schedule'
    ORDER BY run_for
    ON CONFLICT DO NOTHING
    RETURNING execution_id
),
judged AS MATERIALIZED (
    SELECT run.*,
           unique_key IS NULL OR kind <> 'occurrence' OR origin <> 'schedule' OR run_id IN (SELECT keyed.execution_id FROM keyed) AS is_allowed
    FROM run
),
later AS (
    INSERT INTO timeball.due (id, job_id, kind, origin, shard, run_at, scheduled_for, tzdata, version, queue, priority, handler, limit_key, unique_key)
    SELECT run_id, job_id, 'later', origin, shard, run_run_at, run_for, :tzdata, version, queue, priority, handler, limit_key, unique_key
    FROM judged
    WHERE is_allowed
      AND target = 'due'
),
held_up AS (
    INSERT INTO timeball.blocked (id, job_id, origin, version, queue, priority, handler, scheduled_for, run_at, queued_at,
                                  attempts, lost, fence, tzdata, limit_key, unique_key, payload, retry_of)
    SELECT run_id, job_id, origin, version, queue, priority, handler, run_for, run_run_at, coalesce(queued_at, :now, now()),
           attempts, lost, fence, tzdata, limit_key, unique_key, payload, retry_of
    FROM judged
    WHERE is_allowed
      AND target = 'blocked'
),
hoisted AS (
    INSERT INTO timeball.ready (id, job_id, origin, version, queue, priority, handler, scheduled_for, run_at, queued_at,
                                attempts, lost, fence, tzdata, limit_key, unique_key, payload, retry_of)
    SELECT run_id, job_id, origin, version, queue, priority, handler, run_for, run_run_at, coalesce(queued_at, :now, now()),
           attempts, lost, fence, tzdata, limit_key, unique_key, payload, retry_of
    FROM judged
    WHERE is_allowed
      AND target = 'ready'
),
unkeyed AS (
    DELETE FROM timeball.live_key
    USING taken
    WHERE live_key.key = taken.unique_key
      AND live_key.execution_id = taken.id
      AND taken.unique_key IS NOT NULL
      AND taken.id = ANY (:skip_ids::uuid[])
),
skipped AS (
    INSERT INTO timeball.finished (id, job_id, state, origin, version, queue, priority, handler, scheduled_for, finished_at,
                                   attempts, lost, fence, tzdata, reason)
    SELECT skip.id, taken.job_id, 'skipped', taken.origin, taken.version, taken.queue, taken.priority, taken.handler, skip.scheduled_for,
           greatest(coalesce(:now, now()), skip.scheduled_for), 0, 0, 0, taken.tzdata, skip.reason
    FROM given
    CROSS JOIN unnest(skip_due_ids, skip_ids, skip_fors, skip_reasons) AS skip (due_id, id, scheduled_for, reason)
    JOIN taken ON taken.id = skip.due_id
    UNION ALL
    SELECT run_id, job_id, 'skipped', origin, version, queue, priority, handler, run_for,
           greatest(coalesce(:now, now()), run_for), 0, 0, 0, tzdata, 'unique_key'
    FROM judged
    WHERE NOT is_allowed
),
ranges AS (
    INSERT INTO timeball.skip_range (id, job_id, version, tzdata, first_at, last_at, occurrences, reason, recorded_at)
    SELECT span.id, taken.job_id, taken.version, taken.tzdata, span.first_at, span.last_at, span.occurrences, span.reason, coalesce(:now, now())
    FROM given
    CROSS JOIN unnest(range_due_ids, range_ids, range_firsts, range_lasts, range_counts, range_reasons)
               AS span (due_id, id, first_at, last_at, occurrences, reason)
    JOIN taken ON taken.id = span.due_id
)
SELECT id FROM taken;

-- name: park
-- Let second tries of a paused job wait for its resumption. The job is locked, and seen as it is after a lock wait: whatever was parked behind
-- its resumption would wait for ever.
WITH looked_at AS MATERIALIZED (
    SELECT id, paused_at
    FROM timeball.job
    WHERE id = ANY (:job_ids::uuid[])
    FOR SHARE
)
UPDATE timeball.due
SET run_at = :parked_at
FROM unnest(:ids::uuid[], :run_ats::timestamptz[]) AS given (id, run_at)
WHERE due.id = given.id
  AND due.run_at = given.run_at
  AND due.kind IN ('retry', 'snooze')
  AND NOT EXISTS (SELECT 1 FROM looked_at WHERE looked_at.id = due.job_id AND looked_at.paused_at IS NULL);

-- name: occurrences_of_other_tzdata
-- Occurrences of our shards that were computed by older time-zone data.
SELECT id, job_id, kind, origin, shard, run_at, scheduled_for, watermark, tzdata, version, executions_left, limit_key, queue, priority, false AS is_paused
FROM timeball.due
WHERE tzdata < :tzdata
  AND kind = 'occurrence'
  AND shard = ANY (:shards::smallint[])
ORDER BY tzdata, id
LIMIT :limit;

-- name: move_occurrence
-- Replace a pending occurrence by the one that the present time-zone data yield.
WITH taken AS (
    DELETE FROM timeball.due
    WHERE id = :id
      AND run_at = :run_at
      AND version = :version
      AND kind = 'occurrence'
    RETURNING *
)
INSERT INTO timeball.due (id, job_id, kind, origin, shard, run_at, scheduled_for, watermark, tzdata, version, queue, priority, handler,
                          executions_left, limit_key, unique_key, payload)
SELECT :next_id, job_id, kind, origin, shard, :next_run_at, :next_for, watermark, :tzdata, version, queue, priority, handler,
       executions_left, limit_key, unique_key, payload
FROM taken
RETURNING id;

-- name: claim
-- Give the most urgent ready executions of some lanes to one worker: up to :slots that are due, by rank; then up to :holds that are not yet due;
-- never more than :most in all.
-- A lane is a (queue, priority); its rows are read in the order of time and id from its mark on, so dead rows behind that are not visited.
-- `take_heads` locks them: of one lane as it sees them, of several out of the first :looks of each. MATERIALIZED: otherwise the planner may run a part
-- again and take more than its limit. By ctid: the rows are locked, and no statistics can mislead it.
-- `is_contended` tells an empty lane from one whose rest others take just now, of what is due or of what comes. Of what is due, only what has been so for :unclaimed_for.
-- Counters stay at the ends of their ranges: one row that cannot be counted must not stop the claims of all others.
-- `gate` finds nothing, ever; but it makes whoever limits a queue wait for this claim, and this claim for them (lock_out_claims): by the lock on the
-- table that FOR KEY SHARE takes. It is looked at, so that it can never be planned away.
WITH gate AS MATERIALIZED (
    SELECT 1
    FROM timeball.queue
    WHERE name = ''
    FOR KEY SHARE
),
lane AS MATERIALIZED (
    SELECT given.*
    FROM unnest(:queues::text[], :priorities::smallint[], :bounds::timestamptz[], :first_ids::uuid[]) AS given (queue, priority, bound, first_id)
    WHERE NOT EXISTS (
        SELECT 1
        FROM timeball.queue
        WHERE queue.name = given.queue
          AND (queue.paused_at IS NOT NULL OR (queue.max_running IS NOT NULL AND NOT :is_limited::boolean))
    )
      AND NOT EXISTS (SELECT 1 FROM gate)
),
line AS MATERIALIZED (
    SELECT array_agg(queue) AS queues,
           array_agg(priority) AS priorities,
           array_agg(bound) AS bounds,
           array_agg(first_id) AS first_ids,
           array_agg(coalesce(:now, now()) + interval '1 microsecond') AS after_now,
           array_agg('00000000-0000-0000-0000-000000000000'::uuid) AS any_ids
    FROM lane
),
chosen AS MATERIALIZED (
    SELECT head.tid
    FROM line
    CROSS JOIN LATERAL timeball.take_heads(line.queues, line.priorities, line.bounds, line.first_ids, coalesce(:now, now()) - :unclaimed_for::interval,
                                           :handlers::text[], :looks::integer, :slots::integer) AS head (tid)
    WHERE :slots::integer > 0
),
held AS MATERIALIZED (
    SELECT head.tid
    FROM line
    CROSS JOIN LATERAL timeball.take_heads(line.queues, line.priorities, line.after_now, line.any_ids, 'infinity', :handlers::text[], :holds::integer,
                                           least(:holds::integer, :most::integer - (SELECT count(tid) FROM chosen)::integer)) AS head (tid)
    WHERE :holds::integer > 0
),
taken AS (
    DELETE FROM timeball.ready
    WHERE ctid = ANY (ARRAY(SELECT tid FROM chosen UNION ALL SELECT tid FROM held))
    RETURNING *
),
picked AS MATERIALIZED (
    SELECT taken.*, job.payload AS job_payload, job.timeout_ms
    FROM taken
    LEFT JOIN timeball.job ON job.id = taken.job_id
),
claimed AS (
    INSERT INTO timeball.running (id, job_id, origin, version, queue, priority, handler, scheduled_for, run_at, queued_at,
                                  attempts, lost, fence, tzdata, limit_key, unique_key, payload, retry_of,
                                  holder, claim_id, claimed_at, deadline, queue_limited)
    SELECT id, job_id, origin, version, queue, priority, handler, scheduled_for, run_at, queued_at,
           least(attempts, 2147483646) + 1, lost, least(fence, 9223372036854775806) + 1, tzdata, limit_key, unique_key, payload, retry_of,
           :incarnation, :claim_id, coalesce(:now, now()),
           greatest(coalesce(:now, now()), run_at) + timeout_ms * interval '1 millisecond' + interval '5 seconds', :is_limited::boolean
    FROM picked
)
SELECT EXISTS (SELECT 1 FROM chosen WHERE tid IS NULL) OR EXISTS (SELECT 1 FROM held WHERE tid IS NULL) AS is_contended,
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

-- name: lanes
-- The lanes that have something ready, each with its first: a loose index scan, one probe a lane.
WITH RECURSIVE lane AS (
    (
        SELECT queue, priority, run_at, id
        FROM timeball.ready
        ORDER BY queue, priority, run_at, uuid_send(id)
        LIMIT 1
    )
    UNION ALL
    SELECT following.*
    FROM lane
    CROSS JOIN LATERAL (
        SELECT ready.queue, ready.priority, ready.run_at, ready.id
        FROM timeball.ready
        WHERE (ready.queue, ready.priority) > (lane.queue, lane.priority)
        ORDER BY ready.queue, ready.priority, ready.run_at, uuid_send(ready.id)
        LIMIT 1
    ) AS following
)
SELECT lane.queue, lane.priority, lane.run_at, lane.id, queue.max_running IS NOT NULL AS is_limited
FROM lane
LEFT JOIN timeball.queue ON queue.name = lane.queue
WHERE queue.paused_at IS NULL;

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

-- name: finish_succeeded
-- Move succeeded executions into the history, each only while its row still names the claim.
-- Zero rows for an outcome means it is stale; `accepted` lists the others when that happened.
-- The look-up by OFFSET 0 can only be done by the primary key, whatever the planner believes about the size of the room. A row's claim never
-- changes: who takes it away from a holder deletes it. So the delete need not compare the claim again after a lock wait.
-- `given` hides from the planner how many there are: it would plan the statement anew for every number, which takes as long as running it.
WITH given AS MATERIALIZED (
    SELECT :ids::uuid[] AS ids,
           :fences::bigint[] AS fences,
           :claim_ids::uuid[] AS claim_ids,
           :started::timestamptz[] AS started,
           :finished::timestamptz[] AS finished,
           :results::text[] AS results
),
outcome AS (
    SELECT o.*
    FROM given
    CROSS JOIN unnest(given.ids, given.fences, given.claim_ids, given.started, given.finished, given.results)
               AS o (id, fence, claim_id, started_at, finished_at, result)
),
found AS MATERIALIZED (
    SELECT looked_up.id
    FROM outcome
    CROSS JOIN LATERAL (
        SELECT running.id
        FROM timeball.running
        WHERE running.id = outcome.id
          AND running.fence = outcome.fence
          AND running.claim_id = outcome.claim_id
        OFFSET 0
    ) AS looked_up
),
removed AS (
    DELETE FROM timeball.running
    WHERE running.id = ANY (ARRAY(SELECT found.id FROM found))
    RETURNING id, job_id, origin, version, queue, priority, handler, scheduled_for, queued_at, attempts, lost, fence, holder, claim_id, tzdata,
              payload, retry_of, limit_key, unique_key
),
unkeyed AS (
    DELETE FROM timeball.live_key
    USING removed
    WHERE removed.unique_key IS NOT NULL
      AND live_key.key = removed.unique_key
      AND live_key.execution_id = removed.id
),
kept AS (
    INSERT INTO timeball.finished (id, job_id, state, origin, version, queue, priority, handler, scheduled_for, queued_at, started_at, finished_at,
                                   attempts, lost, fence, worker, claim_id, tzdata, result, payload, retry_of, recorded)
    SELECT id, job_id, 'succeeded', origin, version, queue, priority, handler, scheduled_for, queued_at, started_at, finished_at,
           attempts, lost, fence, holder, claim_id, tzdata, result::jsonb, payload, retry_of, (SELECT pg_current_xact_id()::text::bigint)
    FROM removed
    JOIN outcome USING (id, fence, claim_id)
)
SELECT count(*) AS accepted_count,
       CASE WHEN count(*) < cardinality(:ids::uuid[]) THEN array_agg((id, claim_id)) END AS accepted,
       array_agg(DISTINCT limit_key) FILTER (WHERE limit_key IS NOT NULL) AS freed
FROM removed;

-- name: standings
-- What `decide` must know of executions that did not succeed, while their rows still name the claim.
-- OFFSET 0: otherwise the planner may read the whole room to join a few rows with it.
SELECT running.id, running.attempts, running.lost, running.stop, job.max_retries, job.max_lost, job.initial_backoff_ms, job.max_backoff_ms,
       job.at_most_once, job.paused_at IS NOT NULL AS is_paused, job.deleted_at IS NOT NULL AS is_deleted
FROM unnest(:ids::uuid[], :fences::bigint[], :claim_ids::uuid[]) AS asked (id, fence, claim_id)
CROSS JOIN LATERAL (
    SELECT *
    FROM timeball.running
    WHERE running.id = asked.id
      AND running.fence = asked.fence
      AND running.claim_id = asked.claim_id
    OFFSET 0
) AS running
LEFT JOIN timeball.job ON job.id = running.job_id;

-- name: record_transitions
-- Move executions to where `decide` sent them, each only while its row still names the claim; keep the attempt where there was one.
-- Nor if somebody said anything since that `decide` did not know of: asked for a stop, paused the job, deleted it. Then the row stays.
-- The job of what is to be tried again is locked, and seen as it is after a lock wait: whoever pauses or deletes it comes before this statement,
-- which heeds it, or behind it, and finds the execution where it went. The row is locked when it is looked up, and looked at again after a lock
-- wait; then it is deleted by ctid.
WITH given AS (
    SELECT *
    FROM json_to_recordset(:transitions::text::json) AS t (
        id uuid, job_id uuid, fence bigint, claim_id uuid, stop text, is_paused boolean, is_deleted boolean,
        target text, state text, due_kind text, run_at timestamptz, shard smallint,
        started_at timestamptz, finished_at timestamptz, attempts integer, lost integer, result text, reason text,
        outcome text, error_type text, error text, traceback text, top_frame text, fingerprint text
    )
),
looked_at AS MATERIALIZED (
    SELECT id, paused_at IS NOT NULL AS is_paused, deleted_at IS NOT NULL AS is_deleted
    FROM timeball.job
    WHERE id = ANY (ARRAY(SELECT given.job_id FROM given WHERE given.target <> 'finished'))
    ORDER BY id
    FOR KEY SHARE
),
undisputed AS MATERIALIZED (
    SELECT *
    FROM given
    WHERE NOT EXISTS (
        SELECT 1
        FROM looked_at
        WHERE looked_at.id = given.job_id
          AND (looked_at.is_paused, looked_at.is_deleted) <> (given.is_paused, given.is_deleted)
    )
),
found AS MATERIALIZED (
    SELECT looked_up.tid
    FROM undisputed AS given
    CROSS JOIN LATERAL (
        SELECT running.ctid AS tid
        FROM timeball.running
        WHERE running.id = given.id
          AND running.fence = given.fence
          AND running.claim_id = given.claim_id
          AND running.stop IS NOT DISTINCT FROM given.stop
        OFFSET 0
        FOR UPDATE
    ) AS looked_up
),
removed AS (
    DELETE FROM timeball.running
    WHERE running.ctid = ANY (ARRAY(SELECT found.tid FROM found))
    RETURNING running.*
),
gone AS MATERIALIZED (
    SELECT removed.*, given.target, given.state, given.due_kind, given.run_at AS next_run_at, given.shard, given.started_at, given.finished_at,
           given.attempts AS next_attempts, given.lost AS next_lost, given.result, given.reason, given.outcome, given.error_type, given.error,
           given.traceback, given.top_frame, given.fingerprint
    FROM removed
    JOIN given ON given.id = removed.id AND given.fence = removed.fence AND given.claim_id = removed.claim_id
),
unkeyed AS (
    DELETE FROM timeball.live_key
    USING gone
    WHERE live_key.key = gone.unique_key
      AND live_key.execution_id = gone.id
      AND gone.target = 'finished'
),
ended AS (
    INSERT INTO timeball.finished (id, job_id, state, origin, version, queue, priority, handler, scheduled_for, queued_at, started_at, finished_at,
                                   attempts, lost, fence, worker, claim_id, tzdata, result, error_type, error, reason, fingerprint, payload, retry_of)
    SELECT id, job_id, state, origin, version, queue, priority, handler, scheduled_for, queued_at, started_at, finished_at,
           next_attempts, next_lost, fence, holder, claim_id, tzdata, result::jsonb, error_type, error, reason, fingerprint, payload, retry_of
    FROM gone
    WHERE target = 'finished'
),
waiting AS (
    INSERT INTO timeball.due (id, job_id, kind, origin, shard, run_at, scheduled_for, tzdata, version, queue, priority, handler,
                              queued_at, attempts, lost, fence, limit_key, unique_key, payload, retry_of)
    SELECT id, job_id, due_kind, origin, shard, next_run_at, scheduled_for, tzdata, version, queue, priority, handler,
           queued_at, next_attempts, next_lost, fence, limit_key, unique_key, payload, retry_of
    FROM gone
    WHERE target = 'due'
),
requeued AS (
    INSERT INTO timeball.ready (id, job_id, origin, version, queue, priority, handler, scheduled_for, run_at, queued_at,
                                attempts, lost, fence, tzdata, limit_key, unique_key, payload, retry_of)
    SELECT id, job_id, origin, version, queue, priority, handler, scheduled_for, run_at, queued_at,
           next_attempts, next_lost, fence, tzdata, limit_key, unique_key, payload, retry_of
    FROM gone
    WHERE target = 'ready'
),
tried AS (
    INSERT INTO timeball.attempt (execution_id, fence, number, claim_id, worker, started_at, finished_at, outcome,
                                  error_type, error, traceback, top_frame, fingerprint)
    SELECT id, fence, attempts, claim_id, holder, started_at, finished_at, outcome, error_type, error, traceback, top_frame, fingerprint
    FROM gone
    WHERE outcome IS NOT NULL
)
SELECT id, claim_id, limit_key, queue, priority, run_at, target
FROM gone;

-- name: already_recorded
-- What the history knows of these claims: the state that the execution ended in with it, and how the attempt went.
SELECT asked.id,
       asked.claim_id,
       (SELECT finished.state FROM timeball.finished WHERE finished.id = asked.id AND finished.claim_id = asked.claim_id LIMIT 1) AS state,
       (SELECT attempt.outcome FROM timeball.attempt WHERE attempt.execution_id = asked.id AND attempt.claim_id = asked.claim_id LIMIT 1) AS outcome
FROM unnest(:ids::uuid[], :claim_ids::uuid[]) AS asked (id, claim_id);

-- name: read_back_claim
-- What a claim gave us, when its reply was lost.
SELECT running.id, running.job_id, running.fence, running.attempts, running.lost, running.handler, coalesce(running.payload, job.payload)::text AS payload,
       running.run_at, running.scheduled_for, job.timeout_ms, running.queue, running.priority, running.claim_id, running.stop
FROM timeball.running
LEFT JOIN timeball.job ON job.id = running.job_id
WHERE running.holder = :incarnation
  AND running.claim_id = :claim_id;

-- name: stakes
-- What a worker holds by the database. Seldom asked, so it has no index, which every claim would have to keep up.
SELECT id, claim_id
FROM timeball.running
WHERE holder = :incarnation;

-- name: lock_limits
-- Lock the limits that have a place free, perhaps; counting comes in the next statement, with a fresh snapshot.
SELECT key
FROM timeball.running_limit
WHERE key = ANY (:keys::text[])
ORDER BY key
FOR UPDATE;

-- name: promote
-- Let blocked executions into ready while their limit has places, most urgent first: by their index, whose rank knows no time zone. By ctid as in claim.
WITH place AS (
    SELECT running_limit.key,
           running_limit.max_running
             - (SELECT count(*) FROM timeball.ready WHERE ready.limit_key = running_limit.key)
             - (SELECT count(*) FROM timeball.running WHERE running.limit_key = running_limit.key) AS free
    FROM timeball.running_limit
    WHERE running_limit.key = ANY (:keys::text[])
),
chosen AS MATERIALIZED (
    SELECT first.tid
    FROM place
    CROSS JOIN LATERAL (
        SELECT blocked.ctid AS tid
        FROM timeball.blocked
        WHERE blocked.limit_key = place.key
        ORDER BY (blocked.run_at AT TIME ZONE 'UTC') - blocked.priority * interval '12 seconds'
        LIMIT greatest(place.free, 0)
    ) AS first
),
freed AS (
    DELETE FROM timeball.blocked
    WHERE blocked.ctid = ANY (ARRAY(SELECT chosen.tid FROM chosen))
    RETURNING blocked.*
)
INSERT INTO timeball.ready (id, job_id, origin, version, queue, priority, handler, scheduled_for, run_at, queued_at,
                            attempts, lost, fence, tzdata, limit_key, unique_key, payload, retry_of)
SELECT id, job_id, origin, version, queue, priority, handler, scheduled_for, run_at, queued_at,
       attempts, lost, fence, tzdata, limit_key, unique_key, payload, retry_of
FROM freed
RETURNING queue, priority, run_at;

-- name: blocked_keys
-- The limits somebody waits for, the first few behind one of them: a loose index scan, one probe a limit.
-- The reaper looks at each again, in case whoever freed a place died before it could promote.
WITH RECURSIVE waited_for AS (
    SELECT :behind::text AS limit_key, 0 AS number
    UNION ALL
    SELECT following.limit_key, waited_for.number + 1
    FROM waited_for
    CROSS JOIN LATERAL (
        SELECT blocked.limit_key
        FROM timeball.blocked
        WHERE blocked.limit_key > waited_for.limit_key
        ORDER BY blocked.limit_key
        LIMIT 1
    ) AS following
    WHERE waited_for.number < :limit::integer
)
SELECT limit_key
FROM waited_for
WHERE number > 0;

-- name: request_stop
-- Ask the holders of these executions to stop; only the holder and the reaper take a running row away.
UPDATE timeball.running
SET stop = :reason
WHERE id = ANY (:ids::uuid[])
  AND stop IS NULL
RETURNING id, holder;

-- name: request_stop_of_jobs
-- Ask the holders of these jobs' executions to stop.
UPDATE timeball.running
SET stop = :reason
WHERE job_id = ANY (:job_ids::uuid[])
  AND job_id <> id
  AND stop IS NULL
RETURNING id, holder;

-- name: stops
-- What this holder has been asked to stop.
SELECT id, stop
FROM timeball.running
WHERE holder = :incarnation
  AND stop IS NOT NULL;

-- name: report_progress
-- Note how far an attempt has come, while its row still names the claim.
UPDATE timeball.running
SET progress = :progress,
    progress_note = :note
WHERE id = :id
  AND fence = :fence
  AND claim_id = :claim_id;

-- name: reap_orphans
-- What is held by nobody alive: its node's row is gone, or its deadline has passed.
SELECT running.id, running.job_id, running.fence, running.attempts, running.lost, running.handler, running.run_at, running.scheduled_for, running.queue,
       running.priority, running.claim_id, running.holder, running.claimed_at, running.deadline, node.incarnation IS NULL AS is_orphan
FROM timeball.running
LEFT JOIN timeball.node ON node.incarnation = running.holder
WHERE node.incarnation IS NULL
   OR running.deadline < coalesce(:now, now())
LIMIT :limit;
