-- The schema after migration 0028, for reading. Made by `make schema` from the migrations, which are what is applied: edit those.

CREATE TABLE timeball.migration (
    number     integer NOT NULL,
    name       text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT migration_pkey PRIMARY KEY (number)
);

-- What to run and when. Finishing an execution never writes here.
-- The scheduling rules below `timezone` are NULL for jobs that do not recur.
CREATE TABLE timeball.job (
    id                      uuid NOT NULL,
    name                    text,
    description             text,
    handler                 text NOT NULL,
    payload                 jsonb NOT NULL,
    kind                    text NOT NULL,
    schedule                text,
    interval_seconds        bigint,
    scheduled_at            timestamptz,
    timezone                text,
    on_gap                  text,
    on_repeat               text,
    starts_at               timestamptz,
    ends_at                 timestamptz,
    max_executions          bigint,
    jitter_seconds          integer,
    misfire                 text,
    misfire_grace_seconds   integer,
    misfire_cap             integer,
    misfire_max_age_seconds bigint,
    overlap                 text,
    queue                   text NOT NULL,
    priority                smallint NOT NULL,
    max_retries             integer NOT NULL,
    max_lost                integer NOT NULL,
    initial_backoff_ms      bigint NOT NULL,
    max_backoff_ms          bigint NOT NULL,
    timeout_ms              bigint,
    at_most_once            boolean NOT NULL,
    max_running             integer,
    limit_key               text,
    unique_key              text,
    tags                    text[],
    shard                   smallint NOT NULL,
    version                 integer NOT NULL,
    declared_by             text,
    paused_at               timestamptz,
    paused_until            timestamptz,
    paused_from             timestamptz,
    paused_left             bigint,
    pause_reason            text,
    created_at              timestamptz NOT NULL,
    updated_at              timestamptz NOT NULL,
    deleted_at              timestamptz,
    created_by              text,
    bound_secrets_only      boolean NOT NULL DEFAULT false,
    CONSTRAINT job_pkey PRIMARY KEY (id)
);
-- find_job by name; and a name belongs to one job at a time.
CREATE UNIQUE INDEX job_name ON timeball.job (name) WHERE name IS NOT NULL AND deleted_at IS NULL;
-- undeclared_jobs: the few that were declared, among all jobs.
CREATE INDEX job_declared ON timeball.job (declared_by) WHERE declared_by IS NOT NULL;
-- Lists of jobs: the recurring and the manual ones.
CREATE INDEX job_recurring ON timeball.job (id) WHERE kind <> 'once';
-- Lists of jobs, and searches of executions by the name of their job: those that have a name.
CREATE INDEX job_named ON timeball.job (id) WHERE name IS NOT NULL;
-- Lists of jobs: the paused ones.
CREATE INDEX job_paused ON timeball.job (id) WHERE paused_at IS NOT NULL;
-- Lists of jobs: those that have a tag.
CREATE INDEX job_tagged ON timeball.job (id) WHERE tags IS NOT NULL;
-- unused_limits, trim_limits: which jobs share a limit, and what of them lies ahead.
CREATE INDEX job_by_limit ON timeball.job (limit_key) WHERE limit_key IS NOT NULL;
-- deleted_jobs: the few that were deleted, among all jobs. Every housekeeper asks for them when it begins, and read all jobs for that.
CREATE INDEX job_deleted ON timeball.job (id) WHERE deleted_at IS NOT NULL;

-- Every version of a recurring job, with the span of instants it answers for: (effective_from, effective_until].
-- `verify` computes from here which occurrences there should have been.
CREATE TABLE timeball.job_version (
    job_id          uuid NOT NULL,
    version         integer NOT NULL,
    definition      jsonb NOT NULL,
    effective_from  timestamptz NOT NULL,
    effective_until timestamptz,
    recorded_at     timestamptz NOT NULL,
    tzdata          text,
    CONSTRAINT job_version_pkey PRIMARY KEY (job_id, version)
);

-- What lies ahead: the next occurrence of every active job, delayed executions, waiting retries, resumptions.
CREATE TABLE timeball.due (
    id                 uuid NOT NULL,
    job_id             uuid NOT NULL,
    kind               text NOT NULL,
    origin             text NOT NULL,
    shard              smallint NOT NULL,
    run_at             timestamptz NOT NULL,
    scheduled_for      timestamptz NOT NULL,
    watermark          timestamptz,
    tzdata             text,
    version            integer NOT NULL,
    queue              text NOT NULL,
    priority           smallint NOT NULL,
    handler            text NOT NULL,
    executions_left    bigint,
    queued_at          timestamptz,
    attempts           integer NOT NULL DEFAULT 0,
    lost               integer NOT NULL DEFAULT 0,
    fence              bigint NOT NULL DEFAULT 0,
    limit_key          text,
    unique_key         text,
    payload            jsonb,
    retry_of           uuid,
    created_by         text,
    bound_secrets_only boolean,
    CONSTRAINT due_pkey PRIMARY KEY (id),
    CONSTRAINT due_kind_check CHECK (kind = ANY (ARRAY['occurrence', 'later', 'snooze', 'retry', 'resume']))
);
-- One next occurrence per job, whoever writes it.
CREATE UNIQUE INDEX due_occurrence ON timeball.due (job_id) WHERE kind = 'occurrence';
-- The rows of one job: cancel, delete, overlap. Enqueued executions bear their job's id and need no entry.
CREATE INDEX due_by_job ON timeball.due (job_id) WHERE job_id <> id;
-- refresh_zones: occurrences that were computed by other time-zone data.
CREATE INDEX due_by_tzdata ON timeball.due (tzdata, id) WHERE tzdata IS NOT NULL;
-- Lists of what waits for its next attempt: among a million rows that lie ahead, those are few.
CREATE INDEX due_retrying ON timeball.due (id) WHERE kind = 'retry';
CREATE INDEX due_by_limit ON timeball.due (limit_key) WHERE limit_key IS NOT NULL;
-- look_ahead: the next rows of a shard.
CREATE INDEX due_by_shard ON timeball.due (shard, run_at);
ALTER TABLE timeball.due SET (autovacuum_vacuum_scale_factor=0.01, autovacuum_vacuum_threshold=5000, autovacuum_vacuum_cost_delay=0, vacuum_truncate=off);

