-- The numbers of each queue, in a row of their own for each minute and hour: a chart of a queue reads one row a step,
-- not one for each handler that had something to do in it. They bear an id made from the queue's name, and no handler.

WITH part AS MATERIALIZED (
    SELECT *
    FROM timeball.rollup
    WHERE job_id = '00000000-0000-0000-0000-000000000000'::uuid
      AND span <> 'ever'
),
late AS (
    SELECT span, at, queue, array_agg(bucket ORDER BY bucket) AS buckets, array_agg(number ORDER BY bucket) AS counts
    FROM (
        SELECT span, at, queue, sketch.bucket, sum(sketch.number)::bigint AS number
        FROM part
        CROSS JOIN LATERAL unnest(part.lateness_buckets, part.lateness_counts) AS sketch (bucket, number)
        GROUP BY span, at, queue, sketch.bucket
    ) AS whole
    GROUP BY span, at, queue
),
lasted AS (
    SELECT span, at, queue, array_agg(bucket ORDER BY bucket) AS buckets, array_agg(number ORDER BY bucket) AS counts
    FROM (
        SELECT span, at, queue, sketch.bucket, sum(sketch.number)::bigint AS number
        FROM part
        CROSS JOIN LATERAL unnest(part.duration_buckets, part.duration_counts) AS sketch (bucket, number)
        GROUP BY span, at, queue, sketch.bucket
    ) AS whole
    GROUP BY span, at, queue
)
INSERT INTO timeball.rollup (span, at, job_id, queue, handler, starts, succeeded, cancelled, dead, skipped, failed, timed_out, lost,
                             lateness_seconds, lateness_buckets, lateness_counts, duration_seconds, duration_buckets, duration_counts)
SELECT number.span, number.at, md5('queue ' || number.queue)::uuid, number.queue, '', number.starts, number.succeeded, number.cancelled,
       number.dead, number.skipped, number.failed, number.timed_out, number.lost,
       number.lateness_seconds, coalesce(late.buckets, '{}'), coalesce(late.counts, '{}'),
       number.duration_seconds, coalesce(lasted.buckets, '{}'), coalesce(lasted.counts, '{}')
FROM (
    SELECT span, at, queue, sum(starts) AS starts, sum(succeeded) AS succeeded, sum(cancelled) AS cancelled, sum(dead) AS dead,
           sum(skipped) AS skipped, sum(failed) AS failed, sum(timed_out) AS timed_out, sum(lost) AS lost,
           sum(lateness_seconds) AS lateness_seconds, sum(duration_seconds) AS duration_seconds
    FROM part
    GROUP BY span, at, queue
) AS number
LEFT JOIN late USING (span, at, queue)
LEFT JOIN lasted USING (span, at, queue);

-- rollup_series: the chart of one handler.
CREATE INDEX rollup_by_handler ON timeball.rollup (span, handler, at) WHERE job_id = '00000000-0000-0000-0000-000000000000'::uuid;
