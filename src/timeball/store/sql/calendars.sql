-- Calendars: named sets of days, and the versions that jobs cite.

-- name: add_calendar
-- Insert a calendar, or bring a deleted one back: its versions go on where they ended, so that a version means the same for ever.
INSERT INTO timeball.calendar (name, description, source, version, followed_version, created_at, updated_at)
VALUES (:name, :description, :source::text::jsonb, 1, 1, coalesce(:now, now()), coalesce(:now, now()))
ON CONFLICT (name) DO UPDATE
SET description = excluded.description,
    source = excluded.source,
    version = calendar.version + 1,
    followed_version = calendar.version + 1,
    created_at = excluded.created_at,
    updated_at = excluded.updated_at,
    deleted_at = NULL
WHERE calendar.deleted_at IS NOT NULL
RETURNING *, source::text AS source_text;

-- name: add_calendar_version
INSERT INTO timeball.calendar_version (name, version, days, recorded_at)
VALUES (:name, :version, :days::text[], coalesce(:now, now()));

-- name: write_calendar
UPDATE timeball.calendar
SET description = :description,
    source = :source::text::jsonb,
    version = :version,
    updated_at = coalesce(:now, now())
WHERE name = :name
RETURNING *, source::text AS source_text;

-- name: delete_calendar
UPDATE timeball.calendar
SET deleted_at = coalesce(:now, now())
WHERE name = :name;

-- name: find_calendar
-- A calendar with the days of one of its versions: of the present one, unless another is asked for.
SELECT calendar.*, calendar.source::text AS source_text, calendar_version.version AS shown_version, calendar_version.days
FROM timeball.calendar
JOIN timeball.calendar_version
  ON calendar_version.name = calendar.name
 AND calendar_version.version = coalesce(:version::integer, calendar.version)
WHERE calendar.name = :name
  AND calendar.deleted_at IS NULL;

-- name: lock_calendar
-- Lock a calendar against other changes, and against jobs that begin to cite it. Its days are read afterwards: a join would not see the version that the
-- lock has waited for.
SELECT name
FROM timeball.calendar
WHERE name = :name
  AND deleted_at IS NULL
FOR NO KEY UPDATE;

-- name: list_calendars
-- By name, after a name, each with its present days. (SELECT :limit): see next_due.
SELECT calendar.*, calendar.source::text AS source_text, calendar_version.version AS shown_version, calendar_version.days
FROM (
    SELECT *
    FROM timeball.calendar
    WHERE name > :after
      AND deleted_at IS NULL
    ORDER BY name
    LIMIT (SELECT :limit::bigint)
) AS calendar
CROSS JOIN LATERAL (
    SELECT calendar_version.version, calendar_version.days
    FROM timeball.calendar_version
    WHERE calendar_version.name = calendar.name
      AND calendar_version.version = calendar.version
    OFFSET 0
) AS calendar_version
ORDER BY calendar.name;

-- name: present_calendars
-- The present versions of some calendars.
SELECT calendar.name, calendar.version, calendar_version.days
FROM timeball.calendar
JOIN timeball.calendar_version
  ON calendar_version.name = calendar.name
 AND calendar_version.version = calendar.version
WHERE calendar.name = ANY (:names::text[])
  AND calendar.deleted_at IS NULL;

-- name: hold_calendars
-- The versions of some calendars, locked until the end of the transaction: a job that cites them is written while none of them can change or be deleted.
-- Their days are read afterwards; see lock_calendar.
SELECT name, version
FROM timeball.calendar
WHERE name = ANY (:names::text[])
  AND deleted_at IS NULL
ORDER BY name
FOR SHARE;

-- name: calendar_versions
-- The days of some versions.
SELECT calendar_version.name, calendar_version.version, calendar_version.days
FROM unnest(:names::text[], :versions::integer[]) AS cited (name, version)
JOIN timeball.calendar_version USING (name, version);

-- name: jobs_of_calendar
-- Some jobs that use a calendar, by id, after an id; without those that cite :version already.
-- OFFSET 0: otherwise the planner may go through all jobs in the order of their ids.
SELECT id, name
FROM (
    SELECT id, name, calendars
    FROM timeball.job
    WHERE calendars ? :name
      AND deleted_at IS NULL
    OFFSET 0
) AS used_by
WHERE id > :after
  AND (:version::integer IS NULL OR (calendars -> :name ->> 'version')::integer < :version)
ORDER BY id
LIMIT (SELECT :limit::bigint);

-- name: count_jobs_of_calendar
SELECT count(*)
FROM (
    SELECT 1
    FROM timeball.job
    WHERE calendars ? :name
      AND deleted_at IS NULL
    LIMIT (SELECT :limit::bigint)
) AS few;

-- name: calendars_to_follow
-- Calendars that jobs do not follow yet.
SELECT name, version
FROM timeball.calendar
WHERE followed_version < version
ORDER BY name;

-- name: calendar_followed
-- All jobs of a calendar cite this version.
UPDATE timeball.calendar
SET followed_version = :version
WHERE name = :name
  AND followed_version < :version;
