-- The queries of `verify`: each returns the rows that break a promise, with their number.
-- They read whole tables, so they run with sequential scans allowed, all in one snapshot.

-- name: verify_sizes
-- How many records there are to check.
SELECT (SELECT count(*) FROM timeball.due WHERE kind <> 'resume') AS due,
       (SELECT count(*) FROM timeball.due WHERE kind IN ('occurrence', 'resume')) AS pending,
       (SELECT count(*) FROM timeball.ready) AS ready,
       (SELECT count(*) FROM timeball.blocked) AS blocked,
       (SELECT count(*) FROM timeball.running) AS running,
       (SELECT count(*) FROM timeball.finished) AS finished,
       (SELECT count(*) FROM timeball.finished WHERE started_at IS NOT NULL) AS started,
       (SELECT count(*) FROM timeball.finished WHERE started_at IS NOT NULL AND origin = 'schedule') AS started_by_schedule,
       (SELECT count(*) FROM timeball.attempt) AS attempts,
       (SELECT count(*) FROM timeball.job WHERE name IS NULL AND kind = 'once') AS one_offs,
       (SELECT count(*) FROM timeball.running_limit) + (SELECT count(*) FROM timeball.queue WHERE max_running IS NOT NULL) AS limits,
       (SELECT count(*) FROM timeball.live_key) AS keys,
       (SELECT count(*) FROM timeball.execution WHERE expires_at IS NOT NULL)
       + (SELECT count(*) FROM timeball.skip_range WHERE reason = 'expired') AS expiring,
       (SELECT count(*) FROM timeball.freeze_period) AS freezes,
       (SELECT count(*) FROM timeball.finished WHERE has_follow_ups) AS followed,
       (SELECT count(*) FROM timeball.skip_range WHERE filled > 0) AS filled_ranges,
       (SELECT count(*) FROM timeball.node WHERE kind = 'scheduler' AND lease_until > :now) AS schedulers,
       (SELECT count(*) FROM timeball.node WHERE kind = 'worker' AND lease_until > :now) AS workers;

-- name: verify_versions
-- Every version in the order of jobs and time, with the state of its job.
-- Only columns about instants: there may be a million versions, and the server has to sort what it returns.
SELECT job_version.job_id,
       job_version.version,
       job_version.effective_from,
       job_version.effective_until,
       job_version.tzdata,
       rule.*,
       job.deleted_at AS job_deleted_at,
       job.paused_from AS job_paused_from,
       due.scheduled_for AS pending_for,
       due.watermark AS pending_watermark,
       due.tzdata AS pending_tzdata
FROM timeball.job_version
-- A function, because it unpacks the definition once. An operator for each column would unpack it each time.
CROSS JOIN LATERAL jsonb_to_record(job_version.definition) AS rule (
    name text, kind text, schedule text, interval_seconds bigint, scheduled_at timestamptz, after text, timezone text, on_gap text, on_repeat text,
    skip_on text[], only_on text[], shift text, calendars jsonb, starts_at timestamptz, ends_at timestamptz, max_executions bigint
)
LEFT JOIN timeball.job ON job.id = job_version.job_id
LEFT JOIN timeball.due ON due.job_id = job_version.job_id AND due.kind = 'occurrence'
-- An edited one-off keeps its versions for their payloads; it has no occurrences.
WHERE rule.name IS NOT NULL
   OR rule.kind <> 'once'
ORDER BY job_version.job_id, job_version.version;

-- name: verify_records
-- Every record of an occurrence, in the order of jobs and time. A pending occurrence is no record.
-- Executions at equal steps are returned as one run: there may be millions of them.
-- An execution that was to run counts towards max_executions. One that was skipped or cancelled before it was queued does not, unless because of its key;
-- one that was to run later is recorded as queued when it ends.
WITH record AS (
    SELECT job_id, id, scheduled_for AS first_at, scheduled_for AS last_at, version, tzdata, false AS is_range, NULL::bigint AS occurrences,
           queued_at IS NOT NULL OR reason = 'unique_key' OR (state <> 'skipped' AND reason IS DISTINCT FROM 'cancelled') AS is_used
    FROM timeball.finished
    WHERE origin = 'schedule'
    UNION ALL
    SELECT job_id, id, scheduled_for, scheduled_for, version, tzdata, false, NULL, true
    FROM timeball.due
    WHERE origin = 'schedule'
      AND kind IN ('later', 'snooze', 'retry', 'put_back')
    UNION ALL
    SELECT job_id, id, scheduled_for, scheduled_for, version, tzdata, false, NULL, true
    FROM timeball.ready
    WHERE origin = 'schedule'
    UNION ALL
    SELECT job_id, id, scheduled_for, scheduled_for, version, tzdata, false, NULL, true
    FROM timeball.blocked
    WHERE origin = 'schedule'
    UNION ALL
    SELECT job_id, id, scheduled_for, scheduled_for, version, tzdata, false, NULL, true
    FROM timeball.running
    WHERE origin = 'schedule'
    UNION ALL
    SELECT job_id, id, first_at, last_at, version, tzdata, true, occurrences, false
    FROM timeball.skip_range
),
stepped AS (
    SELECT *, first_at - lag(first_at) OVER in_turn AS step
    FROM record
    WINDOW in_turn AS (PARTITION BY job_id ORDER BY first_at, last_at, id)
),
marked AS (
    SELECT *,
           is_range
             OR lag(is_range) OVER in_turn
             OR lag(version) OVER in_turn <> version
             OR lag(tzdata) OVER in_turn IS DISTINCT FROM tzdata
             OR lag(step) OVER in_turn IS DISTINCT FROM step AS is_new
    FROM stepped
    WINDOW in_turn AS (PARTITION BY job_id ORDER BY first_at, last_at, id)
),
numbered AS (
    SELECT *, count(*) FILTER (WHERE is_new) OVER (PARTITION BY job_id ORDER BY first_at, last_at, id ROWS UNBOUNDED PRECEDING) AS run
    FROM marked
)
SELECT job_id,
       min(first_at) AS first_at,
       max(last_at) AS last_at,
       CASE WHEN bool_or(is_range) THEN max(occurrences) ELSE count(*) END AS number,
       min(version) AS version,
       min(tzdata) AS tzdata,
       bool_or(is_range) AS is_range,
       count(*) FILTER (WHERE is_used) AS used
FROM numbered
GROUP BY job_id, run
ORDER BY job_id, first_at, last_at;

-- name: verify_records_at
-- The records of some instants, by name.
WITH asked AS (
    SELECT *
    FROM unnest(:job_ids::uuid[], :ats::timestamptz[]) AS given (job_id, at)
)
SELECT asked.job_id, asked.at, execution.id, false AS is_range
FROM asked
JOIN timeball.execution ON execution.job_id = asked.job_id AND execution.scheduled_for = asked.at
WHERE execution.origin = 'schedule'
UNION ALL
SELECT asked.job_id, asked.at, skip_range.id, true
FROM asked
JOIN timeball.skip_range ON skip_range.job_id = asked.job_id AND asked.at BETWEEN skip_range.first_at AND skip_range.last_at
ORDER BY job_id, at, id;

