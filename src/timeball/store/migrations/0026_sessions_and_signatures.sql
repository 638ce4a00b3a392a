-- Sessions that end when they are not used, and a secret that signs what a browser keeps for us.

ALTER TABLE timeball.dashboard_session ADD COLUMN used_at timestamptz NOT NULL DEFAULT now();

-- One row. It signs short notes in cookies, so that every API process knows what another one has written.
CREATE TABLE timeball.dashboard_secret (
    is_only boolean PRIMARY KEY DEFAULT true CHECK (is_only),
    secret  bytea   NOT NULL CHECK (length(secret) = 32)
);

-- gen_random_uuid is cryptographically strong; two of them have 244 random bits.
INSERT INTO timeball.dashboard_secret (secret)
VALUES (sha256((gen_random_uuid()::text || gen_random_uuid()::text)::bytea));
