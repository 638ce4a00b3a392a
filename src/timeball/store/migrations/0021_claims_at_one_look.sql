-- An idle worker is told of one execution, and claims it: that there is nothing else, neither due nor coming, took it as long to find out as the claim
-- itself. Of one lane it is found out now at one look.

-- Lock what a claim is to take: up to :slots rows that were due at :until, by rank; then up to :holds that come after :instant; never more than :most.
-- Lanes of queues that are barred give nothing. Of one lane rows are locked as they are seen; of several, `looks` rows of each are ranked first.
-- A NULL among them says that others are just taking more.
CREATE FUNCTION timeball.take_ready(queues text[], priorities smallint[], bounds timestamptz[], first_ids uuid[], barred text[], instant timestamptz,
                                    until timestamptz, handlers text[], looks integer, slots integer, holds integer, most integer)
RETURNS tid[]
LANGUAGE plpgsql
VOLATILE
SET enable_bitmapscan = off
SET enable_seqscan = off
SET enable_sort = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    tids tid[];
    taken integer;
BEGIN
    IF barred <> '{}' THEN
        SELECT array_agg(lane.queue), array_agg(lane.priority), array_agg(lane.bound), array_agg(lane.first_id)
        INTO queues, priorities, bounds, first_ids
        FROM unnest(queues, priorities, bounds, first_ids) AS lane (queue, priority, bound, first_id)
        WHERE lane.queue <> ALL (barred);
    END IF;
    IF queues IS NULL THEN
        RETURN '{}';
    END IF;
    IF cardinality(queues) = 1 THEN
        tids := ARRAY(
            SELECT ready.ctid
            FROM timeball.ready
            WHERE ready.queue = queues[1]
              AND ready.priority = priorities[1]
              AND (ready.run_at, uuid_send(ready.id)) >= (bounds[1], uuid_send(first_ids[1]))
              AND ready.run_at <= until
              AND ready.handler = ANY (handlers)
            ORDER BY ready.run_at, uuid_send(ready.id)
            LIMIT greatest(slots, 0)
            FOR UPDATE SKIP LOCKED
        );
        taken := cardinality(tids);
        -- Nothing else in the lane, due or coming: the usual case where little is to be done, and the one where every microsecond is waited for.
        IF taken < slots
           AND until = instant
           AND NOT EXISTS (
               SELECT 1
               FROM timeball.ready
               WHERE ready.queue = queues[1]
                 AND ready.priority = priorities[1]
                 AND (ready.run_at, uuid_send(ready.id)) >= (least(bounds[1], instant), uuid_send(first_ids[1]))
                 AND ready.handler = ANY (handlers)
               ORDER BY ready.run_at, uuid_send(ready.id)
               OFFSET taken
           ) THEN
            RETURN tids;
        END IF;
        IF taken < slots
           AND (SELECT count(*) FROM timeball.lane_heads(queues, priorities, bounds, first_ids, until, handlers, taken + 1)) > taken THEN
            tids := tids || NULL::tid;
        END IF;
    ELSE
        tids := ARRAY(SELECT timeball.take_heads(queues, priorities, bounds, first_ids, until, handlers, looks, greatest(slots, 0)));
        taken := cardinality(array_remove(tids, NULL));
    END IF;
    IF holds > 0 THEN
        tids := tids || ARRAY(
            SELECT timeball.take_heads(queues, priorities, array_fill(instant + interval '1 microsecond', ARRAY[cardinality(queues)]),
                                       array_fill('00000000-0000-0000-0000-000000000000'::uuid, ARRAY[cardinality(queues)]), 'infinity', handlers, holds,
                                       least(holds, most - taken))
        );
    END IF;
    RETURN tids;
END
$$;
