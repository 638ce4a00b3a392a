"""The program the benchmarks run."""

import asyncio

from timeball import Timeball

tb = Timeball()


@tb.handler(name="bench.noop")
async def noop() -> None:
    """Do nothing."""


@tb.handler(name="bench.fail")
async def fail() -> None:
    """Fail every time."""
    raise RuntimeError("as it is meant to")


@tb.handler(name="bench.sleep")
async def sleep(seconds: float = 0.001) -> None:
    """Wait for something, as most handlers do."""
    await asyncio.sleep(seconds)


@tb.handler(name="bench.thread")
def thread() -> None:
    """Do nothing, in a thread."""
