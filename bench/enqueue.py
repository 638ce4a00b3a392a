"""How fast are jobs created: one by one, many at a time, in bulk?"""

from __future__ import annotations

import asyncio
import time
from functools import partial

from bench.lab import Lab
from bench.load import fill
from bench.system import System
from timeball.domain.job import JobSpec

TITLE = "creating jobs, durably"
LIMIT = "bare statements"
TARGETS = {
    ("Timeball", "one by one"): "2,000/s",
    ("Timeball", "in bulk"): "50,000/s",
}
_BULK = 100_000
_SINGLE = 500
_ROUNDS = 3


async def ask(lab: Lab) -> None:
    """The limits are a COPY and single inserts into a table with an id and a payload."""
    async with lab.system() as system:
        async with system.parts.store.database.connection() as connection:
            await connection.execute("CREATE TABLE bare (id uuid PRIMARY KEY, payload jsonb)")
        for figure, ways in {
            "one by one": {LIMIT: _bare_single, "Timeball": _single},
            "a hundred at a time": {LIMIT: _bare_together, "Timeball": _together},
            "in bulk": {LIMIT: _bare_copy, "Timeball": _bulk},
        }.items():
            await lab.interleave({name: partial(way, system) for name, way in ways.items()}, figure, _ROUNDS)


async def _single(system: System) -> float:
    begun = time.perf_counter()
    for _ in range(_SINGLE):
        await system.parts.commands.create(JobSpec(handler="bench.noop"))
    return _SINGLE / (time.perf_counter() - begun)


async def _together(system: System) -> float:
    create = system.parts.commands.create
    begun = time.perf_counter()
    for _ in range(_SINGLE // 100):
        await asyncio.gather(*(create(JobSpec(handler="bench.noop")) for _ in range(100)))
    return _SINGLE / (time.perf_counter() - begun)


async def _bulk(system: System) -> float:
    begun = time.perf_counter()
    await fill(system, _BULK)
    return _BULK / (time.perf_counter() - begun)


async def _insert(system: System) -> None:
    async with system.parts.store.database.connection() as connection:
        await connection.execute("INSERT INTO bare VALUES ($1, '{}')", system.parts.env.new_id())


async def _bare_single(system: System) -> float:
    begun = time.perf_counter()
    for _ in range(_SINGLE):
        await _insert(system)
    return _SINGLE / (time.perf_counter() - begun)


async def _bare_together(system: System) -> float:
    begun = time.perf_counter()
    for _ in range(_SINGLE // 100):
        await asyncio.gather(*(_insert(system) for _ in range(100)))
    return _SINGLE / (time.perf_counter() - begun)


async def _bare_copy(system: System) -> float:
    async with system.parts.store.database.connection() as connection:
        begun = time.perf_counter()
        records = [(id_, "{}") for id_ in system.parts.env.new_ids(_BULK)]
        await connection.copy_records_to_table("bare", records=records)
        return _BULK / (time.perf_counter() - begun)
