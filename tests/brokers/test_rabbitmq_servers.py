"""RabbitMQ as others run it: quorum queues by default, a cluster that loses a node, queues that are not permitted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import aio_pika
import pytest
from aiormq.exceptions import ConnectionInternalError

from tests.support.broker_servers import Rabbitmq, running_rabbitmq
from tests.support.servers import ServiceMissing, give_up_on
from timeball.brokers.base import Ticket
from timeball.brokers.rabbitmq import RabbitmqBroker
from timeball.domain.values.ids import ExecutionId
from timeball.env import SystemClock
from timeball.errors import BrokerUnavailable

WAIT = timedelta(seconds=10)


def ticket() -> Ticket:
    return Ticket(ExecutionId(uuid4()), "default", datetime.now(UTC))


async def carried(broker: RabbitmqBroker) -> bool:
    """Whether a ticket that is published is received."""
    sent = ticket()
    await broker.publish("inbox", [sent])
    return sent.id in {found.id for found in await broker.receive("inbox", 100, WAIT)}


@pytest.fixture
async def brokers() -> AsyncIterator[Any]:
    made: list[RabbitmqBroker] = []

    def make(url: str, namespace: str) -> RabbitmqBroker:
        made.append(RabbitmqBroker(url, namespace, SystemClock()))
        return made[-1]

    yield make
    for broker in made:
        await broker.close()


async def test_a_virtual_host_that_makes_quorum_queues_by_default_can_be_used(rabbitmq: Rabbitmq, brokers: Any) -> None:
    vhost = uuid4().hex
    await asyncio.to_thread(rabbitmq.control, "add_vhost", vhost, "--default-queue-type", "quorum")
    await asyncio.to_thread(rabbitmq.control, "set_permissions", "--vhost", vhost, "guest", ".*", ".*", ".*")

    assert await carried(brokers(rabbitmq.url(vhost), "x"))


async def test_a_queue_that_was_declared_in_another_way_is_not_in_the_way(rabbitmq: Rabbitmq, brokers: Any) -> None:
    """As another release may have left it."""
    broker = brokers(rabbitmq.url(), uuid4().hex)
    async with await aio_pika.connect(rabbitmq.url()) as connection:
        channel = await connection.channel()
        await channel.declare_queue(f"{broker._prefix}inbox", durable=True)

        assert await carried(broker)


async def test_a_server_that_permits_no_transient_queues_gets_durable_ones(
    rabbitmq: Rabbitmq, brokers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RabbitMQ 3.10 permits them; what later ones say to them is played here."""
    declare = aio_pika.Channel.declare_queue

    async def refuse(channel: Any, name: str, *, durable: bool, **options: Any) -> Any:
        if not durable:
            raise ConnectionInternalError("Feature `transient_nonexcl_queues` is deprecated, and not permitted")
        return await declare(channel, name, durable=durable, **options)

    monkeypatch.setattr(aio_pika.Channel, "declare_queue", refuse)
    broker = brokers(rabbitmq.url(), uuid4().hex)
    before = broker.queue_name("inbox")

    with pytest.raises(BrokerUnavailable, match="transient_nonexcl_queues"):
        await broker.publish("inbox", [ticket()])

    assert await carried(broker)
    assert broker.queue_name("inbox") != before


@pytest.fixture
def cluster() -> Iterator[tuple[Rabbitmq, Rabbitmq]]:
    """Two nodes that are one cluster."""
    with ExitStack() as stack:
        try:
            first = stack.enter_context(running_rabbitmq())
            second = stack.enter_context(running_rabbitmq(beside=first))
        except ServiceMissing as error:
            give_up_on(error)
            raise
        second.control("stop_app")
        second.control("join_cluster", first.node)
        second.control("start_app")
        yield first, second


@pytest.mark.slow
async def test_a_cluster_that_loses_the_node_of_a_queue_carries_tickets_again(
    cluster: tuple[Rabbitmq, Rabbitmq], brokers: Any
) -> None:
    first, second = cluster
    at_first, at_second = brokers(first.url(), "x"), brokers(second.url(), "x")
    assert await carried(at_first), "the queue is where it was declared"
    assert await carried(at_second)

    first.kill()

    async def is_carried_again() -> None:
        while True:
            try:
                if await carried(at_second):
                    return
            except BrokerUnavailable:
                continue

    await asyncio.wait_for(is_carried_again(), 60)
