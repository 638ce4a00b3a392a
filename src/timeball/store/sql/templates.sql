-- Job templates.

-- name: add_template
INSERT INTO timeball.template (id, name, description, job, version, created_at, updated_at)
VALUES (:id, :name, :description, :job::text::jsonb, 1, coalesce(:now, now()), coalesce(:now, now()))
RETURNING *, job::text AS job_text;

-- name: find_template
SELECT *, job::text AS job_text
FROM timeball.template
WHERE id = :id;

-- name: find_template_by_name
SELECT *, job::text AS job_text
FROM timeball.template
WHERE name = :name;

-- name: lock_template
SELECT *, job::text AS job_text
FROM timeball.template
WHERE id = :id
FOR UPDATE;

-- name: write_template
UPDATE timeball.template
SET name = :name,
    description = :description,
    job = :job::text::jsonb,
    version = version + 1,
    updated_at = coalesce(:now, now())
WHERE id = :id
RETURNING *, job::text AS job_text;

-- name: delete_template
DELETE FROM timeball.template
WHERE id = :id;

-- name: list_templates
-- By name, after a name. (SELECT :limit): see next_due.
SELECT *, job::text AS job_text
FROM timeball.template
WHERE name > :after
ORDER BY name
LIMIT (SELECT :limit::bigint);
