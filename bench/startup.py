"""How long does it take until a command answers?"""

from __future__ import annotations

import subprocess
import sys
import time
from functools import partial
from typing import Any

import typer

from bench.lab import Lab
from bench.notebook import MILLISECONDS
from bench.system import ROOT
from timeball.cli.app import app

TITLE = "start-up of each command"
LIMIT = "an empty Python program"
TARGETS = {("timeball --help", "time"): "below 150 ms"}
_COMPUTED = ("next", "0 6 * * *", "--tz", "Europe/Berlin")
_ROUNDS = 3


async def ask(lab: Lab) -> None:
    """The help of each command and noun, for which all of it is imported, and one that computes something; all in turn."""
    root: Any = typer.main.get_command(app)
    commands = [("--help",), _COMPUTED, *((name, "--help") for name in root.commands)]
    variants = {LIMIT: partial(_run, "-c", "pass")}
    for command in commands:
        variants[f"timeball {' '.join(command)}"] = partial(_run, "-m", "timeball", *command)
    await lab.interleave(variants, "time", _ROUNDS, MILLISECONDS)


async def _run(*arguments: str) -> float:
    begun = time.perf_counter()
    subprocess.run([sys.executable, *arguments], cwd=ROOT, check=True, capture_output=True)
    return (time.perf_counter() - begun) * 1000
