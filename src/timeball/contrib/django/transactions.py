"""Enqueues within the transactions of Django.

A handler of `timeball.contrib.django:tb`, like a task, is enqueued in the transaction that Django has open on the database of the tasks:
the job exists if and only if that commits. With several databases that is the transaction of the one with Timeball's schema; those of
the others do not matter. Schedules that a program makes, and changes through `tb.jobs`, join it too.

Workers are told of the work once the transaction has committed.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from asgiref.sync import async_to_sync, sync_to_async
from django.db import connections, transaction

from timeball.domain.scheduling.civil_time import parse_instant
from timeball.domain.values.ids import ExecutionId, parse_id, shard_of
from timeball.domain.wakeup import Wakeup
from timeball.sdk.enqueue import EnqueueClient, EnqueueRequest, SdkRuntime, execution_of
from timeball.sdk.inline_runs import CallMethods, has_running_loop
from timeball.store.db.notifier import WAKEUP_MARGIN

if TYPE_CHECKING:
    from timeball.config.settings import Settings
    from timeball.domain.handler import Handler
    from timeball.env import Env
    from timeball.sdk.transactions import TransactionWork
    from timeball.store.types import CreatedJob

Answer = TypeVar("Answer")


class DjangoEnqueueClient(EnqueueClient):
    """Joins the transaction that is open on Django's database of this alias, unless a call names another connection."""

    joins = True

    def __init__(
        self,
        settings: Callable[[], Settings],
        env: Callable[[], Env | None],
        find_handler: Callable[[str], Handler | None],
        alias: Callable[[], str | None],
    ) -> None:
        super().__init__(settings, env, find_handler)
        # Asked for each call: Django's test runner may have led the connection to another database.
        self._alias = alias

    def joined(self, request: EnqueueRequest) -> EnqueueRequest:
        """The request within the open transaction."""
        if request.connection is not None:
            return request
        connection = self._open_transaction()
        return request if connection is None else replace(request, connection=connection)

    async def ajoined(self, request: EnqueueRequest) -> EnqueueRequest:
        # Django's connections belong to threads, and coroutines use those of the thread that `sync_to_async` calls.
        return await sync_to_async(self.joined, thread_sensitive=True)(request)

    def call_within(self, connection: Any, work: TransactionWork[SdkRuntime, Answer], verb: str) -> Answer:
        connection = self._open_transaction() if connection is None else connection
        answer = super().call_within(connection, work, verb)
        if (announce := _announcement_of(verb, answer)) is not None:
            self._call_after_commit(connection, announce)
        return answer

    async def acall_within(self, connection: Any, work: TransactionWork[SdkRuntime, Answer], verb: str) -> Answer:
        if connection is None:
            connection = await sync_to_async(self._open_transaction, thread_sensitive=True)()
        if not _is_of_django(connection):
            return await super().acall_within(connection, work, verb)
        return await sync_to_async(self.call_within, thread_sensitive=True)(connection, work, verb)

    def _make_call_methods(self) -> CallMethods:
        return _ThreadSensitiveCalls()

    def _open_transaction(self) -> Any:
        alias = self._alias()
        if alias is None:
            return None
        connection = connections[alias]
        is_open = connection.in_atomic_block or (connection.connection is not None and not connection.get_autocommit())
        return connection if is_open else None

    def _write_in_transaction(self, request: EnqueueRequest, payloads: Sequence[str]) -> list[CreatedJob]:
        created = super()._write_in_transaction(request, payloads)
        self._announce_after_commit(request, created)
        return created

    async def _awrite_in_transaction(self, request: EnqueueRequest, payloads: Sequence[str]) -> list[CreatedJob]:
        created = await super()._awrite_in_transaction(request, payloads)
        if _is_of_django(request.connection):
            await sync_to_async(self._announce_after_commit, thread_sensitive=True)(request, created)
        return created

    def _announce_after_commit(self, request: EnqueueRequest, created: Sequence[CreatedJob]) -> None:
        if created:
            announce = partial(_announce, request, [execution_of(each) for each in created])
            self._call_after_commit(request.connection, announce)

    def _call_after_commit(self, connection: Any, announce: Callable[[SdkRuntime], Coroutine[Any, Any, None]]) -> None:
        alias = self._alias()
        if _is_of_django(connection) and connection.alias == alias:
            transaction.on_commit(partial(self.background_loop.call, announce), using=alias, robust=True)


class _ThreadSensitiveCalls(CallMethods):
    """Calls by the rules of asgiref: whatever a coroutine has done in threads is done in the thread of the caller, with its connections."""

    def coroutine(self, call: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
        async def awaited() -> Answer:
            return await call()

        return super().coroutine(call) if has_running_loop() else async_to_sync(awaited)()

    async def function(self, call: Callable[[], Answer]) -> Answer:
        return await sync_to_async(call, thread_sensitive=True)()


def _is_of_django(connection: Any) -> bool:
    return hasattr(connection, "in_atomic_block")


async def _announce(request: EnqueueRequest, executions: Sequence[ExecutionId], runtime: SdkRuntime) -> None:
    """Wake workers, or the scheduler; without this they find the jobs within a second."""
    now, store, wakeup = await runtime.now(), runtime.parts.store, Wakeup()
    run_at = _run_at(request, now)
    if run_at is None or run_at <= now:
        named = executions[0] if len(executions) == 1 else None
        spec = request.spec
        wakeup.add_lane(spec.queue, spec.priority, now - WAKEUP_MARGIN, len(executions), named)
    else:
        for execution_id in executions:
            wakeup.add_shard(shard_of(execution_id, store.shards), run_at)
    store.notifier.tell(wakeup)


def _announcement_of(verb: str, answer: Any) -> Callable[[SdkRuntime], Coroutine[Any, Any, None]] | None:
    """What wakes the nodes for what such a call has written; None if there is nothing that they should do at once."""
    if verb in ("schedule", "update", "resume"):
        return None if answer.next_run_at is None else partial(_announce_schedule, answer.id, answer.next_run_at)
    # A group or a chain; its enqueue returns the id, where that of a handler returns the jobs, which `_announce` announces.
    is_group = verb == "enqueue" and isinstance(answer, UUID)
    return _announce_anything if is_group or verb in ("schedule_many", "resume_all") else None


async def _announce_schedule(job: str, run_at: datetime, runtime: SdkRuntime) -> None:
    store, wakeup = runtime.parts.store, Wakeup()
    wakeup.add_shard(shard_of(parse_id("job", job), store.shards), run_at)
    store.notifier.tell(wakeup)


async def _announce_anything(runtime: SdkRuntime) -> None:
    runtime.parts.store.notifier.tell(Wakeup(look_everywhere=True))


def _run_at(request: EnqueueRequest, now: datetime) -> datetime | None:
    if request.delay is not None:
        return now + request.delay
    at = request.spec.scheduled_at
    return None if at is None else parse_instant(at, request.spec.timezone, "at")
