-- From `running` to `finished`, or back to `due` or `ready`: written by the holder, or by the reaper.

-- name: finish_succeeded
-- Move succeeded executions into the history, each only while its row still names the claim.
-- An outcome without a row is stale; `accepted` lists the others if there is one.
-- The delete looks up the rows one by one in the order in which they are given, the order of ids, and locks each on its way, so that two batches do not
-- wait for each other. Locking them first would cost a third more to write; sorting them here an eighth, where handlers return results.
-- `= ANY` of an array of one id can only use the primary key, whatever the planner believes about the size of the table. With `=` it could read the whole
-- table, and join it in an order of its own.
-- Parts of groups are ended together, and by the same statement as the executions; what else follows is written by the trigger of `finished`.
-- `given` hides the lengths of the arrays from the planner, which would otherwise plan the statement anew for every length; that takes as long as running it.
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
removed AS (
    DELETE FROM timeball.running
    USING outcome
    WHERE running.id = ANY (ARRAY[outcome.id])
      AND running.fence = outcome.fence
      AND running.claim_id = outcome.claim_id
    RETURNING running.id, job_id, origin, version, queue, priority, handler, scheduled_for, queued_at, outcome.started_at, outcome.finished_at,
              attempts, lost, running.fence, holder, running.claim_id, tzdata, outcome.result, payload, retry_of, created_by, bound_secrets_only, meta, has_follow_ups, limit_key, unique_key
),
unkeyed AS (
    DELETE FROM timeball.live_key
    USING removed
    WHERE removed.unique_key IS NOT NULL
      AND live_key.key = removed.unique_key
      AND live_key.execution_id = removed.id
),
recorded AS MATERIALIZED (
    SELECT count(*) AS accepted_count,
           CASE WHEN count(*) < cardinality(:ids::uuid[]) THEN array_agg((id, claim_id)) END AS accepted,
           array_agg(DISTINCT limit_key) FILTER (WHERE limit_key IS NOT NULL) AS freed,
           CASE WHEN bool_or(has_follow_ups)
                THEN timeball.end_parts(array_agg(id) FILTER (WHERE has_follow_ups),
                                        array_agg(version) FILTER (WHERE has_follow_ups),
                                        array_agg(finished_at) FILTER (WHERE has_follow_ups))
           END AS followed
    FROM removed
),
kept AS (
    INSERT INTO timeball.finished (id, job_id, state, origin, version, queue, priority, handler, scheduled_for, queued_at, started_at, finished_at,
                                   attempts, lost, fence, worker, claim_id, tzdata, result, payload, retry_of, created_by, bound_secrets_only, meta, has_follow_ups,
                                   has_ended_part, recorded)
    SELECT id, job_id, 'succeeded', origin, version, queue, priority, handler, scheduled_for, queued_at, started_at, finished_at,
           attempts, lost, fence, holder, claim_id, tzdata, result::jsonb, payload, retry_of, created_by, bound_secrets_only, meta, has_follow_ups,
           CASE WHEN has_follow_ups THEN id <> ALL ((SELECT recorded.followed FROM recorded)::uuid[]) END, (SELECT pg_current_xact_id()::text::bigint)
    FROM removed
)
SELECT *
FROM recorded;