-- What is due now, or within the hoist window.
CREATE TABLE timeball.ready (
    id                 uuid NOT NULL,
    job_id             uuid NOT NULL,
    origin             text NOT NULL,
    version            integer NOT NULL,
    queue              text NOT NULL,
    priority           smallint NOT NULL,
    handler            text NOT NULL,
    scheduled_for      timestamptz NOT NULL,
    run_at             timestamptz NOT NULL,
    queued_at          timestamptz NOT NULL,
    attempts           integer NOT NULL DEFAULT 0,
    lost               integer NOT NULL DEFAULT 0,
    fence              bigint NOT NULL DEFAULT 0,
    tzdata             text,
    limit_key          text,
    unique_key         text,
    payload            jsonb,
    retry_of           uuid,
    created_by         text,
    bound_secrets_only boolean,
    CONSTRAINT ready_pkey PRIMARY KEY (id)
);
-- cancel, pause, delete, overlap: what of a job is ready.
CREATE INDEX ready_by_job ON timeball.ready (job_id) WHERE job_id <> id;
-- promote: how many places of a limit are taken.
CREATE INDEX ready_by_limit ON timeball.ready (limit_key) WHERE limit_key IS NOT NULL;
-- claim: a lane (queue, priority) in the order of time, and in that of ids. Never (queue, rank): see ARCHITECTURE.md, "Lanes".
-- The bytes of the id, in the same order, and not the id itself: that is to be looked up by the primary key and by nothing else.
CREATE INDEX ready_by_lane ON timeball.ready (queue, priority, run_at, uuid_send(id));
ALTER TABLE timeball.ready SET (autovacuum_vacuum_scale_factor=0.01, autovacuum_vacuum_threshold=5000, autovacuum_vacuum_cost_delay=0, vacuum_truncate=off);

-- What would be ready, but waits for a place of its limit.
CREATE TABLE timeball.blocked (
    id                 uuid NOT NULL,
    job_id             uuid NOT NULL,
    origin             text NOT NULL,
    version            integer NOT NULL,
    queue              text NOT NULL,
    priority           smallint NOT NULL,
    handler            text NOT NULL,
    scheduled_for      timestamptz NOT NULL,
    run_at             timestamptz NOT NULL,
    queued_at          timestamptz NOT NULL,
    attempts           integer NOT NULL DEFAULT 0,
    lost               integer NOT NULL DEFAULT 0,
    fence              bigint NOT NULL DEFAULT 0,
    tzdata             text,
    limit_key          text NOT NULL,
    unique_key         text,
    payload            jsonb,
    retry_of           uuid,
    created_by         text,
    bound_secrets_only boolean,
    CONSTRAINT blocked_pkey PRIMARY KEY (id)
);
-- cancel, pause, delete, overlap: what of a job is blocked.
CREATE INDEX blocked_by_job ON timeball.blocked (job_id);
-- promote: who waits for a limit, most urgent first. The rank as everywhere, but in UTC without a zone: only so can it be kept in an index.
CREATE INDEX blocked_by_limit ON timeball.blocked (limit_key, ((run_at AT TIME ZONE 'UTC') - priority::double precision * '00:00:12'::interval));
ALTER TABLE timeball.blocked SET (autovacuum_vacuum_scale_factor=0.01, autovacuum_vacuum_threshold=5000, autovacuum_vacuum_cost_delay=0, vacuum_truncate=off);

-- What a worker holds or runs. Its lease is its node's.
CREATE TABLE timeball.running (
    id                 uuid NOT NULL,
    job_id             uuid NOT NULL,
    origin             text NOT NULL,
    version            integer NOT NULL,
    queue              text NOT NULL,
    priority           smallint NOT NULL,
    handler            text NOT NULL,
    scheduled_for      timestamptz NOT NULL,
    run_at             timestamptz NOT NULL,
    queued_at          timestamptz NOT NULL,
    attempts           integer NOT NULL,
    lost               integer NOT NULL,
    fence              bigint NOT NULL,
    tzdata             text,
    limit_key          text,
    unique_key         text,
    payload            jsonb,
    retry_of           uuid,
    holder             uuid NOT NULL,
    claim_id           uuid NOT NULL,
    claimed_at         timestamptz NOT NULL,
    deadline           timestamptz,
    stop               text,
    queue_limited      boolean NOT NULL DEFAULT false,
    progress           real,
    progress_note      text,
    created_by         text,
    bound_secrets_only boolean,
    CONSTRAINT running_pkey PRIMARY KEY (id)
);
-- cancel, overlap: what of a job is running.
CREATE INDEX running_by_job ON timeball.running (job_id) WHERE job_id <> id;
-- claim of a limited queue: how many of it are running.
CREATE INDEX running_by_queue ON timeball.running (queue) WHERE queue_limited;
-- promote: how many places of a limit are taken.
CREATE INDEX running_by_limit ON timeball.running (limit_key) WHERE limit_key IS NOT NULL;
-- heed_stops: what a holder has been asked to stop.
CREATE INDEX running_stopped ON timeball.running (holder) WHERE stop IS NOT NULL;
ALTER TABLE timeball.running SET (autovacuum_vacuum_scale_factor=0.01, autovacuum_vacuum_threshold=5000, autovacuum_vacuum_cost_delay=0, vacuum_truncate=off);

