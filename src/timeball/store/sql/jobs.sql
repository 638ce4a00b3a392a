-- Jobs: created, found, changed; and executions on request.

-- fragment: new_jobs
-- Insert jobs with their first executions: into `ready` if due within the promotion window, into `blocked` if limited, otherwise into `due`.
-- A one-off whose unique_key is taken is neither written nor returned; nor is a job whose name is taken, also by a transaction that is under way: its
-- end is awaited. An error would end the caller's transaction.
-- The wake-up is sent with the commit: a NOTIFY of its own would cost a second commit.
-- The JSON is passed as text: a connection of the caller may have a codec for json, which would encode it a second time.
-- A limit that stays as it is is locked against its deletion alone: the caller's transaction may take long, and each end of an execution with that limit
-- locks it to pass its place on. ON CONFLICT DO UPDATE would lock it as a change does.
WITH given AS (
    SELECT *
    FROM json_populate_recordset(NULL::timeball.job, :jobs::text::json)
),
first AS (
    SELECT first.*, coalesce(first.run_at, :now, now()) AS starts_at
    FROM json_to_recordset(:firsts::text::json) AS first (
        id uuid, job_id uuid, origin text, run_at timestamptz, scheduled_for timestamptz, watermark timestamptz, tzdata text, executions_left bigint
    )
),
keyed AS (
    INSERT INTO timeball.live_key (key, execution_id, held_until)
    SELECT given.unique_key, first.id, first.starts_at + given.unique_for_seconds * interval '1 second'
    FROM given
    JOIN first ON first.job_id = given.id
    WHERE given.unique_key IS NOT NULL
      AND first.origin = 'enqueue'
    ON CONFLICT DO NOTHING
    RETURNING execution_id
),
made AS (
    INSERT INTO timeball.job (id, kind, payload, scheduled_at, calendars,
                              {job_columns},
                              shard, version, declared_by, created_by, bound_secrets_only, has_follow_ups, after_id, after_since, is_followed,
                              created_at, updated_at)
    SELECT given.id, kind, payload, CASE WHEN kind = 'once' THEN coalesce(scheduled_at, :now, now()) ELSE scheduled_at END, calendars,
           {given.job_columns},
           shard, version, declared_by, created_by, coalesce(bound_secrets_only, false), has_follow_ups, after_id, after_since, is_followed,
           coalesce(:now, now()), coalesce(:now, now())
    FROM given
    LEFT JOIN first ON first.job_id = given.id
    LEFT JOIN keyed ON keyed.execution_id = first.id
    WHERE given.unique_key IS NULL
       OR first.origin IS DISTINCT FROM 'enqueue'
       OR keyed.execution_id IS NOT NULL
    ON CONFLICT (name) WHERE name IS NOT NULL AND deleted_at IS NULL DO NOTHING
    RETURNING *
),
versioned AS (
    INSERT INTO timeball.job_version (job_id, version, definition, effective_from, recorded_at)
    SELECT made.id, made.version, to_jsonb(made), least(coalesce(first.watermark, :now, now()), first.scheduled_for - interval '1 microsecond'),
           coalesce(:now, now())
    FROM made
    LEFT JOIN first ON first.job_id = made.id
    WHERE made.name IS NOT NULL
       OR made.kind <> 'once'
),
limited AS (
    INSERT INTO timeball.running_limit (key, max_running)
    SELECT named.key, named.max_running
    FROM (
        SELECT DISTINCT ON (limit_key) limit_key, CASE WHEN kind IN ('every', 'cron', 'rrule') AND timeball.is_serial(overlap) THEN 1 ELSE max_running END
        FROM made
        WHERE limit_key IS NOT NULL
    ) AS named (key, max_running)
    WHERE NOT EXISTS (
        SELECT 1
        FROM timeball.running_limit AS known
        WHERE known.key = named.key
          AND known.max_running = named.max_running
        FOR KEY SHARE
    )
    ON CONFLICT (key) DO UPDATE SET max_running = excluded.max_running
    WHERE running_limit.max_running <> excluded.max_running
),
placed AS (
    SELECT made.*, first.id AS execution_id, first.origin, first.starts_at AS run_at,
           coalesce(first.scheduled_for, first.starts_at) AS scheduled_for, first.watermark, first.tzdata, first.executions_left,
           timeball.expiry(first.starts_at, made.start_within_seconds, made.expires_at) AS execution_expires_at,
           CASE WHEN first.starts_at > coalesce(:now, now()) + :promotion_window::interval OR made.kind IN ('every', 'cron', 'rrule') THEN 'due'
                -- Only a promotion takes the unique key of a scheduled occurrence.
                WHEN first.origin = 'schedule' AND made.unique_key IS NOT NULL THEN 'due'
                WHEN made.limit_key IS NOT NULL THEN 'blocked'
                ELSE 'ready' END AS state_table
    FROM made
    JOIN first ON first.job_id = made.id
),
to_due AS (
    INSERT INTO timeball.due (id, job_id, kind, origin, shard, run_at, scheduled_for, watermark, tzdata, version, queue, priority, handler,
                              executions_left, limit_key, unique_key, expires_at, has_follow_ups)
    SELECT execution_id, id, 'occurrence', origin, shard, run_at, scheduled_for, watermark, tzdata, version, queue, priority, handler,
           executions_left, limit_key, unique_key, execution_expires_at, has_follow_ups
    FROM placed
    WHERE state_table = 'due'
),
to_blocked AS (
    INSERT INTO timeball.blocked (id, job_id, origin, version, queue, priority, handler, scheduled_for, run_at, queued_at, tzdata, limit_key, unique_key,
                                  expires_at, has_follow_ups)
    SELECT execution_id, id, origin, version, queue, priority, handler, scheduled_for, run_at, coalesce(:now, now()), tzdata, limit_key, unique_key,
           execution_expires_at, has_follow_ups
    FROM placed
    WHERE state_table = 'blocked'
),
to_ready AS (
    INSERT INTO timeball.ready (id, job_id, origin, version, queue, priority, handler, scheduled_for, run_at, queued_at, tzdata, limit_key, unique_key,
                                  expires_at, has_follow_ups)
    SELECT execution_id, id, origin, version, queue, priority, handler, scheduled_for, run_at, coalesce(:now, now()), tzdata, limit_key, unique_key,
           execution_expires_at, has_follow_ups
    FROM placed
    WHERE state_table = 'ready'
)