-- name: attempt_facts
-- What `decide` must know of executions that did not succeed, while their rows still name the claim.
-- OFFSET 0: otherwise the planner may read the whole table to join a few rows with it.
SELECT running.id, running.attempts, running.lost, running.stop, {job.retry_columns}, job.at_most_once,
       job.paused_at IS NOT NULL AS is_paused, job.deleted_at IS NOT NULL AS is_deleted
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
-- Move executions to where `decide` has sent them, each only while its row still names the claim; record the attempt if there was one.
-- A row also stays if something has changed that `decide` did not know: a request to stop, a pause or the deletion of the job.
-- The job of an execution that will run again is locked, and read as it is after a lock wait. So a pause or deletion comes before this statement, which
-- then heeds it, or after it, and then finds the execution in its new table.
-- A row is locked when it is looked up, in the order of ids, so that two batches do not wait for each other, and checked again after a lock wait. Then it is
-- deleted by ctid.
-- An execution that dies of an expected error is settled from the start: it is history, and not on the dead-letter list.
-- An execution that was held for its instant, and has to wait again, waits at least for that instant.
-- One that has begun expires no more, wherever it goes.
WITH given AS (
    SELECT *
    FROM json_to_recordset(:transitions::text::json) AS t (
        id uuid, job_id uuid, fence bigint, claim_id uuid, stop text, is_paused boolean, is_deleted boolean,
        target text, state text, due_kind text, run_at timestamptz, shard smallint,
        started_at timestamptz, finished_at timestamptz, attempts integer, lost integer, result text, reason text,
        outcome text, error_type text, error text, traceback text, top_frame text, fingerprint text, is_expected boolean
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
    ORDER BY id
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
           given.traceback, given.top_frame, given.fingerprint, given.is_expected, CASE WHEN given.started_at IS NULL THEN removed.expires_at END AS next_expires_at
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
                                   attempts, lost, fence, worker, claim_id, tzdata, result, error_type, error, reason, fingerprint, payload, retry_of, created_by, bound_secrets_only, meta, has_follow_ups,
                                   expires_at)
    SELECT id, job_id, state, origin, version, queue, priority, handler, scheduled_for, queued_at, started_at, finished_at,
           next_attempts, next_lost, fence, holder, claim_id, tzdata, result::jsonb, error_type, error, reason, fingerprint, payload, retry_of, created_by, bound_secrets_only, meta, has_follow_ups,
           next_expires_at
    FROM gone
    WHERE target = 'finished'
),
failing AS (
    INSERT INTO timeball.failing_job (job_id)
    SELECT DISTINCT gone.job_id
    FROM gone
    JOIN timeball.job ON job.id = gone.job_id
    WHERE gone.state = 'dead'
      AND gone.is_expected IS NOT TRUE
      AND gone.job_id <> gone.id
      AND job.pause_after_failures IS NOT NULL
    ORDER BY gone.job_id
    ON CONFLICT DO NOTHING
),
waiting AS (
    INSERT INTO timeball.due (id, job_id, kind, origin, shard, run_at, scheduled_for, tzdata, version, queue, priority, handler,
                              queued_at, attempts, lost, fence, limit_key, unique_key, payload, retry_of, created_by, bound_secrets_only, meta, has_follow_ups, expires_at)
    SELECT id, job_id, due_kind, origin, shard, greatest(next_run_at, run_at), scheduled_for, tzdata, version, queue, priority, handler,
           queued_at, next_attempts, next_lost, fence, limit_key, unique_key, payload, retry_of, created_by, bound_secrets_only, meta, has_follow_ups, next_expires_at
    FROM gone
    WHERE target = 'due'
),
requeued AS (
    INSERT INTO timeball.ready (id, job_id, origin, version, queue, priority, handler, scheduled_for, run_at, queued_at,
                                attempts, lost, fence, tzdata, limit_key, unique_key, payload, retry_of, created_by, bound_secrets_only, meta, has_follow_ups, expires_at)
    SELECT id, job_id, origin, version, queue, priority, handler, scheduled_for, run_at, queued_at,
           next_attempts, next_lost, fence, tzdata, limit_key, unique_key, payload, retry_of, created_by, bound_secrets_only, meta, has_follow_ups, next_expires_at
    FROM gone
    WHERE target = 'ready'
),
tried AS (
    INSERT INTO timeball.attempt (execution_id, fence, number, claim_id, worker, started_at, finished_at, outcome,
                                  error_type, error, traceback, top_frame, fingerprint, is_expected)
    SELECT id, fence, attempts, claim_id, holder, started_at, finished_at, outcome, error_type, error, traceback, top_frame, fingerprint, is_expected
    FROM gone
    WHERE outcome IS NOT NULL
),
foreseen AS (
    INSERT INTO timeball.settled (execution_id, how, settled_at)
    SELECT id, 'expected', finished_at
    FROM gone
    WHERE state = 'dead'
      AND is_expected
)
SELECT id, claim_id, limit_key, queue, priority, run_at, target, target = 'finished' AND has_follow_ups AS is_followed
FROM gone;

