-- The ledger of one job as people read it: what became of its occurrences, in order of time.

-- name: ledger_outlook
-- What a job has ahead: its pending occurrence, or its pause.
SELECT coalesce(:now, now()) AS moment, job.paused_at, job.paused_from, job.paused_until, job.paused_left,
       due.id, due.run_at, due.scheduled_for, due.watermark, due.executions_left, due.tzdata, due.version,
       due.frozen_run_at <= coalesce(:now, now()) AS is_frozen,
       (SELECT fact.value::timestamptz FROM timeball.fact WHERE fact.key = 'history_from') AS history_from
FROM timeball.job
LEFT JOIN timeball.due ON due.job_id = job.id AND due.kind = 'occurrence'
WHERE job.id = :job_id;

-- Each kind of question has a statement of its own: one that names `finished` twice plans and opens all its days twice. The days that are left out: see
-- timeball.ended_of_job.

-- fragment: ranges
SELECT id, first_at, last_at, occurrences, true, 'schedule', NULL, reason, version, tzdata, filled
FROM timeball.skip_range
WHERE (skip_range.job_id, skip_range.first_at) >= (:job_id::uuid, :since::timestamptz)
  AND (skip_range.job_id, skip_range.first_at) <= (:job_id::uuid, :until::timestamptz)

-- fragment: crossing
-- A range of skipped occurrences is in the place of its first one. Ranges of a job do not overlap, so at most one crosses the beginning of a span.
SELECT id, first_at, last_at, occurrences, true, 'schedule', NULL, reason, version, tzdata, filled
FROM (
    SELECT *
    FROM timeball.skip_range
    WHERE (skip_range.job_id, skip_range.first_at) >= (:job_id::uuid, '-infinity'::timestamptz)
      AND (skip_range.job_id, skip_range.first_at) < (:job_id::uuid, :since::timestamptz)
    ORDER BY skip_range.job_id DESC, skip_range.first_at DESC
    LIMIT 1
) AS crossing
WHERE last_at >= :since::timestamptz

-- fragment: unfinished
-- An enqueued execution has the id of its job; the indexes on job_id leave it out, so both are searched.
SELECT id, scheduled_for AS first_at, scheduled_for AS last_at, 1::bigint AS occurrences, false AS is_range, origin, state, NULL::text AS reason, version, tzdata, 0::bigint AS filled
FROM (
    SELECT id, scheduled_for, origin, CASE kind WHEN 'retry' THEN 'retrying' ELSE 'scheduled' END AS state, version, tzdata
    FROM timeball.due
    WHERE job_id = :job_id AND job_id <> id AND kind NOT IN ('occurrence', 'resume')
    UNION ALL
    SELECT id, scheduled_for, origin, CASE kind WHEN 'retry' THEN 'retrying' ELSE 'scheduled' END, version, tzdata
    FROM timeball.due
    WHERE id = :job_id AND kind NOT IN ('occurrence', 'resume')
    UNION ALL
    SELECT id, scheduled_for, origin, 'queued', version, tzdata
    FROM timeball.ready
    WHERE job_id = :job_id AND job_id <> id
    UNION ALL
    SELECT id, scheduled_for, origin, 'queued', version, tzdata
    FROM timeball.ready
    WHERE id = :job_id
    UNION ALL
    SELECT id, scheduled_for, origin, 'queued', version, tzdata
    FROM timeball.blocked
    WHERE job_id = :job_id
    UNION ALL
    SELECT id, scheduled_for, origin, CASE WHEN run_at > coalesce(:now, now()) THEN 'queued' ELSE 'running' END, version, tzdata
    FROM timeball.running
    WHERE job_id = :job_id AND job_id <> id
    UNION ALL
    SELECT id, scheduled_for, origin, CASE WHEN run_at > coalesce(:now, now()) THEN 'queued' ELSE 'running' END, version, tzdata
    FROM timeball.running
    WHERE id = :job_id
) AS unfinished
WHERE id = :job_id
   OR (origin IN ('schedule', 'backfill', 'after') AND id > :low AND id < :high)

-- name: ledger_records
-- The records of a job between two ids, the earliest first: up to :limit of each kind. The reader puts them in order.
SELECT id, scheduled_for AS first_at, scheduled_for AS last_at, 1::bigint AS occurrences, false AS is_range, origin, state,
       timeball.skip_reason(state, reason, attempts, lost) AS reason, version, tzdata, 0::bigint AS filled
FROM timeball.ended_of_job(:job_id, :low, :high, :since, :limit)
UNION ALL
({ranges} ORDER BY skip_range.job_id, skip_range.first_at LIMIT :limit)
UNION ALL
({crossing})
UNION ALL
({unfinished} ORDER BY uuid_send(id) LIMIT :limit);

-- name: ledger_records_back
-- The same, the latest first.
SELECT id, scheduled_for AS first_at, scheduled_for AS last_at, 1::bigint AS occurrences, false AS is_range, origin, state,
       timeball.skip_reason(state, reason, attempts, lost) AS reason, version, tzdata, 0::bigint AS filled
FROM timeball.ended_of_job_back(:job_id, :low, :high, :since, :limit)
UNION ALL
({ranges} ORDER BY skip_range.job_id DESC, skip_range.first_at DESC LIMIT :limit)
UNION ALL
({crossing})
UNION ALL
({unfinished} ORDER BY uuid_send(id) DESC LIMIT :limit);