-- name: create_jobs
{new_jobs}
SELECT made.id AS job_id, placed.execution_id, placed.state_table, placed.run_at, made.queue, made.priority, made.shard, made.limit_key,
       CASE WHEN :wakeup::text IS NOT NULL THEN pg_notify('timeball', :wakeup::text) END AS notified
FROM made
LEFT JOIN placed ON placed.id = made.id;

-- name: create_and_show_jobs
-- The same, for callers that show a job as it was written.
{new_jobs}
SELECT made.*, made.payload::text AS payload_text, made.id AS job_id, placed.execution_id, placed.state_table, placed.run_at,
       CASE WHEN :wakeup::text IS NOT NULL THEN pg_notify('timeball', :wakeup::text) END AS notified
FROM made
LEFT JOIN placed ON placed.id = made.id;

-- name: create_plain_jobs
-- Insert one-offs that are due at once and have neither key nor limit, with their executions: as create_jobs, in two thirds of its time.
WITH given AS (
    SELECT *
    FROM json_populate_recordset(NULL::timeball.job, :jobs::text::json)
),
made AS (
    INSERT INTO timeball.job (id, kind, payload, scheduled_at, {plain_columns}, shard, version, created_by, created_at, updated_at)
    SELECT id, kind, payload, coalesce(scheduled_at, :now, now()), {plain_columns}, shard, version, created_by, coalesce(:now, now()), coalesce(:now, now())
    FROM given
)
INSERT INTO timeball.ready (id, job_id, origin, version, queue, priority, handler, scheduled_for, run_at, queued_at)
SELECT id, id, 'enqueue', version, queue, priority, handler, coalesce(:now, now()), coalesce(:now, now()), coalesce(:now, now())
FROM given
RETURNING job_id, id AS execution_id, 'ready' AS state_table, run_at, queue, priority, NULL::smallint AS shard, limit_key,
          CASE WHEN :wakeup::text IS NOT NULL THEN pg_notify('timeball', :wakeup::text) END AS notified;

-- name: enqueue_one
-- Insert one such one-off with its execution: as create_plain_jobs, without JSON.
WITH made AS (
    INSERT INTO timeball.job (id, kind, payload, scheduled_at, {plain_columns}, shard, version, created_by, created_at, updated_at)
    VALUES (:id::uuid, 'once', :payload::text::jsonb, coalesce(:now, now()), {:plain_columns},
            :shard::smallint, :version::integer, :created_by::text, coalesce(:now, now()), coalesce(:now, now()))
)
INSERT INTO timeball.ready (id, job_id, origin, version, queue, priority, handler, scheduled_for, run_at, queued_at)
VALUES (:id, :id, 'enqueue', :version, :queue, :priority, :handler, coalesce(:now, now()), coalesce(:now, now()), coalesce(:now, now()))
RETURNING CASE WHEN :wakeup::text IS NOT NULL THEN pg_notify('timeball', :wakeup::text) END AS notified;

-- name: enqueue_alike
-- Insert such one-offs that differ only in id, shard and payload, with their executions.
-- `given` hides the lengths of the arrays from the planner, which would otherwise plan the statement anew for every length.
WITH given AS MATERIALIZED (
    SELECT :ids::uuid[] AS ids, :shards::smallint[] AS shards, :payloads::text[] AS payloads, coalesce(:now, now()) AS moment
),
own AS (
    SELECT one.id, one.shard, one.payload, given.moment
    FROM given
    CROSS JOIN unnest(given.ids, given.shards, given.payloads) AS one (id, shard, payload)
),
made AS (
    INSERT INTO timeball.job (id, kind, payload, scheduled_at, {plain_columns}, shard, version, created_by, created_at, updated_at)
    SELECT id, 'once', payload::jsonb, moment, {:plain_columns}, shard, :version::integer, :created_by::text, moment, moment
    FROM own
),
placed AS (
    INSERT INTO timeball.ready (id, job_id, origin, version, queue, priority, handler, scheduled_for, run_at, queued_at)
    SELECT id, id, 'enqueue', :version, :queue, :priority, :handler, moment, moment, moment
    FROM own
)
SELECT CASE WHEN :wakeup::text IS NOT NULL THEN pg_notify('timeball', :wakeup::text) END AS notified;

-- name: enqueue_jobs
-- Insert many one-off jobs that differ only in id, shard and payload.
-- Not by COPY, which would encode, send and parse the shared columns once for each row.
INSERT INTO timeball.job (id, kind, payload, scheduled_at, {job_columns}, shard, version, created_by, bound_secrets_only, has_follow_ups, created_at, updated_at)
SELECT own.id, kind, own.payload::jsonb, scheduled_at, {job_columns}, own.shard, version, created_by, coalesce(bound_secrets_only, false), has_follow_ups, created_at,
       updated_at
