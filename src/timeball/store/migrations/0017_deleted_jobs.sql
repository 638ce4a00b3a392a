-- deleted_jobs: the few that were deleted, among all jobs. Every housekeeper asks for them when it begins, and read all jobs for that.
CREATE INDEX job_deleted ON timeball.job (id) WHERE deleted_at IS NOT NULL;
