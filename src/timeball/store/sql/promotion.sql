-- From `due` to `ready`: what a scheduler reads, and the one statement that promotes. Each move is one statement, so an execution is never in two
-- tables and never in none.

-- fragment: freezes_known
-- Whether the scheduler plans with the freezes that there are. The FOR KEY SHARE takes a lock on the table, for which lock_out_promotions waits, and which
-- waits for lock_out_promotions; it never finds a row, because no freeze has that id.
freeze_gate AS MATERIALIZED (
    SELECT 1
    FROM timeball.freeze_period
    WHERE id = '00000000-0000-0000-0000-000000000000'::uuid
    FOR KEY SHARE
),
freezes_known AS MATERIALIZED (
    SELECT coalesce(max(epoch), 0) = :freeze_epoch AND NOT EXISTS (SELECT 1 FROM freeze_gate) AS are_known
    FROM timeball.freeze_period
)

-- name: look_ahead
-- The keys of the rows of some shards that fall due within the horizon, from the bound of each shard on.
-- Rows that are overdue are included, however old they are: a row that was committed late is not lost. The scheduler holds most of them already; it reads
-- the others whole by due_rows.
SELECT due.shard, due.id, due.run_at, due.version
FROM unnest(:shards::smallint[], :bounds::timestamptz[]) AS mine (shard, bound)
CROSS JOIN LATERAL (
    SELECT *
    FROM timeball.due
    WHERE due.shard = mine.shard
      AND due.run_at >= mine.bound
      AND due.run_at <= coalesce(:now, now()) + :horizon::interval
    ORDER BY due.run_at
    LIMIT :limit
) AS due;

-- name: due_rows
-- Some rows of `due`, whole. Whether the job is paused matters only to retries and snoozes, and is looked up only for them.
SELECT due.id,
       due.job_id,
       due.kind,
       due.origin,
       due.shard,
       due.run_at,
       due.scheduled_for,
       due.watermark,
       due.tzdata,
       due.version,
       due.executions_left,
       due.limit_key,
       due.queue,
       due.priority,
       due.expires_at,
       coalesce((SELECT job.paused_at IS NOT NULL FROM timeball.job WHERE job.id = due.job_id AND due.kind IN ('retry', 'snooze')), false) AS is_paused,
       due.frozen_run_at IS NOT NULL AS is_frozen
FROM timeball.due
WHERE due.id = ANY (:ids::uuid[]);

-- name: busy_jobs
-- The jobs among these that have an unfinished execution which is no longer only scheduled. What a backfill runs does not keep occurrences from running.
-- OFFSET 0: otherwise the planner may read a whole table into a hash table, to look up a few jobs.
SELECT asked.job_id
FROM unnest(:job_ids::uuid[]) AS asked (job_id)
WHERE EXISTS (SELECT 1 FROM timeball.ready WHERE ready.job_id = asked.job_id AND ready.job_id <> ready.id AND ready.origin <> 'backfill' OFFSET 0)
   OR EXISTS (SELECT 1 FROM timeball.running WHERE running.job_id = asked.job_id AND running.job_id <> running.id AND running.origin <> 'backfill' OFFSET 0)
   OR EXISTS (SELECT 1 FROM timeball.blocked WHERE blocked.job_id = asked.job_id AND blocked.origin <> 'backfill' OFFSET 0)
   OR EXISTS (SELECT 1 FROM timeball.due WHERE due.job_id = asked.job_id AND due.job_id <> due.id AND due.kind IN ('retry', 'snooze', 'put_back')
                AND due.origin <> 'backfill' OFFSET 0);

