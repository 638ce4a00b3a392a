"""Servers that answer, and yet carry nothing: a queue that was deleted, a replica, a full memory. It is told, and heals by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from tests.brokers.support import BrokerServer, RedisServer, trying
from tests.support.broker_servers import Rabbitmq, running_redis
from tests.support.pace import patience
from tests.support.servers import ServiceMissing, give_up_on
from timeball.brokers.base import Broker, Ticket
from timeball.brokers.rabbitmq import RabbitmqBroker
from timeball.brokers.redis import RedisBroker
from timeball.domain.values.ids import ExecutionId
from timeball.env import SystemClock
from timeball.errors import BrokerUnavailable

SOON = timedelta(seconds=10)
TICKET = Ticket(ExecutionId(UUID(int=7)), "default", datetime(2026, 3, 2, tzinfo=UTC))


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    """A Redis that the test may change."""
    try:
        with running_redis() as port:
            yield RedisServer(port)
    except ServiceMissing as error:
        give_up_on(error)


async def test_a_receiver_whose_inbox_is_deleted_gets_later_tickets(
    broker: Broker, broker_server: BrokerServer
) -> None:
    """RabbitMQ cancels the consumer and says so once: a receiver that misses it would wait for ever."""
    publisher = broker_server.make()
    await publisher.publish("a", [TICKET])
    assert await broker.receive("a", 5, SOON) == [TICKET]
    waiting = asyncio.ensure_future(trying("receive", broker, "a", 5, 3 * SOON))
    await asyncio.sleep(0.1)

    await broker_server.delete_inbox("a")
    await asyncio.sleep(0.1)
    await trying("publish", publisher, "a", [TICKET])

    assert await waiting == [TICKET]
    await publisher.close()


async def test_a_ticket_for_an_inbox_that_is_gone_is_not_thought_to_be_out(
    broker: Broker, broker_server: BrokerServer
) -> None:
    await broker.publish("a", [TICKET])
    await broker_server.delete_inbox("a")

    await trying("publish", broker, "a", [TICKET])

    assert await trying("receive", broker, "a", 5, SOON) == [TICKET]


async def break_channel(broker: RabbitmqBroker, link: str) -> None:
    """Acknowledge what was never delivered: the server closes the channel, and leaves the connection."""
    channel = getattr(broker, link)._channel
    await (await channel.get_underlay_channel()).basic_ack(10_000_000)


async def test_a_channel_that_the_server_closes_in_the_middle_of_a_batch_costs_only_time(rabbitmq: Rabbitmq) -> None:
    broker = RabbitmqBroker(rabbitmq.url(), uuid4().hex, SystemClock())
    published = [TICKET._replace(id=ExecutionId(UUID(int=number))) for number in range(1, 401)]
    await broker.publish("a", published[:1])
    received = await broker.receive("a", 1, SOON)
    waiting = asyncio.ensure_future(broker.receive("a", 400, 3 * SOON))
    publishing = asyncio.ensure_future(broker.publish("a", published[1:]))
    await asyncio.sleep(0)

    for link in ("_publishing", "_receiving"):
        await break_channel(broker, link)
    await asyncio.gather(waiting, publishing, return_exceptions=True)
    await trying("publish", broker, "a", published[1:])

    found = set(received)
    while found != set(published):
        found |= set(await trying("receive", broker, "a", 400, SOON))
    await broker.close()


async def test_receive_without_a_wait_returns_at_once(broker: Broker) -> None:
    await broker.publish("a", [TICKET])
    async with asyncio.timeout(patience(30)):
        while not (found := await broker.receive("a", 5, timedelta(0))):
            await asyncio.sleep(0)

        assert found == [TICKET]
        assert await broker.receive("a", 5, timedelta(0)) == []


@pytest.mark.parametrize(
    ("ill", "well"),
    [
        (("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE")),
        (("CONFIG", "SET", "maxmemory", "1"), ("CONFIG", "SET", "maxmemory", "0")),
    ],
)
async def test_a_redis_that_takes_no_tickets_does_not_pass_the_check(
    own_redis: RedisServer, ill: tuple[str, ...], well: tuple[str, ...]
) -> None:
    """It answers a PING all the same."""
    broker = RedisBroker(own_redis.url(), "x")
    await broker.check()

    await own_redis.ask(*ill)
    with pytest.raises(BrokerUnavailable):
        await broker.check()
    await own_redis.ask(*well)

    await broker.check()
    await broker.close()


async def test_after_an_error_redis_is_looked_for_anew(own_redis: RedisServer) -> None:
    """The name may lead to another server by now: a connection to the one that became a replica must not stay."""
    broker = RedisBroker(own_redis.url(), "x")
    await broker.publish("a", [TICKET])
    before = await own_redis.ask("INFO", "stats")
    await own_redis.ask("REPLICAOF", "127.0.0.1", "1")
    with pytest.raises(BrokerUnavailable):
        await broker.publish("a", [TICKET])
    await own_redis.ask("REPLICAOF", "NO", "ONE")

    await broker.publish("a", [TICKET])

    after = await own_redis.ask("INFO", "stats")
    # Each question of the test itself is a connection: two changes and the second look, and one more by the broker.
    assert after["total_connections_received"] - before["total_connections_received"] == 4
    await broker.close()


@pytest.mark.parametrize("length", [0, 8], ids=["at once", "after the first words"])
@pytest.mark.parametrize("verb", ["publish", "receive", "check"])
async def test_a_rabbitmq_that_hangs_up_while_a_connection_is_opened_cannot_be_reached(verb: str, length: int) -> None:
    """As one does that is just being stopped."""

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(length)
        writer.close()

    arguments = {"publish": ("a", [TICKET]), "receive": ("a", 5, SOON), "check": ()}
    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    broker = RabbitmqBroker(f"amqp://127.0.0.1:{server.sockets[0].getsockname()[1]}/", "a", SystemClock())
    async with server:
        for _ in range(5):
            with pytest.raises(BrokerUnavailable, match="RabbitMQ: "):
                await getattr(broker, verb)(*arguments[verb])
    await broker.close()


async def test_a_rabbitmq_that_ends_in_the_middle_of_a_call_cannot_be_reached() -> None:
    broker = RabbitmqBroker("amqp://127.0.0.1:1/", "a", SystemClock())

    class Channel:
        is_closed = False

    broker._publishing._channel = Channel()  # type: ignore[assignment]
    with pytest.raises(BrokerUnavailable, match="RabbitMQ: StopAsyncIteration: the connection has ended"):
        async with broker._publishing.channel():
            raise StopAsyncIteration
