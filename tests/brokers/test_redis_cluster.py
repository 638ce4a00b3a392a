"""A Redis in cluster mode cannot be used; the reason says so in words."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.asyncio import Redis

from tests.support.broker_servers import free_port, running_redis
from tests.support.servers import ServiceMissing, give_up_on
from timeball.brokers.redis import RedisBroker
from timeball.errors import BrokerUnavailable


async def ask(port: int, *command: Any) -> Any:
    async with Redis(host="127.0.0.1", port=port) as redis:
        return await redis.execute_command(*command)


@pytest.fixture
async def member() -> AsyncIterator[int]:
    """The port of a server of a cluster in which another one has all the keys."""
    try:
        # The port of the cluster's bus is the server's and ten thousand, unless it is said.
        one, other = (("--cluster-enabled", "yes", "--cluster-port", str(free_port())) for _ in range(2))
        with running_redis(*one) as first, running_redis(*other) as second:
            await ask(second, "CLUSTER ADDSLOTSRANGE", 0, 16383)
            await ask(first, "CLUSTER", "MEET", "127.0.0.1", second, int(other[3]))
            async with asyncio.timeout(30):
                while b"cluster_slots_ok:16384" not in await ask(first, "CLUSTER", "INFO"):
                    await asyncio.sleep(0.01)
            yield first
    except ServiceMissing as error:
        give_up_on(error)


async def test_a_redis_cluster_is_called_by_its_name(member: int) -> None:
    broker = RedisBroker(f"redis://127.0.0.1:{member}/0", "x")

    with pytest.raises(
        BrokerUnavailable, match=r"part of a Redis Cluster \((Moved|ClusterDown)Error.*cluster mode off"
    ):
        await broker.check()

    await broker.close()
