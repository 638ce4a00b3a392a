"""What every kind of command has at hand."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

from timeball.commands.actor import Actor
from timeball.domain.deed import Deed
from timeball.domain.execution import Execution
from timeball.domain.handler import OWNED_BY_ADMINISTRATORS, AnyPayload, PayloadRules
from timeball.domain.ids import ExecutionId, JobId
from timeball.domain.job import Job
from timeball.env import Env
from timeball.errors import NotAllowed, NotFound
from timeball.store.interface import Store


class Base:
    """The store and the world outside; and what must be there to be changed."""

    def __init__(self, store: Store, env: Env, handlers: PayloadRules | None = None) -> None:
        self._store = store
        self._env = env
        self._handlers = handlers or AnyPayload()

    def _check_payload(self, handler: str, payload: str, actor: Actor) -> None:
        """Refuse what the handler could never take, and commands from those who may not give them."""
        self._check_owner(handler, actor)
        check = self._handlers.checker(handler)
        if check is not None:
            check(payload)

    def _check_edit(self, before: str, after: str, payload: str, actor: Actor) -> None:
        """Refuse a change of handler or payload from those who may write neither what was there nor what comes."""
        self._check_owner(before, actor)
        self._check_payload(after, payload, actor)

    @staticmethod
    def _is_confined(payload: str, actor: Actor) -> bool:
        """Whether a payload may use bound secrets alone: it names secrets, and its writer is no administrator."""
        return not actor.is_administrator and '"$secret"' in payload

    @staticmethod
    def _check_owner(handler: str, actor: Actor) -> None:
        if handler in OWNED_BY_ADMINISTRATORS and not actor.is_administrator:
            raise NotAllowed(
                f"what {handler} runs can be written by an administrator only",
                hint="ask one to create or change this job; an operator may run it as it is",
            )

    def _new_job_id(self) -> JobId:
        return JobId(self._env.new_id())

    def _new_ids(self, number: int, deed: Deed | None) -> Iterator[UUID]:
        if deed is not None:
            return deed.ids(number)
        return iter([self._env.new_id()]) if number == 1 else self._env.new_ids(number)

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
