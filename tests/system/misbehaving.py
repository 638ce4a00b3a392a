"""A program of handlers that do what handlers should not, beside one that is punctual."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from contextlib import suppress

from timeball import Timeball

tb = Timeball()
leaked: list[bytearray] = []


@tb.every("1s", name="neighbour", overlap="allow", misfire="all")
async def neighbour() -> None:
    """What must not suffer."""


@tb.every("7s", name="block")
async def block() -> None:
    time.sleep(3)


@tb.every("2s", name="crash", retries=0, max_lost=1)
@tb.handler(isolate=True)
def crash() -> None:
    os._exit(3)


@tb.handler
async def kill_the_worker() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@tb.every("1s", name="leak")
async def leak() -> None:
    leaked.append(bytearray(200_000))


@tb.every("1s", name="flood")
async def flood() -> None:
    for number in range(2_000):
        print(f"{number:0200d}")
        logging.getLogger("flood").warning("line %d", number)


@tb.every("3s", name="ignore", timeout="1s", overlap="allow", retries=0)
async def ignore() -> None:
    for _ in range(10):
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(1)