-- name: promote
-- Take rows out of `due`, insert the following occurrence of each recurring job, and record what becomes of the rows: runs go to `ready` (to `blocked`
-- if limited, back to `due` if they are to run later), skips go into the history.
-- Compare and set on the row itself: `version` is a column of `due`, because PostgreSQL does not check a joined job again after a lock wait.
-- The look-up with OFFSET 0 can only use the primary key, whatever the planner believes about the size of the table. It locks what it finds, and only
-- then is the locked row deleted by ctid: servers from before autumn 2025 do not check again what they find by ctid.
-- SKIP LOCKED: a row whose job is being changed waits for the end of that transaction, which may be a program's own and take long; others do not.
-- `given` hides the lengths of the arrays from the planner, which would otherwise plan the statement anew for every length; that takes two milliseconds.
-- It assumes few rows, so `judged` looks into a set, and rows are deleted by ctid: a join would compare each with each.
-- A row that was given a limit since it was read goes to `blocked`, whatever the scheduler has planned.
-- The occurrence that waited cites the time-zone data that computed it; occurrences after it were computed with the data of the scheduler.
-- Each occurrence has as long to begin, after its instant, as the one that waited.
-- A scheduled occurrence takes its unique key here, or is skipped; an enqueued execution that awaits its key takes it here, or is looked at again a
-- second later: `+ :promotion_window`, because rows are read so long before their time.
-- Nothing is taken if a freeze was written or ended since the scheduler read them.
-- `waiting` are the occurrences of jobs with overlap `latest` that wait for their limit, and that no worker has ever claimed: a promotion replaces those that
-- are older, and gives way to one that is newer. If one of them is locked, it is being unblocked or changed, and the promotion waits for the next look.
WITH {freezes_known},
given AS MATERIALIZED (
    SELECT :ids::uuid[] AS ids, :run_ats::timestamptz[] AS run_ats, :versions::integer[] AS versions, :next_ids::uuid[] AS next_ids,
           :next_run_ats::timestamptz[] AS next_run_ats, :next_fors::timestamptz[] AS next_fors, :watermarks::timestamptz[] AS watermarks,
           :lefts::bigint[] AS lefts,
           :shards::smallint[] AS shards, :epochs::bigint[] AS epochs,
           :run_due_ids::uuid[] AS run_due_ids, :run_ids::uuid[] AS run_ids, :run_fors::timestamptz[] AS run_fors,
           :run_run_ats::timestamptz[] AS run_run_ats, :run_targets::text[] AS run_targets,
           :skip_due_ids::uuid[] AS skip_due_ids, :skip_ids::uuid[] AS skip_ids, :skip_fors::timestamptz[] AS skip_fors,
           :skip_reasons::text[] AS skip_reasons,
           :range_due_ids::uuid[] AS range_due_ids, :range_ids::uuid[] AS range_ids, :range_firsts::timestamptz[] AS range_firsts,
           :range_lasts::timestamptz[] AS range_lasts, :range_counts::bigint[] AS range_counts, :range_reasons::text[] AS range_reasons,
           :replacing_due_ids::uuid[] AS replacing_due_ids, :replacing_job_ids::uuid[] AS replacing_job_ids
),
owed AS (
    SELECT o.*
    FROM given
    CROSS JOIN unnest(ids, run_ats, versions, next_ids, next_run_ats, next_fors, watermarks, lefts)
               AS o (id, run_at, version, next_id, next_run_at, next_for, watermark, left_over)
),
owned AS MATERIALIZED (
    SELECT shard.id
    FROM given
    CROSS JOIN unnest(given.shards, given.epochs) AS mine (id, epoch)
    JOIN timeball.shard USING (id, epoch)
    WHERE shard.owner = :incarnation
),
waiting AS MATERIALIZED (
    SELECT replacing.due_id, looked_up.tid
    FROM given
    CROSS JOIN unnest(replacing_due_ids, replacing_job_ids) AS replacing (due_id, job_id)
    CROSS JOIN LATERAL (
        SELECT blocked.ctid AS tid
        FROM timeball.blocked
        WHERE blocked.job_id = replacing.job_id
          AND blocked.origin = 'schedule'
          AND blocked.fence = 0
        OFFSET 0
    ) AS looked_up
),
locked_waiting AS MATERIALIZED (
    SELECT waiting.due_id, looked_up.*
    FROM waiting
    CROSS JOIN LATERAL (
        SELECT blocked.ctid AS tid, blocked.scheduled_for
        FROM timeball.blocked
        WHERE blocked.ctid = waiting.tid
        FOR UPDATE SKIP LOCKED
    ) AS looked_up
),
found AS MATERIALIZED (
    SELECT looked_up.tid
    FROM owed
    CROSS JOIN LATERAL (
        SELECT due.ctid AS tid
        FROM timeball.due
        WHERE due.id = owed.id
          AND due.id <> ALL (ARRAY(SELECT waiting.due_id FROM waiting WHERE waiting.tid <> ALL (ARRAY(SELECT locked_waiting.tid FROM locked_waiting))))
          AND due.run_at = owed.run_at
          AND due.version = owed.version
          AND due.shard = ANY (ARRAY(SELECT owned.id FROM owned))
          AND due.run_at <= coalesce(:now, now()) + :promotion_window::interval
          AND (SELECT freezes_known.are_known FROM freezes_known)
        OFFSET 0
        FOR UPDATE SKIP LOCKED
    ) AS looked_up
),
gone AS (
    DELETE FROM timeball.due
    WHERE due.ctid = ANY (ARRAY(SELECT found.tid FROM found))
    RETURNING due.*
),
taken AS MATERIALIZED (
    SELECT gone.*, owed.next_id, owed.next_run_at, owed.next_for, owed.watermark AS next_watermark, owed.left_over
    FROM gone
    JOIN owed ON owed.id = gone.id AND owed.run_at = gone.run_at
),
following AS (
    INSERT INTO timeball.due (id, job_id, kind, origin, shard, run_at, scheduled_for, watermark, tzdata, version, queue, priority, handler,
                              executions_left, limit_key, unique_key, expires_at, has_follow_ups)
    SELECT next_id, job_id, 'occurrence', origin, shard, next_run_at, next_for, next_watermark, :tzdata, version, queue, priority, handler,
           left_over, limit_key, unique_key, next_for + (expires_at - scheduled_for), has_follow_ups
    FROM taken
    WHERE next_id IS NOT NULL
),
run AS (
    SELECT wanted.id AS run_id, wanted.scheduled_for AS run_for, wanted.run_at AS run_run_at, wanted.target,
           CASE WHEN wanted.id = taken.id THEN taken.tzdata ELSE :tzdata END AS run_tzdata,
           wanted.scheduled_for + (taken.expires_at - taken.scheduled_for) AS run_expires_at,
           taken.unique_key IS NOT NULL AND (taken.awaits_key OR (taken.kind = 'occurrence' AND taken.origin = 'schedule')) AS takes_key, taken.*
    FROM given
    CROSS JOIN unnest(run_due_ids, run_ids, run_fors, run_run_ats, run_targets) AS wanted (due_id, id, scheduled_for, run_at, target)
    JOIN taken ON taken.id = wanted.due_id
),
outdated AS MATERIALIZED (
    SELECT run.run_id
    FROM locked_waiting
    JOIN run ON run.id = locked_waiting.due_id
    WHERE locked_waiting.scheduled_for > run.run_for
      AND run.fence = 0
),
freed AS (
    DELETE FROM timeball.live_key
    WHERE key = ANY (ARRAY(SELECT run.unique_key FROM run WHERE run.takes_key))
      AND has_ended
      AND held_until <= coalesce(:now, now())
    RETURNING key
),
keyed AS (
    INSERT INTO timeball.live_key (key, execution_id, held_until)
    SELECT unique_key, run_id,
           CASE WHEN awaits_key THEN run_for + (SELECT job.unique_for_seconds FROM timeball.job WHERE job.id = run.job_id) * interval '1 second' END
    FROM run
    WHERE takes_key
      AND (SELECT count(*) FROM freed) >= 0
    ORDER BY run_for
    ON CONFLICT DO NOTHING
    RETURNING execution_id
),
judged AS MATERIALIZED (
    SELECT run.*,
           CASE WHEN run_id IN (SELECT outdated.run_id FROM outdated) THEN 'overlap'
                WHEN takes_key AND run_id NOT IN (SELECT keyed.execution_id FROM keyed) THEN CASE WHEN awaits_key THEN 'awaiting' ELSE 'unique_key' END
           END AS refusal
    FROM run
),
replaced AS (
    DELETE FROM timeball.blocked
    WHERE blocked.ctid = ANY (ARRAY(
              SELECT locked_waiting.tid
              FROM locked_waiting
              JOIN judged ON judged.id = locked_waiting.due_id
              WHERE locked_waiting.scheduled_for < judged.run_for
                AND judged.refusal IS NULL
                AND judged.fence = 0
          ))
    RETURNING blocked.*
),
later AS (
    INSERT INTO timeball.due (id, job_id, kind, origin, shard, run_at, scheduled_for, tzdata, version, queue, priority, handler, limit_key, unique_key,
                              expires_at, has_follow_ups)
    SELECT run_id, job_id, 'later', origin, shard, run_run_at, run_for, run_tzdata, version, queue, priority, handler, limit_key, unique_key,
           run_expires_at, has_follow_ups
    FROM judged
    WHERE refusal IS NULL
      AND target = 'due'
),
held_up AS (
    INSERT INTO timeball.blocked (id, job_id, origin, version, queue, priority, handler, scheduled_for, run_at, queued_at,
                                  attempts, lost, fence, tzdata, limit_key, unique_key, payload, retry_of, created_by, bound_secrets_only, meta, has_follow_ups,
                                  expires_at)
    SELECT run_id, job_id, origin, version, queue, priority, handler, run_for, run_run_at, coalesce(queued_at, :now, now()),
           attempts, lost, fence, run_tzdata, limit_key, unique_key, payload, retry_of, created_by, bound_secrets_only, meta, has_follow_ups, run_expires_at
    FROM judged
    WHERE refusal IS NULL
      AND (target = 'blocked' OR (target = 'ready' AND limit_key IS NOT NULL))
),
promoted AS (
    INSERT INTO timeball.ready (id, job_id, origin, version, queue, priority, handler, scheduled_for, run_at, queued_at,
                                attempts, lost, fence, tzdata, limit_key, unique_key, payload, retry_of, created_by, bound_secrets_only, meta, has_follow_ups,
                                expires_at)
    SELECT run_id, job_id, origin, version, queue, priority, handler, run_for, run_run_at, coalesce(queued_at, :now, now()),
           attempts, lost, fence, run_tzdata, limit_key, unique_key, payload, retry_of, created_by, bound_secrets_only, meta, has_follow_ups, run_expires_at
    FROM judged
    WHERE refusal IS NULL
      AND target = 'ready'
      AND limit_key IS NULL
),
awaiting AS (
    INSERT INTO timeball.due (id, job_id, kind, origin, shard, run_at, scheduled_for, tzdata, version, queue, priority, handler, queued_at,
                              fence, limit_key, unique_key, payload, retry_of, created_by, bound_secrets_only, meta, has_follow_ups, expires_at, awaits_key)
    SELECT run_id, job_id, kind, origin, shard, coalesce(:now, now()) + :promotion_window::interval + interval '1 second', run_for, tzdata, version,
           queue, priority, handler, queued_at, fence, limit_key, unique_key, payload, retry_of, created_by, bound_secrets_only, meta, has_follow_ups,
           run_expires_at, true
    FROM judged
    WHERE refusal = 'awaiting'
),
unkeyed AS (
    DELETE FROM timeball.live_key
    USING (
        SELECT taken.id, taken.unique_key
        FROM taken
        WHERE taken.unique_key IS NOT NULL
          AND (taken.id = ANY (:skip_ids::uuid[]) OR taken.id IN (SELECT outdated.run_id FROM outdated))
        UNION ALL
        SELECT replaced.id, replaced.unique_key
        FROM replaced
        WHERE replaced.unique_key IS NOT NULL
    ) AS gone
    WHERE live_key.key = gone.unique_key
      AND live_key.execution_id = gone.id
),
skipped AS (
    INSERT INTO timeball.finished (id, job_id, state, origin, version, queue, priority, handler, scheduled_for, queued_at, finished_at,
                                   attempts, lost, fence, tzdata, reason, expires_at, meta, has_follow_ups)
    SELECT skip.id, taken.job_id, 'skipped', taken.origin, taken.version, taken.queue, taken.priority, taken.handler, skip.scheduled_for,
           CASE WHEN taken.kind = 'later' THEN coalesce(taken.queued_at, :now, now()) END,
           greatest(coalesce(:now, now()), skip.scheduled_for), 0, 0, 0,
           CASE WHEN skip.id = taken.id THEN taken.tzdata ELSE :tzdata END, skip.reason,
           skip.scheduled_for + (taken.expires_at - taken.scheduled_for), NULL::jsonb, taken.has_follow_ups
    FROM given
    CROSS JOIN unnest(skip_due_ids, skip_ids, skip_fors, skip_reasons) AS skip (due_id, id, scheduled_for, reason)
    JOIN taken ON taken.id = skip.due_id
    UNION ALL
    SELECT run_id, job_id, 'skipped', origin, version, queue, priority, handler, run_for,
           CASE WHEN refusal = 'overlap' THEN coalesce(queued_at, :now, now()) END,
           greatest(coalesce(:now, now()), run_for), 0, 0, 0, run_tzdata, refusal, run_expires_at, meta, has_follow_ups
    FROM judged
    WHERE refusal <> 'awaiting'
    UNION ALL
    SELECT id, job_id, 'skipped', origin, version, queue, priority, handler, scheduled_for, queued_at,
           greatest(coalesce(:now, now()), scheduled_for), 0, 0, 0, tzdata, 'overlap', expires_at, meta, has_follow_ups
    FROM replaced
),
ranges AS (
    INSERT INTO timeball.skip_range (id, job_id, version, tzdata, first_at, last_at, occurrences, reason, recorded_at)
    SELECT span.id, taken.job_id, taken.version, :tzdata, span.first_at, span.last_at, span.occurrences, span.reason, coalesce(:now, now())
    FROM given
    CROSS JOIN unnest(range_due_ids, range_ids, range_firsts, range_lasts, range_counts, range_reasons)
               AS span (due_id, id, first_at, last_at, occurrences, reason)
    JOIN taken ON taken.id = span.due_id
)
SELECT id FROM taken;

