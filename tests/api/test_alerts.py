"""The routes of alerts, of what is expected of queues, and of what is expected of jobs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import httpx
import pytest

from tests.api.test_conventions import check_problem
from tests.support.factories import make_alert, table
from timeball.domain.alerts import AlertEvaluation, AlertMember, Severity, format_alert_id
from timeball.domain.values.ids import format_id
from timeball.store.store import Store
from timeball.testing import VirtualClock


async def test_alerts_are_listed_with_their_life_and_the_moment_of_the_evaluation(
    client: httpx.AsyncClient, store: Store, clock: VirtualClock
) -> None:
    assert (await client.get("/alerts")).json() == {
        "data": [],
        "next_cursor": None,
        "has_more": False,
        "evaluated_at": None,
    }
    alert = await make_alert(store)

    body = (await client.get("/alerts")).json()

    (shown,) = body["data"]
    assert shown == (await client.get(f"/alerts/{format_alert_id(alert)}")).json()
    assert shown["id"] == format_alert_id(alert)
    assert (shown["state"], shown["severity"], shown["kind"]) == ("open", "critical", "queue_unserved")
    assert shown["target"] == {"kind": "queue", "id": "mail"}
    assert shown["members"] == [{"name": "mail", "job_id": None, "queue": "mail", "tags": []}]
    assert shown["opened_at"] == shown["last_seen_at"] == body["evaluated_at"]


async def test_alerts_are_chosen_by_what_they_are_about(client: httpx.AsyncClient, store: Store) -> None:
    job = (await client.post("/jobs", json={"name": "nightly", "handler": "h", "schedule": "manual"})).json()["id"]
    job_id = next(row["id"] for row in await table(store, "job"))
    member = AlertMember(name="nightly", job_id=job_id, queue="batch", tags=("billing",))
    about_job = await make_alert(store, kind="no_success", members=(member,), severity=Severity.WARNING)
    about_queue = await make_alert(store)

    async def ids(**params: Any) -> list[str]:
        reply = await client.get("/alerts", params=params)
        assert reply.status_code == 200, reply.text
        return [alert["id"] for alert in reply.json()["data"]]

    assert await ids(job="nightly") == await ids(job=job) == [format_alert_id(about_job)]
    assert await ids(tag="billing") == await ids(severity="warning") == [format_alert_id(about_job)]
    assert await ids(queue="mail") == await ids(kind="queue_unserved") == [format_alert_id(about_queue)]
    assert await ids(state="resolved") == []
    assert len(await ids(state=["open", "resolved"])) == 2
    check_problem(await client.get("/alerts", params={"job": "none"}), 404, "not_found")


async def test_pages_of_alerts_go_on_where_the_last_one_ended(client: httpx.AsyncClient, store: Store) -> None:
    made = [format_alert_id(await make_alert(store)) for _ in range(5)]

    seen, cursor = [], None
    while True:
        body = (await client.get("/alerts", params={"limit": 2} | ({"cursor": cursor} if cursor else {}))).json()
        seen += [alert["id"] for alert in body["data"]]
        cursor = body["next_cursor"]
        if cursor is None:
            break

    assert sorted(seen) == sorted(made)


async def test_an_alert_is_acknowledged_until_an_instant_and_asked_again(
    client: httpx.AsyncClient, store: Store, clock: VirtualClock
) -> None:
    alert = format_alert_id(await make_alert(store))
    until = (clock.now() + timedelta(hours=2)).isoformat()

    reply = await client.post(f"/alerts/{alert}/acknowledge", json={"until": until, "reason": "on it"})

    assert reply.status_code == 200, reply.text
    known = reply.json()["acknowledgement"]
    assert (reply.json()["state"], known["reason"]) == ("acknowledged", "on it")
    assert known["until"][:19] == until[:19]
    assert known["by"]
    taken_back = await client.post(f"/alerts/{alert}/unacknowledge")
    assert (taken_back.json()["state"], taken_back.json()["acknowledgement"]) == ("open", None)
    check_problem(await client.post(f"/alerts/{alert}/unacknowledge"), 409, "conflict")
    audit = (await client.get("/audit")).json()["data"]
    assert {entry["action"] for entry in audit} == {"alert.unacknowledged", "alert.acknowledged", "alert.opened"}


async def test_what_cannot_be_acknowledged_is_refused(
    client: httpx.AsyncClient, store: Store, clock: VirtualClock
) -> None:
    alert = format_alert_id(await make_alert(store))
    past = (clock.now() - timedelta(hours=2)).isoformat()

    check_problem(await client.post(f"/alerts/{alert}/acknowledge", json={"until": past}), 422, "invalid_input")
    check_problem(await client.post(f"/alerts/{alert}/acknowledge", json={"until": "soon"}), 422, "invalid_schedule")
    check_problem(await client.post("/alerts/alr_nothing/acknowledge"), 404, "not_found")
    unknown = format_id("alr", store.env.new_id())
    check_problem(await client.post(f"/alerts/{unknown}/acknowledge"), 404, "not_found")
    check_problem(await client.get(f"/alerts/{unknown}"), 404, "not_found")
    clock.advance(timedelta(seconds=1))
    await store.alerts.reconcile(AlertEvaluation(clock.now(), []))
    check_problem(await client.post(f"/alerts/{alert}/acknowledge"), 409, "conflict")


async def test_what_is_expected_of_a_queue_is_changed_field_by_field(client: httpx.AsyncClient, store: Store) -> None:
    body = {"max_oldest_wait_seconds": 300, "must_be_served": True}

    first = await client.patch("/queues/mail", json=body | {"max_running": 3})
    second = await client.patch("/queues/mail", json={"max_oldest_wait_seconds": None})

    assert {name: first.json()[name] for name in body} == body
    assert first.json()["max_running"] == 3
    shown = (await client.get("/queues/mail")).json()
    assert second.json() == shown
    assert (shown["max_oldest_wait_seconds"], shown["must_be_served"], shown["max_running"]) == (None, True, 3)


@pytest.mark.parametrize(
    "body", [{}, {"must_be_served": None}, {"max_oldest_wait_seconds": 0}, {"max_oldest_wait_seconds": "5m"}]
)
async def test_what_cannot_be_expected_of_a_queue_is_refused(client: httpx.AsyncClient, body: dict[str, Any]) -> None:
    reply = await client.patch("/queues/mail", json=body)

    check_problem(reply, 422, "invalid_input")


async def test_what_cannot_be_expected_of_a_job_is_refused_with_a_pointer(client: httpx.AsyncClient) -> None:
    body = {"name": "nightly", "handler": "h", "schedule": "@daily", "expect": {"succeed_every": "soon"}}

    reply = await client.post("/jobs", json=body)

    problem = check_problem(reply, 422, "invalid_input")
    assert problem["errors"][0]["pointer"] == "/expect/succeed_every"
    one_off = await client.post("/jobs", json={"handler": "h", "expect": {"succeed_every": "1h"}})
    assert check_problem(one_off, 422, "invalid_input")["errors"][0]["pointer"] == "/expect"


async def test_what_needs_attention_names_its_alert(
    client: httpx.AsyncClient, store: Store, clock: VirtualClock
) -> None:
    (concern, *_) = (await client.get("/attention")).json()["data"]
    assert concern["alert"] is None
