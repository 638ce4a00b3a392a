"""Programs on a clock that a test moves, with the real engine and the real SQL."""

from __future__ import annotations

import asyncio
import itertools
import threading
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import psycopg
import pytest

from tests.conftest import FreshDatabase
from timeball import Cancel, ExecutionFailed, InvalidInput, ResultTimeout, Retry, Snooze, Timeball, current
from timeball.domain.execution import ExecutionState
from timeball.testing import Fired, TimeballHarness
from timeball.testing.environment import START
from timeball.testing.nodes import ManualNodes

pytestmark = pytest.mark.parametrize("fresh_database", ["pg15"], indirect=True)


def minutes(number: float) -> datetime:
    return START + timedelta(minutes=number)


@pytest.fixture
def tb() -> Timeball:
    return Timeball(database_url="postgresql://nobody@nowhere.invalid/none")


# running


def test_drain_runs_due_executions_only(harness: TimeballHarness, tb: Timeball) -> None:
    @tb.handler
    def double(number: int) -> int:
        return 2 * number

    harness.use(tb)
    now = double.enqueue(1)
    later = double.options(delay="10m").enqueue(2)

    assert harness.drain() == (1, 0, 0)
    assert (now.result(), later.state()) == (2, ExecutionState.SCHEDULED)
    assert harness.clock.now() == START
    assert harness.clock.advance("10m") == (1, 0, 0)
    assert later.result() == 4


def test_drain_runs_what_a_transaction_has_written_under_a_limit(
    harness: TimeballHarness, tb: Timeball, fresh_database: FreshDatabase
) -> None:
    """Whoever writes it there cannot give it its place: that is free for others until the commit."""

    @tb.handler(max_running=1)
    def send(number: int) -> None: ...

    harness.use(tb)
    with psycopg.connect(fresh_database.server.dsn(fresh_database.name)) as connection:
        for number in range(3):
            send.options(connection=connection).enqueue(number)

    assert harness.drain() == (3, 0, 0)


def test_a_job_comes_after_each_success_of_another_for_the_same_instant(harness: TimeballHarness, tb: Timeball) -> None:
    """As the guide has it; the one that comes after is declared first."""
    refreshed: list[datetime] = []

    @tb.after("nightly-etl", name="figures")
    def refresh() -> None:
        refreshed.append(current.scheduled_for)

    @tb.cron("0 2 * * *", name="nightly-etl", retries=0)
    def load() -> None:
        if current.scheduled_for.day == 4:
            raise ValueError("the source is down")

    harness.use(tb)
    harness.clock.advance("3d")

    nights = [fired.at for fired in harness.fired("nightly-etl")]
    assert [night.day for night in nights] == [3, 4, 5]
    assert refreshed == [nights[0], nights[2]] == [fired.at for fired in harness.fired("figures")]

    again = tb.jobs.trigger("nightly-etl")
    harness.drain()
    assert again.state() is ExecutionState.SUCCEEDED
    assert len(refreshed) == 2, "a trigger is no occurrence"


def test_an_after_that_makes_a_circle_is_refused_where_it_is_declared(harness: TimeballHarness, tb: Timeball) -> None:
    @tb.after("second", name="first")
    def first() -> None: ...

    @tb.after("first", name="second")
    def second() -> None: ...

    with pytest.raises(InvalidInput, match="circle"):
        harness.use(tb)


def test_a_delay_shorter_than_the_promotion_window_is_kept(harness: TimeballHarness, tb: Timeball) -> None:
    @tb.handler
    def soon() -> None: ...

    harness.use(tb)
    soon.options(delay=0.2).enqueue()

    assert harness.drain() == (0, 0, 0)
    assert harness.clock.advance(0.2) == (1, 0, 0)
    assert harness.last(soon).started_at == START + timedelta(seconds=0.2)


def test_drain_runs_executions_that_a_handler_enqueues(harness: TimeballHarness, tb: Timeball) -> None:
    @tb.handler
    def countdown(number: int) -> None:
        if number:
            countdown.enqueue(number - 1)

    harness.use(tb)
    countdown.enqueue(3)

    assert harness.drain() == (4, 0, 0)
    assert harness.last(countdown).result is None


