-- Folding the history into rollups, and reading them.

-- name: lock_fold
-- The snapshot up to which the history is folded, locked for the next fold. No row while another fold is under way.
SELECT seen::text AS seen,
       pg_snapshot_xmax(seen) > pg_snapshot_xmax(pg_current_snapshot()) AS is_from_elsewhere
FROM timeball.fold
FOR UPDATE SKIP LOCKED;

-- name: fold
-- Add to the rollups what this statement sees and :seen did not, and store its snapshot; at most :limit transactions at once.
-- A snapshot knows of each transaction whether it was committed, so a row that was recorded early and committed late is neither lost nor counted twice.
-- A fold that is far behind stops at a snapshot made of all transactions before one that has ended. That requires all of :seen to lie before it as well.
WITH mark AS MATERIALIZED (
    SELECT :seen::text::pg_snapshot AS seen, pg_current_snapshot() AS present
),
edge AS MATERIALIZED (
    SELECT mark.seen,
           pg_snapshot_xmin(mark.seen)::text::bigint AS seen_from,
           pg_snapshot_xmax(mark.seen)::text::bigint AS seen_until,
           CASE
               WHEN pg_snapshot_xmin(mark.present)::text::bigint > pg_snapshot_xmax(mark.seen)::text::bigint + :limit::bigint
               THEN format('%1$s:%1$s:', pg_snapshot_xmax(mark.seen)::text::bigint + :limit::bigint)::pg_snapshot
               ELSE mark.present
           END AS until
    FROM mark
),
ended AS MATERIALIZED (
    SELECT finished.job_id, finished.id, finished.queue, finished.handler,
           -- By what its end wrote itself: a settlement by a person comes later, and changes nothing.
           CASE WHEN finished.state = 'dead'
                 AND EXISTS (SELECT 1 FROM timeball.settled WHERE settled.execution_id = finished.id AND settled.how = 'expected')
                THEN 'expected' ELSE finished.state END AS what,
           finished.origin, finished.scheduled_for,
           finished.started_at, finished.finished_at, finished.attempts, finished.error_type,
           CASE WHEN finished.origin IN ('schedule', 'after')
                THEN coalesce(timeball.skip_reason(finished.state, finished.reason, finished.attempts, finished.lost), 'ran') END AS verdict
    FROM edge
    CROSS JOIN timeball.finished
    WHERE finished.recorded >= (SELECT seen_from FROM edge)
      AND finished.recorded < (SELECT pg_snapshot_xmax(until)::text::bigint FROM edge)
      AND (finished.recorded >= edge.seen_until OR NOT pg_visible_in_snapshot(finished.recorded::text::xid8, edge.seen))
),
tried AS MATERIALIZED (
    SELECT execution.job_id, execution.id, execution.queue, execution.handler,
           CASE WHEN attempt.is_expected THEN 'expected try' ELSE attempt.outcome END AS what, execution.origin, execution.scheduled_for,
           attempt.started_at, attempt.finished_at, attempt.number
    FROM edge
    CROSS JOIN timeball.attempt
    CROSS JOIN LATERAL (
        SELECT *
        FROM timeball.execution
        WHERE execution.id = attempt.execution_id
        LIMIT 1
    ) AS execution
    WHERE attempt.recorded >= (SELECT seen_from FROM edge)
      AND attempt.recorded < (SELECT pg_snapshot_xmax(until)::text::bigint FROM edge)
      AND (attempt.recorded >= edge.seen_until OR NOT pg_visible_in_snapshot(attempt.recorded::text::xid8, edge.seen))
),
passed_over AS MATERIALIZED (
    SELECT job.id AS job_id, skip_range.id, job.queue, job.handler, skip_range.recorded_at, skip_range.reason, skip_range.occurrences
    FROM edge
    CROSS JOIN timeball.skip_range
    JOIN timeball.job ON job.id = skip_range.job_id
    WHERE skip_range.recorded >= (SELECT seen_from FROM edge)
      AND skip_range.recorded < (SELECT pg_snapshot_xmax(until)::text::bigint FROM edge)
      AND (skip_range.recorded >= edge.seen_until OR NOT pg_visible_in_snapshot(skip_range.recorded::text::xid8, edge.seen))
),
-- One row for each event. An attempt with a record started there. Lateness is that of the first attempt, and never of a backfill or of what comes after another
-- job.
-- A verdict is about occurrences of a schedule, or of a job of kind `after`: that one ran, or the reason for which one or a range of them was skipped. A range that was not counted has
-- two at least.
happened AS (
    SELECT job_id, id, queue, handler, finished_at AS at, what, verdict, 1::bigint AS times,
           NULL::double precision AS lateness, extract(epoch FROM finished_at - started_at)::double precision AS duration
    FROM ended
    UNION ALL
    SELECT job_id, id, queue, handler, recorded_at, 'passed over', reason, coalesce(occurrences, 2), NULL, NULL
    FROM passed_over
    UNION ALL
    SELECT job_id, id, queue, handler, started_at, 'started', NULL, 1,
           CASE WHEN attempts = 1 AND origin NOT IN ('backfill', 'after') THEN greatest(extract(epoch FROM started_at - scheduled_for), 0)::double precision END, NULL
    FROM ended
    WHERE started_at IS NOT NULL
      AND error_type IS NULL
    UNION ALL
    SELECT job_id, id, queue, handler, finished_at, what, NULL, 1, NULL, NULL
    FROM tried
    UNION ALL
    SELECT job_id, id, queue, handler, started_at, 'started', NULL, 1,
           CASE WHEN number = 1 AND origin NOT IN ('backfill', 'after') THEN greatest(extract(epoch FROM started_at - scheduled_for), 0)::double precision END, NULL
    FROM tried
    WHERE started_at IS NOT NULL
),
counted AS MATERIALIZED (
    SELECT date_trunc('minute', at, 'UTC') AS minute, CASE WHEN job_id <> id THEN job_id END AS job_id, queue, handler, what, verdict,
           timeball.bucket(lateness) AS late, timeball.bucket(duration) AS lasted,
           sum(times)::bigint AS number, coalesce(sum(lateness), 0) AS lateness, coalesce(sum(duration), 0) AS duration
    FROM happened
    GROUP BY 1, 2, 3, 4, 5, 6, 7, 8
),
installation AS (
    SELECT minute, what, verdict, late, lasted, sum(number)::bigint AS number, sum(lateness) AS lateness, sum(duration) AS duration
    FROM counted
    GROUP BY minute, what, verdict, late, lasted
),
-- Every count goes to the series of its queue and handler; of its job, if that recurs; of its queue, under an id made from the name; and of the
-- installation, under the last of all ids. So a chart of a queue or the installation reads one row a step, however many handlers there are.
told AS (
    SELECT counted.minute, series.job_id, series.queue, series.handler, counted.what, counted.verdict, counted.late, counted.lasted,
           counted.number, counted.lateness, counted.duration
    FROM counted
    LEFT JOIN timeball.job ON job.id = counted.job_id AND job.kind <> 'once'
    CROSS JOIN LATERAL (
        VALUES ('00000000-0000-0000-0000-000000000000'::uuid, counted.queue, counted.handler),
               (job.id, counted.queue, counted.handler),
               (md5('queue ' || counted.queue)::uuid, counted.queue, '')
    ) AS series (job_id, queue, handler)
    WHERE series.job_id IS NOT NULL
    UNION ALL
    SELECT minute, 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid, '', '', what, verdict, late, lasted, number, lateness, duration
    FROM installation
),
-- Every series by the minute and by the hour; for all time only the series of each queue and handler.
spread AS MATERIALIZED (
    SELECT span.name AS span, span.at, told.job_id, told.queue, told.handler, told.what, told.verdict, told.late, told.lasted,
           told.number, told.lateness, told.duration
    FROM told
    CROSS JOIN LATERAL (
        VALUES ('minute', told.minute), ('hour', date_trunc('hour', told.minute, 'UTC')), ('ever', 'epoch'::timestamptz)
    ) AS span (name, at)
    WHERE span.name <> 'ever'
       OR told.job_id = '00000000-0000-0000-0000-000000000000'::uuid
),
known AS MATERIALIZED (
    DELETE FROM timeball.rollup
    USING (SELECT DISTINCT span, job_id, at, queue, handler FROM spread) AS touched
    WHERE (rollup.span, rollup.job_id, rollup.at, rollup.queue, rollup.handler)
        = (touched.span, touched.job_id, touched.at, touched.queue, touched.handler)
    RETURNING rollup.*
),
number AS (
    SELECT span, job_id, at, queue, handler,
           sum(starts) AS starts, sum(succeeded) AS succeeded, sum(cancelled) AS cancelled, sum(dead) AS dead, sum(skipped) AS skipped,
           sum(failed) AS failed, sum(timed_out) AS timed_out, sum(lost) AS lost, sum(expected) AS expected,
           sum(expected_tries) AS expected_tries, sum(ran) AS ran,
           sum(lateness_seconds) AS lateness_seconds, sum(duration_seconds) AS duration_seconds
    FROM (
        SELECT span, job_id, at, queue, handler, starts, succeeded, cancelled, dead, skipped, failed, timed_out, lost, expected, expected_tries, ran,
               lateness_seconds, duration_seconds
        FROM known
        UNION ALL
        SELECT span, job_id, at, queue, handler,
               CASE what WHEN 'started' THEN number ELSE 0 END, CASE what WHEN 'succeeded' THEN number ELSE 0 END,
               CASE what WHEN 'cancelled' THEN number ELSE 0 END, CASE what WHEN 'dead' THEN number ELSE 0 END,
               CASE what WHEN 'skipped' THEN number ELSE 0 END, CASE what WHEN 'failed' THEN number ELSE 0 END,
               CASE what WHEN 'timed_out' THEN number ELSE 0 END, CASE what WHEN 'lost' THEN number ELSE 0 END,
               CASE what WHEN 'expected' THEN number ELSE 0 END, CASE what WHEN 'expected try' THEN number ELSE 0 END,
               CASE verdict WHEN 'ran' THEN number ELSE 0 END, lateness, duration
        FROM spread
    ) AS part
    GROUP BY span, job_id, at, queue, handler
),
skips AS (
    SELECT span, job_id, at, queue, handler, array_agg(reason ORDER BY reason) AS reasons, array_agg(number ORDER BY reason) AS counts
    FROM (
        SELECT span, job_id, at, queue, handler, reason, sum(number)::bigint AS number
        FROM (
            SELECT span, job_id, at, queue, handler, verdict AS reason, number
            FROM spread
            WHERE verdict <> 'ran'
            UNION ALL
            SELECT span, job_id, at, queue, handler, skip.reason, skip.number
            FROM known
            CROSS JOIN LATERAL unnest(known.skip_reasons, known.skip_counts) AS skip (reason, number)
        ) AS part
        GROUP BY span, job_id, at, queue, handler, reason
    ) AS complete
    GROUP BY span, job_id, at, queue, handler
),
late AS (
    SELECT span, job_id, at, queue, handler, array_agg(bucket ORDER BY bucket) AS buckets, array_agg(number ORDER BY bucket) AS counts
    FROM (
        SELECT span, job_id, at, queue, handler, bucket, sum(number)::bigint AS number
        FROM (
            SELECT span, job_id, at, queue, handler, late AS bucket, number
            FROM spread
            WHERE late IS NOT NULL
            UNION ALL
            SELECT span, job_id, at, queue, handler, sketch.bucket, sketch.number
            FROM known
            CROSS JOIN LATERAL unnest(known.lateness_buckets, known.lateness_counts) AS sketch (bucket, number)
        ) AS part
        GROUP BY span, job_id, at, queue, handler, bucket
    ) AS complete
    GROUP BY span, job_id, at, queue, handler
),
lasted AS (
    SELECT span, job_id, at, queue, handler, array_agg(bucket ORDER BY bucket) AS buckets, array_agg(number ORDER BY bucket) AS counts
    FROM (
        SELECT span, job_id, at, queue, handler, bucket, sum(number)::bigint AS number
        FROM (
            SELECT span, job_id, at, queue, handler, lasted AS bucket, number
            FROM spread
            WHERE lasted IS NOT NULL
            UNION ALL
            SELECT span, job_id, at, queue, handler, sketch.bucket, sketch.number
            FROM known
            CROSS JOIN LATERAL unnest(known.duration_buckets, known.duration_counts) AS sketch (bucket, number)
        ) AS part
        GROUP BY span, job_id, at, queue, handler, bucket
    ) AS complete
    GROUP BY span, job_id, at, queue, handler
),
written AS (
    INSERT INTO timeball.rollup (span, at, job_id, queue, handler, starts, succeeded, cancelled, dead, skipped, failed, timed_out, lost,
                                 expected, expected_tries, ran, skip_reasons, skip_counts, lateness_seconds, lateness_buckets, lateness_counts, duration_seconds, duration_buckets, duration_counts)
    SELECT number.span, number.at, number.job_id, number.queue, number.handler, number.starts, number.succeeded, number.cancelled, number.dead,
           number.skipped, number.failed, number.timed_out, number.lost, number.expected,
           number.expected_tries, number.ran, coalesce(skips.reasons, '{}'), coalesce(skips.counts, '{}'),
           number.lateness_seconds, coalesce(late.buckets, '{}'), coalesce(late.counts, '{}'),
           number.duration_seconds, coalesce(lasted.buckets, '{}'), coalesce(lasted.counts, '{}')
    FROM number
    LEFT JOIN skips USING (span, job_id, at, queue, handler)
    LEFT JOIN late USING (span, job_id, at, queue, handler)
    LEFT JOIN lasted USING (span, job_id, at, queue, handler)
),
-- What the latest of these runs tell of each recurring job. Lateness is that of a first attempt: as in `happened`.
latest AS MATERIALIZED (
    SELECT job.id AS job_id,
           max(run.ended_at) FILTER (WHERE run.what = 'succeeded') AS succeeded_at,
           max(run.ended_at) FILTER (WHERE run.what IN ('succeeded', 'expected')) AS unbroken_at,
           array_agg(run.ended_at) FILTER (WHERE run.what = 'dead') AS deaths,
           max(run.ended_at) FILTER (WHERE run.duration IS NOT NULL) AS duration_at,
           (array_agg(run.duration ORDER BY run.ended_at DESC, run.id DESC) FILTER (WHERE run.duration IS NOT NULL))[1] AS duration_seconds,
           max(run.started_at) FILTER (WHERE run.lateness IS NOT NULL) AS lateness_at,
           (array_agg(run.lateness ORDER BY run.started_at DESC, run.id DESC) FILTER (WHERE run.lateness IS NOT NULL))[1] AS lateness_seconds
    FROM (
        SELECT job_id, id, what, started_at, finished_at AS ended_at,
               CASE WHEN what <> 'cancelled' THEN extract(epoch FROM finished_at - started_at)::double precision END AS duration,
               CASE WHEN attempts = 1 AND error_type IS NULL AND origin <> 'after'
                    THEN greatest(extract(epoch FROM started_at - scheduled_for), 0)::double precision END AS lateness
        FROM ended
        WHERE job_id <> id
          AND origin <> 'backfill'
        UNION ALL
        SELECT job_id, id, NULL, started_at, NULL, NULL, greatest(extract(epoch FROM started_at - scheduled_for), 0)::double precision
        FROM tried
        WHERE job_id <> id
          AND origin NOT IN ('backfill', 'after')
          AND number = 1
    ) AS run
    JOIN timeball.job ON job.id = run.job_id AND job.kind <> 'once' AND job.deleted_at IS NULL
    GROUP BY job.id
),
-- Outcomes may be folded in another order than they ended in: if a failure ended behind a success that is folded after it, at least one is in a row.
summary AS (
    INSERT INTO timeball.job_summary (job_id, succeeded_at, unbroken_at, failed_at, failures_in_a_row, duration_at, duration_seconds, lateness_at, lateness_seconds)
    SELECT latest.job_id,
           greatest(latest.succeeded_at, past.succeeded_at),
           unbroken.at,
           greatest((SELECT max(death.at) FROM unnest(latest.deaths) AS death (at)), past.failed_at),
           CASE WHEN past.job_id IS NULL THEN 0
                WHEN unbroken.at IS NOT DISTINCT FROM past.unbroken_at THEN past.failures_in_a_row
                WHEN past.failed_at > unbroken.at THEN 1
                ELSE 0 END
               + (SELECT count(*) FROM unnest(latest.deaths) AS death (at) WHERE unbroken.at IS NULL OR death.at > unbroken.at),
           greatest(latest.duration_at, past.duration_at),
           CASE WHEN past.duration_at > latest.duration_at OR latest.duration_at IS NULL THEN past.duration_seconds ELSE latest.duration_seconds END,
           greatest(latest.lateness_at, past.lateness_at),
           CASE WHEN past.lateness_at > latest.lateness_at OR latest.lateness_at IS NULL THEN past.lateness_seconds ELSE latest.lateness_seconds END
    FROM latest
    LEFT JOIN LATERAL (
        SELECT *
        FROM timeball.job_summary
        WHERE job_summary.job_id = latest.job_id
        OFFSET 0
    ) AS past ON true
    CROSS JOIN LATERAL (SELECT greatest(latest.unbroken_at, past.unbroken_at) AS at) AS unbroken
    ON CONFLICT (job_id) DO UPDATE
    SET succeeded_at = excluded.succeeded_at,
        unbroken_at = excluded.unbroken_at,
        failed_at = excluded.failed_at,
        failures_in_a_row = excluded.failures_in_a_row,
        duration_at = excluded.duration_at,
        duration_seconds = excluded.duration_seconds,
        lateness_at = excluded.lateness_at,
        lateness_seconds = excluded.lateness_seconds
),
moved AS (
    UPDATE timeball.fold
    SET seen = edge.until
    FROM edge
)
SELECT (SELECT count(*) FROM ended) + (SELECT count(*) FROM tried) + (SELECT count(*) FROM passed_over) AS folded,
       edge.until::text <> mark.present::text AS has_more
