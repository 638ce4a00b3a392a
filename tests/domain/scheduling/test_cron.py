"""Cron expressions: what they name, what they refuse, and how they say it."""

from __future__ import annotations

import time
from datetime import date, datetime, timedelta
from itertools import islice, pairwise

import pytest
from cronsim import CronSim
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.domain.scheduling.oracle import MONTHS, WEEKDAYS, Fields, wall
from timeball.domain.scheduling.cron import NICKNAMES, parse_cron, resolve_hash
from timeball.errors import CronSyntaxError, NeverFires, ScheduleError

MINUTE = timedelta(minutes=1)
# The days that cronsim does not know.
ADDED = (*(f"{day}W" for day in (1, 2, 15, 29, 30, 31)), *(f"L-{days}" for days in (1, 3, 28, 30)))
FIELDS = "5 (minute hour day-of-month month day-of-week), or 6 with seconds in front"


def field(low: int, high: int, names: tuple[str, ...] = (), special: tuple[str, ...] = ()) -> st.SearchStrategy[str]:
    """A cron field with up to three terms of every kind."""
    number = st.integers(low, high).map(str)
    value = st.one_of(number, st.sampled_from(names)) if names else number
    plain = st.one_of(st.just("*"), value, st.builds("{}-{}".format, value, value))
    step = st.integers(1, min(high - low + 1, 7))
    terms = [plain, st.builds("{}/{}".format, plain, step), value]
    if special:
        terms.append(st.sampled_from(special))
    return st.lists(st.one_of(*terms), min_size=1, max_size=3).map(",".join)


@st.composite
def expressions(
    draw: st.DrawFn,
    *,
    seconds: bool = False,
    hours: st.SearchStrategy[str] | None = None,
    added: tuple[str, ...] = ADDED,
) -> str:
    parts = [
        draw(field(0, 59)),
        draw(field(0, 23) if hours is None else hours),
        draw(st.one_of(st.just("*"), field(1, 31, special=("L", "LW", *added)))),
        draw(st.one_of(st.just("*"), field(1, 12, tuple(MONTHS)))),
        draw(st.one_of(st.just("*"), field(0, 6, tuple(WEEKDAYS), ("5L", "friL", "sun#1", "2#5", "7L")))),
    ]
    return " ".join([draw(field(0, 59)), *parts] if seconds else parts)


moments = st.datetimes(wall(1990, 1, 1), wall(2040, 1, 1))


def read_or_none(expression: str):
    try:
        return parse_cron(expression)
    except NeverFires:
        return None


@given(expressions(), moments)
@settings(max_examples=40, deadline=None)
def test_named_times_are_those_whose_fields_match(expression: str, start: datetime):
    pattern, fields = read_or_none(expression), Fields(expression)
    start = start.replace(second=0, microsecond=0)
    end = start + timedelta(days=2)
    by_hand = [at for n in range(2 * 1440) if fields.match(at := start + n * MINUTE)]

    found = [] if pattern is None else list(_until(pattern.walls_after(start - MINUTE / 60), end))

    assert found == by_hand


@given(expressions(seconds=True), moments)
@settings(max_examples=40, deadline=None)
def test_six_fields_name_seconds(expression: str, start: datetime):
    pattern, fields = read_or_none(expression), Fields(expression)
    start = start.replace(microsecond=0)
    by_hand = [at for n in range(1200) if fields.match(at := start + timedelta(seconds=n))]

    found = pattern and list(_until(pattern.walls_after(start - timedelta(seconds=1)), start + timedelta(seconds=1200)))

    assert (found or []) == by_hand


@given(expressions(), st.dates(date(1990, 1, 1), date(2040, 1, 1)))
@settings(max_examples=40, deadline=None)
def test_named_days_are_those_whose_fields_match(expression: str, start: date):
    pattern, fields = read_or_none(expression), Fields(expression)

    for day in (start + timedelta(days=n) for n in range(70)):
        assert fields.match_date(day) == (pattern is not None and pattern.matches_day(day))


