-- What the HTTP API needs: keys, remembered requests, and which dead executions somebody has dealt with.

-- Who may call. The token itself is shown once and never stored, only its hash.
CREATE TABLE timeball.api_key (
    id         text        PRIMARY KEY,
    name       text        NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
    role       text        NOT NULL CHECK (role IN ('viewer', 'operator', 'editor', 'admin')),
    token_hash bytea       NOT NULL,
    created_at timestamptz NOT NULL,
    expires_at timestamptz,
    revoked_at timestamptz,
    used_at    timestamptz
);

-- A POST that was made under a key, and its answer; without a status it is still in flight.
CREATE TABLE timeball.idempotency_key (
    caller       text        NOT NULL,
    key          text        NOT NULL,
    request_hash bytea       NOT NULL,
    created_at   timestamptz NOT NULL,
    status       integer,
    headers      jsonb,
    body         bytea,
    PRIMARY KEY (caller, key)
);

-- forget_old_requests: the oldest first.
CREATE INDEX idempotency_key_by_age ON timeball.idempotency_key (created_at);

-- Dead executions that somebody has dealt with: they leave the dead-letter list, their history stays as it is.
CREATE TABLE timeball.settled (
    execution_id uuid        PRIMARY KEY,
    how          text        NOT NULL CHECK (how IN ('retried', 'discarded')),
    settled_at   timestamptz NOT NULL
);

-- Lists of what waits for its next attempt: among a million rows that lie ahead, those are few.
CREATE INDEX due_retrying ON timeball.due (id) WHERE kind = 'retry';
