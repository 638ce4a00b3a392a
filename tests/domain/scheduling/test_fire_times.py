"""Cron on real clocks: every change of every zone from 1970 to 2037, against brute force."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import islice, pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.domain.scheduling import oracle
from tests.domain.scheduling.oracle import Change, Clock, Fields, utc, wall
from tests.domain.scheduling.test_cron import expressions, field
from timeball.domain.scheduling.schedule import Cron, NoteKind, Occurrence, OccurrenceNote, OnGap, OnRepeat
from timeball.errors import NeverFires

MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)
RULES = list(product(OnGap, OnRepeat))


def cron(expression: str, zone: str = "Europe/Berlin", on_gap: str = "next_valid", on_repeat: str = "first") -> Cron:
    return Cron(expression=expression, timezone=zone, on_gap=OnGap(on_gap), on_repeat=OnRepeat(on_repeat))


def instants(schedule: Cron, after: datetime, until: datetime) -> list[datetime]:
    return [occurrence.at for occurrence in schedule.occurrences(after, until)]


def check_all_questions(schedule: Cron, start: datetime, end: datetime, expected: list[datetime]) -> None:
    """Every way to ask for (start, end] gives *expected*."""
    found = instants(schedule, start, end)
    assert found == expected
    assert all(here < there for here, there in pairwise(found))
    assert list(schedule.occurrences_back(end, start)) == expected[::-1]
    assert schedule.count_between(start, end) == len(expected)
    middle = start + (end - start) / 2
    assert schedule.last_at_or_before(middle, start) == max((at for at in expected if at <= middle), default=None)
    following = schedule.next_after(middle)
    assert following == min((at for at in expected if at > middle), default=following)


def edges(change: Change) -> str:
    """A fixed-hour expression that names the readings at both ends of a gap or repeat, and the minutes before them."""
    shown = [(change.at + offset).replace(tzinfo=None) for offset in (change.before, change.after)]
    walls = [reading - minutes * MINUTE for reading in shown for minutes in (0, 1)]
    return "{} {} * * *".format(
        *(",".join(sorted({str(getattr(w, part)) for w in walls})) for part in ("minute", "hour"))
    )


def step_of(change: Change) -> timedelta:
    """A step of real time that meets every whole minute of the wall clock."""
    whole = all(offset % MINUTE == timedelta(0) for offset in (change.before, change.after))
    return MINUTE if whole else timedelta(seconds=30)


def rules_that_matter(change: Change) -> list[tuple[OnGap, OnRepeat]]:
    if change.after > change.before:
        return [(on_gap, OnRepeat.FIRST) for on_gap in OnGap]
    return [(OnGap.NEXT_VALID, on_repeat) for on_repeat in OnRepeat]


def is_short(place: tuple[str, Change]) -> bool:
    return place[1].size <= timedelta(hours=1)


def kind_of(change: Change) -> tuple[object, ...]:
    return change.before, change.after, change.at.time()


def check_change(zone: str, change: Change, expression: str, rules: list[tuple[OnGap, OnRepeat]]) -> None:
    # A repeat is seen whole, with both of its passes; a gap takes no time.
    margin = max(change.before - change.after, 0 * MINUTE) + 20 * MINUTE
    start, end = change.at - margin, change.at + margin
    clock, fields = Clock(zone, start, end, step_of(change)), Fields(expression)
    for rule in rules:
        expected = [at for at in oracle.fire_times(clock, fields, *rule) if start < at <= end]
        assert instants(cron(expression, zone, *rule), start, end) == expected, (zone, change, expression, rule)


def test_every_change_of_every_zone_is_passed_as_brute_force_passes_it():
    """Fault 22."""
    for zone, change in oracle.distinct_changes():
        check_change(zone, change, edges(change), rules_that_matter(change))


@pytest.mark.parametrize(
    "expression", ["*/10 0-22 * * *", "*/10 1-23 * * *", "*/7 * * * *", "0 */2 * * *", "30 1-3 * * *"]
)
def test_every_kind_of_change_is_passed_by_every_kind_of_expression(expression: str):
    one_of_each = {kind_of(change): (zone, change) for zone, change in oracle.distinct_changes()}
    for zone, change in one_of_each.values():
        check_change(zone, change, expression, RULES)


changed_zones = st.deferred(lambda: st.sampled_from(oracle.distinct_changes()))
fixed_hours = st.one_of(field(0, 4).filter(lambda text: not text.startswith("*")), st.sampled_from(["0-22", "1-23"]))


@given(changed_zones, expressions(hours=st.one_of(fixed_hours, field(0, 23))), st.sampled_from(RULES), st.data())
@settings(max_examples=40, deadline=None)
def test_any_expression_around_any_change(place, expression: str, rule, data: st.DataObject):
    zone, change = place
    start = change.at - data.draw(st.integers(0, 2000)) * MINUTE
    end = change.at + data.draw(st.integers(0, 2000)) * MINUTE
    pad = timedelta(hours=26)
    clock = Clock(zone, start - pad, end + pad, step_of(change))
    try:
        schedule = cron(expression, zone, *rule)
    except NeverFires:
        return

    expected = [at for at in oracle.fire_times(clock, Fields(expression), *rule) if start < at <= end]

    check_all_questions(schedule, start, end, expected)


@given(changed_zones.filter(is_short), field(0, 59), field(0, 59), fixed_hours, st.sampled_from(RULES))
@settings(max_examples=12, deadline=None)
def test_six_fields_follow_the_same_rules(place, seconds: str, minutes: str, hours: str, rule):
    zone, change = place
    start, end = change.at - change.size - MINUTE, change.at + change.size + MINUTE
    clock = Clock(zone, start, end, SECOND)
    expression = f"{seconds} {minutes} {hours} * * *"

    expected = [at for at in oracle.fire_times(clock, Fields(expression), *rule) if start < at <= end]

    check_all_questions(cron(expression, zone, *rule), start, end, expected)


@given(changed_zones, expressions(), st.sampled_from(RULES))
@settings(max_examples=40, deadline=None)
def test_stepping_by_next_after_is_iterating(place, expression: str, rule):
    zone, change = place
    try:
        schedule = cron(expression, zone, *rule)
    except NeverFires:
        return
    at = start = change.at - timedelta(days=1)
    iterated = [occurrence.at for occurrence in islice(schedule.occurrences(start), 30)]

    stepped = []
    while len(stepped) < len(iterated):
        at = schedule.next_after(at)
        stepped.append(at)

    assert stepped == iterated


@pytest.mark.parametrize(
    "expression", ["*/30 * * * *", "0,30 * * * *", "0 */30 * * * *", "*/30 */1 * * *", "0,30 0-23 * * *"]
)
def test_an_hourly_expression_follows_elapsed_time_through_gap_and_repeat(expression: str):
    for day in (utc(2024, 3, 31), utc(2024, 10, 27)):
        found = instants(cron(expression), day - timedelta(hours=3), day + timedelta(hours=9))

        assert {there - here for here, there in pairwise(found)} == {30 * MINUTE}


def test_a_time_in_a_gap_runs_once_at_its_end():
    found = list(cron("*/20 2 * * *").occurrences(utc(2024, 3, 30, 12), utc(2024, 3, 31, 12)))

    note = OccurrenceNote(kind=NoteKind.MOVED_BY_GAP, wall=wall(2024, 3, 31, 2), count=3)
    assert found == [Occurrence(at=utc(2024, 3, 31, 1), note=note)]


@pytest.mark.parametrize("expression", ["0 0 * * *", "0 */24 * * *", "0 */12 * * *", "0 0,12 * * *"])
def test_midnight_in_a_gap_is_moved_however_the_hour_is_written(expression: str):
    # Cairo's clock jumps from 00:00 to 01:00 on 30 April 2027.
    found = list(cron(expression, "Africa/Cairo").occurrences(utc(2027, 4, 29, 12), utc(2027, 4, 30, 3)))

    note = OccurrenceNote(kind=NoteKind.MOVED_BY_GAP, wall=wall(2027, 4, 30, 0))
    assert found == [Occurrence(at=utc(2027, 4, 29, 22), note=note)]


def test_a_step_of_hours_names_hours_of_the_day():
    spring = instants(cron("0 */2 * * *", "America/New_York"), utc(2027, 3, 14, 4), utc(2027, 3, 14, 9))
    autumn = instants(cron("0 */2 * * *"), utc(2027, 10, 30, 21), utc(2027, 10, 31, 4))

    # 00:00 EST, 02:00 moved to 03:00 EDT, 04:00 EDT; then midnight, 02:00 the first time it comes, 04:00.
    assert spring == [utc(2027, 3, 14, 5), utc(2027, 3, 14, 7), utc(2027, 3, 14, 8)]
    assert autumn == [utc(2027, 10, 30, 22), utc(2027, 10, 31, 0), utc(2027, 10, 31, 3)]


def test_a_moved_time_that_meets_a_regular_one_is_the_same_occurrence():
    found = list(cron("0,30 2,3 * * *").occurrences(utc(2024, 3, 30, 12), utc(2024, 3, 31, 12)))

    assert found == [Occurrence(at=utc(2024, 3, 31, 1)), Occurrence(at=utc(2024, 3, 31, 1, 30))]


def test_a_time_in_a_gap_can_be_skipped_and_is_reported():
    schedule = cron("30 2 * * *", on_gap="skip")
    window = utc(2024, 3, 30, 12), utc(2024, 4, 1, 12)

    note = OccurrenceNote(kind=NoteKind.SKIPPED_BY_GAP, wall=wall(2024, 3, 31, 2, 30))
    assert list(schedule.occurrences(*window)) == [Occurrence(at=utc(2024, 4, 1, 0, 30))]
    assert next(schedule.occurrences(*window, with_skipped=True)) == Occurrence(at=utc(2024, 3, 31, 1), note=note)
    assert schedule.count_between(*window) == 1


@pytest.mark.parametrize(
    ("on_repeat", "expected"),
    [
        ("first", [(utc(2024, 10, 27, 0, 30), NoteKind.FIRST_OF_REPEAT)]),
        ("second", [(utc(2024, 10, 27, 1, 30), NoteKind.SECOND_OF_REPEAT)]),
        (
            "both",
            [
                (utc(2024, 10, 27, 0, 30), NoteKind.FIRST_OF_REPEAT),
                (utc(2024, 10, 27, 1, 30), NoteKind.SECOND_OF_REPEAT),
            ],
        ),
    ],
)
def test_a_time_that_comes_twice_runs_as_chosen(on_repeat: str, expected):
    schedule = cron("30 2 * * *", on_repeat=on_repeat)

    found = list(schedule.occurrences(utc(2024, 10, 26, 12), utc(2024, 10, 27, 12)))

    assert [(occurrence.at, occurrence.note and occurrence.note.kind) for occurrence in found] == expected


def test_both_passes_of_a_repeat_come_in_order():
    found = instants(cron("*/30 2 * * *", on_repeat="both"), utc(2024, 10, 26, 12), utc(2024, 10, 27, 12))

    assert found == [utc(2024, 10, 27, 0) + n * 30 * MINUTE for n in range(4)]


def test_the_second_pass_is_not_leapt_over_from_within_the_first():
    schedule = cron("30 2 27 10 *", on_repeat="both")

    assert schedule.next_after(utc(2024, 10, 27, 0, 45)) == utc(2024, 10, 27, 1, 30)
    assert schedule.last_at_or_before(utc(2024, 10, 27, 1, 15)) == utc(2024, 10, 27, 0, 30)


def test_a_skipped_day_runs_at_the_start_of_the_next_one():
    found = instants(cron("0 9 * * *", "Pacific/Apia"), utc(2011, 12, 29, 12), utc(2011, 12, 31))

    # The 29th at 09:00; the 30th was left out, so the 31st at 00:00; and the 31st at 09:00.
    assert found == [utc(2011, 12, 29, 19), utc(2011, 12, 30, 10), utc(2011, 12, 30, 19)]


def test_distant_occurrences_are_found_from_both_sides():
    schedule = cron("0 0 * 2 mon#5", "America/New_York")
    expected = [utc(year, 2, 29, 5) for year in (2016, 2044, 2072, 2112, 2140, 2168, 2196)]

    assert instants(schedule, utc(2015, 1, 1), utc(2199, 12, 31)) == expected
    assert list(schedule.occurrences_back(utc(2199, 12, 31), utc(2015, 1, 1))) == expected[::-1]
