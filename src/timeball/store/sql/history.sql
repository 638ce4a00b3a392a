-- Executions as people read them, and the partitions of the history.

-- name: find_execution
-- One execution, in any state table. The author of an enqueued execution is that of its job.
SELECT *, result::text AS result_text, CASE WHEN origin = 'enqueue' THEN (SELECT job.created_by FROM timeball.job WHERE job.id = job_id) END AS enqueued_by,
       coalesce(meta, timeball.meta_of(job_id, version))::text AS meta_text
FROM timeball.execution
WHERE id = :id
ORDER BY finished_at NULLS FIRST
LIMIT 1;

-- name: own_words
-- The payload and the meta that were given to the execution itself, if any, whether its payload may name bound secrets only, and the calls that follow it.
SELECT payload::text, meta::text, coalesce(bound_secrets_only, false) AS bound_secrets_only,
       (SELECT jsonb_build_object('on_success', follow_up.on_success, 'on_failure', follow_up.on_failure)::text
        FROM timeball.follow_up
        WHERE follow_up.execution_id = :id) AS calls
FROM timeball.execution
WHERE id = :id
LIMIT 1;

-- name: use_secrets
-- Whether a running execution may use some secrets: bound ones always, others only if an administrator wrote the payload, according to the version that
-- the row cites. If so, the first use of each secret is recorded: by the job, or by the author of one-offs together with the handler.
WITH found AS MATERIALIZED (
    SELECT running.job_id, running.handler, coalesce(running.created_by, job.created_by) AS created_by,
           :is_bound::boolean
             OR NOT CASE WHEN running.payload IS NOT NULL THEN coalesce(running.bound_secrets_only, false)
                         WHEN job.version = running.version THEN job.bound_secrets_only
                         ELSE coalesce((SELECT (kept.definition ->> 'bound_secrets_only')::boolean
                                        FROM timeball.job_version AS kept
                                        WHERE kept.job_id = running.job_id AND kept.version = running.version), true)
                    END AS is_allowed,
           CASE WHEN job.name IS NULL AND job.kind = 'once' THEN 'one-offs of ' || coalesce(running.created_by, job.created_by, 'unknown') || ' by ' || running.handler
                ELSE 'job:' || running.job_id
           END AS used_by
    FROM timeball.running
    JOIN timeball.job ON job.id = running.job_id
    WHERE running.id = :id
      AND running.claim_id = :claim_id
),
first AS (
    INSERT INTO timeball.secret_use (used_by, secret, first_used_at)
    SELECT found.used_by, name, coalesce(:now, now())
    FROM found
    CROSS JOIN unnest(:names::text[]) AS name
    WHERE found.is_allowed
    ON CONFLICT DO NOTHING
    RETURNING secret
),
noted AS (
    INSERT INTO timeball.audit (id, at, actor, action, subject, after)
    SELECT note.id, coalesce(:now, now()), 'worker', 'secret.use', 'job:' || found.job_id,
           jsonb_build_object('name', note.name, 'handler', found.handler, 'execution', :id::text, 'created_by', found.created_by, 'used_by', found.used_by)
    FROM found
    CROSS JOIN unnest(:names::text[], :notes::uuid[]) AS note (name, id)
    JOIN first ON first.secret = note.name
)
SELECT is_allowed
FROM found;

