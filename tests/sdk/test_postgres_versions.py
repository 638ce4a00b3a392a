"""The same program on the oldest and the newest PostgreSQL, and through PgBouncer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager

from timeball import Timeball


async def test_a_program_runs_the_same(tb: Timeball, node: Callable[[], AbstractContextManager[None]]) -> None:
    @tb.handler
    def add(a: int, b: int) -> int:
        return a + b

    @tb.every("1h", name="hourly")
    @tb.handler(max_running=1)
    async def answer() -> int:
        return 42

    await tb.async_sync_schedules()
    runs = [
        await add.aenqueue(1, b=2),
        *await add.aenqueue_many([add.call(2, 2), add.call(3, b=3)]),
        await answer.aenqueue(),
        await answer.options(key="one", delay="1s").aenqueue(),
        await tb.jobs.atrigger("hourly"),
    ]

    with node():
        assert await asyncio.gather(*(run.aresult(timeout=30) for run in runs)) == [3, 4, 6, 42, 42, 42]
