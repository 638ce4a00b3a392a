"""What a broker is, the list of brokers by the scheme of their address, and the health of a broker as a node sees it.

A broker carries tickets from the scheduler that saw an execution become ready to a worker that has a slot. A ticket proves nothing.
It may be lost, doubled, late or out of order: the worker that receives it claims the execution in PostgreSQL, where all promises
are kept. So a broker acknowledges on receipt, and needs no durable storage.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from typing import NamedTuple, Protocol
from urllib.parse import parse_qsl, urlsplit

from timeball.config.servers import BROKER_FILES
from timeball.config.settings import BROKER_SCHEMES
from timeball.domain.node import BrokerState, BrokerStatus
from timeball.domain.values.ids import ExecutionId
from timeball.env import Clock
from timeball.errors import SettingsError
from timeball.telemetry.events import BrokerLost, BrokerRecovered, BrokerSilent, Emit

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Ticket(NamedTuple):
    """Says that an execution is ready; the smallest *rank* is the most urgent."""

    id: ExecutionId
    queue: str
    rank: datetime


@dataclass(frozen=True, slots=True)
class Inbox:
    """The inbox of all workers that serve the same queues and have the same handlers; None stands for all queues."""

    queues: frozenset[str] | None
    handlers: frozenset[str]

    @classmethod
    def of(cls, queues: Iterable[str] | None, handlers: Iterable[str]) -> Inbox:
        """The inbox of a worker."""
        return cls(None if queues is None else frozenset(queues), frozenset(handlers))

    @property
    def name(self) -> str:
        """The same name for all workers that can stand in for each other, in whatever process it is computed."""
        queues = "*" if self.queues is None else "\n".join(sorted(self.queues))
        text = f"{queues}\0{chr(10).join(sorted(self.handlers))}"
        return blake2b(text.encode(), digest_size=8).hexdigest()

    def takes(self, queue: str, handler: str) -> bool:
        """Whether its workers could run an execution of this queue and handler."""
        return handler in self.handlers and (self.queues is None or queue in self.queues)


class Broker(Protocol):
    """Carries tickets. Every method raises BrokerUnavailable when the server cannot do it now, and may be called again."""

    @property
    def kind(self) -> str:
        """`postgresql`, `redis` or `rabbitmq`."""

    @property
    def carries_tickets(self) -> bool:
        """Whether tickets are published and received; without them workers claim straight from `ready`."""

    async def publish(self, inbox: str, tickets: Sequence[Ticket]) -> None:
        """Put tickets into an inbox; returns when the server has them."""

    async def receive(self, inbox: str, limit: int, wait: timedelta) -> list[Ticket]:
        """Take up to *limit* tickets, the most urgent first; waits for the first one, but no longer than *wait*.

        The server forgets what it returns: no other worker receives it, and nothing is acknowledged.
        """

    async def check(self) -> None:
        """Check whether tickets could be published now."""

    async def close(self) -> None:
        """Give all connections back."""


def rank_number(rank: datetime) -> int:
    """A rank as microseconds since 1970: whole numbers that a double holds exactly until the year 2255."""
    return (rank - _EPOCH) // _MICROSECOND


def rank_of(number: int) -> datetime:
    """A rank from its number."""
    return _EPOCH + number * _MICROSECOND


def _make_redis(url: str, namespace: str, _clock: Clock) -> Broker:
    from timeball.brokers.redis import RedisBroker

    return RedisBroker(url, namespace)


def _make_rabbitmq(url: str, namespace: str, clock: Clock) -> Broker:
    from timeball.brokers.rabbitmq import RabbitmqBroker

    return RabbitmqBroker(url, namespace, clock)


# All brokers, by the name that is also their extra (`pip install "timeball[redis]"`). Each imports its packages when it is used.
# `config.settings.BROKER_SCHEMES` says which schemes of an address mean which broker.
BROKERS: Mapping[str, Callable[[str, str, Clock], Broker]] = {"redis": _make_redis, "rabbitmq": _make_rabbitmq}


def make_broker(url: str, namespace: str, clock: Clock) -> Broker:
    """The broker at an address, not yet connected; SettingsError if its package is not installed, or its URL cannot be used."""
    _check_tls_files(url)
    name = BROKER_SCHEMES[urlsplit(url).scheme]
    try:
        return BROKERS[name](url, namespace, clock)
    except ImportError as error:
        problem = f'TIMEBALL_BROKER_URL is set, but {error.name} is not installed: pip install "timeball[{name}]"'
        raise SettingsError([problem]) from None


def _check_tls_files(url: str) -> None:
    """The clients say that there is no such file, but not which one."""
    for name, path in parse_qsl(urlsplit(url).query):
        if name in BROKER_FILES and not os.access(path, os.R_OK):
            raise SettingsError(
                [f'TIMEBALL_BROKER_URL: {name} names the file "{path}", which cannot be read by this account']
            )


class PostgresBroker:
    """The default: `ready` itself is the queue.

    Each statement that makes an execution ready is followed by a wake-up (NOTIFY), and workers claim the most urgent rows in the
    statement that finds them. A ticket between the two could only cost time, so nothing is published and nothing received.
    """

    kind = "postgresql"
    carries_tickets = False

    async def publish(self, inbox: str, tickets: Sequence[Ticket]) -> None:
        """Workers look at `ready` anyway."""

    async def receive(self, inbox: str, limit: int, wait: timedelta) -> list[Ticket]:
        """No ticket ever arrives."""
        await asyncio.sleep(wait.total_seconds())
        return []

    async def check(self) -> None:
        """The store checks the database."""

    async def close(self) -> None:
        """There is nothing to close."""


_MAX_ERROR_LENGTH = 500


class BrokerHealth:
    """The state of the broker as this node sees it: emitted when it changes, reported with every renewal of the lease.

    A broker is down until it has been reached.
    """

    def __init__(self, emit: Emit, kind: str) -> None:
        self._emit = emit
        self._kind = kind
        self._has_spoken = False
        self.status = BrokerStatus(BrokerState.DOWN, "not reached yet")

    @classmethod
    def of(cls, emit: Emit, broker: Broker | None) -> BrokerHealth | None:
        """The health of a broker that carries tickets; None without one."""
        return cls(emit, broker.kind) if broker is not None and broker.carries_tickets else None

    @property
    def works(self) -> bool:
        """Whether tickets bring ready executions."""
        return self.status.state is BrokerState.WORKS

    @property
    def is_down(self) -> bool:
        """Whether the broker cannot be reached."""
        return self.status.state is BrokerState.DOWN

    def found(self) -> None:
        """The broker carries tickets, or could."""
        if self._becomes(BrokerState.WORKS):
            self._emit(BrokerRecovered(self._kind))

    def lost(self, error: Exception) -> None:
        """The broker cannot be reached."""
        text = str(error)[:_MAX_ERROR_LENGTH]
        if self._becomes(BrokerState.DOWN, text):
            self._emit(BrokerLost(self._kind, text))

    def silent(self) -> None:
        """An execution was ready for long, and no ticket came."""
        if self._becomes(BrokerState.SILENT):
            self._emit(BrokerSilent(self._kind))

    def _becomes(self, state: BrokerState, error: str | None = None) -> bool:
        """Take note of a state; True if it is news."""
        is_news = state is not self.status.state or not self._has_spoken
        self._has_spoken = True
        self.status = BrokerStatus(state, error)
        return is_news
