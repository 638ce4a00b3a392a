"""What a broker is, which one an address means, and its health as a node sees it; PostgreSQL, the default, carries no tickets."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from typing import NamedTuple, Protocol
from urllib.parse import parse_qsl, urlsplit

from timeball.clock import Clock
from timeball.config.servers import BROKER_FILES
from timeball.domain.node import BrokerState, BrokerStatus
from timeball.domain.values.ids import ExecutionId
from timeball.errors import SettingsError
from timeball.telemetry.events import BrokerLost, BrokerRecovered, BrokerSilent, Emit

# What a broker is: it carries tickets from the scheduler that saw an execution become ready to a worker that has room.
#
# A ticket is a hint. It may be lost, doubled, late or out of order: whoever receives one claims the execution in
# PostgreSQL, where all promises are kept. So a broker acknowledges on receipt, and needs no memory of its own.

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


# The address of a broker -> the broker; its packages are imported only when it is used.


def make_broker(url: str, namespace: str, clock: Clock) -> Broker:
    """The broker at an address, not yet connected; SettingsError if its package is not installed, or its URL cannot be used."""
    _check_tls_files(url)
    try:
        if url.startswith("redis"):
            from timeball.brokers.redis import RedisBroker

            return RedisBroker(url, namespace)
        from timeball.brokers.rabbitmq import RabbitmqBroker

        return RabbitmqBroker(url, namespace, clock)
    except ImportError as error:
        extra = "redis" if url.startswith("redis") else "rabbitmq"
        problem = f'TIMEBALL_BROKER_URL is set, but {error.name} is not installed: pip install "timeball[{extra}]"'
        raise SettingsError([problem]) from None


def _check_tls_files(url: str) -> None:
    """The clients say that there is no such file; not which."""
    for name, path in parse_qsl(urlsplit(url).query):
        if name in BROKER_FILES and not os.access(path, os.R_OK):
            raise SettingsError(
                [f'TIMEBALL_BROKER_URL: {name} names the file "{path}", which cannot be read by this account']
            )


# PostgreSQL as the broker, which is the default: `ready` is the queue itself.
#
# Whoever makes something ready also sends a hint (NOTIFY), and workers claim the most urgent rows in the same statement
# that finds them. A ticket between the two could only cost time, so there is none: nothing is published, nothing received.


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


# How this node's broker does: said when it changes, shown with every renewal of the lease.

_MAX_ERROR_LENGTH = 500


class BrokerHealth:
    """Knows the state of the broker as this node sees it; until it has been reached, it is down."""

    def __init__(self, emit: Emit, kind: str) -> None:
        self._emit = emit
        self._kind = kind
        self._has_spoken = False
        self.status = BrokerStatus(BrokerState.DOWN, "not reached yet")

    @property
    def works(self) -> bool:
        """Whether tickets bring what is ready."""
        return self.status.state is BrokerState.WORKS

    @property
    def is_down(self) -> bool:
        """Whether it cannot be reached."""
        return self.status.state is BrokerState.DOWN

    def found(self) -> None:
        """Tickets go through, or could."""
        if self._becomes(BrokerState.WORKS):
            self._emit(BrokerRecovered(self._kind))

    def lost(self, error: Exception) -> None:
        """Nothing goes through."""
        text = str(error)[:_MAX_ERROR_LENGTH]
        if self._becomes(BrokerState.DOWN, text):
            self._emit(BrokerLost(self._kind, text))

    def silent(self) -> None:
        """Something was ready for long, and no ticket came."""
        if self._becomes(BrokerState.SILENT):
            self._emit(BrokerSilent(self._kind))

    def _becomes(self, state: BrokerState, error: str | None = None) -> bool:
        """Whether this is news."""
        is_news = state is not self.status.state or not self._has_spoken
        self._has_spoken = True
        self.status = BrokerStatus(state, error)
        return is_news
