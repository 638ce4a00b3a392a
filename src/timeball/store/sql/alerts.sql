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
-- Every alert that is not resolved, the latest first.
SELECT {alert_row}
FROM timeball.alert
CROSS JOIN timeball.alert_evaluation
WHERE alert.resolved_at IS NULL
ORDER BY alert.id DESC;

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
