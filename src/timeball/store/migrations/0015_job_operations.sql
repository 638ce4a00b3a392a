-- Operations on jobs: what is done to more jobs than one request can bear goes on in the background, like what is done to executions.
ALTER TABLE timeball.operation
    ADD COLUMN subject text NOT NULL DEFAULT 'execution' CHECK (subject IN ('execution', 'job')),
    DROP CONSTRAINT operation_action_check,
    ADD CONSTRAINT operation_action_check CHECK (action IN ('cancel', 'retry', 'discard', 'pause', 'resume', 'trigger', 'delete'));

-- An item is an execution or a job.
ALTER TABLE timeball.operation_item
    ALTER COLUMN execution_id DROP NOT NULL,
    ADD COLUMN job_id uuid,
    ADD CONSTRAINT operation_item_is_one CHECK (num_nonnulls(execution_id, job_id) = 1);
