"""What the API refused, as the errors of `timeball.errors`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx
import orjson

from timeball.domain.redaction import redacted
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

_BY_CODE: Mapping[str, type[TimeballError]] = {
    "invalid_schedule": ScheduleError,
    "invalid_cron": ScheduleError,
    "never_fires": NeverFires,
    "unknown_timezone": UnknownTimezone,
    "invalid_payload": PayloadError,
    "store_unavailable": StoreUnavailable,
}
_BY_STATUS: Mapping[int, type[TimeballError]] = {
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
    code = str(problem.get("code") or _code_without_words(status))
    errors = tuple(problem.get("errors") or ())
    facts: dict[str, Any] = {
        "status": status,
        "code": code,
        "hint": problem.get("hint") or _hint(status),
        "errors": errors,
        "request_id": problem.get("request_id") or response.headers.get("x-request-id"),
    }
    kind = _kind(code, status)
    if issubclass(kind, InvalidInput) and errors:
        facts["field"] = errors[0].get("pointer", "").removeprefix("/") or None
    if issubclass(kind, TooManyRequests):
        facts["retry_after"] = retry_after(response)
    return kind.told(str(problem.get("detail") or f"the server answered {status}"), **facts)


def unreachable(error: httpx.TransportError, base_url: str) -> ServerUnreachable:
    """The error for a server that did not answer."""
    words = str(error) or type(error).__name__
    return ServerUnreachable(
        f"no answer from {redacted(base_url)}: {words}",
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


def _kind(code: str, status: int) -> type[TimeballError]:
    if code in _BY_CODE:
        return _BY_CODE[code]
    return _BY_STATUS.get(status) or (InvalidInput if 400 <= status < 500 else ServerError)


def _code_without_words(status: int) -> str:
    return "http_error" if status < 500 else "server_error"


def _hint(status: int) -> str | None:
    return "is this a Timeball server? GET /docs there lists its routes" if status in (404, 405) else None
