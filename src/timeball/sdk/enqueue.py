"""Enqueues from any thread or event loop: durably when the call returns, or inside the caller's own transaction."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import orjson

from timeball.domain.handler import inherit_options
from timeball.domain.job_fields import JobSpec
from timeball.domain.policies import IfExists
from timeball.domain.values.ids import ExecutionId, JobId
from timeball.errors import InlineOnly, StoreError
from timeball.sdk.background_loop import BackgroundLoop
from timeball.sdk.enqueue_paths import Batcher, DirectPath, ThreadFuture, closed_error
from timeball.sdk.inline import InlineChoice, InlineScope, innermost_scope, program_scope

if TYPE_CHECKING:
    from timeball.application.commands import Commands
    from timeball.application.commands.requests import Actor
    from timeball.application.queries import Queries
    from timeball.config.settings import Settings
    from timeball.domain.handler import Handler
    from timeball.env import Env
    from timeball.runtime import Runtime
    from timeball.sdk.enqueue_hooks import PendingEnqueue
    from timeball.sdk.inline_runs import CallMethods, InlineRuns
    from timeball.sdk.transactions import TransactionWork
    from timeball.store.db.database import CallerConnection
    from timeball.store.db.direct_connection import DirectConnection
    from timeball.store.types import CreatedJob, EnqueueRow, PreparedJob

# The UUID version of enqueued executions, whose id is also that of their job; occurrences of a schedule have version 8.
_ENQUEUED_VERSION = 7
# A clock that was compared with the database's longer ago is compared again before it is relied on.
_CLOCK_IS_GOOD_FOR_SECONDS = 5.0
# While more callers than these wait for a shared commit, a caller joins them: its own commit would only delay theirs.
_MAX_WAITING_FOR_DIRECT = 2
# A program has at most so many kinds of requests, or makes a new one for each call.
_MAX_CACHED = 1_000
# How long the published contract of a handler that is not declared here is relied on.
_CONTRACTS_ARE_GOOD_FOR_SECONDS = 5.0
_JOBS_PER_STATEMENT = 1_000

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class EnqueueRequest:
    """What an enqueue asks for, without the payload; the same object serves every enqueue with the same options."""

    spec: JobSpec
    # Counted from the database's now at the moment of the enqueue.
    delay: timedelta | None = None
    # The caller's own connection, in whose transaction the job is written.
    connection: Any = None
    # For a handler that is not declared here, the fields that the caller set; workers have published the others.
    given_fields: frozenset[str] | None = None
    # Whether such a handler is given payloads that its published contract refuses.
    is_unchecked: bool = False


class PublishedOptions(NamedTuple):
    """What workers have published of a handler that is not declared here: its options, and a check of its payloads."""

    options: Mapping[str, Any]
    check: Callable[[str], None]

    def apply(self, request: EnqueueRequest, payloads: Sequence[str]) -> EnqueueRequest:
        """The request with these options, once its payloads are checked."""
        if not request.is_unchecked:
            for payload in payloads:
                self.check(payload)
        if not self.options:
            return request
        assert request.given_fields is not None
        return replace(request, spec=inherit_options(request.spec, request.given_fields, self.options))


def _accept_any_payload(_payload: str) -> None:
    """The check of a handler of which nothing is published."""


class SdkRuntime:
    """What a program keeps open once it uses the database: the parts, and the two ways of an enqueue.

    Coroutines of this class run in the background loop. The plain methods may be called from any thread.
    """

    def __init__(self, parts: Runtime) -> None:
        self.parts = parts
        loop = asyncio.get_running_loop()
        self.batcher: Batcher[tuple[EnqueueRequest, str], CreatedJob] = Batcher(self._create)
        # Enqueues that change what waits with their keys are apart: they may be refused, and take several statements.
        self.changing_batcher: Batcher[tuple[EnqueueRequest, str], CreatedJob] = Batcher(self._create)
        self.direct_path = DirectPath(
            parts.store.database.direct_connection,
            lambda open_: loop.call_soon_threadsafe(loop.run_in_executor, None, open_),
            parts.env.clock.monotonic,
        )
        self._compared_at = parts.env.clock.monotonic()
        self._prepared: dict[int, tuple[EnqueueRequest, PreparedJob | None]] = {}
        self._published: dict[str, tuple[float, PublishedOptions]] = {}

    @property
    def commands(self) -> Commands:
        return self.parts.commands

    @cached_property
    def queries(self) -> Queries:
        # Here and not above: a program that only enqueues reads nothing.
        from timeball.runtime import make_queries

        return make_queries(self.parts.settings, self.parts.store)

    @staticmethod
    def actor(reason: str | None) -> Actor:
        """The program, as the audit names it."""
        from timeball.application.commands.requests import Actor

        return Actor(reason=reason)

    def published_options(self, handler: str) -> PublishedOptions | None:
        """What workers have published of a handler; None if that was not read lately."""
        read_at, options = self._published.get(handler, (float("-inf"), None))
        is_fresh = self.parts.env.clock.monotonic() - read_at < _CONTRACTS_ARE_GOOD_FOR_SECONDS
        return options if is_fresh else None

    async def read_published_options(self, handler: str) -> PublishedOptions:
        """Read what workers have published of a handler."""
        contracts = self.commands.contracts
        contract = await contracts.published(handler)
        if len(self._published) >= _MAX_CACHED:
            self._published.clear()
        options = (
            PublishedOptions({}, _accept_any_payload)
            if contract is None
            else PublishedOptions(contract.newest.options, partial(contracts.check_published, contract))
        )
        self._published[handler] = self.parts.env.clock.monotonic(), options
        return options

    def prepared_job(self, request: EnqueueRequest) -> PreparedJob | None:
        """What is checked and encoded once for all jobs of this request; None if each of its jobs has to be."""
        cached = self._prepared.get(id(request))
        if cached is None:
            if len(self._prepared) >= _MAX_CACHED:
                self._prepared.clear()
            prepared = self.commands.jobs.prepared_job(request.spec) if request.delay is None else None
            # With the request itself: while it is kept, no other one can have its id.
            cached = self._prepared[id(request)] = (request, prepared)
        return cached[1]

    def close(self) -> None:
        """Take no more enqueues; the callers that wait fail."""
        self.batcher.close()
        self.changing_batcher.close()
        self.direct_path.close()

    def prepared_for_direct(self, request: EnqueueRequest) -> PreparedJob | None:
        """The prepared job of a request that may take the direct path; None if it has to join others, or is not plain."""
        if self.batcher.waiting > _MAX_WAITING_FOR_DIRECT:
            self.direct_path.forget_loop()
            return None
        return self.prepared_job(request)

    async def now(self) -> datetime:
        """The database's time: this machine may have slept, or its clock have drifted, since the last comparison."""
        clock = self.parts.env.clock
        if clock.monotonic() - self._compared_at > _CLOCK_IS_GOOD_FOR_SECONDS:
            await self.parts.store.learn_clock()
            self._compared_at = clock.monotonic()
        return clock.now()

    async def _create(self, items: Sequence[tuple[EnqueueRequest, str]]) -> list[CreatedJob]:
        first = items[0][0]
        is_alike = len(items) == 1 or all(request is first for request, _ in items)
        if is_alike and (prepared := self.prepared_job(first)) is not None:
            return await self.commands.jobs.enqueue(prepared, [payload for _, payload in items])
        specs = [with_payload(await self._spec(request), payload) for request, payload in items]
        return [await self.resolve_job(created) for created in await self.commands.jobs.create_all(specs)]

    async def create_many(self, request: EnqueueRequest, payloads: Sequence[str]) -> list[ExecutionId]:
        """Create many jobs, all or none."""
        spec = await self._spec(request)
        if spec.max_running is None:
            return await self.commands.jobs.enqueue_many(spec, payloads)
        # A bulk enqueue has no limits. `create_all` has, and is all or none, too.
        jobs = await self.commands.jobs.create_all([with_payload(spec, payload) for payload in payloads])
        return [execution_of(created) for created in jobs]

    async def create_within(
        self, request: EnqueueRequest, payloads: Sequence[str], connection: CallerConnection | None
    ) -> list[CreatedJob]:
        """Create jobs in the caller's own transaction, by several statements if they are many."""
        spec = await self._spec(request)
        jobs: list[CreatedJob] = []
        for start in range(0, len(payloads), _JOBS_PER_STATEMENT):
            specs = [with_payload(spec, payload) for payload in payloads[start : start + _JOBS_PER_STATEMENT]]
            jobs += await self.commands.jobs.create_all(specs, connection)
        return [await self.resolve_job(created) for created in jobs]

    async def resolve_job(self, created: CreatedJob) -> CreatedJob:
        """For an execution that existed before, because it holds the unique key: with the id of the job it belongs to."""
        if created.is_new:
            return created
        execution_id = execution_of(created)
        if execution_id.version == _ENQUEUED_VERSION:
            return replace(created, job_id=JobId(execution_id))
        execution = await self.parts.store.history.find(execution_id)
        return created if execution is None else replace(created, job_id=execution.job_id)

    async def _spec(self, request: EnqueueRequest) -> JobSpec:
        if request.delay is None:
            return request.spec
        return replace(request.spec, scheduled_at=await self.now() + request.delay)


