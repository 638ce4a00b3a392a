-- The schema of Timeball. Before the first release this file itself is edited. From then on changes are new files beside it: `migrate` applies the
-- missing ones in the order of their numbers.
--
-- An execution is a row of exactly one state table: due, ready, blocked, running or finished. That table is its state. Each transition is one statement
-- that deletes the row from one table and inserts it into the next.
--
-- The order of this file: the installation, jobs, unfinished executions, history, nodes, queues and limits, alerts, keys and audit, operations, rollups,
-- webhooks, functions, views, triggers. `migrate` itself creates the table `migration`. The comment of an index names the statement that needs it (store/sql).

-- Part 1: the installation.

-- One row: the id of this installation among those that share its Redis or RabbitMQ.
CREATE TABLE timeball.installation (
    id uuid PRIMARY KEY
);

INSERT INTO timeball.installation (id)
VALUES (gen_random_uuid());

-- Facts about this database, such as `history_from`: the instant before which history was deleted.
CREATE TABLE timeball.fact (
    key   text PRIMARY KEY,
    value text NOT NULL
);

-- The parts of the schedule. One scheduler at a time owns a shard. `migrate` fills this table once, and the number of shards never changes.
CREATE TABLE timeball.shard (
    id    smallint PRIMARY KEY,
    -- The incarnation of a scheduler; NULL if no scheduler owns the shard.
    owner uuid,
    -- Grows by one with every new owner, so that a former owner does not repeat work.
    epoch bigint   NOT NULL DEFAULT 0
);

-- Part 2: jobs.

-- What to run and when. The end of an execution never writes here.
-- The misfire columns and `overlap` are NULL for jobs that do not recur, `on_gap` and `on_repeat` for jobs without a schedule in wall times.
CREATE TABLE timeball.job (
    id                       uuid        PRIMARY KEY,
    name                     text,
    description              text,
    handler                  text        NOT NULL,
    payload                  jsonb       NOT NULL,
    kind                     text        NOT NULL,
    -- A cron expression, for kind `cron`; a recurrence rule with its DTSTART, for kind `rrule`.
    schedule                 text,
    interval_seconds         bigint,
    -- The instant of a one-off; the first instant of a job of kind `every`.
    scheduled_at             timestamptz,
    -- The name of the job whose successes are the occurrences of this one, for kind `after`; kept with that job's name.
    after                    text,
    timezone                 text,
    -- What happens at a local time that a clock change leaves out, or repeats.
    on_gap                   text,
    on_repeat                text,
    -- The names of calendars whose days are left out, and of those on whose days alone the job runs.
    skip_on                  text[],
    only_on                  text[],
    shift                    text,
    -- The calendars of both lists, each with the version that this version of the job uses, and the fingerprint of its days:
    -- {"holidays": {"version": 3, "days": "8f14e45f..."}}.
    calendars                jsonb,
    starts_at                timestamptz,
    ends_at                  timestamptz,
    max_executions           bigint,
    jitter_seconds           integer,
    misfire                  text,
    misfire_grace_seconds    integer,
    misfire_cap              integer,
    misfire_max_age_seconds  bigint,
    overlap                  text,
    queue                    text        NOT NULL,
    priority                 smallint    NOT NULL,
    max_retries              integer     NOT NULL,
    max_lost                 integer     NOT NULL,
    initial_backoff_ms       bigint      NOT NULL,
    max_backoff_ms           bigint      NOT NULL,
    -- The pauses before each retry, in place of those that grow; the last one repeats.
    backoff_ms               bigint[],
    timeout_ms               bigint,
    at_most_once             boolean     NOT NULL,
    max_running              integer,
    -- Jobs with the same key share one limit of running executions.
    limit_key                text,
    -- At most one unfinished execution per key. What an enqueue does with a waiting execution that has the key: NULL gives it back as it is.
    unique_key               text,
    if_exists                text,
    -- The key stays taken so long after the time of the execution, even if that has ended.
    unique_for_seconds       integer,
    -- An execution that has not begun by then is skipped: so many seconds after its time, or, for a one-off, at this instant.
    start_within_seconds     integer,
    expires_at               timestamptz,
    -- After so many dead executions in a row the job is paused.
    pause_after_failures     integer,
    -- The calls that follow the end of its executions, each with all of its fields: see domain/follow_ups.py.
    on_success               jsonb,
    on_failure               jsonb,
    -- What is expected of it: see domain/expectations.py.
    expect                   jsonb,
    tags                     text[],
    -- What the job belongs to: a row of a program's own tables.
    owner                    text,
    -- Words about its executions that are no arguments: a JSON object.
    meta                     jsonb,
    shard                    smallint    NOT NULL,
    version                  integer     NOT NULL,
    -- The program whose code declares this job; NULL for other jobs.
    declared_by              text,
    paused_at                timestamptz,
    paused_until             timestamptz,
    -- The watermark, and the number of executions left, at the beginning of the pause.
    paused_from              timestamptz,
    paused_left              bigint,
    pause_reason             text,
    created_at               timestamptz NOT NULL,
    updated_at               timestamptz NOT NULL,
    deleted_at               timestamptz,
    -- The author: a key, a person, a program.
    created_by               text,
    -- The payload names secrets, and its author is not an administrator.
    bound_secrets_only       boolean     NOT NULL DEFAULT false,
    -- Whether something follows the end of its executions; they take it over. NULL for nearly all.
    has_follow_ups           boolean,
    -- The execution or group that this one-off follows, and as what: `on_success`, `on_failure`, or its place in a chain or a group. NULL for nearly all.
    follows                  uuid,
    follows_as               text,
    -- What goes on when this one-off has ended: the rest of a chain, or the group that it is a part of. NULL for nearly all.
    continuation             jsonb,
    -- The innermost group that it belongs to.
    group_id                 uuid,
    -- For kind `after`: the job whose successes count, and since when; its occurrences up to then do not. NULL once that job was deleted.
    after_id                 uuid,
    after_since              timestamptz,
    -- A job comes after this one, or did once.
    is_followed              boolean
);

-- enqueued_with_key: the one-offs that were enqueued with a key.
CREATE INDEX job_keyed ON timeball.job (unique_key, id) WHERE unique_key IS NOT NULL;
-- find_job_by_name. A name belongs to one job at a time.
CREATE UNIQUE INDEX job_name ON timeball.job (name) WHERE name IS NOT NULL AND deleted_at IS NULL;

-- The indexes below are partial. A one-off without name, tag or limit, as programs enqueue by the million, has no entry in them.

-- undeclared_jobs, jobs_declared_by: the few declared jobs among all.
CREATE INDEX job_declared ON timeball.job (declared_by) WHERE declared_by IS NOT NULL;
-- Job lists (store/search/jobs.py): recurring and manual jobs.
CREATE INDEX job_recurring ON timeball.job (id) WHERE kind <> 'once';
-- observed_jobs: the first of the named recurring jobs.
CREATE INDEX job_observed ON timeball.job (id) WHERE name IS NOT NULL AND kind <> 'once' AND deleted_at IS NULL;
-- Job lists, searches of executions by the name of their job, timeball.named_jobs: jobs with a name.
CREATE INDEX job_named ON timeball.job (id) WHERE name IS NOT NULL;
-- Job lists: paused jobs.
CREATE INDEX job_paused ON timeball.job (id) WHERE paused_at IS NOT NULL;
-- Job lists: jobs with a tag.
CREATE INDEX job_tagged ON timeball.job (id) WHERE tags IS NOT NULL;
-- Job lists, jobs_of_owner: the jobs that belong to a row.
CREATE INDEX job_by_owner ON timeball.job (owner) WHERE owner IS NOT NULL;
-- unused_limits, trim_limits: the jobs that share a limit.
CREATE INDEX job_by_limit ON timeball.job (limit_key) WHERE limit_key IS NOT NULL;
-- jobs_of_calendar, count_jobs_of_calendar: the jobs that use a calendar.
CREATE INDEX job_by_calendar ON timeball.job USING gin (calendars) WHERE calendars IS NOT NULL;
-- follow_up, which writes what follows an end once; follow_ups_of: what followed an execution.
CREATE UNIQUE INDEX job_by_cause ON timeball.job (follows, follows_as) WHERE follows IS NOT NULL;
-- members_of_group: the one-offs of a group.
CREATE INDEX job_by_group ON timeball.job (group_id) WHERE group_id IS NOT NULL;
-- follow_success, chain_of_causes, forget_causes: the jobs that come after another.
CREATE INDEX job_by_after ON timeball.job (after_id) WHERE after_id IS NOT NULL;
-- expecting_jobs: the jobs of which something is expected.
CREATE INDEX job_expecting ON timeball.job (id) WHERE expect IS NOT NULL AND deleted_at IS NULL;
-- deleted_jobs: the janitor deletes them for good.
CREATE INDEX job_deleted ON timeball.job (id) WHERE deleted_at IS NOT NULL;

-- The rules of a job. A migration adds a rule with ALTER DOMAIN timeball.sound_job ADD CONSTRAINT ... CHECK ((VALUE).column ...), and checks the
-- existing jobs with REINDEX INDEX timeball.job_is_sound.
-- They belong to a domain and not to the table: PostgreSQL reads and prepares each CHECK of a table anew for every statement that inserts into it, which
-- doubles the work of a single enqueue. It keeps the checks of a domain prepared.
CREATE DOMAIN timeball.sound_job AS timeball.job
    CONSTRAINT job_kind_check CHECK ((VALUE).kind IN ('once', 'every', 'cron', 'rrule', 'manual', 'after'))
    CONSTRAINT once_has_instant CHECK ((VALUE).kind <> 'once' OR (VALUE).scheduled_at IS NOT NULL)
    CONSTRAINT every_has_interval CHECK ((VALUE).kind <> 'every' OR num_nulls((VALUE).interval_seconds, (VALUE).scheduled_at) = 0)
    CONSTRAINT cron_has_schedule CHECK ((VALUE).kind NOT IN ('cron', 'rrule') OR num_nulls((VALUE).schedule, (VALUE).timezone) = 0)
    CONSTRAINT after_has_a_cause CHECK (((VALUE).kind = 'after') = ((VALUE).after IS NOT NULL)
                                        AND ((VALUE).kind = 'after' OR num_nonnulls((VALUE).after_id, (VALUE).after_since) = 0)
                                        AND num_nonnulls((VALUE).after_id, (VALUE).after_since) <> 1)
    CONSTRAINT after_is_another_job CHECK ((VALUE).after_id <> (VALUE).id)
    CONSTRAINT job_name_check CHECK (length((VALUE).name) BETWEEN 1 AND 200)
    CONSTRAINT job_owner_check CHECK (length((VALUE).owner) BETWEEN 1 AND 200)
    CONSTRAINT job_handler_check CHECK (length((VALUE).handler) BETWEEN 1 AND 200)
    CONSTRAINT job_interval_seconds_check CHECK ((VALUE).interval_seconds >= 1)
    CONSTRAINT job_scheduled_at_check CHECK ((VALUE).scheduled_at >= '1970-01-01Z'::timestamptz AND (VALUE).scheduled_at < '2200-01-01Z'::timestamptz)
    CONSTRAINT job_on_gap_check CHECK ((VALUE).on_gap IN ('next_valid', 'skip'))
    CONSTRAINT job_on_repeat_check CHECK ((VALUE).on_repeat IN ('first', 'second', 'both'))
    CONSTRAINT job_shift_check CHECK ((VALUE).shift IN ('none', 'next', 'previous'))
    CONSTRAINT calendars_of_recurrence CHECK (num_nonnulls((VALUE).skip_on, (VALUE).only_on, (VALUE).calendars) = 0 OR (VALUE).kind IN ('every', 'cron', 'rrule'))
    CONSTRAINT calendars_are_cited CHECK (((VALUE).calendars IS NULL) = (num_nonnulls((VALUE).skip_on, (VALUE).only_on) = 0))
    CONSTRAINT shift_of_cron CHECK ((VALUE).shift IS NULL OR ((VALUE).kind IN ('cron', 'rrule') AND (VALUE).skip_on IS NOT NULL))
    CONSTRAINT job_max_executions_check CHECK ((VALUE).max_executions >= 1)
    CONSTRAINT job_jitter_seconds_check CHECK ((VALUE).jitter_seconds >= 0)
    CONSTRAINT job_misfire_check CHECK ((VALUE).misfire IN ('latest', 'skip', 'all'))
    CONSTRAINT job_misfire_grace_seconds_check CHECK ((VALUE).misfire_grace_seconds >= 0)
    CONSTRAINT job_misfire_cap_check CHECK ((VALUE).misfire_cap >= 1)
    CONSTRAINT job_misfire_max_age_seconds_check CHECK ((VALUE).misfire_max_age_seconds >= 0)
    CONSTRAINT job_overlap_check CHECK ((VALUE).overlap IN ('allow', 'skip', 'queue', 'cancel_running', 'latest'))
    CONSTRAINT job_queue_check CHECK (length((VALUE).queue) BETWEEN 1 AND 200)
    CONSTRAINT job_priority_check CHECK ((VALUE).priority BETWEEN 0 AND 100)
    CONSTRAINT job_max_retries_check CHECK ((VALUE).max_retries >= 0)
    CONSTRAINT job_max_lost_check CHECK ((VALUE).max_lost >= 1)
    CONSTRAINT job_initial_backoff_ms_check CHECK ((VALUE).initial_backoff_ms >= 0)
    CONSTRAINT job_max_backoff_ms_check CHECK ((VALUE).max_backoff_ms >= 0)
    CONSTRAINT job_backoff_ms_check CHECK (cardinality((VALUE).backoff_ms) >= 1 AND 0 <= ALL ((VALUE).backoff_ms))
    CONSTRAINT job_timeout_ms_check CHECK ((VALUE).timeout_ms >= 1)
    CONSTRAINT job_max_running_check CHECK ((VALUE).max_running >= 1)
    CONSTRAINT job_if_exists_check CHECK ((VALUE).if_exists IN ('replace', 'extend'))
    CONSTRAINT job_unique_for_seconds_check CHECK ((VALUE).unique_for_seconds >= 1)
    CONSTRAINT only_an_enqueue_meets_a_key CHECK (num_nonnulls((VALUE).if_exists, (VALUE).unique_for_seconds) = 0
                                                  OR ((VALUE).unique_key IS NOT NULL AND (VALUE).kind = 'once' AND (VALUE).name IS NULL))
    CONSTRAINT job_start_within_seconds_check CHECK ((VALUE).start_within_seconds >= 1)
    CONSTRAINT job_pause_after_failures_check CHECK ((VALUE).pause_after_failures >= 1)
    CONSTRAINT meta_is_an_object CHECK (jsonb_typeof((VALUE).meta) = 'object')
    CONSTRAINT follow_ups_are_calls CHECK ((VALUE).on_success ?| '{handler,chain,group}' IS NOT FALSE
                                         AND (VALUE).on_failure ?| '{handler,chain,group}' IS NOT FALSE)
    CONSTRAINT follow_ups_are_noted CHECK (((VALUE).has_follow_ups IS TRUE)
                                           = (num_nonnulls((VALUE).on_success, (VALUE).on_failure, (VALUE).continuation) > 0 OR (VALUE).is_followed IS TRUE))
    CONSTRAINT a_one_off_follows CHECK (num_nonnulls((VALUE).follows, (VALUE).follows_as) = 0
                                        OR ((VALUE).kind = 'once' AND num_nulls((VALUE).follows, (VALUE).follows_as) = 0))
    CONSTRAINT expect_is_an_object CHECK (jsonb_typeof((VALUE).expect) = 'object')
    CONSTRAINT nothing_is_expected_of_a_one_off CHECK ((VALUE).expect IS NULL OR (VALUE).kind <> 'once')
    CONSTRAINT only_a_one_off_expires_at_an_instant CHECK ((VALUE).expires_at IS NULL OR (VALUE).kind = 'once');