FROM json_populate_recordset(NULL::timeball.job, :template::text::json)
CROSS JOIN unnest(:ids::uuid[], :shards::smallint[], :payloads::text[]) AS own (id, shard, payload);

-- name: enqueue_ready
-- Insert the executions of many new one-offs into `ready`.
INSERT INTO timeball.ready (id, job_id, origin, version, queue, priority, handler, scheduled_for, run_at, queued_at, expires_at, has_follow_ups)
SELECT own.id, own.id, 'enqueue', version, queue, priority, handler, scheduled_at, scheduled_at, created_at,
       timeball.expiry(scheduled_at, start_within_seconds, expires_at), has_follow_ups
FROM json_populate_recordset(NULL::timeball.job, :template::text::json)
CROSS JOIN unnest(:ids::uuid[], :shards::smallint[]) AS own (id, shard);

-- name: enqueue_due
-- Insert the executions of many new one-offs into `due`.
INSERT INTO timeball.due (id, job_id, kind, origin, shard, run_at, scheduled_for, version, queue, priority, handler, expires_at, has_follow_ups)
SELECT own.id, own.id, 'occurrence', 'enqueue', own.shard, scheduled_at, scheduled_at, version, queue, priority, handler,
       timeball.expiry(scheduled_at, start_within_seconds, expires_at), has_follow_ups
FROM json_populate_recordset(NULL::timeball.job, :template::text::json)
CROSS JOIN unnest(:ids::uuid[], :shards::smallint[]) AS own (id, shard);

-- name: find_jobs
SELECT *, payload::text AS payload_text
FROM timeball.job
WHERE id = ANY (:ids::uuid[]);

-- name: timetables
-- When these jobs run, and by which rules; without handler and payload. Only `H` in a cron expression needs the name.
SELECT id, CASE WHEN schedule ILIKE '%h%' THEN name END AS name, version, name IS NULL AND kind = 'once' AS is_enqueued, kind, calendars, {timing_columns}
FROM timeball.job
WHERE id = ANY (:ids::uuid[]);

-- name: schedule_of_version
-- When a job runs by one of its versions. An enqueued one-off has no other version than its own.
SELECT name, kind, calendars, {timing_columns}
FROM timeball.job
WHERE id = :job_id
  AND version = :version
UNION ALL
SELECT kept.name, kept.kind, kept.calendars, {kept.timing_columns}
FROM timeball.job_version
CROSS JOIN LATERAL jsonb_populate_record(NULL::timeball.job, job_version.definition) AS kept
WHERE job_version.job_id = :job_id
  AND job_version.version = :version
LIMIT 1;

-- name: find_job_by_name
SELECT *, payload::text AS payload_text
FROM timeball.job
WHERE name = :name
  AND deleted_at IS NULL;

-- name: undeclared_jobs
-- Jobs that some modules declared once under other names than these, and that are neither paused nor deleted.
SELECT *, payload::text AS payload_text
FROM timeball.job
WHERE declared_by = ANY (:modules::text[])
  AND name <> ALL (:names::text[])
  AND deleted_at IS NULL
  AND paused_at IS NULL
ORDER BY name;

-- name: find_jobs_by_name
SELECT *, payload::text AS payload_text
FROM timeball.job
WHERE name = ANY (:names::text[])
  AND deleted_at IS NULL;

-- name: jobs_of_owner
-- The jobs of an owner, in the order of their ids: two callers that change them wait for each other, and never both. Without :with_ended, no one-off that
-- has come to its end. OFFSET 0: see busy_jobs.
SELECT job.id, job.paused_at IS NOT NULL AS is_paused
FROM timeball.job
WHERE owner = :owner
  AND deleted_at IS NULL
  AND (:with_ended::boolean
       OR kind <> 'once'
       OR paused_at IS NOT NULL
       OR EXISTS (SELECT 1 FROM timeball.due WHERE due.job_id = job.id OFFSET 0)
       OR EXISTS (SELECT 1 FROM timeball.ready WHERE ready.id = job.id OFFSET 0)
       OR EXISTS (SELECT 1 FROM timeball.ready WHERE ready.job_id = job.id AND ready.job_id <> ready.id OFFSET 0)
       OR EXISTS (SELECT 1 FROM timeball.blocked WHERE blocked.job_id = job.id OFFSET 0)
       OR EXISTS (SELECT 1 FROM timeball.running WHERE running.id = job.id OFFSET 0)
       OR EXISTS (SELECT 1 FROM timeball.running WHERE running.job_id = job.id AND running.job_id <> running.id OFFSET 0))
ORDER BY id;

-- name: jobs_declared_by
-- All jobs of one declaration; only named jobs are ever declared.
SELECT *, payload::text AS payload_text
FROM timeball.job
WHERE name IS NOT NULL
  AND deleted_at IS NULL
  AND declared_by = :declared_by
ORDER BY name;

-- fragment: changed_jobs
-- The statements of a change take one job or many. The planner does not see how many: it would plan each anew for every number.
ARRAY(SELECT unnest(:job_ids::uuid[]))

-- name: jobs_to_change
-- In the order of their ids: two callers that change the same jobs wait for each other, and never both. By the bytes of ids: see request_stop.
SELECT *, payload::text AS payload_text, coalesce(:now, now()) AS moment
FROM timeball.job
WHERE id = ANY ({changed_jobs})
  AND deleted_at IS NULL