@given(st.booleans().flatmap(lambda seconds: expressions(seconds=seconds)), moments)
@settings(max_examples=50, deadline=None)
def test_back_and_count_agree_with_forward(expression: str, start: datetime):
    pattern = read_or_none(expression)
    if pattern is None:
        return
    forward = list(islice(pattern.walls_after(start), 50))
    last = forward[-1]

    back = list(_since(pattern.walls_before(last + timedelta(microseconds=1)), start))

    assert all(here < there for here, there in pairwise(forward))
    assert back == forward[::-1]
    just_after = timedelta(microseconds=1)
    assert pattern.count_between(start + just_after, last) == 49
    assert pattern.count_between(start + just_after, last + just_after) == 50
    assert pattern.count_between(forward[7], forward[19] - just_after) == 12
    assert all(pattern.matches(at) for at in forward[:5])


@given(expressions(added=()), moments)
@settings(max_examples=40, deadline=None)
def test_cronsim_finds_the_same_times(expression: str, start: datetime):
    pattern = read_or_none(expression)
    if pattern is None:
        return
    normal = " ".join(pattern._expression.parts)

    assert list(islice(pattern.walls_after(start), 20)) == list(islice(CronSim(normal, start), 20))
    assert list(islice(pattern.walls_before(start), 20)) == list(islice(CronSim(normal, start, reverse=True), 20))


@given(expressions())
@settings(max_examples=40, deadline=None)
def test_every_expression_can_be_explained(expression: str):
    pattern = read_or_none(expression)

    assert pattern is None or pattern.explain()[0].isupper()


@pytest.mark.parametrize(
    ("expression", "plain"),
    [
        ("0 0 * * fri-mon", "0 0 * * 5,6,0,1"),
        ("0 0 * * FRI-MON", "0 0 * * 5,6,0,1"),
        ("0 0 * * 6-1", "0 0 * * 6,0,1"),
        ("0 0 * * 5-7", "0 0 * * 5,6,0"),
        ("0 0 * * sat-sun", "0 0 * * 6,0"),
        ("0 0 * * 7-2", "0 0 * * 0,1,2"),
        ("0 0 * * fri-mon/2", "0 0 * * 5,0"),
        ("0 0 * * 0-7", "0 0 * * 0,1,2,3,4,5,6"),
        ("0 0 * * 1/2", "0 0 * * 1,3,5"),
        ("0 0 * * 7/2", "0 0 * * 0,2,4,6"),
        ("0 0 * * friL", "0 0 * * 5L"),
        ("0 0 1 nov-feb *", "0 0 1 11,12,1,2 *"),
        ("0 22-2 * * *", "0 22,23,0,1,2 * * *"),
        ("0 22-3/2 * * *", "0 22,0,2 * * *"),
        ("50-10/10 * * * *", "50,0,10 * * * *"),
        ("5/20 * * * *", "5,25,45 * * * *"),
        ("07 007 * * *", "7 7 * * *"),
        ("  0\t0 * *   * ", "0 0 * * *"),
        ("@Weekly", "0 0 * * 0"),
        *NICKNAMES.items(),
    ],
)
def test_spellings_that_mean_the_same(expression: str, plain: str):
    written, simple = parse_cron(expression), parse_cron(plain)

    start = wall(2024, 1, 1)
    assert list(islice(written.walls_after(start), 200)) == list(islice(simple.walls_after(start), 200))


