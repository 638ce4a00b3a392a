-- Outgoing webhooks: their settings, the recording of what they are to be told, and the deliveries.

-- name: list_webhooks
SELECT *
FROM timeball.webhook
ORDER BY id;

-- name: find_webhook
SELECT *
FROM timeball.webhook
WHERE id = :id;

-- name: lock_webhook
SELECT *
FROM timeball.webhook
WHERE id = :id
FOR NO KEY UPDATE;

-- name: begin_webhook_position
-- Read the changes from now on, unless they are read already. It locks the row: webhooks are created one after the other, so that their number can be
-- counted, and no recorder finds that none is active while this one becomes active.
UPDATE timeball.webhook_position
SET seen = coalesce(seen, pg_current_snapshot()),
    seen_at = coalesce(seen_at, :now, now());

-- name: count_webhooks
SELECT count(*)
FROM timeball.webhook;

-- name: add_webhook
INSERT INTO timeball.webhook (id, url, description, events, queue, job_id, handler, tag, format, secret, state, since, created_by, created_at, updated_at)
VALUES (:id, :url, :description, :events::text[], :queue, :job_id, :handler, :tag, :format, :secret, 'active', pg_current_snapshot(), :created_by,
        coalesce(:now, now()), coalesce(:now, now()))
RETURNING *;

-- name: write_webhook
UPDATE timeball.webhook
SET url = :url,
    description = :description,
    events = :events::text[],
    queue = :queue,
    job_id = :job_id,
    handler = :handler,
    tag = :tag,
    format = :format,
    version = version + 1,
    updated_at = coalesce(:now, now())
WHERE id = :id
RETURNING *;

-- name: enable_webhook
-- It gets what happens from now on, and what had waited.
WITH enabled AS (
    UPDATE timeball.webhook
    SET state = 'active',
        disabled_reason = NULL,
        since = pg_current_snapshot(),
        failing_since = NULL,
        version = version + 1,
        updated_at = coalesce(:now, now())
    WHERE id = :id
    RETURNING *
),
released AS (
    UPDATE timeball.webhook_delivery
    SET next_at = coalesce(:now, now())
    WHERE id IN (
        SELECT DISTINCT ON (subject) waiting.id
        FROM timeball.webhook_delivery AS waiting
        WHERE waiting.webhook_id = :id
          AND waiting.state = 'pending'
        ORDER BY subject, number
    )
)
SELECT *
FROM enabled;

-- name: disable_webhook
-- It gets nothing any more. What waits is held back until it is enabled again; a test is sent nevertheless.
WITH held AS (
    UPDATE timeball.webhook_delivery
    SET next_at = NULL
    WHERE webhook_id = :id
      AND next_at IS NOT NULL
      AND type <> 'webhook.test'
)
UPDATE timeball.webhook
SET state = 'disabled',
    disabled_reason = :reason,
    version = version + 1,
    updated_at = coalesce(:now, now())
WHERE id = :id
RETURNING *;

-- name: rotate_webhook_secret
UPDATE timeball.webhook
SET previous_secret = CASE WHEN :keep::interval > interval '0' THEN secret END,
    previous_until = CASE WHEN :keep::interval > interval '0' THEN coalesce(:now, now()) + :keep::interval END,
    secret = :secret,
    version = version + 1,
    updated_at = coalesce(:now, now())
WHERE id = :id
RETURNING *;

-- name: delete_webhook
DELETE FROM timeball.webhook
WHERE id = :id;

-- name: lock_webhook_position
-- The snapshot up to which webhooks have been given the changes, locked while they are given more. No row while another process does so.
SELECT seen::text AS seen, seen_at
FROM timeball.webhook_position
FOR UPDATE SKIP LOCKED;

-- name: lock_active_webhooks
-- The webhooks that get events, locked against the recording of attempts: a delivery that ends meanwhile would not release those that are added.
SELECT *, since::text AS since_text
FROM timeball.webhook
WHERE state = 'active'
ORDER BY id
FOR NO KEY UPDATE;

-- name: any_webhook
SELECT EXISTS (SELECT 1 FROM timeball.webhook);

-- name: begin_webhooks_anew
-- In a restored database the stored snapshots mean nothing.
UPDATE timeball.webhook
SET since = pg_current_snapshot();

-- name: move_webhook_position
UPDATE timeball.webhook_position
SET seen = :seen::text::pg_snapshot,
    seen_at = CASE WHEN :seen::text IS NOT NULL THEN coalesce(:seen_at::timestamptz, :now, now()) END;

