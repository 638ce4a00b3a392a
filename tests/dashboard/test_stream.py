"""The event stream: it needs a login, is limited in number, names what changed, and ends with its browser."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from tests.dashboard.conftest import Browser
from tests.support.factories import claim_all, make_job
from tests.support.pace import patience
from timeball.api.auth import PEER
from timeball.api.resources import events
from timeball.application.commands import Commands
from timeball.client.in_process import InProcessPeer
from timeball.dashboard.app import make_web_app
from timeball.dashboard.pages.live import MAX_STREAMS
from timeball.runtime import ServerRuntime
from timeball.store.store import Store
from timeball.store.types import AuditEntry

MakeKey = Callable[[str], Awaitable[dict[str, str]]]
SCOPE: dict[str, Any] = {
    "type": "http",
    "http_version": "1.1",
    "method": "GET",
    "scheme": "http",
    "path": "/parts/stream",
    "raw_path": b"/parts/stream",
    "root_path": "",
    "query_string": b"",
    "headers": [(b"host", b"localhost:8080")],
    "client": None,
    "server": None,
}


class Listening:
    """A browser that listens: hears what is sent, and goes when told to."""

    def __init__(self, app: Any, headers: Mapping[str, str] = {}) -> None:
        self._app = app
        self.heard = b""
        self.status = 0
        self._stirred = asyncio.Event()
        self.gone = asyncio.Event()
        given = [*SCOPE["headers"], *((name.lower().encode(), value.encode()) for name, value in headers.items())]
        scope = {**SCOPE, "headers": given, "state": {PEER: InProcessPeer()}}
        self.task = asyncio.ensure_future(app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.status = message.get("status", self.status)
        self.heard += message.get("body", b"")
        self._stirred.set()

    async def until(self, text: bytes) -> None:
        async with asyncio.timeout(patience(30)):
            while text not in self.heard:
                self._stirred.clear()
                await self._stirred.wait()


async def test_a_start_is_sent_with_the_topics_it_changed(parts: ServerRuntime, store: Store) -> None:
    job = await make_job(store, name="nightly")
    listening = Listening(make_web_app(parts))
    # By then it is known where the stream is; what happened before is no news.
    await listening.until(b"retry:")

    await Commands(store, store.env).executions.trigger(job.id)
    await claim_all(store)

    await listening.until(b"event: starts")
    await listening.until(b'"executions"')
    listening.gone.set()
    await asyncio.wait_for(listening.task, 30)


async def test_the_stream_ends_with_the_server(parts: ServerRuntime) -> None:
    listening = Listening(make_web_app(parts))
    await listening.until(b"retry:")

    parts.live.close()

    await asyncio.wait_for(listening.task, 30)


async def test_too_many_streams_are_refused(parts: ServerRuntime) -> None:
    front: Any = make_web_app(parts)
    front._pages.state.site.streams["others"] = MAX_STREAMS

    listening = Listening(front)
    await asyncio.wait_for(listening.task, 30)

    assert listening.status == 503


async def test_a_stranger_hears_nothing(parts: ServerRuntime, browser: Browser, log_in: Any) -> None:
    await log_in("viewer")

    answer = await browser.get("/parts/stream", headers={"Accept": "text/event-stream"})

    assert answer.status_code == 401


async def test_one_key_does_not_take_the_streams_of_all(parts: ServerRuntime, make_key: MakeKey) -> None:
    front: Any = make_web_app(parts)
    most = parts.settings.api.concurrent_requests
    greedy, other = await make_key("viewer"), await make_key("admin")
    listening = Listening(front, greedy)
    await listening.until(b"retry:")
    (name,) = front._pages.state.site.streams
    front._pages.state.site.streams[name] = most

    refused = Listening(front, greedy)
    await asyncio.wait_for(refused.task, 30)
    welcome = Listening(front, other)
    await welcome.until(b"retry:")

    assert refused.status == 429
    for one in (listening, welcome):
        one.gone.set()
        await asyncio.wait_for(one.task, 30)
    assert front._pages.state.site.streams == {name: most - 1}


async def test_a_revoked_key_ends_its_streams(
    parts: ServerRuntime, make_key: MakeKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "KEEP_ALIVE_SECONDS", 0.05)
    front = make_web_app(parts)
    staying, leaving = Listening(front, await make_key("admin")), Listening(front, await make_key("viewer"))
    await staying.until(b"retry:")
    await leaving.until(b"retry:")
    (viewer,) = [key for key in await parts.keys.list() if key.role == "viewer"]

    await parts.keys.revoke(viewer.id, AuditEntry("test"))

    await asyncio.wait_for(leaving.task, 30)
    assert not staying.task.done()
    staying.gone.set()
    await asyncio.wait_for(staying.task, 30)


async def test_the_first_key_ends_the_streams_of_open_mode(
    parts: ServerRuntime, make_key: MakeKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "KEEP_ALIVE_SECONDS", 0.05)
    listening = Listening(make_web_app(parts))
    await listening.until(b"retry:")

    await make_key("admin")

    await asyncio.wait_for(listening.task, 30)