@pytest.mark.parametrize(
    ("expression", "days"),
    [
        ("0 0 L * *", [wall(2024, 1, 31), wall(2024, 2, 29), wall(2024, 3, 31)]),
        ("0 0 LW * *", [wall(2024, 1, 31), wall(2024, 2, 29), wall(2024, 3, 29)]),
        ("0 0 * * fri#2", [wall(2024, 1, 12), wall(2024, 2, 9), wall(2024, 3, 8)]),
        ("0 0 * * 5L", [wall(2024, 1, 26), wall(2024, 2, 23), wall(2024, 3, 29)]),
        ("0 0 13 * fri", [wall(2024, 1, 5), wall(2024, 1, 12), wall(2024, 1, 13)]),
        ("0 0 */10 * fri", [wall(2024, 3, 1), wall(2024, 5, 31), wall(2024, 6, 21)]),
        ("0 0 L-3 * *", [wall(2024, 1, 28), wall(2024, 2, 26), wall(2024, 3, 28)]),
        ("0 0 L-30 * *", [wall(2024, 3, 1), wall(2024, 5, 1), wall(2024, 7, 1)]),
        # Saturday the 15th of June, Sunday the 15th of September.
        ("0 0 15W 6,9 *", [wall(2024, 6, 14), wall(2024, 9, 16), wall(2025, 6, 16)]),
        # Saturday the 1st of June and Sunday the 30th of June: the month is not left.
        ("0 0 1w,30w 6 *", [wall(2024, 6, 3), wall(2024, 6, 28), wall(2025, 6, 2)]),
        # No month but the long ones has a 31st, and a plain day beside it that never comes does no harm.
        ("0 0 31W * *", [wall(2024, 1, 31), wall(2024, 3, 29), wall(2024, 5, 31)]),
        ("0 0 31,15W 2 *", [wall(2024, 2, 15), wall(2025, 2, 14), wall(2026, 2, 16)]),
        # A star that is not the first: the day fields are joined by "or".
        ("0 0 1W,* * sun", [wall(2024, 1, 2), wall(2024, 1, 3), wall(2024, 1, 4)]),
    ],
)
def test_special_days(expression: str, days: list[datetime]):
    assert list(islice(parse_cron(expression).walls_after(wall(2024, 1, 1)), 3)) == days


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("0 25 * * *", 'cron "0 25 * * *": hour is 25, expected 0-23'),
        ("60 * * * *", 'cron "60 * * * *": minute is 60, expected 0-59'),
        ("60 * * * * *", 'cron "60 * * * * *": second is 60, expected 0-59'),
        ("0 0 0 * *", 'cron "0 0 0 * *": day-of-month is 0, expected 1-31'),
        ("0 0 1 Foo *", 'cron "0 0 1 Foo *": month is Foo, expected 1-12 or jan-dec'),
        ("0 0 * * funday", 'cron "0 0 * * funday": day-of-week is funday, expected 0-7 or sun-sat'),
        ("0 0 * * 8", 'cron "0 0 * * 8": day-of-week is 8, expected 0-7 or sun-sat'),
        ("*/0 * * * *", 'cron "*/0 * * * *": minute step is 0, expected 1-60'),
        ("*/90 * * * *", 'cron "*/90 * * * *": minute step is 90, expected 1-60'),
        ("*/ * * * *", 'cron "*/ * * * *": minute step is empty, expected 1-60'),
        ("1,,2 * * * *", 'cron "1,,2 * * * *": minute is empty, expected 0-59'),
        ("-5 * * * *", 'cron "-5 * * * *": minute is empty, expected 0-59'),
        ("1-2-3 * * * *", 'cron "1-2-3 * * * *": minute is 1-2-3, expected a range within 0-59'),
        ("*-3 * * * *", 'cron "*-3 * * * *": minute is *, expected 0-59'),
        ("0 0 ? * *", 'cron "0 0 ? * *": day-of-month is ?, expected 1-31'),
        ("0 0 * * 5#6", 'cron "0 0 * * 5#6": day-of-week number is 6, expected 1-5 after #'),
        ("0 0 * * L", 'cron "0 0 * * L": day-of-week is L, expected a day before L'),
        ("0 0 L/2 * *", 'cron "0 0 L/2 * *": day-of-month is L/2, expected L, LW, L-1 to L-30, or 1-31'),
        ("0 0 L-31 * *", 'cron "0 0 L-31 * *": day-of-month is L-31, expected L, LW, L-1 to L-30, or 1-31'),
        ("0 0 L-3W * *", 'cron "0 0 L-3W * *": day-of-month is L-3W, expected a day before W (1W-31W), or LW'),
        ("0 0 32W * *", 'cron "0 0 32W * *": day-of-month is 32W, expected a day before W (1W-31W), or LW'),
        ("0 0 W * *", 'cron "0 0 W * *": day-of-month is W, expected a day before W (1W-31W), or LW'),
        ("0 15W * * *", 'cron "0 15W * * *": hour is 15W, expected 0-23'),
        ("0 L * * *", 'cron "0 L * * *": hour is L, expected 0-23'),
        ("٣ * * * *", 'cron "٣ * * * *": minute is ٣, expected 0-59'),
        ("1.5 * * * *", 'cron "1.5 * * * *": minute is 1.5, expected 0-59'),
        ("+1 * * * *", 'cron "+1 * * * *": minute is +1, expected 0-59'),
        ("* * *", f'cron "* * *": number of fields is 3, expected {FIELDS}'),
        ("", f'cron "": number of fields is 0, expected {FIELDS}'),
        ("@reboot", f'cron "@reboot": word is @reboot, expected {", ".join(NICKNAMES)}'),
        ("0 0\0 * * *", r'cron "0 0\x00 * * *": text is not printable, expected fields separated by spaces'),
    ],
)
def test_an_error_names_the_field_the_value_and_the_expectation(expression: str, message: str):
    with pytest.raises(CronSyntaxError) as error:
        parse_cron(expression)

    assert str(error.value) == message
    assert error.value.field == "schedule"


