"""How fast are jobs created: one by one, many at a time, in bulk?"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from bench.lab import Lab
from bench.system import System
from timeball import Timeball
from timeball.domain.job_fields import JobSpec
from timeball.sdk.handlers import AsyncHandlerHandle
from timeball.store.db.statements import all_statements

TITLE = "creating jobs, durably"
LIMIT = "bare statements"
_ROWS = "bare rows"
TARGETS = {
    ("Timeball", "one by one"): "2,000/s",
    ("Timeball", "in bulk"): "50,000/s",
}
_BULK = 100_000
_SLICE = 2_500
_SINGLE = 1_000
_TOGETHER = 100
_ROUNDS = 5

Noop = AsyncHandlerHandle[[], None]
Way = Callable[[System], Awaitable[float]]


async def ask(lab: Lab) -> None:
    """The limits are the statements that create jobs, in a bare loop.

    Beside them, a COPY and single inserts into a table with nothing but an id and a payload: what a program of one's own would write.
    """
    async with lab.system() as system, Timeball(database_url=system.dsn) as tb:
        noop = _noop(tb)
        async with system.parts.store.database.connection() as connection:
            await connection.execute("CREATE TABLE bare (id uuid PRIMARY KEY, payload jsonb)")
        figures: dict[str, dict[str, Way]] = {
            "one by one": {LIMIT: _bare_single, _ROWS: _row_single, "Timeball": partial(_single, noop)},
            "a hundred at a time": {LIMIT: _bare_together, _ROWS: _rows_together, "Timeball": partial(_together, noop)},
            "in bulk": {LIMIT: _bare_bulk, _ROWS: _rows_copied, "Timeball": partial(_bulk, noop)},
        }
        for figure, ways in figures.items():
            await lab.interleave({name: partial(way, system) for name, way in ways.items()}, figure, _ROUNDS)


def _noop(tb: Timeball) -> Noop:
    @tb.handler(name="bench.noop")
    async def noop() -> None: ...

    return noop


async def _single(noop: Noop, _system: System) -> float:
    def enqueue_all() -> float:
        begun = time.perf_counter()
        for _ in range(_SINGLE):
            noop.enqueue()
        return _SINGLE / (time.perf_counter() - begun)

    return await asyncio.to_thread(enqueue_all)


async def _together(noop: Noop, _system: System) -> float:
    begun = time.perf_counter()
    for _ in range(_SINGLE // _TOGETHER):
        await asyncio.gather(*(noop.aenqueue() for _ in range(_TOGETHER)))
    return _SINGLE / (time.perf_counter() - begun)


async def _bulk(noop: Noop, _system: System) -> float:
    begun = time.perf_counter()
    await noop.aenqueue_many(noop.call() for _ in range(_BULK))
    return _BULK / (time.perf_counter() - begun)


class _Bare:
    """One of the statements that create jobs, with all that jobs of the handler have in common."""

    def __init__(self, system: System, name: str) -> None:
        prepared, statement = (
            system.parts.commands.jobs.prepared_job(JobSpec(handler="bench.noop")),
            all_statements()[name],
        )
        assert prepared is not None
        self._text, self._parameters = statement.numbered(), statement.parameters
        self._given = {**prepared.columns, "now": None, "wakeup": None}

    async def execute(self, connection: Any, **own: Any) -> None:
        given = self._given | own
        await connection.fetch(self._text, *[given[parameter] for parameter in self._parameters])


async def _bare_single(system: System) -> float:
    statement = _Bare(system, "enqueue_one")
    async with system.parts.store.database.connection() as connection:
        begun = time.perf_counter()
        for id_ in system.parts.env.new_ids(_SINGLE):
            await statement.execute(connection, id=id_, shard=0, payload="{}")
        return _SINGLE / (time.perf_counter() - begun)


async def _bare_together(system: System) -> float:
    statement = _Bare(system, "enqueue_alike")
    async with system.parts.store.database.connection() as connection:
        begun = time.perf_counter()
        for _ in range(_SINGLE // _TOGETHER):
            await statement.execute(connection, **_crowd(system, _TOGETHER))
        return _SINGLE / (time.perf_counter() - begun)


async def _bare_bulk(system: System) -> float:
    statement = _Bare(system, "enqueue_alike")
    async with system.parts.store.database.connection() as connection:
        begun = time.perf_counter()
        async with connection.transaction():
            for _ in range(_BULK // _SLICE):
                await statement.execute(connection, **_crowd(system, _SLICE))
        return _BULK / (time.perf_counter() - begun)


def _crowd(system: System, number: int) -> dict[str, Any]:
    return {"ids": list(system.parts.env.new_ids(number)), "shards": [0] * number, "payloads": ["{}"] * number}


async def _insert(system: System) -> None:
    async with system.parts.store.database.connection() as connection:
        await connection.execute("INSERT INTO bare VALUES ($1, '{}')", system.parts.env.new_id())


async def _row_single(system: System) -> float:
    begun = time.perf_counter()
    for _ in range(_SINGLE):
        await _insert(system)
    return _SINGLE / (time.perf_counter() - begun)


async def _rows_together(system: System) -> float:
    begun = time.perf_counter()
    for _ in range(_SINGLE // _TOGETHER):
        await asyncio.gather(*(_insert(system) for _ in range(_TOGETHER)))
    return _SINGLE / (time.perf_counter() - begun)


async def _rows_copied(system: System) -> float:
    async with system.parts.store.database.connection() as connection:
        begun = time.perf_counter()
        records = [(id_, "{}") for id_ in system.parts.env.new_ids(_BULK)]
        await connection.copy_records_to_table("bare", records=records)
        return _BULK / (time.perf_counter() - begun)
