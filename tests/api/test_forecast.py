"""Explanations, timelines and forecasts over HTTP."""

from __future__ import annotations

from datetime import timedelta

import httpx
import pytest

from tests.api.test_conventions import check_problem
from tests.support.factories import make_job, make_node, make_recurring
from timeball.domain.explain.explanation import GATES
from timeball.store.store import Store
from timeball.testing import VirtualClock


async def test_explain_has_one_sentence_and_every_gate(client: httpx.AsyncClient, store: Store) -> None:
    job = await make_recurring(store, every=3600, name="nightly")

    of_job = (await client.get("/jobs/nightly/explain")).json()
    of_execution = (await client.get(f"/executions/{of_job['execution_id']}/explain")).json()

    assert of_job == of_execution
    assert of_job["headline"].startswith("NOT STARTED: it is due at 13:00:00 UTC, in 1 h. Also: no worker is alive")
    assert of_job["stopped_by"] == "run_time"
    assert len(of_job["gates"]) == len(GATES)
    assert [gate["verdict"] for gate in of_job["gates"]].count("stopped") == 3
    assert of_job["job_name"] == job.name
    check_problem(await client.get("/jobs/nobody/explain"), 404, "not_found")
    check_problem(await client.get("/executions/nobody/explain"), 404, "not_found")


async def test_explain_at_an_instant_has_the_verdict_and_the_chain(
    client: httpx.AsyncClient, store: Store, clock: VirtualClock
) -> None:
    await make_recurring(store, every=3600, name="nightly")
    await client.post("/jobs/nightly/pause", json={"reason": "audit week"})
    clock.advance("90m")

    skipped = (await client.get("/jobs/nightly/explain", params={"at": "2026-03-02T13:00"})).json()
    nothing = (await client.get("/jobs/nightly/explain", params={"at": "2026-03-02T13:10:00Z"})).json()

    assert (skipped["verdict"], skipped["reason"], skipped["at"]) == ("skipped", "paused", "2026-03-02T13:00:00Z")
    (cause,) = skipped["because"]
    assert (cause["kind"], cause["from"], cause["until"]) == ("job_paused", "2026-03-02T12:00:00Z", None)
    assert cause["actor"]
    assert cause["sentence"].endswith(": audit week")
    assert cause["sentence"] in skipped["headline"]
    assert nothing["verdict"] is None
    assert nothing["before"] == {"at": "2026-03-02T13:00:00Z", "verdict": "skipped", "reason": "paused"}
    check_problem(await client.get("/jobs/nightly/explain", params={"at": "soon"}), 422, "invalid_schedule")
    check_problem(await client.get("/jobs/nobody/explain", params={"at": "2026-03-02T13:00"}), 404, "not_found")


async def test_a_timeline_shows_past_and_predicted_runs(
    client: httpx.AsyncClient, store: Store, clock: VirtualClock
) -> None:
    await make_job(store, name="noon", schedule="0 12 * * *")
    start = clock.now() + timedelta(days=1, hours=-1)
    params = {"from": start.isoformat(), "to": (start + timedelta(hours=2)).isoformat(), "width": "800"}

    found = (await client.get("/timeline", params=params)).json()

    (row,) = found["rows"]
    assert (row["label"], row["kind"]) == ("noon", "cron")
    assert [mark["start"] for mark in row["marks"]] == ["2026-03-03T12:00:00Z"]
    assert found["without_history"] == ["noon"]
    assert len(found["band"]) == 80


@pytest.mark.parametrize(
    "query",
    [
        "from=2026-03-02T12:00:00Z&to=2026-03-02T11:00:00Z",
        "from=2026-01-01&to=2026-12-31",
        "from=never",
        "rows=planets",
        "width=5",
        "limit=0",
        "queue=%00",
    ],
)
async def test_a_timeline_with_invalid_parameters_is_refused(client: httpx.AsyncClient, query: str) -> None:
    response = await client.get(f"/timeline?{query}")

    assert response.status_code == 422, response.text
    assert response.json()["detail"]


