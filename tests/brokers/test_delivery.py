"""One suite for all three: whatever carries due work, the same promises are kept, on real servers and a real clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from tests.brokers.support import RabbitmqServer, RedisServer
from tests.conftest import FreshDatabase
from tests.support.pace import patience
from tests.support.servers import PostgresServer, Servers, ServiceMissing, give_up_on
from timeball import current
from timeball.application.commands import Commands
from timeball.application.queries.doctor import broker_check
from timeball.config.settings import Settings, load_settings
from timeball.domain.job_fields import JobSpec
from timeball.domain.node import BrokerState
from timeball.handlers.registry import Registry, make_handler
from timeball.runtime import Runtime, make_supervisor, open_runtime
from timeball.store.verify.proof import verify
from timeball.telemetry.events import BrokerRecovered, TelemetryEvent


@pytest.fixture
def fresh_database(servers: Servers, template_of: Callable[[PostgresServer], str]) -> Iterator[FreshDatabase]:
    try:
        server = servers.postgres("pg15")
    except ServiceMissing as error:
        give_up_on(error)
        raise
    name = server.create_database(template_of(server))
    yield FreshDatabase(server, name, server.dsn(name))
    server.drop_database(name)


@pytest.fixture(params=["postgresql", "redis", "rabbitmq"])
def settings(request: pytest.FixtureRequest, fresh_database: FreshDatabase) -> Settings:
    """Settings with one of the brokers."""
    url: str | None = None
    if request.param == "redis":
        url = RedisServer(request.getfixturevalue("redis_port")).url()
    elif request.param == "rabbitmq":
        url = RabbitmqServer(request.getfixturevalue("rabbitmq")).url()
    leases = {"lease_seconds": 60, "renew_seconds": 0.5}
    return load_settings(
        database_url=fresh_database.dsn, broker_url=url, scheduler=leases, worker=leases | {"slots": 4}
    )


class House:
    """A running system in this process: what ran, and when."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.ran: list[tuple[str, float]] = []
        self.events: list[TelemetryEvent] = []
        self.gate = asyncio.Event()

    @property
    def labels(self) -> list[str]:
        return [label for label, _ in self.ran]

    def registry(self, *names: str) -> Registry:
        return Registry([make_handler(self._work, name=name) for name in names or ("work",)])

    async def _work(self, label: str, waits: bool = False) -> None:
        self.ran.append((label, time.time()))
        assert datetime.now(UTC) >= current.scheduled_for
        if waits:
            await self.gate.wait()

    @asynccontextmanager
    async def nodes(
        self, *handlers: str, with_scheduler: bool = True, with_worker: bool = True, **worker: Any
    ) -> AsyncIterator[Runtime]:
        """A scheduler and a worker, until the block ends; both have reached their broker."""
        wanted = self.settings.model_copy(update={"worker": self.settings.worker.model_copy(update=worker)})
        heard: list[TelemetryEvent] = []

        def hear(event: TelemetryEvent) -> None:
            heard.append(event)
            self.events.append(event)

        async with open_runtime(wanted) as parts:
            supervisor = make_supervisor(
                parts,
                hear,
                registry=self.registry(*handlers),
                with_scheduler=with_scheduler,
                with_worker=with_worker,
            )
            running = asyncio.ensure_future(supervisor.run())
            if parts.broker.carries_tickets:
                number = with_scheduler + with_worker
                await eventually(lambda: sum(isinstance(event, BrokerRecovered) for event in heard) >= number)
            try:
                yield parts
            finally:
                self.gate.set()
                supervisor.stop()
                await running

    async def check(self, parts: Runtime) -> None:
        report = await verify(parts.store.database, parts.env.clock.now(), second_look=timedelta(0))
        assert report.holds, "\n".join(report.lines())


@pytest.fixture
async def house(settings: Settings) -> House:
    return House(settings)


@pytest.fixture
async def commands(settings: Settings) -> AsyncIterator[Commands]:
    """What a front would use."""
    async with open_runtime(settings) as parts:
        yield parts.commands


