"""The stream of server-sent events, resumed behind the last event after a lost connection."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
import orjson

from timeball.client.requests import encode_params, get, raw_content
from timeball.client.transport import ApiTransport
from timeball.errors import ServerError, ServerUnreachable, StoreUnavailable, TimeballError, TooManyRequests

# After these it makes sense to connect again.
TRANSIENT_ERRORS = (ServerUnreachable, StoreUnavailable, TooManyRequests, ServerError)


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened: the place in the stream behind it (`since` goes on there), its type, and its data.

    Events that were recorded together share a place; `data["id"]` tells them apart, and is the same if one is told twice.
    The type `gap` says that some events were left out, `reset` that the stream could not be taken up where it was.
    """

    id: str | None
    type: str
    data: Any = field(default=None)


class EventStream:
    """Where a reader of events is, across as many connections as it takes."""

    def __init__(self, transport: ApiTransport, since: str | None, filters: Mapping[str, Any]) -> None:
        self._transport = transport
        self._last_id = since
        self._filters = encode_params(filters)
        self._failures = 0
        self._wanted_pause: float | None = None
        self._type, self._lines = "message", list[str]()

    def request(self) -> httpx.Request:
        """The request that goes on behind the last event."""
        self._type, self._lines = "message", []
        headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
        if self._last_id is not None:
            headers["Last-Event-ID"] = self._last_id
        call = get("/events", raw_content, **self._filters)
        request = self._transport.request(call)
        request.headers.update(headers)
        return request

    def feed(self, line: str) -> Iterator[Event]:
        """Take in a line; an empty one completes an event."""
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
                self._wanted_pause = min(int(value[:6]) / 1000, 60.0)
            case _:  # a comment keeps the connection alive
                return

    def disconnected(self, error: TimeballError) -> None:
        """Note that the connection failed; raises the error when it is no use to try again."""
        if self._failures >= self._transport.retry_policy.retries:
            raise error
        self._failures += 1

    def pause(self) -> float:
        """How long to wait before the next connection, in seconds."""
        drawn = self._transport.retry_policy.wait(self._failures)
        return max(drawn or 0.0, self._wanted_pause or 0.0)


def _data(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