FROM edge
CROSS JOIN mark;

-- name: job_summaries
-- What the latest runs of recurring jobs tell: of the first :limit with a name, in the order in which they were created; and, in one row without a name, the
-- worst of the others, of :others summaries. A job that has not run yet has no summary.
WITH named AS MATERIALIZED (
    SELECT id, name
    FROM timeball.observed_jobs(:limit)
),
other AS (
    SELECT summary.*
    FROM (
        SELECT *
        FROM timeball.job_summary
        ORDER BY job_id
        LIMIT :others
    ) AS summary
    WHERE NOT EXISTS (SELECT 1 FROM named WHERE named.id = summary.job_id)
)
SELECT named.name, summary.succeeded_at, summary.failures_in_a_row, summary.duration_seconds, summary.lateness_seconds
FROM named
CROSS JOIN LATERAL (
    SELECT *
    FROM timeball.job_summary
    WHERE job_summary.job_id = named.id
    OFFSET 0
) AS summary
UNION ALL
SELECT NULL, min(succeeded_at), max(failures_in_a_row), max(duration_seconds), max(lateness_seconds)
FROM other
HAVING count(*) > 0
ORDER BY name NULLS LAST;

-- name: forget_summaries
DELETE FROM timeball.job_summary
WHERE job_id = ANY (:job_ids::uuid[]);

