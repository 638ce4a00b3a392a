-- Timeball's tables. An execution walks through rooms: due, ready (or blocked), running, finished.
-- It is in exactly one of them at any time, and its room is its state. Each move is one statement.

-- What to run and when. Finishing an execution never writes here.
-- The scheduling rules below `timezone` are NULL for jobs that do not recur.
CREATE TABLE timeball.job (
    id                       uuid        PRIMARY KEY,
    name                     text        CHECK (length(name) BETWEEN 1 AND 200),
    description              text,
    handler                  text        NOT NULL CHECK (length(handler) BETWEEN 1 AND 200),
    payload                  jsonb       NOT NULL,
    kind                     text        NOT NULL CHECK (kind IN ('once', 'every', 'cron', 'manual')),
    schedule                 text,
    interval_seconds         bigint      CHECK (interval_seconds >= 1),
    scheduled_at             timestamptz CHECK (scheduled_at >= '1970-01-01Z' AND scheduled_at < '2200-01-01Z'),
    timezone                 text,
    on_gap                   text        CHECK (on_gap IN ('next_valid', 'skip')),
    on_repeat                text        CHECK (on_repeat IN ('first', 'second', 'both')),
    starts_at                timestamptz,
    ends_at                  timestamptz,
    max_executions           bigint      CHECK (max_executions >= 1),
    jitter_seconds           integer     CHECK (jitter_seconds >= 0),
    misfire                  text        CHECK (misfire IN ('latest', 'skip', 'all')),
    misfire_grace_seconds    integer     CHECK (misfire_grace_seconds >= 0),
    misfire_cap              integer     CHECK (misfire_cap >= 1),
    misfire_max_age_seconds  bigint      CHECK (misfire_max_age_seconds >= 0),
    overlap                  text        CHECK (overlap IN ('allow', 'skip', 'queue', 'cancel_running')),
    queue                    text        NOT NULL CHECK (length(queue) BETWEEN 1 AND 200),
    priority                 smallint    NOT NULL CHECK (priority BETWEEN 0 AND 100),
    max_retries              integer     NOT NULL CHECK (max_retries >= 0),
    max_lost                 integer     NOT NULL CHECK (max_lost >= 1),
    initial_backoff_ms       bigint      NOT NULL CHECK (initial_backoff_ms >= 0),
    max_backoff_ms           bigint      NOT NULL CHECK (max_backoff_ms >= 0),
    timeout_ms               bigint      CHECK (timeout_ms >= 1),
    at_most_once             boolean     NOT NULL,
    max_running              integer     CHECK (max_running >= 1),
    limit_key                text,
    unique_key               text,
    tags                     text[],
    shard                    smallint    NOT NULL,
    version                  integer     NOT NULL,
    declared_by              text,
    paused_at                timestamptz,
    paused_until             timestamptz,
    paused_from              timestamptz,
    paused_left              bigint,
    pause_reason             text,
    created_at               timestamptz NOT NULL,
    updated_at               timestamptz NOT NULL,
    deleted_at               timestamptz,
    CONSTRAINT cron_has_schedule  CHECK (kind <> 'cron' OR (schedule IS NOT NULL AND timezone IS NOT NULL)),
    CONSTRAINT every_has_interval CHECK (kind <> 'every' OR (interval_seconds IS NOT NULL AND scheduled_at IS NOT NULL)),
    CONSTRAINT once_has_instant   CHECK (kind <> 'once' OR scheduled_at IS NOT NULL)
);

-- find_job by name; and a name belongs to one job at a time.
CREATE UNIQUE INDEX job_name ON timeball.job (name) WHERE name IS NOT NULL AND deleted_at IS NULL;

-- Every version of a recurring job, with the span of instants it answers for: (effective_from, effective_until].
-- `verify` computes from here which occurrences there should have been.
CREATE TABLE timeball.job_version (
    job_id          uuid        NOT NULL,
    version         integer     NOT NULL,
    definition      jsonb       NOT NULL,
    effective_from  timestamptz NOT NULL,
    effective_until timestamptz,
    recorded_at     timestamptz NOT NULL,
    PRIMARY KEY (job_id, version)
);

