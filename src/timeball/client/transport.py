"""How a request is sent: headers, retries and their rules, and error responses as exceptions."""

from __future__ import annotations

import random
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import uuid4

import httpx
import orjson

from timeball.client.requests import ApiRequest
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

# How a call is carried out: what is sent, when it is sent again, and when not.
#
# A conversation is a generator: it yields what to do next (send this, wait so long) and is told what came of it. Who drives it
# decides how, with blocking sockets or in an event loop; so there is one set of rules for both, and tests need no network.
#
# Sent again is only what cannot be done twice:
# - questions, and POSTs, which bear an Idempotency-Key: after no answer, 429, 502, 503, 504, or while the first is in flight;
# - but not a POST whose server lost its database: it cannot tell what it did, and one of an older release has forgotten the key;
# - everything else only if the server cannot have seen it, or said by 429 that it did nothing.

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
    """How often and how long to try: the n-th wait is drawn from 0 to base * 2^n seconds, and never above the longest."""

    retries: int = 4
    base: float = 0.2
    longest: float = 30.0

    def wait(self, tries: int, asked: float | None = None) -> float | None:
        """The seconds before the next try; None if there is to be none."""
        if tries > self.retries or (asked is not None and asked > self.longest):
            return None
        drawn = _random.uniform(0, min(self.longest, self.base * 2**tries))
        return drawn if asked is None else asked + drawn


@dataclass(frozen=True, slots=True)
class SendRequest:
    """Send this; what is wanted back is the answer, or the error that came instead."""

    request: httpx.Request


@dataclass(frozen=True, slots=True)
class Sleep:
    """Rest for so many seconds."""

    seconds: float


Step = SendRequest | Sleep
Reply = httpx.Response | httpx.TransportError | None


class ApiTransport:
    """Knows where the API is and who is calling; makes requests of calls."""

    def __init__(self, base_url: str, api_key: str | None, retry_policy: HttpRetryPolicy, timeout: float) -> None:
        self.base_url = base_url.rstrip("/").removesuffix(PREFIX)
        self._headers = {"User-Agent": _user_agent(), "Accept": "application/json"}
        if api_key is not None:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self.retry_policy = retry_policy
        connect = min(timeout, _CONNECT_SECONDS)
        self._timeout = {"connect": connect, "read": timeout, "write": timeout, "pool": timeout}

    def request(self, call: ApiRequest[Any]) -> httpx.Request:
        """The request that a call is."""
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
        """Carry a call out, and return what its answer means."""
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
        """How long to wait before the same is sent again; None if it must not be, or not any more."""
        if not _may_retry(method, reply):
            return None
        asked = retry_after(reply) if isinstance(reply, httpx.Response) else None
        return self.retry_policy.wait(tries, asked)

    def error_of(self, reply: Reply) -> TimeballError:
        """The error to raise for what came instead of an answer."""
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
    """How long the server was asked to wait before it answers; what cannot be read is for the server to refuse."""
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


# What the API refused, as the errors of `timeball.errors`.

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
    """The error that an answer of 400 and above stands for."""
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
    return kind.from_response(str(problem.get("detail") or f"the server answered {status}"), **facts)


def unreachable(error: httpx.TransportError, base_url: str) -> ServerUnreachable:
    """The error for a server that did not answer."""
    words = str(error) or type(error).__name__
    return ServerUnreachable(
        f"no answer from {redact(base_url)}: {words}",
        hint="is it running there? start one with: timeball up; or name another with TIMEBALL_URL",
        maybe_done=not was_never_sent(error),
    )


def was_never_sent(error: httpx.TransportError) -> bool:
    """Whether the server cannot have seen anything of the request."""
    return isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout | httpx.UnsupportedProtocol)


def retry_after(response: httpx.Response) -> float | None:
    """The seconds that an answer asks to wait; a date is not understood."""
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
    return "is this a Timeball server? GET /docs there lists its routes" if status in (404, 405) else None