-- name: latest_ended
-- Some of what ended since an instant, the latest first, as examples of what the counters count.
SELECT finished.id, finished.queue, finished.handler, finished.state, finished.origin, finished.scheduled_for, finished.started_at, finished.finished_at,
       finished.attempts, finished.error_type,
       finished.state = 'dead'
           AND EXISTS (SELECT 1 FROM timeball.settled WHERE settled.execution_id = finished.id AND settled.how = 'expected' OFFSET 0) AS is_expected,
       coalesce(finished.meta, timeball.meta_of(finished.job_id, finished.version)) -> '$trace' ->> 'traceparent' AS traceparent
FROM timeball.ended_since(:first_id, :since, :limit) AS finished
ORDER BY finished.finished_at DESC, finished.id DESC;

-- name: forget_numbers
-- A restored database counts its transactions anew. Rows with a number of the original database count as seen.
WITH finished AS (
    UPDATE timeball.finished
    SET recorded = 0
    WHERE recorded >= pg_snapshot_xmax(pg_current_snapshot())::text::bigint
),
attempt AS (
    UPDATE timeball.attempt
    SET recorded = 0
    WHERE recorded >= pg_snapshot_xmax(pg_current_snapshot())::text::bigint
),
skip_range AS (
    UPDATE timeball.skip_range
    SET recorded = 0
    WHERE recorded >= pg_snapshot_xmax(pg_current_snapshot())::text::bigint
),
audit AS (
    UPDATE timeball.audit
    SET recorded = 0
    WHERE recorded >= pg_snapshot_xmax(pg_current_snapshot())::text::bigint
)
UPDATE timeball.fold
SET seen = pg_current_snapshot();

