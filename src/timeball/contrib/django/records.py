"""What the store knows of tasks, and what it is told: asked for through a program's portal."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import Any, Protocol, TypeVar

from timeball.contrib.django.results import Record
from timeball.domain.execution import Claimed
from timeball.domain.hints import Hints
from timeball.domain.ids import ExecutionId, shard_of, show_execution
from timeball.errors import NotFound
from timeball.office import Desk
from timeball.store.enqueuing import HINT_MARGIN

T = TypeVar("T")


class Asks(Protocol):
    """Whoever can have something asked of the store, from a thread or from a coroutine."""

    def ask(self, work: Callable[[Desk], Coroutine[Any, Any, T]]) -> T:
        """Wait for the answer."""

    async def aask(self, work: Callable[[Desk], Coroutine[Any, Any, T]]) -> T:
        """Await the answer."""


async def read_record(execution_id: ExecutionId, desk: Desk) -> Record:
    """An execution with its unsuccessful tries; NotFound if it is not there, or not yet committed."""
    history = desk.parts.store.history
    execution = await history.find(execution_id)
    if execution is None:
        raise NotFound("execution", show_execution(execution_id))
    return Record(execution, await history.attempts(execution_id) if execution.attempts else ())


async def read_whole(execution_id: ExecutionId, desk: Desk) -> tuple[Record, str]:
    """The same with the payload: its own, or that of its job's version; that of a job that is gone is empty."""
    record = await read_record(execution_id, desk)
    return record, await desk.parts.store.history.payload(execution_id) or "{}"


async def is_last_try(claimed: Claimed, desk: Desk) -> bool:
    """Whether no other try follows should this one fail."""
    job = (await desk.parts.store.jobs.find([claimed.job_id])).get(claimed.job_id)
    return job is None or claimed.attempt - claimed.lost > job.retry.max_retries


async def announce(execution_id: ExecutionId, queue: str, priority: int, run_at: datetime | None, desk: Desk) -> None:
    """Tell workers, or the scheduler, of what a transaction has brought; without it they find it within a second."""
    store, hints = desk.parts.store, Hints()
    if run_at is None:
        hints.add_lane(queue, priority, await desk.now() - HINT_MARGIN, 1, execution_id)
    else:
        hints.add_shard(shard_of(execution_id, store.shards), run_at)
    store.hinter.tell(hints)