def with_payload(spec: JobSpec, payload: str) -> JobSpec:
    """The job with its payload, which is JSON text already."""
    return replace(spec, payload=orjson.Fragment(payload))


def execution_of(created: CreatedJob) -> ExecutionId:
    """The execution of an enqueued job: it always has one."""
    assert created.execution_id is not None
    return created.execution_id


class EnqueueClient:
    """Writes what is enqueued. Methods for coroutines have an `a` before their names."""

    def __init__(
        self,
        settings: Callable[[], Settings],
        env: Callable[[], Env | None] = lambda: None,
        find_handler: Callable[[str], Handler | None] = lambda _name: None,
        inline: InlineChoice = None,
    ) -> None:
        self._settings = settings
        self._env = env
        # The hooks of the program that see every enqueue before it is made (`sdk.enqueue_hooks`).
        self.before_enqueue: list[Callable[[PendingEnqueue], object]] = []
        # Of a chain or group with so many parts: what all of its calls have as meta beside their own (`contrib.otel`).
        self.make_group_meta: Callable[[int], dict[str, Any] | None] | None = None
        self._find_handler = find_handler
        self._inline_choice = inline
        self._program_scope: InlineScope | None = None
        self._knows_program_scope = False
        self.background_loop: BackgroundLoop[SdkRuntime] = BackgroundLoop(self._open, self._check_not_inline)

    # inline runs

    def inline_scope(self) -> InlineScope | None:
        """The scope in which what the caller enqueues runs inline; None if it goes to the database."""
        # One call less for each enqueue once the program is known not to run inline.
        if self._knows_program_scope and self._program_scope is None:
            return innermost_scope(self)
        return innermost_scope(self) or self.program_scope()

    def program_scope(self) -> InlineScope | None:
        """The scope of a program that runs inline as a whole."""
        if not self._knows_program_scope:
            choice = self._settings().inline if self._inline_choice is None else self._inline_choice
            self._program_scope, self._knows_program_scope = program_scope(self, choice), True
        return self._program_scope

    @contextmanager
    def not_inline(self) -> Iterator[None]:
        """Whatever the program says of itself, its enqueues go to the database until the block ends."""
        before = self._program_scope, self._knows_program_scope
        self._program_scope, self._knows_program_scope = None, True
        try:
            yield
        finally:
            self._program_scope, self._knows_program_scope = before

    @cached_property
    def inline_runs(self) -> InlineRuns:
        """Makes the inline runs."""
        from timeball.sdk.inline_runs import InlineRuns

        return InlineRuns(self, self._find_handler, self._make_call_methods(), self._env)

    def _make_call_methods(self) -> CallMethods:
        from timeball.sdk.inline_runs import CallMethods

        return CallMethods()

    def _check_not_inline(self) -> None:
        if self.inline_scope() is not None:
            raise InlineOnly(
                "enqueues run inline here and no database is used: schedules, jobs and runs of other processes are not there",
                hint="use a program with a database, or in a test the timeball fixture",
            )

    # the database

    def _open(self) -> AbstractAsyncContextManager[SdkRuntime]:
        return _open_sdk_runtime(self._settings(), self._env())

    # Whether `joined` may change a request.
    joins = False

    def joined(self, request: EnqueueRequest) -> EnqueueRequest:
        """The request as it is written; a framework that knows of an open transaction puts it there."""
        return request

    async def ajoined(self, request: EnqueueRequest) -> EnqueueRequest:
        return request

    def send(self, request: EnqueueRequest, payload: str) -> CreatedJob:
        """Enqueue one job; it is committed when this returns, or written in the caller's transaction."""
        if request.given_fields is not None:
            request = self._with_published_options(request, [payload])
        if request.connection is not None:
            return self._write_in_transaction(request, [payload])[0]
        future: ThreadFuture[CreatedJob] | None = None
        while future is None:
            runtime = self.background_loop.resource
            if runtime is None:
                runtime = self.background_loop.call(_identity)
            created = self._send_directly(runtime, request, payload)
            if created is not None:
                return created
            keeps = request.spec.if_exists == IfExists.KEEP
            future = (runtime.batcher if keeps else runtime.changing_batcher).submit((request, payload))
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def asend(self, request: EnqueueRequest, payload: str) -> CreatedJob:
        if request.given_fields is not None:
            request = await self._awith_published_options(request, [payload])
        if request.connection is not None:
            return (await self._awrite_in_transaction(request, [payload]))[0]
        future: asyncio.Future[CreatedJob] | None = None
        while future is None:
            runtime = self.background_loop.resource
            if runtime is None:
                runtime = await self.background_loop.acall(_identity)
            created = await self._asend_directly(runtime, request, payload)
            if created is not None:
                return created
            keeps = request.spec.if_exists == IfExists.KEEP
            future = (runtime.batcher if keeps else runtime.changing_batcher).asubmit((request, payload))
        return await future

    def _send_directly(self, runtime: SdkRuntime, request: EnqueueRequest, payload: str) -> CreatedJob | None:
        """Write a job without waking another thread; None, and nothing is done, if that is not possible now."""
        prepared = runtime.prepared_for_direct(request)
        if prepared is None:
            return None
        jobs = runtime.commands.jobs
        rows: list[EnqueueRow] = []

        def write(connection: DirectConnection) -> CreatedJob:
            rows.append(jobs.prepare_row(prepared, payload))
            return jobs.enqueue_direct(prepared, rows[0], connection)

        try:
            return runtime.direct_path.run(write)
        except StoreError:
            if runtime.direct_path.is_closed:
                raise closed_error() from None
            return self.background_loop.call(_make_sure(prepared, rows))

    async def _asend_directly(self, runtime: SdkRuntime, request: EnqueueRequest, payload: str) -> CreatedJob | None:
        prepared = runtime.prepared_for_direct(request)
        if prepared is None:
            return None
        jobs = runtime.commands.jobs
        rows: list[EnqueueRow] = []

        def write(connection: DirectConnection) -> Awaitable[CreatedJob]:
            rows.append(jobs.prepare_row(prepared, payload))
            return jobs.aenqueue_direct(prepared, rows[0], connection)

        try:
            return await runtime.direct_path.arun(write)
        except StoreError:
            if runtime.direct_path.is_closed:
                raise closed_error() from None
            return await self.background_loop.acall(_make_sure(prepared, rows))

    def send_many(self, request: EnqueueRequest, payloads: Sequence[str]) -> list[ExecutionId]:
        """Enqueue many jobs that differ only in their payloads, all or none."""
        if request.given_fields is not None:
            request = self._with_published_options(request, payloads)
        if request.connection is None:
            return self.background_loop.call(lambda runtime: runtime.create_many(request, payloads))
        return [execution_of(created) for created in self._write_in_transaction(request, payloads)]

    async def asend_many(self, request: EnqueueRequest, payloads: Sequence[str]) -> list[ExecutionId]:
        if request.given_fields is not None:
            request = await self._awith_published_options(request, payloads)
        if request.connection is None:
            return await self.background_loop.acall(lambda runtime: runtime.create_many(request, payloads))
        return [execution_of(created) for created in await self._awrite_in_transaction(request, payloads)]

    def _with_published_options(self, request: EnqueueRequest, payloads: Sequence[str]) -> EnqueueRequest:
        """The request with the published options of a handler that is not declared here; its payloads are checked."""
        handler = request.spec.handler
        options = self._cached_options(handler)
        if options is None:
            options = self.background_loop.call(lambda runtime: runtime.read_published_options(handler))
        return options.apply(request, payloads)

    async def _awith_published_options(self, request: EnqueueRequest, payloads: Sequence[str]) -> EnqueueRequest:
        handler = request.spec.handler
        options = self._cached_options(handler)
        if options is None:
            options = await self.background_loop.acall(lambda runtime: runtime.read_published_options(handler))
        return options.apply(request, payloads)

    def _cached_options(self, handler: str) -> PublishedOptions | None:
        runtime = self.background_loop.resource
        return None if runtime is None else runtime.published_options(handler)

    def _write_in_transaction(self, request: EnqueueRequest, payloads: Sequence[str]) -> list[CreatedJob]:
        return self.call_within(
            request.connection,
            lambda runtime, connection: runtime.create_within(request, payloads, connection),
            "enqueue",
        )

    async def _awrite_in_transaction(self, request: EnqueueRequest, payloads: Sequence[str]) -> list[CreatedJob]:
        return await self.acall_within(
            request.connection,
            lambda runtime, connection: runtime.create_within(request, payloads, connection),
            "enqueue",
        )

    def call_within(self, connection: Any, work: TransactionWork[SdkRuntime, Answer], verb: str) -> Answer:
        """Run *work* in the background loop, and its statements within the caller's connection, if one is given."""
        # Here and not above: a program that only declares handlers needs no database driver.
        from timeball.sdk.transactions import call_within

        return call_within(self.background_loop, connection, work, verb)

    async def acall_within(self, connection: Any, work: TransactionWork[SdkRuntime, Answer], verb: str) -> Answer:
        """Like `call_within`, for coroutines."""
        from timeball.sdk.transactions import acall_within

        return await acall_within(self.background_loop, connection, work, verb)


def _make_sure(
    prepared: PreparedJob, rows: Sequence[EnqueueRow]
) -> Callable[[SdkRuntime], Coroutine[Any, Any, CreatedJob]]:
    """Read back by its id a job that may or may not have been written, and write it if it was not."""

    async def make_sure(runtime: SdkRuntime) -> CreatedJob:
        return (await runtime.commands.jobs.make_sure(prepared, rows))[0]

    return make_sure


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
            runtime.close()
