-- What the dashboard needs: people who have logged in with an API key.

-- A browser that showed a key. The cookie is shown once and never stored, only its hash; a revoked or expired key ends it.
CREATE TABLE timeball.dashboard_session (
    token_hash bytea       PRIMARY KEY,
    key_id     text        NOT NULL REFERENCES timeball.api_key (id) ON DELETE CASCADE,
    created_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL
);

-- forget_old_sessions: the oldest first.
CREATE INDEX dashboard_session_by_end ON timeball.dashboard_session (expires_at);
