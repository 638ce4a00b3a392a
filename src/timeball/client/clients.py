"""`Client` and `AsyncClient`: the HTTP API from Python.

    with Client("http://localhost:8080") as timeball:
        job = timeball.jobs.create(handler="test.echo", payload={"hello": "world"})
        print(job.id, job.status)

The clients only send and wait; what is sent, and when it is sent again, is decided in `transport`.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import httpx

from timeball.client.channels import AlertRoutesApi, ChannelsApi
from timeball.client.executions import DeadLettersApi, ExecutionsApi, GroupsApi, OperationsApi
from timeball.client.jobs import CalendarsApi, JobsApi, TemplatesApi
from timeball.client.requests import ApiRequest, ClientType, Page, Poll, parse_json
from timeball.client.system import (
    AlertsApi,
    FreezesApi,
    HandlersApi,
    QueuesApi,
    SchedulesApi,
    SystemApi,
    TimeApi,
    WorkersApi,
)
from timeball.client.transport import (
    TRANSIENT_ERRORS,
    ApiTransport,
    Event,
    EventStream,
    HttpRetryPolicy,
    Reply,
    SendRequest,
    Step,
)
from timeball.client.webhooks import WebhooksApi
from timeball.config.servers import find_local_key, server_url_problem
from timeball.errors import InvalidInput


class Resources(Generic[ClientType]):
    """The resources of the API."""

    def __init__(self, client: ClientType) -> None:
        self.jobs: JobsApi[ClientType] = JobsApi(client)
        self.executions: ExecutionsApi[ClientType] = ExecutionsApi(client)
        self.groups: GroupsApi[ClientType] = GroupsApi(client)
        self.dead_letters: DeadLettersApi[ClientType] = DeadLettersApi(client)
        self.operations: OperationsApi[ClientType] = OperationsApi(client)
        self.queues: QueuesApi[ClientType] = QueuesApi(client)
        self.freezes: FreezesApi[ClientType] = FreezesApi(client)
        self.alerts: AlertsApi[ClientType] = AlertsApi(client)
        self.workers: WorkersApi[ClientType] = WorkersApi(client)
        self.handlers: HandlersApi[ClientType] = HandlersApi(client)
        self.templates: TemplatesApi[ClientType] = TemplatesApi(client)
        self.calendars: CalendarsApi[ClientType] = CalendarsApi(client)
        self.webhooks: WebhooksApi[ClientType] = WebhooksApi(client)
        self.channels: ChannelsApi[ClientType] = ChannelsApi(client)
        self.alert_routes: AlertRoutesApi[ClientType] = AlertRoutesApi(client)
        self.schedules: SchedulesApi[ClientType] = SchedulesApi(client)
        self.time: TimeApi[ClientType] = TimeApi(client)
        self.system: SystemApi[ClientType] = SystemApi(client)


T = TypeVar("T")

DEFAULT_URL = "http://127.0.0.1:8080"


def check_server_url(url: str, name: str) -> None:
    """Raise InvalidInput if *url* cannot be the address of a server; *name* is the option or variable that holds it."""
    if problem := server_url_problem(url, ("http", "https"), DEFAULT_URL):
        raise InvalidInput(f"{name} {problem}", field="base_url", hint=f"such as {name}={DEFAULT_URL}")


def _make_transport(base_url: str | None, api_key: str | None, retries: int, timeout: float) -> ApiTransport:
    if base_url:
        check_server_url(base_url, "base_url")
    elif variable := os.environ.get("TIMEBALL_URL"):
        check_server_url(variable, "TIMEBALL_URL")
    url = base_url or os.environ.get("TIMEBALL_URL") or DEFAULT_URL
    key = api_key or os.environ.get("TIMEBALL_API_KEY") or find_local_key(url)
    return ApiTransport(url, key, HttpRetryPolicy(retries), timeout)


class Client(Resources["Client"]):
    """The API for synchronous programs: scripts, threads, notebooks. Several threads may share one client.

    *base_url* defaults to TIMEBALL_URL, or else to http://127.0.0.1:8080; *api_key* defaults to TIMEBALL_API_KEY.
    """

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        retries: int = 4,
        timeout: float = 60.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        super().__init__(self)
        self._transport = _make_transport(base_url, api_key, retries, timeout)
        self._http = httpx.Client(transport=transport)
        self._sleep = time.sleep

    def perform(self, call: ApiRequest[T]) -> T:
        """Carry out a request."""
        return self._drive(self._transport.exchange(call))

    def request(self, method: str, path: str, body: Any = None, **params: Any) -> Any:
        """Any route by its path below /api/v1: `client.request("GET", "/stats", hours=1)`; returns its JSON."""
        return self.perform(ApiRequest(method, path, parse_json, params, body))

    def iterate(self, call: ApiRequest[Page[T]]) -> Iterator[T]:
        """The items of a list, page after page."""
        page = self.perform(call)
        yield from page.data
        while page.has_more:
            page = self.perform(call.with_params(cursor=page.next_cursor))
            yield from page.data

    def poll(self, poll_request: Poll[T]) -> T:
        """Repeat a request until its response says that something has finished; ResultTimeout if that takes too long."""
        pauses = poll_request.pauses()
        while not poll_request.is_over(result := self.perform(poll_request.request)):
            self._sleep(next(pauses))
        return result

    def download(self, call: ApiRequest[bytes]) -> Iterator[bytes]:
        """The content of a response as it arrives; not repeated if it breaks off."""
        with self._opened(self._transport.request(call)) as response:
            yield from response.iter_bytes()

    def events(self, *, since: str | None = None, **filters: Any) -> Iterator[Event]:
        """The events from now on, or since the position of an event; resumed after a lost connection."""
        stream = EventStream(self._transport, since, filters)
        while True:
            try:
                with self._opened(stream.request()) as response:
                    for line in response.iter_lines():
                        yield from stream.feed(line)
            except TRANSIENT_ERRORS as error:
                stream.disconnected(error)
            self._sleep(stream.pause())

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _drive(self, steps: Generator[Step, Reply, T]) -> T:
        reply: Reply = None
        while True:
            try:
                step = steps.send(reply)
            except StopIteration as end:
                result: T = end.value
                return result
            reply = self._send(step.request) if isinstance(step, SendRequest) else self._sleep(step.seconds)

    def _send(self, request: httpx.Request) -> Reply:
        try:
            return self._http.send(request)
        except httpx.TransportError as error:
            return error

    @contextmanager
    def _opened(self, request: httpx.Request) -> Iterator[httpx.Response]:
        try:
            response = self._http.send(request, stream=True)
            try:
                if not response.is_success:
                    response.read()
                    raise self._transport.error_of(response)
                yield response
            finally:
                response.close()
        except httpx.TransportError as error:
            raise self._transport.error_of(error) from error


class AsyncClient(Resources["AsyncClient"]):
    """The API for coroutines: the same methods as `Client`, to be awaited; lists and events by `async for`."""

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        retries: int = 4,
        timeout: float = 60.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        super().__init__(self)
        self._transport = _make_transport(base_url, api_key, retries, timeout)
        self._http = httpx.AsyncClient(transport=transport)
        self._sleep = asyncio.sleep

    async def perform(self, call: ApiRequest[T]) -> T:
        """Carry out a request."""
        return await self._drive(self._transport.exchange(call))

    async def request(self, method: str, path: str, body: Any = None, **params: Any) -> Any:
        """Any route by its path below /api/v1: `await client.request("GET", "/stats", hours=1)`; returns its JSON."""
        return await self.perform(ApiRequest(method, path, parse_json, params, body))

    async def iterate(self, call: ApiRequest[Page[T]]) -> AsyncIterator[T]:
        """The items of a list, page after page."""
        page = await self.perform(call)
        for item in page.data:
            yield item
        while page.has_more:
            page = await self.perform(call.with_params(cursor=page.next_cursor))
            for item in page.data:
                yield item

    async def poll(self, poll_request: Poll[T]) -> T:
        """Repeat a request until its response says that something has finished; ResultTimeout if that takes too long."""
        pauses = poll_request.pauses()
        while not poll_request.is_over(result := await self.perform(poll_request.request)):
            await self._sleep(next(pauses))
        return result

    async def download(self, call: ApiRequest[bytes]) -> AsyncIterator[bytes]:
        """The content of a response as it arrives; not repeated if it breaks off."""
        async with self._opened(self._transport.request(call)) as response:
            async for chunk in response.aiter_bytes():
                yield chunk

    async def events(self, *, since: str | None = None, **filters: Any) -> AsyncGenerator[Event, None]:
        """The events from now on, or since the position of an event; resumed after a lost connection."""
        stream = EventStream(self._transport, since, filters)
        while True:
            try:
                async with self._opened(stream.request()) as response:
                    async for line in response.aiter_lines():
                        for event in stream.feed(line):
                            yield event
            except TRANSIENT_ERRORS as error:
                stream.disconnected(error)
            await self._sleep(stream.pause())

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _drive(self, steps: Generator[Step, Reply, T]) -> T:
        reply: Reply = None
        while True:
            try:
                step = steps.send(reply)
            except StopIteration as end:
                result: T = end.value
                return result
            reply = await (self._send(step.request) if isinstance(step, SendRequest) else self._sleep(step.seconds))

    async def _send(self, request: httpx.Request) -> Reply:
        try:
            return await self._http.send(request)
        except httpx.TransportError as error:
            return error

    @asynccontextmanager
    async def _opened(self, request: httpx.Request) -> AsyncIterator[httpx.Response]:
        try:
            response = await self._http.send(request, stream=True)
            try:
                if not response.is_success:
                    await response.aread()
                    raise self._transport.error_of(response)
                yield response
            finally:
                await response.aclose()
        except httpx.TransportError as error:
            raise self._transport.error_of(error) from error
