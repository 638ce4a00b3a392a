-- Which jobs a program has declared, when it declares them no more.

-- undeclared_jobs: the few that were declared, among all jobs.
CREATE INDEX job_declared ON timeball.job (declared_by) WHERE declared_by IS NOT NULL;
