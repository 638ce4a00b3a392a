"""The rights that the docs give to Timeball's user are enough: the lines are taken from the page itself."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

from tests.brokers.support import RedisServer
from tests.support.broker_servers import Rabbitmq
from timeball.brokers.base import Broker, Ticket
from timeball.brokers.rabbitmq import RabbitmqBroker
from timeball.brokers.redis import RedisBroker
from timeball.domain.values.ids import ExecutionId
from timeball.env import SystemClock

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "redis-and-rabbitmq-highly-available.md"
TICKET = Ticket(ExecutionId(UUID(int=7)), "default", datetime(2026, 3, 2, tzinfo=UTC))


async def works(broker: Broker) -> None:
    await broker.check()
    await broker.publish("inbox", [TICKET])
    assert await broker.receive("inbox", 5, timedelta(seconds=30)) == [TICKET]
    await broker.close()


async def test_the_redis_user_of_the_docs_is_enough(redis_port: int) -> None:
    (line,) = re.findall(r"(?m)^ACL SETUSER .*$", PAGE.read_text())
    server = RedisServer(redis_port)

    await server.ask(*line.split())

    await works(RedisBroker(f"redis://timeball:password@127.0.0.1:{redis_port}/0", server.namespace))


async def test_the_rabbitmq_user_of_the_docs_is_enough(rabbitmq: Rabbitmq) -> None:
    page = PAGE.read_text()
    (rights,) = re.findall(r"set_permissions --vhost timeball timeball '(.*)' '(.*)' '(.*)'", page)
    commands = [
        ["add_vhost", "timeball"],
        ["add_user", "timeball", "password"],
        ["set_permissions", "--vhost", "timeball", "timeball", *rights],
    ]

    for command in commands:
        await asyncio.to_thread(rabbitmq.control, *command)

    url = f"amqp://timeball:password@127.0.0.1:{rabbitmq.port}/timeball"
    await works(RabbitmqBroker(url, "x", SystemClock()))
