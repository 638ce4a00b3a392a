"""Operations without a server: who waits for one in this process works it off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from timeball.api.background import OperationLoop
    from timeball.client.in_process import AsgiApp

_OPERATIONS = "/api/v1/operations/"


@asynccontextmanager
async def working_off(app: AsgiApp, loop: OperationLoop) -> AsyncIterator[AsgiApp]:
    """*app*, and *loop* beside it as soon as somebody asks after an operation.

    Not before: a command that does not wait must not begin what it would leave half done, held by nobody.
    """
    work: list[asyncio.Task[None]] = []

    async def asked(scope: Any, receive: Any, send: Any) -> None:
        if not work and scope["path"].startswith(_OPERATIONS):
            work.append(asyncio.create_task(loop.run()))
        await app(scope, receive, send)

    try:
        yield asked
    finally:
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)
