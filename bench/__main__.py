"""`python -m bench [question ...]`: a table for each, and all of them in `bench/results/`.

Without a name all questions are asked but the long ones, in under ten minutes on a quiet machine. FULL=1 asks the long versions.
"""

from __future__ import annotations

import asyncio
import importlib
import signal
import sys
import time

from bench.lab import Lab, open_lab
from bench.notebook import Notebook
from bench.report import table, write

QUESTIONS = (
    "drain",
    "enqueue",
    "latency",
    "lateness",
    "recurring",
    "minute_zero",
    "backlog",
    "snapshot",
    "recovery",
    "footprint",
    "startup",
    "http",
)
# Asked by name only: they take minutes each.
LONG_QUESTIONS = (
    "costly_requests",
    "brokers",
    "webhooks",
    "pages",
    "growth_jobs",
    "growth_schedules",
    "growth_nodes",
    "anatomy",
    "groups",
    "alert_storm",
)
# Several questions under one name.
GROUPS = {"growth": ("growth_jobs", "growth_schedules", "growth_nodes")}


async def _ask(lab: Lab, name: str) -> Notebook:
    question = importlib.import_module(f"bench.{name}")
    lab.notebook = Notebook(name, question.TITLE, getattr(question, "LIMIT", None), getattr(question, "TARGETS", {}))
    await question.ask(lab)
    return lab.notebook


async def _ask_all(names: tuple[str, ...]) -> list[Notebook]:
    notebooks: list[Notebook] = []
    first = time.monotonic()
    async with open_lab() as lab:
        for name in names:
            begun = time.monotonic()
            notebooks.append(await _ask(lab, name))
            print(table(notebooks[-1]), f"\n  asked in {time.monotonic() - begun:.0f} s", flush=True)
            if names != QUESTIONS:
                write(notebooks[-1:], name)
    print(f"\nasked {len(names)} questions in {(time.monotonic() - first) / 60:.1f} minutes", flush=True)
    return notebooks


def main() -> None:
    names = tuple(question for name in sys.argv[1:] for question in GROUPS.get(name, (name,))) or QUESTIONS
    known = (*QUESTIONS, *LONG_QUESTIONS, *GROUPS)
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise SystemExit(f"unknown question {', '.join(unknown)}, expected one of {', '.join(known)}")
    # SIGTERM ends the servers and nodes too, as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    notebooks = asyncio.run(_ask_all(names))
    if names == QUESTIONS:
        write(notebooks, "all")


if __name__ == "__main__":
    main()
