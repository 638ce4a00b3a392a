"""RabbitMQ as the broker: an inbox is a classic priority queue that is not durable, a ticket a transient message."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

import aio_pika
from aio_pika import exceptions
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage, AbstractQueue
from aiormq import spec

from timeball.brokers.base import Ticket, rank_number, rank_of
from timeball.domain.values.ids import ExecutionId
from timeball.env import Clock
from timeball.errors import BrokerUnavailable

# Tickets as messages of RabbitMQ, and ranks as its levels.

LEVELS = 10
_LEVEL = timedelta(seconds=120)


def level_of(ticket: Ticket, now: datetime) -> int:
    """How urgent a ticket is to RabbitMQ, from 0 to 10: one level for each two minutes that its rank lies in the past."""
    return max(0, min((now - ticket.rank) // _LEVEL, LEVELS))


def message_of(ticket: Ticket, level: int) -> aio_pika.Message:
    """A ticket on its way. Not persistent: one that a restart loses is published again."""
    body = ticket.id.bytes + rank_number(ticket.rank).to_bytes(8, "big", signed=True) + ticket.queue.encode()
    return aio_pika.Message(body, priority=level)


def ticket_of(body: bytes) -> Ticket | None:
    """A ticket, or None for a message that is no ticket."""
    try:
        rank = rank_of(int.from_bytes(body[16:24], "big", signed=True))
        return Ticket(ExecutionId(UUID(bytes=body[:16])), body[24:].decode(), rank)
    except (ValueError, OverflowError):
        return None


# RabbitMQ as the broker: an inbox is a classic queue with priorities that is not durable, a ticket a message that needs no disk.
#
# Classic, whatever the virtual host makes by default: quorum queues have no levels before RabbitMQ 4, and two since. Not durable: when a
# cluster loses the node that has the queue, it is declared anew on another, while a durable one waits for its node to come back. Servers
# that do not permit such queues (`transient_nonexcl_queues`) say so once, and get durable ones. The name of a queue has a digest of how
# it is declared, so releases that declare queues in different ways do not meet in one.
#
# RabbitMQ knows levels, not ranks. A ticket's level is how urgent it is when it is published: one level for each 120
# seconds that its rank lies in the past, from 0 to 10. A rank is `run_at` minus 12 seconds for each point of priority, so
# ten points are a level, and so are two minutes of waiting. Within a level the order is that of publication.
#
# A worker consumes while it has free slots: the prefetch is their number, a ticket is acknowledged when the worker takes it, and
# tickets that were delivered to a worker without a slot go back for other workers.

# The packages log every cut connection with a stack. This broker reports it itself; a program that wants theirs configures logging.
for _package in ("aiormq", "aio_pika"):
    logging.getLogger(_package).addHandler(logging.NullHandler())

_SECONDS = 5.0
# A connection without any answer for three times as long is given up.
_HEARTBEAT_SECONDS = 5
_BATCH = 500
_ARGUMENTS: dict[str, Any] = {
    "x-queue-type": "classic",
    "x-max-priority": LEVELS,
    # Queues of workers that are gone for good disappear by themselves.
    "x-expires": 3_600_000,
    "x-message-ttl": 900_000,
    "x-max-length": 100_000,
}


class RabbitmqBroker:
    """Priority queues under one prefix; one connection to publish, one to receive."""

    # Two, because the server stops reading from connections that publish when it runs out of memory.

    kind = "rabbitmq"
    carries_tickets = True

    def __init__(self, url: str, namespace: str, clock: Clock) -> None:
        self._prefix = f"timeball.{namespace}."
        self._is_durable = False
        self._clock = clock
        self._publishing = _Connection(url)
        self._receiving = _Connection(url)
        self._declared: set[str] = set()
        self._consumers: dict[str, TicketConsumer] = {}

    def queue_name(self, inbox: str) -> str:
        """What the queue of an inbox is called."""
        declared = json.dumps([self._is_durable, _ARGUMENTS], sort_keys=True)
        return f"{self._prefix}{blake2b(declared.encode(), digest_size=4).hexdigest()}.{inbox}"

    async def _declare(self, channel: AbstractChannel, name: str) -> AbstractQueue:
        try:
            return await channel.declare_queue(name, durable=self._is_durable, arguments=_ARGUMENTS, timeout=_SECONDS)
        except exceptions.AMQPError as error:
            # The connection is gone with it; the next one asks for a queue that the server permits.
            self._is_durable = self._is_durable or "transient_nonexcl_queues" in str(error)
            raise

    async def publish(self, inbox: str, tickets: Sequence[Ticket]) -> None:
        """Put tickets into an inbox; returns when the server has confirmed them."""
        name = self.queue_name(inbox)
        async with self._publishing.channel() as (channel, is_new):
            if is_new:
                self._declared.clear()
            if name not in self._declared:
                await self._declare(channel, name)
                self._declared.add(name)
            now = self._clock.now()
            for first in range(0, len(tickets), _BATCH):
                async with asyncio.timeout(_SECONDS):
                    await asyncio.gather(
                        *(
                            channel.default_exchange.publish(message_of(ticket, level_of(ticket, now)), name)
                            for ticket in tickets[first : first + _BATCH]
                        )
                    )

    async def receive(self, inbox: str, limit: int, wait: timedelta) -> list[Ticket]:
        """Take up to *limit* tickets, the most urgent first."""
        async with self._receiving.channel() as (channel, is_new):
            if is_new:
                self._forget_consumers()
            consumer = self._consumers.get(inbox)
            if consumer is None:
                queue = await self._declare(channel, self.queue_name(inbox))
                consumer = self._consumers[inbox] = TicketConsumer(channel, queue)
            return await consumer.take(limit, wait)

    async def check(self) -> None:
        """Publish a message to a queue that does not exist; the server confirms it all the same."""
        async with self._publishing.channel() as (channel, is_new), asyncio.timeout(_SECONDS):
            if is_new:
                self._declared.clear()
            await channel.default_exchange.publish(aio_pika.Message(b""), f"{self._prefix}probe", mandatory=False)

    async def close(self) -> None:
        """Give all connections back; the server takes back what was delivered and not taken."""
        self._forget_consumers()
        for link in (self._publishing, self._receiving):
            await link.close()

    def _forget_consumers(self) -> None:
        for consumer in self._consumers.values():
            consumer.forget()
        self._consumers.clear()


class _Connection:
    """A connection with one channel, made when needed and thrown away when anything is wrong with it."""

    def __init__(self, url: str) -> None:
        self._url = _with_heartbeat(url)
        self._connection: AbstractConnection | None = None
        self._channel: AbstractChannel | None = None
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def channel(self) -> AsyncIterator[tuple[AbstractChannel, bool]]:
        """The channel, and whether it is a new one; BrokerUnavailable, and a new one next time, if it fails."""
        try:
            async with self._lock:
                channel = self._channel
                is_new = channel is None or channel.is_closed
                if channel is None or is_new:
                    channel = await self._open()
            yield channel, is_new
        except (*exceptions.CONNECTION_EXCEPTIONS, TimeoutError) as error:
            # One of them is StopAsyncIteration, when a connection ends while it is being opened: no generator may be left by that.
            await self.close()
            silence = "it did not answer in time" if isinstance(error, TimeoutError) else "the connection has ended"
            reason = str(error) or silence
            raise BrokerUnavailable(f"RabbitMQ: {type(error).__name__}: {reason}") from error

    async def _open(self) -> AbstractChannel:
        await self.close()
        async with asyncio.timeout(_SECONDS):
            self._connection = await aio_pika.connect(self._url, timeout=_SECONDS)
            # A ticket for a queue that is gone comes back as an error: the queue has to be declared again.
            self._channel = await self._connection.channel(publisher_confirms=True, on_return_raises=True)
        return self._channel

    async def close(self) -> None:
        connection, self._connection, self._channel = self._connection, None, None
        if connection is None:
            return
        try:
            async with asyncio.timeout(1):
                await connection.close()
        except Exception:
            # The connection is discarded because it does not work; an error of closing it says nothing new.
            return


def _with_heartbeat(url: str) -> str:
    """The URL with our heartbeat, unless it names its own: by default a server may be silent for three minutes."""
    query = urlsplit(url).query
    if "heartbeat" in parse_qs(query):
        return url
    return f"{url}{'&' if query else '?'}heartbeat={_HEARTBEAT_SECONDS}"


_CONSUMER_SECONDS = 5.0
# How long a consumer may stay while its tickets are not taken: other workers could run them.
_IDLE_SECONDS = 0.05
_LARGEST_PREFETCH = 2_000


class TicketConsumer:
    """Tickets delivered to this process; consumes only while the worker takes them.

    A ticket is acknowledged when it is taken. A ticket that was delivered to a worker without a slot goes back after a moment,
    together with the consumer, so that another worker gets it. When the server ends a consumer by itself, because its queue was
    deleted or the node that had it is gone, `take` raises, and the caller starts again.
    """

    def __init__(self, channel: AbstractChannel, queue: AbstractQueue) -> None:
        self._channel = channel
        self._queue = queue
        self._tag: str | None = None
        self._tags = 0
        self._prefetch = 0
        self._delivered: deque[AbstractIncomingMessage] = deque()
        self._has_some = asyncio.Event()
        self._idle: asyncio.TimerHandle | None = None
        self._lock = asyncio.Lock()
        self._failure: exceptions.ChannelClosed | None = None
        self._leaving: asyncio.Future[None] | None = None
        channel.close_callbacks.add(self._on_closed)

    async def take(self, limit: int, wait: timedelta) -> list[Ticket]:
        """Up to *limit* tickets, acknowledged; none after *wait*."""
        self._stay()
        try:
            async with self._lock, asyncio.timeout(_CONSUMER_SECONDS):
                await self._consume(min(limit, _LARGEST_PREFETCH))
            await self._wait_for_some(wait)
            taken = [self._delivered.popleft() for _ in range(min(limit, len(self._delivered)))]
            if taken:
                await taken[-1].ack(multiple=True)
        finally:
            self._leave_soon()
        tickets = (ticket_of(message.body) for message in taken)
        return [ticket for ticket in tickets if ticket is not None]

    async def _consume(self, prefetch: int) -> None:
        """Have a consumer whose prefetch is about *prefetch*."""
        if self._tag is not None and prefetch <= 2 * self._prefetch:
            return
        await self._give_back()
        await self._channel.set_qos(prefetch_count=prefetch)
        self._prefetch = prefetch
        self._tags += 1
        self._tag = f"{self._tags}"
        underlay = await self._channel.get_underlay_channel()
        underlay.on_consumer_cancel_callbacks.add(self._on_cancelled)
        await self._queue.consume(self._on_delivery, consumer_tag=self._tag)

    async def _wait_for_some(self, wait: timedelta) -> None:
        if self._failure is None and not self._delivered:
            self._has_some.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait.total_seconds()):
                    await self._has_some.wait()
        if self._failure is not None and not self._delivered:
            raise self._failure

    async def _on_delivery(self, message: AbstractIncomingMessage) -> None:
        if message.consumer_tag != self._tag:
            # The message was under way when its consumer was cancelled.
            await message.nack(requeue=True)
            return
        self._delivered.append(message)
        self._has_some.set()

    def _on_closed(self, _channel: object, error: BaseException | None = None) -> None:
        self._fail(f"the channel was closed: {error}" if error else "the channel was closed")

    def _on_cancelled(self, frame: spec.Basic.Cancel) -> None:
        if frame.consumer_tag == self._tag:
            self._fail("the queue has gone")

    def _fail(self, reason: str) -> None:
        self._failure = exceptions.ChannelClosed(reason)
        self._has_some.set()

    def _stay(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def _leave_soon(self) -> None:
        self._stay()
        self._idle = asyncio.get_running_loop().call_later(_IDLE_SECONDS, self._begin_to_leave)

    def _begin_to_leave(self) -> None:
        self._leaving = asyncio.ensure_future(self._leave())

    async def _leave(self) -> None:
        try:
            async with self._lock, asyncio.timeout(_CONSUMER_SECONDS):
                if self._idle is not None:
                    await self._give_back()
        except (*exceptions.CONNECTION_EXCEPTIONS, TimeoutError):
            # The connection is gone, and the consumer with it; the next `take` finds out.
            return

    async def _give_back(self) -> None:
        """Stop consuming; what was delivered meanwhile goes back to the queue."""
        if self._tag is None:
            return
        tag, self._tag = self._tag, None
        await self._queue.cancel(tag)
        if self._delivered:
            last = self._delivered[-1]
            self._delivered.clear()
            await last.nack(multiple=True, requeue=True)

    def forget(self) -> None:
        """The channel is gone; so are the deliveries."""
        self._stay()
        self._delivered.clear()