def test_drain_runs_executions_that_are_enqueued_after_a_round_has_claimed(
    harness: TimeballHarness, tb: Timeball
) -> None:
    has_claimed = threading.Event()

    @tb.handler
    def child() -> None: ...

    @tb.handler
    def parent() -> None:
        has_claimed.wait(60)
        child.enqueue()

    harness.use(tb)
    harness.call(partial(_end_parents_between_claims, has_claimed))
    parent.enqueue()

    assert harness.drain() == (2, 0, 0)


async def _end_parents_between_claims(has_claimed: threading.Event, nodes: ManualNodes) -> None:
    """Let the parent go on when the second round has claimed, and the round when the parent has ended."""
    cancellation_poller, executor, turns = nodes._worker.cancellation_poller, nodes._worker.executor, itertools.count(1)
    tick = cancellation_poller.tick

    async def watched() -> timedelta:
        if next(turns) == 2:
            has_claimed.set()
            await executor.wait_idle(60)
        return await tick()

    cancellation_poller.tick = watched  # type: ignore[method-assign]


def test_a_handler_may_wait_for_an_execution_it_enqueues(harness: TimeballHarness, tb: Timeball) -> None:
    @tb.handler
    def child() -> int:
        return 7

    @tb.handler
    async def parent() -> int:
        return await (await child.aenqueue()).aresult(timeout=60)

    harness.use(tb)
    parent.enqueue()

    assert harness.drain() == (2, 0, 0)
    assert harness.last(parent).result == 7


def test_drain_runs_more_executions_than_slots(harness: TimeballHarness, tb: Timeball) -> None:
    @tb.handler
    async def note(number: int) -> None: ...

    harness.use(tb)
    note.enqueue_many(note.call(number) for number in range(200))

    assert harness.drain() == (200, 0, 0)


def test_executions_of_a_serial_job_run_one_after_the_other(harness: TimeballHarness, tb: Timeball) -> None:
    together: list[int] = []
    running = 0

    @tb.handler(max_running=1)
    async def alone() -> None:
        nonlocal running
        running += 1
        together.append(running)
        await asyncio.sleep(0)
        running -= 1

    @tb.every("1m", name="alone", overlap="queue")
    @tb.handler
    def steady() -> None: ...

    harness.use(tb)
    for _ in range(3):
        alone.enqueue()

    assert harness.clock.advance("3m") == (6, 0, 0)
    assert together == [1, 1, 1]


def test_retries_run_at_their_time(harness: TimeballHarness, tb: Timeball) -> None:
    @tb.handler(retries=2)
    def stubborn() -> str:
        if current.attempt == 1:
            raise Retry("not yet", after="5m")
        if current.attempt == 2:
            raise ValueError("no luck")
        return "at last"

    harness.use(tb)
    run = stubborn.enqueue()

    assert harness.drain() == (0, 1, 0)
    assert run.state() is ExecutionState.RETRYING
    assert harness.drain() == (0, 0, 0)
    assert harness.clock.advance("299s") == (0, 0, 0)
    assert harness.clock.advance("1s") == (0, 1, 0)
    harness.clock.advance("1h")
    assert (run.result(), harness.last(stubborn).attempts) == ("at last", 3)


def test_snoozes_and_cancellations_do_not_count_as_failures(harness: TimeballHarness, tb: Timeball) -> None:
    @tb.handler
    def snoozing() -> Snooze | str:
        return Snooze("1h") if harness.clock.now() < minutes(60) else "awake"

    @tb.handler
    def given_up() -> None:
        raise Cancel("not needed")

    harness.use(tb)
    snoozing.enqueue()
    given_up.enqueue()

    assert harness.drain(raise_errors=True) == (0, 0, 2)
    harness.clock.advance("1h")
    assert harness.last(snoozing).result == "awake"
    assert harness.last(given_up).state == "cancelled"


def test_a_pause_ends_at_its_time(harness: TimeballHarness, tb: Timeball) -> None:
    @tb.every("10m", name="steady")
    def steady() -> None: ...

    harness.use(tb)
    tb.jobs.pause("steady", until=minutes(25))
    harness.clock.advance("40m")

    assert [fired.at for fired in harness.fired("steady")] == [minutes(30), minutes(40)]


