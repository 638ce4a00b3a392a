"""Where the days of a calendar come from: a list, an iCalendar file, a country."""

from __future__ import annotations

import sys
from datetime import date

import pytest

from timeball.domain.calendar import country_days, ics_days, listed_days
from timeball.errors import InvalidInput


def ics(*events: str) -> str:
    bodies = "".join(
        f"BEGIN:VEVENT\r\nUID:{number}\r\n{event}\r\nEND:VEVENT\r\n" for number, event in enumerate(events)
    )
    return f"BEGIN:VCALENDAR\r\nVERSION:2.0\r\nPRODID:-//test//EN\r\n{bodies}END:VCALENDAR\r\n"


def event(start: str, *lines: str, summary: str = "closed") -> str:
    return "\r\n".join([f"SUMMARY:{summary}", f"DTSTART;VALUE=DATE:{start}", *lines])


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        (event("20261225"), ["2026-12-25"]),
        (event("20261224", "DTEND;VALUE=DATE:20261227"), ["2026-12-24", "2026-12-25", "2026-12-26"]),
        (event("20261224", "DURATION:P2D"), ["2026-12-24", "2026-12-25"]),
        (event("20201225", "RRULE:FREQ=YEARLY"), ["12-25"]),
        (event("20201225", "RRULE:FREQ=YEARLY;BYMONTH=12;BYMONTHDAY=25;INTERVAL=1"), ["12-25"]),
        (event("20201225", "DTEND;VALUE=DATE:20201227", "RRULE:FREQ=YEARLY"), ["12-25", "12-26"]),
        (event("20240103", "RRULE:FREQ=WEEKLY"), ["wed"]),
        (event("20240103", "RRULE:FREQ=WEEKLY;BYDAY=SA,SU"), ["sat", "sun"]),
        # What is not plain is spelt out.
        (event("20241225", "RRULE:FREQ=YEARLY;COUNT=3"), ["2024-12-25", "2025-12-25", "2026-12-25"]),
        (event("20241225", "RRULE:FREQ=YEARLY;UNTIL=20251225"), ["2024-12-25", "2025-12-25"]),
        (event("20241225", "RRULE:FREQ=YEARLY;UNTIL=20251225T100000Z"), ["2024-12-25", "2025-12-25"]),
        (event("20241225", "RRULE:FREQ=YEARLY;INTERVAL=2;COUNT=2"), ["2024-12-25", "2026-12-25"]),
        (
            event("20241225", "RRULE:FREQ=YEARLY;COUNT=3", "EXDATE;VALUE=DATE:20251225", "RDATE;VALUE=DATE:20241231"),
            ["2024-12-25", "2024-12-31", "2026-12-25"],
        ),
        (event("20260105", "RRULE:FREQ=MONTHLY;BYDAY=1MO;COUNT=3"), ["2026-01-05", "2026-02-02", "2026-03-02"]),
        (event("20261225", "RDATE;VALUE=DATE:20261226,20261228"), ["2026-12-25", "2026-12-26", "2026-12-28"]),
    ],
)
def test_all_day_events_become_days(text: str, entries: list[str]):
    found = ics_days(ics(text))

    assert found.days.entries == entries
    assert (found.source, found.warnings) == ({"kind": "ics"}, [])


def test_an_event_that_is_no_day_is_named_and_left_out():
    meeting = "SUMMARY:meeting\r\nDTSTART:20261225T100000Z"
    hourly = event("20261225", "RRULE:FREQ=HOURLY", summary="hourly")

    found = ics_days(ics(event("20261226"), meeting, hourly))

    assert found.days.entries == ["2026-12-26"]
    assert found.warnings == [
        'the event "meeting" is left out: it is not an all-day event',
        'the event "hourly" is left out: it repeats by FREQ=HOURLY, expected YEARLY, MONTHLY, WEEKLY, DAILY',
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hello", "ics is not an iCalendar file"),
        ("", "ics has no all-day events"),
        (ics(), "ics has no all-day events; it has no events"),
        (ics("SUMMARY:m\r\nDTSTART:20261225T100000Z"), "it is not an all-day event"),
        (ics(event("19700101", "RRULE:FREQ=DAILY;INTERVAL=1;COUNT=20000")), "more than 10,000 days"),
        (ics(event("20260101", "DTEND;VALUE=DATE:20300101")), "it is longer than a year"),
        ("x" * 1_000_001, "ics has 1,000,001 characters"),
    ],
)
def test_a_file_without_days_is_refused(text: str, words: str):
    with pytest.raises(InvalidInput) as error:
        ics_days(text)

    assert words in str(error.value)
    assert error.value.field == "ics"


def test_a_country_has_its_public_holidays():
    germany, bavaria = country_days("de", None), country_days("DE", "by")

    assert date(2026, 12, 25) in germany.days
    assert date(2026, 1, 6) in bavaria.days
    assert date(2026, 1, 6) not in germany.days
    assert bavaria.source["country"] == "DE"
    assert bavaria.source["subdivision"] == "BY"
    assert {day.year for day in germany.days.days} == set(range(2000, 2101))


@pytest.mark.parametrize(
    ("country", "subdivision", "words"),
    [
        ("XX", None, 'country is "XX", expected the code of a country'),
        ("DE", "XX", 'subdivision is "XX", expected one of DE: BB, BE'),
        ("", None, 'country is ""'),
    ],
)
def test_an_unknown_country_is_refused(country: str, subdivision: str | None, words: str):
    with pytest.raises(InvalidInput) as error:
        country_days(country, subdivision)

    assert words in str(error.value)


@pytest.mark.parametrize(
    ("package", "extra", "read"),
    [
        ("holidays", "timeball[holidays]", lambda: country_days("DE", None)),
        ("icalendar", "timeball[ics]", lambda: ics_days(ics(event("20261225")))),
    ],
)
def test_a_missing_package_names_its_extra(monkeypatch: pytest.MonkeyPatch, package: str, extra: str, read):
    monkeypatch.setitem(sys.modules, package, None)

    with pytest.raises(InvalidInput) as error:
        read()

    assert extra in error.value.hint


def test_a_list_says_where_it_came_from():
    found = listed_days(["sat", "2026-12-25"])

    assert (found.days.entries, found.source) == (["sat", "2026-12-25"], {"kind": "list"})
