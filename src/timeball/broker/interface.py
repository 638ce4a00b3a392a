"""What a broker is: it carries tickets from the scheduler that saw an execution become ready to a worker that has room.

A ticket is a hint. It may be lost, doubled, late or out of order: whoever receives one claims the execution in
PostgreSQL, where all promises are kept. So a broker acknowledges on receipt, and needs no memory of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from typing import NamedTuple, Protocol

from timeball.domain.ids import ExecutionId

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Ticket(NamedTuple):
    """Says that an execution is ready; the smallest *rank* is the most urgent."""

    id: ExecutionId
    queue: str
    rank: datetime


@dataclass(frozen=True, slots=True)
class Inbox:
    """Where workers that serve the same queues and know the same handlers look for tickets; no queues means all."""

    queues: frozenset[str] | None
    handlers: frozenset[str]

    @classmethod
    def of(cls, queues: Iterable[str] | None, handlers: Iterable[str]) -> Inbox:
        """The inbox of a worker."""
        return cls(None if queues is None else frozenset(queues), frozenset(handlers))

    @property
    def name(self) -> str:
        """The same for all workers that can stand in for each other, whichever process computes it."""
        queues = "*" if self.queues is None else "\n".join(sorted(self.queues))
        text = f"{queues}\0{chr(10).join(sorted(self.handlers))}"
        return blake2b(text.encode(), digest_size=8).hexdigest()

    def takes(self, queue: str, handler: str) -> bool:
        """Whether its workers could run this."""
        return handler in self.handlers and (self.queues is None or queue in self.queues)


class Broker(Protocol):
    """Carries tickets. Every verb raises BrokerUnavailable when the server cannot do it just now, and may be called again."""

    @property
    def kind(self) -> str:
        """`postgresql`, `redis` or `rabbitmq`."""

    @property
    def carries_tickets(self) -> bool:
        """Whether there is anything to publish and receive; without, workers claim straight from `ready`."""

    async def publish(self, inbox: str, tickets: Sequence[Ticket]) -> None:
        """Put tickets into an inbox; returns when the server has them."""

    async def receive(self, inbox: str, limit: int, wait: timedelta) -> list[Ticket]:
        """Take up to *limit* tickets, the most urgent first; waits for the first one, but no longer than *wait*.

        What was returned is gone from the server: nobody else receives it, and nothing is to be acknowledged.
        """

    async def check(self) -> None:
        """Ask whether tickets could be published now."""

    async def close(self) -> None:
        """Give all connections back."""


def rank_number(rank: datetime) -> int:
    """A rank as microseconds since 1970: whole numbers that a double holds exactly until the year 2255."""
    return (rank - _EPOCH) // _MICROSECOND


def rank_of(number: int) -> datetime:
    """A rank from its number."""
    return _EPOCH + number * _MICROSECOND