-- name: trim_rollups
-- Delete the oldest minutes and hours, at most :limit rows at once.
WITH old AS MATERIALIZED (
    (
        SELECT ctid
        FROM timeball.rollup
        WHERE span = 'minute'
          AND at < coalesce(:now, now()) - :minutes_kept::interval
        LIMIT :limit
    )
    UNION ALL
    (
        SELECT ctid
        FROM timeball.rollup
        WHERE span = 'hour'
          AND at < coalesce(:now, now()) - :hours_kept::interval
        LIMIT :limit
    )
)
DELETE FROM timeball.rollup
WHERE ctid = ANY (ARRAY(SELECT ctid FROM old))
RETURNING 1;

-- name: rollup_series
-- The numbers of each step of a window, and both sketches if :with_sketches: of one series, or of one handler in one queue or all of them.
-- Without the sketches, which are most of a rollup, a window of months costs little.
-- Rows are compared, not each column: otherwise a planner without statistics reads the window of all series by age, and there are many.
WITH part AS MATERIALIZED (
    SELECT date_bin(:step::interval, at, 'epoch'::timestamptz) AS step, *
    FROM timeball.rollup
    WHERE :all_of_handler::text IS NULL
      AND span = :span
      AND (job_id, at) >= (:series::uuid, :since::timestamptz)
      AND (job_id, at) < (:series::uuid, :until::timestamptz)
      AND (:queue::text IS NULL OR queue = :queue::text)
      AND (:handler::text IS NULL OR handler = :handler::text)
    UNION ALL
    SELECT date_bin(:step::interval, at, 'epoch'::timestamptz), *
    FROM timeball.rollup
    WHERE span = :span
      AND job_id = '00000000-0000-0000-0000-000000000000'::uuid
      AND handler = :all_of_handler::text
      AND at >= :since
      AND at < :until
      AND (:queue::text IS NULL OR queue = :queue::text)
),
skips AS (
    SELECT step, array_agg(reason ORDER BY reason) AS reasons, array_agg(number ORDER BY reason) AS counts
    FROM (
        SELECT step, skip.reason, sum(skip.number)::bigint AS number
        FROM part
        CROSS JOIN LATERAL unnest(part.skip_reasons, part.skip_counts) AS skip (reason, number)
        GROUP BY step, skip.reason
    ) AS complete
    GROUP BY step
),
late AS (
    SELECT step, array_agg(bucket ORDER BY bucket) AS buckets, array_agg(number ORDER BY bucket) AS counts
    FROM (
        SELECT step, sketch.bucket, sum(sketch.number)::bigint AS number
        FROM part
        CROSS JOIN LATERAL unnest(part.lateness_buckets, part.lateness_counts) AS sketch (bucket, number)
        WHERE :with_sketches::boolean
        GROUP BY step, sketch.bucket
    ) AS complete
    GROUP BY step
),
lasted AS (
    SELECT step, array_agg(bucket ORDER BY bucket) AS buckets, array_agg(number ORDER BY bucket) AS counts
    FROM (
        SELECT step, sketch.bucket, sum(sketch.number)::bigint AS number
        FROM part
        CROSS JOIN LATERAL unnest(part.duration_buckets, part.duration_counts) AS sketch (bucket, number)
        WHERE :with_sketches::boolean
        GROUP BY step, sketch.bucket
    ) AS complete
    GROUP BY step
)
SELECT number.*, coalesce(skips.reasons, '{}') AS skip_reasons, coalesce(skips.counts, '{}') AS skip_counts,
       coalesce(late.buckets, '{}') AS lateness_buckets, coalesce(late.counts, '{}') AS lateness_counts,
       coalesce(lasted.buckets, '{}') AS duration_buckets, coalesce(lasted.counts, '{}') AS duration_counts