ORDER BY uuid_send(id)
FOR UPDATE;

-- name: take_occurrences
-- Delete the pending occurrences. No row of a job if a scheduler has just taken it; then jobs_with_occurrence tells whether to look again.
DELETE FROM timeball.due
WHERE job_id = ANY ({changed_jobs})
  AND kind = 'occurrence'
RETURNING id, job_id, run_at, scheduled_for, watermark, executions_left, tzdata;

-- name: jobs_with_occurrence
SELECT job_id
FROM timeball.due
WHERE job_id = ANY ({changed_jobs})
  AND kind = 'occurrence';

-- name: promoted_until
-- The latest scheduled instants of jobs that are promoted and unfinished, or that are recorded although they lie ahead, because a person cancelled them.
-- An id begins with its instant, so those that lie ahead are the last ids of a job. Nothing is promoted a minute ahead. An occurrence that was cancelled
-- earlier has its instant as its end, so older partitions are not searched.
SELECT job_id, max(scheduled_for) AS scheduled_for
FROM (
    SELECT job_id, scheduled_for FROM timeball.ready WHERE job_id = ANY ({changed_jobs}) AND job_id <> id AND origin = 'schedule'
    UNION ALL
    SELECT job_id, scheduled_for FROM timeball.blocked WHERE job_id = ANY ({changed_jobs}) AND origin = 'schedule'
    UNION ALL
    SELECT job_id, scheduled_for FROM timeball.running WHERE job_id = ANY ({changed_jobs}) AND job_id <> id AND origin = 'schedule'
    UNION ALL
    SELECT job_id, scheduled_for FROM timeball.due WHERE job_id = ANY ({changed_jobs}) AND job_id <> id AND origin = 'schedule' AND kind IN ('later', 'retry', 'snooze', 'put_back')
    UNION ALL
    SELECT job_id, scheduled_for
    FROM timeball.finished
    WHERE job_id = ANY ({changed_jobs})
      AND job_id <> id
      AND id >= :first_ahead
      AND origin = 'schedule'
      AND scheduled_for > coalesce(:now, now())
      AND finished_at > coalesce(:now, now()) - interval '1 minute'
) AS live
GROUP BY job_id;

-- name: put_occurrences
-- Insert the pending occurrences of jobs. An enqueued execution that does not have its key waits for it.
INSERT INTO timeball.due (id, job_id, kind, origin, shard, run_at, scheduled_for, watermark, tzdata, version, queue, priority, handler,
                          executions_left, limit_key, unique_key, expires_at, has_follow_ups, awaits_key)
SELECT id, job_id, 'occurrence', origin, shard, run_at, scheduled_for, watermark, tzdata, version, queue, priority, handler,
       executions_left, limit_key, unique_key, expires_at, has_follow_ups,
       origin = 'enqueue'
       AND unique_key IS NOT NULL
       AND NOT EXISTS (SELECT 1 FROM timeball.live_key WHERE live_key.key = given.unique_key AND live_key.execution_id = given.id OFFSET 0)
FROM json_populate_recordset(NULL::timeball.due, :occurrences::text::json) AS given;

-- name: put_resumptions
INSERT INTO timeball.due (id, job_id, kind, origin, shard, run_at, scheduled_for, version, queue, priority, handler)
SELECT id, job_id, 'resume', 'schedule', shard, run_at, run_at, version, queue, priority, handler
FROM json_populate_recordset(NULL::timeball.due, :resumptions::text::json);

-- name: drop_resumptions
DELETE FROM timeball.due
WHERE job_id = ANY ({changed_jobs})
  AND job_id <> id
  AND kind = 'resume';

-- name: keep_versions
-- Keep the definitions of one-offs that an edit replaces: their waiting and running executions keep that version. The version is responsible for no
-- occurrence.
INSERT INTO timeball.job_version (job_id, version, definition, effective_from, effective_until, recorded_at)
SELECT id, version, to_jsonb(job), coalesce(:now, now()), coalesce(:now, now()), coalesce(:now, now())
FROM timeball.job
WHERE id = ANY ({changed_jobs});

-- name: write_jobs
-- Replace the definitions of jobs.
UPDATE timeball.job
SET ({job_columns}) = ROW ({new.job_columns}),
    kind = new.kind,
    calendars = new.calendars,
    payload = new.payload,
    scheduled_at = new.scheduled_at,
    version = new.version,
    declared_by = new.declared_by,
    bound_secrets_only = coalesce(new.bound_secrets_only, false),
    has_follow_ups = CASE WHEN job.continuation IS NOT NULL OR job.is_followed THEN true ELSE new.has_follow_ups END,
    after_id = new.after_id,
    after_since = new.after_since,
    paused_at = new.paused_at,
    paused_until = new.paused_until,
    paused_from = new.paused_from,
    paused_left = new.paused_left,
    pause_reason = new.pause_reason,
    updated_at = coalesce(:now, now()),
    deleted_at = new.deleted_at
FROM json_populate_recordset(NULL::timeball.job, :jobs::text::json) AS new
WHERE job.id = new.id;

-- name: open_versions
-- Insert the versions that are responsible from now on; the versions before them are no longer responsible.
WITH opened AS (
    SELECT *
    FROM json_to_recordset(:versions::text::json) AS opened (job_id uuid, effective_from timestamptz, tzdata text)
),
closed AS (
    UPDATE timeball.job_version
    SET effective_until = opened.effective_from,
        tzdata = coalesce(opened.tzdata, job_version.tzdata)
    FROM opened
    WHERE job_version.job_id = opened.job_id
      AND job_version.effective_until IS NULL
)
INSERT INTO timeball.job_version (job_id, version, definition, effective_from, recorded_at)
SELECT job.id, job.version, to_jsonb(job), opened.effective_from, coalesce(:now, now())
FROM opened
JOIN timeball.job ON job.id = opened.job_id;