-- How every execution ended. Append-only; a partition a day; old days are dropped whole.
CREATE TABLE timeball.finished (
    id                 uuid NOT NULL,
    job_id             uuid NOT NULL,
    state              text NOT NULL,
    origin             text NOT NULL,
    version            integer NOT NULL,
    queue              text NOT NULL,
    priority           smallint NOT NULL,
    handler            text NOT NULL,
    scheduled_for      timestamptz NOT NULL,
    queued_at          timestamptz,
    started_at         timestamptz,
    finished_at        timestamptz NOT NULL,
    attempts           integer NOT NULL,
    lost               integer NOT NULL,
    fence              bigint NOT NULL,
    worker             uuid,
    claim_id           uuid,
    tzdata             text,
    result             jsonb,
    error_type         text,
    error              text,
    reason             text,
    fingerprint        text,
    payload            jsonb,
    retry_of           uuid,
    recorded           bigint NOT NULL DEFAULT ((pg_current_xact_id())::text)::bigint,
    created_by         text,
    bound_secrets_only boolean,
    CONSTRAINT finished_pkey PRIMARY KEY (id, finished_at),
    CONSTRAINT finished_state_check CHECK (state = ANY (ARRAY['succeeded', 'cancelled', 'dead', 'skipped']))
) PARTITION BY RANGE (finished_at);
-- The history of one job. An enqueued execution bears its job's id and is found by that.
CREATE INDEX finished_by_job ON timeball.finished (job_id, id) WHERE job_id <> id;
-- Lists by state; the many that succeeded are read in the order of their ids.
CREATE INDEX finished_by_state ON timeball.finished (state, id) WHERE state <> 'succeeded';
-- The dead, by what killed them.
CREATE INDEX finished_by_fingerprint ON timeball.finished (fingerprint, id) WHERE state = 'dead';
-- fold, changes: what was recorded since a snapshot. BRIN: a row that is added costs it nothing.
CREATE INDEX finished_by_recorded ON timeball.finished USING brin (recorded) WITH (pages_per_range='16', autosummarize='on');
-- Dead letters are counted, grouped by what killed them, by handler or by queue, and led to their jobs without reading a row of the history.
-- Only what dies pays for it. The error itself may be long, and is read where it is shown.
CREATE INDEX finished_dead ON timeball.finished (id) INCLUDE (job_id, fingerprint, handler, queue, finished_at) WHERE state = 'dead';

CREATE TABLE timeball.finished_default PARTITION OF timeball.finished DEFAULT;

-- One row per unsuccessful try.
CREATE TABLE timeball.attempt (
    execution_id uuid NOT NULL,
    fence        bigint NOT NULL,
    number       integer NOT NULL,
    claim_id     uuid,
    worker       uuid,
    started_at   timestamptz,
    finished_at  timestamptz NOT NULL,
    outcome      text NOT NULL,
    error_type   text,
    error        text,
    traceback    text,
    top_frame    text,
    fingerprint  text,
    recorded     bigint NOT NULL DEFAULT ((pg_current_xact_id())::text)::bigint,
    CONSTRAINT attempt_pkey PRIMARY KEY (execution_id, fence, finished_at)
) PARTITION BY RANGE (finished_at);
CREATE INDEX attempt_by_recorded ON timeball.attempt USING brin (recorded) WITH (pages_per_range='16', autosummarize='on');
-- The tries of the last hour that did not succeed: a list for people, behind the number that counts them.
-- They are written in the order in which they end, so that a summary of each few pages is enough.
CREATE INDEX attempt_by_end ON timeball.attempt USING brin (finished_at) WITH (pages_per_range='16', autosummarize='on');

CREATE TABLE timeball.attempt_default PARTITION OF timeball.attempt DEFAULT;

-- What handlers said while they ran.
CREATE TABLE timeball.log_line (
    execution_id uuid NOT NULL,
    fence        bigint NOT NULL,
    number       integer NOT NULL,
    at           timestamptz NOT NULL,
    level        text NOT NULL,
    message      text NOT NULL,
    CONSTRAINT log_line_pkey PRIMARY KEY (execution_id, fence, number, at)
) PARTITION BY RANGE (at);

CREATE TABLE timeball.log_line_default PARTITION OF timeball.log_line DEFAULT;

-- Consecutive occurrences that were not run, and why: [first_at, last_at], both occurrences.
CREATE TABLE timeball.skip_range (
    id          uuid NOT NULL,
    job_id      uuid NOT NULL,
    version     integer NOT NULL,
    tzdata      text,
    first_at    timestamptz NOT NULL,
    last_at     timestamptz NOT NULL,
    occurrences bigint,
    reason      text NOT NULL,
    recorded_at timestamptz NOT NULL,
    CONSTRAINT skip_range_pkey PRIMARY KEY (id),
    CONSTRAINT in_order CHECK (first_at <= last_at)
);
-- verify, and a job's history: what was skipped of it.
CREATE INDEX skip_range_by_job ON timeball.skip_range (job_id, first_at);

-- One life of one process. A missing row means dead.
CREATE TABLE timeball.node (
    incarnation   uuid NOT NULL,
    kind          text NOT NULL,
    name          text NOT NULL,
    started_at    timestamptz NOT NULL,
    renewed_at    timestamptz NOT NULL,
    lease_until   timestamptz NOT NULL,
    lease_seconds real NOT NULL,
    slots         integer NOT NULL DEFAULT 0,
    busy          integer NOT NULL DEFAULT 0,
    queues        text[],
    handlers      text[] NOT NULL DEFAULT '{}'::text[],
    version       text NOT NULL DEFAULT '',
    draining      boolean NOT NULL DEFAULT false,
    broker        text NOT NULL DEFAULT 'postgresql',
    broker_state  text NOT NULL DEFAULT 'works',
    broker_error  text,
    trouble       text,
    trouble_at    timestamptz,
    fingerprints  text[] NOT NULL DEFAULT '{}'::text[],
    CONSTRAINT node_pkey PRIMARY KEY (incarnation),
    CONSTRAINT node_kind_check CHECK (kind = ANY (ARRAY['scheduler', 'worker']))
);

-- A slice of the schedule, owned by one scheduler at a time.
CREATE TABLE timeball.shard (
    id    smallint NOT NULL,
    owner uuid,
    epoch bigint NOT NULL DEFAULT 0,
    CONSTRAINT shard_pkey PRIMARY KEY (id)
);

