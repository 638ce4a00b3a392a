-- PostgreSQL reads and prepares every CHECK of a table anew for each statement that inserts into it, whether or not a row can break it: the 25 of
-- `job` took a single enqueue longer than its two rows. Now there is one, which takes the usual one-off at a glance and asks a function about all others.
-- The rules are the same, and so are their names.

-- Whether a job is one that can be. It never says no: it refuses, with the name of the rule that is broken.
-- The constraint of `job` asks this; what stands before it there is only quicker, and must never let through what would be refused here.
CREATE FUNCTION timeball.is_sound(one timeball.job)
RETURNS boolean
LANGUAGE plpgsql
IMMUTABLE
PARALLEL SAFE
AS $$
DECLARE
    broken CONSTANT text := CASE
        WHEN one.kind NOT IN ('once', 'every', 'cron', 'manual') THEN 'job_kind_check'
        WHEN one.kind = 'once' AND one.scheduled_at IS NULL THEN 'once_has_instant'
        WHEN one.kind = 'every' AND (one.interval_seconds IS NULL OR one.scheduled_at IS NULL) THEN 'every_has_interval'
        WHEN one.kind = 'cron' AND (one.schedule IS NULL OR one.timezone IS NULL) THEN 'cron_has_schedule'
        WHEN length(one.name) NOT BETWEEN 1 AND 200 THEN 'job_name_check'
        WHEN length(one.handler) NOT BETWEEN 1 AND 200 THEN 'job_handler_check'
        WHEN one.interval_seconds < 1 THEN 'job_interval_seconds_check'
        WHEN one.scheduled_at < '1970-01-01Z'::timestamptz OR one.scheduled_at >= '2200-01-01Z'::timestamptz THEN 'job_scheduled_at_check'
        WHEN one.on_gap NOT IN ('next_valid', 'skip') THEN 'job_on_gap_check'
        WHEN one.on_repeat NOT IN ('first', 'second', 'both') THEN 'job_on_repeat_check'
        WHEN one.max_executions < 1 THEN 'job_max_executions_check'
        WHEN one.jitter_seconds < 0 THEN 'job_jitter_seconds_check'
        WHEN one.misfire NOT IN ('latest', 'skip', 'all') THEN 'job_misfire_check'
        WHEN one.misfire_grace_seconds < 0 THEN 'job_misfire_grace_seconds_check'
        WHEN one.misfire_cap < 1 THEN 'job_misfire_cap_check'
        WHEN one.misfire_max_age_seconds < 0 THEN 'job_misfire_max_age_seconds_check'
        WHEN one.overlap NOT IN ('allow', 'skip', 'queue', 'cancel_running') THEN 'job_overlap_check'
        WHEN length(one.queue) NOT BETWEEN 1 AND 200 THEN 'job_queue_check'
        WHEN one.priority NOT BETWEEN 0 AND 100 THEN 'job_priority_check'
        WHEN one.max_retries < 0 THEN 'job_max_retries_check'
        WHEN one.max_lost < 1 THEN 'job_max_lost_check'
        WHEN one.initial_backoff_ms < 0 THEN 'job_initial_backoff_ms_check'
        WHEN one.max_backoff_ms < 0 THEN 'job_max_backoff_ms_check'
        WHEN one.timeout_ms < 1 THEN 'job_timeout_ms_check'
        WHEN one.max_running < 1 THEN 'job_max_running_check'
    END;
BEGIN
    IF broken IS NULL THEN
        RETURN true;
    END IF;
    RAISE check_violation USING
        MESSAGE = format('job %s breaks the rule %I', one.id, broken),
        SCHEMA = 'timeball', TABLE = 'job', CONSTRAINT = broken;
END
$$;

-- NOT VALID, so that no table of millions is read while everybody waits: its rows were checked by the rules that go.
ALTER TABLE timeball.job
    DROP CONSTRAINT cron_has_schedule,
    DROP CONSTRAINT every_has_interval,
    DROP CONSTRAINT job_handler_check,
    DROP CONSTRAINT job_initial_backoff_ms_check,
    DROP CONSTRAINT job_interval_seconds_check,
    DROP CONSTRAINT job_jitter_seconds_check,
    DROP CONSTRAINT job_kind_check,
    DROP CONSTRAINT job_max_backoff_ms_check,
    DROP CONSTRAINT job_max_executions_check,
    DROP CONSTRAINT job_max_lost_check,
    DROP CONSTRAINT job_max_retries_check,
    DROP CONSTRAINT job_max_running_check,
    DROP CONSTRAINT job_misfire_cap_check,
    DROP CONSTRAINT job_misfire_check,
    DROP CONSTRAINT job_misfire_grace_seconds_check,
    DROP CONSTRAINT job_misfire_max_age_seconds_check,
    DROP CONSTRAINT job_name_check,
    DROP CONSTRAINT job_on_gap_check,
    DROP CONSTRAINT job_on_repeat_check,
    DROP CONSTRAINT job_overlap_check,
    DROP CONSTRAINT job_priority_check,
    DROP CONSTRAINT job_queue_check,
    DROP CONSTRAINT job_scheduled_at_check,
    DROP CONSTRAINT job_timeout_ms_check,
    DROP CONSTRAINT once_has_instant,
    ADD CONSTRAINT job_is_sound CHECK (
        kind = 'once'
        AND num_nonnulls(name, schedule, interval_seconds, on_gap, on_repeat, max_executions, jitter_seconds, misfire, misfire_grace_seconds, misfire_cap,
                         misfire_max_age_seconds, overlap, max_running) = 0
        AND least(handler, queue) > ''
        AND length(handler || queue) <= 200
        AND priority BETWEEN 0 AND 100
        AND least(max_retries, max_lost) >= 1
        AND least(initial_backoff_ms, max_backoff_ms, timeout_ms) >= 1
        AND scheduled_at BETWEEN '1970-01-01Z'::timestamptz AND '2199-01-01Z'::timestamptz
        OR timeball.is_sound(job)
    ) NOT VALID;
