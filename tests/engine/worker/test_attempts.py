"""The relay: attempts that never wait share a task, and none of them notices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack
from contextvars import ContextVar

import pytest

from tests.engine.support import PATIENCE_SECONDS, make_executor, until
from tests.engine.worker.test_executor import Findings, claim
from timeball.current import RUNNING, AttemptContext, OwnSlot
from timeball.domain.execution import Failed, Outcome, Released, Succeeded, TimeoutOutcome
from timeball.domain.handler import Handler
from timeball.engine.runners.in_process import CoroutineRunner
from timeball.engine.worker.attempts import most_lent
from timeball.engine.worker.executor import Executor
from timeball.env import Env
from timeball.handlers.registry import Registry, make_handler
from timeball.testing import VirtualClock

Make = Callable[..., Executor]
COLOUR: ContextVar[str] = ContextVar("colour", default="none")


@pytest.fixture
def findings() -> Findings:
    return Findings()


@pytest.fixture
async def make(env: Env, findings: Findings) -> AsyncIterator[Make]:
    """Executors of these handlers, by their names."""
    made: list[Executor] = []

    def make(slots: int = 20, **handlers: Callable[[], Awaitable[object]]) -> Executor:
        known = Registry([make_handler(function, name=name) for name, function in handlers.items()])
        made.append(make_executor(env, CoroutineRunner(), slots, known, findings.append))
        return made[-1]

    yield make
    for executor in made:
        executor.abandon()


async def test_attempts_that_never_wait_share_a_task(make: Make, findings: Findings) -> None:
    tasks = []

    async def quick() -> None:
        tasks.append(asyncio.current_task())

    make(quick=quick).accept([claim(number=number, handler="quick") for number in range(50)])
    await until(lambda: len(findings) == 50)

    assert len(set(tasks)) == 1
    assert [finding.claimed.id.int for finding in findings] == list(range(50))


async def test_an_attempt_that_awaits_keeps_its_task_and_delays_no_other(make: Make, findings: Findings) -> None:
    gate, tasks = asyncio.Event(), []

    async def slow() -> None:
        tasks.append(asyncio.current_task())
        await gate.wait()
        assert asyncio.current_task() in tasks

    async def quick() -> None:
        assert asyncio.current_task() not in tasks

    executor = make(slots=4, slow=slow, quick=quick)
    executor.accept([claim(number=number, handler="slow" if number % 2 else "quick") for number in range(1, 7)])
    await until(lambda: len(findings) == 3 and len(tasks) == 3)

    assert executor.busy == 3
    assert len(set(tasks)) == 3
    assert sorted(findings.outcomes) == [2, 4, 6]
    gate.set()
    await until(lambda: len(findings) == 6)
    assert set(findings.outcomes.values()) == {Succeeded()}


async def test_those_that_wait_run_together_in_all_slots_and_no_more(make: Make, findings: Findings) -> None:
    gate, most, now = asyncio.Event(), 0, 0

    async def slow() -> None:
        nonlocal most, now
        now += 1
        most = max(most, now)
        await gate.wait()
        now -= 1

    make(slots=3, slow=slow).accept([claim(number=number, handler="slow") for number in range(8)])
    await until(lambda: now == 3)
    gate.set()
    await until(lambda: len(findings) == 8)

    assert most == 3


async def test_as_many_attempts_as_may_lend_their_slots_to_others(make: Make, findings: Findings) -> None:
    """They wait for other runs, each for two of them."""
    gate, contexts = asyncio.Event(), []

    async def parent() -> None:
        contexts.append(RUNNING.get())
        with OwnSlot().lent(), OwnSlot().lent():
            await gate.wait()
        await asyncio.sleep(0)

    executor = make(slots=2, parent=parent)
    executor.accept([claim(number=number, handler="parent") for number in range(2 + most_lent(2) + 3)])
    await until(lambda: len(contexts) == 2 + most_lent(2))
    await asyncio.sleep(0)

    assert (len(contexts), executor.running, executor.busy, executor.free_slots) == (12, 12, 2, 0)
    gate.set()
    await until(lambda: len(findings) == 15)
    assert (executor.running, executor.busy, executor.slots.lent) == (0, 0, {})


async def test_an_attempt_that_has_ended_lends_nothing(make: Make, findings: Findings) -> None:
    slots: list[OwnSlot] = []
    left_open = ExitStack()

    async def leaky() -> None:
        slots.append(OwnSlot())
        left_open.enter_context(slots[0].lent())
        await asyncio.sleep(0)

    executor = make(slots=1, leaky=leaky)
    executor.accept([claim(handler="leaky")])
    await until(lambda: len(findings) == 1)
    with slots[0].lent():
        await asyncio.sleep(0)

        assert (executor.running, executor.busy, executor.free_slots) == (0, 0, 1)
    left_open.close()
    await asyncio.sleep(0)
    assert executor.slots.lent == {}


async def test_a_handler_that_no_longer_awaits_runs_inline_again(make: Make, findings: Findings) -> None:
    tasks, must_wait = [], True

    async def moody() -> None:
        tasks.append(asyncio.current_task())
        if must_wait:
            await asyncio.sleep(0)

    executor = make(moody=moody)
    executor.accept([claim(number=number, handler="moody") for number in range(10)])
    await until(lambda: len(findings) == 10)
    must_wait = False
    executor.accept([claim(number=10, handler="moody")])
    await until(lambda: len(findings) == 11)
    tasks.clear()
    executor.accept([claim(number=number, handler="moody") for number in range(11, 31)])
    await until(lambda: len(findings) == 31)

    assert len(set(tasks)) == 1


async def test_what_an_attempt_left_in_its_context_is_not_seen_by_the_next(make: Make, findings: Findings) -> None:
    seen = []

    async def painter() -> None:
        seen.append(COLOUR.get())
        COLOUR.set("red")

    make(painter=painter).accept([claim(number=number, handler="painter") for number in range(3)])
    await until(lambda: len(findings) == 3)

    assert seen == ["none"] * 3


@pytest.mark.parametrize("waits", [False, True])
async def test_a_handler_that_cancels_its_task_fails_alone(make: Make, findings: Findings, waits: bool) -> None:
    async def desperate() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        if waits:
            await asyncio.sleep(0)

    async def quick() -> None:
        await asyncio.sleep(0)

    executor = make(desperate=desperate, quick=quick)
    executor.accept([claim(number=number, handler="quick" if number else "desperate") for number in range(4)])
    await until(lambda: len(findings) == 4)

    assert {findings.outcomes[number] for number in (1, 2, 3)} == {Succeeded()}
    assert isinstance(findings.outcomes[0], Failed) == waits
    assert executor.busy == 0


async def test_an_attempt_that_awaits_inline_has_its_timeout(
    make: Make, findings: Findings, clock: VirtualClock
) -> None:
    async def endless() -> None:
        await asyncio.Event().wait()

    make(endless=endless).accept([claim(handler="endless", timeout_ms=10)])
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    clock.advance("1s")
    await until(lambda: findings)

    assert isinstance(findings.outcomes[1], TimeoutOutcome)


async def test_what_comes_after_one_that_waited_has_its_timeout_too(
    make: Make, findings: Findings, clock: VirtualClock
) -> None:
    """It is not begun in the task that the other attempt kept: there the pool would not notice that it awaits."""
    gate, begun = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        await gate.wait()

    async def endless() -> None:
        begun.set()
        await asyncio.Event().wait()

    executor = make(slots=1, slow=slow, endless=endless)
    executor.accept([claim(handler="slow"), claim(number=2, handler="endless", timeout_ms=10)])
    await asyncio.sleep(0)
    gate.set()
    await begun.wait()
    await asyncio.sleep(0)
    clock.advance("1s")
    await until(lambda: len(findings) == 2)

    assert isinstance(findings.outcomes[2], TimeoutOutcome)


async def test_the_loop_turns_now_and_then(make: Make, findings: Findings, clock: VirtualClock) -> None:
    done_when_turned: list[int] = []

    async def laborious() -> None:
        clock.advance("0.5ms")

    make(laborious=laborious).accept([claim(number=number, handler="laborious") for number in range(10)])
    while len(findings) < 10:
        await asyncio.sleep(0)
        done_when_turned.append(len(findings))

    assert len(done_when_turned) >= 5


async def test_free_slots_are_announced_whenever_the_inline_task_yields(
    make: Make, findings: Findings, clock: VirtualClock
) -> None:
    told: list[int] = []

    async def laborious() -> None:
        clock.advance("2ms")

    executor = make(laborious=laborious)
    executor.slots.freed.subscribe(lambda: told.append(len(findings)))
    executor.accept([claim(number=number, handler="laborious") for number in range(3)])
    await until(lambda: len(findings) == 3)

    assert told[:2] == [1, 2]


async def test_an_attempt_that_kept_its_task_does_not_run_others_inline(
    make: Make, findings: Findings, clock: VirtualClock
) -> None:
    """It ends while the relay rests between two attempts: neither does it go on as a second one, nor is everything idle."""
    gate, tasks, was_idle = asyncio.Event(), [], []

    async def slow() -> None:
        await gate.wait()

    async def laborious() -> None:
        clock.advance("2ms")
        gate.set()
        tasks.append(asyncio.current_task())
        was_idle.append(executor._attempts._idle.is_set())

    executor = make(slow=slow, laborious=laborious)
    executor.accept([claim(handler="slow")])
    await asyncio.sleep(0)
    executor.accept([claim(number=number, handler="laborious") for number in range(2, 8)])
    await until(lambda: len(findings) == 7)

    assert len(set(tasks)) == 1
    assert not any(was_idle)


async def _turn_until_something_is_done(findings: Findings) -> None:
    while not findings:
        await asyncio.sleep(0)


async def test_an_inline_task_that_yields_is_cancelled_too(make: Make, findings: Findings, clock: VirtualClock) -> None:
    async def laborious() -> None:
        clock.advance("2ms")

    executor = make(laborious=laborious)
    executor.accept([claim(number=number, handler="laborious") for number in range(10)])
    await _turn_until_something_is_done(findings)
    executor.abandon()
    done = len(findings)
    await asyncio.sleep(0.01)

    assert len(findings) == done < 10


async def test_executions_the_inline_task_has_not_begun_can_be_given_back(
    make: Make, findings: Findings, clock: VirtualClock
) -> None:
    async def laborious() -> None:
        clock.advance("2ms")

    executor = make(laborious=laborious)
    executor.accept([claim(number=number, handler="laborious") for number in range(10)])
    await _turn_until_something_is_done(findings)

    given_back = executor.give_back_all()
    assert await executor.wait_idle(PATIENCE_SECONDS)

    assert given_back == list(findings.outcomes.values()).count(Released()) > 0
    assert len(findings) == 10


async def test_a_runner_that_fails_costs_neither_the_slot_nor_the_outcome(env: Env, findings: Findings) -> None:
    class Broken(CoroutineRunner):
        async def run(self, handler: Handler, context: AttemptContext) -> Outcome:
            raise OSError("no process can be started")

    async def never() -> None:
        raise AssertionError("is not called")

    executor = make_executor(env, Broken(), 2, Registry([make_handler(never, name="never")]), findings.append)
    executor.accept([claim(number=number, handler="never") for number in range(5)])
    await until(lambda: len(findings) == 5)

    assert executor.busy == 0
    outcome = findings[0].outcome
    assert isinstance(outcome, Failed)
    assert outcome.error.message == "the attempt could not be run: no process can be started"
    executor.abandon()
