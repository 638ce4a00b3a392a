-- An id is looked up by the primary key, and by nothing else. Indexes that ended with it could serve too, if read from one end to the other; and a
-- planner that believes a room to be empty, as vacuum has found it, sees no difference. So ids leave all other indexes of the rooms.

DROP INDEX timeball.due_by_shard;
-- look_ahead: the next rows of a shard.
CREATE INDEX due_by_shard ON timeball.due (shard, run_at);

DROP INDEX timeball.ready_by_lane;
-- claim: a lane (queue, priority) in the order of time. Never (queue, rank): see ARCHITECTURE.md, "Lanes".
CREATE INDEX ready_by_lane ON timeball.ready (queue, priority, run_at);

DROP INDEX timeball.blocked_by_limit;
-- promote: who waits for a limit, most urgent first. The rank as everywhere, but in UTC without a zone: only so can it be kept in an index.
CREATE INDEX blocked_by_limit ON timeball.blocked (limit_key, ((run_at AT TIME ZONE 'UTC') - priority * interval '12 seconds'));

-- The heads of some lanes: of each, in the order of time from its bound on, the first rows that these handlers can run.
-- A room that was empty when vacuum last looked is believed to be empty. For a planner with that belief it is all the same to read a lane by
-- its index or to fetch and sort all of it, which a claim from a long lane must never do; so here it has no choice, whatever the session says.
CREATE OR REPLACE FUNCTION timeball.lane_heads(queues text[], priorities smallint[], bounds timestamptz[], until timestamptz, handlers text[], each integer)
RETURNS TABLE (tid tid, run_at timestamptz, rank timestamptz)
LANGUAGE plpgsql
STABLE
ROWS 1
SET enable_bitmapscan = off
SET enable_seqscan = off
SET enable_sort = off
SET plan_cache_mode = force_generic_plan
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
        ORDER BY ready.run_at
        LIMIT each
    ) AS found;
END
$$;
