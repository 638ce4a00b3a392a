-- Channels, the routes that lead to them, and the deliveries of alerts.

-- name: add_channel
-- No row if the name is taken.
INSERT INTO timeball.channel (name, description, kind, settings, bound_secrets_only, version, created_at, updated_at)
VALUES (:name, :description, :kind, :settings::text::jsonb, :bound_secrets_only::boolean, 1, coalesce(:now, now()), coalesce(:now, now()))
ON CONFLICT (name) DO NOTHING
RETURNING *, settings::text AS settings_text;

-- name: find_channel
SELECT *, settings::text AS settings_text
FROM timeball.channel
WHERE name = :name;

-- name: lock_channel
SELECT *, settings::text AS settings_text
FROM timeball.channel
WHERE name = :name
FOR UPDATE;

-- name: hold_channels
-- The channels of a route that is being written: none of them can be deleted before that is committed.
SELECT name
FROM timeball.channel
WHERE name = ANY (:names::text[])
ORDER BY name
FOR SHARE;

-- name: write_channel
UPDATE timeball.channel
SET description = :description,
    settings = :settings::text::jsonb,
    bound_secrets_only = :bound_secrets_only::boolean,
    version = version + 1,
    updated_at = coalesce(:now, now())
WHERE name = :name
RETURNING *, settings::text AS settings_text;

-- name: delete_channel
DELETE FROM timeball.channel
WHERE name = :name;

-- name: list_channels
-- By name, after a name. (SELECT :limit): see next_due.
SELECT *, settings::text AS settings_text
FROM timeball.channel
WHERE name > :after
ORDER BY name
LIMIT (SELECT :limit::bigint);

-- name: add_alert_route
-- No row if the name is taken.
INSERT INTO timeball.alert_route (name, description, channels, severity, queues, tags, jobs, quiet_hours, repeat_every_seconds, version, created_at, updated_at)
VALUES (:name, :description, :channels::text[], :severity, :queues::text[], :tags::text[], :jobs::text[], :quiet_hours::text::jsonb,
        :repeat_every_seconds::integer, 1, coalesce(:now, now()), coalesce(:now, now()))
ON CONFLICT (name) DO NOTHING
RETURNING *, quiet_hours::text AS quiet_hours_text;

-- name: find_alert_route
SELECT *, quiet_hours::text AS quiet_hours_text
FROM timeball.alert_route
WHERE name = :name;

-- name: lock_alert_route
SELECT *, quiet_hours::text AS quiet_hours_text
FROM timeball.alert_route
WHERE name = :name
FOR UPDATE;

-- name: write_alert_route
UPDATE timeball.alert_route
SET description = :description,
    channels = :channels::text[],
    severity = :severity,
    queues = :queues::text[],
    tags = :tags::text[],
    jobs = :jobs::text[],
    quiet_hours = :quiet_hours::text::jsonb,
    repeat_every_seconds = :repeat_every_seconds::integer,
    version = version + 1,
    updated_at = coalesce(:now, now())
WHERE name = :name
RETURNING *, quiet_hours::text AS quiet_hours_text;

-- name: delete_alert_route
DELETE FROM timeball.alert_route
WHERE name = :name;

-- name: all_alert_routes
SELECT *, quiet_hours::text AS quiet_hours_text
FROM timeball.alert_route
ORDER BY name;

-- name: deliveries_of_alerts
-- The deliveries that some alerts have already.
SELECT alert_id, channel, event, run_at
FROM timeball.alert_delivery
WHERE alert_id = ANY (:alert_ids::uuid[])
ORDER BY number;

-- name: add_deliveries
INSERT INTO timeball.alert_delivery (id, channel, alert_id, event, run_at, created_at)
SELECT id, channel, alert_id, event, run_at, coalesce(:now, now())
FROM unnest(:ids::uuid[], :channels::text[], :alert_ids::uuid[], :events::text[], :run_ats::timestamptz[]) AS given (id, channel, alert_id, event, run_at);

-- name: lock_line_of_delivery
-- The deliveries of the same alert to the same channel, locked: two that begin at once see each other.
-- IS NOT DISTINCT FROM: a planner without statistics would otherwise read all deliveries of the channel, of which there are more than of the alert.
SELECT line.id
FROM timeball.alert_delivery AS own
JOIN timeball.alert_delivery AS line ON line.alert_id = own.alert_id AND line.channel IS NOT DISTINCT FROM own.channel
WHERE own.id = :id
ORDER BY line.number
FOR UPDATE OF line;