-- name: executions_of_job
-- Newest first. An enqueued execution has the id of its job; the indexes on job_id leave it out, and find all others.
-- The history is read in the order of its index, by comparing rows: see job_situations. The state tables are sorted by the bytes of ids: a plan for all
-- values would otherwise read each table by its primary key, to find the rows of one job in that order. The states keep each branch apart from the other.
WITH own AS (
    (
        SELECT *
        FROM timeball.execution
        WHERE state IN ('scheduled', 'retrying', 'queued', 'running')
          AND job_id = :job_id::uuid
          AND job_id <> id
          AND id < :before
        ORDER BY uuid_send(id) DESC
        LIMIT :limit
    )
    UNION ALL
    (
        SELECT *
        FROM timeball.execution
        WHERE state IN ('succeeded', 'cancelled', 'dead', 'skipped')
          AND (job_id, id) >= (:job_id::uuid, '00000000-0000-0000-0000-000000000000'::uuid)
          AND (job_id, id) < (:job_id::uuid, :before::uuid)
          AND job_id <> id
        ORDER BY job_id DESC, id DESC
        LIMIT :limit
    )
    UNION ALL
    SELECT *
    FROM timeball.execution
    WHERE id = :job_id
      AND id < :before
)
SELECT *, result::text AS result_text, CASE WHEN origin = 'enqueue' THEN (SELECT job.created_by FROM timeball.job WHERE job.id = job_id) END AS enqueued_by,
       coalesce(meta, timeball.meta_of(job_id, version))::text AS meta_text
FROM own
ORDER BY id DESC
LIMIT :limit;

-- name: attempts_of
SELECT *
FROM timeball.attempt
WHERE execution_id = :id
ORDER BY fence;

-- name: write_log_lines
INSERT INTO timeball.log_line (execution_id, fence, number, at, level, message)
SELECT *
FROM unnest(:execution_ids::uuid[], :fences::bigint[], :numbers::integer[], :ats::timestamptz[], :levels::text[], :messages::text[])
ON CONFLICT DO NOTHING;

-- name: log_lines_of
SELECT fence, number, at, level, message
FROM timeball.log_line
WHERE execution_id = :id
  AND (fence, number) > (:fence, :number)
ORDER BY fence, number
LIMIT :limit;

-- name: days_kept
-- The days that have a partition of their own.
SELECT relname
FROM pg_class
JOIN pg_inherits ON pg_inherits.inhrelid = pg_class.oid
WHERE pg_inherits.inhparent = 'timeball.finished'::regclass
  AND relname ~ '^finished_[0-9]{8}$'
ORDER BY relname;

-- name: delete_finished
-- Delete some of the executions that ended on a day in these states, with their attempts and logs, and one-off jobs that have no other execution.
WITH chosen AS MATERIALIZED (
    SELECT id, finished_at
    FROM timeball.finished
    WHERE finished_at >= :day_start
      AND finished_at < :day_end
      AND state = ANY (:states::text[])
    LIMIT :batch
),
gone AS (
    DELETE FROM timeball.finished
    USING chosen
    WHERE finished.id = chosen.id
      AND finished.finished_at = chosen.finished_at
    RETURNING finished.id, finished.job_id, finished.scheduled_for
),
attempts AS (
    DELETE FROM timeball.attempt
    USING gone
    WHERE attempt.execution_id = gone.id
),
lines AS (
    DELETE FROM timeball.log_line
    USING gone
    WHERE log_line.execution_id = gone.id
),
letters AS (
    DELETE FROM timeball.settled
    USING gone
    WHERE settled.execution_id = gone.id
),
calls AS (
    DELETE FROM timeball.follow_up
    USING gone
    WHERE follow_up.execution_id = gone.id
),
jobs AS (
    DELETE FROM timeball.job
    USING gone
    WHERE job.id = gone.id
      AND job.id = gone.job_id
      AND job.name IS NULL
      AND NOT EXISTS (SELECT 1 FROM timeball.finished WHERE finished.job_id = job.id AND finished.job_id <> finished.id)
      AND NOT EXISTS (SELECT 1 FROM timeball.due WHERE due.job_id = job.id AND due.job_id <> due.id)
      AND NOT EXISTS (SELECT 1 FROM timeball.ready WHERE ready.job_id = job.id AND ready.job_id <> ready.id)
      AND NOT EXISTS (SELECT 1 FROM timeball.blocked WHERE blocked.job_id = job.id)
      AND NOT EXISTS (SELECT 1 FROM timeball.running WHERE running.job_id = job.id AND running.job_id <> running.id)
    RETURNING job.id, job.version
),
versions AS (
    DELETE FROM timeball.job_version
    USING jobs
    WHERE job_version.job_id = jobs.id
      AND jobs.version > 1
)
SELECT count(*) AS deleted, max(scheduled_for) AS latest
FROM gone;

