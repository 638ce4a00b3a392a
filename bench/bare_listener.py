"""The least that a node in Python could be: a connection that listens, and asks once a second whether a hint was lost."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_PROGRAM = """
import asyncio, sys, asyncpg

async def listen():
    connection = await asyncpg.connect(sys.argv[1])
    await connection.add_listener("unused", print)
    print("listening", flush=True)
    while True:
        await asyncio.sleep(1)
        await connection.fetchval("SELECT 1")

asyncio.run(listen())
"""


@asynccontextmanager
async def running_listener(dsn: str) -> AsyncIterator[int]:
    """Its process id, while it listens."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", _PROGRAM, dsn, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        if await process.stdout.readline() != b"listening\n":
            raise RuntimeError("the bare listener did not start")
        yield process.pid
    finally:
        process.terminate()
        await process.wait()
