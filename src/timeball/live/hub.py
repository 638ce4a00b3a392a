"""The pump of a process: reads the change stream while anybody listens, and tells everybody."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from typing import TypeVar
from uuid import UUID

from timeball.domain.execution import ExecutionState
from timeball.domain.happening import STARTED, Happening, Interest, happening_id
from timeball.domain.ids import ExecutionId, show
from timeball.domain.node import NodeStatus
from timeball.env import Env
from timeball.errors import StoreError
from timeball.live.listeners import Listener, TopicListener
from timeball.store.interface import Changes, LogLine, Store

_POLL_SECONDS = 0.5
_LONGEST_PAUSE = 1.0
# More than this in one look is nothing anybody could read: a gap is told instead.
MOST_AT_ONCE = 1_000
# Starts that were told already, so that the end does not tell them again.
_MOST_REMEMBERED = 10_000
_LOG_PAGE = 200
_log = logging.getLogger("timeball.live")

L = TypeVar("L", Listener, TopicListener)


class Live:
    """Tells what happens to everybody who listens."""

    def __init__(self, env: Env, store: Store) -> None:
        self._env = env
        self._store = store
        self._listeners: set[Listener | TopicListener] = set()
        self._beginning = asyncio.Lock()
        self._pump: asyncio.Task[None] | None = None
        self._is_closed = False
        self._told: OrderedDict[UUID, None] = OrderedDict()
        self._nodes: dict[UUID, NodeStatus] = {}

    @asynccontextmanager
    async def listen(self, interest: Interest = Interest()) -> AsyncIterator[Listener]:
        """Hear of every happening of interest, from now on."""
        async with self._attached(Listener(interest)) as listener:
            yield listener

    @asynccontextmanager
    async def watch(self, topics: Iterable[str] | None = None) -> AsyncIterator[TopicListener]:
        """Hear which of some topics change; of all, if none are named.

        Topics: `executions`, `jobs`, `queues`, `workers`, `dead`; an id (`job_...`, `exe_...`); `queue:NAME`.
        """
        async with self._attached(TopicListener(self._env.clock, topics)) as listener:
            yield listener

    async def since(self, position: str | None, interest: Interest) -> Changes:
        """What happened since a position; from now on, if none is given."""
        if position is None:
            return Changes(await self._store.changes.position(), [], is_whole=True)
        found = await self._store.changes.since(position, MOST_AT_ONCE)
        return Changes(found.position, interest.sift(found.happenings), found.is_whole)

    async def tail_log(
        self, execution_id: ExecutionId, after: tuple[int, int] = (0, 0)
    ) -> AsyncIterator[Sequence[LogLine]]:
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
        found = await self._store.history.find(execution_id)
        return found is None or ExecutionState(found.state).is_final

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
    async def _attached(self, listener: L) -> AsyncIterator[L]:
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
        self._fresh(await self._store.changes.dropped(MOST_AT_ONCE))
        self._nodes = {node.incarnation: node for node in await self._store.nodes.list()}
        return position

    async def _look(self, position: str) -> str:
        running = await self._store.changes.dropped(MOST_AT_ONCE)
        found = await self._store.changes.since(position, MOST_AT_ONCE)
        news = [*self._fresh([*running, *found.happenings]), *await self._comings_and_goings()]
        news.sort(key=lambda happening: happening.at)
        for listener in self._listeners:
            listener.tell(news, found.position, is_gap=not found.is_whole)
        return found.position

    def _fresh(self, happenings: Iterable[Happening]) -> list[Happening]:
        """Without starts that were told already: one that still runs is seen again and again, and then it ends."""
        return [one for one in happenings if one.type != STARTED or self._is_first(one)]

    def _is_first(self, start: Happening) -> bool:
        is_known = start.id in self._told
        self._told[start.id] = None
        self._told.move_to_end(start.id)
        while len(self._told) > _MOST_REMEMBERED:
            self._told.popitem(last=False)
        return not is_known

    async def _comings_and_goings(self) -> list[Happening]:
        known, now = self._nodes, self._env.clock.now()
        self._nodes = {node.incarnation: node for node in await self._store.nodes.list()}
        came = [_about(node, "started", node.started_at) for key, node in self._nodes.items() if key not in known]
        went = [_about(node, "gone", now) for key, node in known.items() if key not in self._nodes]
        return came + went


def _about(node: NodeStatus, what: str, at: datetime) -> Happening:
    kind = node.kind.value
    return Happening(
        id=happening_id(at, kind, what, node.incarnation),
        type=f"{kind}.{what}",
        at=at,
        subject=show("wrk" if kind == "worker" else "nod", node.incarnation),
        data={"name": node.name, "slots": node.slots},
    )
