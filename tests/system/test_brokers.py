"""Brokers that fail in every way they can, on real servers and processes: only latency suffers.

Every test ends with the books: what the handlers wrote down against the history, and `timeball verify`. `make soak` lets
the faults strike for longer.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from tests.brokers.support import BrokerServer, RabbitmqServer, RedisServer
from tests.support.broker_servers import Rabbitmq, RestartableRedis
from tests.support.servers import ServiceMissing, give_up_on
from tests.system.cluster import LONG_LEASES, Cluster, Process, enqueue
from timeball.application.commands import Commands

pytestmark = pytest.mark.slow

BROKER = "TIMEBALL_BROKER_URL"
# How long the faults strike: long enough to meet every step, and as long as wished in a soak.
SECONDS = 60 * float(os.environ.get("SOAK_MINUTES", "0")) / 10 or 4


@pytest.fixture(params=["redis", "rabbitmq"])
def broker_server(request: pytest.FixtureRequest) -> BrokerServer:
    if request.param == "redis":
        return RedisServer(request.getfixturevalue("redis_port"))
    return RabbitmqServer(request.getfixturevalue("rabbitmq"))


@pytest.fixture
def own_redis() -> Iterator[RestartableRedis]:
    """A Redis that the test may stop, with hardly any memory: it evicts what it likes."""
    try:
        with RestartableRedis("--maxmemory", "3mb", "--maxmemory-policy", "allkeys-random") as server:
            yield server
    except ServiceMissing as error:
        give_up_on(error)


@pytest.fixture
def cluster(make_cluster: Any, database: str) -> Cluster:
    """No node is meant to die here, however slow the machine."""
    made: Cluster = make_cluster(database, **LONG_LEASES, TIMEBALL_LOG_LEVEL="debug")
    return made


async def ready_nodes(cluster: Cluster, workers: int, url: str) -> list[Process]:
    """A scheduler and workers, all of which have reached the broker."""
    nodes = await cluster.nodes(1, workers, **{BROKER: url})
    for node in nodes:
        await node.event("broker.recovered", 60)
    return nodes


def used(processes: list[Process]) -> int:
    """How many executions were claimed by ticket."""
    return sum(event["claimed"] for process in processes for event in process.events("tickets.used"))


async def work_while(commands: Commands, fault: Callable[[], Awaitable[object]], pause: float) -> int:
    """Enqueue in a steady stream while the fault strikes again and again; returns how many were enqueued."""
    number = 0

    async def enqueue_all() -> None:
        nonlocal number
        while True:
            await enqueue(commands, "work", {"label": f"{number}", "seconds": 0.01})
            number += 1

    stream = asyncio.ensure_future(enqueue_all())
    loop = asyncio.get_running_loop()
    until = loop.time() + SECONDS
    while loop.time() < until:
        await asyncio.sleep(pause)
        await fault()
    stream.cancel()
    await asyncio.gather(stream, return_exceptions=True)
    return number


async def tickets_are_used(cluster: Cluster, commands: Commands, workers: list[Process]) -> int:
    """Enqueue until a ticket has brought one of them something; returns how many that took."""
    before, number = used(workers), 0
    while used(workers) == before:
        number += 1
        assert number < 60, "no ticket is ever used"
        ended = await cluster.ends(await enqueue(commands, "work", {"label": f"by ticket {number}"}))
        assert ended["state"] == "succeeded"
        await asyncio.sleep(0.2)
    return number


async def all_done(cluster: Cluster, number: int) -> None:
    """Everything has run, once, and the books agree."""
    await cluster.drained()
    assert cluster.value("SELECT count(*) FROM timeball.finished WHERE state = 'succeeded'") >= number
    cluster.check_books()


async def test_losing_every_ticket_and_every_connection_again_and_again_loses_no_work(
    cluster: Cluster, commands: Commands, broker_server: BrokerServer
) -> None:
    """Fault 36."""
    _, *workers = await ready_nodes(cluster, 2, broker_server.url())
    # Before anything fails: on a busy machine perhaps no ticket arrives between one fault and the next.
    number = await tickets_are_used(cluster, commands, workers)
    faults = [broker_server.lose_everything, broker_server.cut_connections]

    async def strike() -> None:
        faults.append(faults.pop(0))
        await faults[-1]()

    number += await work_while(commands, strike, 0.5)

    await all_done(cluster, number)


async def test_a_redis_that_evicts_and_restarts_is_missed_and_found_again(
    cluster: Cluster, commands: Commands, own_redis: RestartableRedis
) -> None:
    scheduler, worker = await ready_nodes(cluster, 1, own_redis.url())
    await own_redis.fill()

    number = await work_while(commands, own_redis.fill, 0.5)
    own_redis.stop()
    for node in (scheduler, worker):
        await node.event("broker.lost")
    unaided = await enqueue(commands, "work", {"label": "through PostgreSQL"})
    assert (await cluster.ends(unaided))["state"] == "succeeded"
    await cluster.eventually(lambda: "down" in states(cluster), "the nodes say so")
    own_redis.start()
    for node in (scheduler, worker):
        await node.event("broker.recovered", count=2)

    number += await tickets_are_used(cluster, commands, [worker])
    await all_done(cluster, number + 1)


def states(cluster: Cluster) -> set[str]:
    return {row[0] for row in cluster.sql("SELECT broker_state FROM timeball.node")}


# It starts RabbitMQ twice and its control program as often, each of which takes most of a minute where all processors are busy.
@pytest.mark.timeout(600)
async def test_a_rabbitmq_that_blocks_publishers_or_restarts_is_missed_and_found_again(
    cluster: Cluster, commands: Commands, rabbitmq: Rabbitmq
) -> None:
    scheduler, worker = await ready_nodes(cluster, 1, rabbitmq.url())

    rabbitmq.control("set_vm_memory_high_watermark", "0.000001")
    try:
        await enqueue(commands, "work", {"label": "blocked"})
        await scheduler.event("broker.lost")
        unaided = await enqueue(commands, "work", {"label": "through PostgreSQL"})
        assert (await cluster.ends(unaided))["state"] == "succeeded"
    finally:
        rabbitmq.control("set_vm_memory_high_watermark", "0.8")
    await scheduler.event("broker.recovered", count=2)
    rabbitmq.kill()
    rabbitmq.start()
    await worker.event("broker.lost")
    await scheduler.event("broker.recovered", 60, count=3)

    number = await tickets_are_used(cluster, commands, [worker])
    await all_done(cluster, number + 2)


async def test_brokers_are_switched_on_and_off_and_for_another_while_work_goes_on(
    cluster: Cluster, commands: Commands, redis_port: int, rabbitmq: Rabbitmq
) -> None:
    """Node by node, as a rolling restart does it: some have the old broker, some the new one."""
    redis = {BROKER: RedisServer(redis_port).url()}
    rabbit = {BROKER: rabbitmq.url()}
    (scheduler, *workers) = await cluster.nodes(1, 1)
    plans: list[tuple[Callable[..., Process], dict[str, str]]] = [
        (cluster.launch_worker, redis),
        (cluster.launch_scheduler, rabbit),
        (cluster.launch_worker, rabbit),
        (cluster.launch_worker, {}),
    ]

    async def switch() -> None:
        launch, environment = plans.pop(0)
        process = launch(**environment)
        await process.event("node.started", 60)
        leaving = scheduler if launch == cluster.launch_scheduler else workers.pop(0)
        leaving.terminate()
        assert await leaving.exit_code() == 0
        if launch != cluster.launch_scheduler:
            workers.append(process)

    number = 0
    while plans:
        stream = [await enqueue(commands, "work", {"label": f"{number + n}", "seconds": 0.05}) for n in range(20)]
        number += len(stream)
        await switch()

    await all_done(cluster, number)


async def test_without_a_scheduler_on_the_broker_workers_notice_the_silence(
    cluster: Cluster, commands: Commands, redis_port: int
) -> None:
    url = RedisServer(redis_port).url()
    await cluster.nodes(1, 0)
    (worker,) = await cluster.nodes(0, 1, **{BROKER: url})
    await worker.event("broker.recovered", 60)

    first = await enqueue(commands, "work", {"label": "found by the sweep"})
    assert (await cluster.ends(first))["state"] == "succeeded"

    await worker.event("broker.silent")
    await all_done(cluster, 1)