-- name: verify_follow_ups
-- Executions and groups whose end is not followed as it should be: by what is for this end, once, and by nothing else.
WITH ended AS (
    SELECT id, job_id, state, version, CASE WHEN state = 'succeeded' THEN 'on_success' ELSE 'on_failure' END AS follows_as
    FROM timeball.finished
    WHERE has_follow_ups
      AND (:history_from::timestamptz IS NULL OR finished_at >= :history_from)
),
followed AS (
    SELECT DISTINCT follows, CASE WHEN follows_as LIKE 'failure of chain%' THEN 'failure of chain' ELSE split_part(follows_as, ' ', 1) END AS follows_as
    FROM timeball.job
    WHERE follows IS NOT NULL
),
closed AS (
    SELECT execution_group.*, CASE WHEN state = 'succeeded' THEN 'then' ELSE 'on_failure' END AS follows_as,
           CASE WHEN state = 'succeeded' THEN next_step ELSE execution_group.on_failure END AS follow_up
    FROM timeball.execution_group
    WHERE state <> 'open'
      AND (:history_from::timestamptz IS NULL OR closed_at >= :history_from)
),
followed_job AS MATERIALIZED (
    SELECT job.id
    FROM timeball.job
    WHERE job.has_follow_ups
    UNION
    SELECT job_version.job_id
    FROM timeball.job_version
    WHERE jsonb_typeof(job_version.definition -> 'on_success') = 'object'
       OR jsonb_typeof(job_version.definition -> 'on_failure') = 'object'
    UNION
    SELECT given.job_id
    FROM timeball.follow_up
    JOIN timeball.execution AS given ON given.id = follow_up.execution_id
),
broken AS (
    SELECT 'nothing follows an execution that ' || follows_as || ' was to follow' AS why, ended.id AS execution_id, ended.job_id,
           NULL::uuid AS following_execution_id, NULL::uuid AS group_id, NULL::integer AS part
    FROM ended
    WHERE NOT EXISTS (SELECT 1 FROM followed WHERE followed.follows = ended.id AND followed.follows_as = ended.follows_as)
      AND timeball.call_after(ended.id, ended.job_id, ended.version, ended.state) IS NOT NULL
    UNION ALL
    SELECT 'the next step does not follow an execution of a chain', ended.id, ended.job_id, NULL, NULL, NULL
    FROM ended
    JOIN timeball.job ON job.id = ended.job_id
    WHERE ended.state = 'succeeded'
      AND jsonb_array_length(coalesce(job.continuation -> 'steps', '[]')) > 0
      AND NOT EXISTS (SELECT 1 FROM followed WHERE followed.follows = ended.id AND followed.follows_as = 'next')
      AND NOT EXISTS (SELECT 1 FROM timeball.execution_group WHERE execution_group.id = job.group_id AND execution_group.cancelled_at IS NOT NULL)
    UNION ALL
    SELECT 'what follows an execution is for another end of it', finished.id, finished.job_id, job.id, NULL, NULL
    FROM timeball.job
    JOIN timeball.finished ON finished.id = job.follows
    WHERE job.follows IS NOT NULL
      AND (finished.state = 'succeeded') <> (split_part(job.follows_as, ' ', 1) IN ('on_success', 'next'))
    UNION ALL
    SELECT 'something follows an execution that has not ended', execution.id, execution.job_id, job.id, NULL, NULL
    FROM timeball.job
    JOIN timeball.execution ON execution.id = job.follows
    WHERE job.follows IS NOT NULL
      AND execution.finished_at IS NULL
    UNION ALL
    SELECT 'nothing follows a group that ' || follows_as || ' was to follow', NULL, NULL, NULL, closed.id, NULL
    FROM closed
    WHERE follow_up IS NOT NULL
      AND NOT EXISTS (SELECT 1 FROM followed WHERE followed.follows = closed.id AND followed.follows_as = closed.follows_as)
    UNION ALL
    SELECT 'something follows a group that has not ended', NULL, NULL, job.id, execution_group.id, NULL
    FROM timeball.job
    JOIN timeball.execution_group ON execution_group.id = job.follows
    WHERE job.follows IS NOT NULL
      AND execution_group.state = 'open'
    UNION ALL
    SELECT 'a group is closed, and its state is not that of its parts', NULL, NULL, NULL, closed.id, NULL
    FROM closed
    JOIN timeball.group_part ON group_part.group_id = closed.id
    GROUP BY closed.id, closed.state, closed.total, closed.failed
    HAVING count(*) <> closed.total
        OR count(group_part.state) <> closed.total
        OR count(*) FILTER (WHERE group_part.state = 'failed') <> closed.failed
        OR (closed.failed = 0) <> (closed.state = 'succeeded')
    UNION ALL
    SELECT 'a part of a group has ended otherwise than what it ended with', finished.id, finished.job_id, NULL, group_part.group_id, group_part.number
    FROM timeball.group_part
    JOIN timeball.finished ON finished.id = group_part.ended_by
    JOIN timeball.job ON job.id = finished.job_id
    JOIN timeball.execution_group ON execution_group.id = group_part.group_id
    WHERE (finished.state = 'succeeded') <> (group_part.state = 'succeeded')
      AND NOT (execution_group.cancelled_at IS NOT NULL AND group_part.state = 'failed' AND job.continuation ? 'steps')
    UNION ALL
    SELECT 'two parts of a group have ended with the same execution', group_part.ended_by, NULL, NULL, group_part.group_id, max(group_part.number)
    FROM timeball.group_part
    WHERE group_part.ended_by IS NOT NULL
    GROUP BY group_part.group_id, group_part.ended_by
    HAVING count(*) > 1
    UNION ALL
    SELECT 'the last of a part of a group has ended, and the part has not', last.execution_id, last.job_id, NULL, group_part.group_id, group_part.number
    FROM (
        SELECT job.group_id, job.continuation, finished.state = 'succeeded' AS has_succeeded, finished.id AS execution_id, finished.job_id
        FROM timeball.execution_group AS open_group
        CROSS JOIN LATERAL (SELECT * FROM timeball.job WHERE job.group_id = open_group.id OFFSET 0) AS job
        CROSS JOIN LATERAL (SELECT id, job_id, state FROM timeball.finished WHERE finished.id = job.id OFFSET 0) AS finished
        WHERE open_group.state = 'open'
        UNION ALL
        SELECT closed.group_id, closed.continuation, closed.state = 'succeeded', NULL, NULL
        FROM timeball.execution_group AS closed
        WHERE closed.group_id IS NOT NULL
          AND (closed.state = 'failed' OR (closed.state = 'succeeded' AND closed.next_step IS NULL))
    ) AS last
    LEFT JOIN LATERAL (
        WITH RECURSIVE walk (rest, steps_left) AS (
            SELECT last.continuation, coalesce(jsonb_array_length(last.continuation -> 'steps'), 0)
            UNION ALL
            SELECT walk.rest -> 'outer', walk.steps_left + coalesce(jsonb_array_length(walk.rest -> 'outer' -> 'steps'), 0)
            FROM walk
            WHERE jsonb_typeof(walk.rest -> 'outer') = 'object'
        )
        SELECT (walk.rest ->> 'number')::integer AS number, walk.steps_left
        FROM walk
        WHERE walk.rest ? 'group'
    ) AS walked ON true
    CROSS JOIN LATERAL (
        SELECT group_part.group_id, group_part.number
        FROM timeball.group_part
        WHERE group_part.group_id = last.group_id
          AND group_part.number = walked.number
          AND group_part.state IS NULL
        OFFSET 0
    ) AS group_part
    WHERE NOT last.has_succeeded
       OR walked.steps_left = 0
    UNION ALL
    -- CASE: so each execution is looked at once, and its job looked up in a hash table, whatever the planner believes about the tables.
    SELECT 'something is to follow an execution, and it is not marked for that', execution.id, execution.job_id, NULL, NULL, NULL
    FROM timeball.execution
    WHERE CASE
              WHEN execution.has_follow_ups OR execution.finished_at < :history_from THEN false
              WHEN execution.job_id IN (SELECT followed_job.id FROM followed_job)
              THEN timeball.call_after(execution.id, execution.job_id, execution.version, 'succeeded') IS NOT NULL
                   OR timeball.call_after(execution.id, execution.job_id, execution.version, 'dead') IS NOT NULL
                   OR EXISTS (SELECT 1 FROM timeball.job WHERE job.id = execution.job_id AND job.continuation IS NOT NULL)
          END
    UNION ALL
    SELECT 'an occurrence has succeeded, and the job that comes after it has no record of it', success.id, follower.id, NULL, NULL, NULL
    FROM timeball.job AS follower
    JOIN timeball.finished AS success ON success.job_id = follower.after_id
    WHERE follower.after_id IS NOT NULL
      AND follower.deleted_at IS NULL
      AND success.state = 'succeeded'
      AND timeball.occurrence_of(success.origin, success.scheduled_for, success.retry_of) > follower.after_since
      AND (:history_from::timestamptz IS NULL OR success.finished_at >= :history_from)
      AND NOT EXISTS (
          SELECT 1
          FROM timeball.followed_success
          WHERE followed_success.job_id = follower.id
            AND followed_success.scheduled_for = timeball.occurrence_of(success.origin, success.scheduled_for, success.retry_of)
      )
    UNION ALL
    SELECT 'an occurrence that came by a success has no execution', followed_success.cause, followed_success.job_id, followed_success.execution_id, NULL, NULL
    FROM timeball.followed_success
    WHERE (:history_from::timestamptz IS NULL OR followed_success.at >= :history_from)
      AND NOT EXISTS (
          SELECT 1
          FROM timeball.execution
          WHERE execution.id = followed_success.execution_id
            AND execution.job_id = followed_success.job_id
            AND execution.scheduled_for = followed_success.scheduled_for
      )
    UNION ALL
    SELECT 'an execution came by a success, and is not its occurrence', NULL, execution.job_id, execution.id, NULL, NULL
    FROM timeball.execution
    WHERE execution.origin = 'after'
      AND NOT EXISTS (SELECT 1 FROM timeball.followed_success
                      WHERE followed_success.job_id = execution.job_id AND followed_success.execution_id = execution.id)
    UNION ALL
    SELECT 'an occurrence came by an end that is no success of its instant', cause.id, followed_success.job_id, followed_success.execution_id, NULL, NULL
    FROM timeball.followed_success
    JOIN timeball.execution AS cause ON cause.id = followed_success.cause
    WHERE cause.state <> 'succeeded'
       OR (cause.origin <> 'retry' AND cause.scheduled_for <> followed_success.scheduled_for)
)
SELECT broken.*, count(*) OVER () AS total
FROM broken
ORDER BY execution_id, group_id
LIMIT :listed;

