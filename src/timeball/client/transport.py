"""How a request is sent: headers, retries, error responses as exceptions, and the stream of events.

`ApiTransport.exchange` is a generator: it yields what to do next (send this, wait so long) and receives the result. `Client` drives it with
blocking sockets, `AsyncClient` in an event loop, so there is one set of rules for both, and tests need no network.

A request is sent again only if it cannot be carried out twice:
- GET requests, and POST requests, which have an Idempotency-Key: after no response, 429, 502, 503, 504, or while the first is in flight;
- but not a POST whose server lost its database: the server cannot know what it did, and an older release has forgotten the key;
- any other request only if the server cannot have seen it, or responded with 429.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import uuid4

import httpx
import orjson

from timeball.client.requests import ApiRequest, encode_params, get, raw_content
from timeball.domain.values.redaction import redact
from timeball.domain.values.wording import parse_duration
from timeball.errors import (
    Conflict,
    InvalidInput,
    NeverFires,
    NotAllowed,
    NotFound,
    PayloadError,
    ScheduleError,
    ServerError,
    ServerUnreachable,
    StoreUnavailable,
    TimeballError,
    TooManyRequests,
    UnknownTimezone,
)

T = TypeVar("T")

PREFIX = "/api/v1"
_random = random.SystemRandom()
_CONNECT_SECONDS = 5.0
_SAFE_METHODS = frozenset({"GET", "HEAD"})
_TRANSIENT_STATUSES = frozenset({429, 502, 503, 504})
_REQUEST_IN_FLIGHT = "request_in_flight"
_STORE_UNAVAILABLE = "store_unavailable"


@dataclass(frozen=True, slots=True)
class HttpRetryPolicy:
    """How often and how long to try: the n-th wait is random between 0 and base * 2^n seconds, and at most *longest*."""

    retries: int = 4
    base: float = 0.2
    longest: float = 30.0

    def wait(self, tries: int, asked: float | None = None) -> float | None:
        """The seconds before the next try; None if there is none."""
        if tries > self.retries or (asked is not None and asked > self.longest):
            return None
        drawn = _random.uniform(0, min(self.longest, self.base * 2**tries))
        return drawn if asked is None else asked + drawn


@dataclass(frozen=True, slots=True)
class SendRequest:
    """Send a request; the reply is the response, or the transport error."""

    request: httpx.Request


@dataclass(frozen=True, slots=True)
class Sleep:
    """Wait for some seconds."""

    seconds: float


Step = SendRequest | Sleep
Reply = httpx.Response | httpx.TransportError | None


class ApiTransport:
    """Builds HTTP requests for one API and one key, and decides on retries."""

    def __init__(self, base_url: str, api_key: str | None, retry_policy: HttpRetryPolicy, timeout: float) -> None:
        self.base_url = base_url.rstrip("/").removesuffix(PREFIX)
        self._headers = {"User-Agent": _user_agent(), "Accept": "application/json"}
        if api_key is not None:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self.retry_policy = retry_policy
        connect = min(timeout, _CONNECT_SECONDS)
        self._timeout = {"connect": connect, "read": timeout, "write": timeout, "pool": timeout}

    def request(self, call: ApiRequest[Any]) -> httpx.Request:
        """The HTTP request of a call."""
        headers = {**self._headers, **call.headers}
        content = None
        if call.method in ("POST", "PUT", "PATCH"):
            headers["Content-Type"] = "application/json"
            content = orjson.dumps({} if call.body is None else call.body)
        if call.method == "POST":
            headers.setdefault("Idempotency-Key", str(uuid4()))
        url = f"{self.base_url}{PREFIX}{call.path}"
        return httpx.Request(
            call.method,
            url,
            params=_query_params(call.params) or None,
            headers=headers,
            content=content,
            extensions={"timeout": self._timeout | {"read": self._timeout["read"] + _server_wait_seconds(call)}},
        )

    def exchange(self, call: ApiRequest[T]) -> Generator[Step, Reply, T]:
        """Carry out a call, and return its parsed response."""
        request = self.request(call)
        tries = 0
        while True:
            reply = yield SendRequest(request)
            if isinstance(reply, httpx.Response) and (reply.is_success or reply.status_code in call.accepted_statuses):
                return call.read(reply.content)
            tries += 1
            seconds = self.pause(request.method, reply, tries)
            if seconds is None:
                raise self.error_of(reply)
            yield Sleep(seconds)

    def pause(self, method: str, reply: Reply, tries: int) -> float | None:
        """The seconds before the request is sent again; None if it must not be."""
        if not _may_retry(method, reply):
            return None
        asked = retry_after(reply) if isinstance(reply, httpx.Response) else None
        return self.retry_policy.wait(tries, asked)

    def error_of(self, reply: Reply) -> TimeballError:
        """The exception for an error response or a transport error."""
        if isinstance(reply, httpx.Response):
            return error_for(reply)
        assert reply is not None
        return unreachable(reply, self.base_url)


def _may_retry(method: str, reply: Reply) -> bool:
    if isinstance(reply, httpx.TransportError):
        return method in _SAFE_METHODS or method == "POST" or was_never_sent(reply)
    assert reply is not None
    if reply.status_code == 429 or method in _SAFE_METHODS:
        return reply.status_code in _TRANSIENT_STATUSES
    if method != "POST":
        return False
    code = error_for(reply).code
    return code == _REQUEST_IN_FLIGHT or (reply.status_code in _TRANSIENT_STATUSES and code != _STORE_UNAVAILABLE)


def _server_wait_seconds(call: ApiRequest[Any]) -> float:
    """How long the request asks the server to wait; a value that cannot be parsed is left for the server to refuse."""
    try:
        return parse_duration(call.params.get("wait") or 0, "wait").total_seconds()
    except InvalidInput:
        return 0.0


def _query_params(params: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _query_value(value) for name, value in params.items()}


def _query_value(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


def _user_agent() -> str:
    from timeball.version import __version__

    return f"timeball/{__version__}"


_ERRORS_BY_CODE: Mapping[str, type[TimeballError]] = {
    "invalid_schedule": ScheduleError,
    "invalid_cron": ScheduleError,
    "never_fires": NeverFires,
    "unknown_timezone": UnknownTimezone,
    "invalid_payload": PayloadError,
    "store_unavailable": StoreUnavailable,
}
_ERRORS_BY_STATUS: Mapping[int, type[TimeballError]] = {
    401: NotAllowed,
    403: NotAllowed,
    404: NotFound,
    409: Conflict,
    412: Conflict,
    429: TooManyRequests,
}


def error_for(response: httpx.Response) -> TimeballError:
    """The exception for a response of 400 and above."""
    problem = _problem(response)
    status = response.status_code
    code = str(problem.get("code") or _default_code(status))
    errors = tuple(problem.get("errors") or ())
    facts: dict[str, Any] = {
        "status": status,
        "code": code,
        "hint": problem.get("hint") or _default_hint(status),
        "errors": errors,
        "request_id": problem.get("request_id") or response.headers.get("x-request-id"),
    }
    kind = _error_class(code, status)
    if issubclass(kind, InvalidInput) and errors:
        facts["field"] = errors[0].get("pointer", "").removeprefix("/") or None
    if issubclass(kind, TooManyRequests):
        facts["retry_after"] = retry_after(response)
    return kind.from_response(str(problem.get("detail") or f"the server responded with {status}"), **facts)


def unreachable(error: httpx.TransportError, base_url: str) -> ServerUnreachable:
    """The exception for a server that did not respond."""
    reason = str(error) or type(error).__name__
    return ServerUnreachable(
        f"no response from {redact(base_url)}: {reason}",
        hint="start a server with: timeball up; or name another one with TIMEBALL_URL",
        maybe_done=not was_never_sent(error),
    )


def was_never_sent(error: httpx.TransportError) -> bool:
    """Whether the server cannot have seen any part of the request."""
    return isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout | httpx.UnsupportedProtocol)


def retry_after(response: httpx.Response) -> float | None:
    """The seconds in a Retry-After header; a date is not understood."""
    text = response.headers.get("retry-after", "").strip()
    return float(text) if text.isascii() and text.isdecimal() and len(text) <= 6 else None


def _problem(response: httpx.Response) -> dict[str, Any]:
    try:
        document = orjson.loads(response.content)
    except orjson.JSONDecodeError:
        return {}
    return document if isinstance(document, dict) else {}


def _error_class(code: str, status: int) -> type[TimeballError]:
    if code in _ERRORS_BY_CODE:
        return _ERRORS_BY_CODE[code]
    return _ERRORS_BY_STATUS.get(status) or (InvalidInput if 400 <= status < 500 else ServerError)


def _default_code(status: int) -> str:
    return "http_error" if status < 500 else "server_error"


def _default_hint(status: int) -> str | None:
    return "check that this is a Timeball server: GET /docs lists its routes" if status in (404, 405) else None


# After these a reader of events connects again.
TRANSIENT_ERRORS = (ServerUnreachable, StoreUnavailable, TooManyRequests, ServerError)


@dataclass(frozen=True, slots=True)
class Event:
    """A change event: the position behind it in the stream (for `since`), its type, and its data.

    Events that were recorded together share a position. `data["id"]` identifies an event, also if it comes twice.
    The type `gap` means that some events were left out, `reset` that the stream could not be resumed where it was.
    """

    id: str | None
    type: str
    data: Any = field(default=None)


class EventStream:
    """The position of a reader of events, across any number of connections."""

    def __init__(self, transport: ApiTransport, since: str | None, filters: Mapping[str, Any]) -> None:
        self._transport = transport
        self._last_id = since
        self._filters = encode_params(filters)
        self._failures = 0
        self._requested_pause: float | None = None
        self._type, self._lines = "message", list[str]()

    def request(self) -> httpx.Request:
        """The request that resumes behind the last event."""
        self._type, self._lines = "message", []
        headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
        if self._last_id is not None:
            headers["Last-Event-ID"] = self._last_id
        call = get("/events", raw_content, **self._filters)
        request = self._transport.request(call)
        request.headers.update(headers)
        return request

    def feed(self, line: str) -> Iterator[Event]:
        """Parse a line; an empty line completes an event."""
        if line:
            name, _, value = line.partition(":")
            self._set_field(name, value.removeprefix(" "))
        elif self._lines:
            event = Event(self._last_id, self._type, _data("\n".join(self._lines)))
            self._type, self._lines = "message", []
            self._failures = 0
            yield event
        else:
            self._type = "message"

    def _set_field(self, name: str, value: str) -> None:
        match name:
            case "data":
                self._lines.append(value)
            case "event":
                self._type = value
            case "id" if "\0" not in value:
                self._last_id = value or None
            case "retry" if value.isascii() and value.isdecimal():
                self._requested_pause = min(int(value[:6]) / 1000, 60.0)
            case _:  # a comment keeps the connection alive
                return

    def disconnected(self, error: TimeballError) -> None:
        """Count a failed connection; raise the error after too many."""
        if self._failures >= self._transport.retry_policy.retries:
            raise error
        self._failures += 1

    def pause(self) -> float:
        """The seconds to wait before the next connection."""
        backoff = self._transport.retry_policy.wait(self._failures)
        return max(backoff or 0.0, self._requested_pause or 0.0)


def _data(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