-- name: close_versions
UPDATE timeball.job_version
SET effective_until = closed.closes_at,
    tzdata = coalesce(closed.tzdata, job_version.tzdata)
FROM json_to_recordset(:versions::text::json) AS closed (job_id uuid, closes_at timestamptz, tzdata text)
WHERE job_version.job_id = closed.job_id
  AND job_version.effective_until IS NULL;

-- name: set_limits
-- A limit that stays as it is is locked as in create_jobs. One that executions are put under is locked as a change does: they count for it.
INSERT INTO timeball.running_limit (key, max_running)
SELECT named.key, named.max_running
FROM json_to_recordset(:limits::text::json) AS named (key text, max_running integer, gains_jobs boolean)
WHERE named.gains_jobs
   OR NOT EXISTS (
       SELECT 1
       FROM timeball.running_limit AS known
       WHERE known.key = named.key
         AND known.max_running = named.max_running
       FOR KEY SHARE
   )
ORDER BY named.key
ON CONFLICT (key) DO UPDATE SET max_running = excluded.max_running
WHERE running_limit.max_running <> excluded.max_running;

-- name: unlimited_jobs
-- Those of the jobs that have an unfinished execution, other than the pending occurrence, without a limit.
SELECT job_id FROM timeball.ready WHERE job_id = ANY ({changed_jobs}) AND job_id <> id AND limit_key IS NULL
UNION
SELECT job_id FROM timeball.ready WHERE id = ANY ({changed_jobs}) AND job_id = id AND limit_key IS NULL
UNION
SELECT job_id FROM timeball.running WHERE job_id = ANY ({changed_jobs}) AND job_id <> id AND limit_key IS NULL
UNION
SELECT job_id FROM timeball.running WHERE id = ANY ({changed_jobs}) AND job_id = id AND limit_key IS NULL
UNION
SELECT job_id
FROM timeball.due
WHERE ((job_id = ANY ({changed_jobs}) AND job_id <> id) OR id = ANY ({changed_jobs}))
  AND kind IN ('retry', 'snooze', 'put_back', 'later')
  AND limit_key IS NULL;

-- name: put_under_limit
-- Make the executions of a job that have no limit count for the limit that the job was given. Running ones go on; ready ones, of this job or of others that
-- share the limit, wait for a place again.
WITH running AS (
    UPDATE timeball.running
    SET limit_key = :limit_key
    WHERE ((job_id = :job_id AND job_id <> id) OR id = :job_id)
      AND limit_key IS NULL
),
waiting AS (
    UPDATE timeball.due
    SET limit_key = :limit_key
    WHERE ((job_id = :job_id AND job_id <> id) OR id = :job_id)
      AND kind IN ('retry', 'snooze', 'put_back', 'later')
      AND limit_key IS NULL
),
taken AS (
    DELETE FROM timeball.ready
    WHERE (((job_id = :job_id AND job_id <> id) OR id = :job_id) AND limit_key IS NULL)
       OR limit_key = :limit_key
    RETURNING *
)
INSERT INTO timeball.blocked (id, job_id, origin, version, queue, priority, handler, scheduled_for, run_at, queued_at,
                              attempts, lost, fence, tzdata, limit_key, unique_key, payload, retry_of, created_by, bound_secrets_only, meta, has_follow_ups, expires_at)
SELECT id, job_id, origin, version, queue, priority, handler, scheduled_for, run_at, queued_at,
       attempts, lost, fence, tzdata, :limit_key, unique_key, payload, retry_of, created_by, bound_secrets_only, meta, has_follow_ups, expires_at
FROM taken;

-- name: record_skip_ranges
INSERT INTO timeball.skip_range (id, job_id, version, tzdata, first_at, last_at, occurrences, reason, recorded_at)
SELECT id, job_id, version, tzdata, first_at, last_at, occurrences, reason, coalesce(:now, now())
FROM json_populate_recordset(NULL::timeball.skip_range, :ranges::text::json);

-- name: record_skipped
-- Record single occurrences as skipped executions; as cancelled ones if a person cancelled them.
INSERT INTO timeball.finished (id, job_id, state, origin, version, queue, priority, handler, scheduled_for, finished_at, attempts, lost, fence, tzdata, reason,
                               has_follow_ups)
SELECT id, job_id, CASE WHEN reason = 'cancelled' THEN 'cancelled' ELSE 'skipped' END, 'schedule', version, queue, priority, handler, scheduled_for,
       greatest(coalesce(:now, now()), scheduled_for), 0, 0, 0, tzdata, reason,
       has_follow_ups
FROM json_populate_recordset(NULL::timeball.finished, :skipped::text::json);

-- name: is_queued
-- Whether an execution of one of the jobs is in `ready` or `blocked`.
SELECT EXISTS (SELECT 1 FROM timeball.ready WHERE job_id = ANY ({changed_jobs}) AND job_id <> id)
    OR EXISTS (SELECT 1 FROM timeball.ready WHERE id = ANY ({changed_jobs}))
    OR EXISTS (SELECT 1 FROM timeball.blocked WHERE job_id = ANY ({changed_jobs}));

