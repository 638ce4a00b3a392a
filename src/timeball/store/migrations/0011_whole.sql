-- The numbers of the whole house, in a row of their own for each minute and hour: charts of everything read one row a step,
-- not one for each queue and handler that had something to do. They bear the last of all ids, and no queue or handler.

WITH part AS MATERIALIZED (
    SELECT *
    FROM timeball.rollup
    WHERE job_id = '00000000-0000-0000-0000-000000000000'::uuid
      AND span <> 'ever'
),
late AS (
    SELECT span, at, array_agg(bucket ORDER BY bucket) AS buckets, array_agg(number ORDER BY bucket) AS counts
    FROM (
        SELECT span, at, sketch.bucket, sum(sketch.number)::bigint AS number
        FROM part
        CROSS JOIN LATERAL unnest(part.lateness_buckets, part.lateness_counts) AS sketch (bucket, number)
        GROUP BY span, at, sketch.bucket
    ) AS whole
    GROUP BY span, at
),
lasted AS (
    SELECT span, at, array_agg(bucket ORDER BY bucket) AS buckets, array_agg(number ORDER BY bucket) AS counts
    FROM (
        SELECT span, at, sketch.bucket, sum(sketch.number)::bigint AS number
        FROM part
        CROSS JOIN LATERAL unnest(part.duration_buckets, part.duration_counts) AS sketch (bucket, number)
        GROUP BY span, at, sketch.bucket
    ) AS whole
    GROUP BY span, at
)
INSERT INTO timeball.rollup (span, at, job_id, queue, handler, starts, succeeded, cancelled, dead, skipped, failed, timed_out, lost,
                             lateness_seconds, lateness_buckets, lateness_counts, duration_seconds, duration_buckets, duration_counts)
SELECT number.span, number.at, 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid, '', '', number.starts, number.succeeded, number.cancelled,
       number.dead, number.skipped, number.failed, number.timed_out, number.lost,
       number.lateness_seconds, coalesce(late.buckets, '{}'), coalesce(late.counts, '{}'),
       number.duration_seconds, coalesce(lasted.buckets, '{}'), coalesce(lasted.counts, '{}')
FROM (
    SELECT span, at, sum(starts) AS starts, sum(succeeded) AS succeeded, sum(cancelled) AS cancelled, sum(dead) AS dead,
           sum(skipped) AS skipped, sum(failed) AS failed, sum(timed_out) AS timed_out, sum(lost) AS lost,
           sum(lateness_seconds) AS lateness_seconds, sum(duration_seconds) AS duration_seconds
    FROM part
    GROUP BY span, at
) AS number
LEFT JOIN late USING (span, at)
LEFT JOIN lasted USING (span, at);