-- name: add_webhook_deliveries
-- Deliveries of events, in their order. One whose subject has an earlier delivery that is not over waits for that.
WITH event AS MATERIALIZED (
    SELECT event.*, row_number() OVER (PARTITION BY event.webhook_id, event.subject ORDER BY event.place) AS turn
    FROM unnest(:ids::uuid[], :webhook_ids::uuid[], :event_ids::uuid[], :types::text[], :subjects::text[], :ats::timestamptz[], :bodies::text[])
         WITH ORDINALITY AS event (id, webhook_id, event_id, type, subject, at, body, place)
),
counted AS (
    UPDATE timeball.webhook
    SET waiting = waiting + added.number
    FROM (SELECT webhook_id, count(*)::integer AS number FROM event GROUP BY webhook_id) AS added
    WHERE webhook.id = added.webhook_id
)
INSERT INTO timeball.webhook_delivery (id, webhook_id, event_id, type, subject, occurred_at, body, next_at, created_at)
SELECT event.id, event.webhook_id, event.event_id, event.type, event.subject, event.at, event.body,
       CASE
           WHEN event.turn = 1
            AND NOT EXISTS (
                SELECT 1
                FROM timeball.webhook_delivery AS earlier
                WHERE earlier.webhook_id = event.webhook_id
                  AND earlier.subject = event.subject
                  AND earlier.state = 'pending'
            )
           THEN coalesce(:now, now())
       END,
       coalesce(:now, now())
FROM event
ORDER BY event.place;

-- name: claim_webhook_deliveries
-- Deliveries that are due, of each webhook as many as :each less those that the caller is sending, with what is needed to send them.
-- Until :patience has passed no other process sends them: if this one dies, another does after that.
WITH capacity AS (
    SELECT webhook.id, :each::integer - coalesce(busy.number, 0) AS number
    FROM timeball.webhook
    LEFT JOIN unnest(:busy_ids::uuid[], :busy_numbers::integer[]) AS busy (id, number) ON busy.id = webhook.id
),
chosen AS MATERIALIZED (
    SELECT due.tid
    FROM capacity
    CROSS JOIN LATERAL (
        SELECT webhook_delivery.ctid AS tid
        FROM timeball.webhook_delivery
        WHERE webhook_delivery.webhook_id = capacity.id
          AND webhook_delivery.next_at <= coalesce(:now, now())
        ORDER BY webhook_delivery.next_at
        LIMIT greatest(capacity.number, 0)
        FOR UPDATE SKIP LOCKED
    ) AS due
),
claimed AS (
    UPDATE timeball.webhook_delivery
    SET next_at = coalesce(:now, now()) + :patience::interval,
        attempts = attempts + 1
    WHERE webhook_delivery.ctid = ANY (ARRAY(SELECT chosen.tid FROM chosen))
    RETURNING webhook_delivery.*
)
SELECT claimed.id, claimed.webhook_id, claimed.event_id, claimed.type, claimed.body, claimed.attempts, claimed.number, claimed.created_at,
       webhook.url, webhook.format, webhook.secret,
       CASE WHEN webhook.previous_until > coalesce(:now, now()) THEN webhook.previous_secret END AS previous_secret
FROM claimed
JOIN timeball.webhook ON webhook.id = claimed.webhook_id
ORDER BY claimed.number;

-- name: lock_webhooks
SELECT *
FROM timeball.webhook
WHERE id = ANY (:ids::uuid[])
ORDER BY id
FOR NO KEY UPDATE;

