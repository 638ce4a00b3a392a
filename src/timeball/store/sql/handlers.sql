-- The contracts of handlers that workers publish.

-- name: publish_handlers
-- Insert the contracts that are not the newest of their names. With :is_start a process starts with them, so a known contract becomes the newest again.
-- The time is always later than that of the newest: the clock of a database may lag behind after a failover.
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
-- Keep the :limit latest contracts of each of these names.
DELETE FROM timeball.handler
USING (
    SELECT name, fingerprint, row_number() OVER (PARTITION BY name ORDER BY started_at DESC, fingerprint) AS place
    FROM timeball.handler
    WHERE name = ANY (:names::text[])
) AS ranked
WHERE handler.name = ranked.name
  AND handler.fingerprint = ranked.fingerprint
  AND ranked.place > :limit::bigint;

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
-- The published names, in order, after a name: a loose index scan, with one probe for each name.
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
-- The payloads of named jobs after an id; NULL if the handler is not one of :handlers.
SELECT id, name, handler, CASE WHEN handler = ANY (:handlers::text[]) THEN payload::text END AS payload
FROM timeball.named_jobs(:after::uuid, :limit::bigint)
ORDER BY id;

-- name: waiting_payloads
-- The payloads of unfinished executions after an id: their own, or that of the job in the version that they cite.
-- Executions with the present payload of a named job are left to payloads_of_jobs. OFFSET 0: otherwise PostgreSQL may read all jobs, to join them with a page.
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
