"""A worker node: claim, run, record; and how it drains and leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from timeball.brokers.base import Broker, BrokerHealth, Inbox
from timeball.config.life_signs import LifeSign
from timeball.config.settings import WorkerSettings
from timeball.domain.handler import HandlerSource, RunStyle
from timeball.domain.node import Node
from timeball.engine.node import BaseNode, Service, Signal
from timeball.engine.worker.admission import ClaimableHandlers, ContractGate, RetryGate, WorkerContracts
from timeball.engine.worker.attempts import Runner, Slots, StartQueue
from timeball.engine.worker.claimer import Claimer, ClaimReconciler, Sweeper, WakeupBackstop
from timeball.engine.worker.executor import CancellationPoller, Executor
from timeball.engine.worker.recorder import LogWriter, Recorder
from timeball.env import Env
from timeball.telemetry.events import Emit, WorkerDraining

if TYPE_CHECKING:
    from timeball.engine.tickets import TicketReceiver
    from timeball.store.store import Store

# The last part of the grace is kept for ending what would not end by itself, and for writing that down.
_LAST_SECONDS = 5.0


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
        contracts: WorkerContracts | None = None,
        life_sign: LifeSign | None = None,
    ) -> None:
        # What several parts share.
        slots = Slots(settings.slots, runners.values())
        queue = StartQueue(env.clock)
        claimable = ClaimableHandlers(node.handlers)
        outcomes_recorded = Signal()
        broker_health = BrokerHealth.of(emit, broker)
        super().__init__(env, emit, store, node, slots, broker_health, life_sign)
        self._settings = settings
        self._runners = runners
        self._contracts = contracts
        self._hurry = asyncio.Event()

        # From a finished attempt back to a claim: each part is given those it calls.
        executions, incarnation = store.executions, node.incarnation
        self.contract_gate = None if contracts is None else ContractGate(env, emit, contracts, claimable)
        self.recorder = Recorder(env, emit, executions, queue, self.contract_gate, outcomes_recorded)
        self.log_writer = LogWriter(
            env,
            emit,
            executions,
            store.history,
            self.recorder.keep_trace,
            lambda context: slots.attempts.get(context.claimed.id) is context,
        )
        self.retry_gate = RetryGate(env, emit, settings)
        self.executor = Executor(
            env,
            handlers,
            runners,
            slots,
            queue,
            self.heartbeat.lease,
            self.recorder.hand_over,
            self.log_writer.open_sink,
            store.jobs.schedule_of,
            store.follow_ups.cause_of,
            self.log_writer.close_sink,
            self.retry_gate,
            executions.extend_deadline,
        )
        self.claimer: Claimer
        self.receiver: TicketReceiver | None = None
        if broker is None or broker_health is None:
            self.claimer = Claimer(
                env,
                emit,
                executions,
                self.executor,
                incarnation,
                claimable,
                settings,
                self.heartbeat.peers,
                outcomes_recorded,
            )
            self.sweeper = Sweeper(env, emit, executions, self.claimer)
        else:
            from timeball.engine.tickets import TicketClaimer, TicketReceiver

            self.claimer = claimer = TicketClaimer(
                env,
                emit,
                executions,
                store.tickets,
                self.executor,
                incarnation,
                claimable,
                settings,
                outcomes_recorded,
            )
            self.sweeper = Sweeper(env, emit, executions, claimer)
            inbox = Inbox.of(node.queues, node.handlers)
            self.receiver = TicketReceiver(env, emit, broker, broker_health, inbox, claimer, self.sweeper)
        self.backstop = WakeupBackstop(env, emit, executions, self.claimer)
        self.cancellation_poller = CancellationPoller(
            env, emit, executions, incarnation, self.executor, lambda: self.listener.is_listening
        )
        self.reconciler = ClaimReconciler(
            env, emit, executions, incarnation, self.claimer, self.executor, self.recorder
        )

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
        # Before the first execution would have to wait for it.
        await self.store.executions.warm_up()
        if self._contracts is not None:
            await self._contracts.publish()
        await super().start()

    def hurry(self) -> None:
        """Do not wait for running attempts."""
        self._hurry.set()

    async def abandon(self, reason: str) -> None:
        self.executor.abandon()
        self.recorder.forget_all()
        await super().abandon(reason)
        await self._stop_runners()

    async def wind_down(self) -> int:
        """Claim nothing more, give back what has not started, wait for running attempts; in the end stop them and give them back."""
        self.claimer.stop()
        self.sweeper.stop()
        self.backstop.stop()
        self.reconciler.stop()
        self._cut_receiver()
        # A claim under way must not bring in anything after this.
        await self._finish(self.claimer, self.reconciler)
        given_back = self.executor.give_back_all()
        if self.executor.running:
            self.emit(WorkerDraining(self.executor.running, self._settings.grace))
        await self._wait_for_running()
        given_back += len(self.executor.unfinished())
        self.executor.halt_all()
        await self.executor.wait_idle(_LAST_SECONDS - 1)
        await self._flush()
        await self._stop_runners()
        return given_back

    def _cut_receiver(self) -> None:
        """Stop the receiver without waiting: a ticket that it received now would be lost until another worker notices."""
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
                await asyncio.to_thread(self.recorder.failure_log.flush)
        except TimeoutError:
            # The database does not answer: the lease will run out, and the reaper will rescue what this worker held.
            return
