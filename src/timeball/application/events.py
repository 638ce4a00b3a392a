"""The change stream of the installation, fanned out to subscribers in this process."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

from timeball.domain.change_event import (
    EXECUTION_PROGRESS,
    EXECUTION_STARTED,
    ChangeEvent,
    EventFilter,
    change_event_id,
)
from timeball.domain.execution import ExecutionState, Progress
from timeball.domain.values.ids import ExecutionId, format_id
from timeball.errors import StoreError
from timeball.store.types import ChangeBatch, LogRecord

if TYPE_CHECKING:
    from timeball.domain.node import NodeStatus
    from timeball.env import Clock, Env
    from timeball.store.store import Store

__all__ = ["MAX_PENDING_EVENTS", "ChangeBatch", "EventBatch", "EventHub", "EventSubscription", "TopicSubscription"]


# The events that may wait for a slow subscriber; beyond this the oldest is dropped and a gap is reported.
MAX_PENDING_EVENTS = 256
# With more topics than this a subscriber reloads everything.
MAX_PENDING_TOPICS = 200
ALL_TOPICS = "*"
_FLUSH_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class EventBatch:
    """The events that a subscriber has not received yet; *is_gap* says that events before them were left out.

    *position* is the position of the stream after the last event. *is_over* says that no more events will come.
    """

    events: Sequence[ChangeEvent]
    position: str | None
    is_gap: bool = False
    is_over: bool = False


class _Subscription:
    """Waits for news, or for the end of the stream."""

    def __init__(self) -> None:
        self._news = asyncio.Event()
        self.is_over = False

    def end(self) -> None:
        """No more events will come."""
        self.is_over = True
        self._news.set()

    async def _wait_for_news(self, timeout: float) -> None:
        try:
            async with asyncio.timeout(timeout):
                await self._news.wait()
        except TimeoutError:
            return
        self._news.clear()


class EventSubscription(_Subscription):
    """Receives the events that pass its filter."""

    def __init__(self, event_filter: EventFilter) -> None:
        super().__init__()
        self._event_filter = event_filter
        self._ring: deque[ChangeEvent] = deque(maxlen=MAX_PENDING_EVENTS)
        self._position: str | None = None
        self._has_missed = False

    def tell(self, events: Iterable[ChangeEvent], position: str, *, is_gap: bool = False) -> None:
        """Add the events up to a position; never waits."""
        selected = self._event_filter.select(events)
        self._has_missed |= is_gap or len(self._ring) + len(selected) > MAX_PENDING_EVENTS
        self._ring.extend(selected)
        self._position = position
        if selected or is_gap:
            self._news.set()

    async def next(self, timeout: float) -> EventBatch:
        """The events so far, after waiting for at most *timeout* seconds."""
        if not self._ring and not self._has_missed and not self.is_over:
            await self._wait_for_news(timeout)
        self._news.clear()
        events, self._has_missed, is_gap = list(self._ring), False, self._has_missed
        self._ring.clear()
        return EventBatch(events, self._position, is_gap, self.is_over)


class TopicSubscription(_Subscription):
    """Receives the set of topics that have changed, at most four times a second."""

    def __init__(self, clock: Clock, topics: Iterable[str] | None = None) -> None:
        super().__init__()
        self._clock = clock
        self._topics = None if topics is None else frozenset(topics)
        self._changed: set[str] = set()
        self._last_sent = float("-inf")

    def tell(self, events: Iterable[ChangeEvent], position: str, *, is_gap: bool = False) -> None:
        """Add the changed topics; never waits, and never grows beyond a few hundred topics."""
        names: set[str] = {ALL_TOPICS} if is_gap else set().union(*(event.topics for event in events))
        self._changed |= names if self._topics is None or is_gap else names & self._topics
        if len(self._changed) > MAX_PENDING_TOPICS:
            self._changed = {ALL_TOPICS}
        if self._changed:
            self._news.set()

    async def next(self, timeout: float) -> frozenset[str]:
        """The topics that have changed, after waiting; `*` stands for all. Empty after *timeout*, or at the end."""
        if not self._changed and not self.is_over:
            await self._wait_for_news(timeout)
        rest = self._last_sent + _FLUSH_SECONDS - self._clock.monotonic()
        if self._changed and rest > 0 and not self.is_over:
            await asyncio.sleep(rest)
        self._news.clear()
        changed, self._changed = frozenset(self._changed), set()
        self._last_sent = self._clock.monotonic()
        return changed


_POLL_SECONDS = 0.5
_LONGEST_PAUSE = 1.0
# More events than this in one read are reported as a gap.
MAX_EVENTS_PER_READ = 1_000
# The starts that were sent already, so that the end of an execution does not send its start again.
_MAX_REMEMBERED_STARTS = 10_000
_LOG_PAGE = 200
_log = logging.getLogger("timeball.application.events")

AnySubscription = TypeVar("AnySubscription", EventSubscription, TopicSubscription)


class EventHub:
    """Reads the change stream while there are subscribers, and sends each event to all of them."""

    def __init__(self, env: Env, store: Store) -> None:
        self._env = env
        self._store = store
        self._listeners: set[EventSubscription | TopicSubscription] = set()
        self._beginning = asyncio.Lock()
        self._pump: asyncio.Task[None] | None = None
        self._is_closed = False
        self._announced_starts: OrderedDict[UUID, None] = OrderedDict()
        self._nodes: dict[UUID, NodeStatus] = {}
        # Of the running executions that have told it, by the ids of their starts.
        self._progress: dict[UUID, Progress] = {}

    @asynccontextmanager
    async def listen(self, event_filter: EventFilter = EventFilter()) -> AsyncIterator[EventSubscription]:
        """Subscribe to the events of a filter, from now on."""
        async with self._attached(EventSubscription(event_filter)) as listener:
            yield listener

    @asynccontextmanager
    async def watch(self, topics: Iterable[str] | None = None) -> AsyncIterator[TopicSubscription]:
        """Subscribe to the changes of some topics, or of all topics.

        Topics: `executions`, `jobs`, `queues`, `workers`, `dead`; an id (`job_...`, `exe_...`); `queue:NAME`.
        """
        async with self._attached(TopicSubscription(self._env.clock, topics)) as listener:
            yield listener

    async def since(self, position: str | None, event_filter: EventFilter) -> ChangeBatch:
        """The events since a position; without one, the current position and no events."""
        if position is None:
            return ChangeBatch(await self._store.changes.position(), [], is_complete=True)
        changes = await self._store.changes.since(position, MAX_EVENTS_PER_READ)
        return ChangeBatch(changes.position, event_filter.select(changes.events), changes.is_complete)

    async def tail_log(
        self, execution_id: ExecutionId, after: tuple[int, int] = (0, 0)
    ) -> AsyncIterator[Sequence[LogRecord]]:
        """The log lines of an execution as they are written; ends with the execution."""
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
        execution = await self._store.history.find(execution_id)
        return execution is None or ExecutionState(execution.state).is_final

    @property
    def is_closed(self) -> bool:
        """Whether the process is about to exit."""
        return self._is_closed

    def close(self) -> None:
        """End all subscriptions, because the process exits."""
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
        """Start the pump. A subscriber receives everything from now on, so the position must be known before it returns."""
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
        """Poll twice a second. After a failed read the position stays, and the next poll reads from it."""
        failures = 0
        while True:
            await asyncio.sleep(min(_POLL_SECONDS * 2 ** min(failures, 8), _LONGEST_PAUSE))
            try:
                position = await self._look(position)
                failures = 0
            except StoreError:
                failures += 1
            except Exception:
                # Reported and skipped: a stream that stays silent would look like an idle system.
                _log.exception("changes could not be read")
                failures += 1
                position = await self._skip_ahead(position)

    async def _skip_ahead(self, position: str) -> str:
        """The position after what could not be read; every subscriber gets a gap."""
        try:
            ahead = await self._store.changes.position()
        except StoreError:
            return position
        for listener in self._listeners:
            listener.tell([], ahead, is_gap=True)
        return ahead

    async def _first_look(self) -> str:
        """The initial position. Running executions and known nodes are not reported as news."""
        position = await self._store.changes.position()
        running = await self._store.changes.started(MAX_EVENTS_PER_READ)
        self._fresh([start for start, _ in running])
        self._advances(running)
        self._nodes = {node.incarnation: node for node in await self._store.nodes.list()}
        return position

    async def _look(self, position: str) -> str:
        running = await self._store.changes.started(MAX_EVENTS_PER_READ)
        changes = await self._store.changes.since(position, MAX_EVENTS_PER_READ)
        starts = [start for start, _ in running]
        news = [*self._fresh([*starts, *changes.events]), *self._advances(running), *await self._node_changes()]
        news.sort(key=lambda event: event.at)
        for listener in self._listeners:
            listener.tell(news, changes.position, is_gap=not changes.is_complete)
        return changes.position

    def _fresh(self, events: Iterable[ChangeEvent]) -> list[ChangeEvent]:
        """Events without the starts that were sent already: a running execution is read again at every poll, and when it ends."""
        return [event for event in events if event.type != EXECUTION_STARTED or self._is_first(event)]

    def _is_first(self, start: ChangeEvent) -> bool:
        is_known = start.id in self._announced_starts
        self._announced_starts[start.id] = None
        self._announced_starts.move_to_end(start.id)
        while len(self._announced_starts) > _MAX_REMEMBERED_STARTS:
            self._announced_starts.popitem(last=False)
        return not is_known

    def _advances(self, running: Sequence[tuple[ChangeEvent, Progress | None]]) -> list[ChangeEvent]:
        """The progress that running executions have told since the last look."""
        known, now = self._progress, self._env.clock.now()
        told = [(start, progress) for start, progress in running if progress is not None]
        self._progress = {start.id: progress for start, progress in told}
        return [_progress_event(start, one, now) for start, one in told if known.get(start.id) != one]

    async def _node_changes(self) -> list[ChangeEvent]:
        known, now = self._nodes, self._env.clock.now()
        self._nodes = {node.incarnation: node for node in await self._store.nodes.list()}
        came = [_node_event(node, "started", node.started_at) for key, node in self._nodes.items() if key not in known]
        went = [_node_event(node, "gone", now) for key, node in known.items() if key not in self._nodes]
        return came + went


def _progress_event(start: ChangeEvent, progress: Progress, at: datetime) -> ChangeEvent:
    told = {"progress": progress._asdict()}
    kept = {name: start.data[name] for name in ("attempt", "scheduled_for", "worker")}
    id_ = change_event_id(at, EXECUTION_PROGRESS, start.id, *progress)
    return replace(start, id=id_, type=EXECUTION_PROGRESS, at=at, data=kept | told)


def _node_event(node: NodeStatus, what: str, at: datetime) -> ChangeEvent:
    kind = node.kind.value
    return ChangeEvent(
        id=change_event_id(at, kind, what, node.incarnation),
        type=f"{kind}.{what}",
        at=at,
        subject=format_id("wrk" if kind == "worker" else "nod", node.incarnation),
        data={"name": node.name, "slots": node.slots},
    )
