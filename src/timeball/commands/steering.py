"""What can be done to queues and nodes."""

from __future__ import annotations

from typing import Any

from timeball.commands.actor import LOCAL, Actor
from timeball.commands.base import Base
from timeball.domain.ids import Incarnation
from timeball.domain.text import check_label
from timeball.errors import InvalidInput, NotFound


class Steering(Base):
    """Pause, resume and limit queues; drain nodes."""

    async def pause_queue(self, name: str, actor: Actor = LOCAL) -> None:
        """Let nothing of a queue be claimed."""
        await self._set_queue(name, actor, "queue.pause", is_paused=True)

    async def resume_queue(self, name: str, actor: Actor = LOCAL) -> None:
        """Let a paused queue go on."""
        await self._set_queue(name, actor, "queue.resume", is_paused=False)

    async def limit_queue(self, name: str, max_running: int | None, actor: Actor = LOCAL) -> None:
        """Let at most so many of a queue run together, across all workers; None takes the limit away."""
        if max_running is not None and max_running < 1:
            raise InvalidInput(
                f"max_running is {max_running}, expected at least 1",
                field="max_running",
                hint="pause the queue instead",
            )
        await self._set_queue(name, actor, "queue.limit", max_running=max_running)

    async def purge_queue(self, name: str, actor: Actor = LOCAL) -> int:
        """Cancel everything that is queued there and has not begun; returns how much that was. Schedules go on."""
        check_label(name, "queue")
        return await self._store.jobs.purge(name, actor.reason or f"purged by {actor.name}", actor.entry)

    async def _set_queue(self, name: str, actor: Actor, action: str, **wanted: Any) -> None:
        check_label(name, "queue")
        await self._store.jobs.set_queue(name, **wanted, reason=actor.reason, audit=actor.entry, action=action)

    async def drain_node(self, incarnation: Incarnation, actor: Actor = LOCAL) -> None:
        """Ask a worker or scheduler to leave in good order."""
        if not await self._store.jobs.drain_node(incarnation, actor.entry):
            raise NotFound("node", incarnation)
