"""Requests made under an Idempotency-Key: begun, answered, forgotten.

The answer is written after the work is committed. A server that dies between the two leaves the key in flight; after
`PATIENCE` it may be used again, and at once if the server could only say that it does not know. The same request is then the same
deed: what makes jobs or executions makes them under the ids of the first time, and finds them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

import orjson

from timeball.domain.deed import Deed
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

    async def begin(self, caller: str, key: str, request_hash: bytes) -> Remembered | Deed:
        """Reserve a key for a request; if it is taken, what is known under it."""
        fresh = self._database.env.new_id()
        self._begun += 1
        if self._begun % _SWEEP_EVERY == 1:
            await self._database.fetch("forget_old_requests", keep=KEEP)
        for _ in range(3):
            ours = await self._database.fetch_row(
                "begin_request",
                caller=caller,
                key=key,
                request_hash=request_hash,
                seed=str(fresh),
                keep=KEEP,
                patience=PATIENCE,
            )
            if ours is not None:
                return Deed(UUID(ours["seed"]), is_repeated=ours["seed"] != str(fresh))
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

    async def leave_open(self, caller: str, key: str) -> None:
        """Let the key be used again for the same: nobody knows whether it was done."""
        await self._database.fetch("leave_request_open", caller=caller, key=key, patience=PATIENCE)


def _remembered(row: Any) -> Remembered:
    is_answered = row["status"] is not None and row["headers"] is not None
    headers = orjson.loads(row["headers"]) if is_answered else {}
    return Remembered(row["request_hash"], row["status"], headers, row["body"] or b"")
