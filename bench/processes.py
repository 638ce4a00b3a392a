"""What processes use, as the kernel counts it: CPU time and memory do not depend on who else is busy."""

from __future__ import annotations

import os
import time
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """CPU time of a process and of the children it has waited for."""
    waited_for = _stat(pid)[13:15]
    return time.clock_gettime(_clock_of(pid)) + sum(int(field) for field in waited_for) / _TICKS


def _clock_of(pid: int) -> int:
    """The clock of a process's CPU time, as `clock_getcpuclockid` has it: to the nanosecond, where `stat` has hundredths of a second.

    What an idle node uses in ten seconds is one or two of these.
    """
    return (~pid << 3) | 2


def family_cpu_seconds(pid: int) -> float:
    """CPU time of a process and of its children, living and dead."""
    return cpu_seconds(pid) + sum(_or_nothing(child) for child in children(pid))


def children(pid: int) -> list[int]:
    """The living children of a process."""
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in listed.split()]


def megabytes(pid: int) -> float:
    """The resident memory of a process that is its own."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    return 0.0


def _or_nothing(pid: int) -> float:
    try:
        return family_cpu_seconds(pid)
    except OSError:  # it has just ended
        return 0.0


def _stat(pid: int) -> list[str]:
    # The name stands in brackets and may contain anything.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
