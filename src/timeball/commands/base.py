"""What every kind of command has at hand."""

from __future__ import annotations

from timeball.domain.execution import Execution
from timeball.domain.ids import ExecutionId, JobId
from timeball.domain.job import Job
from timeball.env import Env
from timeball.errors import NotFound
from timeball.store.interface import Store


class Base:
    """The store and the world outside; and what must be there to be changed."""

    def __init__(self, store: Store, env: Env) -> None:
        self._store = store
        self._env = env

    def _new_job_id(self) -> JobId:
        return JobId(self._env.new_id())

    async def _existing(self, job_id: JobId) -> Job:
        job = (await self._store.jobs.find([job_id])).get(job_id)
        if job is None or job.deleted_at is not None:
            raise NotFound("job", job_id)
        return job

    async def _existing_execution(self, execution_id: ExecutionId) -> Execution:
        found = await self._store.history.find(execution_id)
        if found is None:
            raise NotFound("execution", execution_id)
        return found
