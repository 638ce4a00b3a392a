"""Freezes on the pages: created, shown where time is shown, and ended."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest

from tests.dashboard.conftest import Browser
from tests.support.factories import make_job, make_recurring, seconds
from timeball.application.commands.requests import Actor
from timeball.domain.freeze import Afterwards, FreezeScope, format_freeze_id
from timeball.domain.values.ids import format_id
from timeball.runtime import ServerRuntime
from timeball.store.store import Store
from timeball.testing import VirtualClock


def local(clock: VirtualClock, hours: float) -> str:
    """As the field of a form gives it, in UTC: the browser has named no zone."""
    return f"{clock.now() + timedelta(hours=hours):%Y-%m-%dT%H:%M}"


@pytest.mark.parametrize("scope", ["queue", "tag", "job"])
async def test_a_freeze_is_created_from_the_page_of_what_it_holds(
    browser: Browser, parts: ServerRuntime, store: Store, clock: VirtualClock, scope: str
) -> None:
    job = await make_recurring(store, name="nightly", queue="billing", tags=("payments",))
    names = {"queue": "billing", "tag": "payments", "job": "nightly"}
    page = {
        "queue": "/queues/one?name=billing",
        "tag": "/tags/payments",
        "job": f"/jobs/{format_id('job', job.id)}",
    }[scope]
    link = f"/freezes/new?{scope}={names[scope]}"
    assert link in (await browser.get(page)).text

    form = (await browser.get(link)).text
    assert f'value="{scope}" checked' in form
    made = await browser.submit(
        "/freezes", scope=scope, until=local(clock, 2), afterwards="latest", reason="release", **names
    )

    (freeze,) = (await parts.queries.freezes()).freezes
    assert (freeze.scope, freeze.target, freeze.job_id) == (
        FreezeScope(scope),
        None if scope == "job" else names[scope],
        job.id if scope == "job" else None,
    )
    assert (freeze.until_at, freeze.afterwards, freeze.reason) == (
        clock.now() + timedelta(hours=2),
        Afterwards.LATEST,
        "release",
    )
    assert made.url.path == "/freezes"
    assert "The freeze is created. It holds now." in made.text
    assert f"Frozen: {scope} {names[scope]} from" in (await browser.get("/")).text


async def test_everything_is_frozen_from_an_instant_on_the_clock_that_the_page_shows(
    browser: Browser, parts: ServerRuntime, clock: VirtualClock
) -> None:
    browser.cookies.set("timeball_zone", "Europe/Berlin")

    await browser.submit("/freezes", scope="installation", **{"from": "2026-03-02T14:00"}, until="2026-03-03T08:00")

    (freeze,) = (await parts.queries.freezes()).freezes
    assert freeze.scope is FreezeScope.INSTALLATION
    assert (freeze.from_at - clock.now(), freeze.until_at - clock.now()) == (timedelta(hours=1), timedelta(hours=19))
    listed = (await browser.get("/freezes")).text
    assert "Everything" in listed
    assert 'href="/freezes/new"' in (await browser.get("/parts/palette?words=freeze")).text
    assert "planned" in listed


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"queue": "billing"}, "until is"),
        ({"queue": "billing", "until": "2026-01-01T00:00"}, "which has passed"),
        ({"queue": " ", "until": "2027-01-01T00:00"}, "queue"),
        ({"scope": "job", "job": "nothing", "until": "2027-01-01T00:00"}, "nothing"),
        ({"scope": "nonsense", "until": "2027-01-01T00:00"}, "nonsense"),
    ],
)
async def test_a_freeze_that_cannot_be_is_refused_in_the_form_and_what_was_typed_stays(
    browser: Browser, parts: ServerRuntime, fields: dict[str, str], words: str
) -> None:
    refused = await browser.submit("/freezes", **{"scope": "queue", "reason": "release"} | fields)

    assert refused.status_code == 422
    assert 'role="alert"' in refused.text
    assert words in refused.text.partition('role="alert"')[2]
    assert 'value="release"' in refused.text
    assert (await parts.queries.freezes()).freezes == []


async def test_a_freeze_is_shown_where_time_is_shown_and_ended(
    browser: Browser, parts: ServerRuntime, store: Store, clock: VirtualClock
) -> None:
    job = await make_job(store, name="nightly", interval_seconds=3600, queue="billing")
    await make_job(store, name="other", interval_seconds=3600)
    page = f"/jobs/{format_id('job', job.id)}"
    freeze = await parts.commands.freezes.add(
        FreezeScope.QUEUE, "billing", until=clock.now() + seconds(5_400), actor=Actor("ana", "release")
    )

    for path in ("/", "/timeline", "/forecast", page):
        text = (await browser.get(path)).text
        assert "Frozen: queue billing from" in text, path
        assert "release, by ana. Occurrences in it are skipped; what else is due waits." in text, path
        assert "End it" in text, path
    drawing = (await browser.get("/timeline")).text
    (band,) = re.findall(r'<rect class="frozen" [^>]*y="(\d+)"[^>]*height="(\d+)"', drawing)
    assert band == ("0", "28"), "the row of nightly, and not that of other"
    assert "; frozen" in (await browser.get("/forecast")).text
    assert (await browser.get(f"{page}?tab=schedule")).text.count("</svg> frozen</span>") == 1
    ledger = (await browser.get(f"{page}?tab=ledger&verdict=expected")).text
    assert ledger.count("will be skipped, freeze: release") == 1

    ended = await browser.submit(f"/freezes/{format_freeze_id(freeze.id)}/end", seen_on="/", reason="done", back=page)
    assert ended.url.path == page
    assert "Frozen:" not in (await browser.get("/")).text
    assert "Nothing is frozen" in (await browser.get("/freezes")).text
    assert ">billing</a>" in (await browser.get("/freezes?past=yes")).text


async def test_a_frozen_job_is_named_by_its_name(
    browser: Browser, parts: ServerRuntime, store: Store, clock: VirtualClock
) -> None:
    job = await make_recurring(store, name="nightly")

    await parts.commands.freezes.add(FreezeScope.JOB, None, job.id, until=clock.now() + seconds(60))

    assert "Frozen: job nightly from" in (await browser.get("/")).text
    assert f'href="/jobs/{format_id("job", job.id)}">nightly</a>' in (await browser.get("/freezes")).text
