"""The wall clock: every change of every zone, and the rules for single readings."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import islice, pairwise

import pytest
import tzdata

from tests.domain.scheduling import oracle
from tests.domain.scheduling.oracle import utc, wall
from timeball.domain.scheduling import civil_time
from timeball.domain.scheduling.civil_time import (
    WallTimeRepeat,
    changes_between,
    first_instant,
    load_zone,
    offset_at,
    offset_periods_back_from,
    offset_periods_from,
    offset_periods_of_year,
    parse_instant,
    tzdata_version,
    zone_names,
)
from timeball.errors import ScheduleError, UnknownTimezone

HOUR = timedelta(hours=1)


def test_every_change_of_every_zone_is_found():
    for name in oracle.distinct_zones():
        found = changes_between(load_zone(name), utc(1970, 1, 1), utc(2038, 1, 1))

        assert [oracle.Change(c.at, c.before, c.after) for c in found] == oracle.changes(name), name


@pytest.mark.parametrize("year", [2012, 2025, 2037, 2199])
def test_periods_have_the_right_offset_in_every_zone(year: int):
    for name in oracle.distinct_zones():
        zone, stretches = oracle.zone(name), list(offset_periods_of_year(name, year))
        here = utc(year, 1, 1)
        while here.year == year:
            while here >= stretches[0].end:
                stretches.pop(0)
            assert here.astimezone(zone).utcoffset() == stretches[0].offset, (name, here)
            here += timedelta(hours=31)


def test_periods_of_a_year_leave_no_hole_and_do_not_overlap():
    for name in oracle.distinct_zones():
        stretches = [s for year in range(1994, 1998) for s in offset_periods_of_year(name, year)]

        assert stretches[0].start == utc(1994, 1, 1)
        assert stretches[-1].end == utc(1998, 1, 1)
        assert all(here.end == there.start and here.start < here.end for here, there in pairwise(stretches)), name


def test_a_repeat_is_cut_into_first_and_second():
    stretches = [s for s in offset_periods_of_year("Europe/Berlin", 2024) if s.reading is not WallTimeRepeat.ONCE]

    first, second = stretches
    assert (first.reading, second.reading) == (WallTimeRepeat.FIRST, WallTimeRepeat.SECOND)
    assert (first.start, first.end, second.end) == (
        utc(2024, 10, 27, 0),
        utc(2024, 10, 27, 1),
        utc(2024, 10, 27, 2),
    )
    assert first.wall_start == second.wall_start == wall(2024, 10, 27, 2)


def test_a_gap_is_known_to_the_period_after_it():
    after_gap = [s for s in offset_periods_of_year("Europe/Berlin", 2024) if s.gap]

    assert [(s.start, s.gap, s.wall_start) for s in after_gap] == [(utc(2024, 3, 31, 1), HOUR, wall(2024, 3, 31, 3))]


def test_half_an_hour_and_a_whole_day_are_gaps_too():
    half = [s for s in offset_periods_of_year("Australia/Lord_Howe", 2024) if s.gap]
    day = [s for s in offset_periods_of_year("Pacific/Apia", 2011) if s.gap >= timedelta(days=1)]

    assert [s.gap for s in half] == [HOUR / 2]
    assert [(s.start, s.gap) for s in day] == [(utc(2011, 12, 30, 10), timedelta(days=1))]


@pytest.mark.parametrize("minutes", [-30, 0, 30])
def test_a_change_at_new_year_is_seen_from_both_years(minutes: int, monkeypatch: pytest.MonkeyPatch):
    change = utc(2030, 1, 1) + timedelta(minutes=minutes)
    there, back = f"Test/There{minutes}", f"Test/Back{minutes}"
    zones = {there: oracle.made_up_zone(change, 0, 3600), back: oracle.made_up_zone(change, 3600, 0)}
    monkeypatch.setattr(civil_time, "load_zone", zones.__getitem__)

    gaps = [s for year in (2029, 2030) for s in offset_periods_of_year(there, year) if s.gap]
    repeats = [
        s for year in (2029, 2030) for s in offset_periods_of_year(back, year) if s.reading is not WallTimeRepeat.ONCE
    ]

    assert [(s.start, s.gap) for s in gaps] == [(change, HOUR)]
    assert sum((s.end - s.start for s in repeats if s.reading is WallTimeRepeat.FIRST), HOUR * 0) == HOUR
    assert sum((s.end - s.start for s in repeats if s.reading is WallTimeRepeat.SECOND), HOUR * 0) == HOUR
    assert (repeats[0].start, repeats[-1].end) == (change - HOUR, change + HOUR)


def test_backward_iteration_visits_the_same_periods():
    forward = list(offset_periods_from("America/New_York", utc(2020, 6, 1)))[:40]
    back = [s for s in offset_periods_back_from("America/New_York", forward[-1].start) if s.end > utc(2020, 6, 1)]

    assert back == forward[::-1]


@pytest.mark.parametrize(
    ("reading", "instant"),
    [
        (wall(2024, 3, 31, 1, 59), utc(2024, 3, 31, 0, 59)),
        (wall(2024, 3, 31, 2, 0), utc(2024, 3, 31, 1)),
        (wall(2024, 3, 31, 2, 30), utc(2024, 3, 31, 1)),
        (wall(2024, 3, 31, 3, 0), utc(2024, 3, 31, 1)),
        (wall(2024, 10, 27, 2, 30), utc(2024, 10, 27, 0, 30)),
        (wall(2024, 10, 27, 3, 0), utc(2024, 10, 27, 2)),
    ],
)
def test_a_wall_time_is_its_first_instant_or_the_end_of_its_gap(reading: datetime, instant: datetime):
    assert first_instant("Europe/Berlin", reading) == instant


def test_a_wall_time_around_new_year_is_found():
    assert first_instant("Pacific/Kiritimati", wall(2025, 1, 1)) == utc(2024, 12, 31, 10)
    assert first_instant("America/New_York", wall(2024, 12, 31, 23, 59)) == utc(2025, 1, 1, 4, 59)


def test_a_moment_without_offset_is_read_in_the_zone():
    assert parse_instant("2024-07-01T12:00", "Europe/Berlin", "scheduled_at") == utc(2024, 7, 1, 10)
    assert parse_instant("2024-07-01T12:00Z", "Europe/Berlin", "scheduled_at") == utc(2024, 7, 1, 12)
    assert parse_instant("2024-07-01", "Europe/Berlin", "scheduled_at") == utc(2024, 6, 30, 22)


@pytest.mark.parametrize(
    ("text", "zone"),
    [
        ("1969-12-31T23:59:59Z", "UTC"),
        ("2200-01-01T00:00:00Z", "UTC"),
        ("1970-01-01T00:00", "Asia/Tokyo"),
        ("2199-12-31T23:59", "America/New_York"),
        ("0001-01-01", "Asia/Tokyo"),
        ("9999-12-31T23:59:59-12:00", "UTC"),
        ("tomorrow", "UTC"),
        ("2024-13-01", "UTC"),
        ("", "UTC"),
    ],
)
def test_a_moment_that_cannot_be_accepted_names_its_field(text: str, zone: str):
    with pytest.raises(ScheduleError, match=r"^ends_at is .*, expected ") as error:
        parse_instant(text, zone, "ends_at")

    assert error.value.field == "ends_at"


def test_zones_come_from_the_tzdata_package():
    assert tzdata_version() == tzdata.IANA_VERSION
    assert offset_at(load_zone("Asia/Kathmandu"), utc(2024, 1, 1)) == timedelta(hours=5, minutes=45)


def test_every_known_zone_can_be_loaded():
    assert len(zone_names()) > 400
    for name in islice(sorted(zone_names()), 0, None, 7):
        assert str(load_zone(name)) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        "Mars/Base",
        "/etc/localtime",
        "../UTC",
        "Europe/../UTC",
        "Europe",
        "UTC\0",
        "Europe/Berlin ",
        "x" * 9999,
    ],
)
def test_an_unknown_zone_is_refused(name: str):
    with pytest.raises(UnknownTimezone, match="expected an IANA name") as error:
        load_zone(name)

    assert error.value.field == "timezone"
    assert len(str(error.value)) < 250
    assert "\0" not in str(error.value)


@pytest.mark.parametrize("typo", ["europe/berlin", "Berlin", "Europe/Berlim"])
def test_a_misspelt_name_gets_a_suggestion(typo: str):
    with pytest.raises(UnknownTimezone, match=r"did you mean Europe/Berlin"):
        load_zone(typo)
