from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import aio_pika
import pytest
from redis.asyncio import Redis

from tests.handlers.builtin.support import check_payload, die, fail, succeed
from tests.support.broker_servers import Rabbitmq, free_port, running_redis
from tests.support.servers import ServiceMissing, give_up_on
from timeball.config.settings import HandlerSettings
from timeball.domain.handler import Handler, PayloadMismatch
from timeball.env import SystemClock
from timeball.errors import SettingsError
from timeball.handlers.binding import typed_handler
from timeball.handlers.builtin.queue_publish import PublishPayload, QueuePublish, read_allowed
from timeball.handlers.builtin.secrets import SecretStore
from timeball.handlers.catalogue import BuiltinHandlers
from timeball.handlers.registry import Registry

EXECUTION = "exe_00000000000000000000000001"
Make = Callable[..., Handler]


@contextmanager
def or_give_up() -> Iterator[None]:
    try:
        yield
    except ServiceMissing as error:
        give_up_on(error)


@pytest.fixture
def rabbitmq_port(rabbitmq: Rabbitmq) -> int:
    return rabbitmq.port


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    made: list[QueuePublish] = []

    def publish(*allowed: str, **secrets: str) -> Handler:
        environment = {f"TIMEBALL_SECRET_{name}": value for name, value in secrets.items()}
        handler = QueuePublish(read_allowed(allowed), SecretStore(environment=environment))
        made.append(handler)
        return typed_handler("queue.publish", handler, PublishPayload)

    yield publish
    for handler in made:
        await handler.close()


# Redis


async def test_a_message_is_added_to_a_redis_stream(make, redis_port):
    publish = make(f"127.0.0.1:{redis_port}")
    url = f"redis://127.0.0.1:{redis_port}/1"

    first = await succeed(publish, {"url": url, "stream": "orders", "body": {"order": 42}})
    await succeed(publish, {"url": url, "stream": "orders", "body": "as it is"})

    async with Redis.from_url(url) as redis:
        entries = await redis.xrange("orders")
    assert [fields[b"body"] for _, fields in entries] == [b'{"order":42}', b"as it is"]
    assert {fields[b"id"] for _, fields in entries} == {EXECUTION.encode()}
    assert entries[0][0].decode() == first["id"]
    told = {name: value.decode() for name, value in entries[0][1].items() if name not in (b"id", b"job", b"body")}
    assert told == {
        b"job_name": "nightly",
        b"scheduled_for": "2024-05-01T12:00:00Z",
        b"attempt": "3",
        b"fence": "7",
        b"origin": "schedule",
    }


async def test_a_key_of_another_kind_is_not_tried_again_and_harms_no_other_message(make, redis_port):
    publish = make(f"127.0.0.1:{redis_port}")
    url = f"redis://127.0.0.1:{redis_port}/2"
    async with Redis.from_url(url) as redis:
        await redis.set("text", "x")

    assert "WRONGTYPE" in await die(publish, {"url": url, "stream": "text", "body": 1})
    await succeed(publish, {"url": url, "stream": "orders", "body": 1})


async def test_a_password_is_a_secret_and_a_wrong_one_is_not_told(make):
    with or_give_up(), running_redis("--requirepass", "right-canary") as port:
        urls = {"GOOD": f"redis://:right-canary@127.0.0.1:{port}/0", "BAD": f"redis://:wrong-canary@127.0.0.1:{port}/0"}
        publish = make(f"127.0.0.1:{port}", **urls)

        await succeed(publish, {"url": {"$secret": "GOOD"}, "stream": "orders", "body": 1})
        said = await die(publish, {"url": {"$secret": "BAD"}, "stream": "orders", "body": 1})

    assert "canary" not in said


async def test_a_redis_that_was_away_is_tried_again_and_found_again(make):
    with or_give_up(), running_redis() as port:
        publish = make(f"127.0.0.1:{port}")
        payload = {"url": f"redis://127.0.0.1:{port}", "stream": "orders", "body": 1}
        await succeed(publish, payload)

    outcome = await fail(publish, payload)

    assert outcome.is_retryable
    with running_redis(port=port):
        await succeed(publish, payload)


