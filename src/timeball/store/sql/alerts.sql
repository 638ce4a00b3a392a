-- Alerts, and what evaluations find.

-- fragment: alert_row
alert.id, alert.fact, alert.kind, alert.severity, alert.sentence, alert.advice, alert.command, alert.why, alert.target_kind, alert.target_id,
       alert.members::text AS members_text, alert.count, alert.first_seen_at, alert.opened_at, coalesce(alert.last_seen_at, alert_evaluation.at) AS last_seen_at,
       alert.resolved_at, alert.acknowledged_at, alert.acknowledged_by, alert.acknowledged_until, alert.acknowledged_reason

-- name: lock_alert_evaluation
-- The moment of the latest evaluation, locked until this one is written.
SELECT at
FROM timeball.alert_evaluation
FOR UPDATE;

-- name: alert_evaluated_at
SELECT at
FROM timeball.alert_evaluation;

-- name: note_alert_evaluation
UPDATE timeball.alert_evaluation
SET at = :at;

-- name: lock_alerts
-- Every alert that is not resolved, locked: an acknowledgement in between would be lost.
SELECT {alert_row}
FROM timeball.alert
CROSS JOIN timeball.alert_evaluation
WHERE alert.resolved_at IS NULL
ORDER BY alert.fact
FOR UPDATE OF alert;

-- name: unresolved_alerts
-- Every alert that is not resolved, in any order: for the order of ids a planner may read all alerts.
SELECT {alert_row}
FROM timeball.alert
CROSS JOIN timeball.alert_evaluation
WHERE alert.resolved_at IS NULL;

-- name: count_open_alerts
-- The alerts that wait for a person, by severity.
SELECT count(*) FILTER (WHERE severity = 'critical') AS critical, count(*) FILTER (WHERE severity = 'warning') AS warning
FROM timeball.alert
WHERE resolved_at IS NULL
  AND opened_at IS NOT NULL
  AND acknowledged_at IS NULL;

-- name: find_alert
SELECT {alert_row}
FROM timeball.alert
CROSS JOIN timeball.alert_evaluation
WHERE alert.id = :id;

-- name: lock_alert
SELECT {alert_row}
FROM timeball.alert
CROSS JOIN timeball.alert_evaluation
WHERE alert.id = :id
FOR UPDATE OF alert;

-- name: resolved_alerts
-- Resolved alerts before a place in their list, the latest first.
SELECT {alert_row}
FROM timeball.alert
CROSS JOIN timeball.alert_evaluation
WHERE (alert.resolved_at, alert.id) < (:before::timestamptz, :before_id::uuid)
  AND alert.resolved_at IS NOT NULL
ORDER BY alert.resolved_at DESC, alert.id DESC
LIMIT (SELECT :limit::bigint);

-- name: write_alerts
-- Insert or replace alerts.
INSERT INTO timeball.alert (id, fact, kind, severity, sentence, advice, command, why, target_kind, target_id, members, count, first_seen_at, opened_at,
                            last_seen_at, resolved_at, acknowledged_at, acknowledged_by, acknowledged_until, acknowledged_reason)
SELECT id, fact, kind, severity, sentence, advice, command, why, target_kind, target_id, members, count, first_seen_at, opened_at,
       last_seen_at, resolved_at, acknowledged_at, acknowledged_by, acknowledged_until, acknowledged_reason
FROM jsonb_to_recordset(:alerts::text::jsonb) AS given (
    id uuid, fact text, kind text, severity text, sentence text, advice text, command text, why text, target_kind text, target_id text, members jsonb,
    count integer, first_seen_at timestamptz, opened_at timestamptz, last_seen_at timestamptz, resolved_at timestamptz, acknowledged_at timestamptz,
    acknowledged_by text, acknowledged_until timestamptz, acknowledged_reason text
)
ORDER BY fact
ON CONFLICT (id) DO UPDATE
SET severity = excluded.severity,
    sentence = excluded.sentence,
    advice = excluded.advice,
    command = excluded.command,
    why = excluded.why,
    target_kind = excluded.target_kind,
    target_id = excluded.target_id,
    members = excluded.members,
    count = excluded.count,
    opened_at = excluded.opened_at,
    last_seen_at = excluded.last_seen_at,
    resolved_at = excluded.resolved_at,
    acknowledged_at = excluded.acknowledged_at,
    acknowledged_by = excluded.acknowledged_by,
    acknowledged_until = excluded.acknowledged_until,
    acknowledged_reason = excluded.acknowledged_reason;

