-- Unique keys: which execution has one, and what becomes of a waiting one when another is enqueued with its key.
--
-- An enqueue never locks the key of an execution that runs: the caller's transaction may take long, and the record of the outcome deletes that key.
-- What waits is locked in the order job, execution, key, as an edit and a cancellation do.

-- name: live_keys
-- The executions that have these unique keys.
SELECT key, execution_id, held_until, has_ended
FROM timeball.live_key
WHERE key = ANY (:keys::text[])
  AND NOT (has_ended AND held_until <= coalesce(:now, now()));

-- name: enqueued_with_key
-- The one-offs that were enqueued with a key, the latest first: each has the id of its execution.
SELECT id
FROM timeball.job
WHERE unique_key = :key
  AND name IS NULL
  AND kind = 'once'
ORDER BY unique_key, id DESC
LIMIT :limit;

-- name: free_keys
-- Forget keys that executions which have ended no longer hold.
DELETE FROM timeball.live_key
WHERE key = ANY (:keys::text[])
  AND has_ended
  AND held_until <= coalesce(:now, now());

-- name: key_facts
-- Who has a key, whether it is held until an instant to come, and who waits for it.
SELECT live_key.execution_id AS holder_id, live_key.has_ended, live_key.held_until > coalesce(:now, now()) AS is_held, due.id AS successor_id
FROM (VALUES (:key::text)) AS asked (key)
LEFT JOIN timeball.live_key ON live_key.key = asked.key
LEFT JOIN timeball.due ON due.unique_key = asked.key AND due.awaits_key;

-- name: standing_of_waiting
-- An execution that waits and has not begun; no row for any other.
SELECT id, origin, handler FROM timeball.due WHERE id = :id AND attempts = 0 AND lost = 0
UNION ALL
SELECT id, origin, handler FROM timeball.ready WHERE id = :id AND attempts = 0 AND lost = 0
UNION ALL
SELECT id, origin, handler FROM timeball.blocked WHERE id = :id AND attempts = 0 AND lost = 0;

-- fragment: newest_arguments
-- The execution has them, because a claim may have read the job before; the job has them too, for those who look at it or edit it.
payload = :payload::text::jsonb, meta = :meta::text::jsonb, created_by = :created_by::text, bound_secrets_only = :bound_secrets_only::boolean

-- fragment: is_alike
-- What has begun keeps its arguments: other services know them by its id. What a schedule, a trigger or another handler has made is left alone, too.
unique_key = :key AND handler = :handler AND origin = 'enqueue' AND attempts = 0 AND lost = 0

-- fragment: locked_job
-- The job is locked first, as an edit does.
job AS MATERIALIZED (
    SELECT id, shard, start_within_seconds, expires_at, coalesce(:run_at, :now, now()) AS new_run_at
    FROM timeball.job
    WHERE id = :id
      AND deleted_at IS NULL
    FOR NO KEY UPDATE
)

-- name: replace_waiting
-- Give an enqueued execution the newest arguments, if it has not begun. No row: it has, or it is moving from one table to another.
WITH {locked_job},
in_due AS (
    UPDATE timeball.due
    SET {newest_arguments}
    FROM job
    WHERE due.id = :id
      AND {is_alike}
    RETURNING due.id
),
in_ready AS (
    UPDATE timeball.ready
    SET {newest_arguments}
    FROM job
    WHERE ready.id = :id
      AND {is_alike}
    RETURNING ready.id
),
in_blocked AS (
    UPDATE timeball.blocked
    SET {newest_arguments}
    FROM job
    WHERE blocked.id = :id
      AND {is_alike}
    RETURNING blocked.id
),
changed AS (
    SELECT id FROM in_due
    UNION ALL
    SELECT id FROM in_ready
    UNION ALL
    SELECT id FROM in_blocked
)
UPDATE timeball.job AS current
SET payload = :payload::text::jsonb,
    meta = :meta::text::jsonb,
    created_by = :created_by::text,
    bound_secrets_only = coalesce(:bound_secrets_only::boolean, false),
    updated_at = coalesce(:now, now())
FROM changed
WHERE current.id = changed.id
RETURNING current.id;

