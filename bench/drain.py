"""How fast are no-op jobs drained, by one worker process and by two?"""

from __future__ import annotations

from functools import partial

from bench.lab import Lab
from bench.load import drain_rate, fill, raw_drain_rate
from bench.notebook import MICROSECONDS
from bench.system import System

TITLE = "draining jobs that do nothing"
LIMIT = "raw statements"
TARGETS = {
    ("one worker", "rate"): "25,000/s, 0.6 of the limit",
    ("two processes", "rate"): "35,000/s",
}
# Several seconds of each, or the first claims of a worker and the start of the second process are what is measured.
_NUMBER = 60_000


async def ask(lab: Lab) -> None:
    """Interleaved rounds; what waits a millisecond has 200 slots, and threads the default."""
    async with lab.system() as system:
        await lab.interleave(
            {
                LIMIT: partial(raw_drain_rate, system, _NUMBER),
                "one worker": partial(drain_rate, system, _NUMBER),
                "two processes": partial(drain_rate, system, 2 * _NUMBER, "--processes", "2"),
                "1 ms waits, 200 slots": partial(
                    drain_rate, system, _NUMBER // 3, "--slots", "200", handler="bench.sleep"
                ),
                "threads": partial(drain_rate, system, _NUMBER // 6, handler="bench.thread"),
            },
            "rate",
            rounds=3,
        )
        await _cost(lab, system)


async def _cost(lab: Lab, system: System) -> None:
    """CPU time of an execution, which a busy neighbour cannot change."""
    before = await system.value("SELECT count(*) FROM timeball.finished")
    await system.start_nodes(workers=1)
    with system.cpu() as used:
        await fill(system, _NUMBER)
        await system.wait_for_finished(before + _NUMBER)
    lab.note("one worker", "CPU per execution, worker", used.nodes / _NUMBER * 1e6, MICROSECONDS)
    lab.note("one worker", "CPU per execution, database", used.server / _NUMBER * 1e6, MICROSECONDS)
