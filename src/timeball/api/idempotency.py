"""Idempotency-Key: a POST that is sent again gets the first answer again, and does nothing."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from timeball.api.auth import Caller
from timeball.api.problems import Refusal
from timeball.domain.deed import Deed
from timeball.errors import StoreUnavailable

HEADER = "idempotency-key"
_LONGEST = 200
_log = logging.getLogger("timeball.api")
_KEPT_HEADERS = ("content-type", "location", "etag")


class Answer(Protocol):
    """What is remembered of a request."""

    @property
    def request_hash(self) -> bytes: ...
    @property
    def status(self) -> int | None: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def body(self) -> bytes: ...


class Memory(Protocol):
    """Where requests and their answers are remembered."""

    async def begin(self, caller: str, key: str, request_hash: bytes) -> Answer | Deed: ...
    async def finish(self, caller: str, key: str, status: int, headers: Mapping[str, str], body: bytes) -> None: ...
    async def forget(self, caller: str, key: str) -> None: ...
    async def leave_open(self, caller: str, key: str) -> None: ...


async def answer_once(
    memory: Memory, app: ASGIApp, scope: Scope, receive: Receive, send: Send, *, caller: Caller, key: str, body: bytes
) -> None:
    """Let the app answer, unless it has answered this very request before."""
    if not 1 <= len(key) <= _LONGEST or not key.isascii() or not key.isprintable():
        raise Refusal(422, "invalid_idempotency_key", f"Idempotency-Key is not 1 to {_LONGEST} printable characters")
    request_hash = sha256(b"\0".join((scope["path"].encode(), scope["query_string"], body))).digest()
    known = await memory.begin(caller.name, key, request_hash)
    if not isinstance(known, Deed):
        await _replay(known, request_hash, send)
        return
    scope["state"]["caller"] = replace(caller, deed=known)
    recorder = _Recorder(send)
    try:
        await app(scope, receive, recorder.send)
    except Exception:
        await memory.leave_open(caller.name, key)
        raise
    # A request that is cut off may have been done: its key stays in flight, and sending it again does not do it twice.
    try:
        if 200 <= recorder.status < 300:
            await memory.finish(caller.name, key, recorder.status, recorder.headers, bytes(recorder.body))
        elif recorder.status < 500:
            # Refused, so nothing was done, and the key may be used again.
            await memory.forget(caller.name, key)
        else:
            # Nobody knows. It may be sent again at once, and what was made is found by its ids.
            await memory.leave_open(caller.name, key)
    except StoreUnavailable:
        # The caller has the answer already. Until its patience ends, the memory takes the request for one in flight.
        _log.warning("the answer to a request could not be kept: %s", scope["path"])


async def _replay(known: Answer, request_hash: bytes, send: Send) -> None:
    if known.request_hash != request_hash:
        raise Refusal(
            422,
            "idempotency_key_reused",
            "this Idempotency-Key was used for another request",
            hint="use a new key for a new request",
        )
    if known.status is None:
        raise Refusal(
            409,
            "request_in_flight",
            "the first request with this Idempotency-Key is still being answered",
            hint="wait a moment and send it again",
            headers={"Retry-After": "1"},
        )
    headers = [(name.encode(), value.encode("latin-1")) for name, value in known.headers.items()]
    headers += [(b"idempotent-replayed", b"true"), (b"content-length", str(len(known.body)).encode())]
    await send({"type": "http.response.start", "status": known.status, "headers": headers})
    await send({"type": "http.response.body", "body": known.body})


class _Recorder:
    """Passes an answer on, and keeps it."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 500
        self.headers: dict[str, str] = {}
        self.body = bytearray()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            pairs = ((name.decode("latin-1"), value.decode("latin-1")) for name, value in message["headers"])
            self.headers = {name: value for name, value in pairs if name in _KEPT_HEADERS}
        elif message["type"] == "http.response.body":
            self.body += message.get("body", b"")
        await self._send(message)