-- Whether a job keeps all rules. It never returns false: the cast raises an error that names the broken rule.
-- The result of the cast is never NULL, because a job has an id.
CREATE FUNCTION timeball.is_sound(job timeball.job)
RETURNS boolean
LANGUAGE plpgsql
IMMUTABLE
PARALLEL SAFE
AS $$
BEGIN
    RETURN NOT (job::timeball.sound_job IS NULL);
END
$$;

-- An exclusion constraint over jobs that are not sound. There are none, so its index stays empty. Unlike a CHECK, its WHERE stays prepared.
-- The first part recognises the usual one-off by its columns alone, which costs a bulk enqueue less than a function call for each row. It may only accept
-- jobs that keep all rules: a new rule about a column that it does not name, or about other values, has to be added to it. IS NOT TRUE: a comparison with
-- NULL accepts no job.
ALTER TABLE timeball.job
    ADD CONSTRAINT job_is_sound EXCLUDE USING btree (id WITH =) WHERE ((
        kind = 'once'
        AND num_nonnulls(name, owner, schedule, interval_seconds, on_gap, on_repeat, skip_on, only_on, shift, calendars, max_executions, jitter_seconds, misfire,
                         misfire_grace_seconds, misfire_cap, misfire_max_age_seconds, overlap, max_running, if_exists, unique_for_seconds,
                         start_within_seconds, pause_after_failures, on_success, on_failure, expect, has_follow_ups, follows, follows_as, continuation, group_id, backoff_ms,
                         after, after_id, after_since, is_followed) = 0
        AND (meta IS NULL OR jsonb_typeof(meta) = 'object')
        AND least(handler, queue) > ''
        AND length(handler || queue) <= 200
        AND priority BETWEEN 0 AND 100
        AND least(max_retries, max_lost) >= 1
        AND least(initial_backoff_ms, max_backoff_ms, timeout_ms) >= 1
        AND scheduled_at BETWEEN '1970-01-01Z'::timestamptz AND '2199-01-01Z'::timestamptz
    ) IS NOT TRUE AND NOT timeball.is_sound(job));

-- Every version of a recurring job, and replaced versions of an edited one-off. A version is responsible for the occurrences in
-- (effective_from, effective_until]. From these `verify` computes the occurrences that must have a record.
CREATE TABLE timeball.job_version (
    job_id          uuid        NOT NULL,
    version         integer     NOT NULL,
    definition      jsonb       NOT NULL,
    effective_from  timestamptz NOT NULL,
    effective_until timestamptz,
    recorded_at     timestamptz NOT NULL,
    -- The time-zone data by which all occurrences of this version were recorded at its end. NULL while it is effective, or if unknown.
    tzdata          text,
    PRIMARY KEY (job_id, version)
);

-- Named sets of days. A name belongs to one calendar for ever: one that is deleted keeps its versions, because records were made by them.
CREATE TABLE timeball.calendar (
    name             text        PRIMARY KEY CHECK (length(name) BETWEEN 1 AND 200),
    description      text,
    -- Where its days came from: {"kind": "list"}, {"kind": "ics"}, or {"kind": "country", "country": "DE", ...}.
    source           jsonb       NOT NULL,
    version          integer     NOT NULL CHECK (version >= 1),
    -- All jobs that use it cite this version or a later one.
    followed_version integer     NOT NULL,
    created_at       timestamptz NOT NULL,
    updated_at       timestamptz NOT NULL,
    deleted_at       timestamptz
);

-- The days of every version; a version never changes. Jobs cite versions in `calendars`.
CREATE TABLE timeball.calendar_version (
    name        text        NOT NULL REFERENCES timeball.calendar (name),
    version     integer     NOT NULL,
    -- As domain/scheduling/calendars.py reads them: 2026-12-25, 12-25, sat.
    days        text[]      NOT NULL,
    recorded_at timestamptz NOT NULL,
    PRIMARY KEY (name, version)
);

-- Job templates: the fields of a job as a client would post them.
CREATE TABLE timeball.template (
    id          uuid        PRIMARY KEY,
    name        text        NOT NULL UNIQUE CHECK (length(name) BETWEEN 1 AND 200),
    description text,
    job         jsonb       NOT NULL,
    version     integer     NOT NULL CHECK (version >= 1),
    created_at  timestamptz NOT NULL,
    updated_at  timestamptz NOT NULL
);

-- Part 3: executions that are not finished.
--
-- No index of these tables but the primary key can be searched by id. Such an index could serve a look-up by id if it is read from one end to the other,
-- and to a planner that takes the table for empty, as vacuum last saw it, that costs the same.

-- Executions that lie ahead: the next occurrence of every active job, delayed executions, retries during their back-off. Also resumptions of paused jobs.
CREATE TABLE timeball.due (
    id                 uuid        PRIMARY KEY,
    job_id             uuid        NOT NULL,
    kind               text        NOT NULL CHECK (kind IN ('occurrence', 'later', 'snooze', 'retry', 'put_back', 'resume')),
    -- What caused the execution: schedule, enqueue, trigger, backfill or retry.
    origin             text        NOT NULL,
    shard              smallint    NOT NULL,
    run_at             timestamptz NOT NULL,
    -- The instant by the schedule; `run_at` may be later, by jitter, snooze or back-off.
    scheduled_for      timestamptz NOT NULL,
    -- All occurrences of the job up to here are recorded. It never moves back.
    watermark          timestamptz,
    -- The version of the time-zone data that computed `run_at`.
    tzdata             text,
    -- The version of the job.
    version            integer     NOT NULL,
    queue              text        NOT NULL,
    priority           smallint    NOT NULL,
    handler            text        NOT NULL,
    executions_left    bigint,
    queued_at          timestamptz,
    attempts           integer     NOT NULL DEFAULT 0,
    -- Attempts that ended with their worker. They do not count as retries.
    lost               integer     NOT NULL DEFAULT 0,
    -- Grows with every claim: it orders attempts, for the outside world too.
    fence              bigint      NOT NULL DEFAULT 0,
    limit_key          text,
    unique_key         text,
    -- NULL: the payload of the job, in the version above.
    payload            jsonb,
    retry_of           uuid,
    -- NULL for occurrences of a schedule; an enqueued execution has the author of its job.
    created_by         text,
    -- As in `job`, about the payload of this row.
    bound_secrets_only boolean,
    -- NULL: the meta of the job, in the version above.
    meta               jsonb,
    -- Whether something follows its end. NULL for nearly all.
    has_follow_ups     boolean,
    -- If it has not begun by then, it is skipped. NULL if it may begin at any time, or has begun before.
    expires_at         timestamptz,
    -- The `run_at` of a row that a freeze holds: until the end of the freeze, `run_at` is that end.
    frozen_run_at      timestamptz,
    -- It takes its unique key when it is promoted: until then another execution has it, which had begun when this one was enqueued.
    awaits_key         boolean     NOT NULL DEFAULT false
);

-- look_ahead: the next rows of a shard.
CREATE INDEX due_by_shard ON timeball.due (shard, run_at);
-- take_occurrences. A job has at most one next occurrence.
CREATE UNIQUE INDEX due_occurrence ON timeball.due (job_id) WHERE kind = 'occurrence';
-- waiting_of_jobs, park_waiting, busy_jobs: the rows of one job. An enqueued execution has the id of its job and needs no entry.
CREATE INDEX due_by_job ON timeball.due (job_id) WHERE job_id <> id;
-- occurrences_of_other_tzdata, futures: pending occurrences by the time-zone data that computed them.
CREATE INDEX due_by_tzdata ON timeball.due (tzdata, id) WHERE tzdata IS NOT NULL;
-- Execution lists (store/search/executions.py): the few retries among a million rows.
CREATE INDEX due_retrying ON timeball.due (id) WHERE kind = 'retry';
-- unused_limits, trim_limits: the rows that count for a limit.
CREATE INDEX due_by_limit ON timeball.due (limit_key) WHERE limit_key IS NOT NULL;
-- expire_waiting: the rows that expire; without scheduled occurrences, about which the scheduler decides.
CREATE INDEX due_expiring ON timeball.due (expires_at) WHERE expires_at IS NOT NULL AND NOT (kind = 'occurrence' AND origin = 'schedule');

-- create_successor, key_facts. One execution at most waits for a key.
CREATE UNIQUE INDEX due_awaiting ON timeball.due (unique_key) WHERE awaits_key;
-- thaw: the rows that a freeze holds, by its end.
CREATE INDEX due_frozen ON timeball.due (run_at) WHERE frozen_run_at IS NOT NULL;

-- Executions that are due now, or within the promotion window.
CREATE TABLE timeball.ready (
    id                 uuid        PRIMARY KEY,
    job_id             uuid        NOT NULL,
    origin             text        NOT NULL,
    version            integer     NOT NULL,
    queue              text        NOT NULL,
    priority           smallint    NOT NULL,
    handler            text        NOT NULL,
    scheduled_for      timestamptz NOT NULL,
    run_at             timestamptz NOT NULL,
    queued_at          timestamptz NOT NULL,
    attempts           integer     NOT NULL DEFAULT 0,
    lost               integer     NOT NULL DEFAULT 0,
    fence              bigint      NOT NULL DEFAULT 0,
    tzdata             text,
    limit_key          text,
    unique_key         text,
    payload            jsonb,
    retry_of           uuid,
    created_by         text,
    bound_secrets_only boolean,
    meta               jsonb,
    has_follow_ups     boolean,
    expires_at         timestamptz
);

-- claim: a lane (queue, priority) in the order of time, then of ids. Never (queue, rank): see ARCHITECTURE.md, "Lanes".
-- The bytes of the id have its order, and cannot serve a look-up by id.
CREATE INDEX ready_by_lane ON timeball.ready (queue, priority, run_at, uuid_send(id));
-- waiting_of_jobs, withdraw_waiting, busy_jobs: the ready executions of a job.
CREATE INDEX ready_by_job ON timeball.ready (job_id) WHERE job_id <> id;
-- unblock: the ready executions that count for a limit.
CREATE INDEX ready_by_limit ON timeball.ready (limit_key) WHERE limit_key IS NOT NULL;
-- expire_waiting: the executions that expire.
CREATE INDEX ready_expiring ON timeball.ready (expires_at) WHERE expires_at IS NOT NULL;

-- Executions that would be ready, but wait for a place of their limit. The columns are those of `ready`.
CREATE TABLE timeball.blocked (
    LIKE timeball.ready INCLUDING DEFAULTS,
    PRIMARY KEY (id)
);
ALTER TABLE timeball.blocked ALTER COLUMN limit_key SET NOT NULL;

-- unblock: the executions that wait for a limit, the most urgent first. The rank is in UTC without a zone, since only that can be indexed.
CREATE INDEX blocked_by_limit ON timeball.blocked (limit_key, ((run_at AT TIME ZONE 'UTC') - priority * interval '12 seconds'));
-- waiting_of_jobs, withdraw_waiting, busy_jobs, promote: the blocked executions of a job.
CREATE INDEX blocked_by_job ON timeball.blocked (job_id);
-- expire_waiting: the executions that expire.
CREATE INDEX blocked_expiring ON timeball.blocked (expires_at) WHERE expires_at IS NOT NULL;

-- Executions that a worker has claimed: they run, or are held until their instant. Their lease is that of the worker's node.
CREATE TABLE timeball.running (
    id                 uuid        PRIMARY KEY,
    job_id             uuid        NOT NULL,
    origin             text        NOT NULL,
    version            integer     NOT NULL,
    queue              text        NOT NULL,
    priority           smallint    NOT NULL,
    handler            text        NOT NULL,
    scheduled_for      timestamptz NOT NULL,
    run_at             timestamptz NOT NULL,
    queued_at          timestamptz NOT NULL,
    attempts           integer     NOT NULL,
    lost               integer     NOT NULL,
    fence              bigint      NOT NULL,
    tzdata             text,
    limit_key          text,
    unique_key         text,
    payload            jsonb,
    retry_of           uuid,
    created_by         text,
    bound_secrets_only boolean,
    meta               jsonb,
    has_follow_ups     boolean,
    -- The worker does not begin it after this instant.
    expires_at         timestamptz,
    -- The incarnation of the worker's node.
    holder             uuid        NOT NULL,
    -- The worker makes it for each claim. An outcome is accepted only while the row still has it.
    claim_id           uuid        NOT NULL,
    claimed_at         timestamptz NOT NULL,
    deadline           timestamptz,
    -- The reason of a request to stop; NULL if there is none.
    stop               text,
    -- Whether it counts for the limit of its queue.
    queue_limited      boolean     NOT NULL DEFAULT false,
    progress           real,
    progress_note      text
);