def test_a_long_expression_is_refused_without_being_repeated():
    with pytest.raises(CronSyntaxError, match="length is 100000 characters, expected at most 256") as error:
        parse_cron("*," * 50_000)

    assert len(str(error.value)) < 200


@pytest.mark.parametrize(
    "expression",
    [
        "0 0 30 2 *",
        "0 0 31 2,4,6,9,11 *",
        "0 0 31 feb */2",
        "0 0 */31 * mon#5",
        "* * * */31 * sun#2",
        "0 0 30,31 2 */7",
        "0 0 31W 2,4 *",
        "0 0 L-30 2,4 *",
    ],
)
def test_an_expression_that_never_fires_is_refused(expression: str):
    """Fault 26."""
    started = time.process_time()

    with pytest.raises(NeverFires, match="never fires"):
        parse_cron(expression)

    assert time.process_time() - started < 0.5


def refusal_of(text: str) -> str | None:
    try:
        parse_cron(text)
    except ScheduleError as error:
        return str(error)
    return None


@given(
    st.one_of(
        st.text(max_size=300),
        st.text(alphabet="0123456789*/-,#LWabcdefjmnorstuvwy@ ", max_size=40),
        st.builds("{} {}".format, field(0, 60), st.sampled_from(["* * * *", "0 0 30 2 *", "* L * 1"])),
    )
)
@settings(max_examples=250, deadline=1000)
def test_any_text_is_read_or_refused(text: str):
    refusal = refusal_of(text)

    if refusal is None:
        assert parse_cron(text).explain()
        assert next(parse_cron(text).walls_after(wall(2024, 1, 1))) > wall(2024, 1, 1)
    else:
        assert refusal.isprintable()
        assert refusal.startswith('cron "')


def _until(walls, end: datetime):
    for at in walls:
        if at >= end:
            return
        yield at