-- A row exists only for queues that were paused or limited.
CREATE TABLE timeball.queue (
    name         text NOT NULL,
    paused_at    timestamptz,
    pause_reason text,
    max_running  integer,
    CONSTRAINT queue_pkey PRIMARY KEY (name),
    CONSTRAINT queue_max_running_check CHECK (max_running >= 1),
    CONSTRAINT queue_name_check CHECK (length(name) >= 1 AND length(name) <= 200)
);

-- How many executions that share a key may be ready or running together.
CREATE TABLE timeball.running_limit (
    key         text NOT NULL,
    max_running integer NOT NULL,
    CONSTRAINT running_limit_pkey PRIMARY KEY (key),
    CONSTRAINT running_limit_max_running_check CHECK (max_running >= 1)
);

-- One unfinished execution per key.
CREATE TABLE timeball.live_key (
    key          text NOT NULL,
    execution_id uuid NOT NULL,
    CONSTRAINT live_key_pkey PRIMARY KEY (key)
);

-- Who changed what: append-only, written in the transaction of the change.
CREATE TABLE timeball.audit (
    id       uuid NOT NULL,
    at       timestamptz NOT NULL,
    actor    text NOT NULL,
    action   text NOT NULL,
    subject  text NOT NULL,
    reason   text,
    before   jsonb,
    after    jsonb,
    recorded bigint NOT NULL DEFAULT ((pg_current_xact_id())::text)::bigint,
    place    text,
    CONSTRAINT audit_pkey PRIMARY KEY (id)
);
-- The history of one thing: who changed it.
CREATE INDEX audit_by_subject ON timeball.audit (subject, id);
-- changes: few rows, and scattered by their primary key.
CREATE INDEX audit_by_recorded ON timeball.audit (recorded);
-- The audit of one actor.
CREATE INDEX audit_by_actor ON timeball.audit (actor, id);

-- Facts about this database itself.
CREATE TABLE timeball.fact (
    key   text NOT NULL,
    value text NOT NULL,
    CONSTRAINT fact_pkey PRIMARY KEY (key)
);

-- Every execution, whatever its room. What is held until its instant still shows as queued.
CREATE VIEW timeball.execution AS
SELECT due.id,
    due.job_id,
        CASE
            WHEN due.kind = 'retry' THEN 'retrying'
            ELSE 'scheduled'
        END AS state,
    due.origin,
    due.version,
    due.queue,
    due.priority,
    due.handler,
    due.scheduled_for,
    due.run_at,
    due.queued_at,
    NULL::timestamptz AS started_at,
    NULL::timestamptz AS finished_at,
    due.attempts,
    due.lost,
    due.fence,
    NULL::uuid AS worker,
    NULL::uuid AS claim_id,
    due.tzdata,
    NULL::jsonb AS result,
    NULL::text AS error_type,
    NULL::text AS error,
    NULL::text AS reason,
    NULL::text AS fingerprint,
    due.payload,
    due.retry_of,
    due.limit_key,
    due.unique_key,
    NULL::text AS stop,
    due.created_by,
    due.bound_secrets_only
   FROM timeball.due
  WHERE due.kind <> 'resume'
UNION ALL
 SELECT ready.id,
    ready.job_id,
    'queued' AS state,
    ready.origin,
    ready.version,
    ready.queue,
    ready.priority,
    ready.handler,
    ready.scheduled_for,
    ready.run_at,
    ready.queued_at,
    NULL::timestamptz AS started_at,
    NULL::timestamptz AS finished_at,
    ready.attempts,
    ready.lost,
    ready.fence,
    NULL::uuid AS worker,
    NULL::uuid AS claim_id,
    ready.tzdata,
    NULL::jsonb AS result,
    NULL::text AS error_type,
    NULL::text AS error,
    NULL::text AS reason,
    NULL::text AS fingerprint,
    ready.payload,
    ready.retry_of,
    ready.limit_key,
    ready.unique_key,
    NULL::text AS stop,
    ready.created_by,
    ready.bound_secrets_only
   FROM timeball.ready
UNION ALL
 SELECT blocked.id,
    blocked.job_id,
    'queued' AS state,
    blocked.origin,
    blocked.version,
    blocked.queue,
    blocked.priority,
    blocked.handler,
    blocked.scheduled_for,
    blocked.run_at,
    blocked.queued_at,
    NULL::timestamptz AS started_at,
    NULL::timestamptz AS finished_at,
    blocked.attempts,
    blocked.lost,
    blocked.fence,
    NULL::uuid AS worker,
    NULL::uuid AS claim_id,
    blocked.tzdata,
    NULL::jsonb AS result,
    NULL::text AS error_type,
    NULL::text AS error,
    NULL::text AS reason,
    NULL::text AS fingerprint,
    blocked.payload,
    blocked.retry_of,
    blocked.limit_key,
    blocked.unique_key,
    NULL::text AS stop,
    blocked.created_by,
    blocked.bound_secrets_only
   FROM timeball.blocked
UNION ALL
 SELECT running.id,
    running.job_id,
        CASE
            WHEN running.run_at > now() THEN 'queued'
            ELSE 'running'
        END AS state,
    running.origin,
    running.version,
    running.queue,
    running.priority,
    running.handler,
    running.scheduled_for,
    running.run_at,
    running.queued_at,
        CASE
            WHEN running.run_at <= now() THEN GREATEST(running.claimed_at, running.run_at)
            ELSE NULL::timestamptz
        END AS started_at,
    NULL::timestamptz AS finished_at,
    running.attempts,
    running.lost,
    running.fence,
    running.holder AS worker,
    running.claim_id,
    running.tzdata,
    NULL::jsonb AS result,
    NULL::text AS error_type,
    NULL::text AS error,
    NULL::text AS reason,
    NULL::text AS fingerprint,
    running.payload,
    running.retry_of,
    running.limit_key,
    running.unique_key,
    running.stop,
    running.created_by,
    running.bound_secrets_only
   FROM timeball.running