def test_isolated_handlers_run_in_the_process_of_the_test(harness: TimeballHarness, tb: Timeball) -> None:
    seen: list[str] = []

    @tb.handler(isolate=True)
    def isolated() -> None:
        seen.append("isolated")

    @tb.handler(isolate=True)
    async def isolated_coroutine() -> None:
        seen.append("coroutine")

    harness.use(tb)
    isolated.enqueue()
    isolated_coroutine.enqueue()
    harness.drain(raise_errors=True)

    assert sorted(seen) == ["coroutine", "isolated"]


def test_raise_errors_does_not_raise_what_its_handler_expects(harness: TimeballHarness, tb: Timeball) -> None:
    @tb.handler(retries=0, expected=KeyError)
    def look_up(name: str) -> None:
        raise (KeyError if name == "expected" else ValueError)(name)

    harness.use(tb)
    look_up.enqueue("expected")
    assert harness.drain(raise_errors=True) == (0, 1, 0)

    look_up.enqueue("expected")
    look_up.enqueue("news")
    with pytest.raises(ExecutionFailed, match="is dead: ValueError: news"):
        harness.drain(raise_errors=True)


def test_raise_errors_raises_with_the_traceback_of_the_handler(harness: TimeballHarness, tb: Timeball) -> None:
    @tb.handler(retries=0)
    def broken(number: int) -> None:
        raise ValueError(f"no luck with {number}")

    harness.use(tb)
    broken.enqueue(1)
    with pytest.raises(ExecutionFailed, match="is dead: ValueError: no luck with 1") as failure:
        harness.drain(raise_errors=True)
    broken.options(delay="1m").enqueue(2)
    broken.options(delay="2m").enqueue(3)
    with pytest.raises(ExceptionGroup, match="2 attempts failed") as several:
        harness.clock.advance("1h", raise_errors=True)

    assert "in broken" in failure.value.__notes__[0]
    assert [error.error for error in several.value.exceptions if isinstance(error, ExecutionFailed)] == [
        "ValueError: no luck with 2",
        "ValueError: no luck with 3",
    ]


def test_a_handler_that_does_not_end_fails_the_test(harness: TimeballHarness, tb: Timeball) -> None:
    released = threading.Event()

    @tb.handler
    def stuck() -> None:
        released.wait(60)

    harness.use(tb)
    harness.patience = "100ms"
    stuck.enqueue()

    with pytest.raises(ResultTimeout, match="stuck still runs after 100ms of real time"):
        harness.drain()
    released.set()


def test_the_log_of_a_handler_is_kept(harness: TimeballHarness, tb: Timeball) -> None:
    @tb.handler
    def chatty() -> None:
        current.log("hello")

    harness.use(tb)
    chatty.enqueue()
    harness.drain()

    assert harness.log(harness.last(chatty)) == ["hello"]


# inspecting


def test_assert_enqueued_compares_the_given_arguments(harness: TimeballHarness, tb: Timeball) -> None:
    @tb.handler
    def send(order: int, to: str, *rest: str, copy: bool = False, at: datetime | None = None, **more: Any) -> None: ...

    harness.use(tb)
    moment = datetime(2026, 5, 1, tzinfo=UTC)
    first = send.enqueue(1, "ada", "x", at=moment, colour="red")
    send.enqueue(2, "ada")

    executions = harness.assert_enqueued(send, 1)
    harness.assert_enqueued(send, to="ada", times=2)
    harness.assert_enqueued(send, 1, "ada", "x", at=moment, colour="red", copy=False, times=1)
    harness.assert_enqueued(send.name, order=2, times=1)
    harness.assert_enqueued(send.call(2, "ada"), times=1)
    harness.assert_enqueued(send.call(1, "ada"), times=0)
    harness.assert_enqueued(send, 3, times=0)
    harness.assert_enqueued(send, colour="blue", times=0)
    assert [execution.state for execution in executions] == [first.state()]
    harness.drain()
    harness.assert_enqueued(send, times=2)


