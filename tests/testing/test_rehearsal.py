"""Programs on a clock that a test moves: the engine is the real one, and so is the SQL."""

from __future__ import annotations

import asyncio
import itertools
import threading
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

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


def test_what_is_due_runs_and_what_is_not_waits(rehearsal: TimeballHarness, tb: Timeball) -> None:
    @tb.handler
    def double(number: int) -> int:
        return 2 * number

    rehearsal.use(tb)
    now = double.enqueue(1)
    later = double.options(delay="10m").enqueue(2)

    assert rehearsal.drain() == (1, 0, 0)
    assert (now.result(), later.state()) == (2, ExecutionState.SCHEDULED)
    assert rehearsal.clock.now() == START
    assert rehearsal.clock.advance("10m") == (1, 0, 0)
    assert later.result() == 4


def test_a_delay_shorter_than_the_look_ahead_is_kept(rehearsal: TimeballHarness, tb: Timeball) -> None:
    @tb.handler
    def soon() -> None: ...

    rehearsal.use(tb)
    soon.options(delay=0.2).enqueue()

    assert rehearsal.drain() == (0, 0, 0)
    assert rehearsal.clock.advance(0.2) == (1, 0, 0)
    assert rehearsal.last(soon).started_at == START + timedelta(seconds=0.2)


def test_what_a_handler_enqueues_is_drained_too(rehearsal: TimeballHarness, tb: Timeball) -> None:
    @tb.handler
    def countdown(number: int) -> None:
        if number:
            countdown.enqueue(number - 1)

    rehearsal.use(tb)
    countdown.enqueue(3)

    assert rehearsal.drain() == (4, 0, 0)
    assert rehearsal.last(countdown).result is None


def test_what_is_enqueued_after_the_turn_has_claimed_is_drained_too(rehearsal: TimeballHarness, tb: Timeball) -> None:
    has_claimed = threading.Event()

    @tb.handler
    def child() -> None: ...

    @tb.handler
    def parent() -> None:
        has_claimed.wait(60)
        child.enqueue()

    rehearsal.use(tb)
    rehearsal.call(partial(_end_parents_between_claims, has_claimed))
    parent.enqueue()

    assert rehearsal.drain() == (2, 0, 0)


async def _end_parents_between_claims(has_claimed: threading.Event, stage: ManualNodes) -> None:
    """Let the parent go on when the second turn has claimed, and the turn when the parent has ended."""
    cancellation_poller, executor, turns = stage._worker.cancellation_poller, stage._worker.executor, itertools.count(1)
    tick = cancellation_poller.tick

    async def watched() -> timedelta:
        if next(turns) == 2:
            has_claimed.set()
            await executor.wait_idle(60)
        return await tick()

    cancellation_poller.tick = watched  # type: ignore[method-assign]


def test_a_handler_may_wait_for_another(rehearsal: TimeballHarness, tb: Timeball) -> None:
    @tb.handler
    def child() -> int:
        return 7

    @tb.handler
    async def parent() -> int:
        return await (await child.aenqueue()).aresult(timeout=60)

    rehearsal.use(tb)
    parent.enqueue()

    assert rehearsal.drain() == (2, 0, 0)
    assert rehearsal.last(parent).result == 7


def test_more_than_there_are_slots_all_run(rehearsal: TimeballHarness, tb: Timeball) -> None:
    @tb.handler
    async def note(number: int) -> None: ...

    rehearsal.use(tb)
    note.enqueue_many(note.call(number) for number in range(200))

    assert rehearsal.drain() == (200, 0, 0)


def test_a_job_that_runs_alone_takes_its_turns(rehearsal: TimeballHarness, tb: Timeball) -> None:
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

    rehearsal.use(tb)
    for _ in range(3):
        alone.enqueue()

    assert rehearsal.clock.advance("3m") == (6, 0, 0)
    assert together == [1, 1, 1]


def test_retries_come_at_their_time(rehearsal: TimeballHarness, tb: Timeball) -> None:
    @tb.handler(retries=2)
    def stubborn() -> str:
        if current.attempt == 1:
            raise Retry("not yet", after="5m")
        if current.attempt == 2:
            raise ValueError("no luck")
        return "at last"

    rehearsal.use(tb)
    run = stubborn.enqueue()

    assert rehearsal.drain() == (0, 1, 0)
    assert run.state() is ExecutionState.RETRYING
    assert rehearsal.drain() == (0, 0, 0)
    assert rehearsal.clock.advance("299s") == (0, 0, 0)
    assert rehearsal.clock.advance("1s") == (0, 1, 0)
    rehearsal.clock.advance("1h")
    assert (run.result(), rehearsal.last(stubborn).attempts) == ("at last", 3)


