"""Logging in and out: limits, what is written down of it, sessions that end, and what strangers are shown."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import orjson
import pytest

from tests.dashboard.conftest import Browser, open_browser, token_of
from tests.support.factories import make_job, table
from timeball.config.settings import ApiSettings, Settings
from timeball.dashboard.context import TOAST_COOKIE
from timeball.dashboard.session import SESSION_COOKIE, CookieSigner
from timeball.domain.change_event import EventFilter
from timeball.runtime import ServerRuntime, make_server_runtime
from timeball.store.store import Store
from timeball.telemetry.events import KeyRefused, LoggedIn, TelemetryEvent
from timeball.testing import VirtualClock

MakeKey = Callable[[str], Awaitable[dict[str, str]]]
LogIn = Callable[[str], Awaitable[Browser]]
_ALL = EventFilter()
WRONG = "tb_000000000000_wrong"


def heard_parts(parts: ServerRuntime, store: Store, **limits: Any) -> tuple[ServerRuntime, list[TelemetryEvent]]:
    """The same, with what is emitted kept in a list."""
    heard: list[TelemetryEvent] = []
    settings = Settings(api=ApiSettings(**limits))
    return make_server_runtime(settings, store, parts.commands, emit=heard.append), heard


async def audit_of(store: Store, action: str) -> list[dict[str, Any]]:
    return [row for row in await table(store, "audit") if row["action"] == action]


# limits


async def test_security_13_logins_are_limited_by_address(parts: ServerRuntime, store: Store, make_key: MakeKey) -> None:
    right = (await make_key("viewer"))["Authorization"].removeprefix("Bearer ")
    strict, _ = heard_parts(parts, store, request_burst=5, requests_per_second=0.001)
    async with open_browser(strict) as browser:
        token = token_of((await browser.get("/login")).text)
        tried = [await browser.post("/login", data={"token": token, "key": WRONG}) for _ in range(8)]
        late = await browser.post("/login", data={"token": token, "key": right})

    assert [answer.status_code for answer in tried] == [401] * 5 + [429] * 3
    assert late.status_code == 429
    assert int(late.headers["retry-after"]) > 0


async def test_trying_keys_and_sessions_on_pages_is_limited_too(
    parts: ServerRuntime, store: Store, make_key: MakeKey
) -> None:
    await make_key("admin")
    strict, _ = heard_parts(parts, store, request_burst=5, requests_per_second=0.001)
    for given in ({"Authorization": f"Bearer {WRONG}"}, {"Cookie": f"{SESSION_COOKIE}=guessed"}):
        async with open_browser(strict) as browser:
            browser.follow_redirects = False
            seen = [(await browser.get("/jobs", headers=given)).status_code for _ in range(7)]

        assert seen[-1] == 429
        assert 429 not in seen[:5]


# what is written down


async def test_security_14_logins_are_audited_counted_and_logged_with_their_place(
    parts: ServerRuntime, store: Store, make_key: MakeKey
) -> None:
    key = (await make_key("operator"))["Authorization"].removeprefix("Bearer ")
    watched, heard = heard_parts(parts, store)
    async with open_browser(watched) as browser:
        for given in (WRONG, WRONG, WRONG, key):
            await browser.submit("/login", seen_on="/login", key=given)

    refused, begun = await audit_of(store, "key.refused"), await audit_of(store, "session.begin")
    assert [(row["actor"], row["place"], row["subject"]) for row in refused] == [
        ("unknown", "dashboard 127.0.0.1", "address:127.0.0.1")
    ]
    assert [(row["actor"].split()[1], row["place"]) for row in begun] == [("operator", "dashboard 127.0.0.1")]
    assert [event.count for event in heard if isinstance(event, KeyRefused)] == [1, 0, 0]
    assert [event.place for event in heard if isinstance(event, LoggedIn)] == ["dashboard 127.0.0.1"]
    counted = {sample.name: sample.value for family in watched.process.collect() for sample in family.samples}
    assert (counted["timeball_keys_refused_total"], counted["timeball_logins_total"]) == (3.0, 1.0)
    assert WRONG not in str(refused)


async def test_tries_of_one_address_are_told_once_a_minute_with_their_number(
    parts: ServerRuntime, store: Store, make_key: MakeKey, clock: VirtualClock
) -> None:
    await make_key("admin")
    watched, _ = heard_parts(parts, store)
    async with open_browser(watched) as browser:
        for _ in range(4):
            await browser.get("/jobs", headers={"Authorization": f"Bearer {WRONG}"})
        clock.advance(timedelta(seconds=61))
        await browser.get("/api/v1/jobs", headers={"Authorization": f"Bearer {WRONG}"})

    assert [orjson.loads(row["after"])["count"] for row in await audit_of(store, "key.refused")] == [1, 4]


async def test_viewers_are_not_told_who_logs_in_from_where(parts: ServerRuntime, log_in: LogIn) -> None:
    position = await parts.live.since(None, _ALL)

    await log_in("operator")
    async with open_browser(parts) as browser:
        await browser.get("/jobs", headers={"Authorization": f"Bearer {WRONG}"})

    told = await parts.live.since(position.position, _ALL)
    assert told.events == []


async def test_security_14_what_is_done_in_the_dashboard_is_audited_with_its_place(log_in: LogIn, store: Store) -> None:
    await make_job(store, name="nightly", interval_seconds=3600)
    admin = await log_in("admin")

    await admin.submit("/jobs/nightly/pause", reason="maintenance")
    await admin.submit("/keys", seen_on="/keys", name="made", role="viewer")

    places = {row["action"]: row["place"] for row in await table(store, "audit")}
    assert places["job.pause"] == "dashboard 127.0.0.1"
    made = [row["place"] for row in await audit_of(store, "key.create") if row["actor"] != "test"]
    assert made == ["dashboard 127.0.0.1"]


# sessions


async def test_a_second_login_ends_the_first_session_of_the_browser(
    parts: ServerRuntime, make_key: MakeKey, log_in: LogIn, store: Store
) -> None:
    browser = await log_in("admin")
    first = browser.cookies[SESSION_COOKIE]
    other = (await make_key("viewer"))["Authorization"].removeprefix("Bearer ")

    await browser.submit("/login", seen_on="/login", key=other)

    assert browser.cookies[SESSION_COOKIE] != first
    assert len(await table(store, "dashboard_session")) == 1
    async with open_browser(parts) as thief:
        thief.cookies.set(SESSION_COOKIE, first)
        assert "/login" in str((await thief.get("/jobs")).url)


async def test_a_logout_ends_the_session_for_good(parts: ServerRuntime, log_in: LogIn, store: Store) -> None:
    browser = await log_in("admin")
    kept = browser.cookies[SESSION_COOKIE]

    await browser.submit("/logout")

    assert await table(store, "dashboard_session") == []
    async with open_browser(parts) as thief:
        thief.cookies.set(SESSION_COOKIE, kept)
        assert "/login" in str((await thief.get("/jobs")).url)


async def test_a_session_that_is_not_used_ends(log_in: LogIn, clock: VirtualClock, parts: ServerRuntime) -> None:
    idle = parts.settings.api.session_idle
    browser = await log_in("admin")

    # Used again and again, it goes on.
    for _ in range(3):
        clock.advance(idle - timedelta(minutes=5))
        assert "/login" not in str((await browser.get("/jobs")).url)
    clock.advance(idle + timedelta(minutes=2))

    assert "/login" in str((await browser.get("/jobs")).url)


async def test_an_open_stream_does_not_keep_a_session_alive(
    log_in: LogIn, clock: VirtualClock, parts: ServerRuntime
) -> None:
    browser = await log_in("admin")
    session = browser.cookies[SESSION_COOKIE]
    idle = parts.settings.api.session_idle

    clock.advance(idle - timedelta(minutes=5))
    assert await parts.sessions.recognise(session, idle, is_use=False) is not None
    clock.advance(timedelta(minutes=10))

    assert await parts.sessions.recognise(session, idle, is_use=False) is None


# forms


async def test_a_form_of_too_many_fields_is_refused(parts: ServerRuntime, browser: Browser) -> None:
    fields = "&".join(f"f{number}=x" for number in range(2_001))
    as_form = {"Content-Type": "application/x-www-form-urlencoded"}

    for path in ("/login", "/logout", "/keys", "/jobs/nothing/pause"):
        refused = await browser.post(path, content=fields, headers=as_form)

        assert refused.status_code == 413, path
        assert "2000 fields" in refused.text


# strangers


async def test_strangers_see_no_numbers_and_no_version(parts: ServerRuntime, log_in: LogIn, store: Store) -> None:
    for number in range(7):
        await make_job(store, name=f"job-{number}", interval_seconds=3600)
    admin = await log_in("admin")
    await admin.get("/parts/nav")
    assert '<span class="n">7</span>' in (await admin.get("/nothing/here")).text

    async with open_browser(parts) as stranger:
        stranger.follow_redirects = False
        pages = [await stranger.get(path) for path in ("/nothing/here", "/login", "/login/done", "/jobs/x/y/z")]
        pages += [await stranger.post("/login", data={"key": WRONG}), await stranger.post("/keys")]
        pages += [await stranger.get("/nothing", headers={"Host": "evil.example"})]

    for page in pages:
        assert 'class="n' not in page.text, page.url
        assert "Timeball 0" not in page.text
        assert "/parts/nav" not in page.text


async def test_a_foreign_host_sees_no_numbers_in_open_mode(browser: Browser, store: Store) -> None:
    await make_job(store, name="a", interval_seconds=3600)
    await browser.get("/parts/nav")

    refused = await browser.get("/jobs", headers={"Host": "evil.example"})

    assert refused.status_code == 403
    assert 'class="n' not in refused.text


async def test_the_description_for_strangers_names_no_version_of_the_program(browser: Browser) -> None:
    assert (await browser.get("/openapi.json")).json()["info"]["version"] == "1"


# toasts


def note(**changes: Any) -> str:
    told = {"text": "forged", "kind": "done", "undo": {"path": "/keys", "fields": {"role": "admin"}}} | changes
    return urlsafe_b64encode(orjson.dumps(told)).decode()


@pytest.mark.parametrize(
    "cookie",
    [
        note(),
        f"{note()}.{'0' * 64}",
        note(kind=None),
        urlsafe_b64encode(b'{"text": "forged"}').decode(),
        urlsafe_b64encode(b"[]").decode(),
        "not base64 at all",
        "é",
        ".",
        "",
    ],
)
async def test_a_toast_that_we_did_not_sign_is_ignored(browser: Browser, cookie: str) -> None:
    seen = await browser.get("/jobs", headers={"Cookie": f"{TOAST_COOKIE}={cookie}".encode()})

    assert seen.status_code == 200
    assert "forged" not in seen.text
    assert 'class="toast' not in seen.text


async def test_a_toast_is_shown_once_and_only_to_its_caller(parts: ServerRuntime, log_in: LogIn, store: Store) -> None:
    await make_job(store, name="nightly", interval_seconds=3600)
    browser, other = await log_in("admin"), await log_in("admin")
    browser.follow_redirects = False

    await browser.submit("/jobs/nightly/pause")
    toast = browser.cookies[TOAST_COOKIE]
    other.cookies.set(TOAST_COOKIE, toast)

    assert 'class="toast' not in (await other.get("/jobs")).text
    assert 'class="toast' in (await browser.get("/jobs")).text
    assert 'class="toast' not in (await browser.get("/jobs")).text


async def test_every_process_reads_what_another_has_signed(parts: ServerRuntime) -> None:
    ours, theirs = CookieSigner(parts.sessions.signing_secret), CookieSigner(parts.sessions.signing_secret)
    await ours.prepare()
    await theirs.prepare()

    signed = ours.sign(b"a note", "me")

    assert theirs.read(signed, "me") == b"a note"
    assert theirs.read(signed, "you") is None
    assert theirs.read(signed.replace(".", "x."), "me") is None


# the way in


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, 403),
        ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 200),
        ({"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}, 200),
        ({"Sec-Fetch-Site": "none"}, 200),
        ({}, 200),
    ],
)
async def test_pages_of_other_sites_get_nothing_in_open_mode(
    browser: Browser, headers: dict[str, str], status: int
) -> None:
    for path in ("/jobs", "/api/v1/jobs"):
        answer = await browser.get(path, headers=headers)

        assert answer.status_code == status
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