FROM (
    SELECT step AS at, '' AS queue, '' AS handler,
           sum(starts)::bigint AS starts, sum(succeeded)::bigint AS succeeded, sum(cancelled)::bigint AS cancelled, sum(dead)::bigint AS dead,
           sum(skipped)::bigint AS skipped, sum(failed)::bigint AS failed, sum(timed_out)::bigint AS timed_out, sum(lost)::bigint AS lost,
           sum(expected)::bigint AS expected, sum(expected_tries)::bigint AS expected_tries, sum(ran)::bigint AS ran,
           sum(lateness_seconds) AS lateness_seconds, sum(duration_seconds) AS duration_seconds
    FROM part
    GROUP BY step
) AS number
LEFT JOIN skips ON skips.step = number.at
LEFT JOIN late ON late.step = number.at
LEFT JOIN lasted ON lasted.step = number.at
ORDER BY number.at;

-- name: rollup_groups
-- The numbers and both sketches of each (queue, handler) in a window. Whole hours in it are read by the hour.
-- Rows are compared: see rollup_series. OFFSET 0: otherwise PostgreSQL may read a whole series, to join it with three spans.
WITH part AS MATERIALIZED (
    SELECT rollup.*
    FROM (
        VALUES (:span::text, :since::timestamptz, :first_hour::timestamptz),
               ('hour', :first_hour::timestamptz, :last_hour::timestamptz),
               (:span::text, :last_hour::timestamptz, :until::timestamptz)
    ) AS piece (span, since, until)
    CROSS JOIN LATERAL (
        SELECT *
        FROM timeball.rollup
        WHERE rollup.span = piece.span
          AND (rollup.job_id, rollup.at) >= (:series::uuid, piece.since)
          AND (rollup.job_id, rollup.at) < (:series::uuid, piece.until)
        OFFSET 0
    ) AS rollup
    WHERE (:queue::text IS NULL OR rollup.queue = :queue::text)
      AND (:handler::text IS NULL OR rollup.handler = :handler::text)
),
skips AS (
    SELECT queue, handler, array_agg(reason ORDER BY reason) AS reasons, array_agg(number ORDER BY reason) AS counts
    FROM (
        SELECT queue, handler, skip.reason, sum(skip.number)::bigint AS number
        FROM part
        CROSS JOIN LATERAL unnest(part.skip_reasons, part.skip_counts) AS skip (reason, number)
        GROUP BY queue, handler, skip.reason
    ) AS complete
    GROUP BY queue, handler
),
late AS (
    SELECT queue, handler, array_agg(bucket ORDER BY bucket) AS buckets, array_agg(number ORDER BY bucket) AS counts
    FROM (
        SELECT queue, handler, sketch.bucket, sum(sketch.number)::bigint AS number
        FROM part
        CROSS JOIN LATERAL unnest(part.lateness_buckets, part.lateness_counts) AS sketch (bucket, number)
        GROUP BY queue, handler, sketch.bucket
    ) AS complete
    GROUP BY queue, handler
),
lasted AS (
    SELECT queue, handler, array_agg(bucket ORDER BY bucket) AS buckets, array_agg(number ORDER BY bucket) AS counts
    FROM (
        SELECT queue, handler, sketch.bucket, sum(sketch.number)::bigint AS number
        FROM part
        CROSS JOIN LATERAL unnest(part.duration_buckets, part.duration_counts) AS sketch (bucket, number)
        GROUP BY queue, handler, sketch.bucket
    ) AS complete
    GROUP BY queue, handler
)
SELECT number.*, coalesce(skips.reasons, '{}') AS skip_reasons, coalesce(skips.counts, '{}') AS skip_counts,
       coalesce(late.buckets, '{}') AS lateness_buckets, coalesce(late.counts, '{}') AS lateness_counts,
       coalesce(lasted.buckets, '{}') AS duration_buckets, coalesce(lasted.counts, '{}') AS duration_counts
