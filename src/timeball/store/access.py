"""API keys, dashboard sessions, and requests under an idempotency key."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from uuid import UUID

import orjson

from timeball.domain.values.field_errors import list_choices, unexpected_value
from timeball.domain.values.ids import IdempotentRequest
from timeball.domain.values.text import check_label
from timeball.errors import NotFound
from timeball.store.db.columns import write_audit
from timeball.store.history import IDEMPOTENCY_KEYS_KEPT_FOR
from timeball.store.types import AuditEntry

if TYPE_CHECKING:
    from timeball.store.db.database import Database

# A token is `tb_<id>_<secret>`. The secret has 256 random bits, and the table has its SHA-256. A slow hash would protect a password
# that can be guessed; 256 bits cannot be guessed, so a fast hash is enough.

_TOKEN_PREFIX = "tb"  # noqa: S105 - the part of a key that is not secret
ROLES = ("viewer", "operator", "editor", "admin")


@dataclass(frozen=True, slots=True)
class ApiKey:
    """An API key without its token."""

    id: str
    name: str
    role: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    used_at: datetime | None


class ApiKeyStore:
    """The API keys of this database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, role: str, name: str, expires_in: timedelta | None, audit: AuditEntry) -> tuple[ApiKey, str]:
        """Create a key, and return it with its token, which cannot be read again."""
        if role not in ROLES:
            raise unexpected_value("role", role, list_choices(ROLES))
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
            await write_audit(self._database, connection, note, audit, "key.create", f"key:{key_id}", None, facts)
            return _key_from(row)

        return await self._database.once(work, note), f"{_TOKEN_PREFIX}_{key_id}_{secret}"

    async def recognise(self, token: str) -> ApiKey | None:
        """The key of a token, if it is neither revoked nor expired."""
        prefix, _, rest = token.partition("_")
        key_id, _, secret = rest.partition("_")
        if prefix != _TOKEN_PREFIX or not secret or not token.isascii() or not key_id.isalnum():
            return None
        row = await self._database.fetch_row("find_api_key", id=key_id)
        # It compares in either case, so that the time does not tell whether the key exists.
        token_hash = b"" if row is None else row["token_hash"]
        if not hmac.compare_digest(token_hash, _hash(secret)):
            return None
        await self._database.fetch("note_api_key_use", id=key_id)
        return _key_from(row)

    async def list(self) -> Sequence[ApiKey]:
        """All keys, including revoked and expired ones."""
        return [_key_from(row) for row in await self._database.fetch("list_api_keys")]

    async def revoke(self, key_id: str, audit: AuditEntry) -> ApiKey:
        """Revoke a key."""
        note = self._database.env.new_id()

        async def work(connection: Any) -> ApiKey:
            row = await self._database.fetch_row("revoke_api_key", connection, id=key_id)
            if row is None:
                raise NotFound("key", key_id)
            await write_audit(
                self._database, connection, note, audit, "key.revoke", f"key:{key_id}", None, {"revoked": True}
            )
            return _key_from(row)

        key: ApiKey = await self._database.once(work, note)
        return key

    async def note_refused(self, place: str, count: int) -> None:
        """Audit that requests or logins from a place had no valid key."""
        note = self._database.env.new_id()
        entry = AuditEntry("unknown", place=place)

        async def work(connection: Any) -> None:
            subject = f"address:{place.rpartition(' ')[2]}"
            await write_audit(self._database, connection, note, entry, "key.refused", subject, None, {"count": count})

        await self._database.once(work, note)

    async def any_made(self) -> bool:
        """Whether a key was ever created."""
        return bool(await self._database.fetch_value("has_api_keys"))

    async def any_usable(self) -> bool:
        """Whether there is a key that is neither revoked nor expired."""
        return bool(await self._database.fetch_value("has_usable_api_key"))


def _key_from(row: Any) -> ApiKey:
    """A key from its row."""
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


# A session of the dashboard is a browser that has shown an API key, and sends a cookie from then on. The cookie has 256 random bits, and
# the table has its SHA-256. A session is valid only while its key is. It ends after a week, and earlier if it is not used.

SESSION_LASTS = timedelta(days=7)


