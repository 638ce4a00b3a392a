"""The API's own routes, called inside the process: how a page writes, and how it passes a download on.

A page has identified its caller already. It tells the API so by a field of the ASGI scope, which no request from outside can set.
The API checks the role, the body and the version again, and writes the audit, as for every other client.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import orjson
from starlette.types import ASGIApp, Receive, Scope, Send

from timeball.api.auth import Caller
from timeball.api.in_process import call, request_scope
from timeball.api.middleware import PREFIX, TRUSTED_CALLER
from timeball.dashboard.read_cache import ReadCache

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
