-- The numbers of this moment. Each is counted up to a limit, so that it costs the same with a hundred rows and with a million.

-- name: present_numbers
-- What waits, runs, is late and is dead, each counted up to :limit + 1; and how long the oldest ready execution has waited.
-- Late executions are searched lane by lane, each from its first: otherwise all ready executions would be read whenever none is late.
-- `lane` and `everything` as in lanes.
WITH RECURSIVE everything AS MATERIALIZED (
    SELECT 0::smallint AS lowest, 100::smallint AS highest, '-infinity'::timestamptz AS first, 'infinity'::timestamptz AS last
),
lane AS (
    (
        SELECT queue, priority
        FROM timeball.ready
        ORDER BY queue, priority, run_at, uuid_send(id)
        LIMIT 1
    )
    UNION ALL
    SELECT following.*
    FROM lane
    CROSS JOIN everything
    CROSS JOIN LATERAL (
        SELECT ready.queue, ready.priority
        FROM timeball.ready
        WHERE (ready.queue, ready.priority) > (lane.queue, lane.priority)
          AND ready.priority BETWEEN everything.lowest AND everything.highest
          AND ready.run_at BETWEEN everything.first AND everything.last
        ORDER BY ready.queue, ready.priority, ready.run_at, uuid_send(ready.id)
        LIMIT 1
    ) AS following
)
SELECT coalesce(:now, now()) AS moment,
       (SELECT count(*) FROM (SELECT 1 FROM timeball.running WHERE run_at <= coalesce(:now, now()) LIMIT :limit + 1) AS few) AS running,
       (SELECT count(*) FROM (SELECT 1 FROM timeball.ready LIMIT :limit + 1) AS few)
       + (SELECT count(*) FROM (SELECT 1 FROM timeball.blocked LIMIT :limit + 1) AS few)
       + (SELECT count(*) FROM (SELECT 1 FROM timeball.running WHERE run_at > coalesce(:now, now()) LIMIT :limit + 1) AS few) AS queued,
       (SELECT count(*) FROM (SELECT 1 FROM timeball.due WHERE kind NOT IN ('resume', 'retry') LIMIT :limit + 1) AS few) AS scheduled,
       (SELECT count(*) FROM (SELECT 1 FROM timeball.due WHERE kind = 'retry' LIMIT :limit + 1) AS few) AS retrying,
       (
           SELECT count(*)
           FROM (
               SELECT 1
               FROM lane
               CROSS JOIN LATERAL (
                   SELECT 1
                   FROM timeball.ready
                   WHERE ready.queue = lane.queue
                     AND ready.priority = lane.priority
                     AND ready.run_at < coalesce(:now, now()) - :late_after::interval
                   LIMIT (SELECT :limit::bigint + 1)
               ) AS late
               LIMIT :limit + 1
           ) AS few
       ) AS late,
       (
           SELECT count(*)
           FROM (
               SELECT 1
               FROM timeball.finished
               WHERE state = 'dead'
                 AND NOT EXISTS (SELECT 1 FROM timeball.settled WHERE settled.execution_id = finished.id)
               LIMIT :limit + 1
           ) AS few
       ) AS dead,
       (
           SELECT count(*)
           FROM timeball.shard
           CROSS JOIN LATERAL (
               SELECT 1
               FROM timeball.due
               WHERE due.shard = shard.id
                 AND due.run_at < coalesce(:now, now()) - :late_after::interval
               LIMIT 1000
           ) AS few
       ) AS overdue;

-- name: database_numbers
-- The oldest open transaction of the database, and the dead rows of each state table.
SELECT coalesce((SELECT extract(epoch FROM max(coalesce(:now, now()) - xact_start)) FROM pg_stat_activity WHERE datname = current_database()), 0)::double precision
           AS oldest_transaction_seconds,
       array_agg(relname::text ORDER BY relname) AS state_tables,
       array_agg(n_dead_tup ORDER BY relname) AS dead_rows
FROM pg_stat_user_tables
WHERE schemaname = 'timeball'
  AND relname IN ('due', 'ready', 'blocked', 'running');
