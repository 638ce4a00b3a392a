-- What workers publish of their handlers.

-- name: publish_handlers
-- Write the contracts that are not the newest of their names yet. :is_start: a process starts with them, so a known one becomes the newest again.
-- Later than the newest in any case: the clock of a database that has failed over may lag behind.
WITH given AS (
    SELECT *
    FROM unnest(:names::text[], :fingerprints::text[], :schemas::text[], :options::text[], :docs::text[], :run_styles::text[])
         AS given (name, fingerprint, schema, options, doc, run_style)
),
newest AS MATERIALIZED (
    SELECT DISTINCT ON (name) name, fingerprint, started_at
    FROM timeball.handler
    WHERE name = ANY (:names::text[])
    ORDER BY name, started_at DESC, fingerprint
)
INSERT INTO timeball.handler AS known (name, fingerprint, schema, options, doc, run_style, published_at, started_at)
SELECT given.name, given.fingerprint, given.schema::jsonb, given.options::jsonb, given.doc, given.run_style,
       coalesce(:now, now()), greatest(coalesce(:now, now()), newest.started_at + interval '1 microsecond')
FROM given
LEFT JOIN newest ON newest.name = given.name
WHERE newest.fingerprint IS DISTINCT FROM given.fingerprint
ORDER BY given.name
ON CONFLICT (name, fingerprint) DO UPDATE
SET started_at = EXCLUDED.started_at
WHERE :is_start::boolean
RETURNING known.name;

-- name: forget_old_contracts
-- Keep the :most latest contracts of each of these names.
DELETE FROM timeball.handler
USING (
    SELECT name, fingerprint, row_number() OVER (PARTITION BY name ORDER BY started_at DESC, fingerprint) AS place
    FROM timeball.handler
    WHERE name = ANY (:names::text[])
) AS ranked
WHERE handler.name = ranked.name
  AND handler.fingerprint = ranked.fingerprint
  AND ranked.place > :most::bigint;

-- name: contract_versions
-- Every published contract of these handlers, the newest of each first, with the names of the living workers that have it.
SELECT handler.name, handler.fingerprint, handler.options::text AS options, handler.doc, handler.run_style, handler.published_at, handler.started_at,
       row_number() OVER (PARTITION BY handler.name ORDER BY handler.started_at DESC, handler.fingerprint) = 1 AS is_newest,
       ARRAY(
           SELECT node.name
           FROM timeball.node
           WHERE node.kind = 'worker'
             AND NOT node.draining
             AND node.lease_until > coalesce(:now, now())
             AND handler.fingerprint = ANY (node.fingerprints)
           ORDER BY node.name
       ) AS workers
FROM timeball.handler
WHERE handler.name = ANY (:names::text[])
ORDER BY handler.name, handler.started_at DESC, handler.fingerprint;

-- name: contract_schemas
-- The schemas of some contracts.
SELECT fingerprint, schema::text AS schema
FROM timeball.handler
WHERE name = ANY (:names::text[])
  AND fingerprint = ANY (:fingerprints::text[]);

-- name: handler_names
-- The names that workers have published, in order, behind a name: a loose index scan, one probe a name.
WITH RECURSIVE following AS (
    (
        SELECT name
        FROM timeball.handler
        WHERE name > :after
        ORDER BY name
        LIMIT 1
    )
    UNION ALL
    SELECT (SELECT handler.name FROM timeball.handler WHERE handler.name > following.name ORDER BY handler.name LIMIT 1)
    FROM following
    WHERE following.name IS NOT NULL
)
SELECT name
FROM following
WHERE name IS NOT NULL
LIMIT (SELECT :limit::bigint);

-- name: payloads_of_jobs
-- What jobs with a name are given, behind an id; without the payload where the handler is none of :handlers.
SELECT id, name, handler, CASE WHEN handler = ANY (:handlers::text[]) THEN payload::text END AS payload
FROM timeball.named_jobs(:after::uuid, :limit::bigint)
ORDER BY id;

-- name: waiting_payloads
-- What executions are given that wait or run, behind an id: their own payload, or that of the version of their job that they cite.
-- Those that take what a job with a name is given now are left to payloads_of_jobs. OFFSET 0: otherwise all jobs may be read, to be joined with a page.
SELECT waiting.id, job.name, waiting.handler,
       CASE
           WHEN waiting.handler <> ALL (:handlers::text[]) THEN NULL
           WHEN waiting.payload IS NOT NULL THEN waiting.payload
           WHEN job.version IS DISTINCT FROM waiting.version THEN timeball.payload_of(waiting.job_id, waiting.version)
           WHEN job.name IS NULL OR job.deleted_at IS NOT NULL THEN job.payload
       END::text AS payload
FROM timeball.unfinished(:after::uuid, :limit::bigint) AS waiting
LEFT JOIN LATERAL (
    SELECT name, version, payload, deleted_at
    FROM timeball.job
    WHERE id = waiting.job_id
    OFFSET 0
) AS job ON true
ORDER BY waiting.id;