-- name: hold_frozen
-- Let rows wait for the end of the freeze that holds them, each only if it still is as it was read, and if no freeze was written or ended meanwhile.
-- Looked up, locked and changed by ctid as in promote.
WITH {freezes_known},
found AS MATERIALIZED (
    SELECT looked_up.tid, given.until_at
    FROM unnest(:ids::uuid[], :run_ats::timestamptz[], :versions::integer[], :untils::timestamptz[]) AS given (id, run_at, version, until_at)
    CROSS JOIN LATERAL (
        SELECT due.ctid AS tid
        FROM timeball.due
        WHERE due.id = given.id
          AND due.run_at IS NOT DISTINCT FROM given.run_at
          AND due.version = given.version
          AND (SELECT freezes_known.are_known FROM freezes_known)
        OFFSET 0
        FOR UPDATE
    ) AS looked_up
)
UPDATE timeball.due
SET run_at = (SELECT found.until_at FROM found WHERE found.tid = due.ctid),
    frozen_run_at = coalesce(due.frozen_run_at, due.run_at)
WHERE due.ctid = ANY (ARRAY(SELECT found.tid FROM found))
RETURNING due.id;

-- name: lock_out_promotions
-- Wait for the promotions that are under way, and let none begin: as lock_out_claims, which a change of freezes needs as well.
LOCK TABLE timeball.freeze_period IN EXCLUSIVE MODE;

