-- Claims of several workers that look at the first rows of a lane and lock them afterwards look at the same ones: who comes second finds all of them
-- locked, and has looked for nothing. Who locks as it looks goes on behind those, and every row is visited once less.

-- Lock the heads of some lanes: up to :wanted rows that these handlers can run and that nobody else is taking, by rank.
-- Of one lane they are locked as they are seen; of several, `looks` rows of each are ranked first.
-- A NULL among them says that others are just taking more.
CREATE FUNCTION timeball.take_heads(queues text[], priorities smallint[], bounds timestamptz[], first_ids uuid[], until timestamptz, handlers text[],
                                    looks integer, wanted integer)
RETURNS SETOF tid
LANGUAGE plpgsql
VOLATILE
ROWS 1
SET enable_bitmapscan = off
SET enable_seqscan = off
SET enable_sort = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    taken integer;
BEGIN
    IF cardinality(queues) = 1 THEN
        RETURN QUERY
        SELECT ready.ctid
        FROM timeball.ready
        WHERE ready.queue = queues[1]
          AND ready.priority = priorities[1]
          AND (ready.run_at, uuid_send(ready.id)) >= (bounds[1], uuid_send(first_ids[1]))
          AND ready.run_at <= until
          AND ready.handler = ANY (handlers)
        ORDER BY ready.run_at, uuid_send(ready.id)
        LIMIT wanted
        FOR UPDATE SKIP LOCKED;
    ELSE
        RETURN QUERY
        SELECT ready.ctid
        FROM timeball.lane_heads(queues, priorities, bounds, first_ids, until, handlers, looks) AS head
        JOIN timeball.ready ON ready.ctid = head.tid
        ORDER BY head.rank
        LIMIT wanted
        FOR UPDATE OF ready SKIP LOCKED;
    END IF;
    GET DIAGNOSTICS taken = ROW_COUNT;
    IF taken < wanted
       AND (SELECT count(*) FROM timeball.lane_heads(queues, priorities, bounds, first_ids, until, handlers, taken + 1)) > taken THEN
        RETURN NEXT NULL;
    END IF;
END
$$;
