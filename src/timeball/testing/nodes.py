"""A real scheduler and a real worker that a test ticks by hand, on a clock that stands still."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import NamedTuple

from timeball.application.commands import Commands
from timeball.config.settings import Settings
from timeball.domain.handler import Handler, RunStyle
from timeball.domain.node import Node, NodeKind
from timeball.domain.values.ids import ExecutionId, Incarnation, format_execution_id
from timeball.domain.values.wording import format_duration
from timeball.engine.node import Service
from timeball.engine.runners.in_process import CoroutineRunner, ThreadRunner
from timeball.engine.scheduler.housekeeping import Reaper
from timeball.engine.scheduler.scheduler import Scheduler
from timeball.engine.scheduler.shards import ShardBalancer
from timeball.engine.worker.attempts import Runner, most_attempts
from timeball.engine.worker.node import WorkerNode
from timeball.errors import ExecutionFailed, ResultTimeout
from timeball.handlers.binding import style_of
from timeball.handlers.registry import Registry
from timeball.runtime import Runtime, built_in_handlers, open_runtime
from timeball.store.diagnostics import RecordedExecutions
from timeball.telemetry.events import AttemptFailed, AttemptFailedAsExpected, ExecutionsExpired, TelemetryEvent
from timeball.testing.environment import HarnessEnv
from timeball.version import __version__

_CENTURY_SECONDS = 100 * 365 * 86_400.0
_NO_LIMIT = 1e9
_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 0.1
_FAILURES = frozenset({"failed", "timed_out", "lost"})


class DrainResult(NamedTuple):
    """How many attempts succeeded and failed; *other* ones snoozed or were cancelled."""

    succeeded: int = 0
    failed: int = 0
    other: int = 0


@dataclass(frozen=True, slots=True)
class ElapsedTime:
    """A span of the test's time: the result of its attempts, and the errors of those that failed and were not expected to."""

    result: DrainResult
    errors: Sequence[ExecutionFailed]


def harness_settings(settings: Settings, database_url: str) -> Settings:
    """The settings of a program for a test: its database, no broker, and one worker that serves all queues."""
    worker = settings.worker.model_copy(
        update={
            "hold_limit": 0,
            "queues": (),
            "lease_seconds": _CENTURY_SECONDS,
            "retry_budget_per_second": _NO_LIMIT,
        }
    )
    scheduler = settings.scheduler.model_copy(update={"lease_seconds": _CENTURY_SECONDS})
    return settings.model_copy(
        update={
            "database_url": database_url,
            "broker_url": None,
            "behind_pgbouncer": False,
            "migrate": False,
            "worker": worker,
            "scheduler": scheduler,
        }
    )


@asynccontextmanager
async def open_nodes(
    settings: Settings, env: HarnessEnv, registry: Registry, report: Callable[[str], None]
) -> AsyncIterator[ManualNodes]:
    """A scheduler and a worker, registered."""
    async with open_runtime(settings, env) as parts:
        nodes = ManualNodes(parts, env, registry, report)
        await nodes.register()
        async with registry.process_hooks.around_worker():
            try:
                yield nodes
            finally:
                await nodes.stop()


