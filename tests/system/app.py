"""The program that the workers of these tests run.

Every handler notes in a file outside of the system under test what it does: one line when it begins, one when it ends.
`cluster.Ledger` reads it. The file is opened for appending, so lines of many processes never mix.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg

from timeball import Timeball, current
from timeball.current import OutsideRun

tb = Timeball()

_ledger = os.open(os.environ["LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
_gates = Path(os.environ["GATES"])


def note(what: str, **more: object) -> None:
    line = {
        "what": what,
        "execution": current.execution_id,
        "fence": current.fence,
        "attempt": current.attempt,
        "handler": current.handler,
        "scheduled_for": current.scheduled_for.timestamp(),
        "pid": os.getpid(),
        "at": time.time(),
        "monotonic": time.monotonic(),
    }
    os.write(_ledger, json.dumps(line | more).encode() + b"\n")


@contextmanager
def noted(**more: object) -> Iterator[None]:
    note("begin", **more)
    try:
        yield
    except BaseException as error:
        note("cut", error=type(error).__name__)
        raise
    note("end")


@tb.handler(name="work")
async def work(
    seconds: float = 0, failures: int = 0, label: str = "", gate: str = "", fails_on_odd_seconds: bool = False
) -> str:
    """Take some time, from the opening of a gate on if there is one; fail in the first so many attempts, or for every other second."""
    with noted(label=label):
        while gate and not (_gates / gate).exists():
            await asyncio.sleep(0.01)
        if seconds:
            await asyncio.sleep(seconds)
        is_odd = current.scheduled_for.second % 2 == 1
        if current.attempt <= failures or (fails_on_odd_seconds and is_odd):
            raise RuntimeError("as it was asked to")
    return label


@tb.handler(name="wait")
async def wait(gate: str) -> None:
    """Run until the test opens a gate."""
    with noted(label=gate):
        while not (_gates / gate).exists():
            await asyncio.sleep(0.01)


@tb.handler(name="large")
async def large(gate: str, size: int) -> str:
    """The same, with a result that cannot be made small."""
    await wait(gate)
    return os.urandom(size // 2).hex()


@tb.handler(name="stubborn")
def stubborn(gate: str) -> None:
    """The same in a thread, and without ever asking whether it should stop."""
    with noted(label=gate):
        while not (_gates / gate).exists():
            time.sleep(0.01)


@tb.handler(name="isolated", isolate=True)
def isolated(gate: str) -> None:
    """The same in a process of its own."""
    with noted(label=gate):
        while not (_gates / gate).exists():
            time.sleep(0.01)


@tb.handler(name="block")
async def block(gate: str) -> None:
    """Keep the event loop from turning until the test opens a gate, as no coroutine should."""
    with noted():
        while not (_gates / gate).exists():
            time.sleep(0.01)


@tb.handler(name="poison")
async def poison() -> None:
    """Kill the worker that runs it."""
    note("begin")
    os.kill(os.getpid(), signal.SIGKILL)


@tb.handler(name="stop_the_loop")
async def stop_the_loop() -> None:
    note("begin")
    asyncio.get_running_loop().stop()
    await asyncio.sleep(60)


@tb.handler(name="cancel_everything")
async def cancel_everything() -> None:
    note("begin")
    for task in asyncio.all_tasks():
        task.cancel()
    await asyncio.sleep(60)


@tb.handler(name="exit_in_a_task")
async def exit_in_a_task() -> None:
    async def leave() -> None:
        sys.exit(0)

    note("begin")
    leaving = asyncio.create_task(leave())
    await asyncio.sleep(60)
    await leaving


@tb.handler(name="ignore_cancellation")
async def ignore_cancellation() -> None:
    note("begin", label="ignoring")
    while True:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)


def _fork() -> list[int]:
    """One copy uses what only the attempt may use, another comes back as if it were the attempt: how each of them ended."""
    ends = []
    for uses_it in (True, False):
        copy = os.fork()
        if copy == 0 and uses_it:
            try:
                current.log("from the copy")
            except OutsideRun as error:
                os._exit(42 if "forked" in str(error) else 1)
        if copy == 0:
            return []
        ends.append(os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1]))
    return ends


@tb.handler(name="fork_on_the_loop")
async def fork_on_the_loop() -> list[int]:
    with noted():
        return _fork()


@tb.handler(name="fork_in_a_thread")
def fork_in_a_thread() -> list[int]:
    with noted():
        return _fork()


@tb.handler(name="fork_isolated", isolate=True)
def fork_isolated() -> list[int]:
    with noted():
        return _fork()


@tb.handler(name="hold_tables")
def hold_tables(gate: str) -> None:
    """Lock the state tables until the test opens a gate: every statement that needs them waits, and keeps its connection."""
    with noted(), psycopg.connect(os.environ["TIMEBALL_DATABASE_URL"]) as connection:
        connection.execute("LOCK TABLE timeball.ready, timeball.running, timeball.due IN ACCESS EXCLUSIVE MODE")
        note("locked")
        while not (_gates / gate).exists():
            time.sleep(0.01)


_kept: list[bytearray] = []


@tb.handler(name="grow")
def grow(megabytes: int) -> int:
    """Keep so much memory for as long as the process lives."""
    _kept.append(bytearray(b"x") * (megabytes * 2**20))
    return os.getpid()
