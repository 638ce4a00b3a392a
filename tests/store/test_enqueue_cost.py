"""The cost of an enqueue, counted in statements and pages, which do not depend on the clock."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any
from uuid import UUID

import pytest

import timeball
from tests.conftest import FreshDatabase
from tests.support.factories import define_job
from timeball import Timeball
from timeball.application.commands import Commands
from timeball.domain.job_fields import JobSpec
from timeball.sdk import enqueue_paths
from timeball.store.store import Store
from timeball.store.types import EnqueueRow

MANY = 3_000
# An entry of an index of ids takes 28 bytes, and a page that was filled from left to right is nine tenths full.
_ENTRIES_A_PAGE = 8_192 * 0.9 // 28


async def _value(store: Store, query: str) -> int:
    async with store.database.connection() as connection:
        return int(await connection.fetchval(query))


async def test_a_bulk_enqueue_fills_the_pages_of_its_indexes_one_after_the_other(store: Store) -> None:
    """Ids at random would split each page in two halves, and search for each row."""
    await Commands(store, store.env).jobs.enqueue_many(JobSpec(handler="work"), ["{}"] * MANY)

    for index in ("job_pkey", "ready_pkey"):
        pages = await _value(store, f"SELECT pg_relation_size('timeball.{index}') / 8192")
        # One page for the metadata of the index, one for its root, and the last, which is being filled.
        assert pages <= MANY / _ENTRIES_A_PAGE + 3


async def test_a_bulk_enqueue_keeps_its_order(store: Store) -> None:
    ids = await Commands(store, store.env).jobs.enqueue_many(JobSpec(handler="work"), [str(n) for n in range(100)])

    async with store.database.connection() as connection:
        rows = await connection.fetch(
            "SELECT id, job.payload::text FROM timeball.ready JOIN timeball.job USING (id) ORDER BY uuid_send(id)"
        )
    assert [row["id"] for row in rows] == ids
    assert [row["payload"] for row in rows] == [str(n) for n in range(100)]


@pytest.mark.parametrize("fresh_database", ["pg18"], indirect=True)
async def test_an_enqueue_is_one_statement(store: Store) -> None:
    """For any caller: each statement is a commit, unless it is part of a transaction."""
    commands = Commands(store, store.env)
    prepared = commands.jobs.prepared_job(JobSpec(handler="work"))
    assert prepared is not None
    asked: Counter[str] = Counter()
    store.env.fault = lambda point: asked.update([point])

    for _ in range(5):
        await commands.jobs.enqueue(prepared, ["{}"])
        await commands.jobs.create(JobSpec(handler="work"))

    assert asked == {"enqueue_one.before": 10, "enqueue_one.after_commit": 10}


async def test_a_plain_enqueue_runs_no_check_and_calls_no_function(store: Store) -> None:
    """PostgreSQL reads and prepares each CHECK of a table for every statement that inserts into it: 25 took half its time, one a tenth."""
    commands = Commands(store, store.env)
    prepared = commands.jobs.prepared_job(JobSpec(handler="work"))
    assert prepared is not None
    async with store.database.connection() as connection:
        checks = await connection.fetch(
            "SELECT conname FROM pg_constraint WHERE contype = 'c' AND conrelid = ANY ('{timeball.job, timeball.ready}'::regclass[])"
        )
        assert checks == []

        async with connection.transaction():
            await connection.execute("SET LOCAL track_functions = 'pl'")
            called = (
                "SELECT coalesce(pg_stat_get_xact_function_calls('timeball.is_sound(timeball.job)'::regprocedure), 0)"
            )
            for number in (1, 3):
                rows = [(store.env.new_id(), 0, "{}") for _ in range(number)]
                await store.enqueuer.enqueue(prepared, rows, connection)
            assert await connection.fetchval(called) == 0

            await store.enqueuer.create(
                [define_job(store, name="named", scheduled_at=store.env.clock.now())], [], connection
            )
            assert await connection.fetchval(called) == 1


@pytest.mark.parametrize("fresh_database", ["pg18"], indirect=True)
async def test_enqueues_that_come_together_are_one_statement(store: Store) -> None:
    commands = Commands(store, store.env)
    prepared = commands.jobs.prepared_job(JobSpec(handler="work"))
    assert prepared is not None
    asked: Counter[str] = Counter()
    store.env.fault = lambda point: asked.update([point])

    created = await commands.jobs.enqueue(prepared, ["{}"] * 100)

    assert asked == {"enqueue_alike.before": 1, "enqueue_alike.after_commit": 1}
    assert len({job.execution_id for job in created}) == 100


@pytest.mark.parametrize("fresh_database", ["pg18"], indirect=True)
async def test_a_bulk_is_one_statement_until_it_is_very_large(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A single statement is atomic; two of them need a transaction."""
    commands = Commands(store, store.env)
    sent: list[str] = []
    run = store.database._run

    async def spy(connection: Any, name: str, given: dict[str, Any]) -> list[Any]:
        sent.append(name)
        return await run(connection, name, given)

    monkeypatch.setattr(store.database, "_run", spy)
    await commands.jobs.enqueue_many(JobSpec(handler="work"), ["{}"] * 30)
    assert sent == ["enqueue_alike"]

    sent.clear()
    monkeypatch.setattr("timeball.store.enqueue._BULK_SLICE", 10)
    await commands.jobs.enqueue_many(JobSpec(handler="work"), ["{}"] * 30)
    assert sent == ["enqueue_alike"] * 3
    assert await _value(store, "SELECT count(*) FROM timeball.ready JOIN timeball.job USING (id)") == 60