def test_snoozes_and_cancellations_are_no_failures(rehearsal: TimeballHarness, tb: Timeball) -> None:
    @tb.handler
    def snoozing() -> Snooze | str:
        return Snooze("1h") if rehearsal.clock.now() < minutes(60) else "awake"

    @tb.handler
    def given_up() -> None:
        raise Cancel("nobody wants it")

    rehearsal.use(tb)
    snoozing.enqueue()
    given_up.enqueue()

    assert rehearsal.drain(raise_errors=True) == (0, 0, 2)
    rehearsal.clock.advance("1h")
    assert rehearsal.last(snoozing).result == "awake"
    assert rehearsal.last(given_up).state == "cancelled"


def test_a_pause_ends_at_its_time(rehearsal: TimeballHarness, tb: Timeball) -> None:
    @tb.every("10m", name="steady")
    def steady() -> None: ...

    rehearsal.use(tb)
    tb.pause("steady", until=minutes(25))
    rehearsal.clock.advance("40m")

    assert [fired.at for fired in rehearsal.fired("steady")] == [minutes(30), minutes(40)]


def test_isolated_handlers_and_plain_ones_run_where_the_test_is(rehearsal: TimeballHarness, tb: Timeball) -> None:
    seen: list[str] = []

    @tb.handler(isolate=True)
    def isolated() -> None:
        seen.append("isolated")

    @tb.handler(isolate=True)
    async def isolated_coroutine() -> None:
        seen.append("coroutine")

    rehearsal.use(tb)
    isolated.enqueue()
    isolated_coroutine.enqueue()
    rehearsal.drain(raise_errors=True)

    assert sorted(seen) == ["coroutine", "isolated"]


def test_errors_are_raised_on_request_with_the_trace_of_the_handler(rehearsal: TimeballHarness, tb: Timeball) -> None:
    @tb.handler(retries=0)
    def broken(number: int) -> None:
        raise ValueError(f"no luck with {number}")

    rehearsal.use(tb)
    broken.enqueue(1)
    with pytest.raises(ExecutionFailed, match="is dead: ValueError: no luck with 1") as one:
        rehearsal.drain(raise_errors=True)
    broken.options(delay="1m").enqueue(2)
    broken.options(delay="2m").enqueue(3)
    with pytest.raises(ExceptionGroup, match="2 attempts failed") as several:
        rehearsal.clock.advance("1h", raise_errors=True)

    assert "in broken" in one.value.__notes__[0]
    assert [error.error for error in several.value.exceptions if isinstance(error, ExecutionFailed)] == [
        "ValueError: no luck with 2",
        "ValueError: no luck with 3",
    ]


def test_a_handler_that_does_not_end_fails_the_test(rehearsal: TimeballHarness, tb: Timeball) -> None:
    released = threading.Event()

    @tb.handler
    def stuck() -> None:
        released.wait(60)

    rehearsal.use(tb)
    rehearsal.patience = "100ms"
    stuck.enqueue()

    with pytest.raises(ResultTimeout, match="stuck still runs after 100ms of real time"):
        rehearsal.drain()
    released.set()


def test_what_a_handler_says_is_kept(rehearsal: TimeballHarness, tb: Timeball) -> None:
    @tb.handler
    def chatty() -> None:
        current.log("hello")

    rehearsal.use(tb)
    chatty.enqueue()
    rehearsal.drain()

    assert rehearsal.log(rehearsal.last(chatty)) == ["hello"]


# looking


def test_enqueued_is_found_by_the_arguments_that_matter(rehearsal: TimeballHarness, tb: Timeball) -> None:
    @tb.handler
    def send(order: int, to: str, *rest: str, copy: bool = False, at: datetime | None = None, **more: Any) -> None: ...

    rehearsal.use(tb)
    moment = datetime(2026, 5, 1, tzinfo=UTC)
    first = send.enqueue(1, "ada", "x", at=moment, colour="red")
    send.enqueue(2, "ada")

    found = rehearsal.assert_enqueued(send, 1)
    rehearsal.assert_enqueued(send, to="ada", times=2)
    rehearsal.assert_enqueued(send, 1, "ada", "x", at=moment, colour="red", copy=False, times=1)
    rehearsal.assert_enqueued(send.name, order=2, times=1)
    rehearsal.assert_enqueued(send.call(2, "ada"), times=1)
    rehearsal.assert_enqueued(send.call(1, "ada"), times=0)
    rehearsal.assert_enqueued(send, 3, times=0)
    rehearsal.assert_enqueued(send, colour="blue", times=0)
    assert [execution.state for execution in found] == [first.state()]
    rehearsal.drain()
    rehearsal.assert_enqueued(send, times=2)


