-- Sessions of the dashboard.

-- name: add_session
INSERT INTO timeball.dashboard_session (token_hash, key_id, created_at, used_at, expires_at)
VALUES (:token_hash, :key_id, coalesce(:now, now()), coalesce(:now, now()), coalesce(:now, now()) + :lasts::interval);

-- name: find_session
-- The API key of a session, if both are valid now.
SELECT k.id, k.name, k.role, k.created_at, k.expires_at, k.revoked_at, k.used_at
FROM timeball.dashboard_session AS s
JOIN timeball.api_key AS k ON k.id = s.key_id
WHERE s.token_hash = :token_hash
  AND s.expires_at > coalesce(:now, now())
  AND s.used_at > coalesce(:now, now()) - :idle::interval
  AND k.revoked_at IS NULL
  AND (k.expires_at IS NULL OR k.expires_at > coalesce(:now, now()));

-- name: note_session_use
-- At most once a minute: a page that refreshes itself must not write with every request.
UPDATE timeball.dashboard_session
SET used_at = coalesce(:now, now())
WHERE token_hash = :token_hash
  AND used_at < coalesce(:now, now()) - interval '1 minute';

-- name: end_session
DELETE FROM timeball.dashboard_session
WHERE token_hash = :token_hash;

-- name: forget_old_sessions
-- A few at every login, so that no other part has to clean up.
-- Only the first to expire are checked: a planner without statistics would fetch and sort all expired sessions.
DELETE FROM timeball.dashboard_session
WHERE token_hash IN (
    SELECT token_hash
    FROM (
        SELECT token_hash, expires_at
        FROM timeball.dashboard_session
        ORDER BY expires_at
        LIMIT 100
    ) AS first
    WHERE expires_at <= coalesce(:now, now())
);

-- name: read_dashboard_secret
SELECT secret
FROM timeball.dashboard_secret;
