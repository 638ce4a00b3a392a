"""Whatever a seed does to schedulers and workers: once it is over, everything ends, once, and the promises hold."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest

from tests.engine.support import check_promises, create
from tests.engine.swarm import POISON, TO_BE_MET, OpenStore, Swarm
from tests.factories import table
from tests.servers import PostgresServer, Servers, ServiceMissing, give_up_on
from timeball.commands import Commands
from timeball.domain.job import JobSpec
from timeball.env import Env
from timeball.store.postgres import Store
from timeball.testing import VirtualClock

# `make soak` runs many more.
SEEDS = range(int(os.environ.get("SWARM_SEEDS", "10")))
TROUBLED_STEPS, MOST_HEALING_STEPS = 500, 4_000

MakeDatabase = Callable[[], str]


@pytest.fixture
def make_database(servers: Servers, template_of: Callable[[PostgresServer], str]) -> Iterator[MakeDatabase]:
    """Makes empty databases, each for one run."""
    try:
        server = servers.postgres("pg15")
    except ServiceMissing as error:
        give_up_on(error)
        raise
    made: list[str] = []

    def make() -> str:
        made.append(server.create_database(template_of(server)))
        return server.dsn(made[-1])

    yield make
    for name in made:
        server.drop_database(name)


@pytest.fixture(scope="session")
def met(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where each seed writes down what it has met, for all processes of this test run."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "swarm"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
async def test_once_the_trouble_is_over_everything_has_ended_once(
    seed: int, make_database: MakeDatabase, met: Path
) -> None:
    """Fault 2. Every seed runs twice: one that does not repeat itself could not be looked into."""
    swarm = await live_through(seed, make_database())
    again = await live_through(seed, make_database())

    assert swarm.trace == again.trace, f"seed {seed} does not repeat itself"
    (met / f"{seed}.part").write_text(json.dumps(swarm.seen))
    (met / f"{seed}.part").rename(met / f"{seed}.json")
    check_batch(met)


def check_batch(met: Path) -> None:
    """A batch that misses something proves less than it seems to; the last of its seeds says so, in whichever process it runs."""
    whole = [json.loads(file.read_text()) for file in met.glob("*.json")]
    if len(whole) == len(SEEDS):
        assert set().union(*whole) >= TO_BE_MET


async def live_through(seed: int, dsn: str) -> Swarm:
    """A phase of trouble, and one in which everything has to come to its end."""
    clock = VirtualClock()
    swarm = Swarm(seed, clock)
    async with opened(dsn) as open_store:
        store = await open_store(Env(clock, Random(seed)))
        await swarm.gather(open_store)
        print(f"seed {seed}: {swarm}")
        await make_work(store)
        for number in range(TROUBLED_STEPS):
            await swarm.step()
            if number % 12 == 0:
                await more_work(store)
        swarm.heal()
        for _ in range(MOST_HEALING_STEPS):
            await swarm.step()
            if not await unfinished(store):
                break
        await check(swarm, store)
    return swarm


async def make_work(store: Store) -> None:
    commands = Commands(store, store.env)
    for overlap in ("allow", "skip", "queue"):
        await create(store, name=overlap, interval_seconds=7, overlap=overlap, max_executions=8, misfire="all")
    await commands.limit_queue("narrow", 2)
    await commands.enqueue_many(JobSpec(handler="tests:noop", max_retries=20, max_lost=20), ["{}"] * 30)
    await commands.enqueue_many(JobSpec(handler="tests:noop", queue="narrow", max_lost=20), ["{}"] * 10)
    await commands.enqueue_many(JobSpec(handler="tests:noop", max_lost=3), [POISON])


async def more_work(store: Store) -> None:
    await Commands(store, store.env).enqueue_many(JobSpec(handler="tests:noop", max_retries=20, max_lost=20), ["{}"])


async def check(swarm: Swarm, store: Store) -> None:
    assert not await unfinished(store), "something does not come to its end"
    finished = sorted(await table(store, "finished"), key=lambda row: row["id"])
    ends = Counter(row["id"] for row in finished)
    assert set(ends.values()) == {1}
    assert len(ends) >= 30 + 10 + 1
    assert set(swarm.runs.values()) <= {1}, "no claim was run twice"
    assert not swarm.early, "no attempt begins before its time, nor before that of its retry"
    if any(row["state"] == "dead" and row["lost"] == 3 for row in finished):
        swarm.seen["poison dead-lettered"] += 1
    for row in finished:
        swarm.note(*(row[column] for column in ("id", "state", "attempts", "lost", "fence", "claim_id", "finished_at")))
    await check_promises(store)


@asynccontextmanager
async def opened(dsn: str) -> AsyncIterator[OpenStore]:
    """Opens stores on one database, each with connections of its own."""
    stores: list[Store] = []

    async def open_store(env: Env) -> Store:
        store = Store(dsn, env)
        stores.append(store)
        await store.open(migrates=False)
        return store

    try:
        yield open_store
    finally:
        for store in stores:
            await store.close()


async def unfinished(store: Store) -> int:
    async with store.database.connection() as connection:
        return int(
            await connection.fetchval(
                "SELECT (SELECT count(*) FROM timeball.due) + (SELECT count(*) FROM timeball.ready) "
                "+ (SELECT count(*) FROM timeball.blocked) + (SELECT count(*) FROM timeball.running)"
            )
        )
