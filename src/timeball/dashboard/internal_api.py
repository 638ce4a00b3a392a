"""The API's own routes, called inside the process: how a page writes, and how it passes a download on; and reads that pages share.

A page has identified its caller already. It tells the API so by a field of the ASGI scope, which no request from outside can set.
The API checks the role, the body and the version again, and writes the audit, as for every other client.

A read that many browsers need at the same moment is made once, and good for half a second, or until a page writes (`ReadCache`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlencode

import orjson
from starlette.types import ASGIApp, Receive, Scope, Send

from timeball.api.auth import Caller
from timeball.api.in_process import call, request_scope
from timeball.api.middleware import PREFIX, TRUSTED_CALLER
from timeball.errors import InvalidInput

Document = dict[str, Any]


class ApiProblem(Exception):
    """The API refused: its problem document says why, and what to do."""

    def __init__(self, document: Document) -> None:
        super().__init__(document["detail"])
        self.status: int = document["status"]
        self.code: str = document["code"]
        self.detail: str = document["detail"]
        self.hint: str | None = document.get("hint")
        self.errors: list[dict[str, str]] = document.get("errors", [])


def field_errors(problem: ApiProblem | InvalidInput | None) -> dict[str, str]:
    """What is wrong, by the field of the form that it stands beside."""
    if problem is None:
        return {}
    if isinstance(problem, InvalidInput):
        return {problem.field: str(problem)} if problem.field else {}
    return {error["pointer"].strip("/").partition("/")[0]: error["detail"] for error in problem.errors}


class InternalApi:
    """The API on behalf of one caller; it writes, pages read through the queries."""

    def __init__(self, app: ASGIApp, caller: Caller, read_cache: ReadCache) -> None:
        self._app = app
        self._caller = caller
        self._read_cache = read_cache

    async def post(self, *path: str, body: Any = None) -> Document:
        """Do something, or create something."""
        return await self._write("POST", path, {}, {} if body is None else body, {})

    async def change(self, *path: str, body: Any, version: int | None = None, reason: str | None = None) -> Document:
        """Change something, if it still has *version*."""
        headers = {} if version is None else {"If-Match": f'"{version}"'}
        return await self._write("PATCH", path, {"reason": reason}, body, headers)

    async def delete(self, *path: str, **params: Any) -> Document:
        """Delete something."""
        return await self._write("DELETE", path, params, None, {})

    async def forward(self, scope: Scope, receive: Receive, send: Send, *path: str) -> None:
        """Let the API answer a request itself, as it does for a download."""
        # Below the same prefix: the response may name addresses of the site.
        root = scope.get("root_path", "")
        inner = {**scope, "path": root + _path(path), "raw_path": None, "root_path": root, "state": {}}
        inner[TRUSTED_CALLER] = self._caller
        await self._app(inner, receive, send)

    async def _write(
        self, method: str, path: tuple[str, ...], params: Mapping[str, Any], body: Any, headers: Mapping[str, str]
    ) -> Document:
        self._read_cache.clear()
        all_headers = {"Content-Type": "application/json", **headers}
        raw_headers = [(name.encode(), value.encode()) for name, value in all_headers.items()]
        scope = request_scope(method, _path(path), query=_query(params), headers=raw_headers)
        scope[TRUSTED_CALLER] = self._caller
        response = await call(self._app, scope, b"" if body is None else orjson.dumps(body))
        document: Document = orjson.loads(response.body or b"{}")
        if response.status >= 400 and "detail" in document:
            raise ApiProblem(document)
        return document


def _path(steps: tuple[str, ...]) -> str:
    return PREFIX + "".join(f"/{step}" for step in steps)


def _query(params: Mapping[str, Any]) -> bytes:
    given = {name: value for name, value in params.items() if value not in (None, "", [], ())}
    return urlencode(given, doseq=True).encode()


Answer = TypeVar("Answer")

FRESH_SECONDS = 0.5
# More different reads than that within half a second are not worth keeping.
_MAX_CACHED = 500


@dataclass(frozen=True, slots=True)
class _CachedRead:
    started_at: float
    answer: asyncio.Future[Any]


class ReadCache:
    """Results by their key while they are fresh. A read that is under way answers everyone who asks for its key."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._reads: dict[Hashable, _CachedRead] = {}

    async def get(self, key: Hashable, read: Callable[[], Awaitable[Answer]]) -> Answer:
        """A fresh result, or what *read* returns now. Callers share the result and must not change it."""
        cached = self._reads.get(key)
        if cached is None or self._is_stale(cached):
            cached = self._start(key, read)
        # The caller that started the read may be cancelled; the others still wait for it.
        answer: Answer = await asyncio.shield(cached.answer)
        return answer

    def clear(self) -> None:
        """Forget all results: something was written."""
        self._reads.clear()

    def _start(self, key: Hashable, read: Callable[[], Awaitable[Any]]) -> _CachedRead:
        if len(self._reads) >= _MAX_CACHED:
            self._reads = {key: cached for key, cached in self._reads.items() if not self._is_stale(cached)}
        cached = _CachedRead(self._now(), asyncio.ensure_future(read()))
        # A read may fail after its last caller was cancelled; asyncio would log that.
        cached.answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        if len(self._reads) < _MAX_CACHED:
            self._reads[key] = cached
        return cached

    def _is_stale(self, cached: _CachedRead) -> bool:
        has_failed = cached.answer.done() and cached.answer.exception() is not None
        return has_failed or self._now() - cached.started_at > FRESH_SECONDS
