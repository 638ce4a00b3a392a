"""A worker node: claim, run, record; and how it drains and leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from timeball.brokers.base import Broker, Inbox
from timeball.config.settings import WorkerSettings
from timeball.domain.handler import HandlerSource, RunStyle
from timeball.domain.node import Node
from timeball.domain.wakeup import Wakeup
from timeball.engine.node import BaseNode
from timeball.engine.runners.base import Runner
from timeball.engine.service import Service
from timeball.engine.worker.admission import AcceptsPayload, ContractGate, RetryGate
from timeball.engine.worker.claimer import Claimer, Sweeper
from timeball.engine.worker.executor import Executor
from timeball.engine.worker.reconciler import ClaimReconciler, WakeupBackstop
from timeball.engine.worker.recorder import LogWriter, Recorder
from timeball.env import Env
from timeball.store.executions import ExecutionStore
from timeball.store.store import Store
from timeball.telemetry.events import Emit, WorkerDraining

if TYPE_CHECKING:
    from timeball.engine.worker.ticket_claimer import TicketReceiver

# The last part of the grace is kept for ending what would not end by itself, and for writing that down.
_LAST_SECONDS = 5.0
_STOP_POLL = timedelta(seconds=1)
# Who hears no hints looks often: what is held for half a second would be dropped before the next look.
_DEAF_STOP_POLL = timedelta(milliseconds=100)


class CancellationPoller(Service):
    """Hears which executions are to stop: when hinted, and by a look every second; by more of them while no hints come."""

    def __init__(
        self,
        env: Env,
        emit: Emit,
        executions: ExecutionStore,
        node: Node,
        executor: Executor,
        hears_hints: Callable[[], bool],
    ) -> None:
        super().__init__(env, emit)
        self._executions = executions
        self._node = node
        self._executor = executor
        self._hears_hints = hears_hints

    async def tick(self) -> timedelta:
        if self._executor.busy or self._executor.held or self._executor.waiting:
            stops = await self._executions.stops(self._node.incarnation)
            if stops:
                self._executor.stop_executions(stops)
        return _STOP_POLL if self._hears_hints() else _DEAF_STOP_POLL


class WorkerNode(BaseNode):
    """Claims executions, runs them, records their outcomes."""

    def __init__(
        self,
        env: Env,
        emit: Emit,
        store: Store,
        node: Node,
        settings: WorkerSettings,
        handlers: HandlerSource,
        runners: Mapping[RunStyle, Runner],
        broker: Broker | None = None,
    ) -> None:
        super().__init__(env, emit, store, node)
        self._settings = settings
        self._runners = runners
        self._hurry = asyncio.Event()
        self.recorder = Recorder(env, emit, store.executions, lambda number: self.claimer.on_recorded(number))
        self.log_writer = LogWriter(env, emit, store.executions, store.history)
        self.executor = Executor(
            env,
            handlers,
            runners,
            settings.slots,
            self.recorder.hand_over,
            self.log_writer.open_sink,
            self.log_writer.close_sink,
        )
        self.recorder.is_starting = lambda: self.executor.is_starting
        self.receiver: TicketReceiver | None = None
        if broker is not None and broker.carries_tickets:
            self._claim_by_ticket(broker)
        else:
            self.claimer = Claimer(
                env, emit, store.executions, self.executor, node.incarnation, node.handlers, settings
            )
            self.sweeper = Sweeper(env, emit, store.executions, self.claimer)
            self.claimer.turn_of = lambda wakeup: self.heartbeat.turns.of(wakeup)
        self.backstop = WakeupBackstop(env, emit, store.executions, self.claimer)
        self.claimer.on_deferred = self.backstop.expect
        self.cancellation_poller = CancellationPoller(
            env, emit, store.executions, node, self.executor, lambda: self.listener.is_listening
        )
        self.reconciler = ClaimReconciler(
            env, emit, store.executions, node.incarnation, self.claimer, self.executor, self.recorder.unrecorded
        )
        self.retry_gate = RetryGate(env, emit, settings)
        self.executor.admit = self.retry_gate.admit
        self.executor.on_success = self.retry_gate.note_success
        self.heartbeat.busy = lambda: self.executor.busy
        self.executor.may_begin = lambda: self.heartbeat.has_lease
        # Tells which contracts this worker has, before it is registered.
        self.publish: Callable[[], Awaitable[None]] | None = None
        self.contract_gate: ContractGate | None = None

    def watch_contracts(self, fingerprints: Mapping[str, str], takes: AcceptsPayload) -> None:
        """Judge mismatches by the published contracts; *fingerprints* are those of this worker's own."""
        handlers = self.store.handlers
        watch = ContractGate(self.env, self.emit, handlers, fingerprints, takes, self._hold_back)
        self.contract_gate = watch
        self.recorder.judge = watch.judge

    def _hold_back(self, handlers: frozenset[str]) -> None:
        self.claimer.hold_back(handlers)
        # What was passed over so far is looked for anew.
        self.sweeper.wake()

    def _claim_by_ticket(self, broker: Broker) -> None:
        from timeball.engine.worker.ticket_claimer import TicketClaimer, TicketReceiver

        env, emit, store, node = self.env, self.emit, self.store, self.node
        claimer = TicketClaimer(env, emit, store.executions, store.tickets, self.executor, node, self._settings)
        self.claimer = claimer
        self.sweeper = Sweeper(env, emit, store.executions, claimer)
        inbox = Inbox.of(node.queues, node.handlers)
        self.receiver = receiver = TicketReceiver(env, emit, broker, inbox, claimer, self.sweeper)
        self.heartbeat.broker = lambda: receiver.watch.status

    def services(self) -> Sequence[Service]:
        receivers = () if self.receiver is None else (self.receiver,)
        return (
            self.recorder,
            self.log_writer,
            self.cancellation_poller,
            self.sweeper,
            self.claimer,
            self.backstop,
            self.reconciler,
            self.retry_gate,
            *(() if self.contract_gate is None else (self.contract_gate,)),
            *receivers,
        )

    async def start(self) -> None:
        # Now, and not when the first execution waits for it.
        await self.store.executions.warm_up()
        if self.publish is not None:
            await self.publish()
        await super().start()

    def on_wakeup(self, wakeup: Wakeup) -> None:
        self.claimer.on_wakeup(wakeup)
        if wakeup.look_everywhere:
            self.sweeper.wake()
        if wakeup.nodes_changed:
            self.heartbeat.renew_soon()
        if self.node.incarnation in wakeup.holders:
            self.cancellation_poller.wake()

    def hurry(self) -> None:
        """Do not wait for what runs."""
        self._hurry.set()

    async def drop(self, reason: str) -> None:
        self.executor.abandon()
        self.recorder.forget_all()
        await super().drop(reason)
        await self._stop_runners()

    async def wind_down(self) -> int:
        """Take nothing more, give back what has not begun, wait for the rest; in the end, stop it and give it back."""
        self.claimer.stop()
        self.sweeper.stop()
        self.backstop.stop()
        self.reconciler.stop()
        self._cut_receiver()
        # A claim that is under way must not bring anything in behind our back.
        await self._finish(self.claimer, self.reconciler)
        given_back = self.executor.give_back_all()
        if self.executor.busy:
            self.emit(WorkerDraining(self.executor.busy, self._settings.grace))
        await self._wait_for_running()
        given_back += len(self.executor.unfinished())
        self.executor.halt_all()
        await self.executor.wait_idle(_LAST_SECONDS - 1)
        await self._flush()
        await self._stop_runners()
        return given_back

    def _cut_receiver(self) -> None:
        """Not waited for: a ticket that it took now would be lost, and others would have to notice."""
        if self.receiver is not None:
            self.receiver.stop()
            for task in self._tasks:
                if task.get_name() == self.receiver.name:
                    task.cancel()

    async def _stop_runners(self) -> None:
        for runner in self._runners.values():
            await runner.stop()

    async def _finish(self, *services: Service) -> None:
        names = {service.name for service in services}
        rounds = [task for task in self._tasks if task.get_name() in names]
        if rounds:
            await asyncio.wait(rounds, timeout=_LAST_SECONDS)

    async def _wait_for_running(self) -> None:
        patience = max(self._settings.grace_seconds - _LAST_SECONDS, 0)
        idle = asyncio.ensure_future(self.executor.wait_idle(patience))
        hurry = asyncio.ensure_future(self._hurry.wait())
        await asyncio.wait((idle, hurry), return_when=asyncio.FIRST_COMPLETED)
        for waiter in (idle, hurry):
            waiter.cancel()
        await asyncio.gather(idle, hurry, return_exceptions=True)

    async def _flush(self) -> None:
        try:
            async with asyncio.timeout(_LAST_SECONDS):
                await self.recorder.flush()
                await self.log_writer.flush()
        except TimeoutError:
            # The database does not answer: the lease will run out, and the reaper will find what we held.
            return