-- name: ledger_skips
-- Only what was skipped.
SELECT id, scheduled_for AS first_at, scheduled_for AS last_at, 1::bigint AS occurrences, false AS is_range, origin, state,
       timeball.skip_reason(state, reason, attempts, lost) AS reason, version, tzdata, 0::bigint AS filled
FROM timeball.skipped_of_job(:job_id, :low, :high, :since, :limit)
UNION ALL
({ranges} ORDER BY skip_range.job_id, skip_range.first_at LIMIT :limit)
UNION ALL
({crossing});

-- name: ledger_skips_back
-- The same, the latest first.
SELECT id, scheduled_for AS first_at, scheduled_for AS last_at, 1::bigint AS occurrences, false AS is_range, origin, state,
       timeball.skip_reason(state, reason, attempts, lost) AS reason, version, tzdata, 0::bigint AS filled
FROM timeball.skipped_of_job_back(:job_id, :low, :high, :since, :limit)
UNION ALL
({ranges} ORDER BY skip_range.job_id DESC, skip_range.first_at DESC LIMIT :limit)
UNION ALL
({crossing});

-- name: ledger_unfinished
-- Only what has not ended.
{unfinished} ORDER BY uuid_send(id) LIMIT :limit;

-- name: ledger_unfinished_back
-- The same, the latest first.
{unfinished} ORDER BY uuid_send(id) DESC LIMIT :limit;

-- name: ledger_one_off
-- The execution of an enqueued one-off, which has the id of its job, if it has ended.
SELECT id, scheduled_for AS first_at, scheduled_for AS last_at, 1::bigint AS occurrences, false AS is_range, origin, state,
       timeball.skip_reason(state, reason, attempts, lost) AS reason, version, tzdata, 0::bigint AS filled
FROM timeball.finished
WHERE id = :job_id;

-- name: ledger_versions
-- The versions of a recurring job, each with the instants that it is responsible for.
SELECT job_version.version, job_version.effective_from, job_version.effective_until, job_version.tzdata, rule.name, rule.kind, rule.calendars,
       {rule.timing_columns}
FROM timeball.job_version
CROSS JOIN LATERAL jsonb_populate_record(NULL::timeball.job, job_version.definition) AS rule
WHERE job_version.job_id = :job_id
ORDER BY job_version.version;

-- name: ledger_versions_leaving_out
-- The versions that answer for a part of a span and may leave something out of their schedules: by calendars, or at clock changes.
SELECT job_version.version, job_version.effective_from, job_version.effective_until, job_version.tzdata, rule.name, rule.kind, rule.calendars,
       {rule.timing_columns}
FROM timeball.job_version
CROSS JOIN LATERAL jsonb_populate_record(NULL::timeball.job, job_version.definition) AS rule
WHERE job_version.job_id = :job_id
  AND job_version.effective_from < :until
  AND (job_version.effective_until IS NULL OR job_version.effective_until >= :since)
  AND (job_version.definition ->> 'calendars' IS NOT NULL OR job_version.definition ->> 'on_gap' = 'skip')
ORDER BY job_version.version;

-- name: ledger_version_at
-- The version of a recurring job that was responsible for an instant.
SELECT job_version.version, job_version.effective_from, job_version.effective_until, job_version.tzdata, rule.name, rule.kind, rule.calendars,
       {rule.timing_columns}
FROM timeball.job_version
CROSS JOIN LATERAL jsonb_populate_record(NULL::timeball.job, job_version.definition) AS rule
WHERE job_version.job_id = :job_id
  AND job_version.effective_from < :at
ORDER BY job_version.version DESC
LIMIT 1;

-- name: ledger_ranges
-- The latest skip ranges of a job that begin before an instant.
SELECT first_at, last_at, occurrences, reason, version, recorded_at
FROM timeball.skip_range
WHERE (skip_range.job_id, skip_range.first_at) >= (:job_id::uuid, '-infinity'::timestamptz)
  AND (skip_range.job_id, skip_range.first_at) < (:job_id::uuid, :until::timestamptz)
ORDER BY skip_range.job_id DESC, skip_range.first_at DESC
LIMIT :limit;

-- name: skips
-- The skipped occurrences of all jobs in a span, for timelines: the latest :limit ranges, and as many single ones. The columns are those of a run.
-- Rows are compared: see job_situations.
SELECT span.id, span.job_id, job.handler, job.queue, span.first_at, NULL::uuid AS worker, span.last_at, span.reason, coalesce(span.occurrences, 2) AS number
FROM (
    SELECT *
    FROM timeball.skip_range
    WHERE first_at < :until::timestamptz
    ORDER BY first_at DESC
    LIMIT (SELECT :limit::bigint)
) AS span
JOIN timeball.job ON job.id = span.job_id
WHERE span.last_at >= :start::timestamptz
UNION ALL
SELECT id, job_id, handler, queue, scheduled_for, NULL, scheduled_for, reason, 1
FROM (
    SELECT *
    FROM timeball.finished
    WHERE state <> 'succeeded'
      AND (state, id) >= ('skipped', :first_id::uuid)
      AND (state, id) < ('skipped', :last_id::uuid)
    ORDER BY state DESC, id DESC
    LIMIT :limit
) AS single
WHERE origin = 'schedule'
  AND scheduled_for >= :start::timestamptz;