-- fragment: new_epoch
-- After all others, and after any that a failover may have lost: a scheduler must not take one for the other.
greatest((SELECT coalesce(max(epoch), 0) + 1 FROM timeball.freeze_period), (extract(epoch FROM clock.moment) * 1000000)::bigint)

-- name: add_freeze
-- After lock_out_promotions. The clock is read after the locks: every claim that began later sees the freeze.
INSERT INTO timeball.freeze_period (id, queue, tag, job_id, from_at, until_at, afterwards, actor, reason, created_at, epoch)
SELECT :id, :queue, :tag, :job_id, greatest(:from::timestamptz, clock.moment), :until, :afterwards, :actor, :reason, clock.moment,
       {new_epoch}
FROM (SELECT coalesce(:now, clock_timestamp()) AS moment) AS clock
WHERE :until::timestamptz > clock.moment
RETURNING *;

-- name: find_freeze
SELECT *
FROM timeball.freeze_period
WHERE id = :id;

-- name: end_freeze
-- End a freeze before its time, after lock_out_promotions; no row if it is over. One that has not begun never begins.
UPDATE timeball.freeze_period
SET until_at = greatest(from_at, clock.moment),
    ended_by = :actor,
    ended_at = clock.moment,
    epoch = {new_epoch}
FROM (SELECT coalesce(:now, clock_timestamp()) AS moment) AS clock
WHERE id = :id
  AND ended_at IS NULL
  AND until_at > clock.moment
