"""How a call is carried out: what is sent, when it is sent again, and when not.

A conversation is a generator: it yields what to do next (send this, wait so long) and is told what came of it. Who drives it
decides how, with blocking sockets or in an event loop; so there is one set of rules for both, and tests need no network.

Sent again is only what cannot be done twice:
- questions, and POSTs, which bear an Idempotency-Key: after no answer, 429, 502, 503, 504, or while the first is in flight;
- but not a POST whose server lost its database: it cannot tell what it did, and one of an older release has forgotten the key;
- everything else only if the server cannot have seen it, or said by 429 that it did nothing.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import uuid4

import httpx
import orjson

from timeball.client.calls import Call
from timeball.client.problems import error_for, retry_after, unreachable, was_never_sent
from timeball.domain.spans import parse_span
from timeball.errors import InvalidInput, TimeballError

T = TypeVar("T")

PREFIX = "/api/v1"
_chance = random.SystemRandom()
_CONNECT_SECONDS = 5.0
_SAFE = frozenset({"GET", "HEAD"})
_PASSING = frozenset({429, 502, 503, 504})
_IN_FLIGHT = "request_in_flight"
_KEY_FORGOTTEN = "store_unavailable"


@dataclass(frozen=True, slots=True)
class Patience:
    """How often and how long to try: the n-th wait is drawn from 0 to base * 2^n seconds, and never above the longest."""

    retries: int = 4
    base: float = 0.2
    longest: float = 30.0

    def wait(self, tries: int, asked: float | None = None) -> float | None:
        """The seconds before the next try; None if there is to be none."""
        if tries > self.retries or (asked is not None and asked > self.longest):
            return None
        drawn = _chance.uniform(0, min(self.longest, self.base * 2**tries))
        return drawn if asked is None else asked + drawn


@dataclass(frozen=True, slots=True)
class Send:
    """Send this; what is wanted back is the answer, or the error that came instead."""

    request: httpx.Request


@dataclass(frozen=True, slots=True)
class Wait:
    """Rest for so many seconds."""

    seconds: float


Step = Send | Wait
Reply = httpx.Response | httpx.TransportError | None


class Speaker:
    """Knows where the API is and who is calling; makes requests of calls."""

    def __init__(self, base_url: str, api_key: str | None, patience: Patience, timeout: float) -> None:
        self.base_url = base_url.rstrip("/").removesuffix(PREFIX)
        self._headers = {"User-Agent": _user_agent(), "Accept": "application/json"}
        if api_key is not None:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self.patience = patience
        connect = min(timeout, _CONNECT_SECONDS)
        self._timeout = {"connect": connect, "read": timeout, "write": timeout, "pool": timeout}

    def request(self, call: Call[Any]) -> httpx.Request:
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
            params=_flat(call.params) or None,
            headers=headers,
            content=content,
            extensions={"timeout": self._timeout | {"read": self._timeout["read"] + _seconds_asked_for(call)}},
        )

    def converse(self, call: Call[T]) -> Generator[Step, Reply, T]:
        """Carry a call out, and return what its answer means."""
        request = self.request(call)
        tries = 0
        while True:
            reply = yield Send(request)
            if isinstance(reply, httpx.Response) and (reply.is_success or reply.status_code in call.also_fine):
                return call.read(reply.content)
            tries += 1
            seconds = self.pause(request.method, reply, tries)
            if seconds is None:
                raise self.refusal(reply)
            yield Wait(seconds)

    def pause(self, method: str, reply: Reply, tries: int) -> float | None:
        """How long to wait before the same is sent again; None if it must not be, or not any more."""
        if not _may_be_sent_again(method, reply):
            return None
        asked = retry_after(reply) if isinstance(reply, httpx.Response) else None
        return self.patience.wait(tries, asked)

    def refusal(self, reply: Reply) -> TimeballError:
        """The error to raise for what came instead of an answer."""
        if isinstance(reply, httpx.Response):
            return error_for(reply)
        assert reply is not None
        return unreachable(reply, self.base_url)


def _may_be_sent_again(method: str, reply: Reply) -> bool:
    if isinstance(reply, httpx.TransportError):
        return method in _SAFE or method == "POST" or was_never_sent(reply)
    assert reply is not None
    if reply.status_code == 429 or method in _SAFE:
        return reply.status_code in _PASSING
    if method != "POST":
        return False
    code = error_for(reply).code
    return code == _IN_FLIGHT or (reply.status_code in _PASSING and code != _KEY_FORGOTTEN)


def _seconds_asked_for(call: Call[Any]) -> float:
    """How long the server was asked to wait before it answers; what cannot be read is for the server to refuse."""
    try:
        return parse_span(call.params.get("wait") or 0, "wait").total_seconds()
    except InvalidInput:
        return 0.0


def _flat(params: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _word(value) for name, value in params.items()}


def _word(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


def _user_agent() -> str:
    from timeball.version import __version__

    return f"timeball/{__version__}"