class ManualNodes:
    """One scheduler and one worker, used in one event loop alone."""

    def __init__(self, parts: Runtime, env: HarnessEnv, registry: Registry, report: Callable[[str], None]) -> None:
        self._parts = parts
        self._env = env
        self._report = report
        self._failures: list[AttemptFailed] = []
        self._succeeded_before = 0
        self._other = 0
        self.records = RecordedExecutions(parts.store.database)
        self._handlers = Registry([_in_this_process(each) for each in registry.merge(built_in_handlers(parts))])
        self._scheduler = self._node(NodeKind.SCHEDULER)
        self._shards = ShardBalancer(env, self._on_event, parts.store.nodes, self._scheduler.incarnation, lambda: None)
        self._runners: dict[RunStyle, Runner] = {
            RunStyle.COROUTINE: CoroutineRunner(),
            RunStyle.THREAD: ThreadRunner(most_attempts(parts.settings.worker.slots)),
        }
        self._worker = WorkerNode(
            env,
            self._on_event,
            parts.store,
            self._node(NodeKind.WORKER),
            parts.settings.worker,
            self._handlers,
            self._runners,
        )

    @property
    def commands(self) -> Commands:
        """For declaring schedules, as a starting worker does."""
        return self._parts.commands

    async def register(self) -> None:
        """Register the nodes, and acquire all shards."""
        nodes = self._parts.store.nodes
        await nodes.register(self._scheduler)
        # Without a heartbeat: the first span of the lease outlasts the test.
        await self._worker.heartbeat.register()
        await self._shards.tick()
        self._handlers.prepare()

    async def stop(self) -> None:
        """Abandon the handlers that still run."""
        self._worker.executor.abandon()
        for runner in self._runners.values():
            await runner.stop()

    async def drain(self, patience: timedelta) -> ElapsedTime:
        """Run all executions that are due now, and those that they enqueue for now."""
        return await self.advance_to(self._env.clock.now(), patience)

    async def advance_to(self, instant: datetime, patience: timedelta) -> ElapsedTime:
        """Move the clock to *instant*, from one instant at which something falls due to the next."""
        self._begin_count()
        await self._settle(patience)
        while (at := await self.records.next_instant()) is not None and at <= instant:
            self._env.virtual_clock.advance_to(at)
            await self._settle(patience)
        self._env.virtual_clock.advance_to(instant)
        # So that a test finds the records of failed attempts, as with `caplog`.
        await asyncio.to_thread(self._worker.recorder.failure_log.flush)
        succeeded = self._worker.executor.succeeded - self._succeeded_before
        result = DrainResult(succeeded, len(self._failures), self._other)
        news = [failure for failure in self._failures if not isinstance(failure, AttemptFailedAsExpected)]
        return ElapsedTime(result, [await self._error_of(failure) for failure in news])

    async def lines(self, execution_id: ExecutionId) -> list[str]:
        """The log of an execution."""
        return [line.message for line in await self._parts.store.history.log(execution_id)]

    # rounds

    async def _settle(self, patience: timedelta) -> None:
        """Run rounds until no handler runs and none starts any more."""
        loop, executor = asyncio.get_running_loop(), self._worker.executor
        deadline, pause = loop.time() + patience.total_seconds(), _FIRST_PAUSE
        while True:
            # What runs when a round begins, or has ended and is not recorded, may be followed by more after the round has claimed:
            # such a round proves nothing.
            nothing_ran = not self._is_running() and not self._worker.recorder.unrecorded()
            started = executor.started
            await self._run_once()
            if self._is_running():
                if loop.time() > deadline:
                    raise self._still_running(patience)
                # A handler may wait for an execution that it enqueued: the rounds go on beside it.
                await executor.wait_idle(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
            elif nothing_ran and executor.started == started:
                return

    def _is_running(self) -> bool:
        return bool(self._worker.executor.running or self._worker.executor.waiting)

    async def _run_once(self) -> None:
        worker = self._worker
        # A new scheduler each time: without memory of earlier rounds it overlooks nothing.
        store, settings = self._parts.store, self._parts.settings.scheduler
        await _tick_until_idle(
            Scheduler(self._env, self._on_event, store.executions, store.jobs, store.freezes, self._shards, settings)
        )
        await self._keep_house()
        await worker.sweeper.tick()
        await _tick_until_idle(worker.claimer)
        await worker.cancellation_poller.tick()
        await worker.executor.wait_idle(_FIRST_PAUSE)
        await _tick_until_idle(worker.recorder)
        await _tick_until_idle(worker.log_writer)

    async def _keep_house(self) -> None:
        """What the housekeeping scheduler does every second: what a transaction has written under a limit gets its place from there."""
        store, settings = self._parts.store, self._parts.settings.housekeeping
        reaper = Reaper(
            self._env,
            self._on_event,
            store.nodes,
            store.executions,
            store.jobs,
            store.queues,
            settings,
            lambda: self._shards.is_housekeeper,
        )
        await _tick_until_idle(reaper)

    def _still_running(self, patience: timedelta) -> ResultTimeout:
        running = ", ".join(sorted({claimed.handler for claimed in self._worker.executor.unfinished()}))
        return ResultTimeout(
            f"{running} still runs after {format_duration(patience)} of real time, while the clock of the test stands still; "
            "does it wait for something outside of the test?"
        )

    # results

    def _begin_count(self) -> None:
        self._failures, self._other = [], 0
        self._succeeded_before = self._worker.executor.succeeded

    def _on_event(self, event: TelemetryEvent) -> None:
        if isinstance(event, ExecutionsExpired):
            self._other += event.count
        if not isinstance(event, AttemptFailed):
            return
        if event.outcome not in _FAILURES:
            self._other += 1
            return
        self._failures.append(event)
        self._report(f"{event.handler} attempt {event.attempt} {event.outcome}, now {event.becomes}: {event.error}")

    async def _error_of(self, failure: AttemptFailed) -> ExecutionFailed:
        error = ExecutionFailed(format_execution_id(failure.execution_id), failure.becomes, failure.error)
        for attempt in await self._parts.store.history.attempts(failure.execution_id):
            if attempt.number == failure.attempt and attempt.error is not None and attempt.error.traceback:
                error.add_note(attempt.error.traceback)
        return error

    def _node(self, kind: NodeKind) -> Node:
        settings = self._parts.settings
        is_worker = kind is NodeKind.WORKER
        return Node(
            incarnation=Incarnation(self._env.new_id()),
            kind=kind,
            name="test",
            lease=settings.worker.lease if is_worker else settings.scheduler.lease,
            slots=settings.worker.slots if is_worker else 0,
            queues=None,
            handlers=self._handlers.names() if is_worker else (),
            version=__version__,
            broker=self._parts.broker.kind,
        )


async def _tick_until_idle(service: Service) -> None:
    """Tick a service until it asks for a rest."""
    while await service.tick() <= timedelta(0):
        pass


def _in_this_process(handler: Handler) -> Handler:
    """An isolated handler runs in this process, too, where the test can patch what it uses."""
    if handler.style is not RunStyle.PROCESS:
        return handler
    return replace(handler, style=style_of(handler.function, isolate=False))
