-- What is queued ran its row's handler with its job's payload, and an edit in between made them two versions. Now a claim takes both from the version
-- that the row cites.

-- The payload of one version of a job. An edited job keeps its earlier versions in job_version, an edited one-off as well; NULL if neither has it.
CREATE FUNCTION timeball.payload_of(wanted_job uuid, wanted_version integer)
RETURNS jsonb
LANGUAGE plpgsql
STABLE
SET enable_seqscan = off
SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    RETURN coalesce(
        (SELECT job.payload FROM timeball.job WHERE job.id = wanted_job AND job.version = wanted_version),
        (SELECT job_version.definition -> 'payload' FROM timeball.job_version
         WHERE job_version.job_id = wanted_job AND job_version.version = wanted_version)
    );
END
$$;
