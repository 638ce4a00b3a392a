"""Sessions of the dashboard: a browser that showed an API key once, and bears a cookie from then on.

The cookie is 256 random bits, the table holds its SHA-256 (see keys: nobody guesses 256 bits). A session is never more
than its key: once that is revoked or expired, so is the session. It ends after a week, and earlier if it is not used.
"""

from __future__ import annotations

import secrets
from datetime import timedelta
from hashlib import sha256
from typing import Any

from timeball.store.database import Database
from timeball.store.jobs import Jobs
from timeball.store.keys import ApiKey, key_from
from timeball.store.placing import AuditEntry

LASTS = timedelta(days=7)


class Sessions:
    """The sessions of this database."""

    def __init__(self, database: Database, jobs: Jobs) -> None:
        self._database = database
        self._jobs = jobs

    async def begin(self, key_id: str, audit: AuditEntry, ends: str | None = None) -> str:
        """Begin a session of a key, and end the one that the browser had; returns the value of its cookie.

        It can never be shown again.
        """
        token = secrets.token_urlsafe(32)
        await self._database.fetch("forget_old_sessions")
        note = self._database.env.new_id()

        async def work(connection: Any) -> None:
            if ends is not None:
                await self._database.fetch("end_session", connection, token_hash=_hash(ends))
            await self._database.fetch("add_session", connection, token_hash=_hash(token), key_id=key_id, lasts=LASTS)
            await self._jobs.audit(connection, note, audit, "session.begin", f"key:{key_id}", None, None)

        await self._database.once(work, note)
        return token

    async def recognise(self, token: str, idle: timedelta, *, is_use: bool) -> ApiKey | None:
        """The key behind a session, if both may be used now; a session ends after *idle* without a use."""
        row = await self._database.fetch_row("find_session", token_hash=_hash(token), idle=idle)
        if row is not None and is_use:
            await self._database.fetch("note_session_use", token_hash=_hash(token))
        return None if row is None else key_from(row)

    async def end(self, token: str) -> None:
        """Let a session open nothing from now on."""
        await self._database.fetch("end_session", token_hash=_hash(token))

    async def signing_secret(self) -> bytes:
        """What signs notes in cookies; the same for all processes on this database."""
        secret: bytes = await self._database.fetch_value("read_dashboard_secret")
        return secret


def _hash(token: str) -> bytes:
    return sha256(token.encode()).digest()
