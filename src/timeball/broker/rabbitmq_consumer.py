"""A consumer that is there while somebody asks: its prefetch is what there is room for.

A ticket is acknowledged when it is taken. One that was delivered to a worker which then has no room goes back after a
moment, together with the consumer, so that another worker gets it. When the server ends a consumer by itself, because
its queue was deleted or the node that had it is gone, whoever asks is told, and begins anew.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from datetime import timedelta

from aio_pika import exceptions
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage, AbstractQueue
from aiormq import spec

from timeball.broker.interface import Ticket
from timeball.broker.rabbitmq_tickets import ticket_of

_SECONDS = 5.0
# How long a consumer may stay without anybody asking for its tickets: others could run them.
_IDLE_SECONDS = 0.05
_LARGEST_PREFETCH = 2_000


class Consumer:
    """Tickets delivered to this process; consumes only while somebody asks."""

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
            async with self._lock, asyncio.timeout(_SECONDS):
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
        """Have a consumer whose prefetch is about what was asked for."""
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
            # It was under way when its consumer went.
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
            async with self._lock, asyncio.timeout(_SECONDS):
                if self._idle is not None:
                    await self._give_back()
        except (*exceptions.CONNECTION_EXCEPTIONS, TimeoutError):
            # Then the connection is gone, and with it the consumer; whoever asks next finds out.
            return

    async def _give_back(self) -> None:
        """Consume no longer; what was delivered meanwhile goes to others."""
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