-- name: withdraw_waiting
-- A pause: scheduled executions that wait and have no counted attempt are recorded as skipped; all other waiting ones are parked in `due`.
WITH from_ready AS (
    DELETE FROM timeball.ready
    WHERE (job_id = ANY ({changed_jobs}) AND job_id <> id)
       OR id = ANY ({changed_jobs})
    RETURNING *
),
from_blocked AS (
    DELETE FROM timeball.blocked
    WHERE job_id = ANY ({changed_jobs})
    RETURNING *
),
withdrawn AS (
    SELECT * FROM from_ready
    UNION ALL
    SELECT * FROM from_blocked
),
unkeyed AS (
    DELETE FROM timeball.live_key
    USING withdrawn
    WHERE live_key.key = withdrawn.unique_key
      AND live_key.execution_id = withdrawn.id
      AND withdrawn.origin IN ('schedule', 'after')
      AND withdrawn.attempts = 0
),
skipped AS (
    INSERT INTO timeball.finished (id, job_id, state, origin, version, queue, priority, handler, scheduled_for, queued_at, finished_at,
                                   attempts, lost, fence, tzdata, reason, payload, retry_of, created_by, bound_secrets_only, meta, has_follow_ups)
    SELECT id, job_id, 'skipped', origin, version, queue, priority, handler, scheduled_for, queued_at,
           greatest(coalesce(:now, now()), scheduled_for), attempts, lost, fence, tzdata, :reason, payload, retry_of, created_by, bound_secrets_only, meta, has_follow_ups
    FROM withdrawn
    WHERE origin IN ('schedule', 'after')
      AND attempts = 0
),
parked AS (
    INSERT INTO timeball.due (id, job_id, kind, origin, shard, run_at, scheduled_for, watermark, tzdata, version, queue, priority, handler,
                              queued_at, attempts, lost, fence, limit_key, unique_key, payload, retry_of, created_by, bound_secrets_only, meta, has_follow_ups, expires_at)
    SELECT id, job_id, CASE WHEN attempts > 0 THEN 'retry' ELSE 'later' END, origin,
           (SELECT job.shard FROM timeball.job WHERE job.id = withdrawn.job_id), :parked_at, scheduled_for, run_at, tzdata, version, queue,
           priority, handler,
           queued_at, attempts, lost, fence, limit_key, unique_key, payload, retry_of, created_by, bound_secrets_only, meta, has_follow_ups, expires_at
    FROM withdrawn
    WHERE origin NOT IN ('schedule', 'after')
       OR attempts > 0
)
SELECT id
FROM withdrawn;

-- name: park_waiting
-- Park all rows of jobs in `due` until they are resumed, except the pending occurrences of schedules.
-- A parked row that is not an occurrence has no watermark of its own. It keeps there the instant that it waited for, so that a retry is never early.
UPDATE timeball.due
SET run_at = :parked_at,
    watermark = CASE WHEN kind <> 'occurrence' AND run_at < :parked_at THEN coalesce(frozen_run_at, run_at) ELSE watermark END,
    frozen_run_at = NULL
WHERE ((job_id = ANY ({changed_jobs}) AND job_id <> id) OR id = ANY ({changed_jobs}))
  AND (kind IN ('retry', 'snooze', 'put_back', 'later') OR origin = 'enqueue');

-- name: unpark
-- IS NOT DISTINCT FROM: with `=` the planner may search the instant in the index of all shards, from one end to the other.
UPDATE timeball.due
SET run_at = greatest(coalesce(:now, now()), scheduled_for, CASE WHEN kind <> 'occurrence' THEN watermark END),
    watermark = CASE WHEN kind = 'occurrence' THEN watermark END
WHERE ((job_id = ANY ({changed_jobs}) AND job_id <> id) OR id = ANY ({changed_jobs}))
  AND run_at IS NOT DISTINCT FROM :parked_at
RETURNING run_at;

-- name: stop_held
-- Ask for a stop of executions that a worker holds and has not started; locked in the order of request_stop.
WITH asked AS MATERIALIZED (
    SELECT id
    FROM timeball.running
    WHERE ((job_id = ANY ({changed_jobs}) AND job_id <> id) OR id = ANY ({changed_jobs}))
      AND run_at > coalesce(:now, now())
      AND stop IS NULL
    ORDER BY uuid_send(id)
    FOR UPDATE
)
UPDATE timeball.running
SET stop = :reason
WHERE id = ANY (ARRAY(SELECT asked.id FROM asked))
RETURNING id, holder;

