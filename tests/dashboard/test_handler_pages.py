"""Handlers in pages: what can be run, what each takes, and what a form that says nothing leaves to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.dashboard.conftest import Browser
from tests.dashboard.test_actions import NEW, api, toast
from tests.support.factories import make_node
from timeball.handlers.catalogue import contract_of
from timeball.handlers.registry import make_handler
from timeball.sdk.options import handler_options
from timeball.store.store import Store

HOSTILE = "<b>\"'& x"
DECLARED: dict[str, Any] = {"queue": "pay", "retries": 7, "timeout": "7s", "max_running": 3, "tags": ["money", "slow"]}
ONE = "/handlers/one?name=app:charge"
FORM = NEW | {"handler": "app:charge", "payload": '{"order": 1}'}
# What a browser sends of untouched fields.
UNTOUCHED = dict.fromkeys(
    (
        "queue",
        "priority",
        "timeout",
        "max_retries",
        "initial_backoff",
        "max_backoff",
        "max_lost",
        "max_running",
        "delivery",
        "tags",
    ),
    "",
)


def charge(order: int, note: str | None = None, currency: str = "EUR") -> None:
    """Charge an order.

    Twice is once too often.
    """


async def publish(store: Store, function: Callable[..., Any] = charge, name: str = "app:charge", **options: Any) -> str:
    contract = contract_of(make_handler(function, name=name, options=handler_options(options)))
    await store.handlers.publish([contract], is_start=True)
    return contract.fingerprint


async def test_handlers_are_listed_with_their_queue_their_workers_and_versions(browser: Browser, store: Store) -> None:
    await publish(store)
    fingerprint = await publish(store, **DECLARED)
    await make_node(store, name="web-1", handlers=("app:charge", "app:unpublished"), fingerprints=(fingerprint,))

    page = (await browser.get("/handlers")).text

    row = page.partition('href="/handlers/one?name=app%3Acharge"')[2].partition("</tr>")[0]
    assert "Charge an order." in row
    assert "Twice" not in row
    assert '<td data-label="Queue"><span class="one-line">pay</span></td>' in row
    assert '<td data-label="Workers" class="num">1</td>' in row
    assert '<td data-label="Versions" class="num">2</td>' in row
    assert 'href="/jobs/new?handler=app%3Acharge"' in row
    assert "none published" in page.partition('href="/handlers/one?name=app%3Aunpublished"')[2].partition("</tr>")[0]


async def test_many_handlers_are_shown_a_page_at_a_time(browser: Browser, store: Store) -> None:
    await store.handlers.publish(
        [contract_of(make_handler(charge, name=f"m:{n:03}")) for n in range(120)], is_start=True
    )

    first = (await browser.get("/handlers")).text
    cursor = first.partition("cursor=")[2].partition('"')[0].partition("&")[0]
    second = (await browser.get(f"/handlers?cursor={cursor}")).text

    assert "m:000" in first
    assert "m:119" not in first
    assert "m:119" in second


async def test_a_handler_shows_what_it_takes_declares_and_which_worker_has_which_version(
    browser: Browser, store: Store
) -> None:
    old = await publish(store)
    new = await publish(store, **DECLARED)
    await make_node(store, name="web-1", handlers=("app:charge",), fingerprints=(old,))

    page = (await browser.get(ONE)).text

    assert "Twice is once too often." in page
    payload, _, rest = page.partition("<h2>Payload</h2>")[2].partition("<h2>Options</h2>")
    options, _, versions = rest.partition("<h2>Versions</h2>")
    assert '<td class="name mono">order</td><td data-label="Kind">integer, required</td>' in payload
    assert '<td data-label="Kind">string or null</td>' in payload
    assert "&#34;EUR&#34;" in payload
    assert "additionalProperties" in payload
    for name, value in {"queue": "pay", "max_retries": 7, "timeout_ms": 7_000, "tags": "money, slow"}.items():
        assert f'<td class="name mono">{name}</td><td data-label="Value" class="wraps">{value}</td>' in options
    assert versions.index(new[:8]) < versions.index('class="tag">newest') < versions.index(old[:8])
    assert '<td data-label="Living workers" class="wraps">none</td>' in versions.partition(old[:8])[0]
    assert (
        '<td data-label="Living workers" class="wraps"><a href="/workers/web-1">web-1</a></td>'
        in versions.partition(old[:8])[2]
    )


async def test_a_handler_that_nothing_is_known_of_is_a_page_that_says_so(browser: Browser, store: Store) -> None:
    await make_node(store, name="web-1", handlers=("app:unpublished",))

    known, unknown = await browser.get("/handlers/one?name=app:unpublished"), await browser.get("/handlers/one?name=no")

    assert "No worker has published its payload." in known.text
    assert unknown.status_code == 404


async def test_what_a_program_says_of_its_handlers_stays_text(browser: Browser, store: Store) -> None:
    def hostile(order: int, note: str = HOSTILE) -> None: ...

    hostile.__doc__ = f"{HOSTILE}<script>alert(1)</script>"
    await publish(store, hostile, HOSTILE, queue=HOSTILE, tags=[HOSTILE])
    await make_node(store, name=HOSTILE, handlers=(HOSTILE,))

    listed = (await browser.get("/handlers")).text
    link = listed.partition('href="/handlers/one?name=%3Cb%3E')[2].partition('"')[0]
    shown = await browser.get(f"/handlers/one?name=%3Cb%3E{link}")
    form = (await browser.get("/jobs/new")).text

    assert shown.status_code == 200
    assert "EUR" not in shown.text
    for page in (listed, shown.text, form):
        assert "<b>" not in page
        assert "<script>alert" not in page
        assert "&lt;b&gt;" in page


# the form


async def test_what_the_form_leaves_empty_is_what_the_handler_declares(browser: Browser, store: Store) -> None:
    await publish(store, **DECLARED)

    page = await browser.submit("/jobs", seen_on="/jobs/new", **FORM | UNTOUCHED)

    assert toast(page) == "nightly is created."
    job = await api(browser, "/jobs/nightly")
    assert (job["queue"], job["max_retries"], job["timeout_ms"]) == ("pay", 7, 7_000)
    assert (job["max_running"], job["tags"]) == (3, ["money", "slow"])


async def test_what_the_form_says_goes_before_what_the_handler_declares(browser: Browser, store: Store) -> None:
    await publish(store, **DECLARED)
    said = {"queue": "mine", "max_retries": "0", "timeout": "1m", "max_running": "9", "tags": "own"}

    await browser.submit("/jobs", seen_on="/jobs/new", **FORM | UNTOUCHED | said)

    job = await api(browser, "/jobs/nightly")
    assert (job["queue"], job["max_retries"], job["timeout_ms"]) == ("mine", 0, 60_000)
    assert (job["max_running"], job["tags"]) == (9, ["own"])


@pytest.mark.parametrize("word", ["none", " None "])
async def test_limits_that_the_handler_declares_are_taken_away_by_a_word(
    browser: Browser, store: Store, word: str
) -> None:
    await publish(store, **DECLARED)
    hints = (await browser.get("/jobs/new")).text

    await browser.submit("/jobs", seen_on="/jobs/new", **FORM | UNTOUCHED | {"timeout": word, "max_running": word})

    job = await api(browser, "/jobs/nightly")
    assert (job["timeout_ms"], job["max_running"], job["queue"]) == (None, None, "pay")
    assert "none lets it run on" in hints
    assert "none means no limit" in hints


async def test_a_limit_is_taken_from_a_job_by_an_empty_field_or_the_word(browser: Browser, store: Store) -> None:
    await publish(store, **DECLARED)
    for emptied in ({"timeout": "", "max_running": "none"}, {"timeout": "none", "max_running": ""}):
        await browser.submit("/jobs", seen_on="/jobs/new", **FORM | UNTOUCHED | {"name": f"job-{emptied['timeout']}"})
        made = await api(browser, f"/jobs/job-{emptied['timeout']}")

        page = await browser.submit(f"/jobs/{made['id']}/edit", **FORM | {"name": made["name"]} | emptied)
        assert page.status_code == 200, page.text

        job = await api(browser, f"/jobs/{made['id']}")
        assert (job["timeout_ms"], job["max_running"]) == (None, None)


async def test_a_payload_that_the_handler_does_not_take_is_refused_beside_its_field(
    browser: Browser, store: Store
) -> None:
    await publish(store)

    page = await browser.submit("/jobs", seen_on="/jobs/new", **FORM | {"payload": '{"ordr": 1}'})

    assert page.status_code == 422
    assert 'id="e-payload"' in page.text
    assert "order is missing" in page.text