UNION ALL
 SELECT finished.id,
    finished.job_id,
    finished.state,
    finished.origin,
    finished.version,
    finished.queue,
    finished.priority,
    finished.handler,
    finished.scheduled_for,
    NULL::timestamptz AS run_at,
    finished.queued_at,
    finished.started_at,
    finished.finished_at,
    finished.attempts,
    finished.lost,
    finished.fence,
    finished.worker,
    finished.claim_id,
    finished.tzdata,
    finished.result,
    finished.error_type,
    finished.error,
    finished.reason,
    finished.fingerprint,
    finished.payload,
    finished.retry_of,
    NULL::text AS limit_key,
    NULL::text AS unique_key,
    NULL::text AS stop,
    finished.created_by,
    finished.bound_secrets_only
   FROM timeball.finished;

-- Who may call. The token itself is shown once and never stored, only its hash.
CREATE TABLE timeball.api_key (
    id         text NOT NULL,
    name       text NOT NULL,
    role       text NOT NULL,
    token_hash bytea NOT NULL,
    created_at timestamptz NOT NULL,
    expires_at timestamptz,
    revoked_at timestamptz,
    used_at    timestamptz,
    CONSTRAINT api_key_pkey PRIMARY KEY (id),
    CONSTRAINT api_key_name_check CHECK (length(name) >= 1 AND length(name) <= 200),
    CONSTRAINT api_key_role_check CHECK (role = ANY (ARRAY['viewer', 'operator', 'editor', 'admin']))
);

-- A POST that was made under a key, and its answer; without a status it is still in flight.
CREATE TABLE timeball.idempotency_key (
    caller       text NOT NULL,
    key          text NOT NULL,
    request_hash bytea NOT NULL,
    created_at   timestamptz NOT NULL,
    status       integer,
    headers      jsonb,
    body         bytea,
    CONSTRAINT idempotency_key_pkey PRIMARY KEY (caller, key)
);
-- forget_old_requests: the oldest first.
CREATE INDEX idempotency_key_by_age ON timeball.idempotency_key (created_at);

-- Dead executions that somebody has dealt with: they leave the dead-letter list, their history stays as it is.
CREATE TABLE timeball.settled (
    execution_id uuid NOT NULL,
    how          text NOT NULL,
    settled_at   timestamptz NOT NULL,
    CONSTRAINT settled_pkey PRIMARY KEY (execution_id),
    CONSTRAINT settled_how_check CHECK (how = ANY (ARRAY['retried', 'discarded']))
);

-- A browser that showed a key. The cookie is shown once and never stored, only its hash; a revoked or expired key ends it.
CREATE TABLE timeball.dashboard_session (
    token_hash bytea NOT NULL,
    key_id     text NOT NULL,
    created_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    used_at    timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT dashboard_session_pkey PRIMARY KEY (token_hash),
    CONSTRAINT dashboard_session_key_id_fkey FOREIGN KEY (key_id) REFERENCES timeball.api_key(id) ON DELETE CASCADE
);
-- forget_old_sessions: the oldest first.
CREATE INDEX dashboard_session_by_end ON timeball.dashboard_session (expires_at);

-- What happened in a span of time to the executions of a (queue, handler), or of one recurring job: then job_id is not zero.
-- `ever` is all time: what counters for Prometheus are made of. A sketch is two arrays, its buckets in order and how many fell into each.
CREATE TABLE timeball.rollup (
    span             text NOT NULL,
    at               timestamptz NOT NULL,
    job_id           uuid NOT NULL,
    queue            text NOT NULL,
    handler          text NOT NULL,
    starts           bigint NOT NULL,
    succeeded        bigint NOT NULL,
    cancelled        bigint NOT NULL,
    dead             bigint NOT NULL,
    skipped          bigint NOT NULL,
    failed           bigint NOT NULL,
    timed_out        bigint NOT NULL,
    lost             bigint NOT NULL,
    lateness_seconds double precision NOT NULL,
    lateness_buckets smallint[] NOT NULL,
    lateness_counts  bigint[] NOT NULL,
    duration_seconds double precision NOT NULL,
    duration_buckets smallint[] NOT NULL,
    duration_counts  bigint[] NOT NULL,
    CONSTRAINT rollup_pkey PRIMARY KEY (span, job_id, at, queue, handler),
    CONSTRAINT rollup_span_check CHECK (span = ANY (ARRAY['minute', 'hour', 'ever']))
);
-- trim_rollups: the oldest of a span.
CREATE INDEX rollup_by_age ON timeball.rollup (span, at);
-- rollup_series: the chart of one handler.
CREATE INDEX rollup_by_handler ON timeball.rollup (span, handler, at) WHERE job_id = '00000000-0000-0000-0000-000000000000'::uuid;

-- Up to where the history has been folded: everything this snapshot sees, and nothing else. One row; who folds locks it.
CREATE TABLE timeball.fold (
    is_only boolean NOT NULL DEFAULT true,
    seen    pg_snapshot NOT NULL,
    CONSTRAINT fold_pkey PRIMARY KEY (is_only),
    CONSTRAINT fold_is_only_check CHECK (is_only)
);

-- What tells this system from others that share its Redis or RabbitMQ.
CREATE TABLE timeball.installation (
    id uuid NOT NULL,
    CONSTRAINT installation_pkey PRIMARY KEY (id)
);

-- Jobs that are not made yet: the fields of one, as they would be posted.
CREATE TABLE timeball.template (
    id          uuid NOT NULL,
    name        text NOT NULL,
    description text,
    job         jsonb NOT NULL,
    version     integer NOT NULL,
    created_at  timestamptz NOT NULL,
    updated_at  timestamptz NOT NULL,
    CONSTRAINT template_pkey PRIMARY KEY (id),
    CONSTRAINT template_name_check CHECK (length(name) >= 1 AND length(name) <= 200),
    CONSTRAINT template_name_key UNIQUE (name),
    CONSTRAINT template_version_check CHECK (version >= 1)
);

