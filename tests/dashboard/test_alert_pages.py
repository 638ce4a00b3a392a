"""Alerts on the pages: their list, one with its life, the acknowledgement, the count in the side bar; and what is expected of a queue."""

from __future__ import annotations

from datetime import timedelta

from tests.dashboard.conftest import Browser
from tests.support.factories import make_alert, make_job
from timeball.domain.alerts import AlertEvaluation, AlertMember, AlertState, format_alert_id
from timeball.domain.values.ids import format_job_id
from timeball.runtime import ServerRuntime
from timeball.store.store import Store
from timeball.testing import VirtualClock


async def test_a_page_lists_the_alerts_that_wait_and_those_that_are_over(
    browser: Browser, store: Store, clock: VirtualClock
) -> None:
    assert "No alert is open" in (await browser.get("/alerts")).text
    assert "never evaluated" in (await browser.get("/alerts")).text
    alert = format_alert_id(await make_alert(store, "mail"))

    text = (await browser.get("/alerts")).text
    assert "queue mail: 3 waiting, no worker serves it" in text
    assert f"/alerts/{alert}" in text
    assert alert not in (await browser.get("/alerts?state=resolved")).text

    clock.advance(timedelta(minutes=1))
    await store.alerts.reconcile(AlertEvaluation(clock.now(), []))
    assert alert not in (await browser.get("/alerts")).text
    assert alert in (await browser.get("/alerts?state=resolved")).text


async def test_the_side_bar_counts_the_alerts_that_wait_for_a_person(
    browser: Browser, store: Store, parts: ServerRuntime
) -> None:
    alert = await make_alert(store)
    await make_alert(store, "slow")
    await parts.commands.alerts.acknowledge(alert)

    text = " ".join((await browser.get("/parts/nav")).text.split())

    assert 'Alerts<span class="n bad">1</span>' in text


async def test_an_alert_shows_its_life_and_leads_to_what_it_is_about(browser: Browser, store: Store) -> None:
    job = await make_job(store, name="nightly", queue="batch")
    member = AlertMember(name="nightly", job_id=job.id, queue="batch", tags=("billing",))
    target = ("job", format_job_id(job.id))
    alert = format_alert_id(await make_alert(store, kind="no_success", members=(member,), target=target))

    text = (await browser.get(f"/alerts/{alert}")).text

    assert "First seen" in text
    assert "by itself, when the fact is gone" in text
    for link in (f"/jobs/{target[1]}", f"/jobs/{target[1]}/why", "/queues/one?name=batch", "/tags/billing"):
        assert f'href="{link}"' in text
    assert (await browser.get("/alerts/alr_nothing")).status_code == 404


async def test_an_alert_is_acknowledged_until_an_instant_and_taken_back(
    browser: Browser, store: Store, clock: VirtualClock
) -> None:
    alert_id = await make_alert(store)
    path = f"/alerts/{format_alert_id(alert_id)}"
    until = f"{clock.now() + timedelta(hours=2):%Y-%m-%dT%H:%M}"

    done = await browser.submit(f"{path}/acknowledge", until=until, reason="on it")

    assert "The alert is acknowledged." in done.text
    alert = await store.alerts.find(alert_id)
    assert alert is not None
    assert alert.acknowledgement is not None
    assert (alert.acknowledgement.until, alert.acknowledgement.reason) == (clock.now() + timedelta(hours=2), "on it")
    assert "on it" in (await browser.get(path)).text

    await browser.submit(f"{path}/unacknowledge")
    again = await store.alerts.find(alert_id)
    assert again is not None
    assert again.state is AlertState.OPEN


async def test_what_is_expected_of_a_queue_is_set_on_its_page(browser: Browser, parts: ServerRuntime) -> None:
    await browser.submit("/queues/expect", name="mail", max_oldest_wait="5m", must_be_served="yes")

    queue = await parts.queries.queue("mail")
    assert (queue["max_oldest_wait_seconds"], queue["must_be_served"]) == (300, True)
    assert 'value="5m"' in (await browser.get("/queues/one?name=mail")).text

    refused = await browser.submit("/queues/expect", name="mail", max_oldest_wait="soon", must_be_served="no")
    assert refused.status_code == 422
    assert "max_oldest_wait is" in refused.text
    assert (await parts.queries.queue("mail"))["must_be_served"] is True

    await browser.submit("/queues/expect", name="mail", max_oldest_wait="", must_be_served="no")
    queue = await parts.queries.queue("mail")
    assert (queue["max_oldest_wait_seconds"], queue["must_be_served"]) == (None, False)
