"""Enqueues from any thread or event loop, or inside the caller's own transaction."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from timeball.domain.handler import ADMIN_HANDLERS
from timeball.domain.handler_contract import inherit_options
from timeball.domain.job import Job, JobSpec
from timeball.domain.values.ids import ExecutionId, JobId, parse_id
from timeball.errors import NotFound, StoreError
from timeball.sdk.background_loop import BackgroundLoop
from timeball.sdk.batcher import Batcher, ThreadFuture
from timeball.sdk.direct_connection import DirectPath

if TYPE_CHECKING:
    from timeball.application.commands import Commands
    from timeball.application.commands.requests import Actor
    from timeball.config.settings import Settings
    from timeball.env import Env
    from timeball.runtime import Runtime
    from timeball.sdk.transactions import TransactionBatch
    from timeball.store.db.direct_connection import LoopConnection, ThreadConnection
    from timeball.store.types import CreatedJob, EnqueueRow, PreparedJob

# The ids of enqueued executions, which are those of their jobs; occurrences of a schedule have ids of version 8.
_ENQUEUED_VERSION = 7
# A clock that has not been compared with the database's for longer is compared before it is relied on.
_CLOCK_IS_GOOD_FOR_SECONDS = 5.0
# While more than these wait for a commit they share, whoever goes alone would only make them wait for his.
_MAX_WAITING_FOR_DIRECT = 2
# A program has so many kinds of wishes at most, or makes a new one each time.
_MAX_CACHED = 1_000
# How long the published contract of a handler that is not known here is relied on.
_CONTRACTS_ARE_GOOD_FOR_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class EnqueueRequest:
    """A one-off somebody wants: its job without the payload, and what only the moment of sending can fill in."""

    spec: JobSpec
    delay: timedelta | None = None
    connection: Any = None
    # The fields that were told, if the handler is not known here: the others are as workers have published them.
    given_fields: frozenset[str] | None = None
    # Whether such a handler is given payloads that its published contract refuses.
    is_unchecked: bool = False


class PublishedOptions(NamedTuple):
    """What a handler that is not known here gives to its jobs, and what refuses a payload that it could never take."""

    options: Mapping[str, Any]
    check: Callable[[str], None]


def _accept_any_payload(_payload: str) -> None:
    """Nothing was published: every payload is taken."""


class SdkRuntime:
    """What the portal keeps open: the parts of this process, used in its loop alone, and the way past it."""

    def __init__(self, parts: Runtime) -> None:
        self.parts = parts
        self.enqueues: Batcher[tuple[EnqueueRequest, str], CreatedJob] = Batcher(self._create)
        database, monotonic = parts.store.database, parts.env.clock.monotonic
        self.shortcut: DirectPath[ThreadConnection] = DirectPath(database.thread_connection, monotonic)
        self.ashortcut: DirectPath[LoopConnection] = DirectPath(database.loop_connection, monotonic)
        self._compared_at = parts.env.clock.monotonic()
        self._patterns: dict[int, tuple[EnqueueRequest, PreparedJob | None]] = {}
        self._contracts: dict[str, tuple[float, PublishedOptions]] = {}

    def contract_of(self, handler: str) -> PublishedOptions | None:
        """What workers have published of a handler, from any thread; None if that was not read lately."""
        read_at, found = self._contracts.get(handler, (float("-inf"), None))
        is_fresh = self.parts.env.clock.monotonic() - read_at < _CONTRACTS_ARE_GOOD_FOR_SECONDS
        return found if is_fresh else None

    async def read_contract(self, handler: str) -> PublishedOptions:
        """The same, read now."""
        commands = self.commands
        known = await commands.contracts.published(handler)
        if len(self._contracts) >= _MAX_CACHED:
            self._contracts.clear()
        found = (
            PublishedOptions({}, _accept_any_payload)
            if known is None
            else PublishedOptions(known.newest.options, partial(commands.contracts.check_published, known))
        )
        self._contracts[handler] = self.parts.env.clock.monotonic(), found
        return found

    @property
    def commands(self) -> Commands:
        return self.parts.commands

    @staticmethod
    def actor(reason: str | None) -> Actor:
        """Who gives commands here."""
        from timeball.application.commands.requests import Actor

        return Actor(reason=reason)

    async def now(self) -> datetime:
        """The database's time: this machine may have slept, or its clock have drifted, since it was last compared."""
        clock = self.parts.env.clock
        if clock.monotonic() - self._compared_at > _CLOCK_IS_GOOD_FOR_SECONDS:
            await self.parts.store.learn_clock()
            self._compared_at = clock.monotonic()
        return clock.now()

    async def _create(self, requests: Sequence[tuple[EnqueueRequest, str]]) -> list[CreatedJob]:
        first = requests[0][0]
        is_alike = len(requests) == 1 or all(request is first for request, _ in requests)
        if is_alike and (pattern := self.pattern(first)) is not None:
            return await self.commands.jobs.enqueue(pattern, [payload for _, payload in requests])
        specs = [with_payload(await self._spec(request), payload) for request, payload in requests]
        return [await self.known(made) for made in await self.commands.jobs.create_all(specs)]

    def pattern(self, request: EnqueueRequest) -> PreparedJob | None:
        """What can be checked and encoded once for all jobs of this wish, from any thread; None if each is something of its own."""
        known = self._patterns.get(id(request))
        if known is None:
            if len(self._patterns) >= _MAX_CACHED:
                self._patterns.clear()
            pattern = self.commands.jobs.pattern(request.spec) if request.delay is None else None
            # With the wish itself: while it is kept, no other can have its id.
            known = self._patterns[id(request)] = (request, pattern)
        return known[1]

    def direct_pattern(self, request: EnqueueRequest, way: DirectPath[Any]) -> PreparedJob | None:
        """The pattern of a wish that can go by this way; None if it is something of its own, or comes with a crowd."""
        if self.enqueues.crowd > _MAX_WAITING_FOR_DIRECT:
            way.reset_streak()
            return None
        return self.pattern(request)

    async def create_many(self, request: EnqueueRequest, payloads: Sequence[str]) -> list[ExecutionId]:
        """Create many jobs, all or none."""
        spec = await self._spec(request)
        if spec.max_running is None:
            return await self.commands.jobs.enqueue_many(spec, payloads)
        # A bulk enqueue knows no limits; creating does, and is all or none too.
        made = await self.commands.jobs.create_all([with_payload(spec, payload) for payload in payloads])
        return [execution_of(created) for created in made]

    async def prepare(self, request: EnqueueRequest, payloads: Sequence[str]) -> TransactionBatch:
        """Jobs for the caller to write."""
        from timeball.sdk.transactions import TransactionBatch
        from timeball.store.audit import creation_audit

        spec = await self._spec(request)
        prepared = self.commands.jobs.prepare([with_payload(spec, payload) for payload in payloads])
        entry = self.actor(None).entry
        return TransactionBatch(
            notes={
                job.id: creation_audit(job, self.parts.env.new_id(), entry)
                for job, _ in prepared
                if job.handler in ADMIN_HANDLERS
            },
            jobs=[job for job, _ in prepared],
            openings=[opening for _, opening in prepared if opening is not None],
            promotion_window=self.parts.store.promotion_window,
            now=self.parts.env.clock.statement_now(),
        )

    async def known(self, made: CreatedJob) -> CreatedJob:
        """For an execution that was there already, the job it belongs to."""
        if made.is_new:
            return made
        execution_id = execution_of(made)
        if execution_id.version == _ENQUEUED_VERSION:
            return replace(made, job_id=JobId(execution_id))
        holder = await self.parts.store.history.find(execution_id)
        return made if holder is None else replace(made, job_id=holder.job_id)

    async def find_job(self, key: str) -> Job:
        """The job of this name, or of this id (`job_...`)."""
        jobs = self.parts.store.jobs
        found = await jobs.find_by_name(key)
        if found is None and key.startswith("job_"):
            job_id = JobId(parse_id("job", key))
            found = (await jobs.find([job_id])).get(job_id)
        if found is None or found.deleted_at is not None:
            raise NotFound("job", key)
        return found

    async def _spec(self, request: EnqueueRequest) -> JobSpec:
        if request.delay is None:
            return request.spec
        return replace(request.spec, scheduled_at=await self.now() + request.delay)


