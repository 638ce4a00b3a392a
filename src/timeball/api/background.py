"""Works off operations beside the answering of requests. Nobody waits for it; it looks once a second."""

from __future__ import annotations

import asyncio
import logging
from uuid import UUID

from timeball.commands import Commands
from timeball.errors import StoreError

_PAUSE_SECONDS = 1.0
_log = logging.getLogger("timeball.api")


class OperationLoop:
    """Takes operations that nobody alive holds, and does them, one after the other."""

    def __init__(self, commands: Commands, holder: UUID) -> None:
        self._commands = commands
        self._holder = holder

    async def run(self) -> None:
        """Go on until cancelled; an operation that is cut off so is taken up again when its lease has ended."""
        while True:
            try:
                is_busy = await self.round()
            except StoreError as error:
                _log.warning("operations wait for the database: %s", error)
                is_busy = False
            except Exception:
                # It has been ended as failed; the next one may do better.
                _log.exception("an operation failed")
                is_busy = False
            if not is_busy:
                await asyncio.sleep(_PAUSE_SECONDS)

    async def round(self) -> bool:
        """Do one operation, if one waits."""
        operation = await self._commands.take_operation(self._holder)
        if operation is None:
            return False
        await self._commands.work_off(operation, self._holder)
        return True