-- name: forget_alerts
-- Delete alerts that were pending: their facts are gone before they had lasted.
DELETE FROM timeball.alert
WHERE id = ANY (:ids::uuid[])
  AND opened_at IS NULL;

-- name: expecting_jobs
-- The jobs of which something is expected, by id, after an id. (SELECT :limit): see next_due.
SELECT id, name, handler, queue, tags, expect, created_at, paused_at, paused_until, pause_reason
FROM timeball.job
WHERE expect IS NOT NULL
  AND deleted_at IS NULL
  AND id > :after
ORDER BY id
LIMIT (SELECT :limit::bigint);

-- name: recent_ends_of_jobs
-- How the latest executions of some jobs ended. *failures*: how many died since one that did not, or died of an expected error. *oldest_at*: the end of the
-- oldest that was looked at, if as many were as were asked for; else NULL. `missed_for`: the latest that was skipped because nothing began it in time.
-- Rows are compared, and `asked` is there: see job_situations.
WITH asked AS MATERIALIZED (
    SELECT :ids::uuid[] AS ids, :numbers::bigint[] AS numbers
)
SELECT given.id, ends.*
FROM asked
CROSS JOIN unnest(asked.ids, asked.numbers) AS given (id, number)
CROSS JOIN LATERAL (
    SELECT max(finished_at) FILTER (WHERE state = 'succeeded') AS last_success_at,
           count(*) FILTER (WHERE state = 'dead' AND NOT is_expected AND goods = 0) AS failures,
           max(scheduled_for) FILTER (WHERE started_at IS NOT NULL) AS last_begun_for,
           max(scheduled_for) FILTER (WHERE is_missed) AS missed_for,
           (array_agg(reason ORDER BY scheduled_for DESC) FILTER (WHERE is_missed))[1] AS missed_reason,
           CASE WHEN count(*) >= given.number THEN min(finished_at) END AS oldest_at
    FROM (
        SELECT state, finished_at, started_at, scheduled_for, reason, is_expected,
               state = 'skipped' AND reason = ANY ('{expired,misfire,too_old,over_cap}'::text[]) AS is_missed,
               count(*) FILTER (WHERE state = 'succeeded' OR is_expected) OVER (ORDER BY place) AS goods
        FROM (
            SELECT row_number() OVER () AS place, latest.*,
                   latest.state = 'dead'
                   AND EXISTS (SELECT 1 FROM timeball.settled WHERE settled.execution_id = latest.id AND settled.how = 'expected' OFFSET 0) AS is_expected
            FROM (
                SELECT id, state, finished_at, started_at, scheduled_for, reason
                FROM timeball.finished
                WHERE (finished.job_id, finished.id) >= (given.id, '00000000-0000-0000-0000-000000000000'::uuid)
                  AND (finished.job_id, finished.id) <= (given.id, 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid)
                  AND finished.job_id <> finished.id
                ORDER BY finished.job_id DESC, finished.id DESC
                LIMIT given.number
            ) AS latest
        ) AS numbered
    ) AS judged
) AS ends;

