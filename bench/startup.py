"""How long does it take until a command answers?"""

from __future__ import annotations

import subprocess
import sys
import time
from functools import partial

from bench.lab import Lab
from bench.notebook import MILLISECONDS
from bench.system import ROOT

TITLE = "start-up of commands"
LIMIT = "an empty Python program"
TARGETS = {("timeball --help", "time"): "below 150 ms"}
_COMMANDS = (
    ("--help",),
    ("next", "0 6 * * *", "--tz", "Europe/Berlin"),
    ("worker", "--help"),
    ("up", "--help"),
)


async def ask(lab: Lab) -> None:
    """Each one five times, in turn."""
    variants = {LIMIT: partial(_run, "-c", "pass")}
    for command in _COMMANDS:
        variants[f"timeball {' '.join(command)}"] = partial(_run, "-m", "timeball", *command)
    await lab.interleave(variants, "time", rounds=5, unit=MILLISECONDS)


async def _run(*arguments: str) -> float:
    begun = time.perf_counter()
    subprocess.run([sys.executable, *arguments], cwd=ROOT, check=True, capture_output=True)
    return (time.perf_counter() - begun) * 1000
