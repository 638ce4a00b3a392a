DROP INDEX timeball.finished_dead;
-- Dead letters are counted, grouped by what killed them, by handler or by queue, and led to their jobs without reading a row of the history.
-- Only what dies pays for it. The error itself may be long, and is read where it is shown.
CREATE INDEX finished_dead ON timeball.finished (id) INCLUDE (job_id, fingerprint, handler, queue, finished_at) WHERE state = 'dead';
