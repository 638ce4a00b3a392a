"""What every handler does, in every peer: write down that it was started.

A mark is 24 bytes (number, instant, start), appended to one file with one system call of about a microsecond. A file keeps what
a killed process has written, needs no server that could be the limit, and is counted by its size.
The start is read on CLOCK_MONOTONIC, which all processes of a machine share, Node.js included.
"""

from __future__ import annotations

import os
import struct
import time

MARK = struct.Struct("<qqq")
# A long job marks its end; its start is marked under a number of its own.
STARTED = 1_000_000_000

_descriptor = -1


def mark(number: int, instant: float = 0.0) -> None:
    """Note that job *number* runs; *instant* (seconds since 1970) is the one its schedule named, if it says so."""
    now = time.monotonic_ns()
    os.write(_opened(), MARK.pack(number, round(instant * 1_000_000), now))


def _opened() -> int:
    global _descriptor
    if _descriptor < 0:
        _descriptor = os.open(os.environ["PEER_MARKS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    return _descriptor


def schedules() -> range:
    """The numbers of the schedules that are to fire every second: none, unless that is what is measured."""
    return range(int(os.environ.get("PEER_SCHEDULES", "0")))
