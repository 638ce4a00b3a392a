"""Every test of a broker runs on each that carries tickets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from tests.brokers.support import BrokerServer, RabbitmqServer, RedisServer, unreachable_broker
from tests.support.broker_servers import free_port
from timeball.brokers.base import Broker


@pytest.fixture(params=["redis", "rabbitmq"])
def broker_server(request: pytest.FixtureRequest) -> BrokerServer:
    """A running server, with a namespace for this test."""
    if request.param == "redis":
        return RedisServer(request.getfixturevalue("redis_port"))
    return RabbitmqServer(request.getfixturevalue("rabbitmq"))


@pytest.fixture
async def another(broker_server: BrokerServer) -> AsyncIterator[Callable[..., Broker]]:
    """Makes brokers with connections of their own, as other processes would have."""
    made: list[Broker] = []

    def make(namespace: str | None = None) -> Broker:
        made.append(broker_server.make(namespace))
        return made[-1]

    yield make
    for broker in made:
        await broker.close()


@pytest.fixture
def broker(another: Callable[..., Broker]) -> Broker:
    """A broker."""
    return another()


@pytest.fixture(params=["redis", "rabbitmq"])
def unreachable(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A broker whose server is not there."""
    with unreachable_broker(request.param, free_port()) as broker:
        yield broker
