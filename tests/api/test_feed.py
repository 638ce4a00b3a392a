"""Calendars over HTTP, parsed as RFC 5545 requires."""

from __future__ import annotations

import re
from datetime import timedelta

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.api.test_conventions import check_problem
from tests.application.queries.support import ran
from tests.support.factories import enqueue, make_job, make_recurring
from timeball.api.resources.feed import escaped, folded
from timeball.application.queries import feed
from timeball.domain.values.ids import format_execution_id, format_job_id
from timeball.store.store import Store
from timeball.testing import VirtualClock

Event = dict[str, str]
HOSTILE = 'a;b,c\\d END:VEVENT BEGIN:VALARM "ü👩‍👩‍👧‍👦" ' + "x" * 90


def lines_of(body: bytes) -> list[str]:
    """The unfolded lines of a calendar; checks the length and the end of each line."""
    assert body.endswith(b"\r\n")
    raw = body[:-2].split(b"\r\n")
    assert all(len(line) <= 75 for line in raw)
    assert all(b"\n" not in line and b"\r" not in line for line in raw)
    # Each line is valid UTF-8: no character is split.
    return "\n".join(line.decode() for line in raw).replace("\n ", "").split("\n")


def events_of(body: bytes) -> list[Event]:
    """The properties of each event, with unescaped texts."""
    inside = "\n".join(lines_of(body)).split("BEGIN:VEVENT\n")[1:]
    return [_properties(one.split("\nEND:VEVENT")[0]) for one in inside]


def _properties(event: str) -> Event:
    parted = (line.partition(":") for line in event.split("\n"))
    return {name: meant(value) for name, _, value in parted}


def meant(text: str) -> str:
    return re.sub(r"\\(.)", lambda found: "\n" if found[1] in "nN" else found[1], text)


@example("x" * 74 + "ü" * 100)
@example("👩" * 60)
@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=400))
def test_folding_a_line_splits_no_character_and_can_be_undone(text: str) -> None:
    assert lines_of(folded(text)) == [text]


@pytest.mark.parametrize(("length", "lines"), [(0, 1), (75, 1), (76, 2), (75 + 74, 2), (75 + 74 + 1, 3)])
def test_a_line_is_folded_at_75_octets(length: int, lines: int) -> None:
    assert folded("x" * length).count(b"\r\n") == lines


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=100))
def test_a_text_is_escaped_so_that_it_stays_one_value(text: str) -> None:
    value = escaped(text)

    assert not re.search(r"(?<!\\)(\\\\)*[;,]", value)
    assert not re.search(r"[\x00-\x08\x0a-\x1f\x7f]", value)
    plain = re.sub(r"[\x00-\x08\x0b-\x1f\x7f]", "", re.sub(r"\r\n?", "\n", text))
    assert meant(value) == plain


async def test_a_calendar_is_valid_icalendar(client: httpx.AsyncClient, store: Store, clock: VirtualClock) -> None:
    job = await make_job(store, name="nightly", schedule="0 3 * * *", timezone="Europe/Berlin", queue="batch")
    await ran(store, clock.now() - timedelta(days=2), 89.5, job.id)

    answer = await client.get("/calendar.ics", params={"days": "2", "timezone": "Europe/Berlin"})

    assert answer.headers["content-type"] == "text/calendar; charset=utf-8"
    assert answer.headers["content-disposition"] == 'attachment; filename="timeball.ics"'
    assert answer.headers["cache-control"] == "no-store"
    lines = lines_of(answer.content)
    assert (lines[0], lines[1], lines[-1]) == ("BEGIN:VCALENDAR", "VERSION:2.0", "END:VCALENDAR")
    assert {"X-WR-CALNAME:Timeball", "REFRESH-INTERVAL;VALUE=DURATION:PT1H", "METHOD:PUBLISH"} <= set(lines)
    assert sum(line.startswith("PRODID:") for line in lines) == 1
    pending = (await client.get("/jobs/nightly/explain")).json()["execution_id"]
    assert events_of(answer.content) == [
        {
            "UID": f"{pending}@timeball",
            "DTSTAMP": "20260302T120000Z",
            "DTSTART": "20260303T020000Z",
            "DURATION": "PT90S",
            "SUMMARY": "nightly",
            "DESCRIPTION": f"{job.rule.describe()}\nhandler {job.handler}\nqueue batch\nusually takes 1 min 30 s",
            "URL": f"http://localhost:8080/jobs/{format_job_id(job.id)}",
            "CATEGORIES": "batch",
            "TRANSP": "TRANSPARENT",
        }
    ]


