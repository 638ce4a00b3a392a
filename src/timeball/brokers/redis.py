"""Redis as the broker: an inbox is a sorted set, its score the rank, so the order is exact.

One round trip publishes a batch; one `BZMPOP` (Redis 7) waits and takes a batch. A ticket published twice is there once.
An inbox that was not written to for an hour expires.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any
from uuid import UUID

from redis import exceptions
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from timeball.brokers.base import Ticket, rank_number, rank_of
from timeball.domain.values.ids import ExecutionId
from timeball.errors import BrokerUnavailable, SettingsError

_CONNECT_SECONDS = 3.0
# A server that does not answer for so long, beyond the time it was asked to wait, is gone.
_PATIENCE_SECONDS = 5.0
_KEEP_SECONDS = 3600
_BATCH = 1_000
_CONNECTIONS = 4
# The errors of a server in cluster mode; they name slots and addresses, but no reason.
_CLUSTER_ERRORS = (exceptions.AskError, exceptions.ClusterDownError, exceptions.MovedError, exceptions.TryAgainError)
_PROBE_TICKET = Ticket(ExecutionId(UUID(int=0)), "", rank_of(0))


class RedisBroker:
    """Sorted sets under one prefix."""

    kind = "redis"
    carries_tickets = True

    def __init__(self, url: str, namespace: str) -> None:
        self._prefix = f"timeball:{namespace}:"
        self._url = url
        self._clients: dict[float, Any] = {}
        try:
            self._new_pool(0).make_connection()
        except (ValueError, TypeError, exceptions.RedisError) as error:
            raise SettingsError([f"TIMEBALL_BROKER_URL cannot be used: {error}"]) from error

    async def publish(self, inbox: str, tickets: Sequence[Ticket]) -> None:
        """Put tickets into an inbox; returns when the server has them."""
        key = self._prefix + inbox
        async with self._client(0) as client, client.pipeline(transaction=False) as pipeline:
            for first in range(0, len(tickets), _BATCH):
                batch = tickets[first : first + _BATCH]
                pipeline.zadd(key, {_member(ticket): rank_number(ticket.rank) for ticket in batch})
            pipeline.expire(key, _KEEP_SECONDS)
            await pipeline.execute()

    async def receive(self, inbox: str, limit: int, wait: timedelta) -> list[Ticket]:
        """Take up to *limit* tickets, the most urgent first."""
        # To Redis, 0 means to wait for ever.
        seconds = max(wait.total_seconds(), 0.001)
        async with self._client(seconds) as client:
            reply = await client.bzmpop(seconds, 1, [self._prefix + inbox], min=True, count=limit)
        pairs = reply[1] if reply else ()
        read = (_ticket(member, score) for member, score in pairs)
        return sorted((ticket for ticket in read if ticket is not None), key=lambda ticket: ticket.rank)

    async def check(self) -> None:
        """Publish a ticket to an inbox that no worker reads: a server that is full or a replica would still answer a PING."""
        await self.publish("probe", [_PROBE_TICKET])

    async def close(self) -> None:
        """Give all connections back."""
        clients, self._clients = self._clients, {}
        for client in clients.values():
            await client.aclose()

    @asynccontextmanager
    async def _client(self, wait: float) -> AsyncIterator[Any]:
        """A client for commands that may take so long; BrokerUnavailable, and new connections next time, if one fails."""
        client = self._known_client(wait)
        try:
            yield client
        except (exceptions.RedisError, OSError) as error:
            # The name may lead to another server by now, and this one may have become a replica.
            with suppress(exceptions.RedisError, OSError):
                await client.connection_pool.disconnect()
            raise BrokerUnavailable(f"Redis: {_reason(error)}") from error

    def _known_client(self, wait: float) -> Any:
        """A client for each time to wait, with connections of its own: a blocking command occupies its connection."""
        if wait not in self._clients:
            self._clients[wait] = Redis.from_pool(self._new_pool(wait))
        return self._clients[wait]

    def _new_pool(self, wait: float) -> Any:
        return BlockingConnectionPool.from_url(
            self._url,
            max_connections=_CONNECTIONS,
            socket_connect_timeout=_CONNECT_SECONDS,
            socket_timeout=wait + _PATIENCE_SECONDS,
            socket_keepalive=True,
            # The caller retries, and reports it meanwhile.
            retry=Retry(NoBackoff(), 0),
        )


def _reason(error: Exception) -> str:
    if isinstance(error, _CLUSTER_ERRORS):
        return (
            f"this server is part of a Redis Cluster ({type(error).__name__}: {error}), which Timeball does not support; "
            "give the address of a Redis with cluster mode off"
        )
    return str(error) or type(error).__name__


def _member(ticket: Ticket) -> bytes:
    return ticket.id.bytes + ticket.queue.encode()


def _ticket(member: bytes, score: str | bytes | float) -> Ticket | None:
    """A ticket, or None for a member that is no ticket."""
    try:
        return Ticket(ExecutionId(UUID(bytes=member[:16])), member[16:].decode(), rank_of(int(float(score))))
    except (ValueError, OverflowError):
        return None
