"""Running plain functions in threads.

A thread cannot be ended from outside. A handler that is halted can see it (`current.cancelled`) and has a short grace
to end by itself; then its attempt is given up with the outcome the halt asks for, while the thread goes on as *overrunning*.
It keeps its place in the pool, so its slot must not be filled again until `on_freed` is called.
The threads are daemons: one that never ends does not keep the process from leaving.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextvars import Context, copy_context
from dataclasses import dataclass
from datetime import datetime, timedelta
from queue import SimpleQueue
from threading import Thread, get_ident
from types import FrameType

from timeball.clock import Clock
from timeball.current import RUNNING, RunContext, end_forked_copy
from timeball.domain.execution import Claimed, Outcome
from timeball.domain.handler import Handler
from timeball.runners.error_report import describe_interruption
from timeball.runners.verdict import outcome_of_error, outcome_of_halt, outcome_of_return, settle

GRACE = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Overrun:
    """A thread that still runs an attempt which was given up."""

    claimed: Claimed
    since: datetime
    thread: str


class ThreadRunner:
    """A pool of at most *threads* threads, each started when first needed."""