-- name: extend_waiting
-- The same, and move its time to that of the newest enqueue: it waits in `due` again. Its expiry, and the span of its key, begin anew.
-- A row that is parked, because its job is paused, stays parked.
WITH {locked_job},
in_due AS (
    UPDATE timeball.due
    SET {newest_arguments},
        run_at = CASE WHEN due.run_at = :parked_at THEN due.run_at ELSE job.new_run_at END,
        watermark = CASE WHEN due.run_at = :parked_at AND due.kind <> 'occurrence' THEN job.new_run_at END,
        scheduled_for = job.new_run_at,
        frozen_run_at = NULL,
        expires_at = timeball.expiry(job.new_run_at, job.start_within_seconds, job.expires_at)
    FROM job
    WHERE due.id = :id
      AND {is_alike}
    RETURNING due.id, due.queue, due.priority, due.shard, due.run_at, NULL::text AS freed_limit
),
from_ready AS (
    DELETE FROM timeball.ready
    USING job
    WHERE ready.id = :id
      AND {is_alike}
    RETURNING ready.*
),
from_blocked AS (
    DELETE FROM timeball.blocked
    USING job
    WHERE blocked.id = :id
      AND {is_alike}
    RETURNING blocked.*
),
put_back AS (
    INSERT INTO timeball.due (id, job_id, kind, origin, shard, run_at, scheduled_for, version, queue, priority, handler, fence, limit_key, unique_key,
                              payload, meta, created_by, bound_secrets_only, has_follow_ups, expires_at)
    SELECT gone.id, gone.job_id, 'later', gone.origin, job.shard, job.new_run_at, job.new_run_at, gone.version, gone.queue, gone.priority, gone.handler,
           gone.fence, gone.limit_key, gone.unique_key, :payload::text::jsonb, :meta::text::jsonb, :created_by::text, :bound_secrets_only::boolean, gone.has_follow_ups,
           timeball.expiry(job.new_run_at, job.start_within_seconds, job.expires_at)
    FROM (SELECT * FROM from_ready UNION ALL SELECT * FROM from_blocked) AS gone
    JOIN job ON job.id = gone.id
    RETURNING id, queue, priority, shard, run_at, limit_key AS freed_limit
),
changed AS (
    SELECT * FROM in_due
    UNION ALL
    SELECT * FROM put_back
),
kept AS (
    UPDATE timeball.job AS current
    SET payload = :payload::text::jsonb,
        meta = :meta::text::jsonb,
        created_by = :created_by::text,
        bound_secrets_only = coalesce(:bound_secrets_only::boolean, false),
        scheduled_at = job.new_run_at,
        updated_at = coalesce(:now, now())
    FROM changed
    JOIN job ON job.id = changed.id
    WHERE current.id = changed.id
    RETURNING current.id, current.unique_for_seconds, job.new_run_at
),
held AS (
    UPDATE timeball.live_key
    SET held_until = kept.new_run_at + kept.unique_for_seconds * interval '1 second'
    FROM kept
    WHERE live_key.key = :key
      AND live_key.execution_id = kept.id
      AND kept.unique_for_seconds IS NOT NULL
)
SELECT changed.id AS execution_id, 'due' AS state_table, changed.run_at, changed.queue, changed.priority, changed.shard, changed.freed_limit AS limit_key
FROM changed;

-- name: create_successor
-- Insert a one-off that waits for its key: the execution that has it has begun. No row if another one waits for the key already.
WITH given AS (
    SELECT *, coalesce(:run_at, :now, now()) AS begins_at
    FROM json_populate_recordset(NULL::timeball.job, :jobs::text::json)
),
waiting AS (
    INSERT INTO timeball.due (id, job_id, kind, origin, shard, run_at, scheduled_for, version, queue, priority, handler, limit_key, unique_key,
                              expires_at, has_follow_ups, awaits_key)
    SELECT id, id, 'occurrence', 'enqueue', shard, begins_at, begins_at, version, queue, priority, handler, limit_key, unique_key,
           timeball.expiry(begins_at, start_within_seconds, expires_at), has_follow_ups, true
    FROM given
    ON CONFLICT (unique_key) WHERE awaits_key DO NOTHING
    RETURNING id, run_at, queue, priority, shard, limit_key
),
made AS (
    INSERT INTO timeball.job (id, kind, payload, scheduled_at,
                              {job_columns},
                              shard, version, created_by, bound_secrets_only, has_follow_ups, created_at, updated_at)
    SELECT given.id, kind, payload, begins_at,
           {given.job_columns},
           given.shard, version, created_by, coalesce(bound_secrets_only, false), has_follow_ups, coalesce(:now, now()), coalesce(:now, now())
    FROM given
    JOIN waiting ON waiting.id = given.id
),
limited AS (
    INSERT INTO timeball.running_limit (key, max_running)
    SELECT given.limit_key, given.max_running
    FROM given
    JOIN waiting ON waiting.id = given.id
    WHERE given.limit_key IS NOT NULL
      AND NOT EXISTS (
          SELECT 1
          FROM timeball.running_limit AS known
          WHERE known.key = given.limit_key
            AND known.max_running = given.max_running
          FOR KEY SHARE
      )
    ON CONFLICT (key) DO UPDATE SET max_running = excluded.max_running
    WHERE running_limit.max_running <> excluded.max_running
)
SELECT id AS execution_id, id AS job_id, 'due' AS state_table, run_at, queue, priority, shard, limit_key
FROM waiting;
