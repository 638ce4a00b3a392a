"""Schedules declared in code: one job for each name, in however many processes it is declared."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.sdk.conftest import ON_ONE_SERVER, finish
from timeball import Conflict, InvalidInput, ScheduleError, Settings, Timeball
from timeball.domain.job_fields import JobSpec
from timeball.runtime import open_runtime

pytestmark = ON_ONE_SERVER

Rows = Callable[[str], list[dict[str, Any]]]


@pytest.fixture
def restarted(settings: Settings) -> Iterator[Callable[[], Timeball]]:
    """The program after a restart: it may declare other schedules."""
    programs: list[Timeball] = []

    def start() -> Timeball:
        programs.append(Timeball(settings=settings))
        return programs[-1]

    yield start
    for program in programs:
        program.close()


def test_a_schedule_is_a_job_named_after_its_handler(tb: Timeball, rows: Rows) -> None:
    @tb.cron("0 9 * * mon-fri", timezone="Europe/Berlin", queue="reports", on_gap="skip", overlap="allow", jitter="2m")
    async def morning_report() -> None: ...

    assert list(tb.schedules) == [morning_report.name]
    assert tb.sync_schedules() == [morning_report.name]

    (job,) = rows("SELECT * FROM timeball.job")
    assert (job["name"], job["handler"]) == (morning_report.name, morning_report.name)
    assert (job["kind"], job["schedule"], job["timezone"]) == ("cron", "0 9 * * mon-fri", "Europe/Berlin")
    assert (job["queue"], job["on_gap"], job["overlap"], job["jitter_seconds"]) == ("reports", "skip", "allow", 120)
    assert job["declared_by"] == "tests.sdk.test_schedules"
    assert len(rows("SELECT FROM timeball.due")) == 1


def test_a_schedule_inherits_the_options_of_its_handler_and_may_override_them(tb: Timeball, rows: Rows) -> None:
    @tb.every("90s", name="often", retries=1)
    @tb.handler(queue="mail", retries=5, timeout="30s")
    def send() -> None: ...

    tb.sync_schedules()

    (job,) = rows("SELECT name, interval_seconds, queue, max_retries, timeout_ms FROM timeball.job")
    assert job == {"name": "often", "interval_seconds": 90, "queue": "mail", "max_retries": 1, "timeout_ms": 30_000}


def test_the_order_of_the_decorators_does_not_matter(tb: Timeball, rows: Rows) -> None:
    @tb.handler(queue="mail", name="send")
    @tb.cron("@daily")
    def send() -> None: ...

    tb.sync_schedules()

    assert send.name == "send"
    assert tb.registry.names() == ("send",)
    assert rows("SELECT name, handler, queue FROM timeball.job") == [
        {"name": "send", "handler": "send", "queue": "mail"}
    ]


def test_one_handler_can_have_several_schedules_of_different_names(tb: Timeball, rows: Rows) -> None:
    @tb.cron("@hourly", name="small", arguments={"size": 1})
    @tb.cron("@daily", name="large", arguments={"size": 100})
    def clean(size: int) -> None: ...

    assert tb.sync_schedules() == ["large", "small"]

    jobs = rows("SELECT name, payload FROM timeball.job ORDER BY name")
    assert jobs == [{"name": "large", "payload": {"size": 100}}, {"name": "small", "payload": {"size": 1}}]


def test_a_schedule_runs_with_its_arguments(tb: Timeball, node: Callable[[], AbstractContextManager[None]]) -> None:
    greeted: list[str] = []
    has_run = threading.Event()

    @tb.every(1, arguments={"whom": "world"})
    def greet(whom: str) -> None:
        greeted.append(whom)
        has_run.set()

    with node():
        assert has_run.wait(20)

    assert greeted[0] == "world"


TEN = """
from timeball import Timeball

tb = Timeball()

@tb.cron("*/5 * * * *", name="five", arguments={"n": 5})
@tb.every("30s", name="thirty")
def work(n: int = 0) -> None: ...

