"""Events are read as they arrive; a broken stream resumes behind the last event."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Iterator
from itertools import islice
from typing import Any

import httpx
import pytest

from timeball.client import AsyncClient, Client, Event
from timeball.client.in_process import InProcessTransport
from timeball.errors import NotAllowed, ServerUnreachable


class Chunks(httpx.SyncByteStream, httpx.AsyncByteStream):
    def __init__(self, chunks: list[bytes | Exception]) -> None:
        self._chunks = chunks

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._chunks:
            if isinstance(chunk, Exception):
                raise chunk
            yield chunk

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self:
            yield chunk


class Streams:
    """A server whose connections each send some chunks."""

    def __init__(self, *connections: list[bytes | Exception] | httpx.Response | Exception) -> None:
        self._connections = iter(connections)
        self.asked: list[httpx.Request] = []
        self.waits: list[float] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        connection = next(self._connections)
        if isinstance(connection, Exception):
            raise connection
        if isinstance(connection, httpx.Response):
            return connection
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=Chunks(connection))

    def client(self) -> Client:
        client = Client("http://somewhere", transport=httpx.MockTransport(self))
        client._sleep = self.waits.append
        return client


FIRST = b'id: evt_1\nevent: execution.dropped\ndata: {"subject": "exe_1"}\n\n'
SECOND = b": still here\n\nid: evt_2\nevent: execution.finished\ndata: {}\n\n"


def test_a_broken_stream_resumes_behind_the_last_event() -> None:
    server = Streams([FIRST[:20], FIRST[20:], httpx.ReadError("cut")], [SECOND])

    one, two = islice(server.client().events(types="execution"), 2)

    assert (one.id, one.type, one.data) == ("evt_1", "execution.dropped", {"subject": "exe_1"})
    assert (two.id, two.type) == ("evt_2", "execution.finished")
    assert [request.headers.get("last-event-id") for request in server.asked] == [None, "evt_1"]
    assert server.asked[0].url.params["types"] == "execution"


def test_an_incomplete_event_is_dropped() -> None:
    server = Streams([FIRST, SECOND[:-1], httpx.ReadError("cut")], [SECOND])

    events = list(islice(server.client().events(), 2))

    assert [event.id for event in events] == ["evt_1", "evt_2"]


def test_a_stream_may_start_in_the_past() -> None:
    server = Streams([SECOND])

    next(server.client().events(since="evt_1"))

    assert server.asked[0].headers["last-event-id"] == "evt_1"


def test_the_retry_field_of_a_stream_is_respected() -> None:
    server = Streams([b"retry: 3000\n\n"], [FIRST])

    next(server.client().events())

    assert server.waits[0] >= 3.0


def test_a_401_ends_a_stream_at_once() -> None:
    server = Streams(httpx.Response(401, json={"code": "unauthenticated", "detail": "a key is needed here"}))

    with pytest.raises(NotAllowed):
        next(server.client().events())


def test_a_stream_fails_after_too_many_lost_connections() -> None:
    server = Streams(*[httpx.ConnectError("refused")] * 9)

    with pytest.raises(ServerUnreachable):
        next(server.client().events())
    assert len(server.asked) == 5


async def test_the_async_client_reads_the_same_events() -> None:
    server = Streams([FIRST, httpx.ReadError("cut")], [SECOND])
    seen: list[str | None] = []

    async with AsyncClient("http://somewhere", transport=httpx.MockTransport(server)) as client:
        client._sleep = lambda _seconds: asyncio.sleep(0)
        async for event in client.events():
            seen.append(event.id)
            if len(seen) == 2:
                break

    assert seen == ["evt_1", "evt_2"]


# in process


async def test_an_in_process_response_is_read_while_the_application_still_sends() -> None:
    going_on, ended = asyncio.Event(), asyncio.Event()

    async def app(_scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": FIRST, "more_body": True})
        await going_on.wait()
        await send({"type": "http.response.body", "body": SECOND, "more_body": True})
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    seen: list[str | None] = []
    async with AsyncClient("http://localhost", transport=InProcessTransport(app)) as client:
        events = client.events()
        async for event in events:
            seen.append(event.id)
            going_on.set()
            if len(seen) == 2:
                break
        await events.aclose()  # type: ignore[attr-defined]

    assert seen == ["evt_1", "evt_2"]
    assert ended.is_set()


async def test_an_in_process_application_may_finish_its_work_after_its_response() -> None:
    written = []

    async def app(_scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})
        await asyncio.sleep(0.01)
        written.append("yes")

    async with AsyncClient("http://localhost", transport=InProcessTransport(app)) as client:
        assert await client.request("GET", "/stats") == {}

    assert written == ["yes"]


async def test_an_error_before_the_response_of_an_in_process_application_is_raised() -> None:
    async def app(_scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("broken")

    async with AsyncClient("http://localhost", transport=InProcessTransport(app)) as client:
        with pytest.raises(RuntimeError, match="broken"):
            await client.request("GET", "/stats")


# the real route


def test_the_events_of_a_real_api_are_read_and_resumed(running_api: str) -> None:
    """A reader gets events, and a second one resumes behind the event that the first one got."""
    seen: queue.Queue[Event] = queue.Queue()

    def hear() -> None:
        with Client(running_api) as listening:
            seen.put(next(event for event in listening.events(queue="mail", types="execution.cancelled")))

    def make_something_happen(timeball: Client) -> str:
        run = timeball.jobs.create("test.echo", queue="mail").execution_id or ""
        return timeball.executions.cancel(run).id

    reader = threading.Thread(target=hear)
    reader.start()
    with Client(running_api) as timeball:
        while reader.is_alive():  # it may not listen yet
            make_something_happen(timeball)
            reader.join(0.2)
        first = seen.get(timeout=1)
        last = make_something_happen(timeball)
        later = timeball.events(since=first.id, queue="mail", types="execution.cancelled")
        heard = [first]
        while heard[-1].data["subject"] != last:
            heard.append(next(later))

    assert {event.type for event in heard} == {"execution.cancelled"}
    assert first.data["queue"] == "mail"
    assert len({event.data["subject"] for event in heard}) > 1