-- Something that is done to many executions, in the background. Whoever works it off holds it by lease.
CREATE TABLE timeball.operation (
    id               uuid NOT NULL,
    action           text NOT NULL,
    state            text NOT NULL,
    actor            text NOT NULL,
    place            text,
    reason           text,
    settles          boolean NOT NULL,
    total            integer NOT NULL,
    done             integer NOT NULL DEFAULT 0,
    failed           integer NOT NULL DEFAULT 0,
    cancel_requested boolean NOT NULL DEFAULT false,
    error            text,
    holder           uuid,
    lease_until      timestamptz,
    created_at       timestamptz NOT NULL,
    started_at       timestamptz,
    finished_at      timestamptz,
    subject          text NOT NULL DEFAULT 'execution',
    CONSTRAINT operation_pkey PRIMARY KEY (id),
    CONSTRAINT operation_action_check CHECK (action = ANY (ARRAY['cancel', 'retry', 'discard', 'pause', 'resume', 'trigger', 'delete'])),
    CONSTRAINT operation_state_check CHECK (state = ANY (ARRAY['pending', 'running', 'succeeded', 'cancelled', 'failed'])),
    CONSTRAINT operation_subject_check CHECK (subject = ANY (ARRAY['execution', 'job'])),
    CONSTRAINT operation_total_check CHECK (total >= 0)
);
-- take_operation: what is not finished, the oldest first.
CREATE INDEX operation_unfinished ON timeball.operation (id) WHERE finished_at IS NULL;

-- What an operation is to be done to, and what came of each.
CREATE TABLE timeball.operation_item (
    operation_id uuid NOT NULL,
    number       integer NOT NULL,
    execution_id uuid,
    status       text,
    made         uuid,
    error        text,
    job_id       uuid,
    CONSTRAINT operation_item_pkey PRIMARY KEY (operation_id, number),
    CONSTRAINT operation_item_is_one CHECK (num_nonnulls(execution_id, job_id) = 1),
    CONSTRAINT operation_item_operation_id_fkey FOREIGN KEY (operation_id) REFERENCES timeball.operation(id) ON DELETE CASCADE,
    CONSTRAINT operation_item_status_check CHECK (status = ANY (ARRAY['done', 'failed']))
);
-- next_items: what is left of an operation, in order.
CREATE INDEX operation_item_left ON timeball.operation_item (operation_id, number) WHERE status IS NULL;

-- Which job, or which author's one-offs, have used which secret of a worker: the first use is audited.
CREATE TABLE timeball.secret_use (
    used_by       text NOT NULL,
    secret        text NOT NULL,
    first_used_at timestamptz NOT NULL,
    CONSTRAINT secret_use_pkey PRIMARY KEY (used_by, secret)
);

-- One row. It signs short notes in cookies, so that every API process knows what another one has written.
CREATE TABLE timeball.dashboard_secret (
    is_only boolean NOT NULL DEFAULT true,
    secret  bytea NOT NULL,
    CONSTRAINT dashboard_secret_pkey PRIMARY KEY (is_only),
    CONSTRAINT dashboard_secret_is_only_check CHECK (is_only),
    CONSTRAINT dashboard_secret_secret_check CHECK (length(secret) = 32)
);

-- What workers publish of each handler: a row for each contract that a worker has started with. `started_at` is when a worker process last did so;
-- the latest of a name is the newest contract. Written when a worker starts with another contract than the newest, never by a heartbeat.
CREATE TABLE timeball.handler (
    name         text NOT NULL,
    fingerprint  text NOT NULL,
    schema       jsonb NOT NULL,
    options      jsonb NOT NULL,
    doc          text NOT NULL,
    run_style    text NOT NULL,
    published_at timestamptz NOT NULL,
    started_at   timestamptz NOT NULL,
    CONSTRAINT handler_pkey PRIMARY KEY (name, fingerprint),
    CONSTRAINT handler_name_check CHECK (length(name) >= 1 AND length(name) <= 200)
);

-- The bucket of a span in seconds: see domain/sketch.py, which may never differ.
CREATE OR REPLACE FUNCTION timeball.bucket(seconds double precision)
 RETURNS smallint
 LANGUAGE sql
 IMMUTABLE PARALLEL SAFE STRICT
RETURN (CASE WHEN (seconds <= (0.0001)::double precision) THEN (0)::double precision ELSE LEAST(ceil((ln((seconds / (0.0001)::double precision)) / ln((1.05)::double precision))), (550)::double precision) END)::smallint;

-- Whether a job is one that can be. It never says no: it refuses, with the name of the rule that is broken.
-- The constraint of `job` asks this; what stands before it there is only quicker, and must never let through what would be refused here.
CREATE OR REPLACE FUNCTION timeball.is_sound(one timeball.job)
 RETURNS boolean
 LANGUAGE plpgsql
 IMMUTABLE PARALLEL SAFE