-- name: record_delivery_attempts
-- Each attempt only while it is the last one of its delivery: what a process has sent long ago does not count any more.
-- A delivery of a webhook that is disabled is held back, unless it is a test.
WITH attempt AS MATERIALIZED (
    SELECT *
    FROM json_to_recordset(:attempts::text::json) AS a (id uuid, attempt integer, state text, pause_ms bigint, trial jsonb)
),
recorded AS (
    UPDATE timeball.webhook_delivery
    SET state = attempt.state,
        tries = CASE WHEN jsonb_array_length(tries) >= :kept::integer THEN tries - 0 ELSE tries END || attempt.trial,
        next_at = CASE
            WHEN attempt.state = 'pending' AND webhook.state = 'active'
            THEN coalesce(:now, now()) + attempt.pause_ms * interval '1 millisecond'
        END,
        finished_at = CASE WHEN attempt.state <> 'pending' THEN coalesce(:now, now()) END
    FROM attempt, timeball.webhook
    WHERE webhook_delivery.id = attempt.id
      AND webhook_delivery.attempts = attempt.attempt
      AND webhook_delivery.state = 'pending'
      AND webhook.id = webhook_delivery.webhook_id
    RETURNING webhook_delivery.id, webhook_delivery.webhook_id, webhook_delivery.subject, webhook_delivery.state, webhook_delivery.type
),
noted AS (
    UPDATE timeball.webhook
    SET waiting = waiting - summary.over,
        succeeded_at = CASE WHEN summary.succeeded > 0 THEN coalesce(:now, now()) ELSE succeeded_at END,
        failing_since = CASE WHEN summary.succeeded > 0 THEN NULL ELSE coalesce(failing_since, :now, now()) END
    FROM (
        SELECT webhook_id, count(*) FILTER (WHERE state <> 'pending')::integer AS over, count(*) FILTER (WHERE state = 'delivered') AS succeeded
        FROM recorded
        GROUP BY webhook_id
    ) AS summary
    WHERE webhook.id = summary.webhook_id
)
SELECT id, webhook_id, subject, state
FROM recorded;

-- name: release_webhook_deliveries
-- Let the next delivery of each subject be sent, after one of them is over.
UPDATE timeball.webhook_delivery
SET next_at = coalesce(:now, now())
FROM unnest(:webhook_ids::uuid[], :subjects::text[]) AS ended (webhook_id, subject)
CROSS JOIN LATERAL (
    SELECT waiting.id, waiting.next_at
    FROM timeball.webhook_delivery AS waiting
    WHERE waiting.webhook_id = ended.webhook_id
      AND waiting.subject = ended.subject
      AND waiting.state = 'pending'
    ORDER BY waiting.number
    LIMIT 1
) AS next
JOIN timeball.webhook ON true
WHERE webhook.id = ended.webhook_id
  AND webhook.state = 'active'
  AND webhook_delivery.id = next.id
  AND next.next_at IS NULL;

-- name: webhook_deliveries
-- The deliveries of a webhook, the latest first, before a number. (SELECT :limit): see next_due.
SELECT *
FROM timeball.webhook_delivery
WHERE webhook_id = :webhook_id
  AND number < :before
ORDER BY number DESC
LIMIT (SELECT :limit::bigint);

-- name: webhook_deliveries_in_state
-- The same of one state.
SELECT *
FROM timeball.webhook_delivery
WHERE webhook_id = :webhook_id
  AND state = :state
  AND number < :before
ORDER BY number DESC
LIMIT (SELECT :limit::bigint);

-- name: find_webhook_delivery
SELECT *
FROM timeball.webhook_delivery
WHERE id = :id;

-- name: send_webhook_delivery_now
-- One that waits for its next attempt is tried at once; one that is over begins anew with all of its attempts.
UPDATE timeball.webhook_delivery
SET state = 'pending',
    attempts = CASE WHEN state = 'pending' THEN attempts ELSE 0 END,
    next_at = coalesce(:now, now()),
    finished_at = NULL
WHERE id = :id
RETURNING *;

-- name: count_waiting_delivery
UPDATE timeball.webhook
SET waiting = waiting + 1
WHERE id = :id;

-- name: trim_webhook_deliveries
-- The oldest deliveries that are over, or that a disabled webhook holds back.
WITH old AS MATERIALIZED (
    SELECT ctid AS tid
    FROM timeball.webhook_delivery
    WHERE created_at < :before
      AND (state <> 'pending' OR EXISTS (SELECT 1 FROM timeball.webhook WHERE webhook.id = webhook_id AND webhook.state = 'disabled'))
    ORDER BY created_at
    LIMIT (SELECT :limit::bigint)
    FOR UPDATE SKIP LOCKED
),
gone AS (
    DELETE FROM timeball.webhook_delivery
    WHERE webhook_delivery.ctid = ANY (ARRAY(SELECT old.tid FROM old))
    RETURNING webhook_delivery.id, webhook_delivery.webhook_id, webhook_delivery.state
),
counted AS (
    UPDATE timeball.webhook
    SET waiting = waiting - held.number
    FROM (SELECT webhook_id, count(*)::integer AS number FROM gone WHERE state = 'pending' GROUP BY webhook_id) AS held
    WHERE webhook.id = held.webhook_id
)
SELECT id
FROM gone;
