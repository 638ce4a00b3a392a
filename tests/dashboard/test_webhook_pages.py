"""Outgoing webhooks on the pages: created with a secret that is shown once, changed, switched, tested, and their deliveries."""

from __future__ import annotations

import html
import re

import pytest

from tests.dashboard.conftest import Browser
from tests.support.factories import make_recurring, only_row, table
from timeball.domain.values.ids import format_job_id
from timeball.domain.webhook import WebhookEndpoint, WebhookState, format_delivery_id, format_webhook_id
from timeball.runtime import ServerRuntime
from timeball.store.store import Store

URL = "https://example.com/hooks/timeball?token=hunter2"


async def create(browser: Browser, parts: ServerRuntime, **fields: str) -> WebhookEndpoint:
    made = await browser.submit("/webhooks", **{"url": URL} | fields)
    assert made.status_code == 200, made.text
    return (await parts.queries.webhooks.list())[-1]


async def test_a_new_webhook_shows_its_secret_once(browser: Browser, parts: ServerRuntime, store: Store) -> None:
    made = await browser.submit("/webhooks", url=URL, events="execution.dead", queue="mail", description="Tells us")

    (webhook,) = await parts.queries.webhooks.list()
    secret = (await only_row(store, "webhook"))["secret"]
    here = f"/webhooks/{format_webhook_id(webhook.id)}"
    pages = [(await browser.get(path)).text for path in ("/webhooks", here, f"{here}/edit")]
    assert secret in html.unescape(made.text)
    assert (webhook.spec.filter.types, webhook.spec.filter.queue) == (("execution.dead",), "mail")
    for page in pages:
        assert "Tells us" in page
        assert secret not in html.unescape(page)
        assert "hunter2" not in page


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"url": "ftp://example.com"}, "the scheme is ftp, expected https or http"),
        ({"url": URL, "events": "execution.died"}, "did you mean execution.dead"),
        ({"url": URL, "job": "nope"}, "there is no job nope"),
    ],
)
async def test_a_wrong_form_comes_back_with_what_was_typed(
    browser: Browser, store: Store, fields: dict[str, str], words: str
) -> None:
    refused = await browser.submit("/webhooks", **{"description": "typed before"} | fields)

    assert refused.status_code == 422
    assert words in html.unescape(refused.text)
    assert "typed before" in refused.text
    assert await table(store, "webhook") == []


async def test_a_webhook_is_changed_and_keeps_what_its_form_hides(
    browser: Browser, parts: ServerRuntime, store: Store
) -> None:
    job = await make_recurring(store, name="nightly")
    webhook = await create(browser, parts, queue="mail")
    here = f"/webhooks/{format_webhook_id(webhook.id)}"
    form = html.unescape((await browser.get(f"{here}/edit")).text)
    shown = re.search(r'name="url" type="text" value="([^"]+)"', form)
    assert shown is not None

    await browser.submit(f"{here}/edit", seen_on=f"{here}/edit", url=shown[1], job="nightly", version="1")

    (changed,) = await parts.queries.webhooks.list()
    assert changed.spec.url == URL
    assert (changed.spec.filter.queue, changed.spec.filter.job_id) == (None, job.id)
    assert f'href="/jobs/{format_job_id(job.id)}">nightly</a>' in (await browser.get(here)).text
    stale = await browser.submit(f"{here}/edit", seen_on=f"{here}/edit", url=shown[1], version="1")
    assert stale.status_code == 422


async def test_a_webhook_is_disabled_and_enabled(browser: Browser, parts: ServerRuntime) -> None:
    webhook = await create(browser, parts)
    here = f"/webhooks/{format_webhook_id(webhook.id)}"

    await browser.submit(f"{here}/switch", seen_on=here, state="disabled", reason="it moves")
    disabled = (await browser.get(here)).text
    await browser.submit(f"{here}/switch", seen_on=here, state="active")

    assert "It is disabled: it moves" in disabled
    assert (await parts.queries.webhooks.find(webhook.id)).state is WebhookState.ACTIVE


async def test_a_test_is_shown_among_the_deliveries_and_sent_again(
    browser: Browser, parts: ServerRuntime, store: Store
) -> None:
    webhook = await create(browser, parts)
    here = f"/webhooks/{format_webhook_id(webhook.id)}"

    shown = await browser.submit(f"{here}/test", seen_on=here)
    delivery = await only_row(store, "webhook_delivery")
    there = f"/webhooks/deliveries/{format_delivery_id(delivery['id'])}"
    async with store.database.transaction() as connection:
        await connection.execute(
            "UPDATE timeball.webhook_delivery SET state = 'failed', next_at = NULL, finished_at = now(), attempts = 1, "
            """tries = '[{"at": "2026-03-02T12:00:00Z", "status": 503, "error": "try later", "duration_ms": 7}]'"""
        )
    failed = (await browser.get(f"{here}?state=failed")).text
    detail = (await browser.get(there)).text
    await browser.submit(f"{there}/redeliver", seen_on=there, back=there)

    assert shown.url.path == there
    assert (there in failed, there in (await browser.get(f"{here}?state=delivered")).text) == (True, False)
    assert "try later" in detail
    assert "webhook.test" in detail
    assert (await only_row(store, "webhook_delivery"))["state"] == "pending"


async def test_a_rotation_shows_the_new_secret_once_and_a_deletion_ends_it(
    browser: Browser, parts: ServerRuntime, store: Store
) -> None:
    webhook = await create(browser, parts)
    here = f"/webhooks/{format_webhook_id(webhook.id)}"
    before = (await only_row(store, "webhook"))["secret"]

    rotated = await browser.submit(f"{here}/rotate", seen_on=here)
    row = await only_row(store, "webhook")
    await browser.submit(f"{here}/delete", seen_on=here)

    assert row["secret"] in html.unescape(rotated.text)
    assert row["previous_secret"] == before
    assert before not in html.unescape(rotated.text)
    assert "No webhooks yet" in (await browser.get("/webhooks")).text
