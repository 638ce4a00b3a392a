"""The life of a worker: claim, run, record; and how it leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from timeball.broker.interface import Broker, Inbox
from timeball.domain.events import Draining, Emit
from timeball.domain.handler import HandlerSource, RunStyle
from timeball.domain.hints import Hints
from timeball.domain.node import Node
from timeball.engine.claimer import Claimer, Sweeper
from timeball.engine.contract_watch import ContractWatch, Takes
from timeball.engine.executor import Executor
from timeball.engine.journal import Journal
from timeball.engine.life import Life
from timeball.engine.lookout import Lookout
from timeball.engine.recorder import Recorder
from timeball.engine.retry_gate import RetryGate
from timeball.engine.service import Service
from timeball.engine.stocktaker import Stocktaker
from timeball.env import Env
from timeball.runners.interface import Runner
from timeball.settings import WorkerSettings
from timeball.store.interface import RoomStore, Store

if TYPE_CHECKING:
    from timeball.engine.receiver import Receiver

# The last part of the grace is kept for ending what would not end by itself, and for writing that down.
_LAST_SECONDS = 5.0
_STOP_POLL = timedelta(seconds=1)
# Who hears no hints looks often: what is held for half a second would be dropped before the next look.
_DEAF_STOP_POLL = timedelta(milliseconds=100)


class StopWatch(Service):
    """Hears which executions are to stop: when hinted, and by a look every second; by more of them while no hints come."""

    def __init__(
        self, env: Env, emit: Emit, rooms: RoomStore, node: Node, executor: Executor, hears_hints: Callable[[], bool]
    ) -> None:
        super().__init__(env, emit)
        self._rooms = rooms
        self._node = node
        self._executor = executor
        self._hears_hints = hears_hints

    async def tick(self) -> timedelta:
        if self._executor.busy or self._executor.held or self._executor.waiting:
            stops = await self._rooms.stops(self._node.incarnation)
            if stops:
                self._executor.stop_executions(stops)
        return _STOP_POLL if self._hears_hints() else _DEAF_STOP_POLL


class WorkerLife(Life):
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
        self.recorder = Recorder(env, emit, store.rooms, lambda number: self.claimer.on_recorded(number))
        self.journal = Journal(env, emit, store.rooms, store.history)
        self.executor = Executor(
            env,
            handlers,
            runners,
            settings.slots,
            self.recorder.hand_over,
            self.journal.open_sink,
            self.journal.close_sink,
        )
        self.recorder.is_dropping = lambda: self.executor.is_dropping
        self.receiver: Receiver | None = None
        if broker is not None and broker.carries_tickets:
            self._claim_by_ticket(broker)
        else:
            self.claimer = Claimer(env, emit, store.rooms, self.executor, node.incarnation, node.handlers, settings)
            self.sweeper = Sweeper(env, emit, store.rooms, self.claimer)
            self.claimer.turn_of = lambda hints: self.heartbeat.turns.of(hints)
        self.lookout = Lookout(env, emit, store.rooms, self.claimer)
        self.claimer.on_left_to_others = self.lookout.expect
        self.stop_watch = StopWatch(env, emit, store.rooms, node, self.executor, lambda: self.listener.is_listening)
        self.stocktaker = Stocktaker(
            env, emit, store.rooms, node.incarnation, self.claimer, self.executor, self.recorder.unrecorded
        )
        self.retry_gate = RetryGate(env, emit, settings)
        self.executor.admit = self.retry_gate.admit
        self.executor.on_success = self.retry_gate.note_success
        self.heartbeat.busy = lambda: self.executor.busy
        self.executor.may_begin = lambda: self.heartbeat.has_lease
        # Tells which contracts this worker has, before it is registered.
        self.publish: Callable[[], Awaitable[None]] | None = None
        self.contract_watch: ContractWatch | None = None

    def watch_contracts(self, fingerprints: Mapping[str, str], takes: Takes) -> None:
        """Judge mismatches by the published contracts; *fingerprints* are those of this worker's own."""
        handlers = self.store.handlers
        watch = ContractWatch(self.env, self.emit, handlers, fingerprints, takes, self._hold_back)
        self.contract_watch = watch
        self.recorder.judge = watch.judge

    def _hold_back(self, handlers: frozenset[str]) -> None:
        self.claimer.hold_back(handlers)
        # What was passed over so far is looked for anew.
        self.sweeper.wake()

    def _claim_by_ticket(self, broker: Broker) -> None:
        from timeball.engine.receiver import Receiver
        from timeball.engine.ticket_claimer import TicketClaimer

        env, emit, store, node = self.env, self.emit, self.store, self.node
        claimer = TicketClaimer(env, emit, store.rooms, store.tickets, self.executor, node, self._settings)
        self.claimer = claimer
        self.sweeper = Sweeper(env, emit, store.rooms, claimer)
        inbox = Inbox.of(node.queues, node.handlers)
        self.receiver = receiver = Receiver(env, emit, broker, inbox, claimer, self.sweeper)
        self.heartbeat.broker = lambda: receiver.watch.status

    def services(self) -> Sequence[Service]:
        receivers = () if self.receiver is None else (self.receiver,)
        return (
            self.recorder,
            self.journal,
            self.stop_watch,
            self.sweeper,
            self.claimer,
            self.lookout,
            self.stocktaker,
            self.retry_gate,
            *(() if self.contract_watch is None else (self.contract_watch,)),
            *receivers,
        )

    async def start(self) -> None:
        # Now, and not when the first execution waits for it.
        await self.store.rooms.rehearse()
        if self.publish is not None:
            await self.publish()
        await super().start()

    def heed(self, hints: Hints) -> None:
        self.claimer.heed(hints)
        if hints.look_everywhere:
            self.sweeper.wake()
        if hints.nodes_changed:
            self.heartbeat.renew_soon()
        if self.node.incarnation in hints.holders:
            self.stop_watch.wake()

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
        self.lookout.stop()
        self.stocktaker.stop()
        self._cut_receiver()
        # A claim that is under way must not bring anything in behind our back.
        await self._finish(self.claimer, self.stocktaker)
        given_back = self.executor.give_back_all()
        if self.executor.busy:
            self.emit(Draining(self.executor.busy, self._settings.grace))
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
                await self.journal.flush()
        except TimeoutError:
            # The database does not answer: the lease will run out, and the reaper will find what we held.
            return