AS $function$
DECLARE
    broken CONSTANT text := CASE
        WHEN one.kind NOT IN ('once', 'every', 'cron', 'manual') THEN 'job_kind_check'
        WHEN one.kind = 'once' AND one.scheduled_at IS NULL THEN 'once_has_instant'
        WHEN one.kind = 'every' AND (one.interval_seconds IS NULL OR one.scheduled_at IS NULL) THEN 'every_has_interval'
        WHEN one.kind = 'cron' AND (one.schedule IS NULL OR one.timezone IS NULL) THEN 'cron_has_schedule'
        WHEN length(one.name) NOT BETWEEN 1 AND 200 THEN 'job_name_check'
        WHEN length(one.handler) NOT BETWEEN 1 AND 200 THEN 'job_handler_check'
        WHEN one.interval_seconds < 1 THEN 'job_interval_seconds_check'
        WHEN one.scheduled_at < '1970-01-01Z'::timestamptz OR one.scheduled_at >= '2200-01-01Z'::timestamptz THEN 'job_scheduled_at_check'
        WHEN one.on_gap NOT IN ('next_valid', 'skip') THEN 'job_on_gap_check'
        WHEN one.on_repeat NOT IN ('first', 'second', 'both') THEN 'job_on_repeat_check'
        WHEN one.max_executions < 1 THEN 'job_max_executions_check'
        WHEN one.jitter_seconds < 0 THEN 'job_jitter_seconds_check'
        WHEN one.misfire NOT IN ('latest', 'skip', 'all') THEN 'job_misfire_check'
        WHEN one.misfire_grace_seconds < 0 THEN 'job_misfire_grace_seconds_check'
        WHEN one.misfire_cap < 1 THEN 'job_misfire_cap_check'
        WHEN one.misfire_max_age_seconds < 0 THEN 'job_misfire_max_age_seconds_check'
        WHEN one.overlap NOT IN ('allow', 'skip', 'queue', 'cancel_running') THEN 'job_overlap_check'
        WHEN length(one.queue) NOT BETWEEN 1 AND 200 THEN 'job_queue_check'
        WHEN one.priority NOT BETWEEN 0 AND 100 THEN 'job_priority_check'
        WHEN one.max_retries < 0 THEN 'job_max_retries_check'
        WHEN one.max_lost < 1 THEN 'job_max_lost_check'
        WHEN one.initial_backoff_ms < 0 THEN 'job_initial_backoff_ms_check'
        WHEN one.max_backoff_ms < 0 THEN 'job_max_backoff_ms_check'
        WHEN one.timeout_ms < 1 THEN 'job_timeout_ms_check'
        WHEN one.max_running < 1 THEN 'job_max_running_check'
    END;
BEGIN
    IF broken IS NULL THEN
        RETURN true;
    END IF;
    RAISE check_violation USING
        MESSAGE = format('job %s breaks the rule %I', one.id, broken),
        SCHEMA = 'timeball', TABLE = 'job', CONSTRAINT = broken;
END
$function$;

-- The heads of some lanes: of each, from its mark on, the first rows that these handlers can run.
-- A room that was empty when vacuum last looked is believed to be empty. For a planner with that belief it is all the same to read a lane by
-- its index or to fetch and sort all of it, which a claim from a long lane must never do; so here it has no choice, whatever the session says.
CREATE OR REPLACE FUNCTION timeball.lane_heads(queues text[], priorities smallint[], bounds timestamptz[], first_ids uuid[], until timestamptz, handlers text[], each integer)
 RETURNS TABLE(tid tid, run_at timestamptz, rank timestamptz)
 LANGUAGE plpgsql
 STABLE ROWS 1
 SET enable_bitmapscan TO 'off'
 SET enable_seqscan TO 'off'
 SET enable_sort TO 'off'
 SET plan_cache_mode TO 'force_generic_plan'
AS $function$
BEGIN
    RETURN QUERY
    SELECT found.tid, found.run_at, found.run_at - lane.priority * interval '12 seconds'
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
        LIMIT each
    ) AS found;
END
$function$;

-- The jobs with names behind an id, in the order of their ids. By the index on them, whatever the planner believes about the table.
CREATE OR REPLACE FUNCTION timeball.named_jobs(behind uuid, most bigint)
 RETURNS TABLE(id uuid, name text, handler text, payload jsonb)
 LANGUAGE plpgsql
 STABLE
 SET enable_seqscan TO 'off'
 SET enable_bitmapscan TO 'off'
 SET enable_sort TO 'off'
 SET plan_cache_mode TO 'force_generic_plan'
AS $function$
BEGIN
    RETURN QUERY
    SELECT job.id, job.name, job.handler, job.payload
    FROM timeball.job
    WHERE job.name IS NOT NULL
      AND job.deleted_at IS NULL
      AND job.id > behind
    ORDER BY job.id
    LIMIT most;
END
$function$;

-- The payload of one version of a job. An edited job keeps its earlier versions in job_version, an edited one-off as well; NULL if neither has it.
CREATE OR REPLACE FUNCTION timeball.payload_of(wanted_job uuid, wanted_version integer)
 RETURNS jsonb
 LANGUAGE plpgsql
 STABLE
 SET enable_seqscan TO 'off'
 SET plan_cache_mode TO 'force_generic_plan'
AS $function$
BEGIN
    RETURN coalesce(
        (SELECT job.payload FROM timeball.job WHERE job.id = wanted_job AND job.version = wanted_version),
        (SELECT job_version.definition -> 'payload' FROM timeball.job_version
         WHERE job_version.job_id = wanted_job AND job_version.version = wanted_version)
    );
END
$function$;

-- As before, with the new columns.
CREATE OR REPLACE FUNCTION timeball.take_back()
 RETURNS trigger
 LANGUAGE plpgsql
 SET enable_seqscan TO 'off'
 SET plan_cache_mode TO 'force_generic_plan'
