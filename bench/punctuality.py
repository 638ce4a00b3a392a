"""How late executions started, as the history has it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from statistics import quantiles

from bench.lab import Lab
from bench.load import raw_lateness
from bench.notebook import MILLISECONDS, NUMBER
from bench.system import System

BARE_STATEMENTS = "bare statements"
_P50, _P99, _WORST = "p50 late", "p99 late", "worst"
_NAMES = {0.5: _P50, 0.99: _P99, 1.0: _WORST}
_FIGURES = """
SELECT count(*) AS number,
       percentile_cont(ARRAY[0.5, 0.99, 1.0]) WITHIN GROUP (ORDER BY extract(epoch FROM started_at - scheduled_for) * 1000) AS late,
       count(*) FILTER (WHERE started_at < scheduled_for) AS early
FROM timeball.finished
WHERE scheduled_for >= $1 AND state = 'succeeded'
"""


async def note_lateness(lab: Lab, system: System, subject: str, since: datetime) -> None:
    """Write down the lateness of everything that was scheduled since then."""
    figures = await system.row(_FIGURES, since)
    for name, value in zip(_NAMES.values(), figures["late"], strict=True):
        lab.note(subject, name, value, MILLISECONDS)
    lab.note(subject, "started", figures["number"], NUMBER)
    lab.note(subject, "early", figures["early"], NUMBER)


def percentiles(milliseconds: Sequence[float]) -> dict[str, float]:
    """The same figures of what was measured here."""
    cuts = quantiles(milliseconds, n=100, method="inclusive")
    return {_P50: cuts[49], _P99: cuts[98], _WORST: max(milliseconds)}


async def note_bare_lateness(lab: Lab, number: int) -> None:
    """Write down, as the limit, how late a crowd is that is due at one instant and only then claimed, by the bare statements."""
    async with lab.system() as system:
        for part, late in (await raw_lateness(system, number)).items():
            lab.note(BARE_STATEMENTS, _NAMES[part], late, MILLISECONDS)