-- request_stop_of_jobs, busy_jobs: the running executions of a job.
CREATE INDEX running_by_job ON timeball.running (job_id) WHERE job_id <> id;
-- count_running_of_queue: the running executions that count for the limit of a queue.
CREATE INDEX running_by_queue ON timeball.running (queue) WHERE queue_limited;
-- unblock: the running executions that count for a limit.
CREATE INDEX running_by_limit ON timeball.running (limit_key) WHERE limit_key IS NOT NULL;
-- stops: the executions that a holder is asked to stop.
CREATE INDEX running_stopped ON timeball.running (holder) WHERE stop IS NOT NULL;

-- The rows of these tables turn over many times a minute: vacuum by count, not by share, and never wait for an exclusive lock.
ALTER TABLE timeball.due SET (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
ALTER TABLE timeball.ready SET (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
ALTER TABLE timeball.blocked SET (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
ALTER TABLE timeball.running SET (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);

-- Jobs with `pause_after_failures` of which an execution has died: the housekeeping counts, pauses the job or not, and deletes the row.
CREATE TABLE timeball.failing_job (
    job_id uuid PRIMARY KEY
);

-- What follows single executions, in place of what follows those of their jobs: a trigger may say so. It is kept as long as the execution.
CREATE TABLE timeball.follow_up (
    execution_id uuid  PRIMARY KEY,
    on_success   jsonb,
    on_failure   jsonb,
    CONSTRAINT something_follows CHECK (num_nonnulls(on_success, on_failure) > 0)
);

-- Parts that run side by side, and what follows when all of them have ended. Each part is a call, a chain or a group. A chain of its own is a group of one.
CREATE TABLE timeball.execution_group (
    id           uuid        PRIMARY KEY,
    -- It is closed once: `succeeded` if all parts have, otherwise `failed`.
    state        text        NOT NULL CHECK (state IN ('open', 'succeeded', 'failed')),
    total        integer     NOT NULL CHECK (total >= 1),
    -- How many parts have failed; known when it is closed.
    failed       integer,
    -- What follows: the calls, chains or groups of domain/follow_ups.py.
    next_step    jsonb,
    on_failure   jsonb,
    -- What goes on when it has ended, and the innermost group that it belongs to.
    continuation jsonb,
    group_id     uuid,
    meta         jsonb,
    created_by   text,
    created_at   timestamptz NOT NULL,
    closed_at    timestamptz,
    -- When it was cancelled while it was open: from then on its chains begin no further step.
    cancelled_at timestamptz
);

-- tend_queues, open groups in lists: the few that are not closed.
CREATE INDEX execution_group_open ON timeball.execution_group (id) WHERE state = 'open';
-- groups_in: the groups of a group.
CREATE INDEX execution_group_by_group ON timeball.execution_group (group_id) WHERE group_id IS NOT NULL;

-- The parts of a group. A part ends with an execution, or with a group if it is one.
CREATE TABLE timeball.group_part (
    group_id uuid    NOT NULL REFERENCES timeball.execution_group (id) ON DELETE CASCADE,
    number   integer NOT NULL,
    ended_by uuid,
    state    text    CHECK (state IN ('succeeded', 'failed')),
    PRIMARY KEY (group_id, number),
    CONSTRAINT ended_in_a_state CHECK ((ended_by IS NULL) = (state IS NULL))
);

-- end_part, end_parts, close_group, tend_queues: the parts of a group that have not ended.
CREATE INDEX group_part_open ON timeball.group_part (group_id, number) WHERE state IS NULL;

-- The occurrences of jobs of kind `after`, each written once: the instant, the execution by whose success it came, and its own execution.
CREATE TABLE timeball.followed_success (
    job_id        uuid        NOT NULL,
    scheduled_for timestamptz NOT NULL,
    cause         uuid        NOT NULL,
    execution_id  uuid        NOT NULL,
    at            timestamptz NOT NULL,
    PRIMARY KEY (job_id, scheduled_for)
);

-- placed_follow_ups, links_of_execution: what came by the success of an execution.
CREATE INDEX followed_success_by_cause ON timeball.followed_success (cause);
-- trim_followed_successes: those from before the beginning of the history.
CREATE INDEX followed_success_by_end ON timeball.followed_success (at);

-- The execution that has each unique key: an unfinished one, or one that has ended and keeps its key until an instant.
CREATE TABLE timeball.live_key (
    key          text        PRIMARY KEY,
    execution_id uuid        NOT NULL,
    -- The key is taken at least until then. NULL: as long as the execution is unfinished.
    held_until   timestamptz,
    has_ended    boolean     NOT NULL DEFAULT false
);

-- free_keys: the keys of executions that have ended.
CREATE INDEX live_key_ended ON timeball.live_key (held_until) WHERE has_ended;

-- Part 4: history. Append-only, with a partition for each day. The janitor creates those of the next days, and drops old ones.
--
-- `recorded` is the transaction that wrote the row. A snapshot knows exactly which transactions it sees, so rows can be read in the order of commits.

-- How each execution ended.
CREATE TABLE timeball.finished (
    id                 uuid        NOT NULL,
    job_id             uuid        NOT NULL,
    state              text        NOT NULL CHECK (state IN ('succeeded', 'cancelled', 'dead', 'skipped')),
    origin             text        NOT NULL,
    version            integer     NOT NULL,
    queue              text        NOT NULL,
    priority           smallint    NOT NULL,
    handler            text        NOT NULL,
    scheduled_for      timestamptz NOT NULL,
    queued_at          timestamptz,
    started_at         timestamptz,
    finished_at        timestamptz NOT NULL,
    attempts           integer     NOT NULL,
    lost               integer     NOT NULL,
    fence              bigint      NOT NULL,
    -- The incarnation of the node that ran the last attempt.
    worker             uuid,
    claim_id           uuid,
    tzdata             text,
    result             jsonb,
    error_type         text,
    error              text,
    -- Why it was cancelled or skipped.
    reason             text,
    -- Equal for equal errors: groups dead executions.
    fingerprint        text,
    payload            jsonb,
    retry_of           uuid,
    created_by         text,
    bound_secrets_only boolean,
    meta               jsonb,
    has_follow_ups     boolean,
    -- The statement that ended it has ended its part of a group, and nothing else follows: the trigger has nothing to do. See end_parts.
    has_ended_part     boolean,
    -- The instant by which it should have begun; NULL if it had none, or began.
    expires_at         timestamptz,
    recorded           bigint      NOT NULL DEFAULT pg_current_xact_id()::text::bigint,
    PRIMARY KEY (id, finished_at)
) PARTITION BY RANGE (finished_at);

CREATE TABLE timeball.finished_default PARTITION OF timeball.finished DEFAULT;

-- executions_of_job, job_situations: the history of one job. An enqueued execution has the id of its job, and is found by that.
CREATE INDEX finished_by_job ON timeball.finished (job_id, id) WHERE job_id <> id;
-- Execution lists by state; the many that succeeded are read in the order of their ids.
CREATE INDEX finished_by_state ON timeball.finished (state, id) WHERE state <> 'succeeded';
-- ledger_records: the occurrences of one job that did not run, among many that did.
CREATE INDEX finished_skipped ON timeball.finished (job_id, id) WHERE state IN ('skipped', 'cancelled') AND job_id <> id;
-- retries_of: whether an occurrence that failed was retried. Few executions are retries.
CREATE INDEX finished_by_retried ON timeball.finished (retry_of) WHERE retry_of IS NOT NULL;
-- Execution lists: dead executions by their error.
CREATE INDEX finished_by_fingerprint ON timeball.finished (fingerprint, id) WHERE state = 'dead';
-- dead_groups, count_dead: they read dead executions from this index alone. The error itself may be long, and is read only where it is shown.
CREATE INDEX finished_dead ON timeball.finished (id) INCLUDE (job_id, fingerprint, handler, queue, finished_at) WHERE state = 'dead';
-- dead_of_jobs: the dead executions of one job.
CREATE INDEX finished_dead_by_job ON timeball.finished (job_id, id) WHERE state = 'dead' AND job_id <> id;
-- fold, changes: the rows since a snapshot. BRIN costs an insert nothing.
CREATE INDEX finished_by_recorded ON timeball.finished USING brin (recorded) WITH (pages_per_range = 16, autosummarize = on);

-- Unsuccessful attempts.
CREATE TABLE timeball.attempt (
    execution_id uuid        NOT NULL,
    fence        bigint      NOT NULL,
    number       integer     NOT NULL,
    claim_id     uuid,
    worker       uuid,
    started_at   timestamptz,
    finished_at  timestamptz NOT NULL,
    outcome      text        NOT NULL,
    error_type   text,
    error        text,
    traceback    text,
    top_frame    text,
    fingerprint  text,
    -- The handler has declared that this error is to be expected.
    is_expected  boolean,
    recorded     bigint      NOT NULL DEFAULT pg_current_xact_id()::text::bigint,
    PRIMARY KEY (execution_id, fence, finished_at)
) PARTITION BY RANGE (finished_at);

CREATE TABLE timeball.attempt_default PARTITION OF timeball.attempt DEFAULT;

-- fold, changes: the rows since a snapshot.
CREATE INDEX attempt_by_recorded ON timeball.attempt USING brin (recorded) WITH (pages_per_range = 16, autosummarize = on);
-- unsuccessful_tries: the attempts of a span. Rows are written in the order in which attempts end, so a summary of every few pages is enough.
CREATE INDEX attempt_by_end ON timeball.attempt USING brin (finished_at) WITH (pages_per_range = 16, autosummarize = on);

-- What handlers logged.
CREATE TABLE timeball.log_line (
    execution_id uuid        NOT NULL,
    fence        bigint      NOT NULL,
    number       integer     NOT NULL,
    at           timestamptz NOT NULL,
    level        text        NOT NULL,
    message      text        NOT NULL,
    PRIMARY KEY (execution_id, fence, number, at)
) PARTITION BY RANGE (at);

CREATE TABLE timeball.log_line_default PARTITION OF timeball.log_line DEFAULT;

-- Consecutive occurrences of a job that did not run, and why: from `first_at` to `last_at`, both included. Not partitioned.
CREATE TABLE timeball.skip_range (
    id          uuid        PRIMARY KEY,
    job_id      uuid        NOT NULL,
    version     integer     NOT NULL,
    tzdata      text,
    first_at    timestamptz NOT NULL,
    last_at     timestamptz NOT NULL,
    -- NULL if they were not counted.
    occurrences bigint,
    -- How many of them a backfill has filled in.
    filled      bigint      NOT NULL DEFAULT 0,
    reason      text        NOT NULL,
    recorded_at timestamptz NOT NULL,
    recorded    bigint      NOT NULL DEFAULT pg_current_xact_id()::text::bigint,
    CONSTRAINT in_order CHECK (first_at <= last_at)
);

-- verify_records, ledger_records: the skipped occurrences of a job.
CREATE INDEX skip_range_by_job ON timeball.skip_range (job_id, first_at);
-- skips: the skipped occurrences of all jobs in a span.
CREATE INDEX skip_range_by_time ON timeball.skip_range (first_at);
-- fold: the rows since a snapshot. Not a BRIN as elsewhere: there are few, and deleted ones leave room for new ones anywhere.
CREATE INDEX skip_range_by_recorded ON timeball.skip_range (recorded);

-- Dead executions that a person has retried or discarded, or that ended with an expected error: they are not on the dead-letter list, and their history stays.
CREATE TABLE timeball.settled (
    execution_id uuid        PRIMARY KEY,
    how          text        NOT NULL CHECK (how IN ('retried', 'discarded', 'expected')),
    settled_at   timestamptz NOT NULL
);

-- Part 5: nodes.

-- A process of a scheduler or worker, from its registration to its exit. A node without a row is dead.
CREATE TABLE timeball.node (
    incarnation   uuid        PRIMARY KEY,
    kind          text        NOT NULL CHECK (kind IN ('scheduler', 'worker')),
    name          text        NOT NULL,
    started_at    timestamptz NOT NULL,
    renewed_at    timestamptz NOT NULL,
    lease_until   timestamptz NOT NULL,
    lease_seconds real        NOT NULL,
    slots         integer     NOT NULL DEFAULT 0,
    busy          integer     NOT NULL DEFAULT 0,
    -- NULL: all queues.
    queues        text[],
    handlers      text[]      NOT NULL DEFAULT '{}',
    -- The fingerprints of the contracts of its handlers: see `handler`.
    fingerprints  text[]      NOT NULL DEFAULT '{}',
    version       text        NOT NULL DEFAULT '',
    draining      boolean     NOT NULL DEFAULT false,
    -- The broker that carries tickets to this node, and whether it works.
    broker        text        NOT NULL DEFAULT 'postgresql',
    broker_state  text        NOT NULL DEFAULT 'works',
    broker_error  text,
    -- The last trouble that the node survived: its event loop was blocked, or its process replaced one that had died.
    trouble       text,
    trouble_at    timestamptz
);

-- The contracts that workers publish: one row for each contract of a handler with which a worker has started. The newest contract of a name is the one
-- with the latest start. A worker writes here when it starts with a contract that is not the newest, and never with a heartbeat.
CREATE TABLE timeball.handler (
    name         text        NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
    fingerprint  text        NOT NULL,
    schema       jsonb       NOT NULL,
    options      jsonb       NOT NULL,
    doc          text        NOT NULL,
    run_style    text        NOT NULL,
    published_at timestamptz NOT NULL,
    -- When a worker process last started with it.
    started_at   timestamptz NOT NULL,
    PRIMARY KEY (name, fingerprint)
);

-- The first use of each secret by a job, or by the author of one-offs; it is audited.
CREATE TABLE timeball.secret_use (
    used_by       text        NOT NULL,
    secret        text        NOT NULL,
    first_used_at timestamptz NOT NULL,
    PRIMARY KEY (used_by, secret)
);

-- Part 6: queues and limits.

-- Queues that were paused or limited, or of which something is expected. Other queues have no row.
CREATE TABLE timeball.queue (
    name                    text        PRIMARY KEY CHECK (length(name) BETWEEN 1 AND 200),
    paused_at               timestamptz,
    -- When the housekeeping resumes it; NULL: a person does.
    paused_until            timestamptz,
    pause_reason            text,
    max_running             integer     CHECK (max_running >= 1),
    -- Expected: nothing in it waits for longer; a worker serves it.
    max_oldest_wait_seconds integer     CHECK (max_oldest_wait_seconds >= 1),
    must_be_served          boolean     NOT NULL DEFAULT false,
    CONSTRAINT only_a_pause_has_an_end CHECK (paused_at IS NOT NULL OR paused_until IS NULL)
);

-- When a queue was paused or limited, by whom and why. A change closes the interval before it, in its own transaction.
CREATE TABLE timeball.queue_interval (
    queue    text        NOT NULL,
    kind     text        NOT NULL CHECK (kind IN ('pause', 'limit')),
    from_at  timestamptz NOT NULL,
    -- NULL while it lasts.
    until_at timestamptz,
    -- The limit; NULL for a pause.
    value    integer,
    actor    text        NOT NULL,
    reason   text,
    PRIMARY KEY (queue, kind, from_at),
    CONSTRAINT in_order CHECK (from_at <= until_at),
    CONSTRAINT only_a_limit_has_a_value CHECK ((kind = 'limit') = (value IS NOT NULL))
);

-- Spans in which nothing starts: of one queue, one tag, one job, or of anything if none of these is named.
-- A row is kept as long as the history: what fell into a freeze is decided when it is over. There are few rows, and every statement reads all of them.
CREATE TABLE timeball.freeze_period (
    id         uuid        PRIMARY KEY,
    queue      text,
    tag        text,
    job_id     uuid,
    from_at    timestamptz NOT NULL,
    -- The first instant after it. One that is ended before its time ends there.
    until_at   timestamptz NOT NULL,
    afterwards text        NOT NULL CHECK (afterwards IN ('skip', 'latest', 'all')),
    actor      text        NOT NULL,
    reason     text,
    created_at timestamptz NOT NULL,
    -- Who has ended it before its time.
    ended_by   text,
    -- When its end was noted in the audit.
    ended_at   timestamptz,
    -- Larger than that of all others with every change: a scheduler whose list of freezes has another epoch promotes nothing.
    epoch      bigint      NOT NULL,
    CONSTRAINT in_order CHECK (from_at <= until_at),
    CONSTRAINT freeze_has_one_scope CHECK (num_nonnulls(queue, tag, job_id) <= 1)
);

-- How many executions with the same limit key may be ready or running together.
CREATE TABLE timeball.running_limit (
    key         text    PRIMARY KEY,
    max_running integer NOT NULL CHECK (max_running >= 1)
);

-- Part 7: alerts.

-- One row: the moment of the latest evaluation of alerts. Evaluators lock it, so each sees what the one before it has written, and an older one does nothing.
CREATE TABLE timeball.alert_evaluation (
    is_only boolean     PRIMARY KEY DEFAULT true CHECK (is_only),
    at      timestamptz NOT NULL
);

INSERT INTO timeball.alert_evaluation (at)
VALUES ('epoch');

-- Facts that a person should act upon, each with its life: pending until it has lasted, then open, then resolved. See domain/alerts.py.
-- An alert that nothing has changed is not written: `last_seen_at` is NULL while it is not resolved, and then the latest evaluation has seen it.
CREATE TABLE timeball.alert (
    id                  uuid        PRIMARY KEY,
    -- Identifies the fact, however often it is seen.
    fact                text        NOT NULL CHECK (length(fact) BETWEEN 1 AND 1000),
    kind                text        NOT NULL CHECK (length(kind) BETWEEN 1 AND 200),
    severity            text        NOT NULL CHECK (severity IN ('critical', 'warning')),
    sentence            text        NOT NULL,
    advice              text,
    command             text,
    why                 text,
    -- Where to look.
    target_kind         text,
    target_id           text,
    -- What it is about: a list of {"name", "job_id", "queue", "tags"}, of which some may be left out; and how many there are.
    members             jsonb       NOT NULL CHECK (jsonb_typeof(members) = 'array'),
    count               integer     NOT NULL CHECK (count >= 1),
    first_seen_at       timestamptz NOT NULL,
    -- NULL while it is pending.
    opened_at           timestamptz,
    last_seen_at        timestamptz,
    resolved_at         timestamptz,
    acknowledged_at     timestamptz,
    acknowledged_by     text,
    -- NULL: until it is resolved.
    acknowledged_until  timestamptz,
    acknowledged_reason text,
    CONSTRAINT target_is_whole CHECK ((target_kind IS NULL) = (target_id IS NULL)),
    CONSTRAINT only_an_open_alert_is_resolved CHECK (resolved_at IS NULL OR opened_at IS NOT NULL),
    CONSTRAINT a_resolved_alert_was_last_seen CHECK ((resolved_at IS NULL) = (last_seen_at IS NULL)),
    CONSTRAINT only_an_open_alert_is_acknowledged CHECK (acknowledged_at IS NULL OR opened_at IS NOT NULL),
    CONSTRAINT acknowledgement_is_whole CHECK ((acknowledged_at IS NULL) = (acknowledged_by IS NULL)
                                               AND (acknowledged_at IS NOT NULL OR num_nonnulls(acknowledged_until, acknowledged_reason) = 0))
);

-- unresolved_alerts, lock_alerts: the few alerts that are not resolved. A fact has one of them at most.
CREATE UNIQUE INDEX alert_unresolved ON timeball.alert (fact) WHERE resolved_at IS NULL;
-- resolved_alerts: the latest first. trim_alert: the oldest.
CREATE INDEX alert_resolved ON timeball.alert (resolved_at, id) WHERE resolved_at IS NOT NULL;

-- Where alerts go: the kind of a channel decides what its settings are (domain/channels.py). A secret is never among them, only its name.
CREATE TABLE timeball.channel (
    name               text        PRIMARY KEY CHECK (length(name) BETWEEN 1 AND 100),
    description        text,
    kind               text        NOT NULL CHECK (kind IN ('webhook', 'slack', 'email', 'pagerduty', 'command')),
    settings           jsonb       NOT NULL,
    -- Its settings name secrets, and their author is no administrator: only secrets that are bound to hosts are given to it.
    bound_secrets_only boolean     NOT NULL,
    version            integer     NOT NULL CHECK (version >= 1),
    created_at         timestamptz NOT NULL,
    updated_at         timestamptz NOT NULL
);

-- Which alerts go to which channels. There are few rows, and every announcement reads all of them.
CREATE TABLE timeball.alert_route (
    name                 text        PRIMARY KEY CHECK (length(name) BETWEEN 1 AND 100),
    description          text,
    channels             text[]      NOT NULL CHECK (cardinality(channels) > 0),
    -- The least severity.
    severity             text        NOT NULL CHECK (severity IN ('critical', 'warning')),
    -- An empty list asks for nothing.
    queues               text[]      NOT NULL,
    tags                 text[]      NOT NULL,
    jobs                 text[]      NOT NULL,
    -- [{"from": "22:00", "until": "07:00", "timezone": "Europe/Berlin", "days": ["mon", ...]}]
    quiet_hours          jsonb       NOT NULL,
    repeat_every_seconds integer     CHECK (repeat_every_seconds >= 60),
    version              integer     NOT NULL CHECK (version >= 1),
    created_at           timestamptz NOT NULL,
    updated_at           timestamptz NOT NULL
);

-- A message of an alert to a channel. Its id is that of the job that delivers it, whose execution says where it is. It outlives its channel and its alert.
CREATE TABLE timeball.alert_delivery (
    id              uuid        PRIMARY KEY,
    -- The order of the deliveries of an alert to a channel.
    number          bigint      NOT NULL GENERATED ALWAYS AS IDENTITY,
    channel         text        NOT NULL,
    -- NULL for a test.
    alert_id        uuid,
    event           text        NOT NULL CHECK (event IN ('opened', 'worse', 'grew', 'reminder', 'acknowledged', 'resolved', 'test')),
    -- Quiet hours and the time of a reminder are in it.
    run_at          timestamptz NOT NULL,
    -- The version of the channel that the latest attempt has read.
    channel_version integer,
    begun_at        timestamptz,
    -- From here on it may have arrived; NULL again if an attempt is known to have failed.
    heard_at        timestamptz,
    sent_at         timestamptz,
    -- Why it was not sent.
    left_out        text,
    created_at      timestamptz NOT NULL,
    CONSTRAINT only_a_test_has_no_alert CHECK ((alert_id IS NULL) = (event = 'test')),
    CONSTRAINT what_was_sent_was_heard CHECK (sent_at IS NULL OR heard_at IS NOT NULL),
    CONSTRAINT what_was_sent_is_not_left_out CHECK (sent_at IS NULL OR left_out IS NULL)
);

-- lock_line_of_delivery, deliveries_of_alerts: the few deliveries of an alert.
CREATE INDEX alert_delivery_by_alert ON timeball.alert_delivery (alert_id) WHERE alert_id IS NOT NULL;
-- page_deliveries: those of a channel, the latest first.
CREATE INDEX alert_delivery_by_channel ON timeball.alert_delivery (channel, number);
-- trim_alert_delivery: the oldest.
CREATE INDEX alert_delivery_by_age ON timeball.alert_delivery (created_at);

-- Part 8: keys, sessions, audit.

-- API keys. The token is shown once; only its hash is stored.
CREATE TABLE timeball.api_key (
    id         text        PRIMARY KEY,
    name       text        NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
    role       text        NOT NULL CHECK (role IN ('viewer', 'operator', 'editor', 'admin')),
    token_hash bytea       NOT NULL,
    created_at timestamptz NOT NULL,
    expires_at timestamptz,
    revoked_at timestamptz,
    used_at    timestamptz
);

-- Sessions of the dashboard: a browser that showed an API key. Only the hash of the cookie is stored. A revoked or expired key ends its sessions.
CREATE TABLE timeball.dashboard_session (
    token_hash bytea       PRIMARY KEY,
    key_id     text        NOT NULL REFERENCES timeball.api_key (id) ON DELETE CASCADE,
    created_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    used_at    timestamptz NOT NULL DEFAULT now()
);

-- forget_old_sessions: the first to expire.
CREATE INDEX dashboard_session_by_end ON timeball.dashboard_session (expires_at);

-- One row: the secret that signs short messages in cookies, so that every API process accepts those of the others.
CREATE TABLE timeball.dashboard_secret (
    is_only boolean PRIMARY KEY DEFAULT true CHECK (is_only),
    secret  bytea   NOT NULL CHECK (length(secret) = 32)
);

-- gen_random_uuid is cryptographically strong; two of them have 244 random bits.
INSERT INTO timeball.dashboard_secret (secret)
VALUES (sha256((gen_random_uuid()::text || gen_random_uuid()::text)::bytea));

-- Idempotency keys: a POST under a key, and its answer. A request without a status is still in flight.
CREATE TABLE timeball.idempotency_key (
    caller       text        NOT NULL,
    key          text        NOT NULL,
    request_hash bytea       NOT NULL,
    created_at   timestamptz NOT NULL,
    status       integer,
    headers      jsonb,
    body         bytea,
    PRIMARY KEY (caller, key)
);

-- forget_old_requests: the oldest first.
CREATE INDEX idempotency_key_by_age ON timeball.idempotency_key (created_at);

-- Who changed what. Append-only, written in the transaction of the change.
CREATE TABLE timeball.audit (
    id       uuid        PRIMARY KEY,
    at       timestamptz NOT NULL,
    actor    text        NOT NULL,
    -- Where the change came from, such as an address.
    place    text,
    action   text        NOT NULL,
    subject  text        NOT NULL,
    reason   text,
    before   jsonb,
    after    jsonb,
    recorded bigint      NOT NULL DEFAULT pg_current_xact_id()::text::bigint
);

-- Audit lists (store/search/listing.py): the changes of one subject.
CREATE INDEX audit_by_subject ON timeball.audit (subject, id);
-- Audit lists: the changes by one actor.
CREATE INDEX audit_by_actor ON timeball.audit (actor, id);
-- changes: few rows, scattered by their primary key.
CREATE INDEX audit_by_recorded ON timeball.audit (recorded);

-- Part 9: operations.

-- One action on many executions or jobs, done in the background by the API process that holds its lease.
CREATE TABLE timeball.operation (
    id               uuid        PRIMARY KEY,
    action           text        NOT NULL CHECK (action IN ('cancel', 'retry', 'discard', 'pause', 'resume', 'trigger', 'delete', 'backfill')),
    subject          text        NOT NULL DEFAULT 'execution' CHECK (subject IN ('execution', 'job')),
    state            text        NOT NULL CHECK (state IN ('pending', 'running', 'paused', 'succeeded', 'cancelled', 'failed')),
    actor            text        NOT NULL,
    place            text,
    reason           text,
    -- Whether it settles dead executions.
    settles          boolean     NOT NULL,
    -- The end of the pauses that it makes.
    until_at         timestamptz,
    total            integer     NOT NULL CHECK (total >= 0),
    done             integer     NOT NULL DEFAULT 0,
    failed           integer     NOT NULL DEFAULT 0,
    cancel_requested boolean     NOT NULL DEFAULT false,
    error            text,
    holder           uuid,
    lease_until      timestamptz,
    created_at       timestamptz NOT NULL,
    started_at       timestamptz,
    finished_at      timestamptz,
    -- What a backfill is to run, the last occurrence that it has looked at, and when it looks again. Its items are the executions that it has created.
    backfill         jsonb,
    cursor_at        timestamptz,
    next_at          timestamptz,
    CONSTRAINT operation_says_what_to_fill CHECK ((action = 'backfill') = (backfill IS NOT NULL))
);

-- take_operation: unfinished operations, the oldest first.
CREATE INDEX operation_unfinished ON timeball.operation (id) WHERE finished_at IS NULL;

-- The executions or jobs of an operation, and the result for each.
CREATE TABLE timeball.operation_item (
    operation_id uuid    NOT NULL REFERENCES timeball.operation ON DELETE CASCADE,
    number       integer NOT NULL,
    execution_id uuid,
    job_id       uuid,
    -- NULL while it waits.
    status       text    CHECK (status IN ('done', 'failed')),
    -- The id of the execution that a retry or trigger makes. It is chosen beforehand, so that another process can see what was done.
    made         uuid,
    error        text,
    PRIMARY KEY (operation_id, number),
    CONSTRAINT operation_item_is_one CHECK (num_nonnulls(execution_id, job_id) = 1)
);

-- items_left: the items of an operation without a result, in order.
CREATE INDEX operation_item_left ON timeball.operation_item (operation_id, number) WHERE status IS NULL;

-- Part 10: rollups.

-- Counts for each minute, for each hour, and for all time (`ever`, which Prometheus counters are made of).
-- `job_id` is the series: zero for a queue and handler, the id of a recurring job, md5('queue ' || name) for a queue, and the last of all ids for the
-- installation. So a chart reads one row for each step.
-- A sketch of lateness or duration is two arrays: its buckets in order, and the count of each.
-- `ran` and the skips are about occurrences of schedules: how many ran, and how many were skipped for each reason. A skip range counts as many as it holds.
CREATE TABLE timeball.rollup (
    span             text             NOT NULL CHECK (span IN ('minute', 'hour', 'ever')),
    at               timestamptz      NOT NULL,
    job_id           uuid             NOT NULL,
    queue            text             NOT NULL,
    handler          text             NOT NULL,
    starts           bigint           NOT NULL,
    succeeded        bigint           NOT NULL,
    cancelled        bigint           NOT NULL,
    dead             bigint           NOT NULL,
    skipped          bigint           NOT NULL,
    failed           bigint           NOT NULL,
    timed_out        bigint           NOT NULL,
    lost             bigint           NOT NULL,
    -- Executions that died of an error that their handler expects, and attempts that failed of one: the columns above leave them out.
    expected         bigint           NOT NULL,
    expected_tries   bigint           NOT NULL,
    ran              bigint           NOT NULL,
    skip_reasons     text[]           NOT NULL,
    skip_counts      bigint[]         NOT NULL,
    lateness_seconds double precision NOT NULL,
    lateness_buckets smallint[]       NOT NULL,
    lateness_counts  bigint[]         NOT NULL,
    duration_seconds double precision NOT NULL,
    duration_buckets smallint[]       NOT NULL,
    duration_counts  bigint[]         NOT NULL,
    PRIMARY KEY (span, job_id, at, queue, handler)
);

-- trim_rollups: the oldest of a span.
CREATE INDEX rollup_by_age ON timeball.rollup (span, at);
-- missed_of_jobs: the few hours in which occurrences were missed. The words are those of SkipReason.is_missed.
CREATE INDEX rollup_missed ON timeball.rollup (at, job_id) WHERE span = 'hour' AND skip_reasons && '{misfire,too_old,capped}'::text[];
-- rollup_series: the series of one handler.
CREATE INDEX rollup_by_handler ON timeball.rollup (span, handler, at) WHERE job_id = '00000000-0000-0000-0000-000000000000'::uuid;

-- What the latest runs of a recurring job tell, for /metrics. The fold writes it from the same records as the rollups, so that no read looks for them in the history,
-- which may be long or gone. Backfills are left out: they make up for the past.
CREATE TABLE timeball.job_summary (
    job_id            uuid        PRIMARY KEY,
    succeeded_at      timestamptz,
    -- The latest end that ended a row of failures: a success, or a death of an error that the handler expects.
    unbroken_at       timestamptz,
    failed_at         timestamptz,
    failures_in_a_row bigint      NOT NULL,
    duration_at       timestamptz,
    duration_seconds  double precision,
    lateness_at       timestamptz,
    lateness_seconds  double precision
);

-- One row: the rollups contain everything that this snapshot sees, and nothing else. A fold locks the row.
CREATE TABLE timeball.fold (
    is_only boolean     PRIMARY KEY DEFAULT true CHECK (is_only),
    seen    pg_snapshot NOT NULL
);

INSERT INTO timeball.fold (seen)
VALUES (pg_current_snapshot());

-- Part 11: webhooks.

-- One row: webhooks have been given everything that this snapshot sees. NULL while no webhook is active, when nothing reads the changes.
CREATE TABLE timeball.webhook_position (
    is_only boolean PRIMARY KEY DEFAULT true CHECK (is_only),
    seen    pg_snapshot,
    -- When `seen` was the present.
    seen_at timestamptz,
    CONSTRAINT webhook_position_is_whole CHECK ((seen IS NULL) = (seen_at IS NULL))
);

INSERT INTO timeball.webhook_position
DEFAULT VALUES;

-- Where events are sent to, and which. Whatever writes its deliveries locks the row.
CREATE TABLE timeball.webhook (
    id              uuid        PRIMARY KEY,
    url             text        NOT NULL,
    description     text,
    -- Types of events, also groups such as `execution.*`; empty for all of them.
    events          text[]      NOT NULL,
    queue           text,
    job_id          uuid,
    handler         text,
    tag             text,
    format          text        NOT NULL CHECK (format IN ('standard', 'cloudevents')),
    secret          text        NOT NULL,
    -- The secret before the last rotation signs, too, until this instant.
    previous_secret text,
    previous_until  timestamptz,
    state           text        NOT NULL CHECK (state IN ('active', 'disabled')),
    disabled_reason text,
    -- It gets what this snapshot does not see: what was recorded after it was created, or enabled again.
    since           pg_snapshot NOT NULL,
    -- The number of its deliveries that are not over.
    waiting         integer     NOT NULL DEFAULT 0,
    failing_since   timestamptz,
    succeeded_at    timestamptz,
    version         integer     NOT NULL DEFAULT 1,
    created_by      text        NOT NULL,
    created_at      timestamptz NOT NULL,
    updated_at      timestamptz NOT NULL,
    CONSTRAINT webhook_rotation_is_whole CHECK ((previous_secret IS NULL) = (previous_until IS NULL)),
    CONSTRAINT webhook_disabled_has_reason CHECK ((state = 'disabled') = (disabled_reason IS NOT NULL))
);

-- One event on its way to one webhook.
CREATE TABLE timeball.webhook_delivery (
    id          uuid        PRIMARY KEY,
    -- The order in which events are sent that have one subject.
    number      bigint      NOT NULL GENERATED ALWAYS AS IDENTITY,
    webhook_id  uuid        NOT NULL REFERENCES timeball.webhook ON DELETE CASCADE,
    event_id    uuid        NOT NULL,
    type        text        NOT NULL,
    subject     text        NOT NULL,
    occurred_at timestamptz NOT NULL,
    body        text        NOT NULL,
    state       text        NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'delivered', 'failed')),
    attempts    integer     NOT NULL DEFAULT 0,
    -- The time of the next attempt. NULL if it is over, if an earlier one of its subject is not, or if its webhook is disabled.
    next_at     timestamptz,
    -- The last attempts: [{"at": ..., "status": 503, "error": null, "duration_ms": 12}].
    tries       jsonb       NOT NULL DEFAULT '[]',
    created_at  timestamptz NOT NULL,
    finished_at timestamptz,
    CONSTRAINT webhook_delivery_is_over CHECK ((state = 'pending') = (finished_at IS NULL) AND (state = 'pending' OR next_at IS NULL))
);

-- webhook_deliveries: those of a webhook, the latest first. A webhook that is deleted takes them along by it.
CREATE INDEX webhook_delivery_by_webhook ON timeball.webhook_delivery (webhook_id, number);
-- webhook_deliveries_in_state: those that failed, among many.
CREATE INDEX webhook_delivery_by_state ON timeball.webhook_delivery (webhook_id, state, number);
-- claim_webhook_deliveries: what is due.
CREATE INDEX webhook_delivery_due ON timeball.webhook_delivery (webhook_id, next_at) WHERE next_at IS NOT NULL;
-- add_webhook_deliveries, release_webhook_deliveries: what waits of a subject, in order.
CREATE INDEX webhook_delivery_by_subject ON timeball.webhook_delivery (webhook_id, subject, number) WHERE state = 'pending';
-- trim_webhook_deliveries: the oldest.
CREATE INDEX webhook_delivery_by_age ON timeball.webhook_delivery (created_at);

-- Part 12: functions.

-- Why an execution that ended did not run; NULL if it ran. One that was cancelled before it was claimed did not run.
CREATE FUNCTION timeball.skip_reason(state text, reason text, attempts integer, lost integer)
RETURNS text
LANGUAGE sql
IMMUTABLE
PARALLEL SAFE
RETURN CASE WHEN state = 'skipped' THEN coalesce(reason, 'unknown') WHEN state = 'cancelled' AND attempts = 0 AND lost = 0 THEN 'cancelled' END;

-- Whether executions of a job with this overlap policy run one after the other.
CREATE FUNCTION timeball.is_serial(overlap text)
RETURNS boolean
LANGUAGE sql
IMMUTABLE
PARALLEL SAFE
RETURN overlap IN ('queue', 'cancel_running', 'latest');

-- When an execution that is to run at an instant expires: so many seconds later, or at a fixed instant if that is earlier. NULL if never.
-- In seconds, not in days: a day of the session's time zone may have 23 hours.
CREATE FUNCTION timeball.expiry(run_at timestamptz, start_within_seconds integer, expires_at timestamptz)
RETURNS timestamptz
LANGUAGE sql
STABLE
PARALLEL SAFE
RETURN least(run_at + start_within_seconds * interval '1 second', expires_at);

-- The bucket of a duration in seconds, as domain/rollup.py computes it.
CREATE FUNCTION timeball.bucket(seconds double precision)
RETURNS smallint
LANGUAGE sql
IMMUTABLE
STRICT
PARALLEL SAFE
RETURN CASE WHEN seconds <= 1e-4 THEN 0 ELSE least(ceil(ln(seconds / 1e-4) / ln(1.05::double precision)), 550) END::smallint;

-- The payload of one version of a job: the job's own, or that of an earlier version in job_version. NULL if neither has it.
CREATE FUNCTION timeball.payload_of(job_id uuid, version integer)
RETURNS jsonb
LANGUAGE plpgsql
STABLE
SET enable_seqscan = off
SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    RETURN coalesce(
        (SELECT job.payload FROM timeball.job WHERE job.id = payload_of.job_id AND job.version = payload_of.version),
        (SELECT job_version.definition -> 'payload' FROM timeball.job_version
         WHERE job_version.job_id = payload_of.job_id AND job_version.version = payload_of.version)
    );
END
$$;

-- The meta of one version of a job, found as its payload. NULL if it has none.
CREATE FUNCTION timeball.meta_of(job_id uuid, version integer)
RETURNS jsonb
LANGUAGE plpgsql
STABLE
SET enable_seqscan = off
SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    RETURN coalesce(
        (SELECT job.meta FROM timeball.job WHERE job.id = meta_of.job_id AND job.version = meta_of.version),
        (SELECT nullif(job_version.definition -> 'meta', 'null') FROM timeball.job_version
         WHERE job_version.job_id = meta_of.job_id AND job_version.version = meta_of.version)
    );
END
$$;

-- What follows the executions of one version of a job, found as its payload: the calls `on_success` and `on_failure`.
CREATE FUNCTION timeball.follow_ups_of(job_id uuid, version integer)
RETURNS jsonb
LANGUAGE plpgsql
STABLE
SET enable_seqscan = off
SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    RETURN coalesce(
        (SELECT jsonb_build_object('on_success', job.on_success, 'on_failure', job.on_failure)
         FROM timeball.job WHERE job.id = follow_ups_of.job_id AND job.version = follow_ups_of.version),
        (SELECT job_version.definition FROM timeball.job_version
         WHERE job_version.job_id = follow_ups_of.job_id AND job_version.version = follow_ups_of.version)
    );
END
$$;

-- The call that follows an execution which ended in a state; NULL if there is none. An execution that was given calls of its own has those alone.
CREATE FUNCTION timeball.call_after(execution_id uuid, job_id uuid, version integer, state text)
RETURNS jsonb
LANGUAGE plpgsql
STABLE
SET enable_seqscan = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    calls jsonb;
BEGIN
    SELECT jsonb_build_object('on_success', follow_up.on_success, 'on_failure', follow_up.on_failure)
    INTO calls
    FROM timeball.follow_up
    WHERE follow_up.execution_id = call_after.execution_id;
    IF NOT FOUND THEN
        calls := timeball.follow_ups_of(job_id, version);
    END IF;
    RETURN nullif(calls -> CASE WHEN state = 'succeeded' THEN 'on_success' ELSE 'on_failure' END, 'null');
END
$$;

-- The id of what follows an execution: the instant of its end, and a hash. So all nodes would write the same one.
CREATE FUNCTION timeball.follow_up_id(cause uuid, follows_as text, at timestamptz)
RETURNS uuid
LANGUAGE sql
IMMUTABLE
PARALLEL SAFE
RETURN (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0')
        || '7' || substr(md5(cause::text || follows_as), 1, 3)
        || 'b' || substr(md5(cause::text || follows_as), 4, 15))::uuid;

-- Write the one-off that a call asks for, with its execution: into `blocked` if it is limited, otherwise into `ready`. Nothing if it was written before.
-- Without a cause it is the beginning of something, under an id that the caller has chosen (`root`).
CREATE FUNCTION timeball.make_call(call jsonb, root uuid, cause uuid, follows_as text, at timestamptz, meta jsonb, created_by text, continuation jsonb,
                                   group_id uuid)
RETURNS void
LANGUAGE plpgsql
VOLATILE
SET enable_seqscan = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    job timeball.job := jsonb_populate_record(NULL::timeball.job, call);
    expires_at timestamptz := timeball.expiry(at, job.start_within_seconds, NULL);
BEGIN
    job.id := timeball.follow_up_id(root, follows_as, at);
    job.kind := 'once';
    job.payload := call -> 'payload';
    job.scheduled_at := at;
    job.tags := nullif(job.tags, '{}');
    job.backoff_ms := nullif(job.backoff_ms, '{}');
    job.meta := nullif(coalesce(meta, '{}') || coalesce(job.meta, '{}'), '{}');
    job.at_most_once := call ->> 'delivery' = 'at_most_once';
    -- The last bits of an id, as `shard_of` counts them.
    job.shard := ('x' || right(job.id::text, 8))::bit(32)::bigint % (SELECT count(*) FROM timeball.shard);
    job.version := 1;
    job.created_at := at;
    job.updated_at := at;
    job.created_by := created_by;
    job.bound_secrets_only := coalesce(job.bound_secrets_only, false);
    job.continuation := continuation;
    job.group_id := group_id;
    job.has_follow_ups := CASE WHEN num_nonnulls(job.on_success, job.on_failure, continuation) > 0 THEN true END;
    job.follows := cause;
    job.follows_as := CASE WHEN cause IS NOT NULL THEN follows_as END;
    INSERT INTO timeball.job
    SELECT job.*
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF job.limit_key IS NULL THEN
        INSERT INTO timeball.ready (id, job_id, origin, version, queue, priority, handler, scheduled_for, run_at, queued_at, expires_at, has_follow_ups)
        VALUES (job.id, job.id, 'enqueue', 1, job.queue, job.priority, job.handler, at, at, at, expires_at, job.has_follow_ups);
    ELSE
        -- The row is locked against its deletion alone: ON CONFLICT DO UPDATE would lock it against others that name it, although it changes nothing.
        PERFORM 1
        FROM timeball.running_limit
        WHERE running_limit.key = job.limit_key
          AND running_limit.max_running = job.max_running
        FOR KEY SHARE;
        IF NOT FOUND THEN
            INSERT INTO timeball.running_limit (key, max_running)
            VALUES (job.limit_key, job.max_running)
            ON CONFLICT (key) DO UPDATE SET max_running = excluded.max_running
            WHERE running_limit.max_running <> excluded.max_running;
        END IF;
        INSERT INTO timeball.blocked (id, job_id, origin, version, queue, priority, handler, scheduled_for, run_at, queued_at, limit_key, expires_at,
                                      has_follow_ups)
        VALUES (job.id, job.id, 'enqueue', 1, job.queue, job.priority, job.handler, at, at, at, job.limit_key, expires_at, job.has_follow_ups);
    END IF;
END
$$;

-- Begin a call, a chain or a group: the one-offs that can start now are written, and keep what goes on after them.
CREATE FUNCTION timeball.begin_work(work jsonb, root uuid, cause uuid, follows_as text, at timestamptz, meta jsonb, created_by text, continuation jsonb,
                                    group_id uuid)
RETURNS void
LANGUAGE plpgsql
VOLATILE
SET enable_seqscan = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    new_group uuid;
    part record;
BEGIN
    IF work ? 'chain' THEN
        PERFORM timeball.begin_work(
            work -> 'chain' -> 0, root, cause, follows_as, at, meta, created_by,
            jsonb_build_object('steps', (work -> 'chain') - 0, 'on_failure', work -> 'on_failure', 'outer', continuation), group_id
        );
    ELSIF work ? 'group' THEN
        new_group := timeball.follow_up_id(root, follows_as, at);
        INSERT INTO timeball.execution_group (id, state, total, next_step, on_failure, continuation, group_id, meta, created_by, created_at)
        VALUES (new_group, 'open', jsonb_array_length(work -> 'group'), nullif(work -> 'then', 'null'), nullif(work -> 'on_failure', 'null'),
                continuation, begin_work.group_id, begin_work.meta, begin_work.created_by, at)
        ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN
            RETURN;
        END IF;
        INSERT INTO timeball.group_part (group_id, number)
        SELECT new_group, number
        FROM generate_series(1, jsonb_array_length(work -> 'group')) AS number;
        FOR part IN SELECT * FROM jsonb_array_elements(work -> 'group') WITH ORDINALITY AS each (work, number) LOOP
            PERFORM timeball.begin_work(
                part.work, root, cause, follows_as || ' ' || part.number, at, meta, created_by,
                jsonb_build_object('group', new_group, 'number', part.number), new_group
            );
        END LOOP;
    ELSE
        PERFORM timeball.make_call(work, root, cause, follows_as, at, meta, created_by, continuation, group_id);
    END IF;
END
$$;

-- Close a group whose parts have all ended, and begin what follows it. Whichever transaction comes last closes it: each locks the group, and looks afresh.
CREATE FUNCTION timeball.close_group(group_id uuid, at timestamptz)
RETURNS boolean
LANGUAGE plpgsql
VOLATILE
SET enable_seqscan = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    closing timeball.execution_group;
    failures integer;
BEGIN
    SELECT *
    INTO closing
    FROM timeball.execution_group
    WHERE execution_group.id = close_group.group_id
      AND execution_group.state = 'open'
    FOR UPDATE;
    IF NOT FOUND
       OR EXISTS (SELECT 1 FROM timeball.group_part WHERE group_part.group_id = close_group.group_id AND group_part.state IS NULL) THEN
        RETURN false;
    END IF;
    SELECT count(*)
    INTO failures
    FROM timeball.group_part
    WHERE group_part.group_id = close_group.group_id
      AND group_part.state = 'failed';
    UPDATE timeball.execution_group
    SET state = CASE WHEN failures = 0 THEN 'succeeded' ELSE 'failed' END,
        failed = failures,
        closed_at = at
    WHERE execution_group.id = close_group.group_id;
    IF failures = 0 AND closing.next_step IS NOT NULL THEN
        PERFORM timeball.begin_work(closing.next_step, closing.id, closing.id, 'then', at, closing.meta, closing.created_by, closing.continuation,
                                    closing.group_id);
        RETURN true;
    END IF;
    IF failures > 0 AND closing.on_failure IS NOT NULL THEN
        PERFORM timeball.begin_work(closing.on_failure, closing.id, closing.id, 'on_failure', at, closing.meta, closing.created_by, NULL, NULL);
    END IF;
    IF closing.continuation IS NOT NULL THEN
        PERFORM timeball.go_on(closing.continuation, closing.id, failures = 0, at, closing.meta, closing.created_by, closing.group_id);
    END IF;
    RETURN true;
END
$$;

-- A part of a group has ended; the one after which none is left closes the group. Until then no lock is taken but that of the part: a batch of outcomes
-- ends parts of several groups in the order of its executions, and two batches that waited for each other's groups would meet a deadlock. So where two
-- transactions end the last parts at once, neither sees the end of the other: the one that announces its follow-ups, or the reaper, closes the group.
CREATE FUNCTION timeball.end_part(group_id uuid, number integer, ended_by uuid, has_succeeded boolean, at timestamptz)
RETURNS void
LANGUAGE plpgsql
VOLATILE
SET enable_seqscan = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    this text := group_id::text || ' ' || pg_current_xact_id()::text || ' ';
    -- How many open parts this transaction has seen, less those that it has ended since.
    seen text := current_setting('timeball.open_parts', true);
    left_over integer;
BEGIN
    UPDATE timeball.group_part
    SET ended_by = end_part.ended_by,
        state = CASE WHEN has_succeeded THEN 'succeeded' ELSE 'failed' END
    WHERE group_part.group_id = end_part.group_id
      AND group_part.number = end_part.number
      AND group_part.state IS NULL;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF starts_with(seen, this) THEN
        left_over := split_part(seen, ' ', 3)::integer - 1;
    END IF;
    IF left_over IS NULL OR left_over <= 500 THEN
        SELECT count(*)
        INTO left_over
        FROM (
            SELECT 1
            FROM timeball.group_part
            WHERE group_part.group_id = end_part.group_id
              AND group_part.state IS NULL
            LIMIT 1000
        ) AS open_part;
    END IF;
    IF left_over > 500 THEN
        PERFORM set_config('timeball.open_parts', this || left_over, true);
    ELSIF left_over = 0 THEN
        PERFORM timeball.close_group(group_id, at);
    END IF;
END
$$;

-- End the parts of groups that were single calls, of all that have succeeded in one statement: the trigger ends them one by one, at four times the cost.
-- Returns what else may be followed: the groups of these parts, and the executions that are no such parts, whose follow-ups the trigger writes.
-- A one-off without a call for its success is followed by nothing else, unless its version has changed since: calls are those of the version.
-- A part is looked up, and then addressed by its ctid, which no statistics can mislead. With `state IS NULL` in place of `num_nonnulls`, the planner could
-- read the index of open parts from one end to the other, if it believes that the table is empty.
-- Groups are closed in the order of their ids.
CREATE FUNCTION timeball.end_parts(succeeded uuid[], versions integer[], finished_at timestamptz[])
RETURNS uuid[]
LANGUAGE plpgsql
VOLATILE
SET enable_seqscan = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    causes uuid[] := '{}';
    ended record;
BEGIN
    FOR ended IN
        WITH own AS MATERIALIZED (
            SELECT execution.id, execution.finished_at, (job.continuation ->> 'group')::uuid AS group_id, (job.continuation ->> 'number')::integer AS number
            FROM unnest(end_parts.succeeded, end_parts.versions, end_parts.finished_at) AS execution (id, version, finished_at)
            LEFT JOIN LATERAL (
                SELECT continuation
                FROM timeball.job
                WHERE job.id = execution.id
                  AND job.version = execution.version
                  AND job.on_success IS NULL
                  AND job.continuation ? 'group'
                OFFSET 0
            ) AS job ON true
        ),
        looked_up AS MATERIALIZED (
            SELECT own.id, own.finished_at, part.tid
            FROM own
            CROSS JOIN LATERAL (
                SELECT group_part.ctid AS tid
                FROM timeball.group_part
                WHERE group_part.group_id = own.group_id
                  AND group_part.number = own.number
                  AND group_part.state IS NULL
                OFFSET 0
            ) AS part
        ),
        part AS (
            UPDATE timeball.group_part
            SET ended_by = looked_up.id,
                state = 'succeeded'
            FROM looked_up
            WHERE group_part.ctid = looked_up.tid
              AND num_nonnulls(group_part.state) = 0
            RETURNING group_part.group_id, looked_up.finished_at
        )
        SELECT part.group_id AS id, max(part.finished_at) AS group_ended_at
        FROM part
        GROUP BY part.group_id
        UNION ALL
        SELECT own.id, NULL
        FROM own
        WHERE own.group_id IS NULL
        ORDER BY id
    LOOP
        causes := causes || ended.id;
        IF ended.group_ended_at IS NOT NULL
           AND NOT EXISTS (SELECT 1 FROM timeball.group_part WHERE group_part.group_id = ended.id AND group_part.state IS NULL) THEN
            PERFORM timeball.close_group(ended.id, ended.group_ended_at);
        END IF;
    END LOOP;
    -- What end_part has counted before is no longer so.
    PERFORM set_config('timeball.open_parts', '', true);
    RETURN causes;
END
$$;

-- Go on after a step of a chain, or after a part of a group. A chain whose group was cancelled fails where a further step would begin.
CREATE FUNCTION timeball.go_on(continuation jsonb, cause uuid, has_succeeded boolean, at timestamptz, meta jsonb, created_by text, group_id uuid)
RETURNS void
LANGUAGE plpgsql
VOLATILE
SET enable_seqscan = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    rest jsonb := continuation;
    depth integer := 0;
    is_cancelled boolean;
BEGIN
    WHILE jsonb_typeof(rest) = 'object' LOOP
        IF rest ? 'group' THEN
            PERFORM timeball.end_part((rest ->> 'group')::uuid, (rest ->> 'number')::integer, cause, has_succeeded, at);
            RETURN;
        END IF;
        IF has_succeeded AND jsonb_array_length(rest -> 'steps') > 0 THEN
            -- FOR SHARE: a cancellation that is under way is awaited, and then seen; one that comes later waits, and finds the next step.
            SELECT execution_group.state = 'open' AND execution_group.cancelled_at IS NOT NULL
            INTO is_cancelled
            FROM timeball.execution_group
            WHERE execution_group.id = go_on.group_id
            FOR SHARE;
            has_succeeded := is_cancelled IS NOT TRUE;
        END IF;
        IF NOT has_succeeded AND jsonb_typeof(rest -> 'on_failure') = 'object' THEN
            PERFORM timeball.begin_work(rest -> 'on_failure', cause, cause, 'failure of chain ' || depth, at, meta, created_by, NULL, NULL);
        ELSIF has_succeeded AND jsonb_array_length(rest -> 'steps') > 0 THEN
            PERFORM timeball.begin_work(rest -> 'steps' -> 0, cause, cause, 'next', at, meta, created_by,
                                        rest || jsonb_build_object('steps', (rest -> 'steps') - 0), group_id);
            RETURN;
        END IF;
        rest := rest -> 'outer';
        depth := depth + 1;
    END LOOP;
END
$$;

-- The instant of the occurrence that an execution was for; NULL if it was for none. A retry is for the occurrence of the execution that it repeats.
CREATE FUNCTION timeball.occurrence_of(origin text, scheduled_for timestamptz, retry_of uuid)
RETURNS timestamptz
LANGUAGE plpgsql
STABLE
SET enable_seqscan = off
SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    WHILE origin = 'retry' LOOP
        SELECT repeated.origin, repeated.scheduled_for, repeated.retry_of
        INTO origin, scheduled_for, retry_of
        FROM timeball.finished AS repeated
        WHERE repeated.id = occurrence_of.retry_of
        LIMIT 1;
    END LOOP;
    RETURN CASE WHEN origin IN ('schedule', 'backfill', 'after') THEN scheduled_for END;
END
$$;

-- The id of an occurrence of a job of kind `after`: its instant, and a hash. So all nodes would write the same one.
CREATE FUNCTION timeball.id_after(job_id uuid, scheduled_for timestamptz)
RETURNS uuid
LANGUAGE sql
IMMUTABLE
PARALLEL SAFE
RETURN (lpad(to_hex(floor(extract(epoch FROM scheduled_for) * 1000)::bigint), 12, '0')
        || '8' || substr(md5(job_id::text || ' after ' || extract(epoch FROM scheduled_for)::text), 1, 3)
        || 'b' || substr(md5(job_id::text || ' after ' || extract(epoch FROM scheduled_for)::text), 4, 15))::uuid;

-- Write the occurrences of the jobs that come after one, of which an execution has succeeded. The first success of an occurrence counts: the key of
-- followed_success lets no second one be written, whatever succeeds at the same moment.
-- The lock on each job: a pause, an edit or a deletion that is under way is awaited, and then seen.
CREATE FUNCTION timeball.follow_success(cause_job_id uuid, cause uuid, occurrence timestamptz, at timestamptz)
RETURNS void
LANGUAGE plpgsql
VOLATILE
SET enable_seqscan = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    own timeball.job;
    new_id uuid;
    expires_at timestamptz;
BEGIN
    FOR own IN
        SELECT *
        FROM timeball.job
        WHERE job.after_id = cause_job_id
          AND job.deleted_at IS NULL
        ORDER BY job.id
        FOR KEY SHARE
    LOOP
        new_id := timeball.id_after(own.id, occurrence);
        INSERT INTO timeball.followed_success (job_id, scheduled_for, cause, execution_id, at)
        VALUES (own.id, occurrence, follow_success.cause, new_id, follow_success.at)
        ON CONFLICT DO NOTHING;
        CONTINUE WHEN NOT FOUND;
        expires_at := timeball.expiry(at, own.start_within_seconds, NULL);
        IF own.paused_at IS NOT NULL THEN
            INSERT INTO timeball.finished (id, job_id, state, origin, version, queue, priority, handler, scheduled_for, finished_at, attempts, lost, fence,
                                           reason, has_follow_ups)
            VALUES (new_id, own.id, 'skipped', 'after', own.version, own.queue, own.priority, own.handler, occurrence, at, 0, 0, 0,
                    'paused', own.has_follow_ups);
        ELSIF own.limit_key IS NULL THEN
            INSERT INTO timeball.ready (id, job_id, origin, version, queue, priority, handler, scheduled_for, run_at, queued_at, expires_at, has_follow_ups)
            VALUES (new_id, own.id, 'after', own.version, own.queue, own.priority, own.handler, occurrence, at, at, expires_at, own.has_follow_ups);
        ELSE
            INSERT INTO timeball.blocked (id, job_id, origin, version, queue, priority, handler, scheduled_for, run_at, queued_at, limit_key, expires_at,
                                          has_follow_ups)
            VALUES (new_id, own.id, 'after', own.version, own.queue, own.priority, own.handler, occurrence, at, at, own.limit_key, expires_at,
                    own.has_follow_ups);
        END IF;
    END LOOP;
END
$$;

-- Write what follows an execution that has ended, in the statement that ends it.
CREATE FUNCTION timeball.follow_up()
RETURNS trigger
LANGUAGE plpgsql
VOLATILE
SET enable_seqscan = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    call jsonb := timeball.call_after(NEW.id, NEW.job_id, NEW.version, NEW.state);
    has_succeeded boolean := NEW.state = 'succeeded';
    -- An enqueued execution has the id of its job, and is no occurrence.
    occurrence timestamptz := CASE WHEN has_succeeded AND NEW.job_id <> NEW.id
                                   THEN timeball.occurrence_of(NEW.origin, NEW.scheduled_for, NEW.retry_of) END;
    own record;
BEGIN
    IF occurrence IS NOT NULL THEN
        PERFORM timeball.follow_success(NEW.job_id, NEW.id, occurrence, NEW.finished_at);
    END IF;
    SELECT job.created_by, job.continuation, job.group_id, coalesce(NEW.meta, timeball.meta_of(NEW.job_id, NEW.version)) AS meta
    INTO own
    FROM timeball.job
    WHERE job.id = NEW.job_id;
    IF call IS NOT NULL THEN
        PERFORM timeball.begin_work(call, NEW.id, NEW.id, CASE WHEN has_succeeded THEN 'on_success' ELSE 'on_failure' END, NEW.finished_at, own.meta,
                                    coalesce(NEW.created_by, own.created_by), NULL, NULL);
    END IF;
    IF own.continuation IS NOT NULL THEN
        PERFORM timeball.go_on(own.continuation, NEW.id, has_succeeded, NEW.finished_at, own.meta, coalesce(NEW.created_by, own.created_by), own.group_id);
    END IF;
    RETURN NULL;
END
$$;

-- Claims read and lock lanes by the three functions below. They leave the planner no choice, whatever the settings of the session are: a planner that
-- takes `ready` for empty, as vacuum last saw it, would fetch and sort a whole lane for each claim. Their plans never change, so each is made once.

-- The heads of some lanes: the first rows of each, from its position on, that these handlers can run.
-- A position is an instant and an id. Where a crowd is due at one instant, each claim so starts where the last one ended, and not among the dead rows of
-- all claims before it.
CREATE FUNCTION timeball.lane_heads(queues text[], priorities smallint[], bounds timestamptz[], first_ids uuid[], until timestamptz, handlers text[],
                                    lane_limit integer)
RETURNS TABLE (tid tid, run_at timestamptz, rank timestamptz)
LANGUAGE plpgsql
STABLE
ROWS 1
SET enable_bitmapscan = off
SET enable_seqscan = off
SET enable_sort = off
SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    RETURN QUERY
    SELECT head.tid, head.run_at, head.run_at - lane.priority * interval '12 seconds'
    FROM unnest(queues, priorities, bounds, first_ids) AS lane (queue, priority, bound, first_id)
    CROSS JOIN LATERAL (
        SELECT ready.ctid AS tid, ready.run_at
        FROM timeball.ready
        WHERE ready.queue = lane.queue
          AND ready.priority = lane.priority
          AND (ready.run_at, uuid_send(ready.id)) >= (lane.bound, uuid_send(lane.first_id))
          AND ready.run_at <= until
          AND ready.handler = ANY (handlers)
        ORDER BY ready.run_at, uuid_send(ready.id)
        LIMIT lane_limit
    ) AS head;
END
$$;

-- Lock the heads of some lanes by rank: up to `row_limit` rows that these handlers can run and that no other claim has locked.
-- The rows of a single lane are locked as they are read, so that the claims of several workers do not read the same rows. Of several lanes, the first
-- `lane_limit` rows of each are ranked first. A NULL in the result means that other claims are taking more.
CREATE FUNCTION timeball.lock_lane_heads(queues text[], priorities smallint[], bounds timestamptz[], first_ids uuid[], until timestamptz, handlers text[],
                                         lane_limit integer, row_limit integer)
RETURNS SETOF tid
LANGUAGE plpgsql
VOLATILE
ROWS 1
SET enable_bitmapscan = off
SET enable_seqscan = off
SET enable_sort = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    locked integer;
BEGIN
    IF cardinality(queues) = 1 THEN
        RETURN QUERY
        SELECT ready.ctid
        FROM timeball.ready
        WHERE ready.queue = queues[1]
          AND ready.priority = priorities[1]
          AND (ready.run_at, uuid_send(ready.id)) >= (bounds[1], uuid_send(first_ids[1]))
          AND ready.run_at <= until
          AND ready.handler = ANY (handlers)
        ORDER BY ready.run_at, uuid_send(ready.id)
        LIMIT row_limit
        FOR UPDATE SKIP LOCKED;
    ELSE
        RETURN QUERY
        SELECT ready.ctid
        FROM timeball.lane_heads(queues, priorities, bounds, first_ids, until, handlers, lane_limit) AS head
        JOIN timeball.ready ON ready.ctid = head.tid
        ORDER BY head.rank
        LIMIT row_limit
        FOR UPDATE OF ready SKIP LOCKED;
    END IF;
    GET DIAGNOSTICS locked = ROW_COUNT;
    IF locked < row_limit
       AND (SELECT count(*) FROM timeball.lane_heads(queues, priorities, bounds, first_ids, until, handlers, locked + 1)) > locked THEN
        RETURN NEXT NULL;
    END IF;
END
$$;

-- Lock the rows of one claim: up to `slots` that were due at `due_until`, by rank; then up to `holds` that come after `instant`; never more than
-- `row_limit` together. Lanes of `closed_queues` give nothing. Otherwise as lock_lane_heads.
CREATE FUNCTION timeball.lock_ready(queues text[], priorities smallint[], bounds timestamptz[], first_ids uuid[], closed_queues text[], instant timestamptz,
                                    due_until timestamptz, handlers text[], lane_limit integer, slots integer, holds integer, row_limit integer)
RETURNS tid[]
LANGUAGE plpgsql
VOLATILE
SET enable_bitmapscan = off
SET enable_seqscan = off
SET enable_sort = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    tids tid[];
    locked integer;
BEGIN
    IF closed_queues <> '{}' THEN
        SELECT array_agg(lane.queue), array_agg(lane.priority), array_agg(lane.bound), array_agg(lane.first_id)
        INTO queues, priorities, bounds, first_ids
        FROM unnest(queues, priorities, bounds, first_ids) AS lane (queue, priority, bound, first_id)
        WHERE lane.queue <> ALL (closed_queues);
    END IF;
    IF queues IS NULL THEN
        RETURN '{}';
    END IF;
    IF cardinality(queues) = 1 THEN
        tids := ARRAY(
            SELECT ready.ctid
            FROM timeball.ready
            WHERE ready.queue = queues[1]
              AND ready.priority = priorities[1]
              AND (ready.run_at, uuid_send(ready.id)) >= (bounds[1], uuid_send(first_ids[1]))
              AND ready.run_at <= due_until
              AND ready.handler = ANY (handlers)
            ORDER BY ready.run_at, uuid_send(ready.id)
            LIMIT greatest(slots, 0)
            FOR UPDATE SKIP LOCKED
        );
        locked := cardinality(tids);
        -- The lane has no other row, due or coming. This is the usual case in an idle system, where latency counts.
        IF locked < slots
           AND due_until = instant
           AND NOT EXISTS (
               SELECT 1
               FROM timeball.ready
               WHERE ready.queue = queues[1]
                 AND ready.priority = priorities[1]
                 AND (ready.run_at, uuid_send(ready.id)) >= (least(bounds[1], instant), uuid_send(first_ids[1]))
                 AND ready.handler = ANY (handlers)
               ORDER BY ready.run_at, uuid_send(ready.id)
               OFFSET locked
           ) THEN
            RETURN tids;
        END IF;
        IF locked < slots
           AND (SELECT count(*) FROM timeball.lane_heads(queues, priorities, bounds, first_ids, due_until, handlers, locked + 1)) > locked THEN
            tids := tids || NULL::tid;
        END IF;
    ELSE
        tids := ARRAY(SELECT timeball.lock_lane_heads(queues, priorities, bounds, first_ids, due_until, handlers, lane_limit, greatest(slots, 0)));
        locked := cardinality(array_remove(tids, NULL));
    END IF;
    IF holds > 0 THEN
        tids := tids || ARRAY(
            SELECT timeball.lock_lane_heads(queues, priorities, array_fill(instant + interval '1 microsecond', ARRAY[cardinality(queues)]),
                                            array_fill('00000000-0000-0000-0000-000000000000'::uuid, ARRAY[cardinality(queues)]), 'infinity', handlers, holds,
                                            least(holds, row_limit - locked))
        );
    END IF;
    RETURN tids;
END
$$;

-- The end of the freezes that hold executions of a queue and a job at an instant; NULL if none does.
CREATE FUNCTION timeball.frozen_until(queue text, job_id uuid, instant timestamptz)
RETURNS timestamptz
LANGUAGE plpgsql
STABLE
SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    RETURN (
        SELECT max(freeze_period.until_at)
        FROM timeball.freeze_period
        WHERE freeze_period.from_at <= instant
          AND freeze_period.until_at > instant
          AND (num_nonnulls(freeze_period.queue, freeze_period.tag, freeze_period.job_id) = 0
               OR freeze_period.queue = frozen_until.queue
               OR freeze_period.job_id = frozen_until.job_id
               OR EXISTS (SELECT 1 FROM timeball.job WHERE job.id = frozen_until.job_id AND freeze_period.tag = ANY (job.tags)))
    );
END
$$;

-- Those of some queues that a freeze holds as a whole at an instant.
CREATE FUNCTION timeball.frozen_queues(queues text[], instant timestamptz)
RETURNS text[]
LANGUAGE plpgsql
STABLE
SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    RETURN ARRAY(
        SELECT asked.queue
        FROM unnest(queues) AS asked (queue)
        WHERE EXISTS (
            SELECT 1
            FROM timeball.freeze_period
            WHERE freeze_period.from_at <= instant
              AND freeze_period.until_at > instant
              AND num_nonnulls(freeze_period.tag, freeze_period.job_id) = 0
              AND (freeze_period.queue IS NULL OR freeze_period.queue = asked.queue)
        )
    );
END
$$;

-- Of some rows of `ready` that a claim has locked, move those back to `due` that a freeze holds, until it is over; returns the others.
-- An execution that is held until its instant starts then: a freeze that begins before that instant holds it, too.
CREATE FUNCTION timeball.put_back_frozen(tids tid[], instant timestamptz)
RETURNS tid[]
LANGUAGE plpgsql
VOLATILE
SET enable_seqscan = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    moved tid[];
BEGIN
    WITH frozen AS MATERIALIZED (
        SELECT ready.ctid AS tid, timeball.frozen_until(ready.queue, ready.job_id, greatest(instant, ready.run_at)) AS until_at
        FROM timeball.ready
        WHERE ready.ctid = ANY (tids)
    ),
    gone AS (
        DELETE FROM timeball.ready
        WHERE ready.ctid = ANY (ARRAY(SELECT frozen.tid FROM frozen WHERE frozen.until_at IS NOT NULL))
        RETURNING ready.*, ready.ctid AS tid
    ),
    waiting AS (
        INSERT INTO timeball.due (id, job_id, kind, origin, shard, run_at, scheduled_for, tzdata, version, queue, priority, handler, queued_at,
                                  attempts, lost, fence, limit_key, unique_key, payload, retry_of, created_by, bound_secrets_only, meta, has_follow_ups, expires_at,
                                  frozen_run_at)
        SELECT gone.id, gone.job_id, CASE WHEN gone.attempts > 0 THEN 'retry' ELSE 'put_back' END, gone.origin,
               coalesce((SELECT job.shard FROM timeball.job WHERE job.id = gone.job_id), 0), frozen.until_at, gone.scheduled_for, gone.tzdata, gone.version,
               gone.queue, gone.priority, gone.handler, gone.queued_at, gone.attempts, gone.lost, gone.fence, gone.limit_key, gone.unique_key, gone.payload,
               gone.retry_of, gone.created_by, gone.bound_secrets_only, gone.meta, gone.has_follow_ups, gone.expires_at, gone.run_at
        FROM gone
        JOIN frozen ON frozen.tid = gone.tid
    )
    SELECT array_agg(gone.tid)
    INTO moved
    FROM gone;
    RETURN ARRAY(SELECT kept.tid FROM unnest(tids) AS kept (tid) WHERE kept.tid IS NULL OR kept.tid <> ALL (coalesce(moved, '{}')));
END
$$;

-- Move ready executions beyond a lowered limit back to `blocked`, the least urgent first; running ones go on.
-- The update that lowers the limit has locked it, so no other transaction unblocks executions; this reads afresh after that, and sees all that were
-- unblocked before. Claims lock no limit. This waits for a claim under way: an execution that it takes counts as running, and another one is blocked.
CREATE FUNCTION timeball.block_excess()
RETURNS trigger
LANGUAGE plpgsql
VOLATILE
SET enable_seqscan = off
SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    WITH chosen AS MATERIALIZED (
        SELECT ready.ctid AS tid
        FROM timeball.ready
        WHERE ready.limit_key = NEW.key
        ORDER BY (ready.run_at AT TIME ZONE 'UTC') - ready.priority * interval '12 seconds' DESC
        LIMIT greatest((SELECT count(*) FROM timeball.ready AS unblocked WHERE unblocked.limit_key = NEW.key)
                         + (SELECT count(*) FROM timeball.running WHERE running.limit_key = NEW.key)
                         - NEW.max_running, 0)
        FOR UPDATE
    ),
    taken AS (
        DELETE FROM timeball.ready
        WHERE ready.ctid = ANY (ARRAY(SELECT chosen.tid FROM chosen))
        RETURNING ready.*
    )
    INSERT INTO timeball.blocked (id, job_id, origin, version, queue, priority, handler, scheduled_for, run_at, queued_at,
                                  attempts, lost, fence, tzdata, limit_key, unique_key, payload, retry_of, created_by, bound_secrets_only, meta, has_follow_ups,
                                  expires_at)
    SELECT id, job_id, origin, version, queue, priority, handler, scheduled_for, run_at, queued_at,
           attempts, lost, fence, tzdata, limit_key, unique_key, payload, retry_of, created_by, bound_secrets_only, meta, has_follow_ups, expires_at
    FROM taken;
    RETURN NULL;
END
$$;

-- `check --against` reads pages of jobs and executions by the two functions below. Each reads by one index, whatever the planner believes about the tables.

-- Jobs with a name after an id, in the order of their ids.
CREATE FUNCTION timeball.named_jobs(after uuid, row_limit bigint)
RETURNS TABLE (id uuid, name text, handler text, payload jsonb)
LANGUAGE plpgsql
STABLE
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    RETURN QUERY
    SELECT job.id, job.name, job.handler, job.payload
    FROM timeball.job
    WHERE job.name IS NOT NULL
      AND job.deleted_at IS NULL
      AND job.id > named_jobs.after
    ORDER BY job.id
    LIMIT row_limit;
END
$$;

-- Unfinished executions after an id, in the order of their ids: the tables are read side by side, each by its primary key.
CREATE FUNCTION timeball.unfinished(after uuid, row_limit bigint)
RETURNS TABLE (id uuid, job_id uuid, version integer, handler text, payload jsonb)
LANGUAGE plpgsql
STABLE
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    RETURN QUERY
    SELECT waiting.id, waiting.job_id, waiting.version, waiting.handler, waiting.payload
    FROM (
        SELECT due.id, due.job_id, due.version, due.handler, due.payload FROM timeball.due
        UNION ALL
        SELECT ready.id, ready.job_id, ready.version, ready.handler, ready.payload FROM timeball.ready
        UNION ALL
        SELECT blocked.id, blocked.job_id, blocked.version, blocked.handler, blocked.payload FROM timeball.blocked
        UNION ALL
        SELECT running.id, running.job_id, running.version, running.handler, running.payload FROM timeball.running
    ) AS waiting
    WHERE waiting.id > after
    ORDER BY waiting.id
    LIMIT row_limit;
END
$$;

-- The ledger reads the history of a job by the four functions below. A year of it has 366 partitions: to plan them anew for each page takes ten times as
-- long as to read it. No record is written more than a day before its instant, so older days are left out.

-- What ended of a job between two ids, in the order of its ids.
CREATE FUNCTION timeball.ended_of_job(job_id uuid, low uuid, high uuid, since timestamptz, row_limit bigint)
RETURNS TABLE (id uuid, scheduled_for timestamptz, origin text, state text, reason text, attempts integer, lost integer, version integer, tzdata text)
LANGUAGE plpgsql
STABLE
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    RETURN QUERY
    SELECT finished.id, finished.scheduled_for, finished.origin, finished.state, finished.reason, finished.attempts, finished.lost, finished.version,
           finished.tzdata
    FROM timeball.finished
    WHERE (finished.job_id, finished.id) > (ended_of_job.job_id, low)
      AND (finished.job_id, finished.id) < (ended_of_job.job_id, high)
      AND finished.job_id <> finished.id
      AND finished.finished_at >= since - interval '1 day'
    ORDER BY finished.job_id, finished.id
    LIMIT row_limit;
END
$$;

-- The same, the latest first.
CREATE FUNCTION timeball.ended_of_job_back(job_id uuid, low uuid, high uuid, since timestamptz, row_limit bigint)
RETURNS TABLE (id uuid, scheduled_for timestamptz, origin text, state text, reason text, attempts integer, lost integer, version integer, tzdata text)
LANGUAGE plpgsql
STABLE
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    RETURN QUERY
    SELECT finished.id, finished.scheduled_for, finished.origin, finished.state, finished.reason, finished.attempts, finished.lost, finished.version,
           finished.tzdata
    FROM timeball.finished
    WHERE (finished.job_id, finished.id) > (ended_of_job_back.job_id, low)
      AND (finished.job_id, finished.id) < (ended_of_job_back.job_id, high)
      AND finished.job_id <> finished.id
      AND finished.finished_at >= since - interval '1 day'
    ORDER BY finished.job_id DESC, finished.id DESC
    LIMIT row_limit;
END
$$;

-- What was skipped or cancelled of a job between two ids, in the order of its ids.
CREATE FUNCTION timeball.skipped_of_job(job_id uuid, low uuid, high uuid, since timestamptz, row_limit bigint)
RETURNS TABLE (id uuid, scheduled_for timestamptz, origin text, state text, reason text, attempts integer, lost integer, version integer, tzdata text)
LANGUAGE plpgsql
STABLE
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    RETURN QUERY
    SELECT finished.id, finished.scheduled_for, finished.origin, finished.state, finished.reason, finished.attempts, finished.lost, finished.version,
           finished.tzdata
    FROM timeball.finished
    WHERE (finished.job_id, finished.id) > (skipped_of_job.job_id, low)
      AND (finished.job_id, finished.id) < (skipped_of_job.job_id, high)
      AND finished.job_id <> finished.id
      AND finished.finished_at >= since - interval '1 day'
      AND finished.state IN ('skipped', 'cancelled')
    ORDER BY finished.job_id, finished.id
    LIMIT row_limit;
END
$$;

-- The same, the latest first.
CREATE FUNCTION timeball.skipped_of_job_back(job_id uuid, low uuid, high uuid, since timestamptz, row_limit bigint)
RETURNS TABLE (id uuid, scheduled_for timestamptz, origin text, state text, reason text, attempts integer, lost integer, version integer, tzdata text)
LANGUAGE plpgsql
STABLE
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    RETURN QUERY
    SELECT finished.id, finished.scheduled_for, finished.origin, finished.state, finished.reason, finished.attempts, finished.lost, finished.version,
           finished.tzdata
    FROM timeball.finished
    WHERE (finished.job_id, finished.id) > (skipped_of_job_back.job_id, low)
      AND (finished.job_id, finished.id) < (skipped_of_job_back.job_id, high)
      AND finished.job_id <> finished.id
      AND finished.finished_at >= since - interval '1 day'
      AND finished.state IN ('skipped', 'cancelled')
    ORDER BY finished.job_id DESC, finished.id DESC
    LIMIT row_limit;
END
$$;

-- /metrics reads by the two functions below: each reads by one index, and no more than it returns.

-- The first recurring jobs with a name, in the order in which they were created.
CREATE FUNCTION timeball.observed_jobs(row_limit bigint)
RETURNS TABLE (id uuid, name text)
LANGUAGE plpgsql
STABLE
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    RETURN QUERY
    SELECT job.id, job.name
    FROM timeball.job
    WHERE job.name IS NOT NULL
      AND job.kind <> 'once'
      AND job.deleted_at IS NULL
    ORDER BY job.id
    LIMIT row_limit;
END
$$;

-- Executions that ended since an instant, the latest ids first: of the ids that can have been made since then.
CREATE FUNCTION timeball.ended_since(first_id uuid, since timestamptz, row_limit bigint)
RETURNS SETOF timeball.finished
LANGUAGE plpgsql
STABLE
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    RETURN QUERY
    SELECT *
    FROM timeball.finished
    WHERE finished.id >= first_id
      AND finished.finished_at >= since
    ORDER BY finished.id DESC
    LIMIT row_limit;
END
$$;

-- An execution that ends gives its key back, whatever ends it; a key that is held until an instant stays.
-- The row is deleted and written again: an enqueue that meets it in between waits for the end of this transaction, and then finds it.
CREATE FUNCTION timeball.keep_key()
RETURNS trigger
LANGUAGE plpgsql
VOLATILE
AS $$
BEGIN
    INSERT INTO timeball.live_key (key, execution_id, held_until, has_ended)
    VALUES (OLD.key, OLD.execution_id, OLD.held_until, true);
    RETURN NULL;
END
$$;

-- Part 13: views.

-- Every execution, of all state tables. One that a worker holds until its instant is shown as queued.
CREATE VIEW timeball.execution AS
SELECT id, job_id, CASE WHEN kind = 'retry' THEN 'retrying' ELSE 'scheduled' END AS state, origin, version, queue, priority, handler,
       scheduled_for, run_at, queued_at, NULL::timestamptz AS started_at, NULL::timestamptz AS finished_at, attempts, lost, fence,
       NULL::uuid AS worker, NULL::uuid AS claim_id, tzdata, NULL::jsonb AS result, NULL::text AS error_type, NULL::text AS error,
       NULL::text AS reason, NULL::text AS fingerprint, payload, retry_of, limit_key, unique_key, NULL::text AS stop, created_by, bound_secrets_only, meta, has_follow_ups,
       expires_at, NULL::real AS progress, NULL::text AS progress_note
FROM timeball.due
WHERE kind <> 'resume'
UNION ALL
SELECT id, job_id, 'queued', origin, version, queue, priority, handler,
       scheduled_for, run_at, queued_at, NULL, NULL, attempts, lost, fence,
       NULL, NULL, tzdata, NULL, NULL, NULL, NULL, NULL, payload, retry_of, limit_key, unique_key, NULL, created_by, bound_secrets_only, meta, has_follow_ups,
       expires_at, NULL, NULL
FROM timeball.ready
UNION ALL
SELECT id, job_id, 'queued', origin, version, queue, priority, handler,
       scheduled_for, run_at, queued_at, NULL, NULL, attempts, lost, fence,
       NULL, NULL, tzdata, NULL, NULL, NULL, NULL, NULL, payload, retry_of, limit_key, unique_key, NULL, created_by, bound_secrets_only, meta, has_follow_ups,
       expires_at, NULL, NULL
FROM timeball.blocked
UNION ALL
SELECT id, job_id, CASE WHEN run_at > now() THEN 'queued' ELSE 'running' END, origin, version, queue, priority, handler,
       scheduled_for, run_at, queued_at, CASE WHEN run_at <= now() THEN greatest(claimed_at, run_at) END, NULL, attempts, lost, fence,
       holder, claim_id, tzdata, NULL, NULL, NULL, NULL, NULL, payload, retry_of, limit_key, unique_key, stop, created_by, bound_secrets_only, meta, has_follow_ups,
       CASE WHEN run_at > now() THEN expires_at END, progress, progress_note
FROM timeball.running
UNION ALL
SELECT id, job_id, state, origin, version, queue, priority, handler,
       scheduled_for, NULL, queued_at, started_at, finished_at, attempts, lost, fence,
       worker, claim_id, tzdata, result, error_type, error, reason, fingerprint, payload, retry_of, NULL, NULL, NULL, created_by, bound_secrets_only, meta, has_follow_ups,
       expires_at, NULL, NULL
FROM timeball.finished;

-- Part 14: triggers.

-- A lower limit also counts for executions that were unblocked before, whichever statement lowers it.
CREATE TRIGGER lower_limit_blocks_excess
AFTER UPDATE ON timeball.running_limit
FOR EACH ROW
WHEN (NEW.max_running < OLD.max_running)
EXECUTE FUNCTION timeball.block_excess();

-- Whichever statement ends an execution: what follows is written with it. Executions that nothing follows pay for the WHEN alone.
CREATE TRIGGER an_end_is_followed
AFTER INSERT ON timeball.finished
FOR EACH ROW
WHEN (NEW.has_follow_ups AND NEW.has_ended_part IS NOT TRUE)
EXECUTE FUNCTION timeball.follow_up();

-- Only of the few keys that are held until an instant.
CREATE TRIGGER held_key_outlives_its_execution
AFTER DELETE ON timeball.live_key
FOR EACH ROW
WHEN (OLD.held_until IS NOT NULL AND NOT OLD.has_ended)
EXECUTE FUNCTION timeball.keep_key();
