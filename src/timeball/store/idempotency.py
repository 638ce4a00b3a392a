"""Requests made under an Idempotency-Key: begun, answered, forgotten.

The answer is written after the work is committed. A server that dies between the two leaves the key in flight; after
`PATIENCE` it may be used again, and the work may then be done a second time. Nothing shorter than a transaction over both would close
that gap, and the commands have transactions of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import orjson

from timeball.store.database import Database

KEEP = timedelta(hours=24)
PATIENCE = timedelta(minutes=5)
_SWEEP_EVERY = 100


@dataclass(frozen=True, slots=True)
class Remembered:
    """What is known under a key: the request, and its answer if there is one."""

    request_hash: bytes
    status: int | None
    headers: Mapping[str, str]
    body: bytes


class Requests:
    """The requests of the last day that bore a key."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._begun = 0

    async def begin(self, caller: str, key: str, request_hash: bytes) -> Remembered | None:
        """Reserve a key for a request; if it is taken, what is known under it."""
        self._begun += 1
        if self._begun % _SWEEP_EVERY == 1:
            await self._database.fetch("forget_old_requests", keep=KEEP)
        for _ in range(3):
            is_ours = await self._database.fetch_row(
                "begin_request", caller=caller, key=key, request_hash=request_hash, keep=KEEP, patience=PATIENCE
            )
            if is_ours is not None:
                return None
            known = await self._database.fetch_row("find_request", caller=caller, key=key)
            if known is not None:  # otherwise it was forgotten this very moment, and is free again
                return _remembered(known)
        return Remembered(request_hash, None, {}, b"")

    async def finish(self, caller: str, key: str, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Keep the answer."""
        await self._database.fetch(
            "finish_request", caller=caller, key=key, status=status, headers=orjson.dumps(headers).decode(), body=body
        )

    async def forget(self, caller: str, key: str) -> None:
        """Let the key be used again: nothing was done."""
        await self._database.fetch("forget_request", caller=caller, key=key)


def _remembered(row: Any) -> Remembered:
    headers = {} if row["headers"] is None else orjson.loads(row["headers"])
    return Remembered(row["request_hash"], row["status"], headers, row["body"] or b"")