-- name: failing_job
-- A job of which an execution has died, to be judged by this transaction alone; no row if another has judged it.
SELECT job_id
FROM timeball.failing_job
WHERE job_id = :job_id
FOR UPDATE;

-- name: failures_in_a_row
-- How many of the latest executions of a job died since it was changed or resumed, and after how many it is to be paused; no row if it is not to be.
-- One that died of an expected error ends a row of failures, as a success does.
-- The order of ids is that of the instants for which they were made.
SELECT job.pause_after_failures AS most,
       (
           SELECT count(*)
           FROM (
               SELECT finished.id, finished.state, finished.finished_at
               FROM timeball.finished
               WHERE finished.job_id = job.id
                 AND finished.job_id <> finished.id
                 AND finished.state IN ('succeeded', 'dead')
               ORDER BY finished.id DESC
               LIMIT job.pause_after_failures
           ) AS latest
           WHERE latest.state = 'dead'
             AND latest.finished_at > job.updated_at
             AND NOT EXISTS (SELECT 1 FROM timeball.settled WHERE settled.execution_id = latest.id AND settled.how = 'expected')
       ) AS failures
FROM timeball.job
WHERE job.id = :job_id
  AND job.pause_after_failures IS NOT NULL
  AND job.paused_at IS NULL
  AND job.deleted_at IS NULL;

-- name: forget_failing_job
DELETE FROM timeball.failing_job
WHERE job_id = :job_id;

-- name: already_recorded
-- What the history says about these claims: the state in which the execution ended with the claim, and the outcome of the attempt.
SELECT asked.id,
       asked.claim_id,
       (SELECT finished.state FROM timeball.finished WHERE finished.id = asked.id AND finished.claim_id = asked.claim_id LIMIT 1) AS state,
       (SELECT attempt.outcome FROM timeball.attempt WHERE attempt.execution_id = asked.id AND attempt.claim_id = asked.claim_id LIMIT 1) AS outcome
FROM unnest(:ids::uuid[], :claim_ids::uuid[]) AS asked (id, claim_id);

-- name: report_progress
-- Store the progress of an attempt, while its row still names the claim.
UPDATE timeball.running
SET progress = :progress,
    progress_note = :note
WHERE id = :id
  AND fence = :fence
  AND claim_id = :claim_id;

-- name: write_traces
-- Add the traces that attempts have begun to the meta of their executions, each while its row still names the claim.
-- Row by row, as in finish_succeeded: in the order of ids, and by the primary key.
UPDATE timeball.running
SET meta = coalesce(running.meta, timeball.meta_of(running.job_id, running.version), '{}') || given.trace::jsonb
FROM unnest(:ids::uuid[], :fences::bigint[], :claim_ids::uuid[], :traces::text[]) AS given (id, fence, claim_id, trace)
WHERE running.id = ANY (ARRAY[given.id])
  AND running.fence = given.fence
  AND running.claim_id = given.claim_id;

-- name: extend_deadline
-- Put off the deadline of an attempt that may clean up after its timeout, while its row still names the claim.
UPDATE timeball.running
SET deadline = coalesce(:now, now()) + :span::interval
WHERE id = :id
  AND fence = :fence
  AND claim_id = :claim_id;

-- name: orphaned_claims
-- Running executions whose node has no row any more, or whose deadline has passed.
SELECT running.id, running.job_id, running.fence, running.attempts, running.lost, running.handler, running.run_at, running.scheduled_for, running.queue,
       running.priority, running.origin, running.version, running.claim_id, running.holder, running.claimed_at, running.deadline,
       node.incarnation IS NULL AS is_orphan
FROM timeball.running
LEFT JOIN timeball.node ON node.incarnation = running.holder
WHERE node.incarnation IS NULL
   OR running.deadline < coalesce(:now, now())
LIMIT :limit;