def with_payload(spec: JobSpec, payload: str) -> JobSpec:
    """The job with its payload, which is JSON text already."""
    return replace(spec, payload=orjson.Fragment(payload))


def execution_of(made: CreatedJob) -> ExecutionId:
    """The execution of an enqueued job: it always has one."""
    assert made.execution_id is not None
    return made.execution_id


class EnqueueClient:
    """Sends wishes; every verb has a twin for coroutines, with an `a` before its name."""

    def __init__(self, settings: Callable[[], Settings], env: Callable[[], Env | None] = lambda: None) -> None:
        self._settings = settings
        self._env = env
        self.background_loop: BackgroundLoop[SdkRuntime] = BackgroundLoop(self._open)

    def _open(self) -> AbstractAsyncContextManager[SdkRuntime]:
        return _open_sdk_runtime(self._settings(), self._env())

    def send(self, request: EnqueueRequest, payload: str) -> CreatedJob:
        """Enqueue one job; it is committed when this returns, or lies in the caller's transaction."""
        if request.given_fields is not None:
            request = self._with_published_options(request, request.given_fields, [payload])
        if request.connection is not None:
            return self._write(request, [payload])[0]
        slip: ThreadFuture[CreatedJob] | None = None
        while slip is None:
            runtime = self._runtime()
            made = self._send_directly(runtime, request, payload)
            if made is not None:
                return made
            slip = runtime.enqueues.submit((request, payload))
        try:
            return slip.result()
        except BaseException:
            slip.cancel()
            raise

    def _send_directly(self, runtime: SdkRuntime, request: EnqueueRequest, payload: str) -> CreatedJob | None:
        """Enqueue one job without waking another thread; None, and nothing is done, if that is not possible now."""
        pattern = runtime.direct_pattern(request, runtime.shortcut)
        if pattern is None:
            return None
        commands = runtime.commands
        own: list[EnqueueRow] = []

        def write(line: ThreadConnection) -> CreatedJob:
            own.append(commands.jobs.prepare_alone(pattern, payload))
            return commands.jobs.enqueue_direct(pattern, own[0], line)

        try:
            return runtime.shortcut.run(write)
        except StoreError:
            if runtime.shortcut.is_closed:
                raise
            # Whether it was written is not known. There is time now for another thread, which looks.
            return self.background_loop.call(lambda runtime: runtime.commands.jobs.make_sure(pattern, own))[0]

    async def asend(self, request: EnqueueRequest, payload: str) -> CreatedJob:
        if request.given_fields is not None:
            request = await self._awith_published_options(request, request.given_fields, [payload])
        if request.connection is not None:
            return (await self._awrite(request, [payload]))[0]
        future: asyncio.Future[CreatedJob] | None = None
        while future is None:
            runtime = await self._aruntime()
            made = await self._asend_directly(runtime, request, payload)
            if made is not None:
                return made
            future = runtime.enqueues.asubmit((request, payload))
        return await future

    async def _asend_directly(self, runtime: SdkRuntime, request: EnqueueRequest, payload: str) -> CreatedJob | None:
        pattern = runtime.direct_pattern(request, runtime.ashortcut)
        if pattern is None:
            return None
        commands = runtime.commands
        own: list[EnqueueRow] = []

        def write(line: LoopConnection) -> Coroutine[Any, Any, CreatedJob]:
            own.append(commands.jobs.prepare_alone(pattern, payload))
            return commands.jobs.aenqueue_direct(pattern, own[0], line)

        try:
            return await runtime.ashortcut.arun(write)
        except StoreError:
            if runtime.ashortcut.is_closed:
                raise
            return (await self.background_loop.acall(lambda runtime: runtime.commands.jobs.make_sure(pattern, own)))[0]

    def send_many(self, request: EnqueueRequest, payloads: Sequence[str]) -> list[ExecutionId]:
        """Enqueue many jobs that differ only in their payloads, all or none."""
        if request.given_fields is not None:
            request = self._with_published_options(request, request.given_fields, payloads)
        if request.connection is None:
            return self.background_loop.call(lambda runtime: runtime.create_many(request, payloads))
        return [execution_of(made) for made in self._write(request, payloads)]

    async def asend_many(self, request: EnqueueRequest, payloads: Sequence[str]) -> list[ExecutionId]:
        if request.given_fields is not None:
            request = await self._awith_published_options(request, request.given_fields, payloads)
        if request.connection is None:
            return await self.background_loop.acall(lambda runtime: runtime.create_many(request, payloads))
        return [execution_of(made) for made in await self._awrite(request, payloads)]

    def _with_published_options(
        self, request: EnqueueRequest, given_fields: frozenset[str], payloads: Sequence[str]
    ) -> EnqueueRequest:
        """The wish with the published options of a handler that is not known here; its payloads are checked."""
        handler, runtime = request.spec.handler, self.background_loop.resource
        known = None if runtime is None else runtime.contract_of(handler)
        if known is None:
            known = self.background_loop.call(lambda runtime: runtime.read_contract(handler))
        return _apply_published_options(request, given_fields, payloads, known)

    async def _awith_published_options(
        self, request: EnqueueRequest, given_fields: frozenset[str], payloads: Sequence[str]
    ) -> EnqueueRequest:
        handler, runtime = request.spec.handler, self.background_loop.resource
        known = None if runtime is None else runtime.contract_of(handler)
        if known is None:
            known = await self.background_loop.acall(lambda runtime: runtime.read_contract(handler))
        return _apply_published_options(request, given_fields, payloads, known)

    def _runtime(self) -> SdkRuntime:
        runtime = self.background_loop.resource
        return self.background_loop.call(_identity) if runtime is None else runtime

    async def _aruntime(self) -> SdkRuntime:
        runtime = self.background_loop.resource
        return await self.background_loop.acall(_identity) if runtime is None else runtime

    def _write(self, request: EnqueueRequest, payloads: Sequence[str]) -> list[CreatedJob]:
        from timeball.sdk.transactions import create_in_transaction

        made = create_in_transaction(
            request.connection, self.background_loop.call(lambda runtime: runtime.prepare(request, payloads))
        )
        return self.background_loop.call(_resolve_existing(made))

    async def _awrite(self, request: EnqueueRequest, payloads: Sequence[str]) -> list[CreatedJob]:
        from timeball.sdk.transactions import acreate_in_transaction

        made = await acreate_in_transaction(
            request.connection, await self.background_loop.acall(lambda runtime: runtime.prepare(request, payloads))
        )
        return await self.background_loop.acall(_resolve_existing(made))


def _apply_published_options(
    request: EnqueueRequest, given_fields: frozenset[str], payloads: Sequence[str], known: PublishedOptions
) -> EnqueueRequest:
    if not request.is_unchecked:
        for payload in payloads:
            known.check(payload)
    return (
        replace(request, spec=inherit_options(request.spec, given_fields, known.options)) if known.options else request
    )


def _resolve_existing(made: Sequence[CreatedJob]) -> Callable[[SdkRuntime], Coroutine[Any, Any, list[CreatedJob]]]:
    async def look(runtime: SdkRuntime) -> list[CreatedJob]:
        return [await runtime.known(created) for created in made]

    return look


async def _identity(runtime: SdkRuntime) -> SdkRuntime:
    return runtime


@asynccontextmanager
async def _open_sdk_runtime(settings: Settings, env: Env | None) -> AsyncIterator[SdkRuntime]:
    # Here and not above: a program that only declares handlers needs no database driver.
    from timeball.runtime import open_runtime

    async with open_runtime(settings, env) as parts:
        runtime = SdkRuntime(parts)
        try:
            yield runtime
        finally:
            runtime.enqueues.close()
            await asyncio.gather(*(asyncio.to_thread(way.close) for way in (runtime.shortcut, runtime.ashortcut)))
