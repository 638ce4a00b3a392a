"""PostgreSQL as the broker, which is the default: `ready` is the queue itself.

Whoever makes something ready also sends a hint (NOTIFY), and workers claim the most urgent rows in the same statement
that finds them. A ticket between the two could only cost time, so there is none: nothing is published, nothing received.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta

from timeball.broker.interface import Ticket


class PostgresBroker:
    """Carries nothing, because nothing needs to be carried."""

    kind = "postgresql"
    carries_tickets = False

    async def publish(self, inbox: str, tickets: Sequence[Ticket]) -> None:
        """What is ready is where the workers look already."""

    async def receive(self, inbox: str, limit: int, wait: timedelta) -> list[Ticket]:
        """No ticket ever comes."""
        await asyncio.sleep(wait.total_seconds())
        return []

    async def check(self) -> None:
        """Whether the database answers is the store's affair."""

    async def close(self) -> None:
        """There is nothing to close."""