def _since(walls, start: datetime):
    for at in walls:
        if at <= start:
            return
        yield at


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("0 9 15W * *", "At 09:00 on the weekday nearest the 15th of the month"),
        ("0 9 22W jan *", "At 09:00 on the weekday nearest the 22nd of the month in January"),
        ("0 9 L-3 * *", "At 09:00 on the third day before the last of the month"),
        ("0 9 1,L-3 * *", "At 09:00 on the first day of month and the third day before the last of the month"),
        ("0 9 L-1 * mon", "At 09:00 on the first day before the last of the month and on Monday"),
        (
            "0 9 */7,1W * mon",
            "At 09:00 on every seventh day of month and the weekday nearest the first of the month if it's on Monday",
        ),
    ],
)
def test_added_days_are_explained(expression: str, words: str):
    assert parse_cron(expression).explain() == words


# H

names = st.text(min_size=1, max_size=30)


@given(names)
def test_h_is_a_value_of_its_field_and_stays_the_same(name: str):
    minute, hour, day, month, weekday = resolve_hash("H H H H H", name).split()

    assert resolve_hash("H H H H H", name) == f"{minute} {hour} {day} {month} {weekday}"
    assert 0 <= int(minute) <= 59
    assert 0 <= int(hour) <= 23
    assert 1 <= int(day) <= 28
    assert 1 <= int(month) <= 12
    assert 0 <= int(weekday) <= 6
    assert parse_cron(resolve_hash("H H H H H", name)).explain()


@given(names, st.integers(0, 59), st.integers(0, 59), st.integers(1, 60))
def test_h_with_a_range_or_a_step_stays_within_it(name: str, one: int, other: int, step: int):
    low, high = sorted((one, other))
    step = min(step, high - low + 1)
    value = int(resolve_hash(f"H({low}-{high}) * * * *", name).split()[0])
    pattern = parse_cron(resolve_hash(f"H({low}-{high})/{step} * * * *", name))
    minutes = [
        at.minute for at in islice(pattern.walls_after(wall(2024, 1, 1) - MINUTE), 61) if at < wall(2024, 1, 1, 1)
    ]

    assert low <= value <= high
    assert low <= minutes[0] < low + step
    assert minutes == list(range(minutes[0], high + 1, step))


def test_h_differs_between_names_and_fields():
    minutes = {resolve_hash("H * * * *", f"job-{number}") for number in range(600)}

    assert len(minutes) == 60
    assert len(set(resolve_hash("H(1-12) H(1-12) H(1-12) H(1-12) *", "nightly").split())) > 2


def test_an_expression_without_h_is_as_it_was():
    assert resolve_hash(" 0  9 *  * thu", "nightly") == "0 9 * * thu"
    assert resolve_hash("@hourly", None) == "@hourly"


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("H(0-60) * * * *", "minute is 60, expected 0-59"),
        ("* H(20-3) * * *", "hour is H(20-3), expected a range within 0-23 that does not end before it begins"),
        ("* * H(0-5) * *", "day-of-month is 0, expected 1-31"),
        ("* * H/29 * *", "day-of-month step is 29, expected 1-28"),
        ("H(0-9)/20 * * * *", "minute step is 20, expected 1-10"),
        ("H5 * * * *", "minute is H5, expected H, H/step or H(a-b) with a range within 0-59"),
        ("H() * * * *", "minute is H(), expected H, H/step or H(a-b) with a range within 0-59"),
        ("H( * * * *", "minute is H(, expected H, H/step or H(a-b) with a range within 0-59"),
        ("H H", f"number of fields is 2, expected {FIELDS}"),
    ],
)
def test_an_error_in_h_names_the_field_and_the_range(expression: str, message: str):
    with pytest.raises(CronSyntaxError) as error:
        resolve_hash(expression, "nightly")

    assert str(error.value) == f'cron "{expression}": {message}'


def test_h_without_a_name_says_what_it_needs():
    with pytest.raises(CronSyntaxError) as error:
        resolve_hash("0 H * * *", None)

    assert str(error.value) == 'cron "0 H * * *": hour is H, expected the name of a job, because H is derived from it'
    assert error.value.hint == "give the job a name, or write a number"
