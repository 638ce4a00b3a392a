"""`Client` and `AsyncClient`: the HTTP API from Python.

    with Client("http://localhost:8080") as timeball:
        job = timeball.jobs.create(handler="test.echo", payload={"hello": "world"})
        print(job.id, job.status)

The faces only send and wait; what is said, and when it is said again, is in `conversation`.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx

from timeball.client.calls import Awaited, Call, Page, anything
from timeball.client.conversation import Patience, Reply, Send, Speaker, Step
from timeball.client.groups import Groups
from timeball.client.streams import PASSING_ERRORS, Event, EventStream
from timeball.domain.addresses import address_problem
from timeball.errors import InvalidInput
from timeball.local_key import find_local_key

T = TypeVar("T")

DEFAULT_URL = "http://127.0.0.1:8080"


def check_server(url: str, name: str) -> None:
    """Refuse what can be no address of a server; *name* is what it is called where it was written."""
    if problem := address_problem(url, ("http", "https"), DEFAULT_URL):
        raise InvalidInput(f"{name} {problem}", field="base_url", hint=f"such as {name}={DEFAULT_URL}")


def _speaker(base_url: str | None, api_key: str | None, retries: int, timeout: float) -> Speaker:
    if base_url:
        check_server(base_url, "base_url")
    elif named := os.environ.get("TIMEBALL_URL"):
        check_server(named, "TIMEBALL_URL")
    url = base_url or os.environ.get("TIMEBALL_URL") or DEFAULT_URL
    key = api_key or os.environ.get("TIMEBALL_API_KEY") or find_local_key(url)
    return Speaker(url, key, Patience(retries), timeout)


class Client(Groups["Client"]):
    """The API for programs that wait: scripts, threads, notebooks. Several threads may use one client.

    *base_url* is TIMEBALL_URL, or http://127.0.0.1:8080, unless given; *api_key* is TIMEBALL_API_KEY.
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
        self._speaker = _speaker(base_url, api_key, retries, timeout)
        self._http = httpx.Client(transport=transport)
        self._rest = time.sleep

    def perform(self, call: Call[T]) -> T:
        """Carry a call out."""
        return self._drive(self._speaker.converse(call))

    def request(self, method: str, path: str, body: Any = None, **params: Any) -> Any:
        """Any route by its path below /api/v1: `client.request("GET", "/stats", hours=1)`; gives back its JSON."""
        return self.perform(Call(method, path, anything, params, body))

    def walk(self, call: Call[Page[T]]) -> Iterator[T]:
        """The items of a list, page after page."""
        page = self.perform(call)
        yield from page.data
        while page.has_more:
            page = self.perform(call.having(cursor=page.next_cursor))
            yield from page.data

    def await_end(self, awaited: Awaited[T]) -> T:
        """Ask until the answer says that it is over; ResultTimeout if that takes too long."""
        pauses = awaited.pauses()
        while not awaited.is_over(found := self.perform(awaited.question)):
            self._rest(next(pauses))
        return found

    def download(self, call: Call[bytes]) -> Iterator[bytes]:
        """The content of an answer as it comes; not begun anew if it breaks off."""
        with self._opened(self._speaker.request(call)) as response:
            yield from response.iter_bytes()

    def events(self, *, since: str | None = None, **filters: Any) -> Iterator[Event]:
        """What happens from now on, or since the event of an id; goes on where it was when the connection breaks off."""
        stream = EventStream(self._speaker, since, filters)
        while True:
            try:
                with self._opened(stream.request()) as response:
                    for line in response.iter_lines():
                        yield from stream.hear(line)
            except PASSING_ERRORS as error:
                stream.lose(error)
            self._rest(stream.pause())

    def close(self) -> None:
        """Give the connections back."""
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
                answer: T = end.value
                return answer
            reply = self._answer(step.request) if isinstance(step, Send) else self._rest(step.seconds)

    def _answer(self, request: httpx.Request) -> Reply:
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
                    raise self._speaker.refusal(response)
                yield response
            finally:
                response.close()
        except httpx.TransportError as error:
            raise self._speaker.refusal(error) from error


class AsyncClient(Groups["AsyncClient"]):
    """The API for coroutines. The same verbs as `Client`, each to be awaited; lists and events by `async for`."""

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
        self._speaker = _speaker(base_url, api_key, retries, timeout)
        self._http = httpx.AsyncClient(transport=transport)
        self._rest = asyncio.sleep

    async def perform(self, call: Call[T]) -> T:
        """Carry a call out."""
        return await self._drive(self._speaker.converse(call))

    async def request(self, method: str, path: str, body: Any = None, **params: Any) -> Any:
        """Any route by its path below /api/v1: `await client.request("GET", "/stats", hours=1)`; gives back its JSON."""
        return await self.perform(Call(method, path, anything, params, body))

    async def walk(self, call: Call[Page[T]]) -> AsyncIterator[T]:
        """The items of a list, page after page."""
        page = await self.perform(call)
        for item in page.data:
            yield item
        while page.has_more:
            page = await self.perform(call.having(cursor=page.next_cursor))
            for item in page.data:
                yield item

    async def await_end(self, awaited: Awaited[T]) -> T:
        """Ask until the answer says that it is over; ResultTimeout if that takes too long."""
        pauses = awaited.pauses()
        while not awaited.is_over(found := await self.perform(awaited.question)):
            await self._rest(next(pauses))
        return found

    async def download(self, call: Call[bytes]) -> AsyncIterator[bytes]:
        """The content of an answer as it comes; not begun anew if it breaks off."""
        async with self._opened(self._speaker.request(call)) as response:
            async for chunk in response.aiter_bytes():
                yield chunk

    async def events(self, *, since: str | None = None, **filters: Any) -> AsyncGenerator[Event, None]:
        """What happens from now on, or since the event of an id; goes on where it was when the connection breaks off."""
        stream = EventStream(self._speaker, since, filters)
        while True:
            try:
                async with self._opened(stream.request()) as response:
                    async for line in response.aiter_lines():
                        for event in stream.hear(line):
                            yield event
            except PASSING_ERRORS as error:
                stream.lose(error)
            await self._rest(stream.pause())

    async def aclose(self) -> None:
        """Give the connections back."""
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
                answer: T = end.value
                return answer
            reply = await (self._answer(step.request) if isinstance(step, Send) else self._rest(step.seconds))

    async def _answer(self, request: httpx.Request) -> Reply:
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
                    raise self._speaker.refusal(response)
                yield response
            finally:
                await response.aclose()
        except httpx.TransportError as error:
            raise self._speaker.refusal(error) from error
