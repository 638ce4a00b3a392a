-- What leads to the few among many: lists of jobs, and the limits that nobody uses any more.
-- None of these costs anything to a one-off without name, tag or limit, which is what people enqueue by the million.

-- Lists of jobs: the recurring and the manual ones.
CREATE INDEX job_recurring ON timeball.job (id) WHERE kind <> 'once';
-- Lists of jobs, and searches of executions by the name of their job: those that have a name.
CREATE INDEX job_named ON timeball.job (id) WHERE name IS NOT NULL;
-- Lists of jobs: the paused ones.
CREATE INDEX job_paused ON timeball.job (id) WHERE paused_at IS NOT NULL;
-- Lists of jobs: those that have a tag.
CREATE INDEX job_tagged ON timeball.job (id) WHERE tags IS NOT NULL;

-- unused_limits, trim_limits: which jobs share a limit, and what of them lies ahead.
CREATE INDEX job_by_limit ON timeball.job (limit_key) WHERE limit_key IS NOT NULL;
CREATE INDEX due_by_limit ON timeball.due (limit_key) WHERE limit_key IS NOT NULL;

-- The audit of one actor.
CREATE INDEX audit_by_actor ON timeball.audit (actor, id);