AS $function$
BEGIN
    WITH chosen AS MATERIALIZED (
        SELECT ready.ctid AS tid
        FROM timeball.ready
        WHERE ready.limit_key = NEW.key
        ORDER BY (ready.run_at AT TIME ZONE 'UTC') - ready.priority * interval '12 seconds' DESC
        LIMIT greatest((SELECT count(*) FROM timeball.ready AS let_in WHERE let_in.limit_key = NEW.key)
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
                                  attempts, lost, fence, tzdata, limit_key, unique_key, payload, retry_of, created_by, bound_secrets_only)
    SELECT id, job_id, origin, version, queue, priority, handler, scheduled_for, run_at, queued_at,
           attempts, lost, fence, tzdata, limit_key, unique_key, payload, retry_of, created_by, bound_secrets_only
    FROM taken;
    RETURN NULL;
END
$function$;

-- Lock the heads of some lanes: up to :wanted rows that these handlers can run and that nobody else is taking, by rank.
-- Of one lane they are locked as they are seen; of several, `looks` rows of each are ranked first.
-- A NULL among them says that others are just taking more.
CREATE OR REPLACE FUNCTION timeball.take_heads(queues text[], priorities smallint[], bounds timestamptz[], first_ids uuid[], until timestamptz, handlers text[], looks integer, wanted integer)
 RETURNS SETOF tid
 LANGUAGE plpgsql
 ROWS 1
 SET enable_bitmapscan TO 'off'
 SET enable_seqscan TO 'off'
 SET enable_sort TO 'off'
 SET plan_cache_mode TO 'force_generic_plan'
AS $function$
DECLARE
    taken integer;
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
        LIMIT wanted
        FOR UPDATE SKIP LOCKED;
    ELSE
        RETURN QUERY
        SELECT ready.ctid
        FROM timeball.lane_heads(queues, priorities, bounds, first_ids, until, handlers, looks) AS head
        JOIN timeball.ready ON ready.ctid = head.tid
        ORDER BY head.rank
        LIMIT wanted
        FOR UPDATE OF ready SKIP LOCKED;
    END IF;
    GET DIAGNOSTICS taken = ROW_COUNT;
    IF taken < wanted
       AND (SELECT count(*) FROM timeball.lane_heads(queues, priorities, bounds, first_ids, until, handlers, taken + 1)) > taken THEN
        RETURN NEXT NULL;
    END IF;
END
$function$;

-- Lock what a claim is to take: up to :slots rows that were due at :until, by rank; then up to :holds that come after :instant; never more than :most.
-- Lanes of queues that are barred give nothing. Of one lane rows are locked as they are seen; of several, `looks` rows of each are ranked first.
-- A NULL among them says that others are just taking more.
CREATE OR REPLACE FUNCTION timeball.take_ready(queues text[], priorities smallint[], bounds timestamptz[], first_ids uuid[], barred text[], instant timestamptz, until timestamptz, handlers text[], looks integer, slots integer, holds integer, most integer)
 RETURNS tid[]
 LANGUAGE plpgsql
 SET enable_bitmapscan TO 'off'
 SET enable_seqscan TO 'off'
 SET enable_sort TO 'off'
 SET plan_cache_mode TO 'force_generic_plan'
AS $function$
DECLARE
    tids tid[];
    taken integer;
BEGIN
    IF barred <> '{}' THEN
        SELECT array_agg(lane.queue), array_agg(lane.priority), array_agg(lane.bound), array_agg(lane.first_id)
        INTO queues, priorities, bounds, first_ids
        FROM unnest(queues, priorities, bounds, first_ids) AS lane (queue, priority, bound, first_id)
        WHERE lane.queue <> ALL (barred);
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
              AND ready.run_at <= until
              AND ready.handler = ANY (handlers)
            ORDER BY ready.run_at, uuid_send(ready.id)
            LIMIT greatest(slots, 0)
            FOR UPDATE SKIP LOCKED
        );
        taken := cardinality(tids);
        -- Nothing else in the lane, due or coming: the usual case where little is to be done, and the one where every microsecond is waited for.
        IF taken < slots
           AND until = instant
           AND NOT EXISTS (
               SELECT 1
               FROM timeball.ready
               WHERE ready.queue = queues[1]
                 AND ready.priority = priorities[1]
                 AND (ready.run_at, uuid_send(ready.id)) >= (least(bounds[1], instant), uuid_send(first_ids[1]))
                 AND ready.handler = ANY (handlers)
               ORDER BY ready.run_at, uuid_send(ready.id)
               OFFSET taken
           ) THEN
            RETURN tids;
        END IF;
        IF taken < slots
           AND (SELECT count(*) FROM timeball.lane_heads(queues, priorities, bounds, first_ids, until, handlers, taken + 1)) > taken THEN
            tids := tids || NULL::tid;
        END IF;
    ELSE
        tids := ARRAY(SELECT timeball.take_heads(queues, priorities, bounds, first_ids, until, handlers, looks, greatest(slots, 0)));
        taken := cardinality(array_remove(tids, NULL));
    END IF;
    IF holds > 0 THEN
        tids := tids || ARRAY(
            SELECT timeball.take_heads(queues, priorities, array_fill(instant + interval '1 microsecond', ARRAY[cardinality(queues)]),
                                       array_fill('00000000-0000-0000-0000-000000000000'::uuid, ARRAY[cardinality(queues)]), 'infinity', handlers, holds,
                                       least(holds, most - taken))
        );
    END IF;
    RETURN tids;
END
$function$;

-- What waits or runs behind an id, in the order of ids: the rooms are read side by side, each by its primary key.
CREATE OR REPLACE FUNCTION timeball.unfinished(behind uuid, most bigint)
 RETURNS TABLE(id uuid, job_id uuid, version integer, handler text, payload jsonb)
 LANGUAGE plpgsql
 STABLE
 SET enable_seqscan TO 'off'
 SET enable_bitmapscan TO 'off'
 SET enable_sort TO 'off'
 SET plan_cache_mode TO 'force_generic_plan'
AS $function$
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
    WHERE waiting.id > behind
    ORDER BY waiting.id
    LIMIT most;
END
$function$;

-- A lower limit counts for what was let in before it, too.
CREATE TRIGGER lower_limit_takes_back AFTER UPDATE ON timeball.running_limit FOR EACH ROW WHEN (new.max_running < old.max_running) EXECUTE FUNCTION timeball.take_back();

ALTER TABLE timeball.job ADD CONSTRAINT job_is_sound EXCLUDE USING btree (id WITH =) WHERE ((kind = 'once' AND num_nonnulls(name, schedule, interval_seconds, on_gap, on_repeat, max_executions, jitter_seconds, misfire, misfire_grace_seconds, misfire_cap, misfire_max_age_seconds, overlap, max_running) = 0 AND LEAST(handler, queue) > '' AND length(handler || queue) <= 200 AND priority >= 0 AND priority <= 100 AND LEAST(max_retries, max_lost) >= 1 AND LEAST(initial_backoff_ms, max_backoff_ms, timeout_ms) >= 1 AND scheduled_at >= '1970-01-01 00:00:00+00'::timestamptz AND scheduled_at <= '2199-01-01 00:00:00+00'::timestamptz) IS NOT TRUE AND NOT timeball.is_sound(job.*));