async def test_a_frequent_job_has_one_entry_a_day_with_its_count(client: httpx.AsyncClient, store: Store) -> None:
    job = await make_recurring(store, every=30, name="ping-partners")

    events = events_of((await client.get("/calendar.ics?days=2")).content)

    assert [(one["DTSTART;VALUE=DATE"], one["SUMMARY"]) for one in events] == [
        ("20260302", "ping-partners, 1,439 times"),
        ("20260303", "ping-partners, 2,880 times"),
    ]
    assert [one["UID"] for one in events] == [f"{format_job_id(job.id)}/2026-03-0{day}@timeball" for day in (2, 3)]
    assert all("DURATION" not in one for one in events)


async def test_names_cannot_break_out_of_their_property(client: httpx.AsyncClient, store: Store) -> None:
    await make_job(store, name=HOSTILE, schedule="0 3 * * *", queue=HOSTILE)

    answer = await client.get("/calendar.ics", params={"days": "2", "queue": HOSTILE})

    (event,) = events_of(answer.content)
    assert (event["SUMMARY"], event["CATEGORIES"]) == (HOSTILE, HOSTILE)
    assert lines_of(answer.content).count("END:VEVENT") == 1


async def test_a_calendar_of_one_queue_links_one_offs_to_their_execution(
    client: httpx.AsyncClient, store: Store
) -> None:
    run = await enqueue(store, after=3600, queue="mail")
    await make_job(store, name="elsewhere", schedule="0 3 * * *")

    answer = await client.get("/calendar.ics", params={"queue": "mail"})

    (event,) = events_of(answer.content)
    assert event["UID"] == f"{format_execution_id(run)}@timeball"
    assert event["URL"].endswith(f"/executions/{format_execution_id(run)}")
    assert "X-WR-CALNAME:Timeball: mail" in lines_of(answer.content)
    assert "has not run yet" in event["DESCRIPTION"]


async def test_the_calendar_of_a_job(client: httpx.AsyncClient, store: Store) -> None:
    job = await make_job(store, name="nightly", schedule="0 3 * * *")
    await make_job(store, name="other", schedule="0 4 * * *")

    answer = await client.get("/jobs/nightly/calendar.ics?days=31")

    march = [f"202603{day:02}T030000Z" for day in range(3, 32)]
    assert [one["DTSTART"] for one in events_of(answer.content)] == [*march, "20260401T030000Z"]
    assert "X-WR-CALNAME:Timeball: nightly" in lines_of(answer.content)
    assert answer.headers["content-disposition"] == f'attachment; filename="{format_job_id(job.id)}.ics"'
    check_problem(await client.get("/jobs/nobody/calendar.ics"), 404, "not_found")


async def test_a_calendar_without_entries_is_valid(client: httpx.AsyncClient, store: Store) -> None:
    await make_job(store, name="manual")

    for path in ("/calendar.ics", "/jobs/manual/calendar.ics"):
        lines = lines_of((await client.get(path)).content)

        parts = [line for line in lines if line.startswith(("BEGIN:", "END:"))]
        assert parts[1] == "BEGIN:VTIMEZONE", "a calendar must have a component"
        assert len(parts) == len(set(parts)) == 6


async def test_a_calendar_describes_what_it_leaves_out(
    client: httpx.AsyncClient, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "MOST_ENTRIES", 1)
    await make_job(store, name="nightly", schedule="0 3 * * *")

    lines = lines_of((await client.get("/calendar.ics")).content)

    assert "X-WR-CALDESC:There is more after 2026-03-03 03:00 UTC." in lines
    assert lines.count("BEGIN:VEVENT") == 1


@pytest.mark.parametrize("query", ["days=0", "days=32", "timezone=Mars", "queue=%00", "tags=x"])
async def test_a_calendar_with_invalid_parameters_is_refused(client: httpx.AsyncClient, query: str) -> None:
    answer = await client.get(f"/calendar.ics?{query}")

    assert answer.status_code == 422, answer.text
    assert answer.json()["detail"]
