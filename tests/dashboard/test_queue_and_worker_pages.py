"""The pages of queues, workers, schedulers and the doctor."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from tests.dashboard.conftest import Browser
from tests.support.factories import claim_all, enqueue, make_node, make_owner, seconds
from timeball.domain.node import BrokerState, BrokerStatus, NodeKind
from timeball.domain.values.ids import format_id
from timeball.runtime import ServerRuntime
from timeball.store.store import Store
from timeball.testing import VirtualClock

Entering = Callable[[str], Awaitable[Browser]]
HOSTILE = "<b>\"'& x"
FORM = "/queues/one?name=mail"


async def test_an_empty_database_says_what_to_do(browser: Browser) -> None:
    for path in ("/queues", "/queues/one?name=mail", "/workers", "/doctor", "/about"):
        answer = await browser.get(path)

        assert answer.status_code == 200, path
        assert "style=" not in answer.text


async def test_hostile_names_stay_text(browser: Browser, store: Store) -> None:
    await make_node(
        store, NodeKind.WORKER, name=HOSTILE, slots=1, queues=(HOSTILE,), handlers=(HOSTILE,), version=HOSTILE
    )
    await enqueue(store, queue=HOSTILE)

    for path in ("/queues", "/workers"):
        page = (await browser.get(path)).text
        assert "<b>&#34;" not in page
        assert "&lt;b&gt;" in page
    found = re.search(r'href="(/queues/one\?name=[^"]+)"', (await browser.get("/queues")).text)
    assert found
    assert (await browser.get(found[1])).status_code == 200


async def test_a_broker_that_is_down_is_told_on_the_pages_that_people_look_at(browser: Browser, store: Store) -> None:
    await enqueue(store)
    node = await make_node(store, NodeKind.WORKER, name="far away", broker="rabbitmq")
    await store.nodes.renew(node, busy=0, broker=BrokerStatus(BrokerState.DOWN, "blocked by its memory alarm"))

    for path in ("/", "/doctor"):
        page = (await browser.get(path)).text
        assert "1 of 1 node cannot use RabbitMQ (blocked by its memory alarm); work goes on through PostgreSQL" in page
    workers = (await browser.get("/workers")).text
    assert "RabbitMQ down" in workers
    assert "blocked by its memory alarm" in workers


# queues


async def test_a_queue_shows_how_deep_it_is_and_how_long_its_oldest_waits(
    browser: Browser, store: Store, clock: VirtualClock
) -> None:
    await enqueue(store, queue="mail")
    await enqueue(store, queue="mail")
    clock.advance(seconds(125))

    page = (await browser.get("/queues")).text

    assert '<a href="/executions?status=queued&amp;q=queue%3Amail">2</a>' in page
    assert "2 min 5 s" in page


async def test_a_queue_that_a_living_worker_names_is_listed_before_anything_waits_in_it(
    browser: Browser, store: Store, clock: VirtualClock
) -> None:
    await make_node(store, NodeKind.WORKER, slots=1, queues=("mail",))
    assert 'name=mail"' in (await browser.get("/queues")).text

    clock.advance(seconds(3600))

    assert 'name=mail"' not in (await browser.get("/queues")).text


async def test_the_address_of_other_dashboards_leads_to_the_queues(browser: Browser) -> None:
    page = await browser.get("/admin/queues")

    assert (page.status_code, page.url.path) == (200, "/queues")


async def test_a_queue_that_no_worker_serves_is_marked(browser: Browser, store: Store) -> None:
    await make_node(store, NodeKind.WORKER, slots=1, queues=("other",))
    await enqueue(store, queue="mail")

    assert "no worker</span>" in (await browser.get("/queues")).text
    assert "timeball worker --queue mail" in (await browser.get("/queues/one?name=mail")).text


async def test_a_queue_is_paused_with_a_reason_and_the_way_back_resumes_it(
    browser: Browser, parts: ServerRuntime
) -> None:
    answer = await browser.submit("/queues/pause", seen_on=FORM, name="mail", reason="the server moves", back="/queues")

    assert "Queue mail is paused" in answer.text
    assert "the server moves" in answer.text
    assert re.search(r'action="/queues/resume".*?Undo', answer.text, re.DOTALL)
    assert (await parts.queries.queue("mail"))["paused_at"] is not None

    await browser.submit("/queues/resume", seen_on=FORM, name="mail")
    assert (await parts.queries.queue("mail"))["paused_at"] is None


async def test_a_queue_is_paused_until_an_instant_on_the_clock_of_the_page(
    browser: Browser, parts: ServerRuntime
) -> None:
    await browser.submit(
        "/queues/pause", seen_on=FORM, name="mail", until="2199-12-24T09:00", back="/queues/one?name=mail"
    )

    assert (await parts.queries.queue("mail"))["paused_until"] == datetime(2199, 12, 24, 9, tzinfo=UTC)
    assert "until" in (await browser.get("/queues")).text
    answer = await browser.submit("/queues/pause", seen_on=FORM, name="mail", until="some day")
    assert answer.status_code == 422


async def test_a_limit_is_set_undone_and_taken_away(browser: Browser, parts: ServerRuntime) -> None:
    answer = await browser.submit(
        "/queues/limit", seen_on=FORM, name="mail", max_running="2", back="/queues/one?name=mail"
    )

    assert "Queue mail: at most 2 at once." in answer.text
    assert (await parts.queries.queue("mail"))["max_running"] == 2

    await browser.submit("/queues/limit", seen_on=FORM, name="mail", max_running="")
    assert (await parts.queries.queue("mail"))["max_running"] is None


async def test_a_limit_that_is_none_is_refused_beside_its_field(browser: Browser, parts: ServerRuntime) -> None:
    for text in ("0", "-1", "two", "1.5", "9" * 30):
        answer = await browser.submit("/queues/limit", seen_on=FORM, name="mail", max_running=text)

        assert answer.status_code == 422, text
        assert 'aria-invalid="true"' in answer.text
    assert (await parts.queries.queue("mail"))["max_running"] is None


async def test_a_viewer_sees_queues_and_workers_but_no_buttons(
    log_in: Entering, store: Store, parts: ServerRuntime
) -> None:
    await enqueue(store, queue="mail")
    await make_node(store)
    viewer = await log_in("viewer")

    for path, action in (
        ("/queues", "/queues/pause"),
        ("/workers", "/workers/drain"),
        ("/queues/one?name=mail", "/queues/limit"),
    ):
        page = await viewer.get(path)
        assert page.status_code == 200
        assert f'action="{action}"' not in page.text
    answer = await viewer.submit("/queues/pause", name="mail")
    assert answer.status_code == 403
    assert (await parts.queries.queue("mail"))["paused_at"] is None


# workers


async def test_a_worker_shows_its_slots_queues_handlers_and_heartbeat(
    browser: Browser, store: Store, clock: VirtualClock
) -> None:
    worker = await make_node(
        store, NodeKind.WORKER, name="web-1/80", slots=4, queues=("mail",), handlers=("app:send",), version="9.9"
    )
    await enqueue(store, queue="mail")
    await claim_all(store, worker=worker)
    clock.advance(seconds(3))

    page = (await browser.get("/workers")).text

    for text in ("web-1/80", "app:send", "9.9", "3.0 s ago", '<a class="tag" href="/queues/one?name=mail">mail</a>'):
        assert text in page, text


async def test_a_heartbeat_that_is_overdue_shows(browser: Browser, store: Store, clock: VirtualClock) -> None:
    await make_node(store)
    clock.advance(seconds(13))

    assert re.search(r'tone-bad">.*?late</span>', (await browser.get("/workers")).text, re.DOTALL)


async def test_a_scheduler_shows_its_shards(browser: Browser, store: Store) -> None:
    await make_owner(store)

    assert f"{store.shards} shards" in (await browser.get("/workers")).text


async def test_a_worker_is_drained(browser: Browser, store: Store) -> None:
    worker = await make_node(store, name="web-1/80")

    answer = await browser.submit("/workers/drain", seen_on="/workers", id=format_id("wrk", worker), back="/workers")

    assert "web-1/80 takes nothing more" in answer.text
    assert (await store.nodes.list())[0].draining


async def test_versions_that_differ_are_told(browser: Browser, store: Store) -> None:
    await make_node(store, version="1.0")
    await make_node(store, version="1.1")

    assert "Different versions run together: 1.0, 1.1" in (await browser.get("/workers")).text


# the doctor


async def test_the_doctor_says_what_was_found_and_what_to_type(browser: Browser, store: Store) -> None:
    await make_node(store, NodeKind.WORKER, slots=1, queues=("other",))
    await enqueue(store, queue="mail")

    page = (await browser.get("/doctor")).text

    assert "Something needs to be done." in page
    assert "no worker serves it" in page
    assert '<a href="/queues/one?name=mail">' in page
    assert "--queue mail" in page


# names with a slash, and what cannot be undone


async def test_a_queue_may_have_a_slash_in_its_name(browser: Browser, store: Store) -> None:
    await enqueue(store, queue="eu/mail")

    page = await browser.submit("/queues/pause", name="eu/mail", reason="maintenance")
    assert "eu/mail is paused" in page.text
    paused = (await browser.get("/api/v1/queues/eu%2Fmail")).json()
    assert (paused["name"], paused["pause_reason"], paused["depth"]) == ("eu/mail", "maintenance", 1)
    await browser.submit("/queues/limit", name="eu/mail", max_running="3")
    assert (await browser.get("/api/v1/queues/eu/mail")).json()["max_running"] == 3
    link = re.search(r'<td class="name"><a href="([^"]+)">eu/mail', (await browser.get("/queues")).text)
    assert link
    assert "maintenance" in (await browser.get(link[1])).text


async def test_a_queue_is_purged_only_after_its_name_was_typed(
    browser: Browser, store: Store, log_in: Entering
) -> None:
    for _ in range(3):
        await enqueue(store, queue="mail")
    form = (await browser.get(FORM)).text
    assert 'data-typed="mail"' in form
    assert "Cancel 3 executions waiting in mail?" in form

    assert (await browser.submit("/queues/purge", name="mail", typed="Mail")).status_code == 422
    assert (await browser.get("/api/v1/queues/mail")).json()["depth"] == 3
    done = await browser.submit("/queues/purge", name="mail", typed="mail", reason="sent twice")

    assert "3 executions cancelled" in done.text
    assert (await browser.get("/api/v1/queues/mail")).json()["depth"] == 0
    operator = await log_in("operator")
    assert (await operator.submit("/queues/purge", name="mail", typed="mail")).status_code == 403
    assert "/queues/purge" not in (await operator.get(FORM)).text


async def test_what_to_type_stands_apart_from_what_it_is_for(browser: Browser, store: Store) -> None:
    await make_node(store, NodeKind.WORKER, slots=1, queues=("other",))
    await enqueue(store, queue="two words")

    page = (await browser.get("/doctor")).text

    assert "<code>timeball worker app:tb --queue &#39;two words&#39;</code>" in page
    assert '<span class="soft">start one</span>' in page
    assert "<code>start one" not in page