# RabbitMQ


@pytest.fixture
async def channel(rabbitmq_port: int) -> AsyncIterator[Any]:
    connection = await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{rabbitmq_port}/")
    async with connection:
        yield await connection.channel()


@pytest.fixture
def rabbit(make: Make, rabbitmq_port: int) -> Handler:
    return make(f"127.0.0.1:{rabbitmq_port}", RABBIT=f"amqp://guest:guest@127.0.0.1:{rabbitmq_port}/")


async def test_a_message_reaches_a_queue_of_rabbitmq(rabbit, channel):
    queue = await channel.declare_queue("jobs", durable=True)

    result = await succeed(rabbit, {"url": {"$secret": "RABBIT"}, "routing_key": "jobs", "body": {"order": 42}})

    message = await queue.get()
    assert json.loads(message.body) == {"order": 42}
    assert (message.message_id, message.content_type) == (EXECUTION, "application/json")
    assert message.delivery_mode is aio_pika.DeliveryMode.PERSISTENT
    assert message.headers == {
        "Timeball-Scheduled-For": "2024-05-01T12:00:00Z",
        "Timeball-Job": "nightly",
        "Timeball-Execution": EXECUTION,
        "Timeball-Attempt": "3",
        "Timeball-Fence": "7",
        "Timeball-Origin": "schedule",
    }
    assert result == {"exchange": "", "routing_key": "jobs"}


async def test_a_message_goes_through_an_exchange_by_its_key(rabbit, channel):
    exchange = await channel.declare_exchange("orders", "topic")
    queue = await channel.declare_queue("paid", auto_delete=True)
    await queue.bind(exchange, "order.paid")

    payload = {"url": {"$secret": "RABBIT"}, "exchange": "orders", "routing_key": "order.paid", "body": "hello"}
    await succeed(rabbit, payload)

    assert (await queue.get()).body == b"hello"


async def test_a_message_that_no_queue_takes_is_refused_and_not_lost_in_silence(rabbit):
    said = await die(rabbit, {"url": {"$secret": "RABBIT"}, "routing_key": "nobody-listens", "body": 1})

    assert "no queue takes messages" in said


async def test_an_exchange_that_is_not_there_is_not_tried_again_and_harms_no_other_message(rabbit, channel):
    await channel.declare_queue("still-there", auto_delete=False)
    url = {"$secret": "RABBIT"}
    wrong = {"url": url, "exchange": "no-such-exchange", "routing_key": "x", "body": 1}
    right = {"url": url, "routing_key": "still-there", "body": 1}

    said, *_ = await asyncio.gather(die(rabbit, wrong), *(succeed(rabbit, right) for _ in range(10)))

    assert "no-such-exchange" in said


async def test_a_wrong_password_for_rabbitmq_is_not_told(make, rabbitmq_port):
    publish = make(f"127.0.0.1:{rabbitmq_port}", BAD=f"amqp://guest:wrong-canary@127.0.0.1:{rabbitmq_port}/")

    said = await die(publish, {"url": {"$secret": "BAD"}, "routing_key": "jobs", "body": 1})

    assert "canary" not in said


async def test_a_rabbitmq_that_is_away_is_tried_again(make):
    port = free_port()

    outcome = await fail(make(f"127.0.0.1:{port}"), {"url": f"amqp://127.0.0.1:{port}/", "routing_key": "x", "body": 1})

    assert outcome.is_retryable