-- What lies ahead: the next occurrence of every active job, delayed executions, waiting retries, resumptions.
CREATE TABLE timeball.due (
    id              uuid        PRIMARY KEY,
    job_id          uuid        NOT NULL,
    kind            text        NOT NULL CHECK (kind IN ('occurrence', 'later', 'snooze', 'retry', 'resume')),
    origin          text        NOT NULL,
    shard           smallint    NOT NULL,
    run_at          timestamptz NOT NULL,
    scheduled_for   timestamptz NOT NULL,
    -- All occurrences of the job up to here are recorded. Never moves back.
    watermark       timestamptz,
    tzdata          text,
    version         integer     NOT NULL,
    queue           text        NOT NULL,
    priority        smallint    NOT NULL,
    handler         text        NOT NULL,
    executions_left bigint,
    queued_at       timestamptz,
    attempts        integer     NOT NULL DEFAULT 0,
    lost            integer     NOT NULL DEFAULT 0,
    fence           bigint      NOT NULL DEFAULT 0,
    limit_key       text,
    unique_key      text,
    payload         jsonb,
    retry_of        uuid
);

-- look_ahead: the next rows of a shard.
CREATE INDEX due_by_shard ON timeball.due (shard, run_at, id);
-- One next occurrence per job, whoever writes it.
CREATE UNIQUE INDEX due_occurrence ON timeball.due (job_id) WHERE kind = 'occurrence';
-- The rows of one job: cancel, delete, overlap. Enqueued executions bear their job's id and need no entry.
CREATE INDEX due_by_job ON timeball.due (job_id) WHERE job_id <> id;
-- refresh_zones: occurrences that were computed by other time-zone data.
CREATE INDEX due_by_tzdata ON timeball.due (tzdata, id) WHERE tzdata IS NOT NULL;

-- What is due now, or within the hoist window.
CREATE TABLE timeball.ready (
    id            uuid        PRIMARY KEY,
    job_id        uuid        NOT NULL,
    origin        text        NOT NULL,
    version       integer     NOT NULL,
    queue         text        NOT NULL,
    priority      smallint    NOT NULL,
    handler       text        NOT NULL,
    scheduled_for timestamptz NOT NULL,
    run_at        timestamptz NOT NULL,
    queued_at     timestamptz NOT NULL,
    attempts      integer     NOT NULL DEFAULT 0,
    lost          integer     NOT NULL DEFAULT 0,
    fence         bigint      NOT NULL DEFAULT 0,
    tzdata        text,
    limit_key     text,
    unique_key    text,
    payload       jsonb,
    retry_of      uuid
);

-- claim: a lane (queue, priority) in the order of time. Never (queue, rank): see ARCHITECTURE.md, "Lanes".
CREATE INDEX ready_by_lane ON timeball.ready (queue, priority, run_at, id);
-- cancel, pause, delete, overlap: what of a job is ready.
CREATE INDEX ready_by_job ON timeball.ready (job_id) WHERE job_id <> id;
-- promote: how many places of a limit are taken.
CREATE INDEX ready_by_limit ON timeball.ready (limit_key) WHERE limit_key IS NOT NULL;

-- What would be ready, but waits for a place of its limit.
CREATE TABLE timeball.blocked (LIKE timeball.ready INCLUDING DEFAULTS, PRIMARY KEY (id));
ALTER TABLE timeball.blocked ALTER COLUMN limit_key SET NOT NULL;
-- promote: who waits for a limit.
CREATE INDEX blocked_by_limit ON timeball.blocked (limit_key, run_at, id);
-- cancel, pause, delete, overlap: what of a job is blocked.
CREATE INDEX blocked_by_job ON timeball.blocked (job_id);

