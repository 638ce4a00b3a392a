-- A crowd that was enqueued or scheduled for one instant is claimed in parts; by its instant alone, every part would be looked for among the dead rows
-- of all parts before it, which a foreign long transaction keeps vacuum from removing. So a lane is read from a mark on: an instant and, in it, an id.

DROP INDEX timeball.ready_by_lane;
-- claim: a lane (queue, priority) in the order of time, and in that of ids. Never (queue, rank): see ARCHITECTURE.md, "Lanes".
-- The bytes of the id, in the same order, and not the id itself: that is to be looked up by the primary key and by nothing else.
CREATE INDEX ready_by_lane ON timeball.ready (queue, priority, run_at, uuid_send(id));

-- The heads of some lanes: of each, from its mark on, the first rows that these handlers can run.
-- A room that was empty when vacuum last looked is believed to be empty. For a planner with that belief it is all the same to read a lane by
-- its index or to fetch and sort all of it, which a claim from a long lane must never do; so here it has no choice, whatever the session says.
CREATE FUNCTION timeball.lane_heads(queues text[], priorities smallint[], bounds timestamptz[], first_ids uuid[], until timestamptz, handlers text[],
                                    each integer)
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
    FROM unnest(queues, priorities, bounds, first_ids) AS lane (queue, priority, bound, first_id)
    CROSS JOIN LATERAL (
        SELECT ready.ctid AS tid, ready.run_at
        FROM timeball.ready
        WHERE ready.queue = lane.queue
          AND ready.priority = lane.priority
          AND (ready.run_at, uuid_send(ready.id)) >= (lane.bound, uuid_send(lane.first_id))
          AND ready.run_at <= until
          AND ready.handler = ANY (handlers)
        ORDER BY ready.run_at, uuid_send(ready.id)
        LIMIT each
    ) AS found;
END
$$;
-- The one it replaces.
DROP FUNCTION timeball.lane_heads(text[], smallint[], timestamptz[], timestamptz, text[], integer);