@pytest.mark.parametrize("fresh_database", ["pg18"], indirect=True)
@pytest.mark.parametrize("delay", [None, timedelta(hours=1)])
async def test_a_bulk_encodes_the_next_slice_while_the_database_writes(
    store: Store, monkeypatch: pytest.MonkeyPatch, delay: timedelta | None
) -> None:
    """The database does not answer before that here: waiting for it would never end."""
    monkeypatch.setattr("timeball.store.enqueue._BULK_SLICE", 10)
    has_been_made, run = [asyncio.Event() for _ in range(5)], store.database._run

    def rows() -> Iterator[EnqueueRow]:
        for number in range(30):
            has_been_made[number // 10].set()
            yield UUID(int=number + 1), 0, "{}"
        has_been_made[3].set()

    async def answering_late(connection: Any, name: str, given: dict[str, Any]) -> list[Any]:
        answer = await run(connection, name, given)
        if name == ("enqueue_alike" if delay is None else "enqueue_due"):
            await has_been_made[given["ids"][0].int // 10 + 1].wait()
        return answer

    monkeypatch.setattr(store.database, "_run", answering_late)
    at = None if delay is None else store.env.clock.now() + delay
    async with asyncio.timeout(30):
        ids = await store.enqueuer.create_many(
            define_job(store, name=None, scheduled_at=at or store.env.clock.now()), rows(), at
        )

    assert ids == [UUID(int=number + 1) for number in range(30)]
    assert await _value(store, "SELECT count(*) FROM timeball.job") == 30


@pytest.mark.parametrize("fresh_database", ["pg18"], indirect=True)
async def test_an_enqueue_checks_and_encodes_only_its_own_values(store: Store) -> None:
    """The shared fields of jobs are not checked again: that took more calls than all the rest."""
    commands = Commands(store, store.env)
    prepared = commands.jobs.prepared_job(JobSpec(handler="work"))
    assert prepared is not None
    await commands.jobs.enqueue(prepared, ["{}"])

    with _calls() as made:
        for _ in range(100):
            await commands.jobs.enqueue(prepared, ["{}"])

    # About 45, and half as many again for a wake-up with a message of its own, which a slow machine makes of every one.
    assert sum(made.values()) / 100 <= 82, made


@pytest.mark.parametrize("fresh_database", ["pg18"], indirect=True)
def test_a_thread_adds_its_request_to_a_batch_and_waits_at_a_single_lock(
    fresh_database: FreshDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it in the standard library: a future with its condition was a quarter of what the thread did."""
    monkeypatch.setattr(enqueue_paths, "_TIGHT_LOOP_CALLS", 1_000)
    with Timeball(database_url=fresh_database.dsn) as tb:

        @tb.handler
        def work() -> None: ...

        work.enqueue()
        with _calls(everybody=True) as made:
            for _ in range(20):
                work.enqueue()

    # Arguments and payload four, the way to the runtime ten, finding no direct connection six, a future three, the run three.
    assert sum(made.values()) / 20 <= 26, made


@pytest.mark.parametrize("fresh_database", ["pg18"], indirect=True)
def test_a_thread_in_a_tight_loop_wakes_no_other_thread(fresh_database: FreshDatabase) -> None:
    """An enqueue through the background loop would be an item of its batcher; wake-ups are sent by that loop, some together."""
    with Timeball(database_url=fresh_database.dsn) as tb:

        @tb.handler
        def work() -> None: ...

        work.enqueue()
        runtime = tb._enqueue_client.background_loop.resource
        assert runtime is not None
        while runtime.direct_path.run(lambda connection: connection.server_pid) is None:
            work.enqueue()
        with _calls() as made:
            for _ in range(100):
                work.enqueue()

    assert not {"Batcher.submit", "ThreadFuture.result"} & set(made), made
    # About 49; a wake-up that a statement carries takes nine more, and one that is passed to the notifier three.
    assert sum(made.values()) / 100 <= 62, made


@pytest.mark.parametrize("fresh_database", ["pg18"], indirect=True)
async def test_a_job_of_a_bulk_is_an_id_a_shard_and_a_row(store: Store) -> None:
    with _calls() as made:
        await Commands(store, store.env).jobs.enqueue_many(JobSpec(handler="work"), ["{}"] * MANY)

    # A gap, a UUID, its shard, the row; what is done once for all of them is the rest.
    assert sum(made.values()) / MANY <= 4.2, made


def test_a_call_for_a_bulk_is_bound_and_encoded_in_a_few_steps() -> None:
    tb = Timeball()

    @tb.handler
    def send(order: int, to: str, copy: str | None = None) -> None: ...

    with _calls() as made:
        for number in range(100):
            send.call(number, to="somebody@example.com")

    # The call, its arguments, whether they are enough, the object as JSON, the call that is given back.
    assert sum(made.values()) / 100 <= 5, made


@contextmanager
def _calls(*, everybody: bool = False) -> Iterator[Counter[str]]:
    """How often each of our functions is called meanwhile, in this thread; with *everybody*, each function of Python."""
    made: Counter[str] = Counter()
    ours = str(Path(timeball.__file__).parent)

    def count(frame: FrameType, event: str, _argument: object) -> None:
        # What `dataclass` wrote stands in no file.
        if event == "call" and (everybody or frame.f_code.co_filename.startswith((ours, "<string>"))):
            made[frame.f_code.co_qualname] += 1

    sys.setprofile(count)
    try:
        yield made
    finally:
        sys.setprofile(None)