-- What a worker holds or runs. Its lease is its node's.
CREATE TABLE timeball.running (
    id            uuid        PRIMARY KEY,
    job_id        uuid        NOT NULL,
    origin        text        NOT NULL,
    version       integer     NOT NULL,
    queue         text        NOT NULL,
    priority      smallint    NOT NULL,
    handler       text        NOT NULL,
    scheduled_for timestamptz NOT NULL,
    run_at        timestamptz NOT NULL,
    queued_at     timestamptz NOT NULL,
    attempts      integer     NOT NULL,
    lost          integer     NOT NULL,
    fence         bigint      NOT NULL,
    tzdata        text,
    limit_key     text,
    unique_key    text,
    payload       jsonb,
    retry_of      uuid,
    holder        uuid        NOT NULL,
    claim_id      uuid        NOT NULL,
    claimed_at    timestamptz NOT NULL,
    deadline      timestamptz,
    stop          text,
    queue_limited boolean     NOT NULL DEFAULT false,
    progress      real,
    progress_note text
);

-- cancel, overlap: what of a job is running.
CREATE INDEX running_by_job ON timeball.running (job_id) WHERE job_id <> id;
-- claim of a limited queue: how many of it are running.
CREATE INDEX running_by_queue ON timeball.running (queue) WHERE queue_limited;
-- promote: how many places of a limit are taken.
CREATE INDEX running_by_limit ON timeball.running (limit_key) WHERE limit_key IS NOT NULL;
-- heed_stops: what a holder has been asked to stop.
CREATE INDEX running_stopped ON timeball.running (holder) WHERE stop IS NOT NULL;

