"""What happens to every request before its route.

A request gets an id. Its caller is identified, and must have the role that the route requires before the first byte of the body
is read. The body is read whole, within limits of size, depth and number of values, and must be JSON. A POST with an
Idempotency-Key is carried out once; sent again, it gets the first response again.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import Any, Protocol
from uuid import UUID

import orjson
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from timeball.api.auth import Authenticator, Caller, RouteRequirements, admit
from timeball.api.errors import HttpProblem, problem_for
from timeball.api.limits import FailedKeyLimiter
from timeball.config.settings import ApiSettings
from timeball.domain.values.field_errors import describe_mismatch, describe_value
from timeball.domain.values.ids import IdempotentRequest, format_id
from timeball.domain.values.json_text import parse_bounded_json
from timeball.domain.values.redaction import redact
from timeball.errors import StoreUnavailable, TimeballError

PREFIX = "/api/v1"


_MEGABYTE = 1024**2


# A payload may have a hundred levels, and stands a few levels deep itself.
MAX_DEPTH = 110
_BULK_PATH = "/api/v1/jobs/bulk"
# Requests that create many executions may be large.
_LARGE_PATHS = frozenset({_BULK_PATH, "/api/v1/groups"})


# POSTs that change nothing: those that a viewer may send, and the check of payloads.
READ_ONLY_POSTS = frozenset({"/api/v1/schedules/preview", "/api/v1/schedules/suggest", "/api/v1/handlers/check"})


# Whether this process is alive must not depend on its database.
_PUBLIC_PATHS = frozenset({"/api/v1/health/live", "/api/v1/health/ready", "/docs", "/openapi.json"})


# The key of the caller in the scope of a request that the dashboard makes inside the process; no request from outside can set it.
TRUSTED_CALLER = "timeball.caller"
_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,100}")


# Larger bodies are parsed in a thread: that takes some milliseconds, in which other requests are served.
_LARGE_BODY = 64 * 1024

_SECURITY_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class RecordedResponse(Protocol):
    """A request with an Idempotency-Key, and its response; a status of None means that it is in progress."""

    @property
    def request_hash(self) -> bytes: ...
    @property
    def status(self) -> int | None: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def body(self) -> bytes: ...


class IdempotencyRecords(Protocol):
    """Stores requests with an Idempotency-Key and their responses."""

    async def begin(self, caller: str, key: str, request_hash: bytes) -> RecordedResponse | IdempotentRequest: ...
    async def finish(self, caller: str, key: str, status: int, headers: Mapping[str, str], body: bytes) -> None: ...
    async def forget(self, caller: str, key: str) -> None: ...
    async def leave_open(self, caller: str, key: str) -> None: ...


class ApiMiddleware:
    """The outermost part of the API."""

    def __init__(
        self,
        app: ASGIApp,
        authenticator: Authenticator,
        records: IdempotencyRecords,
        key_limiter: FailedKeyLimiter,
        settings: ApiSettings,
        new_id: Callable[[], UUID],
        requirements: RouteRequirements,
    ) -> None:
        self._app = app
        self._authenticator = authenticator
        self._records = records
        self._key_limiter = key_limiter
        self._limits = key_limiter.limits
        self._settings = settings
        self._new_id = new_id
        self._requirements = requirements

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        state = scope.setdefault("state", {})
        state["request_id"] = request_id = self._request_id(headers)
        state["caller"] = None

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                response_headers = MutableHeaders(scope=message)
                response_headers["X-Request-Id"] = request_id
                for name, value in _SECURITY_HEADERS.items():
                    response_headers.setdefault(name, value)
                if message["status"] == 405:
                    response_headers["Allow"] = ", ".join(self._requirements.methods_at(_own_path(scope)))
            await send(message)

        try:
            await self._admit(scope, headers, receive, send_with_headers)
        except (HttpProblem, TimeballError) as error:
            await problem_for(error, Request(scope))(scope, receive, send_with_headers)

    def _request_id(self, headers: Headers) -> str:
        given = headers.get("x-request-id", "")
        return given if _REQUEST_ID.fullmatch(given) else format_id("req", self._new_id())

    async def _admit(self, scope: Scope, headers: Headers, receive: Receive, send: Send) -> None:
        is_public = _own_path(scope) in _PUBLIC_PATHS
        trusted: Caller | None = scope.get(TRUSTED_CALLER)
        caller = trusted if trusted is not None or is_public else await self._identify(scope)
        scope["state"]["caller"] = caller
        scope["state"]["is_still_allowed"] = partial(self._is_still_allowed, scope, caller)
        if is_public:
            await self._respond(scope, headers, receive, send, None)
            return
        name = client_address(scope) if caller is None else caller.name
        self._limits.begin(name)
        try:
            await self._respond(scope, headers, receive, send, caller)
        finally:
            self._limits.end(name)

    async def _is_still_allowed(self, scope: Scope, caller: Caller | None) -> bool:
        """Whether the key of an identified caller is still valid; asked during streams."""
        if TRUSTED_CALLER in scope:
            return True
        try:
            present = await self._authenticator.identify(scope)
        except HttpProblem:
            return False
        return present is not None and caller is not None and present.name == caller.name

    async def _identify(self, scope: Scope) -> Caller | None:
        address = client_address(scope)
        try:
            caller = await self._authenticator.identify(scope)
            return None if caller is None else replace(caller, place=caller.place or address)
        except HttpProblem:
            await self._key_limiter.refused(address, address)
            self._key_limiter.limit(address)
            raise

    async def _respond(
        self, scope: Scope, headers: Headers, receive: Receive, send: Send, caller: Caller | None
    ) -> None:
        method = scope["method"]
        if method not in _WITH_BODY:
            await self._app(scope, receive, send)
            return
        requirement = self._requirements.find(method, _own_path(scope))
        if requirement is None:
            # No route reads this body: the response is 404 or 405.
            await self._app(scope, _BufferedBody(b"", receive).receive, send)
            return
        if requirement.role is not None:
            admit(caller, requirement.role, f"{method} {scope['path'][:200]}")
        if _has_body(headers):
            _check_media_type(headers)
        body = await self._read_body(_own_path(scope), headers, receive)
        self._limits.count_bytes(client_address(scope) if caller is None else caller.name, len(body))
        # Routes that read the body by hand take the parsed document.
        scope["state"]["document"] = await self._parse(body, path=_own_path(scope)) if body else None
        replayed = _BufferedBody(body, receive)
        key = headers.get(IDEMPOTENCY_HEADER)
        if method != "POST" or key is None or caller is None or _is_read_only_post(scope):
            await self._app(scope, replayed.receive, send)
            return
        await respond_once(self._records, self._app, scope, replayed.receive, send, caller=caller, key=key, body=body)

    async def _read_body(self, path: str, headers: Headers, receive: Receive) -> bytes:
        settings = self._settings
        megabytes = settings.largest_bulk_megabytes if path in _LARGE_PATHS else settings.largest_body_megabytes
        return await _read_body(headers, receive, int(megabytes * _MEGABYTE))

    async def _parse(self, body: bytes, *, path: str) -> Any:
        settings = self._settings
        # In bulk each payload is checked for itself: the depth of the whole takes longer to find than all the rest.
        max_depth = None if path == _BULK_PATH else MAX_DEPTH
        max_values = settings.largest_bulk_values if path in _LARGE_PATHS else settings.largest_body_values
        parse = partial(parse_bounded_json, body, max_values=max_values, max_depth=max_depth)
        return parse() if len(body) < _LARGE_BODY else await asyncio.to_thread(parse)


def _is_read_only_post(scope: Scope) -> bool:
    """Whether a POST changes nothing, so that its response need not be recorded."""
    document = scope["state"]["document"]
    is_dry_run = isinstance(document, dict) and document.get("dry_run") is True
    return is_dry_run or _own_path(scope) in READ_ONLY_POSTS


def client_address(scope: Scope) -> str:
    """Where a request came from: the address that opened the connection."""
    client = scope.get("client")
    return "http" if client is None else f"http {client[0]}"


def _own_path(scope: Scope) -> str:
    """The path below the prefix under which this app is mounted."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def _has_body(headers: Headers) -> bool:
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers or "content-type" in headers