-- name: latest_success_hours
-- The last minute of the latest hour in which an execution of each of these jobs has succeeded, of the latest :limit hours in which any ended.
SELECT given.id, latest.at + interval '59 minutes 59 seconds' AS at
FROM unnest(:ids::uuid[]) AS given (id)
CROSS JOIN LATERAL (
    SELECT max(at) AS at
    FROM (
        SELECT at, succeeded
        FROM timeball.rollup
        WHERE span = 'hour'
          AND (rollup.job_id, rollup.at) >= (given.id, '-infinity'::timestamptz)
          AND (rollup.job_id, rollup.at) <= (given.id, 'infinity'::timestamptz)
        ORDER BY span DESC, rollup.job_id DESC, rollup.at DESC
        LIMIT :limit
    ) AS hours
    WHERE succeeded > 0
) AS latest
WHERE latest.at IS NOT NULL;

-- name: dead_of_jobs
-- The number of dead executions of each of these jobs that are not settled, counted up to a number.
SELECT given.id, count(few.*) AS dead
FROM unnest(:ids::uuid[], :numbers::bigint[]) AS given (id, number)
LEFT JOIN LATERAL (
    SELECT 1
    FROM timeball.finished
    WHERE finished.job_id = given.id
      AND finished.job_id <> finished.id
      AND finished.state = 'dead'
      AND NOT EXISTS (SELECT 1 FROM timeball.settled WHERE settled.execution_id = finished.id OFFSET 0)
    ORDER BY finished.job_id DESC, finished.id DESC
    LIMIT given.number
) AS few ON true
GROUP BY given.id;

-- name: unfinished_of_jobs
-- The oldest execution of each of these jobs that has not begun by :begin_bys, and the oldest that has not ended by :end_bys (NULL: not asked for).
-- :looked_at rows of each state table are looked at. What waits for its job to be resumed, and what was put off by its handler, is left out.
-- The instant is the one that an execution is for; for what was created later, that one.
WITH asked AS MATERIALIZED (
    SELECT :ids::uuid[] AS ids, :begin_bys::timestamptz[] AS begin_bys, :end_bys::timestamptz[] AS end_bys
)
SELECT given.id AS job_id,
       (array_agg(waiting.id ORDER BY waiting.at, waiting.id) FILTER (WHERE NOT waiting.has_begun AND waiting.at <= given.begin_by))[1] AS not_begun,
       min(waiting.at) FILTER (WHERE NOT waiting.has_begun AND waiting.at <= given.begin_by) AS not_begun_at,
       (array_agg(waiting.id ORDER BY waiting.at, waiting.id) FILTER (WHERE waiting.at <= given.end_by))[1] AS not_ended,
       min(waiting.at) FILTER (WHERE waiting.at <= given.end_by) AS not_ended_at
FROM asked
CROSS JOIN unnest(asked.ids, asked.begin_bys, asked.end_bys) AS given (id, begin_by, end_by)
CROSS JOIN LATERAL (
    (
        SELECT due.id, due.attempts > 0 OR due.lost > 0 AS has_begun,
               CASE
                   WHEN due.run_at >= :parked_at THEN NULL
                   WHEN due.origin IN ('backfill', 'retry', 'after') THEN coalesce(due.queued_at, due.run_at)
                   ELSE due.scheduled_for
               END AS at
        FROM timeball.due
        WHERE due.job_id = given.id
          AND due.kind = 'occurrence'
    )
    UNION ALL
    (
        SELECT due.id, due.attempts > 0 OR due.lost > 0,
               CASE
                   WHEN due.run_at >= :parked_at THEN NULL
                   WHEN due.origin IN ('backfill', 'retry', 'after') THEN coalesce(due.queued_at, due.run_at)
                   ELSE due.scheduled_for
               END
        FROM timeball.due
        WHERE due.job_id = given.id
          AND due.job_id <> due.id
          AND due.kind NOT IN ('occurrence', 'resume', 'snooze')
        LIMIT :looked_at
    )
    UNION ALL
    (
        SELECT ready.id, ready.attempts > 0 OR ready.lost > 0,
               CASE WHEN ready.origin IN ('backfill', 'retry', 'after') THEN ready.queued_at ELSE ready.scheduled_for END
        FROM timeball.ready
        WHERE ready.job_id = given.id
          AND ready.job_id <> ready.id
        LIMIT :looked_at
    )
    UNION ALL
    (
        SELECT blocked.id, blocked.attempts > 0 OR blocked.lost > 0,
               CASE WHEN blocked.origin IN ('backfill', 'retry', 'after') THEN blocked.queued_at ELSE blocked.scheduled_for END
        FROM timeball.blocked
        WHERE blocked.job_id = given.id
        LIMIT :looked_at
    )
    UNION ALL
    (
        SELECT running.id, true,
               CASE WHEN running.origin IN ('backfill', 'retry', 'after') THEN running.queued_at ELSE running.scheduled_for END
        FROM timeball.running
        WHERE running.job_id = given.id
          AND running.job_id <> running.id
        LIMIT :looked_at
    )
) AS waiting
GROUP BY given.id;