FROM (
    SELECT min(at) AS at, queue, handler,
           sum(starts)::bigint AS starts, sum(succeeded)::bigint AS succeeded, sum(cancelled)::bigint AS cancelled, sum(dead)::bigint AS dead,
           sum(skipped)::bigint AS skipped, sum(failed)::bigint AS failed, sum(timed_out)::bigint AS timed_out, sum(lost)::bigint AS lost,
           sum(expected)::bigint AS expected, sum(expected_tries)::bigint AS expected_tries, sum(ran)::bigint AS ran,
           sum(lateness_seconds) AS lateness_seconds, sum(duration_seconds) AS duration_seconds
    FROM part
    GROUP BY queue, handler
    ORDER BY queue, handler
    LIMIT :limit
) AS number
LEFT JOIN skips USING (queue, handler)
LEFT JOIN late USING (queue, handler)
LEFT JOIN lasted USING (queue, handler)
ORDER BY number.queue, number.handler;

-- name: rollup_tallies
-- The numbers of these series in each step before its :untils, without the sketches, which are most of a rollup.
-- Rows are compared, and OFFSET 0 is there: see rollup_groups.
SELECT given.series, date_bin(:step::interval, rollup.at, 'epoch'::timestamptz) AS at,
       sum(rollup.starts)::bigint AS starts, sum(rollup.succeeded)::bigint AS succeeded, sum(rollup.cancelled)::bigint AS cancelled,
       sum(rollup.dead)::bigint AS dead, sum(rollup.expected)::bigint AS expected, sum(rollup.duration_seconds) AS duration_seconds
