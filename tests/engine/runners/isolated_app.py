"""An app whose handlers are run in child processes, most of them badly behaved. Imported by those children."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from timeball.current import OutsideRun, Snooze, current
from timeball.handlers.registry import Registry, make_handler

registry = Registry()
_seen: list[int] = []


def handler(function: Callable[..., Any]) -> Callable[..., Any]:
    registry.add(make_handler(function, name=function.__name__, isolate=True))
    return function


def note_pid(file: str | Path) -> None:
    partial = Path(f"{file}.partial")
    partial.write_text(f"{os.getpid()}\n")
    partial.rename(file)


@handler
def pids() -> list[int]:
    _seen.append(os.getpid())
    return [os.getpid(), os.getppid(), os.getsid(0), len(_seen)]


@handler
def know() -> list[Any]:
    return [current.execution_id, current.attempt, current.fence, current.scheduled_for, current.queue]


@handler
def environment() -> dict[str, str]:
    printed = subprocess.run(["/usr/bin/env", "-0"], capture_output=True, check=True).stdout.decode().split("\0")
    told = ("ATTEMPT", "EXECUTION_ID", "FENCE", "JOB_ID", "JOB_NAME", "ORIGIN", "SCHEDULED_FOR")
    variables = dict(line.split("=", 1) for line in printed if "=" in line)
    return {name: value for name, value in variables.items() if name.removeprefix("TIMEBALL_") in told}


@handler
async def add(a: int, b: int) -> int:
    await asyncio.sleep(0)
    return a + b


@handler
def add_later(a: int, b: int) -> Any:
    return add(a, b)


@handler
def talk() -> None:
    print("printed")
    sys.stderr.write("to stderr\n")
    subprocess.run(["/bin/sh", "-c", "echo from a program; printf unfinished"], check=True)
    logging.getLogger("app").info("logged %d", 1)
    current.log("said", page=1)
    current.progress(0.5, "half")


@handler
def flood(megabytes: int) -> None:
    for _ in range(megabytes):
        sys.stdout.write(("x" * 1023 + "\n") * 1024)


@handler
def fail() -> None:
    raise LookupError("nothing\0there")


@handler
def snooze() -> Snooze:
    return Snooze("5m")


@handler
def leave_with(code: int) -> None:
    os._exit(code)


@handler
def kill_with(number: int) -> None:
    os.kill(os.getpid(), number)


@handler
def call_exit() -> None:
    sys.exit(3)


_kept: list[bytearray] = []


@handler
def grow(megabytes: int) -> int:
    """Keep more memory from run to run, as a library that leaks does."""
    _kept.append(bytearray(os.urandom(1)) * (megabytes * 2**20))
    return os.getpid()


@handler
def eat_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (400 * 2**20, resource.RLIM_INFINITY))
    eaten = []
    while True:
        eaten.append(bytearray(50 * 2**20))


@handler
def hang(file: str) -> None:
    note_pid(file)
    time.sleep(3600)


@handler
async def hang_async(file: str) -> None:
    note_pid(file)
    await asyncio.sleep(3600)


@handler
def clean_up(file: str) -> None:
    try:
        note_pid(file)
        time.sleep(3600)
    finally:
        Path(f"{file}.cleaned").touch()


@handler
def clean_up_after_the_error(file: str) -> str:
    """What real code does: cancel its query, roll back, say so, go on with the error."""
    try:
        note_pid(file)
        time.sleep(3600)
    except Exception as error:
        Path(f"{file}.cleaned").write_text(f"{type(error).__name__}: {error}; {current.stop_reason}")
        raise
    return "never"


@handler
def swallow_the_error(file: str) -> None:
    """Go on as if nothing had happened."""
    note_pid(file)
    while True:
        try:
            time.sleep(3600)
        except Exception:
            Path(f"{file}.swallowed").touch()


@handler
async def tell_why(file: str) -> None:
    note_pid(file)
    try:
        await asyncio.sleep(3600)
    finally:
        Path(f"{file}.cleaned").write_text(str(current.stop_reason))


@handler
def stop_when_asked(file: str) -> None:
    note_pid(file)
    while not current.cancelled:
        time.sleep(0.005)


@handler
def defy(folder: str) -> None:
    """Ignore TERM, and leave a daemon behind that does so too: forked twice, in a session of its own."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            note_pid(Path(folder, "daemon"))
            time.sleep(3600)
        os._exit(0)
    subprocess.Popen(
        ["/bin/sh", "-c", f"trap '' TERM; echo $$ > {folder}/p; mv {folder}/p {folder}/program; sleep 3600"]
    )
    note_pid(Path(folder, "handler"))
    while True:
        try:
            time.sleep(3600)
        except BaseException:
            continue


@handler
def block_everything(file: str) -> None:
    """Hold the interpreter's lock, so that no other thread and no signal handler of Python's can run."""
    note_pid(file)
    sum(range(10**12))


@handler
def leave_daemon(file: str) -> None:
    if os.fork() == 0:
        os.setsid()
        note_pid(file)
        time.sleep(3600)
    while not Path(file).exists():
        time.sleep(0.005)
    os._exit(5)


@handler
def leave_child_behind(file: str) -> int:
    program = subprocess.Popen(["/bin/sleep", "3600"])
    partial = Path(f"{file}.partial")
    partial.write_text(f"{program.pid}\n")
    partial.rename(file)
    return os.getpid()


@handler
def fork_and_return() -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) if (child := os.fork()) else 0


@handler
def fork_and_use() -> int:
    child = os.fork()
    if child == 0:
        try:
            current.log("from the copy")
        except OutsideRun:
            os._exit(42)
        os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@handler
def scribble() -> None:
    """Write nonsense into every socket this process has."""
    for descriptor in range(3, 20):
        try:
            os.write(descriptor, b"\xff" * 64)
        except OSError:
            continue
    time.sleep(3600)


@handler
def return_odd(number: int) -> Any:
    from tests.engine import hostile_values  # here: the other handlers start quicker without

    current.log(hostile_values.RETURNED[number], odd=hostile_values.Odd("odd"))
    current.progress(0.5, hostile_values.RETURNED[number])
    return hostile_values.RETURNED[number]


@handler
def raise_odd(number: int) -> None:
    from tests.engine import hostile_values

    raise hostile_values.raised()[number]


@handler
def say_much() -> None:
    current.log("x" * 20_000_000)
