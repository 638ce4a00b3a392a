-- What carries due work to a node, and whether it does.
ALTER TABLE timeball.node
    ADD COLUMN broker       text NOT NULL DEFAULT 'postgresql',
    ADD COLUMN broker_state text NOT NULL DEFAULT 'works',
    ADD COLUMN broker_error text;

-- What tells this system from others that share its Redis or RabbitMQ.
CREATE TABLE timeball.installation (
    id uuid PRIMARY KEY
);

INSERT INTO timeball.installation VALUES (gen_random_uuid());