-- name: verify_backfills
-- Every execution of a backfill, in the order of jobs and time, and whether the schedule itself has run the occurrence.
SELECT filled.job_id, filled.id, filled.scheduled_for,
       bool_or(own.id IS NOT NULL AND timeball.skip_reason(own.state, own.reason, own.attempts, own.lost) IS NULL) AS has_run
FROM timeball.execution AS filled
LEFT JOIN timeball.execution AS own ON own.job_id = filled.job_id AND own.scheduled_for = filled.scheduled_for AND own.origin = 'schedule'
WHERE filled.origin = 'backfill'
GROUP BY filled.job_id, filled.id, filled.scheduled_for, filled.finished_at
ORDER BY filled.job_id, filled.scheduled_for, filled.id;

-- name: verify_fillings
-- Skip ranges of which more was filled in than they hold.
SELECT 'more was filled in than was skipped' AS why, job_id, first_at, last_at, occurrences, filled, count(*) OVER () AS total
FROM timeball.skip_range
WHERE filled > occurrences
ORDER BY job_id, first_at
LIMIT :listed;

-- name: verify_state_tables
-- Executions that are in two tables, or twice in the history.
WITH state_table AS NOT MATERIALIZED (
    SELECT id, 'due' AS name FROM timeball.due WHERE kind <> 'resume'
    UNION ALL
    SELECT id, 'ready' FROM timeball.ready
    UNION ALL
    SELECT id, 'blocked' FROM timeball.blocked
    UNION ALL
    SELECT id, 'running' FROM timeball.running
    UNION ALL
    SELECT id, 'finished' FROM timeball.finished
),
crowded AS (
    SELECT id, count(*) OVER () AS total
    FROM state_table
    GROUP BY id
    HAVING count(*) > 1
    ORDER BY id
    LIMIT :listed
)
SELECT 'an execution is in more than one place' AS why,
       id AS execution_id,
       string_agg(name, ' and ' ORDER BY name) AS tables,
       total
FROM crowded
JOIN state_table USING (id)
GROUP BY id, total
ORDER BY id;

-- name: verify_fences
WITH tried AS (
    SELECT execution_id, fence, number, lag(fence) OVER tries AS fence_before, lag(number) OVER tries AS number_before
    FROM timeball.attempt
    WINDOW tries AS (PARTITION BY execution_id ORDER BY fence, number)
),
highest AS (
    SELECT execution_id, max(fence) AS fence
    FROM timeball.attempt
    GROUP BY execution_id
),
broken AS (
    SELECT 'two attempts have the same fence' AS why, execution_id, fence, fence_before AS other_fence
    FROM tried
    WHERE fence = fence_before
    UNION ALL
    SELECT 'an attempt with a higher fence is not a later one', execution_id, fence, fence_before
    FROM tried
    WHERE fence > fence_before
      AND number <= number_before
    UNION ALL
    SELECT 'an execution is behind the fence of its attempts', execution.id, execution.fence, highest.fence
    FROM timeball.execution
    JOIN highest ON highest.execution_id = execution.id
    WHERE execution.fence < highest.fence
    UNION ALL
    SELECT 'an execution runs under a fence that was used', running.id, running.fence, highest.fence
    FROM timeball.running
    JOIN highest ON highest.execution_id = running.id
    WHERE running.fence = highest.fence
    UNION ALL
    SELECT 'an execution was tried more often than it was claimed', id, fence, NULL
    FROM timeball.execution
    WHERE attempts > fence
)
SELECT *, count(*) OVER () AS total
FROM broken
ORDER BY execution_id, fence
LIMIT :listed;

-- name: verify_outcomes
-- A claim ends with one outcome: a failed attempt, or an execution that ended. The last failure of a dead execution is both, and so is the failure of one
-- that had been asked to stop, or whose job was deleted, before it failed.
WITH broken AS (
    SELECT 'a claim has two failed attempts' AS why, execution_id, min(fence) AS fence, claim_id
    FROM timeball.attempt
    WHERE claim_id IS NOT NULL
    GROUP BY execution_id, claim_id
    HAVING count(*) > 1
    UNION ALL
    SELECT 'an execution ' || finished.state || ' under a claim that had failed', finished.id, finished.fence, finished.claim_id
    FROM timeball.finished
    JOIN timeball.attempt ON attempt.execution_id = finished.id
    WHERE finished.state NOT IN ('dead', 'cancelled')
      AND attempt.claim_id = finished.claim_id
    UNION ALL
    SELECT 'an execution died under another claim than its last attempt', finished.id, finished.fence, finished.claim_id
    FROM timeball.finished
    JOIN timeball.attempt ON attempt.execution_id = finished.id AND attempt.fence = finished.fence
    WHERE finished.state = 'dead'
      AND attempt.claim_id IS DISTINCT FROM finished.claim_id
    UNION ALL
    SELECT 'an execution runs under a claim that has failed', running.id, running.fence, running.claim_id
    FROM timeball.running
    JOIN timeball.attempt ON attempt.execution_id = running.id AND attempt.claim_id = running.claim_id
    UNION ALL
    SELECT 'an execution ended without a claim', id, fence, claim_id
    FROM timeball.finished
    WHERE state IN ('succeeded', 'dead')
      AND claim_id IS NULL
)
SELECT *, count(*) OVER () AS total
FROM broken
ORDER BY execution_id, fence
LIMIT :listed;