-- name: cancel_waiting
-- Move these executions into the history as cancelled, if they wait. Another statement asks the running ones to stop.
-- The pending occurrence of a recurring job is left alone: it is skipped through its job. One that was to run later counts towards max_executions, as if
-- it had been queued.
WITH from_due AS (
    DELETE FROM timeball.due
    WHERE due.id = ANY (:ids::uuid[])
      AND kind <> 'resume'
      AND NOT (kind = 'occurrence' AND origin = 'schedule')
    RETURNING id, job_id, origin, version, queue, priority, handler, scheduled_for,
              CASE WHEN origin = 'schedule' THEN coalesce(queued_at, :now, now()) ELSE queued_at END AS queued_at, attempts, lost, fence, tzdata, limit_key, unique_key, payload, retry_of, created_by, bound_secrets_only, meta, has_follow_ups
),
from_ready AS (
    DELETE FROM timeball.ready
    WHERE ready.id = ANY (:ids::uuid[])
    RETURNING id, job_id, origin, version, queue, priority, handler, scheduled_for, queued_at, attempts, lost, fence, tzdata, limit_key, unique_key, payload, retry_of, created_by, bound_secrets_only, meta, has_follow_ups
),
from_blocked AS (
    DELETE FROM timeball.blocked
    WHERE blocked.id = ANY (:ids::uuid[])
    RETURNING id, job_id, origin, version, queue, priority, handler, scheduled_for, queued_at, attempts, lost, fence, tzdata, limit_key, unique_key, payload, retry_of, created_by, bound_secrets_only, meta, has_follow_ups
),
gone AS (
    SELECT * FROM from_due
    UNION ALL
    SELECT * FROM from_ready
    UNION ALL
    SELECT * FROM from_blocked
),
unkeyed AS (
    DELETE FROM timeball.live_key
    USING gone
    WHERE live_key.key = gone.unique_key
      AND live_key.execution_id = gone.id
),
ended AS (
    INSERT INTO timeball.finished (id, job_id, state, origin, version, queue, priority, handler, scheduled_for, queued_at, finished_at,
                                   attempts, lost, fence, tzdata, reason, payload, retry_of, created_by, bound_secrets_only, meta, has_follow_ups)
    SELECT id, job_id, 'cancelled', origin, version, queue, priority, handler, scheduled_for, queued_at, coalesce(:now, now()),
           attempts, lost, fence, tzdata, :reason, payload, retry_of, created_by, bound_secrets_only, meta, has_follow_ups
    FROM gone
)
SELECT id, limit_key, has_follow_ups AS is_followed
FROM gone;

-- name: cancellable
-- Those of the executions that still wait, or run and were not asked to stop: they changed tables while they were being cancelled.
SELECT id FROM timeball.due WHERE id = ANY (:ids::uuid[]) AND kind <> 'resume' AND NOT (kind = 'occurrence' AND origin = 'schedule')
UNION ALL
SELECT id FROM timeball.ready WHERE id = ANY (:ids::uuid[])
UNION ALL
SELECT id FROM timeball.blocked WHERE id = ANY (:ids::uuid[])
UNION ALL
SELECT id FROM timeball.running WHERE id = ANY (:ids::uuid[]) AND stop IS NULL;

-- name: waiting_of_jobs
-- The ids of all waiting executions of jobs, except their pending occurrences.
SELECT id FROM timeball.due WHERE job_id = ANY ({changed_jobs}) AND job_id <> id AND kind NOT IN ('occurrence', 'resume')
UNION ALL
SELECT id FROM timeball.due WHERE id = ANY ({changed_jobs})
UNION ALL
SELECT id FROM timeball.ready WHERE job_id = ANY ({changed_jobs}) AND job_id <> id
UNION ALL
SELECT id FROM timeball.ready WHERE id = ANY ({changed_jobs})
UNION ALL
SELECT id FROM timeball.blocked WHERE job_id = ANY ({changed_jobs});

-- name: add_executions
-- Insert requested executions: a trigger, a retry of a finished execution, a backfill. One whose unique_key is taken is not written: `is_refused`.
-- The job is locked, so that the janitor, which deletes jobs without executions, does not delete it in between.
-- A request that says when it expires overrules its job; the instant at which a one-off expires concerns its own execution alone.
WITH given AS (
    SELECT *
    FROM json_to_recordset(:executions::text::json) AS e (
        id uuid, job_id uuid, origin text, run_at timestamptz, scheduled_for timestamptz, payload jsonb, retry_of uuid, created_by text,
        bound_secrets_only boolean, start_within_seconds integer, expires_at timestamptz, priority smallint,
        meta jsonb, has_follow_ups boolean
    )
),
placed AS MATERIALIZED (
    SELECT given.id, given.job_id, given.origin, coalesce(given.run_at, :now, now()) AS run_at,
           coalesce(given.scheduled_for, given.run_at, :now, now()) AS scheduled_for, given.payload, given.retry_of,
           given.created_by, given.bound_secrets_only, given.meta, coalesce(given.has_follow_ups, job.has_follow_ups) AS has_follow_ups,
           timeball.expiry(
               coalesce(given.run_at, :now, now()),
               CASE WHEN given.expires_at IS NULL THEN coalesce(given.start_within_seconds, job.start_within_seconds) ELSE given.start_within_seconds END,
               given.expires_at
           ) AS expires_at,
           job.version, job.queue, coalesce(given.priority, job.priority) AS priority, job.handler, job.shard, job.limit_key, job.unique_key,
           CASE WHEN given.run_at > coalesce(:now, now()) + :promotion_window::interval THEN 'due'
                WHEN job.limit_key IS NOT NULL THEN 'blocked'
                ELSE 'ready' END AS state_table
    FROM given
    JOIN timeball.job ON job.id = given.job_id
    FOR KEY SHARE OF job
),
keyed AS (
    INSERT INTO timeball.live_key (key, execution_id)
    SELECT unique_key, id
    FROM placed
    WHERE unique_key IS NOT NULL
    ON CONFLICT DO NOTHING
    RETURNING execution_id
),
allowed AS (
    SELECT *
    FROM placed
    WHERE unique_key IS NULL
       OR id IN (SELECT execution_id FROM keyed)
),
to_due AS (
    INSERT INTO timeball.due (id, job_id, kind, origin, shard, run_at, scheduled_for, version, queue, priority, handler, limit_key, unique_key,
                              payload, retry_of, created_by, bound_secrets_only, meta, has_follow_ups, expires_at)
    SELECT id, job_id, 'later', origin, shard, run_at, scheduled_for, version, queue, priority, handler, limit_key, unique_key,
           payload, retry_of, created_by, bound_secrets_only, meta, has_follow_ups, expires_at
    FROM allowed
    WHERE state_table = 'due'
),
to_blocked AS (
    INSERT INTO timeball.blocked (id, job_id, origin, version, queue, priority, handler, scheduled_for, run_at, queued_at, limit_key, unique_key,
                                  payload, retry_of, created_by, bound_secrets_only, meta, has_follow_ups, expires_at)
    SELECT id, job_id, origin, version, queue, priority, handler, scheduled_for, run_at, coalesce(:now, now()), limit_key, unique_key,
           payload, retry_of, created_by, bound_secrets_only, meta, has_follow_ups, expires_at
    FROM allowed
    WHERE state_table = 'blocked'
),
to_ready AS (
    INSERT INTO timeball.ready (id, job_id, origin, version, queue, priority, handler, scheduled_for, run_at, queued_at, unique_key,
                                payload, retry_of, created_by, bound_secrets_only, meta, has_follow_ups, expires_at)
    SELECT id, job_id, origin, version, queue, priority, handler, scheduled_for, run_at, coalesce(:now, now()), unique_key,
           payload, retry_of, created_by, bound_secrets_only, meta, has_follow_ups, expires_at
    FROM allowed
    WHERE state_table = 'ready'
)
SELECT placed.job_id, placed.id AS execution_id, placed.state_table, placed.run_at, placed.queue, placed.priority, placed.shard, placed.limit_key,
       placed.unique_key, placed.handler, allowed.id IS NULL AS is_refused
