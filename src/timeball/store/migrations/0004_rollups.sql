-- Rollups: what happened in each minute and hour, folded from the history behind everybody's back; and what the change stream reads.

-- The transaction that recorded a row. Rows are found by it in the order of commits, whatever their instants say: a snapshot knows exactly
-- which transactions it has seen. Those recorded before this migration count as seen.
ALTER TABLE timeball.finished ADD COLUMN recorded bigint NOT NULL DEFAULT 0;
ALTER TABLE timeball.finished ALTER COLUMN recorded SET DEFAULT pg_current_xact_id()::text::bigint;
ALTER TABLE timeball.attempt ADD COLUMN recorded bigint NOT NULL DEFAULT 0;
ALTER TABLE timeball.attempt ALTER COLUMN recorded SET DEFAULT pg_current_xact_id()::text::bigint;
ALTER TABLE timeball.audit ADD COLUMN recorded bigint NOT NULL DEFAULT 0;
ALTER TABLE timeball.audit ALTER COLUMN recorded SET DEFAULT pg_current_xact_id()::text::bigint;

-- fold, changes: what was recorded since a snapshot. BRIN: a row that is added costs it nothing.
CREATE INDEX finished_by_recorded ON timeball.finished USING brin (recorded) WITH (pages_per_range = 16, autosummarize = on);
CREATE INDEX attempt_by_recorded ON timeball.attempt USING brin (recorded) WITH (pages_per_range = 16, autosummarize = on);
-- changes: few rows, and scattered by their primary key.
CREATE INDEX audit_by_recorded ON timeball.audit (recorded);

-- The bucket of a span in seconds: see domain/sketch.py, which may never differ.
CREATE FUNCTION timeball.bucket(seconds double precision) RETURNS smallint
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN CASE WHEN seconds <= 1e-4 THEN 0 ELSE least(ceil(ln(seconds / 1e-4) / ln(1.05::double precision)), 550) END::smallint;

-- What happened in a span of time to the executions of a (queue, handler), or of one recurring job: then job_id is not zero.
-- `ever` is all time: what counters for Prometheus are made of. A sketch is two arrays, its buckets in order and how many fell into each.
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

-- Up to where the history has been folded: everything this snapshot sees, and nothing else. One row; who folds locks it.
CREATE TABLE timeball.fold (
    is_only boolean     PRIMARY KEY DEFAULT true CHECK (is_only),
    seen    pg_snapshot NOT NULL
);

INSERT INTO timeball.fold (seen)
VALUES (pg_current_snapshot());