-- name: verify_ends
-- Finished executions, and what each of those ends requires. An attempt that failed, timed out or was lost has a record and counts. The last attempt of a
-- success, and of an execution that was lost with its worker (at_most_once), counts and has no record. If an execution is older than the history, the records
-- of its attempts may be gone already.
WITH tried AS (
    SELECT execution_id, count(*) AS number
    FROM timeball.attempt
    GROUP BY execution_id
),
broken AS (
    SELECT CASE WHEN started_at > finished_at THEN 'an execution ended before it started'
                WHEN state = 'succeeded' AND started_at IS NULL THEN 'an execution succeeded, but never started'
                WHEN state = 'succeeded' AND attempts < 1 THEN 'an execution succeeded without an attempt'
                WHEN state = 'succeeded' THEN 'an execution succeeded, but has an error or a reason'
                WHEN state = 'skipped' AND started_at IS NOT NULL THEN 'an execution was skipped, but had started'
                WHEN state = 'dead' AND reason IS NOT NULL THEN 'an execution is dead, but has no error'
                ELSE 'an execution is ' || state || ' without a reason' END AS why,
           id AS execution_id, job_id, state, started_at, finished_at, attempts, NULL::bigint AS attempts_kept
    FROM timeball.finished
    WHERE started_at > finished_at
       OR (state = 'succeeded' AND (started_at IS NULL OR attempts < 1 OR error_type IS NOT NULL OR reason IS NOT NULL))
       OR (state = 'skipped' AND (started_at IS NOT NULL OR reason IS NULL))
       OR (state = 'dead' AND (reason IS NULL OR (error_type IS NULL AND reason NOT LIKE 'its worker left while it ran%')))
    UNION ALL
    SELECT 'an attempt ended before it started', execution_id, NULL, outcome, started_at, finished_at, number, NULL
    FROM timeball.attempt
    WHERE started_at > finished_at
    UNION ALL
    SELECT 'the attempts of an execution are not those it counts', finished.id, finished.job_id, finished.state, finished.started_at, finished.finished_at,
           finished.attempts, coalesce(tried.number, 0)
    FROM timeball.finished
    LEFT JOIN tried ON tried.execution_id = finished.id
    WHERE (finished.state = 'dead' OR (finished.state = 'succeeded' AND finished.attempts > 1))
      AND (:history_from::timestamptz IS NULL OR least(finished.scheduled_for, finished.queued_at) > :history_from)
      AND coalesce(tried.number, 0) <> finished.attempts - CASE WHEN finished.error_type IS NULL THEN 1 ELSE 0 END
)
SELECT broken.*, job.name AS job, count(*) OVER () AS total
FROM broken
LEFT JOIN timeball.job ON job.id = broken.job_id
ORDER BY execution_id, finished_at
LIMIT :listed;