-- name: line_of_delivery
-- A delivery that is due, among those of the same alert to the same channel.
SELECT own.*, coalesce(:now, now()) AS moment,
       EXISTS (SELECT 1 FROM timeball.alert_delivery AS line
               WHERE line.alert_id = own.alert_id AND line.channel IS NOT DISTINCT FROM own.channel AND line.number < own.number AND line.heard_at IS NOT NULL) AS was_heard,
       EXISTS (SELECT 1 FROM timeball.alert_delivery AS line
               WHERE line.alert_id = own.alert_id AND line.channel IS NOT DISTINCT FROM own.channel AND line.number > own.number
                 AND line.run_at <= coalesce(:now, now())) AS is_overtaken,
       EXISTS (SELECT 1 FROM timeball.alert_delivery AS line
               JOIN timeball.running ON running.id = line.id
               WHERE line.alert_id = own.alert_id AND line.channel IS NOT DISTINCT FROM own.channel AND line.number < own.number
                 AND line.heard_at IS NOT NULL AND line.sent_at IS NULL) AS must_wait
FROM timeball.alert_delivery AS own
WHERE own.id = :id;

-- name: begin_delivery
-- An attempt is about to send it, by the settings of this version of the channel.
UPDATE timeball.alert_delivery
SET channel_version = :channel_version::integer,
    begun_at = coalesce(begun_at, coalesce(:now, now())),
    heard_at = coalesce(heard_at, coalesce(:now, now())),
    left_out = NULL
WHERE id = :id;

-- name: note_unheard_delivery
UPDATE timeball.alert_delivery
SET heard_at = NULL
WHERE id = :id
  AND sent_at IS NULL;

-- name: note_sent_delivery
UPDATE timeball.alert_delivery
SET sent_at = coalesce(sent_at, coalesce(:now, now())),
    heard_at = coalesce(heard_at, coalesce(:now, now())),
    left_out = NULL
WHERE id = :id;

-- name: leave_out_delivery
UPDATE timeball.alert_delivery
SET left_out = :reason
WHERE id = :id
  AND sent_at IS NULL;

-- fragment: delivery_facts
delivery.id, delivery.number, delivery.channel, delivery.alert_id, delivery.event, delivery.run_at, delivery.begun_at, delivery.sent_at, delivery.left_out,
       delivery.created_at, execution.state, execution.run_at AS next_at, coalesce(execution.attempts, 0) AS attempts,
       coalesce(execution.error, execution.reason,
                (SELECT attempt.error FROM timeball.attempt WHERE attempt.execution_id = delivery.id ORDER BY attempt.finished_at DESC LIMIT 1)) AS error,
       (SELECT alert.sentence FROM timeball.alert WHERE alert.id = delivery.alert_id) AS sentence,
       (SELECT count(*) FROM timeball.attempt WHERE attempt.execution_id = delivery.id) AS failures

-- name: find_delivery
-- A delivery, and where its execution is.
SELECT {delivery_facts}
FROM timeball.alert_delivery AS delivery
LEFT JOIN LATERAL (
    SELECT * FROM timeball.execution WHERE execution.id = delivery.id ORDER BY finished_at NULLS FIRST LIMIT 1
) AS execution ON true
WHERE delivery.id = :id;

-- name: page_deliveries
-- The deliveries of a channel before a place in their list, the latest first, and where their executions are.
SELECT {delivery_facts}
FROM (
    SELECT *
    FROM timeball.alert_delivery
    WHERE channel = :channel
      AND number < :before::bigint
    ORDER BY number DESC
    LIMIT (SELECT :limit::bigint)
) AS delivery
LEFT JOIN LATERAL (
    SELECT * FROM timeball.execution WHERE execution.id = delivery.id ORDER BY finished_at NULLS FIRST LIMIT 1
) AS execution ON true
ORDER BY delivery.number DESC;

-- name: use_secrets_of_channel
-- Whether a running delivery may use some secrets: bound ones always, others only if an administrator wrote the settings of its channel, in the version
-- that this attempt has read. If so, the first use of each secret by the channel is recorded.
WITH found AS MATERIALIZED (
    SELECT channel.name, :is_bound::boolean OR NOT channel.bound_secrets_only AS is_allowed
    FROM timeball.running
    JOIN timeball.alert_delivery AS delivery ON delivery.id = running.job_id
    JOIN timeball.channel ON channel.name = delivery.channel AND channel.version = delivery.channel_version
    WHERE running.id = :id
      AND running.claim_id = :claim_id
),
first AS (
    INSERT INTO timeball.secret_use (used_by, secret, first_used_at)
    SELECT 'channel:' || found.name, given.secret, coalesce(:now, now())
    FROM found
    CROSS JOIN unnest(:names::text[]) AS given (secret)
    WHERE found.is_allowed
    ON CONFLICT DO NOTHING
    RETURNING secret
),
noted AS (
    INSERT INTO timeball.audit (id, at, actor, action, subject, after)
    SELECT note.id, coalesce(:now, now()), 'worker', 'secret.use', 'channel:' || found.name,
           jsonb_build_object('name', note.name, 'handler', 'alert.deliver', 'execution', :id::text, 'used_by', 'channel:' || found.name)
    FROM found
    CROSS JOIN unnest(:names::text[], :notes::uuid[]) AS note (name, id)
    JOIN first ON first.secret = note.name
)
SELECT is_allowed
FROM found;