RETURNING freeze_period.*;

-- name: thaw
-- Give the rows that waited for the end of a freeze their own time again; if another freeze holds them, a scheduler lets them wait again.
UPDATE timeball.due
SET run_at = frozen_run_at,
    frozen_run_at = NULL
WHERE frozen_run_at IS NOT NULL
  AND run_at = :until
RETURNING shard;

-- name: note_ended_freeze
-- A freeze whose end has come; once, however many nodes try.
UPDATE timeball.freeze_period
SET ended_at = coalesce(:now, now())
WHERE id = :id
  AND ended_at IS NULL
  AND until_at <= coalesce(:now, now())
RETURNING *;

-- name: all_freezes
-- Every freeze that is kept, in the order in which they begin.
SELECT *
FROM timeball.freeze_period
ORDER BY from_at, id;

-- name: tags_of_jobs
-- Which of some tags these jobs have. OFFSET 0: see busy_jobs.
SELECT asked.job_id, found.tag
FROM unnest(:job_ids::uuid[]) AS asked (job_id)
CROSS JOIN LATERAL (
    SELECT unnest(job.tags) AS tag
    FROM timeball.job
    WHERE job.id = asked.job_id
    OFFSET 0
) AS found
WHERE found.tag = ANY (:tags::text[]);

-- name: park
-- Let retries and snoozes of a paused job wait until it is resumed. What a freeze has put back was queued, and a pause does not hold that. The job is locked, and read as it is after a lock wait: a row that is parked after
-- the resumption would wait for ever. The row keeps the instant that it waited for, because it must not run before that either.
-- Looked up, locked and changed by ctid as in promote. IS NOT DISTINCT FROM: see `unpark` in jobs.sql.
WITH looked_at AS MATERIALIZED (
    SELECT id, paused_at
    FROM timeball.job
    WHERE id = ANY (:job_ids::uuid[])
    FOR SHARE
),
found AS MATERIALIZED (
    SELECT looked_up.tid
    FROM unnest(:ids::uuid[], :run_ats::timestamptz[]) AS given (id, run_at)
    CROSS JOIN LATERAL (
        SELECT due.ctid AS tid
        FROM timeball.due
        WHERE due.id = given.id
          AND due.run_at IS NOT DISTINCT FROM given.run_at
          AND due.kind IN ('retry', 'snooze')
          AND NOT EXISTS (SELECT 1 FROM looked_at WHERE looked_at.id = due.job_id AND looked_at.paused_at IS NULL)
        OFFSET 0
        FOR UPDATE
    ) AS looked_up
)
UPDATE timeball.due
SET run_at = :parked_at,
    watermark = coalesce(due.frozen_run_at, due.run_at),
    frozen_run_at = NULL