-- name: moment
SELECT coalesce(:now, now()) AS moment;

-- name: set_fact
INSERT INTO timeball.fact (key, value)
VALUES (:key, :value)
ON CONFLICT (key) DO UPDATE SET value = excluded.value;

-- name: get_fact
SELECT value
FROM timeball.fact
WHERE key = :key;

-- name: current_execution_of_job
-- The execution of a job that is furthest on its way: running, then queued, then retrying, then scheduled; the latest of those.
-- An enqueued execution has the id of its job; the indexes on job_id leave it out, so both are searched.
SELECT id
FROM (
    SELECT id, CASE WHEN run_at <= coalesce(:now, now()) THEN 1 ELSE 2 END AS place
    FROM timeball.running
    WHERE job_id = :job_id AND job_id <> id
    UNION ALL
    SELECT id, CASE WHEN run_at <= coalesce(:now, now()) THEN 1 ELSE 2 END
    FROM timeball.running
    WHERE id = :job_id
    UNION ALL
    SELECT id, 2
    FROM timeball.ready
    WHERE job_id = :job_id AND job_id <> id
    UNION ALL
    SELECT id, 2
    FROM timeball.ready
    WHERE id = :job_id
    UNION ALL
    SELECT id, 2
    FROM timeball.blocked
    WHERE job_id = :job_id
    UNION ALL
    SELECT id, CASE kind WHEN 'retry' THEN 3 ELSE 4 END
    FROM timeball.due
    WHERE job_id = :job_id AND job_id <> id AND kind <> 'resume'
    UNION ALL
    SELECT id, CASE kind WHEN 'retry' THEN 3 ELSE 4 END
    FROM timeball.due
    WHERE id = :job_id AND kind <> 'resume'
) AS unfinished
ORDER BY place, id DESC
LIMIT 1;

-- name: last_ended_of_job
-- Rows are compared, not job_id alone: see job_situations.
SELECT id
FROM (
    (
        SELECT id
        FROM timeball.finished
        WHERE (finished.job_id, finished.id) >= (:job_id::uuid, '00000000-0000-0000-0000-000000000000'::uuid)
          AND (finished.job_id, finished.id) <= (:job_id::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid)
          AND finished.job_id <> finished.id
        ORDER BY job_id DESC, id DESC
        LIMIT 1
    )
    UNION ALL
    SELECT id
    FROM timeball.finished
    WHERE finished.id = :job_id
) AS ended
ORDER BY id DESC
LIMIT 1;

-- name: summarize_anew
-- Rebuild the block range summaries of a partition. A summarization that is interrupted leaves a placeholder in its index, and PostgreSQL then reads
-- everything behind it for every query. Neither vacuum nor another summarization removes the placeholder.
SELECT brin_desummarize_range(summary.index, start), brin_summarize_range(summary.index, start)
FROM (
    SELECT pg_index.indexrelid::regclass AS index,
           (SELECT option_value::bigint FROM pg_options_to_table(pg_class.reloptions) WHERE option_name = 'pages_per_range') AS pages
    FROM pg_index
    JOIN pg_class ON pg_class.oid = pg_index.indexrelid
    JOIN pg_am ON pg_am.oid = pg_class.relam
    WHERE pg_index.indrelid = to_regclass(:partition::text)
      AND pg_am.amname = 'brin'
) AS summary
CROSS JOIN LATERAL generate_series(
    0, pg_relation_size(to_regclass(:partition::text)) / current_setting('block_size')::bigint - 1, coalesce(summary.pages, 128)
) AS start;
