-- A limit that several jobs share is what was last said of it, by an edit or by a job that is new. Only an edit of a job took back what had been let in
-- under its own higher limit; whoever else said less left more in `ready` than may run. Now every write that lowers a limit takes back what is too much,
-- in the same statement, whichever release makes it, and in a caller's own transaction too.

-- Let what is ready and has no place any more wait for one again, the least urgent first; what runs goes on.
-- The limit is locked by the write that has lowered it, so nobody else lets in; this looks afresh behind that lock, and sees whatever was let in before.
-- Claims lock no limit. One that is under way is waited for: what it takes counts as before, and another is taken back in its place.
CREATE FUNCTION timeball.take_back()
RETURNS trigger
LANGUAGE plpgsql
VOLATILE
SET enable_seqscan = off
SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    WITH chosen AS MATERIALIZED (
        SELECT ready.ctid AS tid
        FROM timeball.ready
        WHERE ready.limit_key = NEW.key
        ORDER BY (ready.run_at AT TIME ZONE 'UTC') - ready.priority * interval '12 seconds' DESC
        LIMIT greatest((SELECT count(*) FROM timeball.ready AS let_in WHERE let_in.limit_key = NEW.key)
                         + (SELECT count(*) FROM timeball.running WHERE running.limit_key = NEW.key)
                         - NEW.max_running, 0)
        FOR UPDATE
    ),
    taken AS (
        DELETE FROM timeball.ready
        WHERE ready.ctid = ANY (ARRAY(SELECT chosen.tid FROM chosen))
        RETURNING ready.*
    )
    INSERT INTO timeball.blocked (id, job_id, origin, version, queue, priority, handler, scheduled_for, run_at, queued_at,
                                  attempts, lost, fence, tzdata, limit_key, unique_key, payload, retry_of)
    SELECT id, job_id, origin, version, queue, priority, handler, scheduled_for, run_at, queued_at,
           attempts, lost, fence, tzdata, limit_key, unique_key, payload, retry_of
    FROM taken;
    RETURN NULL;
END
$$;

-- A lower limit counts for what was let in before it, too.
CREATE TRIGGER lower_limit_takes_back
AFTER UPDATE ON timeball.running_limit
FOR EACH ROW
WHEN (NEW.max_running < OLD.max_running)
EXECUTE FUNCTION timeball.take_back();

-- What a version should have recorded up to its end can be told only by the time-zone data of its time: if it left no record that cites them, newer data
-- may name an instant in its last moments which nobody knew of. So it says itself by which data it owed nothing more; NULL while it answers, and where
-- that is not known.
ALTER TABLE timeball.job_version ADD COLUMN tzdata text;
