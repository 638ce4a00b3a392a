"""API keys: made, listed, revoked, recognised.

A token is `tb_<id>_<secret>`, the secret 256 random bits; the table holds its SHA-256. A slow hash would protect a
guessable password; nobody guesses 256 bits, so a quick one is right here.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any

from timeball.domain.text import check_label
from timeball.errors import InvalidInput, NotFound
from timeball.store.database import Database
from timeball.store.jobs import Jobs
from timeball.store.placing import AuditEntry

_PREFIX = "tb"
ROLES = ("viewer", "operator", "editor", "admin")


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key as it may be shown: everything but the token."""

    id: str
    name: str
    role: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    used_at: datetime | None


class Keys:
    """The keys of this database."""

    def __init__(self, database: Database, jobs: Jobs) -> None:
        self._database = database
        self._jobs = jobs

    async def create(self, role: str, name: str, expires_in: timedelta | None, audit: AuditEntry) -> tuple[ApiKey, str]:
        """Make a key; the second of the pair is its token, which can never be shown again."""
        if role not in ROLES:
            raise InvalidInput(f"role is {role!r}, expected one of {', '.join(ROLES)}", field="role")
        check_label(name, "name")
        key_id, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
        note = self._database.env.new_id()

        async def work(connection: Any) -> ApiKey:
            row = await self._database.fetch_row(
                "add_api_key",
                connection,
                id=key_id,
                name=name,
                role=role,
                token_hash=_hash(secret),
                expires_in=expires_in,
            )
            facts = {"name": name, "role": role}
            await self._jobs.audit(connection, note, audit, "key.create", f"key:{key_id}", None, facts)
            return key_from(row)

        return await self._database.once(work, note), f"{_PREFIX}_{key_id}_{secret}"

    async def recognise(self, token: str) -> ApiKey | None:
        """The key a token belongs to, if it may be used now."""
        prefix, _, rest = token.partition("_")
        key_id, _, secret = rest.partition("_")
        if prefix != _PREFIX or not secret or not token.isascii() or not key_id.isalnum():
            return None
        row = await self._database.fetch_row("find_api_key", id=key_id)
        # A comparison is made either way, so that the time tells nothing.
        known = b"" if row is None else row["token_hash"]
        if not hmac.compare_digest(known, _hash(secret)):
            return None
        await self._database.fetch("note_api_key_use", id=key_id)
        return key_from(row)

    async def list(self) -> Sequence[ApiKey]:
        """All keys, the revoked and expired ones too."""
        return [key_from(row) for row in await self._database.fetch("list_api_keys")]

    async def revoke(self, key_id: str, audit: AuditEntry) -> ApiKey:
        """Let a key open nothing from now on."""
        note = self._database.env.new_id()

        async def work(connection: Any) -> ApiKey:
            row = await self._database.fetch_row("revoke_api_key", connection, id=key_id)
            if row is None:
                raise NotFound("key", key_id)
            await self._jobs.audit(connection, note, audit, "key.revoke", f"key:{key_id}", None, {"revoked": True})
            return key_from(row)

        found: ApiKey = await self._database.once(work, note)
        return found

    async def note_refused(self, place: str, count: int) -> None:
        """Write down that requests or logins from a place bore no valid key."""
        note = self._database.env.new_id()
        entry = AuditEntry("unknown", place=place)

        async def work(connection: Any) -> None:
            subject = f"address:{place.rpartition(' ')[2]}"
            await self._jobs.audit(connection, note, entry, "key.refused", subject, None, {"count": count})

        await self._database.once(work, note)

    async def any_made(self) -> bool:
        """Whether a key was ever made here."""
        return bool(await self._database.fetch_value("has_api_keys"))

    async def any_usable(self) -> bool:
        """Whether somebody could come in with a key now."""
        return bool(await self._database.fetch_value("has_usable_api_key"))


def key_from(row: Any) -> ApiKey:
    """A key out of its row."""
    return ApiKey(
        row["id"],
        row["name"],
        row["role"],
        row["created_at"],
        row["expires_at"],
        row["revoked_at"],
        row["used_at"],
    )


def _hash(secret: str) -> bytes:
    return sha256(secret.encode()).digest()