FROM unnest(:series::uuid[], :untils::timestamptz[]) AS given (series, until)
CROSS JOIN LATERAL (
    SELECT *
    FROM timeball.rollup
    WHERE rollup.span = :span
      AND (rollup.job_id, rollup.at) >= (given.series, :since::timestamptz)
      AND (rollup.job_id, rollup.at) < (given.series, given.until)
    OFFSET 0
) AS rollup
GROUP BY given.series, date_bin(:step::interval, rollup.at, 'epoch'::timestamptz)
ORDER BY given.series, at;

-- name: missed_of_jobs
-- The jobs that have missed occurrences since an instant, and how many for each reason, with those of its latest hour: of the latest :limit hours of all of them.
WITH part AS MATERIALIZED (
    SELECT job_id, at, skip_reasons, skip_counts
    FROM timeball.rollup
    WHERE span = 'hour'
      AND skip_reasons && '{misfire,too_old,capped}'::text[]
      AND (at, job_id) >= (:since::timestamptz, '00000000-0000-0000-0000-000000000000'::uuid)
    ORDER BY at DESC, job_id DESC
    LIMIT :limit
)
SELECT job.id, job.name, skip.reason, sum(skip.number)::bigint AS number, max(part.at) AS at,
       (array_agg(skip.number ORDER BY part.at DESC))[1] AS latest