async def test_a_forecast(client: httpx.AsyncClient, store: Store) -> None:
    await make_job(store, name="nightly", schedule="0 3 * * *")

    busy = (await client.get("/forecast", params={"timezone": "Europe/Berlin"})).json()
    starts = (await client.get("/forecast", params={"measure": "starts", "days": "2"})).json()

    assert [len(day["hours"]) for day in busy["days"]] == [24] * 7
    assert busy["without_history"] == ["nightly"]
    assert starts["days"][1]["peak"] == {"hour": 3, "value": 1, "sentence": "peak 03:00, 1 starts"}
    assert (await client.get("/forecast/collisions")).json() == {"data": []}
    await make_node(store, slots=1)
    await make_job(store, name="other", schedule="0 3 * * *")
    (collision,) = (await client.get("/forecast/collisions")).json()["data"]
    assert [job["label"] for job in collision["jobs"]] == ["nightly", "other"]
    assert (collision["need"], collision["slots"], collision["times"]) == (2, 1, 7)
    check_problem(await client.get("/forecast?timezone=Mars"), 422, "unknown_timezone")
    check_problem(await client.get("/forecast?days=32"), 422, "invalid_input")


async def test_a_collision_is_spread_by_an_ordinary_change(client: httpx.AsyncClient, store: Store) -> None:
    await make_node(store, slots=1)
    for name in ("nightly", "other"):
        await make_job(store, name=name, schedule="0 3 * * *")
    await make_job(store, name="often", schedule="*/30 3 * * *")
    (collision, *_) = (await client.get("/forecast/collisions")).json()["data"]

    wish = {"queues": collision["queues"], "at": collision["start"]}
    found = (await client.post("/schedules/suggest", json=wish)).json()

    assert found["collision"] == collision
    first, second = found["suggestions"]
    assert (first["job"]["label"], first["schedule_before"], first["schedule_after"]) == (
        "nightly",
        "0 3 * * *",
        "5 3 * * *",
    )
    assert (first["peak_before"], first["peak_after"], second["peak_after"]) == (3, 2, 1)
    assert (first["shift_seconds"], first["version"], first["declared_by"]) == (300, 1, None)
    assert [(one["label"], one["why"]) for one in found["left_out"]] == [
        ("often", 'its minutes are "*/30", and only a single minute can be moved')
    ]
    for one in found["suggestions"]:
        path = f"/jobs/{one['job']['id']}"
        assert (await client.patch(path, json=one["changes"], headers={"If-Match": '"7"'})).status_code == 412
        headers = {"If-Match": f'"{one["version"]}"'}
        assert (await client.patch(path, json=one["changes"], headers=headers)).status_code == 200
    assert (await client.get("/forecast/collisions")).json() == {"data": []}
    gone = (await client.post("/schedules/suggest", json=wish)).json()
    assert gone == {"collision": None, "suggestions": [], "left_out": [], "sentence": "nothing collides there"}


async def test_an_interval_is_spread_by_its_anchor(client: httpx.AsyncClient, store: Store) -> None:
    await make_node(store, slots=1)
    for name in ("a", "b"):
        await make_recurring(store, every=7200, name=name)

    (one,) = (await client.post("/schedules/suggest", json={})).json()["suggestions"]

    assert one["sentence"] == (
        "a every 2h from 2026-03-02T14:00:00Z → every 2h from 2026-03-02T14:05:00Z (5 min later), peak 2 → 1"
    )
    assert (await client.patch("/jobs/a", json=one["changes"])).json()["next_run_at"] == "2026-03-02T14:05:00Z"
    assert (await client.get("/forecast/collisions")).json() == {"data": []}


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"at": "never"}, "invalid_schedule"),
        ({"timezone": "Mars"}, "unknown_timezone"),
        ({"days": 32}, "invalid_input"),
        ({"queues": "batch"}, "invalid_input"),
        ({"queue": "batch"}, "invalid_input"),
    ],
)
async def test_an_invalid_request_for_suggestions_is_refused(
    client: httpx.AsyncClient, body: object, code: str
) -> None:
    check_problem(await client.post("/schedules/suggest", json=body), 422, code)


async def test_queues_choose_the_collision_to_spread(client: httpx.AsyncClient, store: Store) -> None:
    """A queue with a limit has its own pool of slots, in addition to the shared one."""
    await make_node(store, slots=2)
    await client.patch("/queues/narrow", json={"max_running": 1})
    for number in range(2):
        await make_job(store, name=f"narrow-{number}", schedule="0 3 * * *", queue="narrow")
        await make_job(store, name=f"wide-{number}", schedule="0 3 * * *")

    async def slots(**wish: object) -> int | None:
        found = (await client.post("/schedules/suggest", json=wish)).json()["collision"]
        return None if found is None else int(found["slots"])

    assert await slots(queues=["narrow"]) == 1
    assert await slots(queues=["default", "narrow"]) == 2
    assert await slots(queues=["nobody"]) is None
    assert await slots(at="2026-03-05T03:00:00Z") == 2
    assert await slots(at="2026-03-05T03:00:01Z") is None
