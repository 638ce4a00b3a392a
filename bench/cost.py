"""What something costs, in what the kernel and the server count: these figures are the same on a busy machine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import astuple, dataclass

from bench.processes import family_cpu_seconds
from bench.system import System

_COUNTERS = """
SELECT xact_commit AS commits, blks_hit + blks_read AS buffers, pg_current_wal_insert_lsn() - '0/0' AS wal
FROM pg_stat_database
WHERE datname = current_database()
"""
# A session that is busy tells its counters once a second, and keeps the last of them for ten when it rests.
# One that ends, or is asked to, tells them at once.
_FLUSH = "SELECT pg_stat_force_next_flush()"
_SETTLE_SECONDS = 1.5


@dataclass
class Cost:
    """CPU seconds of some processes and of the database, commits, buffers, and bytes of the write-ahead log."""

    node: float = 0.0
    database: float = 0.0
    commits: float = 0.0
    buffers: float = 0.0
    wal: float = 0.0

    def over(self, number: float) -> Cost:
        """The share of each."""
        return Cost(*(value / number for value in astuple(self)))


@asynccontextmanager
async def metered(
    system: System, pids: Iterable[int] = (), then: Callable[[], None] | None = None
) -> AsyncIterator[Cost]:
    """What these processes and the database use meanwhile.

    *then* ends the processes that were busy, so that the server has all their counters; the others report them as late as before.
    """
    used, pids = Cost(), list(pids)
    counters = await _counters(system)
    nodes, database = sum(map(family_cpu_seconds, pids)), family_cpu_seconds(system.server_pid)
    yield used
    used.node = sum(map(family_cpu_seconds, pids)) - nodes
    used.database = family_cpu_seconds(system.server_pid) - database
    if then is not None:
        then()
        await asyncio.sleep(_SETTLE_SECONDS)
    now = await _counters(system)
    used.commits, used.buffers, used.wal = (late - early for early, late in zip(counters, now, strict=True))


async def _counters(system: System) -> tuple[float, ...]:
    # All of ours: what one of them has filled in is not to be counted with what others do later.
    await system.parts.store.database.on_each_idle(lambda connection: connection.execute(_FLUSH))
    return tuple(map(float, await system.row(_COUNTERS)))
