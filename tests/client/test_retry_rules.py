"""Which requests are retried and which never, without a network."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from timeball.client import Client
from timeball.client.transport import HttpRetryPolicy
from timeball.errors import (
    Conflict,
    InvalidInput,
    NotAllowed,
    NotFound,
    ServerError,
    ServerUnreachable,
    StoreUnavailable,
    TimeballError,
    TooManyRequests,
    UnknownTimezone,
)

Answer = Callable[[httpx.Request], httpx.Response]


class Server:
    """Responds to one request after the other as given, and records the requests."""

    def __init__(self, *answers: httpx.Response | Exception) -> None:
        self._answers: Iterator[httpx.Response | Exception] = iter(answers)
        self.asked: list[httpx.Request] = []
        self.waits: list[float] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def client(self, **options: Any) -> Client:
        client = Client("http://somewhere", transport=httpx.MockTransport(self), **options)
        client._sleep = self.waits.append
        return client


OK = httpx.Response(200, json={"answer": 42})


def problem(status: int, code: str = "x", **more: Any) -> httpx.Response:
    headers = more.pop("headers", {})
    return httpx.Response(status, json={"code": code, "detail": "told", "status": status, **more}, headers=headers)


@pytest.mark.parametrize(
    "first",
    [
        httpx.ConnectError("refused"),
        httpx.ReadTimeout("slow"),
        httpx.RemoteProtocolError("cut"),
        problem(503, "store_unavailable"),
        httpx.Response(502, text="<html>"),
        httpx.Response(504),
        problem(429),
    ],
)
def test_a_get_is_retried(first: httpx.Response | Exception) -> None:
    server = Server(first, OK)

    assert server.client().request("GET", "/stats") == {"answer": 42}
    assert len(server.asked) == 2


@pytest.mark.parametrize(
    "first",
    [
        httpx.ConnectError("refused"),
        httpx.ReadTimeout("slow"),
        httpx.Response(502),
        httpx.Response(503),
        problem(429),
        problem(409, "request_in_flight"),
    ],
)
def test_a_post_is_retried_with_the_same_key(first: httpx.Response | Exception) -> None:
    server = Server(first, OK)

    server.client().request("POST", "/jobs", {"handler": "h"})

    one, other = (request.headers["idempotency-key"] for request in server.asked)
    assert one == other


def test_two_posts_have_different_keys() -> None:
    server = Server(OK, OK)
    client = server.client()

    client.request("POST", "/jobs", {})
    client.request("POST", "/jobs", {})

    assert server.asked[0].headers["idempotency-key"] != server.asked[1].headers["idempotency-key"]


@pytest.mark.parametrize(
    ("method", "answer", "kind"),
    [
        ("POST", problem(503, "store_unavailable"), StoreUnavailable),
        ("POST", problem(409, "conflict"), Conflict),
        ("POST", problem(500, "internal_error"), ServerError),
        ("PATCH", httpx.ReadTimeout("slow"), ServerUnreachable),
        ("PATCH", httpx.Response(502), ServerError),
        ("DELETE", httpx.Response(503), ServerError),
        ("GET", problem(500, "internal_error"), ServerError),
        ("GET", problem(404, "not_found"), NotFound),
    ],
)
def test_a_request_that_may_have_been_carried_out_is_not_retried(
    method: str, answer: httpx.Response | Exception, kind: type[TimeballError]
) -> None:
    server = Server(answer, OK)

    with pytest.raises(kind):
        server.client().request(method, "/jobs/x")
    assert len(server.asked) == 1


@pytest.mark.parametrize("answer", [httpx.ConnectError("refused"), problem(429)])
def test_a_request_that_was_not_carried_out_is_retried_whatever_its_method(answer: httpx.Response | Exception) -> None:
    server = Server(answer, OK)

    server.client().request("PATCH", "/jobs/x", {"priority": 1})

    assert len(server.asked) == 2


def test_retries_have_a_limit() -> None:
    server = Server(*[httpx.ConnectError("refused")] * 10)

    with pytest.raises(ServerUnreachable, match="refused") as caught:
        server.client(retries=2).request("GET", "/stats")

    assert len(server.asked) == 3
    assert caught.value.maybe_done is False
    assert caught.value.hint is not None


def test_a_lost_response_sets_maybe_done() -> None:
    with pytest.raises(ServerUnreachable) as caught:
        Server(httpx.ReadTimeout("slow")).client().request("PATCH", "/jobs/x")

    assert caught.value.maybe_done is True


def test_retry_after_is_respected() -> None:
    server = Server(problem(429, headers={"Retry-After": "7"}), OK)

    server.client().request("GET", "/stats")

    assert len(server.waits) == 1
    assert server.waits[0] >= 7


def test_a_retry_after_above_the_limit_is_an_error_at_once() -> None:
    server = Server(problem(429, headers={"Retry-After": "3600"}), OK)

    with pytest.raises(TooManyRequests) as caught:
        server.client().request("GET", "/stats")

    assert server.waits == []
    assert caught.value.retry_after == 3600


def test_waits_are_random_below_a_bound_that_doubles() -> None:
    patience = HttpRetryPolicy(retries=20, base=0.2, longest=5.0)

    for tries in range(1, 20):
        drawn = [patience.wait(tries) for _ in range(50)]
        assert all(wait is not None and 0 <= wait <= min(5.0, 0.2 * 2**tries) for wait in drawn)
        assert len(set(drawn)) > 1
    assert patience.wait(21) is None


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "invalid_json", InvalidInput),
        (401, "unauthenticated", NotAllowed),
        (403, "forbidden", NotAllowed),
        (404, "not_found", NotFound),
        (409, "conflict", Conflict),
        (412, "precondition_failed", Conflict),
        (422, "invalid_input", InvalidInput),
        (422, "unknown_timezone", UnknownTimezone),
        (500, "internal_error", ServerError),
    ],
)
def test_a_problem_becomes_an_error_with_its_attributes(status: int, code: str, kind: type[TimeballError]) -> None:
    answer = problem(
        status, code, hint="do this", errors=[{"pointer": "/timezone", "detail": "no"}], request_id="req_1"
    )

    with pytest.raises(kind) as caught:
        Server(answer).client(retries=0).request("POST", "/jobs")

    error = caught.value
    assert (str(error), error.status, error.code, error.hint) == ("told", status, code, "do this")
    assert error.errors[0]["pointer"] == "/timezone"
    assert error.request_id == "req_1"
    assert getattr(error, "field", "timezone") == "timezone"


def test_a_response_of_another_server_is_recognised() -> None:
    with pytest.raises(NotFound, match="responded with 404") as caught:
        Server(httpx.Response(404, text="<h1>Not Found</h1>")).client().jobs.get("x")
    assert "Timeball server" in str(caught.value.hint)

    with pytest.raises(ServerError, match="not valid JSON"):
        Server(httpx.Response(200, text="<h1>Welcome</h1>")).client().jobs.get("x")

    with pytest.raises(ServerError, match="not a JobOut"):
        Server(httpx.Response(200, json={"id": "job_1"})).client().jobs.get("x")


def test_a_name_is_escaped_in_the_path() -> None:
    server = Server(OK)
    with pytest.raises(ServerError):
        server.client().jobs.get("../queues/a b?c#d")

    assert server.asked[0].url.raw_path == b"/api/v1/jobs/..%2Fqueues%2Fa%20b%3Fc%23d"


@pytest.mark.parametrize("base", ["http://h:1", "http://h:1/", "http://h:1/api/v1", "http://h:1/api/v1/"])
def test_the_base_url_may_end_with_the_api_prefix(base: str) -> None:
    server = Server(OK)

    Client(base, transport=httpx.MockTransport(server)).request("GET", "/stats")

    assert str(server.asked[0].url) == "http://h:1/api/v1/stats"


def test_address_and_key_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIMEBALL_URL", "https://jobs.example.com")
    monkeypatch.setenv("TIMEBALL_API_KEY", "tb_secret")
    server = Server(OK, OK)

    Client(transport=httpx.MockTransport(server)).request("GET", "/stats")
    Client("http://other", "tb_mine", transport=httpx.MockTransport(server)).request("GET", "/stats")

    assert server.asked[0].url.host == "jobs.example.com"
    assert [request.headers["authorization"] for request in server.asked] == ["Bearer tb_secret", "Bearer tb_mine"]


def test_every_request_has_a_timeout() -> None:
    server = Server(OK)

    server.client(timeout=3).request("GET", "/stats")

    assert server.asked[0].extensions["timeout"] == {"connect": 3, "read": 3, "write": 3, "pool": 3}


@pytest.mark.parametrize(("wait", "read"), [(None, 3), ("30s", 33), ("1m30s", 93), ("soon", 3)])
def test_a_request_with_wait_has_a_longer_timeout(wait: str | None, read: float) -> None:
    server = Server(OK)

    server.client(timeout=3).request("POST", "/jobs/a/trigger", wait=wait)

    assert server.asked[0].extensions["timeout"] == {"connect": 3, "read": read, "write": 3, "pool": 3}
