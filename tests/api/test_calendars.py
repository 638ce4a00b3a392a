"""Calendars over HTTP: versions, the jobs that use them, and previews."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

ICS = (
    "BEGIN:VCALENDAR\r\nVERSION:2.0\r\nPRODID:-//t//EN\r\nBEGIN:VEVENT\r\nUID:1\r\nSUMMARY:closed\r\n"
    "DTSTART;VALUE=DATE:20260304\r\nEND:VEVENT\r\nBEGIN:VEVENT\r\nUID:2\r\nSUMMARY:meeting\r\n"
    "DTSTART:20260305T100000Z\r\nEND:VEVENT\r\nEND:VCALENDAR\r\n"
)


async def make(client: httpx.AsyncClient, name: str = "closed", **fields: Any) -> dict[str, Any]:
    answer = await client.post("/calendars", json={"name": name} | (fields or {"days": ["sat", "sun"]}))
    assert answer.status_code == 201, answer.text
    return answer.json()


async def make_job(client: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    answer = await client.post(
        "/jobs", json={"name": "daily", "handler": "test.echo", "schedule": "0 9 * * *"} | fields
    )
    assert answer.status_code == 201, answer.text
    return answer.json()


async def test_a_calendar_is_created_read_changed_and_deleted(client: httpx.AsyncClient) -> None:
    made = await make(client, days=["sun", "2026-03-06..2026-03-07", "12-25"], description="no one is there")
    read = await client.get("/calendars/closed")
    listed = (await client.get("/calendars")).json()["data"]
    changed = await client.patch(
        "/calendars/closed", json={"days": ["mon"]}, headers={"If-Match": read.headers["ETag"]}
    )
    stale = await client.patch("/calendars/closed", json={"days": ["tue"]}, headers={"If-Match": read.headers["ETag"]})
    described = await client.put("/calendars/closed", json={"description": None})
    gone = await client.delete("/calendars/closed")

    # The clock of these tests begins on Monday the 2nd of March 2026.
    assert made["days"] == ["sun", "12-25", "2026-03-06", "2026-03-07"]
    assert made["next_days"][:4] == ["2026-03-06", "2026-03-07", "2026-03-08", "2026-03-15"]
    assert (made["source"], made["version"], made["jobs"], made["warnings"]) == ({"kind": "list"}, 1, 0, [])
    assert made == read.json() | {"followed": True, "warnings": []}
    assert listed == [read.json()]
    assert (changed.status_code, changed.json()["version"], changed.headers["ETag"]) == (200, 2, '"2"')
    assert (stale.status_code, stale.headers["ETag"]) == (412, '"2"')
    assert (described.json()["description"], described.json()["days"], described.json()["version"]) == (
        None,
        ["mon"],
        3,
    )
    assert (gone.status_code, (await client.get("/calendars/closed")).status_code) == (204, 404)


async def test_an_earlier_version_can_be_read(client: httpx.AsyncClient) -> None:
    await make(client)
    await client.patch("/calendars/closed", json={"days": ["mon"]})

    first, second, third = [await client.get("/calendars/closed", params={"version": number}) for number in (1, 2, 3)]

    assert (first.json()["days"], second.json()["days"]) == (["sat", "sun"], ["mon"])
    assert third.status_code == 404


async def test_a_job_cites_the_version_of_each_calendar_and_follows_it(client: httpx.AsyncClient) -> None:
    await make(client)
    job = await make_job(client, skip_on=["closed"])

    changed = (await client.patch("/calendars/closed", json={"days": ["2026-03-03"]})).json()

    assert (job["skip_on"], job["only_on"], job["shift"], job["calendars"]) == (["closed"], [], "none", {"closed": 1})
    assert (changed["jobs"], changed["job_names"], changed["followed"]) == (1, ["daily"], True)
    now = (await client.get("/jobs/daily")).json()
    assert (now["version"], now["calendars"], now["next_run_at"]) == (2, {"closed": 2}, "2026-03-04T09:00:00Z")
    revision = (await client.get("/jobs/daily/revisions")).json()["data"][0]
    assert (revision["action"], revision["reason"]) == ("job.calendar", "calendar closed has version 2")


async def test_a_calendar_in_use_is_not_deleted(client: httpx.AsyncClient) -> None:
    await make(client)
    await make_job(client, skip_on=["closed"])

    refused = await client.delete("/calendars/closed")
    freed = await client.patch("/jobs/daily", json={"skip_on": []})

    assert refused.status_code == 409
    assert refused.json()["detail"] == "the calendar 'closed' is used by daily"
    assert freed.json()["calendars"] == {}
    assert (await client.delete("/calendars/closed")).status_code == 204


@pytest.mark.parametrize(
    ("fields", "pointer", "words"),
    [
        ({"skip_on": ["nowhere"]}, "/skip_on", 'skip_on names the calendar "nowhere", which does not exist'),
        ({"only_on": ["past"]}, "/only_on", "its calendars leave no day of it"),
        ({"shift": "next"}, "/shift", "skip_on names no calendar whose days could move"),
        ({"skip_on": ["closed"], "shift": "after"}, "/shift", "none"),
        ({"schedule": None, "interval_seconds": 60, "skip_on": ["closed"], "shift": "next"}, "/shift", "expected none"),
        ({"schedule": None, "scheduled_at": "2030-01-01T00:00Z", "skip_on": ["closed"]}, "/skip_on", "does not recur"),
    ],
)
async def test_a_job_with_calendars_that_cannot_be_is_refused(
    client: httpx.AsyncClient, fields: dict[str, Any], pointer: str, words: str
) -> None:
    await make(client)
    await make(client, "past", days=["2020-01-01"])
    body = {"name": "daily", "handler": "test.echo", "schedule": "0 9 * * *"} | fields

    refused = await client.post("/jobs", json=body)

    assert refused.status_code == 422
    assert words in refused.json()["errors"][0]["detail"]
    assert refused.json()["errors"][0]["pointer"] == pointer


async def test_a_preview_tells_what_calendars_leave_out_and_move(client: httpx.AsyncClient) -> None:
    await make(client, days=["sat", "sun"])
    body = {"schedule": "0 9 7 * *", "skip_on": ["closed"], "shift": "next", "count": 2}

    preview = (await client.post("/schedules/preview", json=body)).json()
    await make_job(client, schedule="0 9 7 * *", skip_on=["closed"], shift="next")
    upcoming = (await client.get("/jobs/daily/next", params={"count": 2})).json()

    assert preview["description"].endswith(", not on closed (moved to the next day that is allowed)")
    assert [(one["at"][:10], one["is_due"], one["note"]) for one in preview["next"]] == [
        ("2026-03-07", False, "left_out_by_calendar"),
        ("2026-03-09", True, "moved_by_calendar"),
        ("2026-04-07", True, None),
    ]
    assert (preview["next"][0]["count"], preview["next"][0]["calendars"]) == (1, ["closed"])
    assert upcoming["next"] == preview["next"]


async def test_forecast_timeline_and_feed_use_the_days_of_the_job(client: httpx.AsyncClient) -> None:
    await make(client, days=["2026-03-04"])
    await make_job(client, skip_on=["closed"])

    feed = (await client.get("/jobs/daily/calendar.ics", params={"days": 4})).text
    timeline = (await client.get("/timeline", params={"from": "2026-03-02T12:00Z", "until": "2026-03-06T12:00Z"})).text

    assert "DTSTART:20260303T090000Z" in feed
    assert "DTSTART:20260304T090000Z" not in feed
    assert "2026-03-04T09:00:00Z" not in timeline


async def test_a_backfill_leaves_the_same_days_out(client: httpx.AsyncClient) -> None:
    await make(client, days=["2026-02-27"])
    await make_job(client, skip_on=["closed"])
    span = {"from": "2026-02-25T12:00Z", "until": "2026-03-01T12:00Z", "by": "present", "only": "all", "dry_run": True}

    answer = await client.post("/jobs/daily/backfill", json=span)

    assert [line["would_run"] for line in answer.json()["counts"]] == [3]


async def test_a_sync_names_calendars_and_not_their_versions(client: httpx.AsyncClient) -> None:
    await make(client)
    job = {"name": "daily", "handler": "test.echo", "schedule": "0 9 * * *", "skip_on": ["closed"]}
    body = {"jobs": [job], "declared_by": "file"}
    first = (await client.post("/jobs/sync", json=body)).json()
    await client.patch("/calendars/closed", json={"days": ["mon"]})

    second = (await client.post("/jobs/sync", json=body)).json()

    assert (first["created"], second["left"]) == (1, 1)


async def test_a_file_and_a_country_become_days(client: httpx.AsyncClient) -> None:
    from_file = await make(client, "file", ics=ICS)
    from_country = await make(client, "bavaria", country="DE", subdivision="BY")

    assert (from_file["days"], from_file["source"]) == (["2026-03-04"], {"kind": "ics"})
    assert from_file["warnings"] == ['the event "meeting" is left out: it is not an all-day event']
    assert "2027-01-06" in from_country["days"]
    assert (from_country["source"]["country"], from_country["source"]["subdivision"]) == ("DE", "BY")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "none of them is given, expected one of days, ics and country"),
        ({"days": ["sat"], "country": "DE"}, "days and country are given"),
        ({"days": ["sat"], "subdivision": "BY"}, "subdivision is given without a country"),
        ({"days": ["someday"]}, "someday"),
        ({"country": "XX"}, "country is"),
        ({"ics": "no"}, "ics"),
    ],
)
async def test_days_that_cannot_be_read_are_refused(
    client: httpx.AsyncClient, body: dict[str, Any], words: str
) -> None:
    refused = await client.post("/calendars", json={"name": "closed"} | body)

    assert refused.status_code == 422
    assert words in refused.text
