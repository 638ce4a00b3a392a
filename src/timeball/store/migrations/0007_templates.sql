-- Job templates, operations over many things, and from where a change was made.

ALTER TABLE timeball.audit ADD COLUMN place text;

-- Jobs that are not made yet: the fields of one, as they would be posted.
CREATE TABLE timeball.template (
    id          uuid        PRIMARY KEY,
    name        text        NOT NULL UNIQUE CHECK (length(name) BETWEEN 1 AND 200),
    description text,
    job         jsonb       NOT NULL,
    version     integer     NOT NULL CHECK (version >= 1),
    created_at  timestamptz NOT NULL,
    updated_at  timestamptz NOT NULL
);

-- Something that is done to many executions, in the background. Whoever works it off holds it by lease.
CREATE TABLE timeball.operation (
    id               uuid        PRIMARY KEY,
    action           text        NOT NULL CHECK (action IN ('cancel', 'retry', 'discard')),
    state            text        NOT NULL CHECK (state IN ('pending', 'running', 'succeeded', 'cancelled', 'failed')),
    actor            text        NOT NULL,
    place            text,
    reason           text,
    settles          boolean     NOT NULL,
    total            integer     NOT NULL CHECK (total >= 0),
    done             integer     NOT NULL DEFAULT 0,
    failed           integer     NOT NULL DEFAULT 0,
    cancel_requested boolean     NOT NULL DEFAULT false,
    error            text,
    holder           uuid,
    lease_until      timestamptz,
    created_at       timestamptz NOT NULL,
    started_at       timestamptz,
    finished_at      timestamptz
);

-- take_operation: what is not finished, the oldest first.
CREATE INDEX operation_unfinished ON timeball.operation (id) WHERE finished_at IS NULL;

-- What an operation is to be done to, and what came of each.
CREATE TABLE timeball.operation_item (
    operation_id uuid    NOT NULL REFERENCES timeball.operation ON DELETE CASCADE,
    number       integer NOT NULL,
    execution_id uuid    NOT NULL,
    status       text    CHECK (status IN ('done', 'failed')),
    made         uuid,
    error        text,
    PRIMARY KEY (operation_id, number)
);

-- next_items: what is left of an operation, in order.
CREATE INDEX operation_item_left ON timeball.operation_item (operation_id, number) WHERE status IS NULL;
