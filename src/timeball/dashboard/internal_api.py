"""The HTTP API called inside the process on behalf of one caller, with a cache of half a second for reads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import orjson
from starlette.types import ASGIApp, Receive, Scope, Send

from timeball.api.auth import Caller
from timeball.api.in_process import call, request_scope
from timeball.api.middleware import PREFIX, TRUSTED_CALLER

# The HTTP API, called inside the process: what a person may do in a page is what a program may do with their key.
#
# A page has identified its visitor already, and says so to the API in a way that no request from outside can.

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


class InternalApi:
    """The API on behalf of one caller."""

    def __init__(self, app: ASGIApp, caller: Caller, read_cache: ReadCache, *, use_cache: bool = False) -> None:
        """With *may_share*, what others of the same role have just read will do."""
        self._app = app
        self._caller = caller
        self._read_cache = read_cache
        self._use_cache = use_cache

    async def get(self, *path: str, **params: Any) -> Document:
        """Read; parameters that are None or empty are left out."""
        if not self._use_cache:
            return await self._ask("GET", path, params, None, {})
        question = (self._caller.role, path, _query(params))
        body = await self._read_cache.get(question, lambda: self._body("GET", path, params, None, {}))
        document: Document = orjson.loads(body)
        return document

    async def post(self, *path: str, body: Any = None) -> Document:
        """Do, or create."""
        return await self._ask("POST", path, {}, {} if body is None else body, {})

    async def change(self, *path: str, body: Any, version: int | None = None, reason: str | None = None) -> Document:
        """Change, if it still has the version the change was made for."""
        headers = {} if version is None else {"If-Match": f'"{version}"'}
        return await self._ask("PATCH", path, {"reason": reason}, body, headers)

    async def delete(self, *path: str, **params: Any) -> Document:
        """Take away."""
        return await self._ask("DELETE", path, params, None, {})

    async def forward(self, scope: Scope, receive: Receive, send: Send, *path: str) -> None:
        """Let the API answer a request of the visitor itself: a download, a stream."""
        # Below the same prefix: what the API answers may name addresses of the site.
        root = scope.get("root_path", "")
        inner = {**scope, "path": root + _path(path), "raw_path": None, "root_path": root, "state": {}}
        inner[TRUSTED_CALLER] = self._caller
        await self._app(inner, receive, send)

    async def _ask(
        self, method: str, path: tuple[str, ...], params: Mapping[str, Any], body: Any, headers: Mapping[str, str]
    ) -> Document:
        if method != "GET":
            self._read_cache.forget()
        document: Document = orjson.loads(await self._body(method, path, params, body, headers))
        return document

    async def _body(
        self, method: str, path: tuple[str, ...], params: Mapping[str, Any], body: Any, headers: Mapping[str, str]
    ) -> bytes:
        all_headers = {"Content-Type": "application/json", **headers}
        raw_headers = [(name.encode(), value.encode()) for name, value in all_headers.items()]
        scope = request_scope(method, _path(path), query=_query(params), headers=raw_headers)
        scope[TRUSTED_CALLER] = self._caller
        response = await call(self._app, scope, b"" if body is None else orjson.dumps(body))
        content = response.body or b"{}"
        if response.status >= 400 and "detail" in (document := orjson.loads(content)):
            raise ApiProblem(document)
        return content


def _path(steps: tuple[str, ...]) -> str:
    return PREFIX + "".join(f"/{step}" for step in steps)


def _query(params: Mapping[str, Any]) -> bytes:
    given = {name: value for name, value in params.items() if value not in (None, "", [], ())}
    return urlencode(given, doseq=True).encode()


# Reads that many browsers ask for at once, made once: each answer is good for half a second, for everybody of one role.

# For so long an answer is the answer to everybody who asks the same.
FRESH_SECONDS = 0.5


# More different questions than that within half a second are not worth keeping.
_MAX_CACHED = 500


@dataclass(frozen=True, slots=True)
class _CachedRead:
    asked_at: float
    answer: asyncio.Future[bytes]


class ReadCache:
    """Answers to questions, while they are fresh; who asks while an answer is being made waits for that one."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._kept: dict[Hashable, _CachedRead] = {}

    async def get(self, question: Hashable, ask: Callable[[], Awaitable[bytes]]) -> bytes:
        """The answer to a question: a fresh one, or what *ask* says."""
        kept = self._kept.get(question)
        if kept is None or self._is_stale(kept):
            kept = self._keep(question, ask)
        # Whoever began it may go away; the others still want it.
        return await asyncio.shield(kept.answer)

    def forget(self) -> None:
        """Something was changed: what was read before may be wrong."""
        self._kept.clear()

    def _keep(self, question: Hashable, ask: Callable[[], Awaitable[bytes]]) -> _CachedRead:
        if len(self._kept) >= _MAX_CACHED:
            self._kept = {key: one for key, one in self._kept.items() if not self._is_stale(one)}
        kept = _CachedRead(self._now(), asyncio.ensure_future(ask()))
        # An answer that nobody waits for any more may fail in silence.
        kept.answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        if len(self._kept) < _MAX_CACHED:
            self._kept[question] = kept
        return kept

    def _is_stale(self, kept: _CachedRead) -> bool:
        return self._now() - kept.asked_at > FRESH_SECONDS or (
            kept.answer.done() and kept.answer.exception() is not None
        )