async def test_a_server_that_does_not_answer_does_not_delay_another(make, redis_port):
    asked = asyncio.Event()

    async def say_nothing(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await asyncio.Event().wait()

    silent = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    publish = make(f"127.0.0.1:{port}", f"127.0.0.1:{redis_port}")
    waiting = asyncio.ensure_future(fail(publish, {"url": f"amqp://127.0.0.1:{port}/", "routing_key": "x", "body": 1}))
    await asked.wait()

    await succeed(publish, {"url": f"redis://127.0.0.1:{redis_port}/3", "stream": "orders", "body": 1})

    assert not waiting.done()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    silent.close()


# security defaults


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "169.254.169.254", "127.0.0.1.evil.com", "[::1]"])
async def test_messages_go_only_to_servers_of_the_administrators_list(make, host):
    publish = make("127.0.0.1:1", "queue.internal:6379")

    said = await die(publish, {"url": f"redis://{host}:6379", "stream": "x", "body": 1})

    assert "not among the servers allowed" in said


async def test_a_secret_cannot_lead_around_the_administrators_list(make):
    publish = make("127.0.0.1:1", ELSEWHERE="redis://:canary@127.0.0.1:6379", SOCKET="unix:///run/canary.sock")

    for name in ("ELSEWHERE", "SOCKET"):
        assert "canary" not in await die(publish, {"url": {"$secret": name}, "stream": "x", "body": 1})


@pytest.mark.parametrize(
    "payload",
    [
        {"url": "redis://:canary@host", "stream": "x", "body": 1},
        {"url": "amqp://guest:canary@host", "routing_key": "x", "body": 1},
        {"url": "unix:///run/redis.sock", "stream": "x", "body": 1},
        {"url": "http://host", "stream": "x", "body": 1},
        {"url": "redis://host?ssl_cert_reqs=none", "stream": "x", "body": 1},
        {"url": "redis://host", "body": 1},
        {"url": "redis://host", "stream": "x", "routing_key": "y", "body": 1},
        {"url": "amqp://host", "body": 1},
        {"url": "amqp://host", "stream": "x", "body": 1},
        {"url": "redis://host", "stream": "x\r\nFLUSHALL", "body": 1},
        {"url": "redis://host", "stream": "x"},
        {"url": "redis://host", "stream": "x", "body": 1, "command": "FLUSHALL"},
        {"url": "redis://host", "stream": "x", "body": {"a": [{"$secret": "no-name"}]}},
    ],
)
def test_a_message_that_could_never_be_sent_is_refused_when_the_job_is_created(payload):
    handlers = Registry([typed_handler("queue.publish", QueuePublish(frozenset(), SecretStore()), PublishPayload)])

    with pytest.raises(PayloadMismatch) as caught:
        check_payload(handlers, "queue.publish", json.dumps(payload))

    assert "canary" not in str(caught.value)


def test_a_worker_without_a_list_claims_no_messages(tmp_path):
    without = BuiltinHandlers(HandlerSettings(), SystemClock(), tmp_path)
    with_one = BuiltinHandlers(HandlerSettings(queue_allow=("queue.internal:5672",)), SystemClock(), tmp_path)

    assert "queue.publish" not in Registry(without.handlers)
    assert "queue.publish" in without.known
    assert "queue.publish" in Registry(with_one.handlers)
    with pytest.raises(SettingsError, match="TIMEBALL_QUEUE_ALLOW"):
        BuiltinHandlers(HandlerSettings(queue_allow=("queue.internal",)), SystemClock(), tmp_path)


async def test_a_secret_does_not_go_to_a_server_that_it_is_not_bound_to(make):
    handler = make(
        "queue.internal:6379", CANARY="S3cret", CANARY_HOSTS="other.internal", URL="redis://queue.internal/0"
    )
    goal = {"stream": "x"}

    body = await die(handler, {"url": "redis://queue.internal:6379/0", "body": {"a": {"$secret": "CANARY"}}} | goal)
    by_reference = await die(handler, {"url": {"$secret": "URL"}, "body": {"a": {"$secret": "CANARY"}}} | goal)

    assert "the secret CANARY is not for the host queue.internal" in body
    assert "the secret CANARY is not for the host queue.internal" in by_reference