class SessionStore:
    """The sessions of this database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def begin(self, key_id: str, audit: AuditEntry, ends: str | None = None) -> str:
        """Begin a session, and end the one that the browser had; returns the value of the cookie, which cannot be read again."""
        token = secrets.token_urlsafe(32)
        await self._database.fetch("forget_old_sessions")
        note = self._database.env.new_id()

        async def work(connection: Any) -> None:
            if ends is not None:
                await self._database.fetch("end_session", connection, token_hash=_token_hash(ends))
            await self._database.fetch(
                "add_session", connection, token_hash=_token_hash(token), key_id=key_id, lasts=SESSION_LASTS
            )
            await write_audit(self._database, connection, note, audit, "session.begin", f"key:{key_id}", None, None)

        await self._database.once(work, note)
        return token

    async def recognise(self, token: str, idle: timedelta, *, is_use: bool) -> ApiKey | None:
        """The key of a session, if both are valid; a session ends after *idle* without a use."""
        row = await self._database.fetch_row("find_session", token_hash=_token_hash(token), idle=idle)
        if row is not None and is_use:
            await self._database.fetch("note_session_use", token_hash=_token_hash(token))
        return None if row is None else _key_from(row)

    async def end(self, token: str) -> None:
        """End a session."""
        await self._database.fetch("end_session", token_hash=_token_hash(token))

    async def signing_secret(self) -> bytes:
        """The secret that signs messages in cookies, the same for all processes of this database."""
        secret: bytes = await self._database.fetch_value("read_dashboard_secret")
        return secret


def _token_hash(token: str) -> bytes:
    return sha256(token.encode()).digest()


# The answer to a request under an Idempotency-Key is stored after its work is committed. A server that dies in between leaves the key
# reserved. The request may be repeated after `IN_FLIGHT_TIMEOUT`, and at once if the server has answered that it does not know the
# outcome. The repeated request uses the ids of the first one, so it finds jobs and executions that the first one has created.


IN_FLIGHT_TIMEOUT = timedelta(minutes=5)
_SWEEP_EVERY = 100


@dataclass(frozen=True, slots=True)
class IdempotencyRecord:
    """A request under a key, and its answer if there is one."""

    request_hash: bytes
    status: int | None
    headers: Mapping[str, str]
    body: bytes


class IdempotencyKeyStore:
    """The requests of the last day under idempotency keys."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._begun = 0

    async def begin(self, caller: str, key: str, request_hash: bytes) -> IdempotencyRecord | IdempotentRequest:
        """Reserve a key for a request; if it is taken, return the request under it."""
        fresh = self._database.env.new_id()
        self._begun += 1
        if self._begun % _SWEEP_EVERY == 1:
            await self._database.fetch("forget_old_requests", keep=IDEMPOTENCY_KEYS_KEPT_FOR)
        for _ in range(3):
            ours = await self._database.fetch_row(
                "begin_request",
                caller=caller,
                key=key,
                request_hash=request_hash,
                seed=str(fresh),
                keep=IDEMPOTENCY_KEYS_KEPT_FOR,
                patience=IN_FLIGHT_TIMEOUT,
            )
            if ours is not None:
                return IdempotentRequest(UUID(ours["seed"]), is_repeated=ours["seed"] != str(fresh))
            row = await self._database.fetch_row("find_request", caller=caller, key=key)
            if row is not None:  # otherwise it was deleted in between, and is free again
                return _idempotency_record_from(row)
        return IdempotencyRecord(request_hash, None, {}, b"")

    async def finish(self, caller: str, key: str, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Store the answer."""
        await self._database.fetch(
            "finish_request", caller=caller, key=key, status=status, headers=orjson.dumps(headers).decode(), body=body
        )

    async def forget(self, caller: str, key: str) -> None:
        """Release the key: nothing was done."""
        await self._database.fetch("forget_request", caller=caller, key=key)

    async def leave_open(self, caller: str, key: str) -> None:
        """Let the same request run again under the key: it is unknown whether it was done."""
        await self._database.fetch("leave_request_open", caller=caller, key=key, patience=IN_FLIGHT_TIMEOUT)


def _idempotency_record_from(row: Any) -> IdempotencyRecord:
    is_answered = row["status"] is not None and row["headers"] is not None
    headers = orjson.loads(row["headers"]) if is_answered else {}
    return IdempotencyRecord(row["request_hash"], row["status"], headers, row["body"] or b"")
