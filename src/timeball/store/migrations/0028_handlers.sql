-- What workers publish of each handler: a row for each contract that a worker has started with. `started_at` is when a worker process last did so;
-- the latest of a name is the newest contract. Written when a worker starts with another contract than the newest, never by a heartbeat.
CREATE TABLE timeball.handler (
    name         text        NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
    fingerprint  text        NOT NULL,
    schema       jsonb       NOT NULL,
    options      jsonb       NOT NULL,
    doc          text        NOT NULL,
    run_style    text        NOT NULL,
    published_at timestamptz NOT NULL,
    started_at   timestamptz NOT NULL,
    PRIMARY KEY (name, fingerprint)
);

-- The contracts that a worker runs, by their fingerprints.
ALTER TABLE timeball.node ADD COLUMN fingerprints text[] NOT NULL DEFAULT '{}';