-- The rooms turn over many times a minute: vacuum them by count, not by share, and never wait for an exclusive lock.
ALTER TABLE timeball.due SET (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
ALTER TABLE timeball.ready SET (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
ALTER TABLE timeball.blocked SET (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
ALTER TABLE timeball.running SET (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);

-- How every execution ended. Append-only; a partition a day; old days are dropped whole.
CREATE TABLE timeball.finished (
    id            uuid        NOT NULL,
    job_id        uuid        NOT NULL,
    state         text        NOT NULL CHECK (state IN ('succeeded', 'cancelled', 'dead', 'skipped')),
    origin        text        NOT NULL,
    version       integer     NOT NULL,
    queue         text        NOT NULL,
    priority      smallint    NOT NULL,
    handler       text        NOT NULL,
    scheduled_for timestamptz NOT NULL,
    queued_at     timestamptz,
    started_at    timestamptz,
    finished_at   timestamptz NOT NULL,
    attempts      integer     NOT NULL,
    lost          integer     NOT NULL,
    fence         bigint      NOT NULL,
    worker        uuid,
    claim_id      uuid,
    tzdata        text,
    result        jsonb,
    error_type    text,
    error         text,
    reason        text,
    fingerprint   text,
    payload       jsonb,
    retry_of      uuid,
    PRIMARY KEY (id, finished_at)
) PARTITION BY RANGE (finished_at);

CREATE TABLE timeball.finished_default PARTITION OF timeball.finished DEFAULT;
-- The history of one job. An enqueued execution bears its job's id and is found by that.
CREATE INDEX finished_by_job ON timeball.finished (job_id, id) WHERE job_id <> id;
-- Lists by state; the many that succeeded are read in the order of their ids.
CREATE INDEX finished_by_state ON timeball.finished (state, id) WHERE state <> 'succeeded';
-- The dead, by what killed them.
CREATE INDEX finished_by_fingerprint ON timeball.finished (fingerprint, id) WHERE state = 'dead';

-- One row per unsuccessful try.
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
    PRIMARY KEY (execution_id, fence, finished_at)
) PARTITION BY RANGE (finished_at);

CREATE TABLE timeball.attempt_default PARTITION OF timeball.attempt DEFAULT;

-- What handlers said while they ran.
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

-- Consecutive occurrences that were not run, and why: [first_at, last_at], both occurrences.
CREATE TABLE timeball.skip_range (
    id          uuid        PRIMARY KEY,
    job_id      uuid        NOT NULL,
    version     integer     NOT NULL,
    tzdata      text,
    first_at    timestamptz NOT NULL,
    last_at     timestamptz NOT NULL,
    occurrences bigint,
    reason      text        NOT NULL,
    recorded_at timestamptz NOT NULL,
    CONSTRAINT in_order CHECK (first_at <= last_at)
);

-- verify, and a job's history: what was skipped of it.
CREATE INDEX skip_range_by_job ON timeball.skip_range (job_id, first_at);

-- One life of one process. A missing row means dead.
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
    queues        text[],
    handlers      text[]      NOT NULL DEFAULT '{}',
    version       text        NOT NULL DEFAULT '',
    draining      boolean     NOT NULL DEFAULT false
);

-- A slice of the schedule, owned by one scheduler at a time.
CREATE TABLE timeball.shard (
    id    smallint PRIMARY KEY,
    owner uuid,
    epoch bigint   NOT NULL DEFAULT 0
);

-- A row exists only for queues that were paused or limited.
CREATE TABLE timeball.queue (
    name         text        PRIMARY KEY CHECK (length(name) BETWEEN 1 AND 200),
    paused_at    timestamptz,
    pause_reason text,
    max_running  integer     CHECK (max_running >= 1)
);

-- How many executions that share a key may be ready or running together.
CREATE TABLE timeball.running_limit (
    key         text    PRIMARY KEY,
    max_running integer NOT NULL CHECK (max_running >= 1)
);

-- One unfinished execution per key.
CREATE TABLE timeball.live_key (
    key          text PRIMARY KEY,
    execution_id uuid NOT NULL
);

-- Who changed what: append-only, written in the transaction of the change.
CREATE TABLE timeball.audit (
    id       uuid        PRIMARY KEY,
    at       timestamptz NOT NULL,
    actor    text        NOT NULL,
    action   text        NOT NULL,
    subject  text        NOT NULL,
    reason   text,
    before   jsonb,
    after    jsonb
);

-- The history of one thing: who changed it.
CREATE INDEX audit_by_subject ON timeball.audit (subject, id);

-- Facts about this database itself.
CREATE TABLE timeball.fact (
    key   text PRIMARY KEY,
    value text NOT NULL
);

-- Every execution, whatever its room. What is held until its instant still shows as queued.
CREATE VIEW timeball.execution AS
SELECT id, job_id, CASE WHEN kind = 'retry' THEN 'retrying' ELSE 'scheduled' END AS state, origin, version, queue, priority, handler,
       scheduled_for, run_at, queued_at, NULL::timestamptz AS started_at, NULL::timestamptz AS finished_at, attempts, lost, fence,
       NULL::uuid AS worker, NULL::uuid AS claim_id, tzdata, NULL::jsonb AS result, NULL::text AS error_type, NULL::text AS error,
       NULL::text AS reason, NULL::text AS fingerprint, payload, retry_of, limit_key, unique_key, NULL::text AS stop
FROM timeball.due
WHERE kind <> 'resume'
UNION ALL
SELECT id, job_id, 'queued', origin, version, queue, priority, handler,
       scheduled_for, run_at, queued_at, NULL, NULL, attempts, lost, fence,
       NULL, NULL, tzdata, NULL, NULL, NULL, NULL, NULL, payload, retry_of, limit_key, unique_key, NULL
FROM timeball.ready
UNION ALL
SELECT id, job_id, 'queued', origin, version, queue, priority, handler,
       scheduled_for, run_at, queued_at, NULL, NULL, attempts, lost, fence,
       NULL, NULL, tzdata, NULL, NULL, NULL, NULL, NULL, payload, retry_of, limit_key, unique_key, NULL
FROM timeball.blocked
UNION ALL
SELECT id, job_id, CASE WHEN run_at > now() THEN 'queued' ELSE 'running' END, origin, version, queue, priority, handler,
       scheduled_for, run_at, queued_at, CASE WHEN run_at <= now() THEN greatest(claimed_at, run_at) END, NULL, attempts, lost, fence,
       holder, claim_id, tzdata, NULL, NULL, NULL, NULL, NULL, payload, retry_of, limit_key, unique_key, stop
FROM timeball.running
UNION ALL
SELECT id, job_id, state, origin, version, queue, priority, handler,
       scheduled_for, NULL, queued_at, started_at, finished_at, attempts, lost, fence,
       worker, claim_id, tzdata, result, error_type, error, reason, fingerprint, payload, retry_of, NULL, NULL, NULL
FROM timeball.finished;
