"""Limits per caller: requests per second, bytes per second, concurrent requests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import httpx
import pytest

from tests.api.conftest import checking_commands
from tests.api.test_conventions import check_problem
from timeball.api.app import make_api
from timeball.api.errors import HttpProblem
from timeball.api.limits import RateLimiter, TokenBucket
from timeball.client.in_process import InProcessTransport
from timeball.config.settings import ApiSettings, Settings
from timeball.runtime import make_server_runtime
from timeball.store.store import Store
from timeball.store.types import AuditEntry
from timeball.testing import VirtualClock


class Watch:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def watch() -> Watch:
    return Watch()


def limits(watch: Callable[[], float], **settings: float) -> RateLimiter:
    return RateLimiter(ApiSettings(**settings), watch)


def test_a_token_bucket_fills_steadily_up_to_its_size() -> None:
    bucket = TokenBucket(size=2, rate=0.5, level=2, filled_at=0)

    assert [bucket.wait_for(1, 0), bucket.wait_for(1, 0)] == [0, 0]
    assert bucket.wait_for(1, 1) == 1
    assert bucket.wait_for(1, 2) == 0
    assert [bucket.wait_for(1, 1_000), bucket.wait_for(1, 1_000), bucket.wait_for(1, 1_000)] == [0, 0, 2]


def test_an_amount_above_the_size_needs_a_full_bucket() -> None:
    bucket = TokenBucket(size=2, rate=1, level=2, filled_at=0)

    assert bucket.wait_for(50, 0) == 0
    assert bucket.wait_for(50, 1) == 1


def test_every_caller_has_its_own_limits(watch: Watch) -> None:
    ours = limits(watch, requests_per_second=0.1, request_burst=1)
    ours.begin("a")

    with pytest.raises(HttpProblem, match="more than") as refused:
        ours.begin("a")

    assert (refused.value.status, refused.value.headers) == (429, {"Retry-After": "10"})
    ours.begin("b")
    watch.now = 10
    ours.begin("a")


def test_concurrent_requests_are_counted_until_they_end(watch: Watch) -> None:
    ours = limits(watch, concurrent_requests=1)
    ours.begin("a")

    with pytest.raises(HttpProblem, match="in progress"):
        ours.begin("a")

    ours.end("a")
    ours.begin("a")


def test_bodies_are_counted_by_their_size(watch: Watch) -> None:
    ours = limits(watch, megabytes_per_second=1, megabyte_burst=2)
    ours.count_bytes("a", 2 * 1024**2)

    with pytest.raises(HttpProblem, match="more than 1 MB"):
        ours.count_bytes("a", 1024**2)


def test_the_longest_silent_callers_are_forgotten(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timeball.api.limits._MAX_CALLERS", 3)
    ours = limits(watch)
    ours.begin("busy")

    for number in range(10):
        ours.begin(str(number))
        ours.end(str(number))

    assert len(ours._callers) <= 4
    assert "busy" in ours._callers


@pytest.fixture
async def narrow(store: Store) -> AsyncIterator[httpx.AsyncClient]:
    """An API that lets two requests through, and then one every ten seconds."""
    settings = Settings(api=ApiSettings(requests_per_second=0.1, request_burst=2, largest_body_megabytes=0.001))
    api = make_api(make_server_runtime(settings, store, checking_commands(settings, store)))
    async with httpx.AsyncClient(transport=InProcessTransport(api), base_url="http://localhost:8080/api/v1") as opened:
        yield opened


async def test_security_13_a_429_says_when_to_try_again(narrow: httpx.AsyncClient, clock: VirtualClock) -> None:
    assert [(await narrow.get("/jobs")).status_code for _ in range(2)] == [200, 200]

    refused = await narrow.get("/jobs")

    check_problem(refused, 429, "too_many_requests")
    assert refused.headers["retry-after"] == "10"
    assert (await narrow.get("/health/live")).status_code == 200
    clock.advance("10s")
    assert (await narrow.get("/jobs")).status_code == 200


async def test_security_13_one_key_does_not_use_up_the_limits_of_another(
    narrow: httpx.AsyncClient, store: Store
) -> None:
    keys = make_server_runtime(Settings(), store, checking_commands(Settings(), store)).keys
    tokens = [(await keys.create("viewer", name, None, AuditEntry("test")))[1] for name in ("a", "b")]
    first, second = ({"Authorization": f"Bearer {token}"} for token in tokens)

    assert [(await narrow.get("/jobs", headers=first)).status_code for _ in range(3)] == [200, 200, 429]
    assert (await narrow.get("/jobs", headers=second)).status_code == 200


async def test_security_13_trying_keys_is_limited_by_address(narrow: httpx.AsyncClient) -> None:
    wrong = {"Authorization": "Bearer tb_0123456789ab_nonsense"}

    assert [(await narrow.get("/jobs", headers=wrong)).status_code for _ in range(3)] == [401, 401, 429]


async def test_security_13_the_largest_body_is_a_setting(narrow: httpx.AsyncClient) -> None:
    body = {"handler": "h", "description": "x" * 2_000}

    check_problem(await narrow.post("/jobs", json=body), 413, "body_too_large")