-- name: missed_ranges_of_jobs
-- The latest range of occurrences of each of these jobs that were skipped because nothing began them in time, among its latest :looked_at ranges.
SELECT given.id, latest.last_at, latest.reason
FROM unnest(:ids::uuid[]) AS given (id)
CROSS JOIN LATERAL (
    SELECT last_at, reason
    FROM (
        SELECT last_at, reason, first_at
        FROM timeball.skip_range
        WHERE (skip_range.job_id, skip_range.first_at) >= (given.id, '-infinity'::timestamptz)
          AND (skip_range.job_id, skip_range.first_at) <= (given.id, 'infinity'::timestamptz)
        ORDER BY skip_range.job_id DESC, skip_range.first_at DESC
        LIMIT :looked_at
    ) AS ranges
    WHERE reason = ANY ('{expired,misfire,too_old,over_cap}'::text[])
    ORDER BY first_at DESC
    LIMIT 1
) AS latest;

-- name: expecting_queues
-- The queues of which something is expected, each with the instant of its oldest ready execution. `everything` as in lanes.
WITH everything AS MATERIALIZED (
    SELECT '-infinity'::timestamptz AS first, 'infinity'::timestamptz AS last
)
SELECT queue.name, queue.max_oldest_wait_seconds, queue.must_be_served, oldest.run_at AS oldest_at
FROM everything
CROSS JOIN timeball.queue
LEFT JOIN LATERAL (
    SELECT min(first.run_at) AS run_at
    FROM generate_series(0, 100) AS level (priority)
    CROSS JOIN LATERAL (
        SELECT run_at
        FROM timeball.ready
        WHERE ready.queue = queue.name
          AND ready.priority = level.priority
          AND ready.run_at BETWEEN everything.first AND everything.last
        ORDER BY run_at
        LIMIT 1
    ) AS first
) AS oldest ON queue.max_oldest_wait_seconds IS NOT NULL
WHERE queue.max_oldest_wait_seconds IS NOT NULL OR queue.must_be_served
ORDER BY queue.name
LIMIT :limit;

-- name: open_pauses_of_queues
-- The pauses of these queues that last: since when, by whom and why.
SELECT queue_interval.queue, queue_interval.from_at, queue_interval.actor, queue_interval.reason, queue.paused_until
FROM timeball.queue_interval
JOIN timeball.queue ON queue.name = queue_interval.queue
WHERE queue_interval.queue = ANY (:queues::text[])
  AND queue_interval.kind = 'pause'
  AND queue_interval.until_at IS NULL;

-- name: set_queue_expectation
-- A value that is not given stays as it is.
INSERT INTO timeball.queue (name, max_oldest_wait_seconds, must_be_served)
VALUES (:name, :max_oldest_wait_seconds, coalesce(:must_be_served::boolean, false))
ON CONFLICT (name) DO UPDATE
SET max_oldest_wait_seconds = CASE WHEN :waits::boolean THEN excluded.max_oldest_wait_seconds ELSE queue.max_oldest_wait_seconds END,
    must_be_served = coalesce(:must_be_served::boolean, queue.must_be_served)
RETURNING *;

-- name: members_of_jobs
-- Jobs as alerts name them.
SELECT id, name, handler, queue, tags
FROM timeball.job
WHERE id = ANY (:ids::uuid[]);
