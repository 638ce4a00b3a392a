-- What is queued ran its row's handler with its job's payload, and an edit in between made them two versions. Now a claim takes both from the version
-- that the row cites.

-- The payload of one version of a job. An edited job keeps its earlier versions in job_version, an edited one-off as well; NULL if neither has it.
CREATE FUNCTION timeball.payload_of(wanted_job uuid, wanted_version integer)
RETURNS jsonb
LANGUAGE plpgsql
STABLE
SET enable_seqscan = off
SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    RETURN coalesce(
        (SELECT job.payload FROM timeball.job WHERE job.id = wanted_job AND job.version = wanted_version),
        (SELECT job_version.definition -> 'payload' FROM timeball.job_version
         WHERE job_version.job_id = wanted_job AND job_version.version = wanted_version)
    );
END
$$;

-- Who made a job, and who asked for an execution: a key, a person, a program. An enqueued execution has the author of its job, one of a schedule has none.
-- `bound_secrets_only`: the payload names secrets and was written by someone who is no administrator. On a row of a room it is about the row's own payload.
ALTER TABLE timeball.job
    ADD COLUMN created_by text,
    ADD COLUMN bound_secrets_only boolean NOT NULL DEFAULT false;
ALTER TABLE timeball.due ADD COLUMN created_by text, ADD COLUMN bound_secrets_only boolean;
ALTER TABLE timeball.ready ADD COLUMN created_by text, ADD COLUMN bound_secrets_only boolean;
ALTER TABLE timeball.blocked ADD COLUMN created_by text, ADD COLUMN bound_secrets_only boolean;
ALTER TABLE timeball.running ADD COLUMN created_by text, ADD COLUMN bound_secrets_only boolean;
ALTER TABLE timeball.finished ADD COLUMN created_by text, ADD COLUMN bound_secrets_only boolean;

CREATE OR REPLACE VIEW timeball.execution AS
SELECT id, job_id, CASE WHEN kind = 'retry' THEN 'retrying' ELSE 'scheduled' END AS state, origin, version, queue, priority, handler,
       scheduled_for, run_at, queued_at, NULL::timestamptz AS started_at, NULL::timestamptz AS finished_at, attempts, lost, fence,
       NULL::uuid AS worker, NULL::uuid AS claim_id, tzdata, NULL::jsonb AS result, NULL::text AS error_type, NULL::text AS error,
       NULL::text AS reason, NULL::text AS fingerprint, payload, retry_of, limit_key, unique_key, NULL::text AS stop, created_by, bound_secrets_only
FROM timeball.due
WHERE kind <> 'resume'
UNION ALL
SELECT id, job_id, 'queued', origin, version, queue, priority, handler,
       scheduled_for, run_at, queued_at, NULL, NULL, attempts, lost, fence,
       NULL, NULL, tzdata, NULL, NULL, NULL, NULL, NULL, payload, retry_of, limit_key, unique_key, NULL, created_by, bound_secrets_only
FROM timeball.ready
UNION ALL
SELECT id, job_id, 'queued', origin, version, queue, priority, handler,
       scheduled_for, run_at, queued_at, NULL, NULL, attempts, lost, fence,
       NULL, NULL, tzdata, NULL, NULL, NULL, NULL, NULL, payload, retry_of, limit_key, unique_key, NULL, created_by, bound_secrets_only
FROM timeball.blocked
UNION ALL
SELECT id, job_id, CASE WHEN run_at > now() THEN 'queued' ELSE 'running' END, origin, version, queue, priority, handler,
       scheduled_for, run_at, queued_at, CASE WHEN run_at <= now() THEN greatest(claimed_at, run_at) END, NULL, attempts, lost, fence,
       holder, claim_id, tzdata, NULL, NULL, NULL, NULL, NULL, payload, retry_of, limit_key, unique_key, stop, created_by, bound_secrets_only
FROM timeball.running
UNION ALL
SELECT id, job_id, state, origin, version, queue, priority, handler,
       scheduled_for, NULL, queued_at, started_at, finished_at, attempts, lost, fence,
       worker, claim_id, tzdata, result, error_type, error, reason, fingerprint, payload, retry_of, NULL, NULL, NULL, created_by, bound_secrets_only
FROM timeball.finished;

-- As before, with the new columns.
CREATE OR REPLACE FUNCTION timeball.take_back()
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
$$;

-- Which job, or which author's one-offs, have used which secret of a worker: the first use is audited.
CREATE TABLE timeball.secret_use (
    used_by       text NOT NULL,
    secret        text NOT NULL,
    first_used_at timestamptz NOT NULL,
    PRIMARY KEY (used_by, secret)
);
