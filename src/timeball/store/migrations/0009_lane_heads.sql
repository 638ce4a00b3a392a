-- The heads of some lanes: of each, in the order of time from its bound on, the first rows that these handlers can run.
-- A room that was empty when vacuum last looked is believed to be empty. For a planner with that belief it is all the same to read a lane by
-- its index or to fetch and sort all of it, which a claim from a long lane must never do; so here it has no choice, whatever the session says.
CREATE FUNCTION timeball.lane_heads(queues text[], priorities smallint[], bounds timestamptz[], until timestamptz, handlers text[], each integer)
RETURNS TABLE (tid tid, run_at timestamptz, rank timestamptz)
LANGUAGE plpgsql
STABLE
ROWS 1
SET enable_bitmapscan = off
SET enable_seqscan = off
SET enable_sort = off
AS $$
BEGIN
    RETURN QUERY
    SELECT found.tid, found.run_at, found.run_at - lane.priority * interval '12 seconds'
    FROM unnest(queues, priorities, bounds) AS lane (queue, priority, bound)
    CROSS JOIN LATERAL (
        SELECT ready.ctid AS tid, ready.run_at
        FROM timeball.ready
        WHERE ready.queue = lane.queue
          AND ready.priority = lane.priority
          AND ready.run_at >= lane.bound
          AND ready.run_at <= until
          AND ready.handler = ANY (handlers)
        ORDER BY ready.run_at, ready.id
        LIMIT each
    ) AS found;
END
$$;
