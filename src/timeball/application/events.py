"""The change stream of the installation, fanned out to subscribers in this process."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

from timeball.domain.change_event import EXECUTION_STARTED, ChangeEvent, EventFilter, change_event_id
from timeball.domain.execution import ExecutionState
from timeball.domain.values.ids import ExecutionId, format_id
from timeball.errors import StoreError
from timeball.store.types import ChangeBatch, LogRecord

if TYPE_CHECKING:
    from timeball.clock import Clock
    from timeball.domain.node import NodeStatus
    from timeball.env import Env
    from timeball.store.store import Store

__all__ = ["MAX_PENDING_EVENTS", "ChangeBatch", "EventBatch", "EventHub", "EventSubscription", "TopicSubscription"]


# Those who are told: of single events, in a ring that forgets the oldest; or of topics that have changed, in a set.

# What may wait for a listener that is slow; then the oldest is forgotten, and a gap is told.
MAX_PENDING_EVENTS = 256


# So many different topics that everything might as well be looked at again.
MAX_PENDING_TOPICS = 200
ALL_TOPICS = "*"
_FLUSH_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class EventBatch:
    """What a listener has not been told yet; *is_gap* says that something before it was left out.

    *position* is where the stream is after the last of them. *is_over* says that nothing more will come.
    """

    events: Sequence[ChangeEvent]
    position: str | None
    is_gap: bool = False
    is_over: bool = False


class _Subscription:
    """Somebody who waits for something to come, or for the end."""

    def __init__(self) -> None:
        self._stirred = asyncio.Event()
        self.is_over = False

    def end(self) -> None:
        """Nothing more will come."""
        self.is_over = True
        self._stirred.set()

    async def _stirs(self, timeout: float) -> None:
        try:
            async with asyncio.timeout(timeout):
                await self._stirred.wait()
        except TimeoutError:
            return
        self._stirred.clear()


class EventSubscription(_Subscription):
    """Is told of the events it is interested in."""

    def __init__(self, event_filter: EventFilter) -> None:
        super().__init__()
        self._event_filter = event_filter
        self._ring: deque[ChangeEvent] = deque(maxlen=MAX_PENDING_EVENTS)
        self._position: str | None = None
        self._has_missed = False

    def tell(self, events: Iterable[ChangeEvent], position: str, *, is_gap: bool = False) -> None:
        """Take in what happened up to a position; never waits."""
        wanted = self._event_filter.select(events)
        self._has_missed |= is_gap or len(self._ring) + len(wanted) > MAX_PENDING_EVENTS
        self._ring.extend(wanted)
        self._position = position
        if wanted or is_gap:
            self._stirred.set()

    async def next(self, timeout: float) -> EventBatch:
        """What has come, after waiting for it for at most *timeout* seconds."""
        if not self._ring and not self._has_missed and not self.is_over:
            await self._stirs(timeout)
        self._stirred.clear()
        told, self._has_missed, is_gap = list(self._ring), False, self._has_missed
        self._ring.clear()
        return EventBatch(told, self._position, is_gap, self.is_over)


class TopicSubscription(_Subscription):
    """Is told which topics have changed, as a set, four times a second at most."""

    def __init__(self, clock: Clock, topics: Iterable[str] | None = None) -> None:
        super().__init__()
        self._clock = clock
        self._wanted = None if topics is None else frozenset(topics)
        self._changed: set[str] = set()
        self._last_told = float("-inf")

    def tell(self, events: Iterable[ChangeEvent], position: str, *, is_gap: bool = False) -> None:
        """Note what changed; never waits, and never grows beyond a few hundred names."""
        names: set[str] = {ALL_TOPICS} if is_gap else set().union(*(one.topics for one in events))
        self._changed |= names if self._wanted is None or is_gap else names & self._wanted
        if len(self._changed) > MAX_PENDING_TOPICS:
            self._changed = {ALL_TOPICS}
        if self._changed:
            self._stirred.set()

    async def next(self, timeout: float) -> frozenset[str]:
        """The topics that have changed, after waiting for it; `*` stands for all. Empty after *timeout*, or at the end."""
        if not self._changed and not self.is_over:
            await self._stirs(timeout)
        rest = self._last_told + _FLUSH_SECONDS - self._clock.monotonic()
        if self._changed and rest > 0 and not self.is_over:
            await asyncio.sleep(rest)
        self._stirred.clear()
        told, self._changed = frozenset(self._changed), set()
        self._last_told = self._clock.monotonic()
        return told


# The pump of a process: reads the change stream while anybody listens, and tells everybody.

_POLL_SECONDS = 0.5
_LONGEST_PAUSE = 1.0


# More than this in one look is nothing anybody could read: a gap is told instead.
MAX_EVENTS_PER_READ = 1_000


# Starts that were told already, so that the end does not tell them again.
_MAX_REMEMBERED_STARTS = 10_000
_LOG_PAGE = 200
_log = logging.getLogger("timeball.application.events")

AnySubscription = TypeVar("AnySubscription", EventSubscription, TopicSubscription)


class EventHub:
    """Tells what happens to everybody who listens."""

    def __init__(self, env: Env, store: Store) -> None:
        self._env = env
        self._store = store
        self._listeners: set[EventSubscription | TopicSubscription] = set()
        self._beginning = asyncio.Lock()
        self._pump: asyncio.Task[None] | None = None
        self._is_closed = False
        self._announced_starts: OrderedDict[UUID, None] = OrderedDict()
        self._nodes: dict[UUID, NodeStatus] = {}

    @asynccontextmanager
    async def listen(self, event_filter: EventFilter = EventFilter()) -> AsyncIterator[EventSubscription]:
        """Hear of every event of event_filter, from now on."""
        async with self._attached(EventSubscription(event_filter)) as listener:
            yield listener

    @asynccontextmanager
    async def watch(self, topics: Iterable[str] | None = None) -> AsyncIterator[TopicSubscription]:
        """Hear which of some topics change; of all, if none are named.

        Topics: `executions`, `jobs`, `queues`, `workers`, `dead`; an id (`job_...`, `exe_...`); `queue:NAME`.
        """
        async with self._attached(TopicSubscription(self._env.clock, topics)) as listener:
            yield listener

    async def since(self, position: str | None, event_filter: EventFilter) -> ChangeBatch:
        """What happened since a position; from now on, if none is given."""
        if position is None:
            return ChangeBatch(await self._store.changes.position(), [], is_complete=True)
        changes = await self._store.changes.since(position, MAX_EVENTS_PER_READ)
        return ChangeBatch(changes.position, event_filter.select(changes.events), changes.is_complete)

    async def tail_log(
        self, execution_id: ExecutionId, after: tuple[int, int] = (0, 0)
    ) -> AsyncIterator[Sequence[LogRecord]]:
        """What an execution says, as it says it; ends with the execution."""
        while not self._is_closed:
            is_over = await self._has_ended(execution_id)
            lines = await self._store.history.log(execution_id, after, _LOG_PAGE)
            if lines:
                after = (lines[-1].fence, lines[-1].number)
                yield lines
            elif is_over:
                return
            else:
                await asyncio.sleep(_POLL_SECONDS)

    async def _has_ended(self, execution_id: ExecutionId) -> bool:
        changes = await self._store.history.find(execution_id)
        return changes is None or ExecutionState(changes.state).is_final

    @property
    def is_closed(self) -> bool:
        """Whether the process is about to end."""
        return self._is_closed

    def close(self) -> None:
        """Let everybody go: the process ends."""
        self._is_closed = True
        for listener in self._listeners:
            listener.end()

    # the pump

    @asynccontextmanager
    async def _attached(self, listener: AnySubscription) -> AsyncIterator[AnySubscription]:
        self._listeners.add(listener)
        try:
            if self._is_closed:
                listener.end()
            else:
                await self._begin()
            yield listener
        finally:
            self._listeners.discard(listener)
            if not self._listeners:
                await self._rest()

    async def _begin(self) -> None:
        """Whoever listens hears of all that happens from then on: so the pump must know by then where it goes on from."""
        async with self._beginning:
            if self._pump is None:
                self._pump = asyncio.create_task(self._run(await self._first_look()))

    async def _rest(self) -> None:
        pump, self._pump = self._pump, None
        if pump is not None:
            pump.cancel()
            with suppress(asyncio.CancelledError):
                await pump

    async def _run(self, position: str) -> None:
        """Look twice a second. What could not be read now is read later: the position waits."""
        failures = 0
        while True:
            await asyncio.sleep(min(_POLL_SECONDS * 2 ** min(failures, 8), _LONGEST_PAUSE))
            try:
                position = await self._look(position)
                failures = 0
            except StoreError:
                failures += 1
            except Exception:
                # Told and looked past: streams that fell silent for good would look like a system at rest.
                _log.exception("changes could not be read")
                failures += 1
                position = await self._skip_ahead(position)

    async def _skip_ahead(self, position: str) -> str:
        """Behind what could not be read; every listener is told of the gap."""
        try:
            ahead = await self._store.changes.position()
        except StoreError:
            return position
        for listener in self._listeners:
            listener.tell([], ahead, is_gap=True)
        return ahead

    async def _first_look(self) -> str:
        """What runs already, and who is there already, is no news."""
        position = await self._store.changes.position()
        self._fresh(await self._store.changes.started(MAX_EVENTS_PER_READ))
        self._nodes = {node.incarnation: node for node in await self._store.nodes.list()}
        return position

    async def _look(self, position: str) -> str:
        running = await self._store.changes.started(MAX_EVENTS_PER_READ)
        changes = await self._store.changes.since(position, MAX_EVENTS_PER_READ)
        news = [*self._fresh([*running, *changes.events]), *await self._node_changes()]
        news.sort(key=lambda event: event.at)
        for listener in self._listeners:
            listener.tell(news, changes.position, is_gap=not changes.is_complete)
        return changes.position

    def _fresh(self, events: Iterable[ChangeEvent]) -> list[ChangeEvent]:
        """Without starts that were told already: one that still runs is seen again and again, and then it ends."""
        return [one for one in events if one.type != EXECUTION_STARTED or self._is_first(one)]

    def _is_first(self, start: ChangeEvent) -> bool:
        is_known = start.id in self._announced_starts
        self._announced_starts[start.id] = None
        self._announced_starts.move_to_end(start.id)
        while len(self._announced_starts) > _MAX_REMEMBERED_STARTS:
            self._announced_starts.popitem(last=False)
        return not is_known

    async def _node_changes(self) -> list[ChangeEvent]:
        known, now = self._nodes, self._env.clock.now()
        self._nodes = {node.incarnation: node for node in await self._store.nodes.list()}
        came = [_topics_of(node, "started", node.started_at) for key, node in self._nodes.items() if key not in known]
        went = [_topics_of(node, "gone", now) for key, node in known.items() if key not in self._nodes]
        return came + went


def _topics_of(node: NodeStatus, what: str, at: datetime) -> ChangeEvent:
    kind = node.kind.value
    return ChangeEvent(
        id=change_event_id(at, kind, what, node.incarnation),
        type=f"{kind}.{what}",
        at=at,
        subject=format_id("wrk" if kind == "worker" else "nod", node.incarnation),
        data={"name": node.name, "slots": node.slots},
    )