async def eventually(is_so: Callable[[], object], seconds: float = 30) -> None:
    async with asyncio.timeout(patience(seconds)):
        while not is_so():
            await asyncio.sleep(0.01)


async def enqueue(commands: Commands, label: str, handler: str = "work", **fields: Any) -> UUID:
    payload = {"label": label, **fields.pop("payload", {})}
    created = await commands.jobs.create(JobSpec(handler=handler, payload=payload, **fields))
    assert created.execution_id is not None
    return created.execution_id


async def test_everything_runs_once_on_two_workers(house: House, commands: Commands) -> None:
    async with house.nodes() as parts, house.nodes(with_scheduler=False):
        for number in range(60):
            await enqueue(commands, f"{number}")
        await eventually(lambda: len(house.ran) >= 60)
        await asyncio.sleep(0.1)

        assert sorted(house.labels) == sorted(f"{number}" for number in range(60))
        await house.check(parts)


async def test_the_most_urgent_runs_first(house: House, commands: Commands) -> None:
    async with house.nodes(slots=1):
        # All at once: a worker that has heard of some, and not yet of the others, may begin with less.
        specs = [
            JobSpec(handler="work", payload={"label": f"{priority}"}, priority=priority)
            for priority in (10, 90, 50, 70, 30)
        ]
        await commands.jobs.create_all(specs)
        await eventually(lambda: len(house.ran) == 5)

    assert house.labels == ["90", "70", "50", "30", "10"]


async def test_what_is_due_later_runs_at_its_time_and_never_early(house: House, commands: Commands) -> None:
    async with house.nodes():
        due_at = datetime.now(UTC) + timedelta(seconds=1)
        for number in range(10):
            await enqueue(commands, f"{number}", scheduled_at=due_at)
        await eventually(lambda: len(house.ran) == 10)

    assert all(at >= due_at.timestamp() for _, at in house.ran)


async def test_a_paused_queue_waits_and_goes_on(house: House, commands: Commands) -> None:
    async with house.nodes():
        await commands.queues.pause("mail")
        await enqueue(commands, "waits", queue="mail")
        await enqueue(commands, "runs")
        await eventually(lambda: house.ran)
        await asyncio.sleep(0.2)
        assert house.labels == ["runs"]
        await commands.queues.resume("mail")
        await eventually(lambda: len(house.ran) == 2)


async def test_a_limited_queue_keeps_its_limit_and_comes_to_its_end(house: House, commands: Commands) -> None:
    await commands.queues.limit("narrow", 1)
    async with house.nodes(), house.nodes(with_scheduler=False):
        for number in range(4):
            await enqueue(commands, f"{number}", queue="narrow", payload={"waits": True})
        await eventually(lambda: house.ran)
        # Longer than any of the sweeps rests.
        await asyncio.sleep(1.2)
        assert len(house.ran) == 1
        house.gate.set()
        await eventually(lambda: len(house.ran) == 4)


async def test_work_goes_to_workers_with_its_handler_and_its_queue(house: House, commands: Commands) -> None:
    async with house.nodes("work", queues=("default",)), house.nodes("work", "special", with_scheduler=False):
        for number in range(8):
            await enqueue(commands, f"special {number}", handler="special")
            await enqueue(commands, f"elsewhere {number}", queue="elsewhere")
        await eventually(lambda: len(house.ran) == 16)

    assert not [event for event in house.events if type(event).__name__ == "AttemptFailed"]


async def test_the_nodes_and_the_health_say_what_carries_the_work(house: House, commands: Commands) -> None:
    async with house.nodes() as parts:
        kind = parts.broker.kind

        async def states() -> set[tuple[str, BrokerState]]:
            return {(node.broker, node.broker_status.state) for node in await parts.store.nodes.list()}

        async with asyncio.timeout(patience(30)):
            while await states() != {(kind, BrokerState.WORKS)}:
                await asyncio.sleep(0.05)
        assert broker_check(await parts.store.nodes.list()).status == "ok"
