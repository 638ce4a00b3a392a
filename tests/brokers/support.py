"""Brokers on real servers, and ways to do them harm."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol
from uuid import uuid4

import aio_pika
from redis.asyncio import Redis

from tests.support.broker_servers import Rabbitmq
from tests.support.pace import patience
from timeball.brokers.base import Broker, Ticket
from timeball.brokers.rabbitmq import RabbitmqBroker
from timeball.brokers.redis import RedisBroker
from timeball.env import SystemClock
from timeball.errors import BrokerUnavailable


class BrokerServer(Protocol):
    """A server that can be asked and harmed."""

    namespace: str

    def url(self) -> str: ...

    def make(self, namespace: str | None = None) -> Broker: ...

    async def put_rubbish(self, inbox: str) -> None: ...

    async def cut_connections(self) -> None: ...

    async def lose_everything(self) -> None: ...

    async def delete_inbox(self, inbox: str) -> None: ...


class RedisServer:
    """Redis, and what a test does to it; every test has a namespace of its own."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.namespace = uuid4().hex[:12]

    def url(self) -> str:
        return f"redis://127.0.0.1:{self._port}/0"

    def make(self, namespace: str | None = None) -> Broker:
        return RedisBroker(self.url(), namespace or self.namespace)

    async def put_rubbish(self, inbox: str) -> None:
        await self.ask("ZADD", f"timeball:{self.namespace}:{inbox}", "0", "rubbish")

    async def cut_connections(self) -> None:
        await self.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    async def lose_everything(self) -> None:
        await self.ask("FLUSHALL")

    async def delete_inbox(self, inbox: str) -> None:
        await self.ask("DEL", f"timeball:{self.namespace}:{inbox}")

    async def ask(self, *command: str) -> Any:
        async with Redis.from_url(self.url()) as redis:
            return await redis.execute_command(*command)


class RabbitmqServer:
    """RabbitMQ, and what a test does to it."""

    def __init__(self, server: Rabbitmq) -> None:
        self._server = server
        self._queues: list[str] = []
        self.namespace = uuid4().hex[:12]

    def url(self) -> str:
        return self._server.url()

    def make(self, namespace: str | None = None) -> Broker:
        return RabbitmqBroker(self.url(), namespace or self.namespace, SystemClock())

    async def put_rubbish(self, inbox: str) -> None:
        async with await aio_pika.connect(self.url()) as connection:
            channel = await connection.channel()
            rubbish = aio_pika.Message(b"rubbish", priority=10)
            await channel.default_exchange.publish(rubbish, self._queue_name(inbox))

    async def cut_connections(self) -> None:
        await asyncio.to_thread(self._server.control, "close_all_connections", "by a test")

    async def lose_everything(self) -> None:
        # Asked once: the control program takes seconds to start.
        if not self._queues:
            listed = await asyncio.to_thread(self._server.control, "list_queues", "--silent", "name")
            self._queues = [name for name in listed.split() if name.startswith("timeball.")]
        async with await aio_pika.connect(self.url()) as connection:
            for name in self._queues:
                # Queues of other tests expire while they are unused; asking for such a queue closes the channel.
                with suppress(aio_pika.exceptions.ChannelNotFoundEntity):
                    channel = await connection.channel()
                    await (await channel.get_queue(name)).purge()

    async def delete_inbox(self, inbox: str) -> None:
        async with await aio_pika.connect(self.url()) as connection:
            await (await connection.channel()).queue_delete(self._queue_name(inbox))

    def _queue_name(self, inbox: str) -> str:
        return RabbitmqBroker(self.url(), self.namespace, SystemClock()).queue_name(inbox)


async def trying(verb: str, broker: Broker, *arguments: object) -> list[Ticket]:
    """Call a verb as the engine does: again and again, until the server can do it."""
    async with asyncio.timeout(patience(30)):
        while True:
            try:
                found: list[Ticket] | None = await getattr(broker, verb)(*arguments)
                return found or []
            except BrokerUnavailable:
                await asyncio.sleep(0.05)


@contextmanager
def unreachable_broker(kind: str, port: int) -> Iterator[Broker]:
    """A broker whose server is not there."""
    if kind == "redis":
        yield RedisBroker(f"redis://:canary@127.0.0.1:{port}/0", "x")
    else:
        yield RabbitmqBroker(f"amqp://user:canary@127.0.0.1:{port}/", "x", SystemClock())
