-- The change stream. It is read from records that exist anyway, so no state change costs an extra row.

-- name: position
-- The present position of the change stream.
SELECT pg_current_snapshot()::text;

-- name: changes
-- What this statement sees and the snapshot :position did not: ends, unsuccessful attempts and actions of operators, at most :limit of each.
-- There is always a row: it has the position behind what was read, and tells whether :position belongs to this database.
-- With :transactions a reader that is far behind reads no more than that many transactions, and is told that there is more: as `fold`, it stops at a
-- snapshot made of all transactions before one that has ended.
WITH mark AS MATERIALIZED (
    SELECT :position::text::pg_snapshot AS seen,
           pg_snapshot_xmin(:position::text::pg_snapshot)::text::bigint AS seen_from,
           pg_snapshot_xmax(:position::text::pg_snapshot)::text::bigint AS seen_until,
           CASE
               WHEN pg_snapshot_xmin(pg_current_snapshot())::text::bigint
                  > pg_snapshot_xmax(:position::text::pg_snapshot)::text::bigint + :transactions::bigint
               THEN pg_snapshot_xmax(:position::text::pg_snapshot)::text::bigint + :transactions::bigint
           END AS stops_at
),
edge AS MATERIALIZED (
    SELECT mark.seen, mark.stops_at IS NOT NULL AS has_more,
           CASE WHEN mark.stops_at IS NULL THEN pg_current_snapshot() ELSE format('%1$s:%1$s:', mark.stops_at)::pg_snapshot END AS until
    FROM mark
),
change AS MATERIALIZED (
    (
        SELECT 'finished' AS source, finished.state AS what, finished.id, finished.fence, finished.finished_at AS at, finished.job_id,
               finished.queue, finished.handler, finished.origin, finished.scheduled_for, finished.started_at,
               CASE WHEN finished.error_type IS NULL THEN finished.attempts END AS try, finished.attempts, finished.worker,
               finished.error_type, finished.reason, NULL::text AS subject, NULL::boolean AS will_retry, NULL::text AS kind, NULL::text AS severity, finished.recorded
        FROM mark
        CROSS JOIN timeball.finished
        WHERE finished.recorded >= (SELECT seen_from FROM mark)
          AND finished.recorded < (SELECT pg_snapshot_xmax(until)::text::bigint FROM edge)
          AND (finished.recorded >= mark.seen_until OR NOT pg_visible_in_snapshot(finished.recorded::text::xid8, mark.seen))
        LIMIT :limit
    )
    UNION ALL
    (
        SELECT 'attempt', attempt.outcome, attempt.execution_id, attempt.fence, attempt.finished_at, execution.job_id,
               execution.queue, execution.handler, execution.origin, execution.scheduled_for, attempt.started_at,
               attempt.number, attempt.number, attempt.worker,
               attempt.error_type, NULL, NULL,
               -- The end of an execution and its last attempt have one fence and one instant; one that is cancelled while it waits for a retry ends later.
               execution.fence > attempt.fence OR execution.finished_at IS DISTINCT FROM attempt.finished_at,
               NULL, NULL, attempt.recorded
        FROM mark
        CROSS JOIN timeball.attempt
        CROSS JOIN LATERAL (
            SELECT *
            FROM timeball.execution
            WHERE execution.id = attempt.execution_id
            LIMIT 1
        ) AS execution
        WHERE attempt.recorded >= (SELECT seen_from FROM mark)
          AND attempt.recorded < (SELECT pg_snapshot_xmax(until)::text::bigint FROM edge)
          AND (attempt.recorded >= mark.seen_until OR NOT pg_visible_in_snapshot(attempt.recorded::text::xid8, mark.seen))
        LIMIT :limit
    )
    UNION ALL
    (
        SELECT 'audit', audit.action, audit.id, 0, audit.at, NULL,
               NULL, NULL, NULL, NULL, NULL,
               NULL, NULL, NULL,
               NULL, audit.reason, audit.subject, NULL,
               CASE WHEN audit.subject LIKE 'alert:%' THEN audit.after ->> 'kind' END,
               CASE WHEN audit.subject LIKE 'alert:%' THEN audit.after ->> 'severity' END, audit.recorded
        FROM mark
        CROSS JOIN timeball.audit
        WHERE audit.recorded >= (SELECT seen_from FROM mark)
          AND audit.recorded < (SELECT pg_snapshot_xmax(until)::text::bigint FROM edge)
          AND (audit.recorded >= mark.seen_until OR NOT pg_visible_in_snapshot(audit.recorded::text::xid8, mark.seen))
        LIMIT :limit
    )
)
SELECT edge.until::text AS position, edge.has_more,
       pg_snapshot_xmax(edge.seen) > pg_snapshot_xmax(pg_current_snapshot()) AS is_from_elsewhere,
       change.*
FROM edge
LEFT JOIN change ON true
ORDER BY change.at, change.id, change.source;

-- name: started_executions
-- The executions that have started and still run, the latest first.
SELECT id, fence, job_id, queue, handler, origin, scheduled_for, greatest(claimed_at, run_at) AS started_at, attempts AS try, holder AS worker,
       progress, progress_note
FROM timeball.running
WHERE run_at <= coalesce(:now, now())
ORDER BY greatest(claimed_at, run_at) DESC
LIMIT :limit;