def test_a_failed_assert_enqueued_lists_the_calls(harness: TimeballHarness, tb: Timeball) -> None:
    @tb.handler(name="send")
    def send(order: int) -> None: ...

    harness.use(tb)
    with pytest.raises(
        AssertionError, match=r"send\(order=1\) was enqueued 0 times, expected at least once.*\n  nothing"
    ):
        harness.assert_enqueued(send, 1)
    send.enqueue(2)
    with pytest.raises(AssertionError, match=r"enqueued 1 times, expected 3 times; enqueued were:\n  send\(order=2\)"):
        harness.assert_enqueued(send, times=3)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda r, send: r.assert_enqueued(send, colour="red"), "colour is unknown, expected"),
        (lambda r, send: r.assert_enqueued("send", 1), "arguments of 'send' need names"),
        (lambda r, send: r.assert_enqueued(send.call(1), 1), "has its arguments already"),
        (lambda r, send: r.clock.advance_to(minutes(-1)), "it cannot go back"),
        (lambda r, send: r.clock.advance("soon"), "soon"),
        (lambda r, send: r.use(Timeball()), "uses a program already"),
    ],
)
def test_wrong_questions_are_refused(harness: TimeballHarness, tb: Timeball, ask: Any, message: str) -> None:
    @tb.handler(name="send")
    def send(order: int) -> None: ...

    harness.use(tb)

    with pytest.raises(InvalidInput, match=message):
        ask(harness, send)


def test_a_harness_without_a_program_raises(harness: TimeballHarness) -> None:
    with pytest.raises(InvalidInput, match="no program yet") as refused:
        harness.drain()

    assert "timeball_app" in str(refused.value.hint)


def test_the_last_execution_is_the_one_enqueued_last(harness: TimeballHarness, tb: Timeball) -> None:
    @tb.handler
    def echo(number: int) -> int:
        return number

    @tb.handler(name="silent")
    def silent() -> None: ...

    harness.use(tb)
    for number in range(12):
        echo.enqueue(number)
    harness.drain()
    echo.options(delay="1h").enqueue(99)

    assert harness.last(echo).result == 11
    assert [each.result for each in harness.executions(echo)] == [*range(12), None]
    with pytest.raises(AssertionError, match=r"silent has no execution in this test; those that have: .*echo"):
        harness.last(silent)


def test_fired_has_utc_and_local_time(harness: TimeballHarness, tb: Timeball) -> None:
    @tb.cron("30 14 * * *", timezone="Asia/Kolkata", name="tea")
    def tea() -> None: ...

    harness.use(tb)
    harness.clock.advance_to("2026-03-03T09:00Z")
    (fired,) = harness.fired("tea")

    assert fired == harness.fired(tea)[0] == Fired(datetime(2026, 3, 3, 9, tzinfo=UTC), fired.local)
    assert (str(fired), fired.local.hour) == ("2026-03-03 14:30:00 IST", 14)


def test_skipped_and_cancelled_occurrences_have_not_fired(harness: TimeballHarness, tb: Timeball) -> None:
    @tb.every("10m", name="steady")
    def steady() -> None: ...

    harness.use(tb)
    tb.jobs.trigger("steady").cancel()
    tb.jobs.pause("steady")
    harness.clock.advance("25m")
    tb.jobs.resume("steady")
    harness.clock.advance("5m")

    assert [fired.at for fired in harness.fired("steady")] == [minutes(30)]


# programs


def test_schedules_can_be_chosen(harness: TimeballHarness, tb: Timeball) -> None:
    @tb.every("10m", name="one")
    def one() -> None: ...

    @tb.every("10m", name="two")
    def two() -> None: ...

    with pytest.raises(InvalidInput, match="there is no schedule three; this program declares one, two"):
        harness.use(tb, schedules=["three"])
    harness.use(tb, schedules=["two"])
    harness.clock.advance("10m")

    assert (len(harness.fired("one")), len(harness.fired("two"))) == (0, 1)


def test_closing_gives_the_program_its_settings_back(harness: TimeballHarness, tb: Timeball) -> None:
    own = tb.settings

    harness.use(tb)
    assert tb.settings.database_url != own.database_url
    harness.close()

    assert tb.settings is own


async def test_a_lifespan_starts_no_worker_in_a_test(
    harness: TimeballHarness, tb: Timeball, fresh_database: FreshDatabase
) -> None:
    @tb.handler
    async def quick() -> None: ...

    harness.use(tb)
    async with tb.lifespan(worker=True, scheduler=True)(None):
        await quick.aenqueue()
        nodes = fresh_database.server.execute("SELECT name FROM timeball.node", fresh_database.name)

    assert nodes == [("test",), ("test",)]
    assert (await harness.alast(quick)).state == "queued"
