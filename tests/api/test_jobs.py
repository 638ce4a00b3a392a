"""Jobs over HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tests.api.test_conventions import check_problem
from tests.support.factories import (
    FAILURE,
    HANDLER,
    claim_all,
    enqueue,
    found,
    make_job,
    make_owner,
    record,
    seconds,
    table,
)
from timeball.api.app import make_api
from timeball.domain.execution import Failed, Succeeded
from timeball.domain.job import RESERVED_NAMES
from timeball.domain.values.ids import format_execution_id
from timeball.domain.values.redaction import REDACTED
from timeball.runtime import ServerRuntime
from timeball.store.store import Store
from timeball.testing import VirtualClock

DAILY = {
    "name": "daily-report",
    "description": "Generate daily sales report",
    "handler": "http.webhook",
    "payload": {"url": "https://api.example.com/reports/generate", "method": "POST"},
    "schedule": "0 6 * * *",
    "priority": 75,
    "max_retries": 3,
    "timeout_ms": 60000,
}


async def created(client: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    response = await client.post("/jobs", json={"handler": "tests:noop"} | fields)
    assert response.status_code == 201, response.text
    document: dict[str, Any] = response.json()
    return document


async def test_the_curl_of_the_issue_creates_a_cron_job(client: httpx.AsyncClient) -> None:
    response = await client.post("/jobs", json=DAILY)

    assert response.status_code == 201
    job = response.json()
    assert {name: job[name] for name in DAILY} == DAILY
    assert (job["kind"], job["status"], job["version"]) == ("cron", "active", 1)
    assert job["next_run_at"].endswith("T06:00:00Z")
    assert response.headers["etag"] == '"1"'
    assert response.headers["location"] == f"/api/v1/jobs/{job['id']}"


@pytest.mark.parametrize(
    ("fields", "kind", "status"),
    [
        ({"name": "a", "scheduled_at": "2099-01-01T00:00:00Z"}, "once", "active"),
        ({"name": "a", "interval_seconds": 60}, "every", "active"),
        ({"name": "a", "schedule": "*/5 * * * *", "timezone": "Europe/Berlin"}, "cron", "active"),
        ({"name": "a", "schedule": "manual"}, "manual", "active"),
        ({"name": "a"}, "once", "active"),
        ({}, "once", "active"),
        ({"scheduled_at": "2099-01-01T00:00:00Z"}, "once", "active"),
    ],
)
async def test_every_kind_of_schedule_can_be_posted(
    client: httpx.AsyncClient, fields: dict[str, Any], kind: str, status: str
) -> None:
    job = await created(client, **fields)

    assert (job["kind"], job["status"]) == (kind, status)
    assert (await client.get(f"/jobs/{job['id']}")).json()["kind"] == kind


async def test_a_named_job_with_no_time_is_ready_at_once_and_runs_once(client: httpx.AsyncClient, store: Store) -> None:
    job = await created(client, name="hello", payload={"x": 1})

    (ready,) = await table(store, "ready")
    assert (format_execution_id(ready["id"]), ready["origin"]) == (job["execution_id"], "schedule")
    (claimed,) = await claim_all(store, handlers=[job["handler"]])
    await record(store, [found(claimed)])
    ended = (await client.get("/jobs/hello")).json()
    assert (ended["kind"], ended["status"], ended["last_execution"]["state"]) == ("once", "finished", "succeeded")
    assert ended["scheduled_at"] == job["scheduled_at"]
    assert await table(store, "due") == []


@pytest.mark.parametrize(
    ("fields", "change", "pointer"),
    [
        ({"schedule": "0 6 * * *"}, {"schedule": None}, "/schedule"),
        ({"interval_seconds": 60}, {"interval_seconds": None}, "/interval_seconds"),
        ({"schedule": "manual"}, {"schedule": None, "priority": 9}, "/schedule"),
    ],
)
async def test_a_change_that_leaves_a_job_without_a_time_is_refused(
    client: httpx.AsyncClient, fields: dict[str, Any], change: dict[str, Any], pointer: str
) -> None:
    before = await created(client, name="a", **fields)

    for refused in (
        await client.patch("/jobs/a", json=change),
        await client.put("/jobs/a", json=change),
        await client.post("/jobs/a/duplicate", json=change),
    ):
        check_problem(refused, 422, "invalid_input")
        assert refused.json()["errors"][0]["pointer"] == pointer
        assert '"schedule": "manual"' in refused.json()["hint"]
    assert (await client.get("/jobs/a")).json()["version"] == before["version"]


async def test_a_recurring_job_becomes_manual_and_recurring_again(client: httpx.AsyncClient) -> None:
    await created(client, name="a", schedule="0 6 * * *")

    manual = (await client.patch("/jobs/a", json={"schedule": "manual"})).json()
    recurring = (await client.patch("/jobs/a", json={"interval_seconds": 60})).json()

    assert (manual["kind"], manual["schedule"], manual["next_run_at"]) == ("manual", "manual", None)
    assert (recurring["kind"], recurring["schedule"], recurring["interval_seconds"]) == ("every", None, 60)


async def test_a_job_is_found_by_id_by_bare_uuid_and_by_name(client: httpx.AsyncClient, store: Store) -> None:
    job = await make_job(store, name="a name / with a slash? no")
    plain = await make_job(store, name="räuber 🎲")

    for reference in (str(job.id), str(plain.id), "räuber 🎲"):
        assert (await client.get(f"/jobs/{reference}")).status_code == 200
    assert (await client.get("/jobs/nobody")).status_code == 404


async def test_a_name_can_be_used_once(client: httpx.AsyncClient) -> None:
    await created(client, name="a")

    response = await client.post("/jobs", json={"handler": "h", "name": "a"})

    assert response.status_code == 409
    assert response.json()["code"] == "conflict"


async def test_a_unique_key_in_use_returns_the_job_that_holds_it(client: httpx.AsyncClient) -> None:
    first = await created(client, unique_key="k")

    second = await client.post("/jobs", json={"handler": "h", "unique_key": "k"})

    assert second.status_code == 200
    assert second.json()["id"] == first["id"]


@pytest.mark.parametrize("method", ["put", "patch"])
async def test_an_edit_for_an_old_version_is_refused(client: httpx.AsyncClient, method: str) -> None:
    job = await created(client, name="a", schedule="0 6 * * *")
    url = f"/jobs/{job['id']}"

    changed = await client.request(method, url, json={"priority": 90}, headers={"If-Match": '"1"'})
    stale = await client.request(method, url, json={"priority": 10}, headers={"If-Match": '"1"'})
    odd = await client.request(method, url, json={"priority": 10}, headers={"If-Match": "x"})

    assert (changed.status_code, changed.json()["priority"], changed.headers["etag"]) == (200, 90, '"2"')
    assert changed.json()["schedule"] == "0 6 * * *"
    assert (stale.status_code, stale.json()["code"], stale.headers["etag"]) == (412, "precondition_failed", '"2"')
    assert odd.status_code == 412


async def test_a_deleted_job_is_gone_and_its_name_is_free(client: httpx.AsyncClient) -> None:
    job = await created(client, name="a")

    assert (await client.delete(f"/jobs/{job['id']}", headers={"If-Match": '"7"'})).status_code == 412
    assert (await client.delete("/jobs/a")).status_code == 204
    assert (await client.get(f"/jobs/{job['id']}")).status_code == 404
    await created(client, name="a")


async def test_pause_and_resume(client: httpx.AsyncClient, clock: VirtualClock) -> None:
    await created(client, name="a", interval_seconds=60)
    until = (clock.now() + timedelta(hours=1)).isoformat()

    paused = (await client.post("/jobs/a/pause", json={"until": until, "reason": "a feast"})).json()
    resumed = (await client.post("/jobs/a/resume", json={})).json()

    assert (paused["status"], paused["pause_reason"]) == ("paused", "a feast")
    assert paused["paused_until"] is not None
    assert (resumed["status"], resumed["paused_at"]) == ("active", None)


async def test_a_queue_is_paused_until_an_instant(client: httpx.AsyncClient, clock: VirtualClock) -> None:
    until = clock.now() + timedelta(hours=1)

    paused = (await client.post("/queues/mail/pause", json={"until": until.isoformat(), "reason": "a move"})).json()
    late = await client.post("/queues/mail/pause", json={"until": "1999-01-01T00:00:00Z"})
    resumed = (await client.post("/queues/mail/resume", json={})).json()

    assert (paused["is_paused"], paused["pause_reason"]) == (True, "a move")
    assert datetime.fromisoformat(paused["paused_until"]) == until
    assert (late.status_code, late.json()["errors"][0]["pointer"]) == (422, "/until")
    assert (resumed["is_paused"], resumed["paused_until"]) == (False, None)


async def test_many_jobs_are_paused_until_an_instant(client: httpx.AsyncClient, clock: VirtualClock) -> None:
    await created(client, name="a", interval_seconds=60)
    await created(client, name="b", interval_seconds=60)
    until = clock.now() + timedelta(hours=1)

    by_name = await client.post("/jobs/bulk/pause", json={"ids": ["a"], "until": until.isoformat()})
    by_filter = await client.post("/jobs/bulk/pause", json={"filter": {"q": "b"}, "until": until.isoformat()})
    past = await client.post("/jobs/bulk/pause", json={"ids": ["a"], "until": "1999-01-01T00:00:00Z"})
    misplaced = await client.post("/jobs/bulk/resume", json={"ids": ["a"], "until": until.isoformat()})

    assert (by_name.json()["done"], by_filter.json()["done"]) == (1, 1)
    for name in ("a", "b"):
        assert datetime.fromisoformat((await client.get(f"/jobs/{name}")).json()["paused_until"]) == until
    assert (past.status_code, past.json()["errors"][0]["pointer"]) == (422, "/until")
    assert (misplaced.status_code, misplaced.json()["detail"]) == (
        422,
        "until is given with resume, expected only with pause",
    )


async def test_trigger_cancel_and_retry_act_on_executions(client: httpx.AsyncClient, store: Store) -> None:
    await created(client, name="a", payload={"x": 1}, schedule="manual")

    triggered = await client.post("/jobs/a/trigger", json={"payload": {"x": 2}})
    cancelled = await client.post("/jobs/a/cancel", json={"reason": "no"})
    nothing = await client.post("/jobs/a/cancel", json={})
    retried = await client.post("/jobs/a/retry", json={})

    assert (triggered.status_code, triggered.json()["state"], triggered.json()["payload"]) == (202, "queued", {"x": 2})
    assert (cancelled.status_code, cancelled.json()["state"], cancelled.json()["reason"]) == (200, "cancelled", "no")
    assert nothing.status_code == 409
    assert (retried.status_code, retried.json()["retry_of"]) == (202, triggered.json()["id"])
    assert retried.json()["payload"] == {"x": 2}


async def test_a_trigger_says_by_when_it_must_have_begun(
    client: httpx.AsyncClient, store: Store, clock: VirtualClock
) -> None:
    await created(client, name="a", schedule="manual", start_within_seconds=60, timezone="Europe/Berlin")

    async def expiry_of(**body: Any) -> datetime:
        answer = await client.post("/jobs/a/trigger", json=body)
        assert answer.status_code == 202, answer.text
        return datetime.fromisoformat(answer.json()["expires_at"])

    assert await expiry_of() == clock.now() + timedelta(seconds=60)
    assert await expiry_of(start_within_seconds=600) == clock.now() + timedelta(seconds=600)
    assert await expiry_of(expires_at="2098-01-01T12:00:00Z") == datetime(2098, 1, 1, 12, tzinfo=UTC)
    assert await expiry_of(expires_at="2098-01-01T12:00:00") == datetime(2098, 1, 1, 11, tzinfo=UTC)
    clock.advance("60s")
    await store.executions.expire_waiting(10)
    (skipped,) = (await client.get("/jobs/a/executions", params={"status": "skipped"})).json()["data"]
    assert (skipped["reason"], skipped["attempts"]) == ("expired", 0)
    assert datetime.fromisoformat(skipped["expires_at"]) == clock.now()


async def test_meta_is_shown_with_jobs_and_executions(client: httpx.AsyncClient) -> None:
    await created(client, name="a", schedule="manual", meta={"tenant": "acme", "token": "t0p"})
    shown = (await client.get("/jobs/a")).json()["meta"]
    assert (shown["tenant"], shown["token"]) == ("acme", REDACTED)

    own = await client.post("/jobs/a/trigger", json={"meta": {"tenant": "globex"}})
    of_job = await client.post("/jobs/a/trigger")

    assert own.json()["meta"] == {"tenant": "globex"}
    assert of_job.json()["meta"]["tenant"] == "acme"
    listed = (await client.get("/executions")).json()["data"]
    assert [one["meta"]["tenant"] for one in listed] == ["acme", "globex"]
    assert "globex" in (await client.get("/executions/export", params={"format": "csv"})).text
    assert '"acme"' in (await client.get("/jobs/export", params={"format": "jsonl"})).text


@pytest.mark.parametrize(
    ("meta", "complaint"),
    [
        ({"words": "x" * 4_097}, "meta has 4109 bytes as JSON, expected at most 4096"),
        ({"token": REDACTED}, "which stands for a hidden value"),
        (["tenant"], "meta"),
        ("tenant", "meta"),
    ],
)
async def test_meta_that_is_no_small_object_is_refused(client: httpx.AsyncClient, meta: Any, complaint: str) -> None:
    await created(client, name="a", schedule="manual")

    for path, body in (("/jobs", {"handler": "test.echo"}), ("/jobs/a/trigger", {})):
        refused = await client.post(path, json=body | {"meta": meta})

        assert refused.status_code == 422
        assert complaint in refused.text
    assert (await client.patch("/jobs/a", json={"meta": meta})).status_code == 422


async def test_other_meta_for_a_run_needs_an_editor(
    client: httpx.AsyncClient, make_key: Callable[[str], Awaitable[dict[str, str]]]
) -> None:
    await created(client, name="a", schedule="manual")
    operator, body = await make_key("operator"), {"meta": {"tenant": "globex"}}

    assert (await client.post("/jobs/a/trigger", json=body, headers=operator)).status_code == 403
    assert (await client.post("/jobs/a/trigger", json={}, headers=operator)).status_code < 300


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"start_within_seconds": 0}, "start_within_seconds is 0"),
        ({"expires_at": "1999-01-01T00:00:00Z"}, "expires_at is 1999-01-01T00:00:00Z, which has passed"),
        ({"expires_at": "soon"}, 'expires_at is "soon"'),
    ],
)
async def test_a_trigger_that_could_not_begin_is_refused(
    client: httpx.AsyncClient, body: dict[str, Any], words: str
) -> None:
    await created(client, name="a")

    answer = await client.post("/jobs/a/trigger", json=body)

    assert answer.status_code == 422
    assert words in str(answer.json())


async def test_a_job_that_could_not_begin_is_refused(client: httpx.AsyncClient) -> None:
    recurring = {"handler": "test.echo", "name": "a", "interval_seconds": 60, "expires_at": "2098-01-01T00:00:00Z"}
    before = {"handler": "test.echo", "scheduled_at": "2098-01-01T00:00:00Z", "expires_at": "2098-01-01T00:00:00Z"}

    for body, words in (
        (recurring, "the job is not a one-off"),
        (before, "expected an instant after 2098-01-01T00:00:00Z"),
    ):
        answer = await client.post("/jobs", json=body)
        assert answer.status_code == 422
        assert words in answer.text


async def test_cancelling_a_schedule_skips_its_next_occurrence(client: httpx.AsyncClient) -> None:
    before = await created(client, name="a", interval_seconds=60)

    cancelled = await client.post("/jobs/a/cancel", json={})

    assert cancelled.json()["state"] == "cancelled"
    after = (await client.get("/jobs/a")).json()
    assert after["next_run_at"] > before["next_run_at"]


async def test_a_duplicate_takes_overrides(client: httpx.AsyncClient) -> None:
    await created(client, name="a", schedule="0 6 * * *", payload={"password": "hunter2"}, tags=["x"])

    copy = await client.post("/jobs/a/duplicate", json={})
    moved = await client.post("/jobs/a/duplicate", json={"name": "b", "scheduled_at": "2099-01-01T00:00:00Z"})

    assert (copy.status_code, copy.json()["name"], copy.json()["schedule"]) == (201, "a-copy", "0 6 * * *")
    assert (moved.json()["name"], moved.json()["kind"], moved.json()["tags"]) == ("b", "once", ["x"])


async def test_a_duplicate_does_not_take_an_expiry_that_has_passed(
    client: httpx.AsyncClient, clock: VirtualClock
) -> None:
    at, expires_at = clock.now() + timedelta(seconds=10), clock.now() + timedelta(seconds=20)
    await created(client, name="a", scheduled_at=at.isoformat(), expires_at=expires_at.isoformat())

    in_time = await client.post("/jobs/a/duplicate", json={"name": "b"})
    clock.advance("20s")
    too_late = await client.post("/jobs/a/duplicate", json={"name": "c"})

    assert datetime.fromisoformat(in_time.json()["expires_at"]) == expires_at
    assert too_late.json()["expires_at"] is None


async def test_a_backfill_is_previewed_and_becomes_an_operation(client: httpx.AsyncClient, clock: VirtualClock) -> None:
    await created(client, name="a", schedule="0 * * * *")
    span = {"from": (clock.now() - timedelta(hours=4)).isoformat(), "by": "present"}

    preview = await client.post("/jobs/a/backfill", json=span | {"dry_run": True})
    begun = await client.post("/jobs/a/backfill", json=span | {"max_running": 2, "reason": "new"})
    operation = begun.headers["location"].removeprefix("/api/v1")
    paused = await client.post(f"{operation}/pause", json={})
    resumed = await client.post(f"{operation}/resume", json={})

    counts = [{"verdict": "unrecorded", "reason": "not_scheduled", "count": 5, "would_run": 5}]
    assert (preview.status_code, preview.json()["would_run"], preview.json()["counts"]) == (200, 5, counts)
    assert begun.status_code == 202
    assert {name: begun.json()[name] for name in ("action", "state", "total", "progress", "reason")} == {
        "action": "backfill",
        "state": "pending",
        "total": 0,
        "progress": 0.0,
        "reason": "new",
    }
    assert (paused.json()["state"], resumed.json()["state"]) == ("paused", "pending")
    assert (await client.post(f"{operation}/resume", json={})).status_code == 409


async def test_the_body_of_the_page_on_backfills_is_accepted(client: httpx.AsyncClient) -> None:
    await created(client, name="nightly", schedule="0 3 * * *")
    page = (Path(__file__).parents[2] / "docs/howto/backfill.md").read_text(encoding="utf-8")
    body = page.partition("```json\n")[2].partition("```")[0]

    assert (await client.post("/jobs/nightly/backfill", content=body)).status_code == 202


async def test_a_backfill_refuses_what_it_does_not_know(client: httpx.AsyncClient) -> None:
    await created(client, name="a", schedule="0 * * * *")

    for body, field in (
        ({}, "from"),
        ({"from": "soon"}, "from"),
        ({"from": "2026-03-01", "only": "some"}, "only"),
        ({"from": "2026-03-01", "max_running": 0}, "max_running"),
        ({"from": "2026-03-01", "until": "2026-02-01"}, "until"),
    ):
        response = await client.post("/jobs/a/backfill", json=body)
        assert response.status_code == 422
        assert field in response.text


async def test_next_times_note_clock_changes(client: httpx.AsyncClient) -> None:
    body = {"schedule": "30 2 * * *", "timezone": "Europe/Berlin", "since": "2027-03-27T12:00:00", "count": 2}

    preview = (await client.post("/schedules/preview", json=body)).json()
    await created(client, name="a", schedule="0 6 * * *")
    upcoming = (await client.get("/jobs/a/next", params={"count": 3})).json()

    assert [item["note"] for item in preview["next"]] == ["moved_by_gap", None]
    assert preview["next"][0]["local"] == "2027-03-28T03:00:00+02:00"
    assert len(upcoming["next"]) == 3
    assert "06:00" in upcoming["description"]


async def test_h_is_decided_by_the_name_in_previews_and_jobs_alike(client: httpx.AsyncClient) -> None:
    nameless = await client.post("/schedules/preview", json={"schedule": "H H * * *"})
    refused = await client.post("/jobs", json={"handler": "test.echo", "schedule": "H H * * *"})
    preview = (await client.post("/schedules/preview", json={"schedule": "H H * * *", "name": "a"})).json()
    await created(client, name="a", schedule="H H * * *")
    upcoming = (await client.get("/jobs/a/next", params={"count": 10})).json()
    job = (await client.patch("/jobs/a", json={"name": "b"}, headers={"If-Match": '"1"'})).json()
    renamed = (await client.get("/jobs/b/next", params={"count": 10})).json()

    assert nameless.status_code == refused.status_code == 422
    assert "minute is H, expected the name of a job" in nameless.json()["detail"]
    assert preview == upcoming | {"landing": None}
    assert upcoming["description"].endswith(" for the name a")
    assert "H H * * * is " in upcoming["description"]
    assert job["schedule"] == "H H * * *"
    assert renamed["next"] != upcoming["next"]


# lists


async def test_jobs_are_listed_by_cursor_without_gaps(client: httpx.AsyncClient, clock: VirtualClock) -> None:
    names = [f"job-{number}" for number in range(7)]
    for name in names:
        clock.advance(seconds(1))
        await created(client, name=name)

    for sort, expected in (
        ("-created_at", names[::-1]),
        ("created_at", names),
        ("name", names),
        ("-name", names[::-1]),
    ):
        found_names: list[str] = []
        cursor = None
        while True:
            params = {"limit": 3, "sort": sort} | ({"cursor": cursor} if cursor else {})
            page = (await client.get("/jobs", params=params)).json()
            found_names += [item["name"] for item in page["data"]]
            cursor = page["next_cursor"]
            assert page["has_more"] == (cursor is not None)
            if cursor is None:
                break
        assert found_names == expected


async def test_pages_by_number_have_totals(client: httpx.AsyncClient) -> None:
    for number in range(5):
        await created(client, name=f"job-{number}")

    page = (await client.get("/jobs", params={"page": 2, "limit": 2})).json()
    total = (await client.get("/jobs", params={"include": "total", "limit": 1})).json()

    assert (page["page"], page["limit"], page["total"], page["total_pages"], len(page["data"])) == (2, 2, 5, 3, 2)
    assert (total["total"], total["total_is_exact"], len(total["data"])) == (5, True, 1)
    assert (await client.get("/jobs", params={"page": 101, "limit": 100})).status_code == 422


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"search": "REP"}, {"report"}),
        ({"search": "%"}, set()),
        ({"handler": "mail:send"}, {"mail"}),
        ({"queue": "slow"}, {"mail"}),
        ({"tag": "nightly"}, {"report"}),
        ({"kind": "cron"}, {"report"}),
        ({"status": "paused"}, {"mail"}),
        ({"status": "active"}, {"report", "dead"}),
        ({"status": "failed"}, {"dead"}),
        ({"status": "pending"}, {"report"}),
        ({"payload": "needle"}, {"report"}),
        ({"due_from": "2020-01-01T00:00:00Z"}, {"report"}),
        ({"due_until": "2020-01-01T00:00:00Z"}, set()),
        ({"start_date": "2020-01-01"}, {"report", "mail", "dead"}),
        ({"end_date": "2020-01-01"}, set()),
    ],
)
async def test_jobs_are_filtered(
    client: httpx.AsyncClient, store: Store, params: dict[str, str], expected: set[str]
) -> None:
    await created(client, name="report", schedule="0 6 * * *", tags=["nightly"], payload={"x": "needle"})
    await created(client, name="mail", handler="mail:send", queue="slow")
    await client.post("/jobs/mail/pause", json={})
    dead = await make_job(store, name="dead", max_retries=0)
    await client.post(f"/jobs/{dead.id}/trigger", json={})
    await record(store, [found(claimed, Failed(FAILURE)) for claimed in await claim_all(store)])

    response = await client.get("/jobs", params=params)

    assert response.status_code == 200, response.text
    assert {item["name"] for item in response.json()["data"]} == expected


# executions


async def test_an_execution_shows_attempts_timeline_result_and_error(client: httpx.AsyncClient, store: Store) -> None:
    await make_job(store, name="a", max_retries=0, payload={"api_key": "canary"})
    triggered = (await client.post("/jobs/a/trigger", json={})).json()
    await record(store, [found(claimed, Failed(FAILURE)) for claimed in await claim_all(store)])

    story = (await client.get(f"/executions/{triggered['id']}")).json()

    assert (story["state"], story["error_type"], story["error"]) == ("dead", "ValueError", "no")
    assert [attempt["outcome"] for attempt in story["attempt_list"]] == ["failed"]
    assert story["payload"] == {"api_key": "••••••"}
    assert [point["what"] for point in story["timeline"]][-1] in ("dead", "attempt 1 failed")
    assert story["fingerprint"] == "abc"
    assert (await client.get("/executions/exe_x")).status_code == 404


async def test_executions_are_filtered_by_status_aliases(client: httpx.AsyncClient, store: Store) -> None:
    succeeded = await enqueue(store)
    await record(store, [found(claimed, Succeeded('{"token": "canary"}')) for claimed in await claim_all(store)])
    scheduled = await enqueue(store, after=3600)
    queued = await enqueue(store)
    running = await enqueue(store, handler="other", priority=100)
    assert len(await claim_all(store, handlers=["other"])) == 1

    async def listed(**params: Any) -> set[str]:
        response = await client.get("/executions", params=params)
        assert response.status_code == 200, response.text
        return {item["id"] for item in response.json()["data"]}

    def shown(execution_id: Any) -> str:
        from timeball.domain.values.ids import format_execution_id

        return format_execution_id(execution_id)

    assert await listed(status="completed") == {shown(succeeded)}
    assert await listed(status="pending") == {shown(scheduled)}
    assert await listed(status="picked") == {shown(queued)}
    assert await listed(status="running") == {shown(running)}
    assert await listed(status="failed") == set()
    assert await listed(status="retrying,skipped,cancelled") == set()
    assert await listed(handler="other") == {shown(running)}
    assert len(await listed()) == 4
    assert (await client.get("/executions", params={"status": "done"})).status_code == 422
    page = (await client.get("/executions", params={"limit": 3, "include": "total"})).json()
    rest = (await client.get("/executions", params={"limit": 3, "cursor": page["next_cursor"]})).json()
    assert (page["total"], len(rest["data"]), rest["has_more"]) == (4, 1, False)


async def test_logs_are_read_by_cursor(client: httpx.AsyncClient, store: Store, clock: VirtualClock) -> None:
    from timeball.store.types import LogRecord

    execution_id = await enqueue(store)
    lines = [LogRecord(execution_id, 1, number, clock.now(), "info", f"line {number}") for number in range(1, 6)]
    await store.history.write_log(lines)
    url = f"/executions/{execution_id}/logs"

    first = (await client.get(url, params={"limit": 3})).json()
    rest = (await client.get(url, params={"cursor": first["next_cursor"]})).json()

    assert [line["message"] for line in first["data"] + rest["data"]] == [f"line {n}" for n in range(1, 6)]
    assert (first["has_more"], rest["has_more"]) == (True, False)


async def test_many_executions_are_cancelled_and_retried(client: httpx.AsyncClient, store: Store) -> None:
    ids = [str(await enqueue(store)) for _ in range(3)]
    choice = {"action": "cancel", "filter": {"status": ["queued"]}}

    dry = (await client.post("/executions/bulk", json=choice | {"dry_run": True})).json()
    refused = await client.post("/executions/bulk", json=choice | {"expected_count": 2})
    done = (await client.post("/executions/bulk", json=choice | {"expected_count": 3})).json()
    retried = (await client.post("/executions/bulk", json={"action": "retry", "ids": ids[:2]})).json()

    assert [item["status"] for item in dry["results"]] == ["would_be_done"] * 3
    assert refused.status_code == 409
    assert (done["done"], done["failed"]) == (3, 0)
    assert (retried["done"], len({item["execution_id"] for item in retried["results"]})) == (2, 2)


async def test_jobs_are_cancelled_and_retried_in_bulk(client: httpx.AsyncClient) -> None:
    await created(client, name="a")
    await client.post("/jobs/a/trigger", json={})

    cancelled = (await client.post("/jobs/bulk/cancel", json={"ids": ["a", "nobody"]})).json()
    retried = (await client.post("/jobs/bulk/retry", json={"ids": ["a"]})).json()

    assert [item["status"] for item in cancelled["results"]] == ["done", "failed"]
    assert retried["done"] == 1


# dead letters


async def test_dead_letters_are_grouped_retried_and_discarded(client: httpx.AsyncClient, store: Store) -> None:
    for _ in range(3):
        await enqueue(store, max_retries=0)
    await record(store, [found(claimed, Failed(FAILURE)) for claimed in await claim_all(store)])

    listed = (await client.get("/dead-letter")).json()["data"]
    (group,) = (await client.get("/dead-letter/groups")).json()["data"]
    retried = (await client.post("/dead-letter/retry", json={"ids": [listed[0]["id"]]})).json()
    discarded = (await client.post("/dead-letter/discard", json={"ids": [listed[1]["id"]]})).json()
    left = (await client.get("/dead-letter", params={"fingerprint": "abc"})).json()["data"]

    assert (group["fingerprint"], group["executions"], group["error_type"]) == ("abc", 3, "ValueError")
    assert (retried["done"], discarded["done"]) == (1, 1)
    assert [item["id"] for item in left] == [listed[2]["id"]]
    assert (await client.post("/dead-letter/retry", json={"fingerprint": "abc"})).json()["done"] == 1
    assert (await client.post("/dead-letter/discard", json={"all": True})).json()["done"] == 0
    assert (await client.get("/dead-letter")).json()["data"] == []
    assert (await client.get(f"/executions/{listed[1]['id']}")).json()["state"] == "dead"


# bulk


async def test_ten_thousand_jobs_are_created_in_one_request(client: httpx.AsyncClient, store: Store) -> None:
    jobs = [{"handler": "h", "payload": {"n": number}} for number in range(10_000)]

    response = await client.post("/jobs/bulk", json={"jobs": jobs})

    assert response.status_code == 201
    assert (response.json()["created"], response.json()["failed"]) == (10_000, 0)
    assert len(await table(store, "ready")) == 10_000
    last = response.json()["results"][-1]["job_id"]
    assert (await client.get(f"/jobs/{last}")).json()["payload"] == {"n": 9_999}


async def test_a_bulk_is_all_or_nothing_by_default(client: httpx.AsyncClient, store: Store) -> None:
    jobs = [{"handler": "h", "name": "a"}, {"handler": "h", "name": "b", "schedule": "0 25 * * *"}]

    refused = await client.post("/jobs/bulk", json={"jobs": jobs})
    nothing = await table(store, "job")
    partly = await client.post("/jobs/bulk", json={"jobs": jobs, "mode": "per_item"})

    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/jobs/1/schedule")
    assert nothing == []
    assert [item["status"] for item in partly.json()["results"]] == ["created", "failed"]
    assert [row["name"] for row in await table(store, "job")] == ["a"]


async def test_a_bulk_of_which_one_is_refused_for_its_key_writes_nothing(
    client: httpx.AsyncClient, store: Store
) -> None:
    changes = {"unique_key": "k", "if_exists": "replace"}
    await client.post("/jobs", json={"handler": HANDLER} | changes)
    await claim_all(store)
    await client.post("/jobs", json={"handler": HANDLER} | changes)
    before = {name: await table(store, name) for name in ("job", "live_key", "audit", "execution")}
    jobs = [{"handler": HANDLER}, {"handler": HANDLER, "unique_key": "free"}, {"handler": "other"} | changes]

    refused = await client.post("/jobs/bulk", json={"jobs": jobs})
    after = {name: await table(store, name) for name in before}
    partly = await client.post("/jobs/bulk", json={"jobs": jobs, "mode": "per_item"})

    assert (refused.status_code, refused.json()["code"]) == (409, "conflict")
    assert after == before
    assert [item["status"] for item in partly.json()["results"]] == ["created", "created", "failed"]


async def test_different_jobs_are_created_in_one_request(client: httpx.AsyncClient) -> None:
    jobs = [{"handler": "h", "name": "a", "schedule": "0 6 * * *"}, {"handler": "h"}, {"handler": "g", "priority": 3}]

    response = await client.post("/jobs/bulk", json={"jobs": jobs})

    assert response.json()["created"] == 3
    assert (await client.get("/jobs", params={"include": "total"})).json()["total"] == 3


# machinery


async def test_queues_show_depth_and_oldest_wait(client: httpx.AsyncClient, store: Store, clock: VirtualClock) -> None:
    await enqueue(store, queue="mail")
    await enqueue(store, queue="mail", priority=10)
    clock.advance(seconds(5))

    limited = (await client.patch("/queues/mail", json={"max_running": 2})).json()
    paused = (await client.post("/queues/mail/pause", json={"reason": "full"})).json()
    (listed,) = (await client.get("/queues")).json()["data"]
    resumed = (await client.post("/queues/mail/resume", json={})).json()

    assert (limited["max_running"], limited["depth"], limited["oldest_wait_seconds"]) == (2, 2, 5.0)
    assert (paused["is_paused"], paused["pause_reason"]) == (True, "full")
    assert (listed["name"], listed["is_paused"]) == ("mail", True)
    assert (resumed["is_paused"], resumed["max_running"]) == (False, 2)
    assert (await client.get("/queues/nobody")).json()["depth"] == 0


@pytest.mark.parametrize("name", ["mail", "mail/eu", "two words", "夜/間"])
async def test_a_queue_is_found_by_any_valid_name(client: httpx.AsyncClient, name: str) -> None:
    path = f"/queues/{quote(name, safe='')}"

    paused = await client.post(f"{path}/pause", json={})
    found = await client.get(path)

    assert (paused.status_code, found.status_code) == (200, 200), found.text
    assert (found.json()["name"], found.json()["is_paused"]) == (name, True)


async def test_workers_and_schedulers_are_listed_and_drained(client: httpx.AsyncClient, store: Store) -> None:
    from tests.support.factories import make_node

    await make_node(store, slots=7, handlers=("h",))
    await make_owner(store)

    (worker,) = (await client.get("/workers")).json()["data"]
    (scheduler,) = (await client.get("/schedulers")).json()["data"]
    drained = await client.post(f"/workers/{worker['id']}/drain", json={})

    assert (worker["slots"], worker["handlers"], worker["draining"]) == (7, ["h"], False)
    assert len(scheduler["shards"]) == store.shards
    assert (drained.status_code, drained.json()["draining"]) == (202, True)
    assert (await client.get(f"/workers/{worker['id']}")).json()["draining"] is True
    assert (await client.get(f"/workers/{scheduler['id']}")).json()["kind"] == "scheduler"
    assert (await client.get("/workers/wrk_x")).status_code == 404


async def test_health_looks_at_the_database(client: httpx.AsyncClient, store: Store) -> None:
    warned = await client.get("/health")
    ready = await client.get("/health/ready")
    await make_owner(store)
    await store.database.close()
    broken = await client.get("/health/ready")
    live = await client.get("/health/live")

    assert (warned.status_code, warned.json()["status"]) == (200, "warn")
    assert {check["name"] for check in warned.json()["checks"]} >= {"database", "schema", "workers", "shards"}
    assert (ready.status_code, ready.json()["status"]) == (200, "ok")
    assert (broken.status_code, broken.json()["status"]) == (503, "fail")
    for told in (ready.json(), broken.json()):
        assert told.keys() == {"status", "checks"}
        assert all(check.keys() == {"name", "status"} for check in told["checks"])
    assert warned.json()["version"]
    assert warned.json()["checks"][0]["detail"]
    assert live.status_code == 200
    assert (await client.get("/jobs")).json()["code"] == "store_unavailable"


async def test_the_audit_names_who_did_what(client: httpx.AsyncClient, clock: VirtualClock) -> None:
    await created(client, name="a", payload={"password": "canary"})
    clock.advance(seconds(1))
    await client.patch("/jobs/a", json={"payload": {"password": "canary-2"}})
    clock.advance(seconds(1))
    await client.post("/jobs/a/pause", json={"reason": "lunch"})

    response = await client.get("/audit")

    actions = [(entry["action"], entry["actor"], entry["reason"]) for entry in response.json()["data"]]
    assert actions == [
        ("job.pause", "local", "lunch"),
        ("job.update", "local", None),
        ("job.create", "local", None),
    ]
    assert "canary" not in response.text
    assert len((await client.get("/audit", params={"actor": "nobody"})).json()["data"]) == 0


def test_no_route_can_hide_a_job(parts: ServerRuntime) -> None:
    paths = make_api(parts).openapi()["paths"]
    behind_jobs = {path.split("/")[4] for path in paths if path.startswith("/api/v1/jobs/")}

    assert behind_jobs - {"{job}"} == RESERVED_NAMES


@pytest.mark.parametrize("name", sorted(RESERVED_NAMES))
async def test_a_name_that_is_a_route_is_refused(client: httpx.AsyncClient, name: str) -> None:
    refused = await client.post("/jobs", json={"name": name, "handler": "test.echo"})
    made = await client.post("/jobs", json={"name": f"{name}-job", "handler": "test.echo"})
    renamed = await client.patch(f"/jobs/{name}-job", json={"name": name})

    assert (refused.status_code, made.status_code, renamed.status_code) == (422, 201, 422)
    assert f'name is "{name}"' in refused.json()["detail"]
    assert refused.json()["hint"] == f"choose another name, such as {name}-job"


async def test_a_key_that_is_taken_is_met_as_the_request_says(client: httpx.AsyncClient) -> None:
    body = {"handler": "test.echo", "unique_key": "k", "scheduled_at": "2098-01-01T00:00:00Z"}
    first = await client.post("/jobs", json=body | {"payload": {"n": 1}, "unique_for_seconds": 60})

    extended = await client.post(
        "/jobs", json=body | {"payload": {"n": 2}, "if_exists": "extend", "scheduled_at": "2098-02-01T00:00:00Z"}
    )

    assert (first.status_code, extended.status_code) == (201, 200)
    assert extended.json()["id"] == first.json()["id"]
    told = (await client.get(f"/jobs/{first.json()['id']}")).json()
    assert (told["payload"], told["scheduled_at"], told["unique_for_seconds"]) == ({"n": 2}, "2098-02-01T00:00:00Z", 60)
    execution = (await client.get(f"/executions/{first.json()['execution_id']}")).json()
    assert execution["run_at"] == "2098-02-01T00:00:00Z"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"if_exists": "extend"}, "if_exists"),
        ({"unique_for_seconds": 60}, "unique_for_seconds"),
        ({"unique_key": "k", "if_exists": "perhaps"}, "if_exists"),
        ({"unique_key": "k", "if_exists": "replace", "schedule": "@daily", "name": "a"}, "if_exists"),
    ],
)
async def test_what_is_said_of_a_key_is_checked(client: httpx.AsyncClient, fields: dict[str, Any], field: str) -> None:
    refused = await client.post("/jobs", json={"handler": "test.echo"} | fields)

    assert refused.status_code == 422
    assert field in refused.text
