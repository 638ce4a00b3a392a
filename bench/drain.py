"""How fast does one worker process drain no-op jobs? And two?"""

from __future__ import annotations

from statistics import median

from bench.raw import fill, raw_drain_rate
from bench.system import System, system

_NUMBER = 60_000
_ROUNDS = 3
_RATE = """
SELECT count(*) / extract(epoch FROM max(finished_at) - min(started_at))
FROM timeball.finished
WHERE started_at >= $1 AND worker IS NOT NULL
"""


async def _engine_rate(bench: System, processes: int) -> float:
    begun = await bench.value("SELECT clock_timestamp()")
    before = await bench.value("SELECT count(*) FROM timeball.finished")
    await fill(bench, _NUMBER)
    bench.start("worker", "bench.app:tb", "--processes", str(processes))
    await bench.wait_for_finished(before + _NUMBER)
    bench.stop()
    return float(await bench.value(_RATE, begun))


async def ask() -> str:
    """Interleaved rounds; the raw loop runs before each."""
    raw: list[float] = []
    one: list[float] = []
    two: list[float] = []
    async with system() as bench:
        for _ in range(_ROUNDS):
            raw.append(await raw_drain_rate(bench, _NUMBER))
            one.append(await _engine_rate(bench, 1))
            two.append(await _engine_rate(bench, 2))
        bench.verify()
    return (
        f"one worker {median(one):,.0f}/s, two processes {median(two):,.0f}/s, raw statements {median(raw):,.0f}/s; "
        f"ratio to raw {median(one) / median(raw):.2f} and {median(two) / median(raw):.2f}"
    )