def test_what_was_not_enqueued_is_said_beside_what_was(rehearsal: TimeballHarness, tb: Timeball) -> None:
    @tb.handler(name="send")
    def send(order: int) -> None: ...

    rehearsal.use(tb)
    with pytest.raises(
        AssertionError, match=r"send\(order=1\) was enqueued 0 times, expected at least once.*\n  nothing"
    ):
        rehearsal.assert_enqueued(send, 1)
    send.enqueue(2)
    with pytest.raises(AssertionError, match=r"enqueued 1 times, expected 3 times; enqueued were:\n  send\(order=2\)"):
        rehearsal.assert_enqueued(send, times=3)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda r, send: r.assert_enqueued(send, colour="red"), "colour is unknown, expected"),
        (lambda r, send: r.assert_enqueued("send", 1), "arguments of 'send' need names"),
        (lambda r, send: r.assert_enqueued(send.call(1), 1), "has its arguments already"),
        (lambda r, send: r.clock.advance_to(minutes(-1)), "none goes back"),
        (lambda r, send: r.clock.advance("soon"), "soon"),
        (lambda r, send: r.use(Timeball()), "uses a program already"),
    ],
)
def test_questions_that_make_no_sense_are_refused(
    rehearsal: TimeballHarness, tb: Timeball, ask: Any, message: str
) -> None:
    @tb.handler(name="send")
    def send(order: int) -> None: ...

    rehearsal.use(tb)

    with pytest.raises(InvalidInput, match=message):
        ask(rehearsal, send)


def test_a_program_is_needed_first(rehearsal: TimeballHarness) -> None:
    with pytest.raises(InvalidInput, match="no program yet") as refused:
        rehearsal.drain()

    assert "timeball_app" in str(refused.value.hint)


def test_the_last_execution_is_the_one_enqueued_last(rehearsal: TimeballHarness, tb: Timeball) -> None:
    @tb.handler
    def echo(number: int) -> int:
        return number

    @tb.handler(name="silent")
    def silent() -> None: ...

    rehearsal.use(tb)
    for number in range(12):
        echo.enqueue(number)
    rehearsal.drain()
    echo.options(delay="1h").enqueue(99)

    assert rehearsal.last(echo).result == 11
    assert [each.result for each in rehearsal.executions(echo)] == [*range(12), None]
    with pytest.raises(AssertionError, match=r"silent has no execution in this test; those that have: .*echo"):
        rehearsal.last(silent)


def test_fired_tells_when_on_both_clocks(rehearsal: TimeballHarness, tb: Timeball) -> None:
    @tb.cron("30 14 * * *", timezone="Asia/Kolkata", name="tea")
    def tea() -> None: ...

    rehearsal.use(tb)
    rehearsal.clock.advance_to("2026-03-03T09:00Z")
    (fired,) = rehearsal.fired("tea")

    assert fired == rehearsal.fired(tea)[0] == Fired(datetime(2026, 3, 3, 9, tzinfo=UTC), fired.local)
    assert (str(fired), fired.local.hour) == ("2026-03-03 14:30:00 IST", 14)


def test_what_was_skipped_or_called_off_has_not_fired(rehearsal: TimeballHarness, tb: Timeball) -> None:
    @tb.every("10m", name="steady")
    def steady() -> None: ...

    rehearsal.use(tb)
    tb.trigger("steady").cancel()
    tb.pause("steady")
    rehearsal.clock.advance("25m")
    tb.resume("steady")
    rehearsal.clock.advance("5m")

    assert [fired.at for fired in rehearsal.fired("steady")] == [minutes(30)]


# programs


def test_schedules_can_be_chosen(rehearsal: TimeballHarness, tb: Timeball) -> None:
    @tb.every("10m", name="one")
    def one() -> None: ...

    @tb.every("10m", name="two")
    def two() -> None: ...

    with pytest.raises(InvalidInput, match="there is no schedule three; this program declares one, two"):
        rehearsal.use(tb, schedules=["three"])
    rehearsal.use(tb, schedules=["two"])
    rehearsal.clock.advance("10m")

    assert (len(rehearsal.fired("one")), len(rehearsal.fired("two"))) == (0, 1)


def test_a_program_gets_back_what_was_its_own(rehearsal: TimeballHarness, tb: Timeball) -> None:
    own = tb.settings

    rehearsal.use(tb)
    assert tb.settings.database_url != own.database_url
    rehearsal.close()

    assert tb.settings is own


async def test_a_lifespan_starts_no_worker_beside_that_of_the_test(
    rehearsal: TimeballHarness, tb: Timeball, fresh_database: FreshDatabase
) -> None:
    @tb.handler
    async def quick() -> None: ...

    rehearsal.use(tb)
    async with tb.lifespan(worker=True, scheduler=True)(None):
        await quick.aenqueue()
        nodes = fresh_database.server.execute("SELECT name FROM timeball.node", fresh_database.name)

    assert nodes == [("rehearsal",), ("rehearsal",)]
    assert (await rehearsal.alast(quick)).state == "queued"
