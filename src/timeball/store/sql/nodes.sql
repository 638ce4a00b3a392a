-- Nodes, their leases, and the owners of shards.

-- name: register_node
INSERT INTO timeball.node (incarnation, kind, name, started_at, renewed_at, lease_until, lease_seconds, slots, queues, handlers, fingerprints, version,
                           broker, trouble, trouble_at)
VALUES (:incarnation, :kind, :name, coalesce(:now, now()), coalesce(:now, now()), coalesce(:now, now()) + :lease::interval,
        extract(epoch FROM :lease::interval), :slots, :queues::text[], :handlers::text[], :fingerprints::text[], :version, :broker, :trouble,
        CASE WHEN :trouble::text IS NOT NULL THEN coalesce(:now, now()) END);

-- name: renew_lease
-- Renew a lease that has not expired. Zero rows mean that the node is no longer alive, and has to stop.
-- A worker is told its peers, itself included: workers of the same queues and handlers, any of which can answer a wake-up.
UPDATE timeball.node
SET renewed_at = coalesce(:now, now()),
    lease_until = coalesce(:now, now()) + lease_seconds * interval '1 second',
    busy = :busy,
    broker_state = :broker_state,
    broker_error = :broker_error,
    trouble = coalesce(:trouble::text, trouble),
    trouble_at = CASE WHEN :trouble::text IS NULL THEN trouble_at ELSE coalesce(:now, now()) END
WHERE incarnation = :incarnation
  AND lease_until > coalesce(:now, now())
RETURNING draining,
          clock_timestamp() AS database_time,
          ARRAY(
              SELECT (peer.incarnation, peer.slots, peer.busy)
              FROM timeball.node AS peer
              WHERE peer.kind = 'worker'
                AND peer.kind = node.kind
                AND peer.broker = node.broker
                AND peer.queues IS NOT DISTINCT FROM node.queues
                AND peer.handlers = node.handlers
                AND peer.lease_until > coalesce(:now, now())
                AND NOT peer.draining
          ) AS peers;

-- name: read_clock
SELECT clock_timestamp() AS database_time;

-- name: read_identity
-- The database and its timeline: a promoted standby begins a new one. Not the timeline of the control file, which changes only with the first checkpoint
-- after the promotion.
SELECT system_identifier || '/' || CASE WHEN pg_is_in_recovery() THEN 'standby' ELSE left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) END AS identity
FROM pg_control_system();

-- name: remove_node
-- Deregister a node: its row goes, and its shards are released.
WITH released AS (
    UPDATE timeball.shard
    SET owner = NULL
    WHERE owner = :incarnation
)
DELETE FROM timeball.node
WHERE incarnation = :incarnation;

-- name: remove_expired_nodes
-- Remove the nodes whose lease has expired. A later statement rescues their executions, because it then finds no node for them.
DELETE FROM timeball.node
WHERE lease_until < coalesce(:now, now())
RETURNING incarnation, kind, name;

-- name: drain_node
UPDATE timeball.node
SET draining = true
WHERE incarnation = :incarnation
RETURNING incarnation;

-- name: list_nodes
SELECT node.*,
       coalesce((SELECT array_agg(shard.id ORDER BY shard.id) FROM timeball.shard WHERE shard.owner = node.incarnation), '{}') AS shards
FROM timeball.node
ORDER BY kind, name, incarnation;

-- name: read_holdings
-- The shards of each owner, with a row for shards without an owner; and every scheduler among which shards are distributed, even if it owns none.
-- One row for each owner and not for each shard, because every scheduler asks once a second.
WITH owned AS (
    SELECT owner, array_agg(id ORDER BY id) AS shards, array_agg(epoch ORDER BY id) AS epochs
    FROM timeball.shard
    GROUP BY owner
),
living AS (
    SELECT incarnation, draining
    FROM timeball.node
    WHERE kind = 'scheduler'
      AND lease_until > coalesce(:now, now())
)
SELECT coalesce(owned.owner, living.incarnation) AS owner,
       living.incarnation IS NOT NULL AS is_alive,
       coalesce(NOT living.draining, false) AS takes_shards,
       coalesce(owned.shards, '{}') AS shards,
       coalesce(owned.epochs, '{}') AS epochs
FROM owned
FULL JOIN living ON living.incarnation = owned.owner
ORDER BY 1;

-- name: read_inboxes
-- The queues and handlers of the living workers that use a broker: one row for all workers with the same ones.
SELECT DISTINCT queues, handlers
FROM timeball.node
WHERE kind = 'worker'
  AND broker = :broker
  AND NOT draining
  AND lease_until > coalesce(:now, now());

-- name: take_shards
-- Take shards whose owner is dead, if this node itself is alive. Each acquisition is a new epoch.
-- The epoch is compared on the row itself: after a lock wait PostgreSQL does not check again whether the owner is alive, and by then there may be a new one.
WITH free AS MATERIALIZED (
    SELECT shard.id, shard.epoch
    FROM timeball.shard
    WHERE id = ANY (:ids::smallint[])
      AND NOT EXISTS (SELECT 1 FROM timeball.node WHERE node.incarnation = shard.owner AND node.lease_until > coalesce(:now, now()))
      AND EXISTS (SELECT 1 FROM timeball.node WHERE node.incarnation = :incarnation AND node.lease_until > coalesce(:now, now()))
)
UPDATE timeball.shard
SET owner = :incarnation,
    epoch = shard.epoch + 1
FROM free
WHERE shard.id = free.id
  AND shard.epoch = free.epoch
RETURNING shard.id, shard.epoch;

-- name: release_shards
UPDATE timeball.shard
SET owner = NULL
WHERE id = ANY (:ids::smallint[])
  AND owner = :incarnation
RETURNING id;