FROM placed
LEFT JOIN allowed ON allowed.id = placed.id;

-- name: lock_out_claims
-- Wait for the claims that are under way, and let none begin: what they take was claimed before the limit, and can be counted.
-- EXCLUSIVE is compatible with reading (a backup, a verification), and not with the FOR KEY SHARE of a claim. A claim that had to wait reads afresh.
LOCK TABLE timeball.queue IN EXCLUSIVE MODE;

-- name: queue_to_set
-- A queue, locked against other changes.
SELECT *
FROM timeball.queue
WHERE name = :name
FOR UPDATE;

-- name: set_queue
-- A value that is not given stays as it is: a pause must not undo a limit that is set at the same moment.
INSERT INTO timeball.queue (name, paused_at, paused_until, pause_reason, max_running)
VALUES (:name, CASE WHEN :is_paused::boolean THEN coalesce(:now, now()) END, CASE WHEN :is_paused::boolean THEN :until::timestamptz END,
        CASE WHEN :is_paused::boolean IS NOT NULL THEN :reason::text END, :max_running)
ON CONFLICT (name) DO UPDATE
SET paused_at = CASE
        WHEN :is_paused::boolean IS NULL THEN queue.paused_at
        WHEN :is_paused::boolean THEN coalesce(queue.paused_at, excluded.paused_at)
    END,
    paused_until = CASE WHEN :is_paused::boolean IS NULL THEN queue.paused_until ELSE excluded.paused_until END,
    pause_reason = CASE WHEN :is_paused::boolean IS NULL THEN queue.pause_reason ELSE excluded.pause_reason END,
    max_running = CASE WHEN :limits::boolean THEN excluded.max_running ELSE queue.max_running END
RETURNING *;

-- name: close_queue_interval
-- A pause or limit of a queue ends, or another one takes its place.
UPDATE timeball.queue_interval
SET until_at = greatest(coalesce(:now, now()), from_at)
WHERE queue = :queue
  AND kind = :kind
  AND until_at IS NULL;

-- name: open_queue_interval
-- A pause or limit of a queue begins. The one that began at the same instant lasted no time.
INSERT INTO timeball.queue_interval (queue, kind, from_at, value, actor, reason)
VALUES (:queue, :kind, coalesce(:now, now()), :value, :actor, :reason)
ON CONFLICT (queue, kind, from_at) DO UPDATE
SET until_at = NULL,
    value = excluded.value,
    actor = excluded.actor,
    reason = excluded.reason;

-- name: queue_intervals
-- The pauses and limits of a queue that touch a span, the earliest first.
SELECT queue, kind, from_at, until_at, value, actor, reason
FROM timeball.queue_interval
WHERE queue = :queue
  AND from_at <= :until
  AND (until_at IS NULL OR until_at >= :since)
ORDER BY from_at, kind;

-- name: queue_to_resume
-- A queue whose pause is over, locked against other changes; no row if it was resumed, or its pause made longer, meanwhile.
SELECT *
FROM timeball.queue
WHERE name = :name
  AND paused_until <= coalesce(:now, now())
FOR UPDATE;

-- name: find_queue
SELECT *
FROM timeball.queue
WHERE name = :name;

-- name: write_audit
INSERT INTO timeball.audit (id, at, actor, action, subject, reason, before, after, place)
SELECT id, coalesce(:now, now()), actor, action, subject, reason, before, after, place
FROM json_populate_recordset(NULL::timeball.audit, :entries::text::json);

-- name: find_note
-- Whether an action was done: its audit row is written in the same transaction.
SELECT id
FROM timeball.audit
WHERE id = :id;

-- name: waiting_in_queue
-- Some executions of a queue that are queued and not claimed. Blocked ones have no index by queue, and are read when there are no others.
WITH waiting AS MATERIALIZED (
    SELECT id
    FROM timeball.ready
    WHERE queue = :queue
    LIMIT :limit
)
SELECT id
FROM waiting
UNION ALL
(
    SELECT id
    FROM timeball.blocked
    WHERE queue = :queue
    LIMIT :limit - (SELECT count(*) FROM waiting)
);
