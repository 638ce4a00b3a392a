"""Events over HTTP: a stream that can be resumed, and long polling."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import httpx
import pytest

from tests.api.conftest import checking_commands
from tests.support.factories import claim_all, enqueue, found, make_recurring, record
from timeball.api.app import make_api
from timeball.api.resources import events as events_resource
from timeball.api.server import ApiServer
from timeball.application.commands import Commands
from timeball.client import AsyncClient
from timeball.client.in_process import InProcessTransport
from timeball.config.settings import ApiSettings, Settings
from timeball.env import Env, SystemClock
from timeball.runtime import ServerRuntime, make_server_runtime
from timeball.store.store import Store
from timeball.store.types import AuditEntry

MakeKey = Callable[[str], Awaitable[dict[str, str]]]


@pytest.fixture
async def store(open_store: Callable[..., Awaitable[Store]]) -> Store:
    return await open_store(Env(SystemClock()))


@pytest.fixture
async def streaming(parts: ServerRuntime) -> AsyncIterator[httpx.AsyncClient]:
    """A client that reads a response while the application still sends it."""
    transport = InProcessTransport(make_api(parts))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost/api/v1") as opened:
        yield opened
    parts.live.close()


async def run_one(store: Store, **fields: Any) -> None:
    await enqueue(store, **fields)
    await record(store, [found(claimed) for claimed in await claim_all(store)])


@asynccontextmanager
async def events_of(client: httpx.AsyncClient, **wish: Any) -> AsyncIterator[AsyncIterator[dict[str, str]]]:
    """The events of a stream as they arrive, each as its fields."""

    async def read(response: httpx.Response) -> AsyncIterator[dict[str, str]]:
        fields: dict[str, str] = {}
        async for line in response.aiter_lines():
            name, _, value = line.partition(": ")
            if line:
                fields[name] = value
            elif fields:
                yield fields
                fields = {}

    async with asyncio.timeout(60), client.stream("GET", "/events", **wish) as response:
        assert response.status_code == 200, await response.aread()
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["x-accel-buffering"] == "no"
        yield read(response)


async def until(events: AsyncIterator[dict[str, str]], what: str) -> dict[str, str]:
    async for fields in events:
        if fields.get("event") == what:
            return fields
    raise AssertionError(f"the stream ended without {what}")


async def test_a_stream_sends_events_as_they_happen(streaming: httpx.AsyncClient, store: Store) -> None:
    async with events_of(streaming, params={"types": "execution.*", "queue": "mail"}) as events:
        assert "retry" in await anext(events)
        await run_one(store, queue="other")
        await run_one(store, queue="mail")
        told = await until(events, "execution.succeeded")

    assert '"queue":"mail"' in told["data"]
    assert '"id":"evt_' in told["data"]


async def test_a_stream_resumes_behind_the_last_event(streaming: httpx.AsyncClient, store: Store) -> None:
    async with events_of(streaming) as events:
        await anext(events)
        await run_one(store, queue="first")
        last = await until(events, "execution.succeeded")
    await run_one(store, queue="second")

    async with events_of(
        streaming, headers={"Last-Event-ID": last["id"]}, params={"types": "execution.succeeded"}
    ) as events:
        assert '"queue":"second"' in (await until(events, "execution.succeeded"))["data"]


@pytest.mark.parametrize("stale", ["4000000000000:4000000000000:", "no position", "3:2:1"])
async def test_a_stream_that_cannot_be_resumed_sends_a_reset(streaming: httpx.AsyncClient, stale: str) -> None:
    async with events_of(streaming, headers={"Last-Event-ID": stale}) as events:
        first = await anext(events)

    assert first["event"] == "reset"


async def test_a_quiet_stream_sends_keep_alives(streaming: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events_resource, "KEEP_ALIVE_SECONDS", 0.05)

    async with events_of(streaming) as events:
        await anext(events)
        quiet = await anext(events)

    assert quiet[""] == "still here"
    assert quiet["id"], "even a reader that hears nothing knows where to go on"


async def test_cloud_events_are_sent_if_accepted(streaming: httpx.AsyncClient, store: Store) -> None:
    accept = {"Accept": "text/event-stream, application/cloudevents+json"}
    async with events_of(streaming, headers=accept) as events:
        await anext(events)
        await run_one(store)
        told = await until(events, "execution.succeeded")

    assert '"specversion":"1.0"' in told["data"]
    assert '"type":"timeball.execution.succeeded"' in told["data"]


async def test_a_poll_waits_for_the_first_event(client: httpx.AsyncClient, store: Store) -> None:
    start = (await client.get("/events", params={"wait": "0s"})).json()
    assert start["data"] == []

    asked = asyncio.ensure_future(
        client.get(
            "/events", params={"since": start["next_cursor"], "wait": "30s", "types": "execution.succeeded"}, timeout=60
        )
    )
    await asyncio.sleep(0.1)
    assert not asked.done()
    await run_one(store)
    answer = (await asked).json()

    assert [event["type"] for event in answer["data"]] == ["execution.succeeded"]
    again = (await client.get("/events", params={"since": answer["next_cursor"], "wait": "0s"})).json()
    assert (again["data"], again["has_gap"]) == ([], False)


async def test_a_batch_of_cloud_events(client: httpx.AsyncClient, store: Store) -> None:
    start = (await client.get("/events", params={"wait": "0s"})).json()
    await run_one(store)

    answer = await client.get(
        "/events",
        params={"since": start["next_cursor"], "types": "execution.succeeded"},
        headers={"Accept": "application/cloudevents-batch+json"},
    )

    assert answer.headers["content-type"] == "application/cloudevents-batch+json"
    assert [event["type"] for event in answer.json()] == ["timeball.execution.succeeded"]
    assert answer.headers["timeball-next-cursor"]


async def test_a_poll_can_be_limited_to_one_job(client: httpx.AsyncClient, store: Store) -> None:
    job = await make_recurring(store, name="nightly")
    start = (await client.get("/events", params={"wait": "0s"})).json()
    await run_one(store)
    await Commands(store, store.env).executions.trigger(job.id)
    await record(store, [found(claimed) for claimed in await claim_all(store)])

    answer = await client.get("/events", params={"since": start["next_cursor"], "wait": "1s", "job": "nightly"})

    assert {event["type"] for event in answer.json()["data"]} >= {"execution.started", "execution.succeeded"}
    assert len({event["subject"] for event in answer.json()["data"] if event["type"].startswith("execution")}) == 1
    assert (await client.get("/events", params={"wait": "0s", "job": "nobody"})).status_code == 404


@pytest.mark.parametrize("since", ["x", "1", "1:2", "2:1:", "1:5:9", "1:5:3,2", "0:0:", f"1:{'9' * 19}:"])
async def test_an_invalid_cursor_is_refused_with_a_hint(client: httpx.AsyncClient, since: str) -> None:
    answer = await client.get("/events", params={"since": since, "wait": "0s"})

    assert answer.status_code == 422
    assert "next_cursor" in answer.json()["hint"]


async def test_a_stopping_server_does_not_wait_for_streams(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    # Longer than the test: uvicorn itself must not end the streams.
    monkeypatch.setattr("timeball.api.server._SHUTDOWN_SECONDS", 3600)
    parts = make_server_runtime(Settings(port=0), store, Commands(store, store.env))
    server = ApiServer(parts)
    await server.open()
    running = asyncio.ensure_future(server.run())
    async with (
        httpx.AsyncClient(base_url=f"{server.address}/api/v1", timeout=60) as client,
        events_of(client) as events,
    ):
        await anext(events)

        server.stop()

        async with asyncio.timeout(60):
            assert [fields async for fields in events if "event" in fields] == []
    await running


async def test_a_reader_that_reads_nothing_is_disconnected(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its socket buffers fill up, then the server disconnects it; the server buffers nothing."""
    monkeypatch.setattr(events_resource, "SEND_SECONDS", 0.2)
    parts = make_server_runtime(Settings(port=0), store, Commands(store, store.env))
    monkeypatch.setattr(events_resource.EventStreamResponse, "_chunks", _endless)
    server = ApiServer(parts)
    await server.open()
    running = asyncio.ensure_future(server.run())
    host, port = server.address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as reader:
        reader.sendall(b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")

        async with asyncio.timeout(30):
            while not parts.live._listeners:
                await asyncio.sleep(0.01)
            while parts.live._listeners:
                await asyncio.sleep(0.01)
    server.stop()
    await running


async def _endless(_self: object, _listener: object) -> AsyncIterator[bytes]:
    while True:
        yield b": " + b"x" * 100_000 + b"\n\n"


async def test_our_own_client_follows_the_stream(parts: ServerRuntime, store: Store) -> None:
    async with AsyncClient("http://localhost", transport=InProcessTransport(make_api(parts))) as client:
        told = client.events(types="execution.succeeded")
        first = asyncio.ensure_future(anext(told))
        async with asyncio.timeout(60):
            while parts.live._nodes is None:
                await asyncio.sleep(0.01)
            await run_one(store)
            event = await first
        parts.live.close()

    assert (event.type, event.data["type"]) == ("execution.succeeded", "execution.succeeded")
    assert event.id is not None


# how long a stream lasts


async def test_a_revoked_key_ends_its_streams_even_while_events_flow(
    parts: ServerRuntime, streaming: httpx.AsyncClient, make_key: MakeKey, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events_resource, "KEEP_ALIVE_SECONDS", 0.05)
    viewer, admin = await make_key("viewer"), await make_key("admin")
    (key,) = [key for key in await parts.keys.list() if key.role == "viewer"]
    async with events_of(streaming, headers=viewer) as leaving, events_of(streaming, headers=admin) as staying:
        await anext(leaving)
        await anext(staying)

        await parts.keys.revoke(key.id, AuditEntry("test"))

        async with asyncio.timeout(30):
            async for _ in leaving:
                await run_one(store)
            await run_one(store)
            await until(staying, "execution.succeeded")


async def test_an_expired_key_ends_its_open_stream(
    parts: ServerRuntime, streaming: httpx.AsyncClient, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events_resource, "KEEP_ALIVE_SECONDS", 0.05)
    _, token = await parts.keys.create("viewer", "short", timedelta(hours=1), AuditEntry("test"))
    async with events_of(streaming, headers={"Authorization": f"Bearer {token}"}) as events:
        await anext(events)

        async with store.database.connection() as connection:
            await connection.execute("UPDATE timeball.api_key SET expires_at = now() - interval '1 second'")

        async with asyncio.timeout(30):
            async for _ in events:
                pass


async def test_a_stream_ends_after_the_longest_allowed_time(
    store: Store,
) -> None:
    settings = Settings(api=ApiSettings(stream_minutes=0.002))
    api = make_api(make_server_runtime(settings, store, checking_commands(settings, store)))
    async with (
        httpx.AsyncClient(transport=InProcessTransport(api), base_url="http://localhost:8080/api/v1") as client,
        asyncio.timeout(30),
        events_of(client) as events,
    ):
        async for _ in events:
            pass
