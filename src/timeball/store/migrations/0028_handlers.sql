-- What workers publish of each handler: a row for each contract that a worker has started with. `started_at` is when a worker process last did so;
-- the latest of a name is the newest contract. Written when a worker starts with another contract than the newest, never by a heartbeat.
CREATE TABLE timeball.handler (
    name         text        NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
    fingerprint  text        NOT NULL,
    schema       jsonb       NOT NULL,
    options      jsonb       NOT NULL,
    doc          text        NOT NULL,
    run_style    text        NOT NULL,
    published_at timestamptz NOT NULL,
    started_at   timestamptz NOT NULL,
    PRIMARY KEY (name, fingerprint)
);

-- The contracts that a worker runs, by their fingerprints.
ALTER TABLE timeball.node ADD COLUMN fingerprints text[] NOT NULL DEFAULT '{}';

-- The jobs with names behind an id, in the order of their ids. By the index on them, whatever the planner believes about the table.
CREATE FUNCTION timeball.named_jobs(behind uuid, most bigint)
RETURNS TABLE (id uuid, name text, handler text, payload jsonb)
LANGUAGE plpgsql
STABLE
SET enable_seqscan TO 'off'
SET enable_bitmapscan TO 'off'
SET enable_sort TO 'off'
SET plan_cache_mode TO 'force_generic_plan'
AS $$
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
$$;

-- What waits or runs behind an id, in the order of ids: the rooms are read side by side, each by its primary key.
CREATE FUNCTION timeball.unfinished(behind uuid, most bigint)
RETURNS TABLE (id uuid, job_id uuid, version integer, handler text, payload jsonb)
LANGUAGE plpgsql
STABLE
SET enable_seqscan TO 'off'
SET enable_bitmapscan TO 'off'
SET enable_sort TO 'off'
SET plan_cache_mode TO 'force_generic_plan'
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
    WHERE waiting.id > behind
    ORDER BY waiting.id
    LIMIT most;
END
$$;