tb.sync_schedules()
"""


def test_ten_processes_declare_one_job(start_program: Callable[..., Any], rows: Rows) -> None:
    for process in [start_program(TEN) for _ in range(10)]:
        finish(process)

    assert rows("SELECT name, version FROM timeball.job ORDER BY name") == [
        {"name": "five", "version": 1},
        {"name": "thirty", "version": 1},
    ]
    assert len(rows("SELECT FROM timeball.due")) == 2


async def test_a_schedule_that_is_no_longer_declared_is_reported_and_goes_on(
    settings: Settings, restarted: Callable[[], Timeball], rows: Rows
) -> None:
    before, after = restarted(), restarted()
    for program, names in ((before, ("kept", "gone", "paused")), (after, ("kept",))):
        work = program.handler(name="work")(_work)
        for name in names:
            program.every("1h", name=name)(work)

    async with open_runtime(settings) as parts:
        assert await before.declare_with(parts.commands) == []
        (paused,) = [row["id"] for row in rows("SELECT id FROM timeball.job WHERE name = 'paused'")]
        await parts.commands.jobs.pause(paused)
        await parts.commands.jobs.create(JobSpec(name="by hand", handler="work", interval_seconds=60))

        undeclared = await after.declare_with(parts.commands)

    assert [(job.name, job.declared_by) for job in undeclared] == [("gone", "tests.sdk.test_schedules")]
    assert len(rows("SELECT FROM timeball.due WHERE kind = 'occurrence'")) == 3


async def _work() -> None: ...


def test_declaring_the_same_again_changes_nothing(restarted: Callable[[], Timeball], rows: Rows) -> None:
    def declare(program: Timeball) -> None:
        @program.every("1h", name="hourly", arguments={"b": [1, 2.5], "a": "ä"}, starts_at="2030-01-01", tags=["x"])
        @program.handler(name="work", max_running=2)
        def work(a: str, b: list[float]) -> None: ...

        program.sync_schedules()

    declare(restarted())
    before = rows("SELECT * FROM timeball.job"), rows("SELECT * FROM timeball.due")
    declare(restarted())

    assert (rows("SELECT * FROM timeball.job"), rows("SELECT * FROM timeball.due")) == before


def test_another_declaration_of_the_same_name_changes_the_job(restarted: Callable[[], Timeball], rows: Rows) -> None:
    def declare(program: Timeball, expression: str) -> None:
        program.cron(expression, name="report")(report)
        program.sync_schedules()

    def report() -> None: ...

    declare(restarted(), "0 9 * * *")
    declare(restarted(), "0 10 * * *")

    assert rows("SELECT name, schedule, version FROM timeball.job") == [
        {"name": "report", "schedule": "0 10 * * *", "version": 2}
    ]
    (due,) = rows("SELECT extract(hour FROM scheduled_for AT TIME ZONE 'UTC')::int AS hour FROM timeball.due")
    assert due["hour"] == 10


def test_a_paused_schedule_stays_paused_when_it_is_declared_again(tb: Timeball, rows: Rows) -> None:
    @tb.every("1h", name="hourly")
    def work() -> None: ...

    tb.sync_schedules()
    tb.jobs.pause("hourly")
    tb.sync_schedules()

    assert rows("SELECT paused_at IS NOT NULL AS is_paused FROM timeball.job") == [{"is_paused": True}]


def test_a_schedule_that_has_ended_does_not_keep_a_program_from_starting(tb: Timeball, rows: Rows) -> None:
    @tb.every("1h", name="campaign", ends_at=datetime.now(UTC) - timedelta(days=1))
    @tb.every("1h", name="goes on")
    def work() -> None: ...

    assert tb.sync_schedules() == ["goes on"]
    assert rows("SELECT name FROM timeball.job") == [{"name": "goes on"}]


def test_a_serial_overlap_limits_the_schedule_and_not_its_handler(tb: Timeball, rows: Rows) -> None:
    @tb.every("1h", name="in turns", overlap="queue")
    @tb.handler(name="work", max_running=5)
    def work() -> None: ...

    work.enqueue()
    tb.sync_schedules()

    limits = rows("SELECT key, max_running FROM timeball.running_limit ORDER BY max_running")
    assert [row["max_running"] for row in limits] == [1, 5]
    assert limits[1]["key"] == "work"


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda tb: tb.cron("0 25 * * *"), 'cron "0 25 \\* \\* \\*": hour is 25, expected 0-23'),
        (lambda tb: tb.cron("0 0 31 2 *"), "never"),
        (lambda tb: tb.cron("@daily", timezone="Mars/Olympus"), "Mars/Olympus"),
        (lambda tb: tb.every("0s"), "interval"),
        (lambda tb: tb.every("500ms"), "interval"),
        (lambda tb: tb.every("1h", overlap="perhaps"), 'overlap is "perhaps", expected skip, allow'),
        (lambda tb: tb.every("1h", jitter="1500ms"), 'jitter is "1500ms", expected a whole number of seconds'),
        (lambda tb: tb.every("1h", arguments={"m": 1}), "m is unknown, expected n"),
        (lambda tb: tb.every("1h", argument={"n": 1}), "@tb.every has no option 'argument'"),
    ],
    ids=["hour", "never", "zone", "zero", "half", "overlap", "jitter", "arguments", "option"],
)
def test_a_wrong_schedule_is_refused_at_the_declaration(
    tb: Timeball, make: Callable[[Timeball], Any], problem: str
) -> None:
    def work(n: int = 0) -> None: ...

    with pytest.raises(InvalidInput, match=problem):
        make(tb)(work)


def test_a_refused_schedule_leaves_no_handler_behind(tb: Timeball) -> None:
    def work() -> None: ...

    with pytest.raises(InvalidInput, match="hour is 25"):
        tb.cron("0 25 * * *")(work)
    corrected = tb.cron("0 23 * * *")(work)

    assert tb.schedules[corrected.name].schedule == "0 23 * * *"
    with pytest.raises(InvalidInput, match="hour is 25"):
        tb.cron("0 25 * * *", name="late")(corrected)
    assert tb.registry.get(corrected.name) is corrected.handler


def test_two_schedules_of_one_name_are_refused(tb: Timeball) -> None:
    def work() -> None: ...

    tb.cron("@daily")(work)

    with pytest.raises(Conflict, match=r"handler .*work' is declared twice"):
        tb.cron("@hourly")(work)
    with pytest.raises(Conflict, match=r"schedule 'a' is declared twice"):
        tb.cron("@hourly", name="a")(tb.cron("@daily", name="a")(tb.handler(name="b")(work)))


def test_errors_of_schedules_have_their_own_class(tb: Timeball) -> None:
    with pytest.raises(ScheduleError):
        tb.cron("nonsense")(print)
