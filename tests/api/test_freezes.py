"""Freezes over HTTP: written, listed, ended, and shown wherever time is shown."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import httpx
import pytest

from tests.support.factories import table
from timeball.store.store import Store
from timeball.testing import VirtualClock


def after(clock: VirtualClock, hours: float) -> str:
    return (clock.now() + timedelta(hours=hours)).isoformat()


async def created(client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    reply = await client.post("/freezes", json=body)
    assert reply.status_code == 201, reply.text
    document: dict[str, Any] = reply.json()
    return document


async def test_a_freeze_is_written_read_listed_and_ended(
    client: httpx.AsyncClient, store: Store, clock: VirtualClock
) -> None:
    freeze = await created(client, queue="billing", until=after(clock, 2), reason="release", afterwards="latest")

    assert (freeze["scope"], freeze["queue"], freeze["tag"], freeze["job"]) == ("queue", "billing", None, None)
    assert (freeze["state"], freeze["afterwards"], freeze["reason"]) == ("active", "latest", "release")
    assert datetime.fromisoformat(freeze["from"]) == clock.now()
    read = await client.get(f"/freezes/{freeze['id']}")
    assert read.json() == freeze
    version = {"If-Match": read.headers["ETag"]}
    assert (await client.get("/freezes")).json() == {"data": [freeze]}

    stale = await client.delete(f"/freezes/{freeze['id']}", headers={"If-Match": '"7"'})
    ended = await client.delete(f"/freezes/{freeze['id']}", headers=version, params={"reason": "done early"})
    again = await client.delete(f"/freezes/{freeze['id']}")

    assert (stale.status_code, ended.status_code, again.status_code) == (412, 204, 409)
    assert (await client.get("/freezes")).json() == {"data": []}
    (past,) = (await client.get("/freezes", params={"past": "true"})).json()["data"]
    assert (past["state"], past["until"] == freeze["from"]) == ("over", True)
    assert [row["reason"] for row in await table(store, "audit") if row["action"] == "freeze.end"] == ["done early"]


async def test_a_freeze_is_written_once_for_one_idempotency_key(
    client: httpx.AsyncClient, store: Store, clock: VirtualClock
) -> None:
    body = {"everything": True, "until": after(clock, 2)}
    replies = [await client.post("/freezes", json=body, headers={"Idempotency-Key": "one-freeze"}) for _ in range(2)]

    assert [reply.status_code for reply in replies] == [201, 201]
    assert len(await table(store, "freeze_period")) == 1


@pytest.mark.parametrize(
    ("body", "pointer", "words"),
    [
        ({}, "/queue", "none of them is given, expected one of queue, tag, job and everything"),
        ({"queue": "a", "tag": "b"}, "/tag", "queue and tag are given"),
        ({"queue": "a", "everything": True}, "/everything", "queue and everything are given"),
        ({"queue": "a", "until": "1999-01-01T00:00:00Z"}, "/until", "which has passed"),
        ({"queue": "a", "from": "1999-01-01T00:00:00Z"}, "/from", "which has passed"),
        ({"queue": "a", "from": "2198-01-01T00:00:00Z"}, "/from", "expected an instant before until"),
        ({"queue": "a", "afterwards": "some"}, "/afterwards", "skip"),
        ({"queue": "a", "until": "soon"}, "/until", "soon"),
    ],
)
async def test_a_freeze_that_makes_no_sense_is_refused(
    client: httpx.AsyncClient, store: Store, clock: VirtualClock, body: dict[str, Any], pointer: str, words: str
) -> None:
    reply = await client.post("/freezes", json={"until": after(clock, 2)} | body)

    assert reply.status_code == 422
    (error,) = reply.json()["errors"]
    assert error["pointer"] == pointer
    assert words in error["detail"]
    assert await table(store, "freeze_period") == []


async def test_a_freeze_of_an_unknown_job_and_an_unknown_freeze_are_not_found(
    client: httpx.AsyncClient, clock: VirtualClock
) -> None:
    unknown = "frz_01JCV3V1KC8M2T4QZ5R7N9X0AB"

    assert (await client.post("/freezes", json={"job": "none", "until": after(clock, 2)})).status_code == 404
    assert (await client.get(f"/freezes/{unknown}")).status_code == 404
    assert (await client.delete(f"/freezes/{unknown}")).status_code == 404
    assert (await client.get("/freezes/nothing")).status_code == 404


async def test_next_times_timeline_and_forecast_show_freezes(client: httpx.AsyncClient, clock: VirtualClock) -> None:
    await client.post("/jobs", json={"name": "a", "handler": "test.echo", "interval_seconds": 3600, "queue": "billing"})
    freeze = await created(client, queue="billing", until=after(clock, 2.5))
    await created(client, queue="other", until=after(clock, 2.5))

    times = (await client.get("/jobs/a/next", params={"count": 4})).json()["next"]
    timeline = (await client.get("/timeline", params={"queue": "billing"})).json()
    forecast = (await client.get("/forecast", params={"queue": "billing"})).json()

    assert [time["is_frozen"] for time in times] == [True, True, False, False]
    assert timeline["freezes"] == forecast["freezes"] == [freeze]
    assert len((await client.get("/timeline")).json()["freezes"]) == 2


async def test_the_ledger_says_what_a_freeze_will_skip(client: httpx.AsyncClient, clock: VirtualClock) -> None:
    await client.post("/jobs", json={"name": "a", "handler": "test.echo", "interval_seconds": 3600, "queue": "billing"})
    freeze = await created(client, queue="billing", until=after(clock, 2.5), reason="release")

    entries = (await client.get("/jobs/a/occurrences", params={"limit": 4})).json()["data"]
    only = (await client.get("/jobs/a/occurrences", params={"reason": "freeze"})).json()["data"]

    assert [(entry["verdict"], entry["reason"]) for entry in entries] == [
        *[("expected", "freeze")] * 2,
        *[("expected", None)] * 2,
    ]
    assert only == entries[:2]
    told = {name: freeze[name] for name in ("id", "until", "reason")} | {"what": "queue billing"}
    assert [{name: entry["freeze"][name] for name in told} for entry in only] == [told] * 2


async def test_why_names_the_freeze_that_holds_an_execution(client: httpx.AsyncClient, clock: VirtualClock) -> None:
    await client.post("/jobs", json={"name": "a", "handler": "test.echo", "tags": ["money"], "schedule": None})
    freeze = await created(client, tag="money", until=after(clock, 2), reason="release")
    await client.post("/jobs/a/trigger", json={})

    explanation = (await client.get("/jobs/a/explain")).json()

    names = [gate["name"] for gate in explanation["gates"]]
    assert names[:3] == ["enabled", "not_frozen", "due"]
    gate = explanation["gates"][1]
    assert gate["verdict"] == "stopped"
    assert gate["sentence"].startswith("tag money is frozen until")
    assert gate["sentence"].endswith(": release")
    assert gate["links"] == [freeze["id"]]
    assert gate["advice"] == f"timeball unfreeze {freeze['id']}"
    assert "frozen" in explanation["headline"]


async def test_why_does_not_advise_to_trigger_what_a_freeze_holds(
    client: httpx.AsyncClient, clock: VirtualClock
) -> None:
    await client.post("/jobs", json={"name": "a", "handler": "test.echo", "interval_seconds": 3600, "queue": "billing"})
    before = (await client.get("/jobs/a/explain")).json()
    await created(client, queue="billing", until=after(clock, 2))

    frozen = (await client.get("/jobs/a/explain")).json()

    commands = [
        next(gate["command"] for gate in one["gates"] if gate["name"] == "run_time") for one in (before, frozen)
    ]
    assert commands == ["timeball jobs trigger a", None]
