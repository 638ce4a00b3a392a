"""How late executions started, as the history has it."""

from __future__ import annotations

from datetime import datetime

from bench.lab import Lab
from bench.notebook import MILLISECONDS, NUMBER
from bench.system import System

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
    for name, value in zip(("p50 late", "p99 late", "worst"), figures["late"], strict=True):
        lab.note(subject, name, value, MILLISECONDS)
    lab.note(subject, "started", figures["number"], NUMBER)
    lab.note(subject, "early", figures["early"], NUMBER)