FROM part
JOIN timeball.job ON job.id = part.job_id AND job.deleted_at IS NULL
CROSS JOIN LATERAL unnest(part.skip_reasons, part.skip_counts) AS skip (reason, number)
WHERE skip.reason = ANY ('{misfire,too_old,capped}'::text[])
GROUP BY job.id, skip.reason
ORDER BY at DESC, job.id, skip.reason;

-- name: rollup_days
-- What the hours of a job count in each day, by the edges of the days: what ran, died or began later than a bucket; and what was skipped for a reason.
WITH part AS MATERIALIZED (
    SELECT width_bucket(at, :edges::timestamptz[]) AS day, *
    FROM timeball.rollup
    WHERE span = 'hour'
      AND (job_id, at) >= (:job_id::uuid, :since::timestamptz)
      AND (job_id, at) < (:job_id::uuid, :until::timestamptz)
)
SELECT part.day, NULL AS reason, 0::bigint AS skipped, sum(part.ran)::bigint AS ran, sum(part.dead)::bigint AS dead,
       coalesce(sum(late.number), 0)::bigint AS late
FROM part
CROSS JOIN LATERAL (
    SELECT sum(sketch.number) AS number
    FROM unnest(part.lateness_buckets, part.lateness_counts) AS sketch (bucket, number)
    WHERE sketch.bucket > :late_bucket
) AS late
GROUP BY part.day
UNION ALL
SELECT part.day, skip.reason, sum(skip.number)::bigint, 0, 0, 0
FROM part
CROSS JOIN LATERAL unnest(part.skip_reasons, part.skip_counts) AS skip (reason, number)
GROUP BY part.day, skip.reason;