WHERE due.ctid = ANY (ARRAY(SELECT found.tid FROM found));

-- name: occurrences_of_other_tzdata
-- Pending occurrences of some shards that were computed with older time-zone data. The inner query has no other condition, because a planner without
-- statistics would then read the whole schedule.
SELECT id, job_id, kind, origin, shard, run_at, scheduled_for, watermark, tzdata, version, executions_left, limit_key, queue, priority, expires_at, false AS is_paused,
       frozen_run_at IS NOT NULL AS is_frozen
FROM (
    SELECT *
    FROM timeball.due
    WHERE tzdata < :tzdata
    ORDER BY tzdata, id
    OFFSET 0
) AS due
WHERE kind = 'occurrence'
  AND shard = ANY (:shards::smallint[])
LIMIT (SELECT :limit::bigint);

-- name: move_occurrence
-- Replace a pending occurrence by the one that the present time-zone data yield. IS NOT DISTINCT FROM: see `unpark` in jobs.sql.
WITH taken AS (
    DELETE FROM timeball.due
    WHERE id = :id
      AND run_at IS NOT DISTINCT FROM :run_at
      AND version = :version
      AND kind IS NOT DISTINCT FROM 'occurrence'
    RETURNING *
)
INSERT INTO timeball.due (id, job_id, kind, origin, shard, run_at, scheduled_for, watermark, tzdata, version, queue, priority, handler,
                          executions_left, limit_key, unique_key, payload, expires_at, meta, has_follow_ups)
SELECT :next_id, job_id, kind, origin, shard, :next_run_at, :next_for, watermark, :tzdata, version, queue, priority, handler,
       executions_left, limit_key, unique_key, payload, :next_for::timestamptz + (expires_at - scheduled_for), meta, has_follow_ups
FROM taken
RETURNING id;

-- name: end_occurrence
-- Record a pending occurrence as skipped if the present time-zone data yield none in its place. The record cites the data that computed it; the version
-- cites the data by which nothing follows. IS NOT DISTINCT FROM: see `unpark` in jobs.sql.
WITH taken AS (
    DELETE FROM timeball.due
    WHERE id = :id
      AND run_at IS NOT DISTINCT FROM :run_at
      AND version = :version
      AND kind IS NOT DISTINCT FROM 'occurrence'
    RETURNING *
),
noted AS (
    UPDATE timeball.job_version
    SET tzdata = :tzdata
    FROM taken
    WHERE job_version.job_id = taken.job_id
      AND job_version.version = taken.version
)
INSERT INTO timeball.finished (id, job_id, state, origin, version, queue, priority, handler, scheduled_for, finished_at, attempts, lost, fence, tzdata, reason,
                               has_follow_ups)
SELECT id, job_id, 'skipped', origin, version, queue, priority, handler, scheduled_for, greatest(coalesce(:now, now()), scheduled_for), 0, 0, 0, tzdata, :reason,
       has_follow_ups
FROM taken
RETURNING id;