def _check_media_type(headers: Headers) -> None:
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise HttpProblem(
            415,
            "unsupported_media_type",
            describe_mismatch("Content-Type", "application/json", describe_value(media_type)),
            hint="add the header Content-Type: application/json",
        )


async def _read_body(headers: Headers, receive: Receive, max_bytes: int) -> bytes:
    declared = headers.get("content-length", "0")
    if declared.isdecimal() and int(declared) > max_bytes:
        raise _too_large(max_bytes)
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise HttpProblem(400, "disconnected", "the connection ended before the body was complete")
        body += message.get("body", b"")
        if len(body) > max_bytes:
            raise _too_large(max_bytes)
        if not message.get("more_body", False):
            break
    return bytes(body)


def _too_large(max_bytes: int) -> HttpProblem:
    return HttpProblem(
        413,
        "body_too_large",
        f"the body has more than {max_bytes} bytes, expected at most that many",
        hint="send less at once",
        headers={"Connection": "close"},
    )


class _BufferedBody:
    """Gives the next reader a body that was read already."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def receive(self) -> Message:
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}


IDEMPOTENCY_HEADER = "idempotency-key"
_MAX_KEY_LENGTH = 200
_log = logging.getLogger("timeball.api")
_KEPT_HEADERS = ("content-type", "location", "etag")


async def respond_once(
    records: IdempotencyRecords,
    app: ASGIApp,
    scope: Scope,
    receive: Receive,
    send: Send,
    *,
    caller: Caller,
    key: str,
    body: bytes,
) -> None:
    """Let the app carry out a request, unless its Idempotency-Key has a response already."""
    if not 1 <= len(key) <= _MAX_KEY_LENGTH or not key.isascii() or not key.isprintable():
        raise HttpProblem(
            422,
            "invalid_idempotency_key",
            describe_mismatch(
                "Idempotency-Key", f"1 to {_MAX_KEY_LENGTH} printable ASCII characters", describe_value(key)
            ),
        )
    request_hash = sha256(b"\0".join((scope["path"].encode(), scope["query_string"], body))).digest()
    record = await records.begin(caller.name, key, request_hash)
    if not isinstance(record, IdempotentRequest):
        await _replay(record, request_hash, send)
        return
    scope["state"]["caller"] = replace(caller, idempotency=record)
    recorder = _ResponseRecorder(send)
    try:
        await app(scope, receive, recorder.send)
    except Exception:
        await records.leave_open(caller.name, key)
        raise
    # A request that was cut off may have been carried out: its key stays in flight, so that a repetition does not do it twice.
    try:
        if 200 <= recorder.status < 300:
            await records.finish(caller.name, key, recorder.status, recorder.headers, _kept_body(recorder, scope))
        elif recorder.status < 500:
            # Refused: nothing was done, and the key may be used again.
            await records.forget(caller.name, key)
        else:
            # Unknown: the request may be sent again at once, and what it created is found by its ids.
            await records.leave_open(caller.name, key)
    except StoreUnavailable:
        # The caller has the response already. Until the record expires, the request counts as in flight.
        _log.warning("the response to a request could not be recorded: %s", scope["path"])


def _kept_body(recorder: _ResponseRecorder, scope: Scope) -> bytes:
    """The body as it is stored: a secret that is shown once is not in it."""
    body = bytes(recorder.body)
    return orjson.dumps(redact(orjson.loads(body))) if scope["state"].get("shows_secret") else body


async def _replay(record: RecordedResponse, request_hash: bytes, send: Send) -> None:
    if record.request_hash != request_hash:
        raise HttpProblem(
            422,
            "idempotency_key_reused",
            "this Idempotency-Key was used for a different request",
            hint="use a new key for a new request",
        )
    if record.status is None:
        raise HttpProblem(
            409,
            "request_in_flight",
            "the first request with this Idempotency-Key is still in progress",
            hint="wait a moment and send it again",
            headers={"Retry-After": "1"},
        )
    headers = [(name.encode(), value.encode("latin-1")) for name, value in record.headers.items()]
    headers += [(b"idempotent-replayed", b"true"), (b"content-length", str(len(record.body)).encode())]
    await send({"type": "http.response.start", "status": record.status, "headers": headers})
    await send({"type": "http.response.body", "body": record.body})


class _ResponseRecorder:
    """Passes a response on, and keeps a copy."""

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