-- name: verify_never_early
-- The time of a retry is in its row in `due`, `ready` or `running`. After the attempt all that remains is that it cannot lie before the end of the failed one.
-- An execution that was lost with its worker runs again at once, by a clock that may have been set in between.
WITH tried AS (
    SELECT execution_id, fence, started_at,
           max(finished_at) FILTER (WHERE outcome <> 'lost') OVER (PARTITION BY execution_id ORDER BY fence ROWS UNBOUNDED PRECEDING) AS failed_by,
           max(finished_at) FILTER (WHERE outcome <> 'lost')
               OVER (PARTITION BY execution_id ORDER BY fence ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS failed_before,
           fence = max(fence) OVER (PARTITION BY execution_id) AS is_last
    FROM timeball.attempt
),
broken AS (
    SELECT 'an execution started early' AS why, id AS execution_id, job_id, scheduled_for, NULL::timestamptz AS failed_at, NULL::timestamptz AS run_at,
           started_at
    FROM timeball.finished
    WHERE started_at < scheduled_for
    UNION ALL
    SELECT 'an attempt started early', execution.id, execution.job_id, execution.scheduled_for, NULL, NULL, attempt.started_at
    FROM timeball.attempt
    JOIN timeball.execution ON execution.id = attempt.execution_id
    WHERE attempt.started_at < execution.scheduled_for
      AND (execution.finished_at IS NULL OR execution.fence <> attempt.fence)
    UNION ALL
    SELECT 'a retry started before the attempt before it had ended', execution.id, execution.job_id, execution.scheduled_for, tried.failed_before, NULL,
           tried.started_at
    FROM tried
    JOIN timeball.execution ON execution.id = tried.execution_id
    WHERE tried.started_at < tried.failed_before
    UNION ALL
    SELECT 'a retry started before the attempt before it had ended', finished.id, finished.job_id, finished.scheduled_for, tried.failed_by, NULL,
           finished.started_at
    FROM tried
    JOIN timeball.finished ON finished.id = tried.execution_id
    WHERE tried.is_last
      AND tried.fence < finished.fence
      AND finished.started_at < tried.failed_by
    UNION ALL
    SELECT 'a retry is to start before the attempt before it had ended', execution.id, execution.job_id, execution.scheduled_for, tried.failed_by,
           execution.run_at, NULL
    FROM tried
    JOIN timeball.execution ON execution.id = tried.execution_id
    WHERE tried.is_last
      AND execution.run_at < tried.failed_by
)
SELECT broken.*, job.name AS job, count(*) OVER () AS total
FROM broken
LEFT JOIN timeball.job ON job.id = broken.job_id
ORDER BY execution_id, started_at
LIMIT :listed;

-- name: verify_budgets
-- The budgets are those of the job at the time of each outcome. An edit may have changed them since, so the largest one counts.
WITH suspect AS (
    SELECT execution.id, execution.job_id, execution.attempts, execution.lost, job.max_retries,
           CASE WHEN job.at_most_once THEN 1 ELSE job.max_lost END AS max_lost
    FROM timeball.execution
    JOIN timeball.job ON job.id = execution.job_id
    WHERE (execution.attempts > 1 OR execution.lost > 1)
      AND (execution.attempts - execution.lost > job.max_retries + 1
           OR execution.lost > CASE WHEN job.at_most_once THEN 1 ELSE job.max_lost END)
),
judged AS (
    SELECT suspect.id, suspect.job_id, suspect.attempts, suspect.lost,
           greatest(suspect.max_retries, kept.max_retries) AS max_retries, greatest(suspect.max_lost, kept.max_lost) AS max_lost
    FROM suspect
    CROSS JOIN LATERAL (
        SELECT max((definition ->> 'max_retries')::integer) AS max_retries,
               max(CASE WHEN (definition ->> 'at_most_once')::boolean THEN 1 ELSE (definition ->> 'max_lost')::integer END) AS max_lost
        FROM timeball.job_version
        WHERE job_version.job_id = suspect.job_id
    ) AS kept
),
broken AS (
    SELECT 'an execution was tried too often' AS why, id AS execution_id, job_id, attempts, lost, max_retries, NULL::integer AS max_lost
    FROM judged
    WHERE attempts - lost > max_retries + 1
    UNION ALL
    SELECT 'an execution was lost too often', id, job_id, attempts, lost, NULL, max_lost
    FROM judged
    WHERE lost > max_lost
)
SELECT broken.*, job.name AS job, count(*) OVER () AS total
FROM broken
LEFT JOIN timeball.job ON job.id = broken.job_id
ORDER BY execution_id
LIMIT :listed;

-- name: verify_expiry
-- What was skipped as expired had an instant to begin by, which had passed, and had not begun. What has begun expires no more.
-- A node that skips an occurrence reads the clock of the database from afar.
WITH broken AS (
    SELECT CASE WHEN finished.expires_at IS NULL THEN 'an execution expired that could not'
                WHEN finished.attempts > 0 OR finished.started_at IS NOT NULL OR tried.execution_id IS NOT NULL THEN 'an execution expired, but had begun'
                ELSE 'an execution expired too early' END AS why,
           finished.id AS execution_id, finished.job_id, finished.scheduled_for, finished.expires_at, finished.finished_at
    FROM timeball.finished
    LEFT JOIN (SELECT DISTINCT execution_id FROM timeball.attempt) AS tried ON tried.execution_id = finished.id
    WHERE finished.state = 'skipped'
      AND finished.reason = 'expired'
      AND (finished.expires_at IS NULL
           OR finished.expires_at > finished.finished_at + :tolerance::interval
           OR finished.attempts > 0
           OR finished.started_at IS NOT NULL
           OR tried.execution_id IS NOT NULL)
    UNION ALL
    SELECT 'occurrences expired too early', NULL, skip_range.job_id, skip_range.last_at,
           timeball.expiry(skip_range.last_at, (job_version.definition ->> 'start_within_seconds')::integer, NULL), skip_range.recorded_at
    FROM timeball.skip_range
    JOIN timeball.job_version ON job_version.job_id = skip_range.job_id AND job_version.version = skip_range.version
    WHERE skip_range.reason = 'expired'
      AND (timeball.expiry(skip_range.last_at, (job_version.definition ->> 'start_within_seconds')::integer, NULL)
           <= skip_range.recorded_at + :tolerance::interval) IS NOT TRUE
    UNION ALL
    SELECT 'an execution that has begun would expire', id, job_id, scheduled_for, expires_at, NULL
    FROM timeball.execution
    WHERE finished_at IS NULL
      AND worker IS NULL
      AND expires_at IS NOT NULL
      AND attempts > 0
    UNION ALL
    SELECT 'a pending occurrence expires at another instant than its job says', due.id, due.job_id, due.scheduled_for, due.expires_at, NULL
    FROM timeball.due
    JOIN timeball.job ON job.id = due.job_id AND job.version = due.version
    WHERE due.kind = 'occurrence'
      AND due.origin = 'schedule'
      AND due.expires_at IS DISTINCT FROM timeball.expiry(coalesce(due.frozen_run_at, due.run_at), job.start_within_seconds, job.expires_at)
)
SELECT broken.*, job.name AS job, count(*) OVER () AS total
FROM broken
LEFT JOIN timeball.job ON job.id = broken.job_id
ORDER BY execution_id, scheduled_for
LIMIT :listed;

-- name: verify_conservation
WITH broken AS (
    SELECT 'a one-off has no execution' AS why, job.id AS execution_id, job.id AS job_id, job.scheduled_at AS at
    FROM timeball.job
    WHERE job.name IS NULL
      AND job.kind = 'once'
      AND (:history_from::timestamptz IS NULL OR job.scheduled_at > :history_from)
      AND NOT EXISTS (SELECT 1 FROM timeball.execution WHERE execution.id = job.id)
    UNION ALL
    SELECT 'an execution waits or runs, but its job is gone', execution.id, execution.job_id, execution.scheduled_for
    FROM timeball.execution
    WHERE execution.finished_at IS NULL
      AND NOT EXISTS (SELECT 1 FROM timeball.job WHERE job.id = execution.job_id)
    UNION ALL
    SELECT 'an attempt is kept, but its execution is gone', attempt.execution_id, NULL, attempt.finished_at
    FROM timeball.attempt
    WHERE (:history_from IS NULL OR attempt.finished_at > :history_from)
      AND NOT EXISTS (SELECT 1 FROM timeball.execution WHERE execution.id = attempt.execution_id)
)
SELECT broken.*, job.name AS job, count(*) OVER () AS total
FROM broken
LEFT JOIN timeball.job ON job.id = broken.job_id
ORDER BY execution_id, at
LIMIT :listed;

-- name: verify_limits
-- A limit that was lowered while more were running is not broken; that is only a warning. An edit may have lowered it, or a new job that shares it with
-- others which allow more.
WITH taken AS (
    SELECT limit_key, count(*) AS number, min(queued_at) AS since
    FROM (
        SELECT limit_key, queued_at FROM timeball.ready WHERE limit_key IS NOT NULL
        UNION ALL
        SELECT limit_key, queued_at FROM timeball.running WHERE limit_key IS NOT NULL
    ) AS place
    GROUP BY limit_key
),
running_of_queue AS (
    SELECT queue, count(*) AS number, min(claimed_at) AS since
    FROM timeball.running
    WHERE queue_limited
    GROUP BY queue
),
broken AS (
    SELECT 'more executions share a limit than it allows' AS why, running_limit.key AS limit_key, NULL::text AS queue,
           taken.number AS ready_or_running, running_limit.max_running,
           EXISTS (
               SELECT 1
               FROM timeball.job_version
               WHERE job_version.version > 1
                 AND job_version.recorded_at >= taken.since
                 AND job_version.definition ->> 'limit_key' = running_limit.key
           ) OR EXISTS (
               SELECT 1
               FROM timeball.job
               WHERE job.limit_key = running_limit.key
                 AND job.created_at >= taken.since
                 AND (job.max_running = running_limit.max_running OR (running_limit.max_running = 1 AND timeball.is_serial(job.overlap)))
                 AND EXISTS (SELECT 1 FROM timeball.job AS other WHERE other.limit_key = running_limit.key AND other.max_running > running_limit.max_running)
           ) AS is_warning
    FROM taken
    JOIN timeball.running_limit ON running_limit.key = taken.limit_key
    WHERE taken.number > running_limit.max_running
    UNION ALL
    SELECT 'more executions of a queue run than it allows', NULL, queue.name, running_of_queue.number, queue.max_running,
           EXISTS (SELECT 1 FROM timeball.audit WHERE audit.subject = 'queue:' || queue.name AND audit.at >= running_of_queue.since)
    FROM running_of_queue
    JOIN timeball.queue ON queue.name = running_of_queue.queue
    WHERE running_of_queue.number > queue.max_running
    UNION ALL
    SELECT 'executions wait for a limit that does not exist', blocked.limit_key, NULL, count(*), NULL, false
    FROM timeball.blocked
    WHERE NOT EXISTS (SELECT 1 FROM timeball.running_limit WHERE running_limit.key = blocked.limit_key)
    GROUP BY blocked.limit_key
)
SELECT *, count(*) OVER (PARTITION BY is_warning) AS total
FROM broken
ORDER BY is_warning, limit_key, queue
LIMIT :listed;

-- name: verify_overlap
-- Accepted runs of one job that ran at the same time although its policy forbids it. The policy of the later run decides, because that was judged.
-- `queue`, `cancel_running` and `latest` use a limit, which counts only executions that were promoted under it; a shared limit (limit_key) has the last
-- value set. Under `latest` at most one that was never claimed waits for it; edits may have left others, which have another version.
WITH policy AS MATERIALIZED (
    SELECT job_id, version,
           CASE WHEN timeball.is_serial(definition ->> 'overlap') AND definition ->> 'limit_key' <> 'job:' || job_id THEN 'shared'
                ELSE definition ->> 'overlap'
           END AS overlap
    FROM timeball.job_version
    WHERE definition ->> 'overlap' IS NOT NULL
),
run AS (
    SELECT finished.id, finished.job_id, finished.started_at, policy.overlap,
           lag(finished.id) OVER in_turn AS id_before,
           lag(finished.finished_at) OVER in_turn AS finished_before,
           lag(policy.overlap) OVER in_turn AS overlap_before
    FROM timeball.finished
    JOIN policy ON policy.job_id = finished.job_id AND policy.version = finished.version
    WHERE finished.origin = 'schedule'
      AND finished.started_at IS NOT NULL
    WINDOW in_turn AS (PARTITION BY finished.job_id ORDER BY finished.started_at, finished.id)
),
unfinished AS (
    SELECT id, job_id, version FROM timeball.ready WHERE origin = 'schedule'
    UNION ALL
    SELECT id, job_id, version FROM timeball.blocked WHERE origin = 'schedule'
    UNION ALL
    SELECT id, job_id, version FROM timeball.running WHERE origin = 'schedule'
    UNION ALL
    SELECT id, job_id, version FROM timeball.due WHERE origin = 'schedule' AND kind IN ('retry', 'snooze', 'put_back')
),
broken AS (
    SELECT 'two executions of a job ran at the same time' AS why, id AS execution_id, id_before AS other_execution_id, job_id, overlap,
           started_at, finished_before AS other_finished_at
    FROM run
    WHERE started_at < finished_before - :tolerance::interval
      AND (overlap = 'skip' OR (timeball.is_serial(overlap) AND timeball.is_serial(overlap_before)))
    UNION ALL
    SELECT 'two executions of a job are unfinished', (array_agg(unfinished.id ORDER BY unfinished.id))[2],
           (array_agg(unfinished.id ORDER BY unfinished.id))[1], unfinished.job_id, 'skip', NULL, NULL
    FROM unfinished
    JOIN policy ON policy.job_id = unfinished.job_id AND policy.version = unfinished.version
    WHERE policy.overlap = 'skip'
    GROUP BY unfinished.job_id, unfinished.version
    HAVING count(*) > 1
    UNION ALL
    SELECT 'two occurrences of a job wait, and only the newest should', (array_agg(blocked.id ORDER BY blocked.scheduled_for DESC))[1],
           (array_agg(blocked.id ORDER BY blocked.scheduled_for DESC))[2], blocked.job_id, 'latest', NULL, NULL
    FROM timeball.blocked
    JOIN timeball.job ON job.id = blocked.job_id AND job.version = blocked.version
    JOIN policy ON policy.job_id = blocked.job_id AND policy.version = blocked.version
    WHERE policy.overlap = 'latest'
      AND blocked.origin = 'schedule'
      AND blocked.fence = 0
    GROUP BY blocked.job_id
    HAVING count(*) > 1
)
SELECT broken.*, job.name AS job, count(*) OVER () AS total
FROM broken
LEFT JOIN timeball.job ON job.id = broken.job_id
ORDER BY job_id, execution_id
LIMIT :listed;

-- name: verify_keys
-- A key has one unfinished execution, from its enqueueing or its promotion on; a pending occurrence has no key yet, nor has an execution that awaits it.
-- An execution that has ended keeps its key if it is held until an instant, and no unfinished one has it beside it.
WITH unfinished AS (
    SELECT id, job_id, unique_key
    FROM timeball.due
    WHERE unique_key IS NOT NULL
      AND NOT (kind = 'occurrence' AND origin = 'schedule')
      AND NOT awaits_key
    UNION ALL
    SELECT id, job_id, unique_key FROM timeball.ready WHERE unique_key IS NOT NULL
    UNION ALL
    SELECT id, job_id, unique_key FROM timeball.blocked WHERE unique_key IS NOT NULL
    UNION ALL
    SELECT id, job_id, unique_key FROM timeball.running WHERE unique_key IS NOT NULL
),
broken AS (
    SELECT 'a key is held by what is not unfinished' AS why, live_key.key AS unique_key, live_key.execution_id, NULL::uuid AS job_id,
           NULL::uuid AS holder_execution_id
    FROM timeball.live_key
    WHERE NOT has_ended
      AND NOT EXISTS (SELECT 1 FROM unfinished WHERE unfinished.id = live_key.execution_id AND unfinished.unique_key = live_key.key)
    UNION ALL
    SELECT 'a key is held for ever by what has ended', key, execution_id, NULL, NULL
    FROM timeball.live_key
    WHERE has_ended
      AND held_until IS NULL
    UNION ALL
    SELECT 'an execution awaits a key that it has, or that no enqueue gave it', unique_key, id, job_id, NULL
    FROM timeball.due
    WHERE awaits_key
      AND (unique_key IS NULL
           OR origin <> 'enqueue'
           OR attempts > 0
           OR EXISTS (SELECT 1 FROM timeball.live_key WHERE live_key.key = due.unique_key AND live_key.execution_id = due.id))
    UNION ALL
    SELECT CASE WHEN live_key.key IS NULL THEN 'an unfinished execution does not hold its key' ELSE 'two unfinished executions share a key' END,
           unfinished.unique_key, unfinished.id, unfinished.job_id, live_key.execution_id
    FROM unfinished
    LEFT JOIN timeball.live_key ON live_key.key = unfinished.unique_key AND NOT live_key.has_ended
    WHERE live_key.execution_id IS DISTINCT FROM unfinished.id
)
SELECT broken.*, job.name AS job, count(*) OVER () AS total
FROM broken
LEFT JOIN timeball.job ON job.id = broken.job_id
ORDER BY unique_key, execution_id
LIMIT :listed;

-- name: verify_due
-- Rows of `due` that disagree with their job. A one-off whose job is paused is parked there.
WITH broken AS (
    SELECT CASE WHEN job.deleted_at IS NOT NULL THEN 'an occurrence is pending, but its job is deleted'
                WHEN job.paused_at IS NOT NULL THEN 'an occurrence is pending, but its job is paused'
                WHEN due.version <> job.version THEN 'an occurrence of an older version is pending'
                ELSE 'an occurrence is pending, but the watermark has passed it' END AS why,
           due.id AS execution_id, due.job_id, due.version, job.version AS job_version, due.run_at
    FROM timeball.due
    JOIN timeball.job ON job.id = due.job_id
    WHERE due.kind = 'occurrence'
      AND (job.deleted_at IS NOT NULL
           OR (job.paused_at IS NOT NULL AND NOT (due.origin = 'enqueue' AND due.run_at = :parked_at))
           OR due.version <> job.version
           OR (job.kind IN ('every', 'cron', 'rrule') AND due.watermark >= due.scheduled_for))
    UNION ALL
    SELECT 'an execution is parked, but its job is not paused', due.id, due.job_id, due.version, job.version, due.run_at
    FROM timeball.due
    JOIN timeball.job ON job.id = due.job_id
    WHERE due.run_at = :parked_at
      AND job.paused_at IS NULL
    UNION ALL
    SELECT 'a resumption waits, but its job is not paused until then', NULL, due.job_id, due.version, job.version, due.run_at
    FROM timeball.due
    JOIN timeball.job ON job.id = due.job_id
    WHERE due.kind = 'resume'
      AND (job.paused_at IS NULL OR job.paused_until IS DISTINCT FROM due.run_at)
    UNION ALL
    SELECT 'a job is paused until an instant, but nothing will resume it', NULL, job.id, NULL, job.version, job.paused_until
    FROM timeball.job
    WHERE job.paused_at IS NOT NULL
      AND job.paused_until IS NOT NULL
      AND job.deleted_at IS NULL
      AND NOT EXISTS (SELECT 1 FROM timeball.due WHERE due.job_id = job.id AND due.kind = 'resume')
)
SELECT broken.*, job.name AS job, count(*) OVER () AS total
FROM broken
LEFT JOIN timeball.job ON job.id = broken.job_id
ORDER BY job_id, execution_id
LIMIT :listed;

-- name: verify_waiting
-- Unfinished executions that disagree with their job: an enqueued execution has the id of its job, and one that cites the present version has the handler
-- of the job. The time of one that waits is that of its schedule, within the jitter of the job; after a pause it is the end of the pause, which has passed.
-- What a freeze holds waits for the end of the freeze.
-- The time of a retry or a snooze was returned by a handler, or drawn at random: only what came before it can be checked.
WITH unfinished AS (
    SELECT id, job_id, origin, version, handler, scheduled_for, run_at, kind = 'occurrence' AND frozen_run_at IS NULL AND NOT awaits_key AS is_pending FROM timeball.due WHERE kind <> 'resume'
    UNION ALL
    SELECT id, job_id, origin, version, handler, scheduled_for, run_at, false FROM timeball.ready
    UNION ALL
    SELECT id, job_id, origin, version, handler, scheduled_for, run_at, false FROM timeball.blocked
    UNION ALL
    SELECT id, job_id, origin, version, handler, scheduled_for, run_at, false FROM timeball.running
),
broken AS (
    SELECT CASE WHEN unfinished.origin = 'enqueue' AND unfinished.id <> unfinished.job_id THEN 'an enqueued execution names another job than its own'
                WHEN unfinished.version > job.version THEN 'an execution cites a version that its job has not reached'
                WHEN unfinished.version = job.version AND unfinished.handler <> job.handler THEN 'an execution names another handler than its job'
                WHEN unfinished.run_at < unfinished.scheduled_for THEN 'an execution is to run before its instant'
                ELSE 'an execution waits for longer than until its instant' END AS why,
           unfinished.id AS execution_id, unfinished.job_id, unfinished.version, unfinished.handler, unfinished.scheduled_for, unfinished.run_at,
           NULL::smallint AS shard
    FROM unfinished
    JOIN timeball.job ON job.id = unfinished.job_id
    WHERE (unfinished.origin = 'enqueue' AND unfinished.id <> unfinished.job_id)
       OR unfinished.version > job.version
       OR (unfinished.version = job.version AND unfinished.handler <> job.handler)
       OR unfinished.run_at < unfinished.scheduled_for
       OR (unfinished.is_pending
           AND unfinished.run_at <> :parked_at
           AND unfinished.run_at > greatest(unfinished.scheduled_for + coalesce(job.jitter_seconds, 0) * interval '1 second', :now::timestamptz))
    UNION ALL
    SELECT 'what waits is in a shard that does not exist, where no scheduler looks', CASE WHEN kind <> 'resume' THEN id END, job_id, version, handler,
           scheduled_for, run_at, shard
    FROM timeball.due
    WHERE NOT EXISTS (SELECT 1 FROM timeball.shard WHERE shard.id = due.shard)
)
SELECT broken.*, job.name AS job, count(*) OVER () AS total
FROM broken
LEFT JOIN timeball.job ON job.id = broken.job_id
ORDER BY job_id, execution_id
LIMIT :listed;

-- name: verify_freezes
-- Freezes that were not obeyed: something in their scope was claimed or started meanwhile; more of what fell into one ran than `afterwards` says; an
-- occurrence was skipped for a freeze that there is not; or a row waits for the end of one.
-- A claim from before a freeze may start a little later, and the jitter of a job moves its occurrences. Where freezes overlap, the last to end decides:
-- only those that overlap no other are judged by their own word. The tags of a job are known for its present version.
WITH frozen AS MATERIALIZED (
    SELECT *, NOT EXISTS (SELECT 1 FROM timeball.freeze_period AS other WHERE other.id <> freeze_period.id AND other.from_at < freeze_period.until_at
                                                                       AND other.until_at > freeze_period.from_at) AS is_alone
    FROM timeball.freeze_period
),
held AS (
    SELECT frozen.id AS freeze_id, frozen.from_at, frozen.until_at, frozen.created_at, frozen.afterwards, frozen.is_alone,
           run.id, run.job_id, run.origin, run.scheduled_for, run.queued_at, run.claimed_at, run.started_at, job.kind, job.jitter_seconds
    FROM (
        SELECT id, job_id, version, queue, origin, scheduled_for, queued_at, claimed_at, greatest(claimed_at, run_at) AS started_at FROM timeball.running
        UNION ALL
        SELECT id, job_id, version, queue, origin, scheduled_for, queued_at, NULL, started_at FROM timeball.finished WHERE started_at IS NOT NULL
    ) AS run
    CROSS JOIN frozen
    LEFT JOIN timeball.job ON job.id = run.job_id AND job.version = run.version
    WHERE num_nonnulls(frozen.queue, frozen.tag, frozen.job_id) = 0
       OR frozen.queue = run.queue
       OR frozen.job_id = run.job_id
       OR frozen.tag = ANY (job.tags)
),
skip AS (
    SELECT finished.job_id, finished.id, finished.version, finished.scheduled_for AS first_at, finished.scheduled_for AS last_at
    FROM timeball.finished
    WHERE finished.state = 'skipped'
      AND finished.reason = 'freeze'
    UNION ALL
    SELECT job_id, NULL, version, first_at, last_at
    FROM timeball.skip_range
    WHERE reason = 'freeze'
),
broken AS (
    SELECT 'an execution was claimed in a freeze' AS why, id AS execution_id, job_id, started_at AS at, freeze_id
    FROM held
    WHERE claimed_at > created_at
      AND started_at >= from_at
      AND started_at < until_at
    UNION ALL
    SELECT 'an execution started in a freeze', id, job_id, started_at, freeze_id
    FROM held
    WHERE claimed_at IS NULL
      AND started_at >= greatest(from_at, created_at) + :patience::interval
      AND started_at < until_at
    UNION ALL
    SELECT 'more occurrences of a freeze ran than `afterwards` says', (array_agg(id ORDER BY scheduled_for))[1], job_id, min(scheduled_for), freeze_id
    FROM held
    WHERE is_alone
      AND afterwards <> 'all'
      AND origin = 'schedule'
      AND kind IN ('every', 'cron', 'rrule')
      AND scheduled_for >= greatest(from_at, created_at)
      AND scheduled_for + coalesce(jitter_seconds, 0) * interval '1 second' < until_at
      AND queued_at > created_at
    GROUP BY job_id, freeze_id, afterwards
    HAVING count(*) > CASE afterwards WHEN 'skip' THEN 0 ELSE 1 END
    UNION ALL
    SELECT 'an occurrence was skipped for a freeze that there is not', skip.id, skip.job_id, skip.first_at, NULL
    FROM skip
    JOIN timeball.job ON job.id = skip.job_id AND job.version = skip.version
    WHERE (:history_from::timestamptz IS NULL OR skip.first_at > :history_from::timestamptz)
      AND EXISTS (
          SELECT 1
          FROM (VALUES (skip.first_at), (skip.last_at)) AS edge (at)
          WHERE NOT EXISTS (
              SELECT 1
              FROM frozen
              WHERE frozen.from_at <= edge.at + coalesce(job.jitter_seconds, 0) * interval '1 second'
                AND frozen.until_at > edge.at
                AND (num_nonnulls(frozen.queue, frozen.tag, frozen.job_id) = 0
                     OR frozen.queue = job.queue
                     OR frozen.job_id = job.id
                     OR frozen.tag = ANY (job.tags))
          )
      )
    UNION ALL
    SELECT 'an execution waits for the end of a freeze that there is not', due.id, due.job_id, due.run_at, NULL
    FROM timeball.due
    WHERE due.frozen_run_at IS NOT NULL
      AND due.run_at > :now::timestamptz
      AND NOT EXISTS (SELECT 1 FROM frozen WHERE frozen.until_at = due.run_at)
)
SELECT broken.*, job.name AS job, count(*) OVER () AS total
FROM broken
LEFT JOIN timeball.job ON job.id = broken.job_id
ORDER BY job_id, at
LIMIT :listed;

-- name: verify_stuck
-- Executions that a node should have acted upon, and which kind of node; the oldest first. A lane or a limit is named by its first row.
WITH late_lane AS (
    SELECT queue, handler, count(*) AS number, min(run_at) AS since
    FROM timeball.ready
    WHERE run_at < :now::timestamptz - :patience::interval
      AND NOT EXISTS (SELECT 1 FROM timeball.queue WHERE queue.name = ready.queue AND queue.paused_at IS NOT NULL)
      AND queue <> ALL ((SELECT timeball.frozen_queues(array_agg(DISTINCT waiting.queue), :now::timestamptz) FROM timeball.ready AS waiting)::text[])
    GROUP BY queue, handler
),
served_lane AS (
    SELECT late_lane.*, count(node.incarnation) AS workers,
           count(node.incarnation) FILTER (WHERE node.busy < node.slots AND node.started_at < :now::timestamptz - :patience::interval) AS idle
    FROM late_lane
    LEFT JOIN timeball.node ON node.kind = 'worker'
                           AND node.lease_until > :now::timestamptz
                           AND NOT node.draining
                           AND (node.queues IS NULL OR late_lane.queue = ANY (node.queues))
                           AND late_lane.handler = ANY (node.handlers)
    GROUP BY late_lane.queue, late_lane.handler, late_lane.number, late_lane.since
),
free_limit AS (
    SELECT running_limit.key
    FROM timeball.running_limit
    WHERE EXISTS (SELECT 1 FROM timeball.blocked WHERE blocked.limit_key = running_limit.key)
      AND running_limit.max_running > (SELECT count(*) FROM timeball.ready WHERE ready.limit_key = running_limit.key)
                                    + (SELECT count(*) FROM timeball.running WHERE running.limit_key = running_limit.key)
),
stuck AS (
    SELECT CASE WHEN kind = 'resume' THEN 'a resumption' ELSE 'an execution' END || ' is overdue, and no scheduler takes it up' AS why,
           'scheduler' AS actor, CASE WHEN kind <> 'resume' THEN id END AS execution_id, job_id, NULL::text AS what, run_at AS since
    FROM timeball.due
    WHERE run_at < :now::timestamptz - :patience::interval
    UNION ALL
    SELECT 'an execution has expired, and no scheduler records it', 'scheduler', id, job_id, NULL, expires_at
    FROM timeball.execution
    WHERE finished_at IS NULL
      AND worker IS NULL
      AND expires_at < :now::timestamptz - :patience::interval
    UNION ALL
    SELECT 'an execution is held by a node that is gone', 'scheduler', running.id, running.job_id, NULL, greatest(running.claimed_at, running.run_at)
    FROM timeball.running
    WHERE greatest(running.claimed_at, running.run_at) < :now::timestamptz - :patience::interval
      AND NOT EXISTS (SELECT 1 FROM timeball.node WHERE node.incarnation = running.holder)
    UNION ALL
    SELECT 'an execution has run past its deadline', 'scheduler', id, job_id, NULL, deadline
    FROM timeball.running
    WHERE deadline < :now::timestamptz - :patience::interval
    UNION ALL
    SELECT 'the lease of a node has expired, and no scheduler removes it', 'scheduler', NULL, NULL, kind || ' ' || name, lease_until
    FROM timeball.node
    WHERE lease_until < :now::timestamptz - :patience::interval
    UNION ALL
    SELECT 'the pause of a queue is over, and no scheduler resumes it', 'scheduler', NULL, NULL, name, paused_until
    FROM timeball.queue
    WHERE paused_until < :now::timestamptz - :patience::interval
    UNION ALL
    SELECT 'all parts of a group have ended, and no scheduler closes it', 'scheduler', NULL, NULL, execution_group.id::text, execution_group.created_at
    FROM timeball.execution_group
    WHERE execution_group.state = 'open'
      AND execution_group.created_at < :now::timestamptz - :patience::interval
      AND NOT EXISTS (SELECT 1 FROM timeball.group_part WHERE group_part.group_id = execution_group.id AND group_part.state IS NULL)
    UNION ALL
    SELECT 'an execution waits for a place, and its limit has one', 'scheduler', first.id, first.job_id, free_limit.key, first.queued_at
    FROM free_limit
    CROSS JOIN LATERAL (
        SELECT *
        FROM timeball.blocked
        WHERE blocked.limit_key = free_limit.key
        ORDER BY (blocked.run_at AT TIME ZONE 'UTC') - blocked.priority * interval '12 seconds'
        LIMIT 1
    ) AS first
    WHERE first.queued_at < :now::timestamptz - :patience::interval
    UNION ALL
    SELECT CASE WHEN workers = 0 THEN 'executions are ready, and no living worker takes them' ELSE 'executions are ready, and idle workers leave them' END,
           CASE WHEN workers = 0 THEN 'none' ELSE 'worker' END, NULL, NULL,
           number || ' of ' || handler || ' in queue ' || queue, since
    FROM served_lane
    WHERE workers = 0
       OR (idle > 0
           AND NOT EXISTS (SELECT 1 FROM timeball.running WHERE running.queue = served_lane.queue AND running.claimed_at > :now::timestamptz - :patience::interval)
           AND NOT EXISTS (SELECT 1 FROM timeball.finished WHERE finished.queue = served_lane.queue AND finished.finished_at > :now::timestamptz - :patience::interval)
           AND NOT EXISTS (SELECT 1 FROM timeball.queue WHERE queue.name = served_lane.queue AND queue.max_running IS NOT NULL
                           AND queue.max_running <= (SELECT count(*) FROM timeball.running WHERE running.queue = queue.name AND running.queue_limited)))
)
SELECT stuck.*, job.name AS job, count(*) OVER () AS total
FROM stuck
LEFT JOIN timeball.job ON job.id = stuck.job_id
ORDER BY since, execution_id
LIMIT :listed;
