"""Processes and what they have started: some peers fork, and some of their children leave the group."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import NamedTuple

from bench.processes import children


class Member(NamedTuple):
    """A process that cannot be taken for a later one with the same number."""

    pid: int
    birth: str


def family(pid: int) -> list[Member]:
    """A process and all its descendants, the eldest first; empty if it has ended."""
    try:
        return [Member(pid, _birth(pid)), *(member for child in children(pid) for member in family(child))]
    except OSError:
        return []


def kill(member: Member) -> None:
    """End it at once, if it is still itself."""
    with contextlib.suppress(OSError):
        if _birth(member.pid) == member.birth:
            os.kill(member.pid, signal.SIGKILL)


def _birth(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
