"""A loop with one duty: it rests, wakes, survives errors and stops."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from tests.engine.simulation.leaping_loop import leaping
from tests.engine.support import PATIENCE_SECONDS, Heard, until
from timeball.engine.node import AT_ONCE, Service, SharedTimer
from timeball.env import Env
from timeball.errors import StoreUnavailable
from timeball.telemetry.events import ServiceFailed, ServiceRecovered
from timeball.testing import VirtualClock

FOREVER = timedelta(days=1)


class Scripted(Service):
    """Does what it is told, round by round; then rests."""

    def __init__(self, env: Env, heard: Heard, *script: object) -> None:
        super().__init__(env, heard)
        self.script = list(script)
        self.rounds = 0

    async def tick(self) -> timedelta:
        self.rounds += 1
        step = self.script.pop(0) if self.script else FOREVER
        if isinstance(step, BaseException):
            raise step
        assert isinstance(step, timedelta)
        return step


async def stopped(service: Service, task: asyncio.Task[None]) -> None:
    service.stop()
    await asyncio.wait_for(task, PATIENCE_SECONDS)


@pytest.fixture
def no_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who rests does so for a day, unless it is woken: so no test has to be quicker than the next poll."""
    monkeypatch.setattr("timeball.engine.node.LONGEST_REST", FOREVER)


@pytest.fixture
def long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has failed pauses for hours: so no test has to be quicker than the end of that."""
    for name in ("_FIRST_PAUSE", "_LONGEST_PAUSE"):
        monkeypatch.setattr(f"timeball.engine.node.{name}", FOREVER.total_seconds())


def run(service: Service, timer: SharedTimer | None = None) -> asyncio.Task[None]:
    return asyncio.ensure_future(service.run(timer))


@pytest.mark.usefixtures("no_poll")
async def test_it_ticks_again_as_long_as_there_is_something_to_do(env: Env, heard: Heard) -> None:
    service = Scripted(env, heard, *[AT_ONCE] * 50)
    task = run(service)

    await until(lambda: service.rounds == 51)

    await stopped(service, task)


async def test_one_that_is_never_done_lets_the_others_have_a_turn(env: Env, heard: Heard) -> None:
    service = Scripted(env, heard, *[AT_ONCE] * 100_000)
    task = run(service)

    for _ in range(20):
        await asyncio.sleep(0)

    assert 5 < service.rounds < 50
    await stopped(service, task)


@pytest.mark.usefixtures("no_poll")
async def test_waking_ends_the_rest(env: Env, heard: Heard) -> None:
    service = Scripted(env, heard)
    task = run(service)
    await until(lambda: service.rounds == 1)

    service.wake()
    await until(lambda: service.rounds == 2)

    await stopped(service, task)


@pytest.mark.usefixtures("no_poll")
async def test_waking_during_a_round_skips_the_next_rest(env: Env, heard: Heard) -> None:
    class Busy(Scripted):
        async def tick(self) -> timedelta:
            if self.rounds == 0:
                self.wake()
            return await super().tick()

    service = Busy(env, heard)
    task = run(service)

    await until(lambda: service.rounds == 2)

    await stopped(service, task)


async def test_no_rest_is_longer_than_a_second(env: Env, heard: Heard) -> None:
    """No wake-up is ever needed for progress."""
    service = Scripted(env, heard, FOREVER)
    task = run(service)

    await until(lambda: service.rounds >= 2)

    await stopped(service, task)


async def test_those_of_a_node_are_woken_together(env: Env, clock: VirtualClock, heard: Heard) -> None:
    services = [Scripted(env, heard) for _ in range(10)]
    timer = SharedTimer()

    with leaping(clock) as leaper:
        tasks = [run(service, timer) for service in services]
        await asyncio.sleep(60.5)

    assert {service.rounds for service in services} == {61}
    assert leaper.wakes <= 62
    for service, task in zip(services, tasks, strict=True):
        await stopped(service, task)


async def test_a_service_woken_between_two_beats_rests_until_the_next_beat(
    env: Env, clock: VirtualClock, heard: Heard
) -> None:
    early, late = Scripted(env, heard), Scripted(env, heard)
    timer = SharedTimer()

    with leaping(clock):
        tasks = [run(service, timer) for service in (early, late)]
        await asyncio.sleep(0.9)
        late.wake()
        await asyncio.sleep(0.2)

    assert (early.rounds, late.rounds) == (2, 3)
    for service, task in zip((early, late), tasks, strict=True):
        await stopped(service, task)


async def test_a_shorter_rest_does_not_wait_for_the_beat(env: Env, clock: VirtualClock, heard: Heard) -> None:
    service = Scripted(env, heard, *[timedelta(milliseconds=100)] * 8)

    with leaping(clock):
        task = run(service)
        await asyncio.sleep(0.95)

    assert service.rounds == 9
    await stopped(service, task)


async def test_a_service_that_meant_to_rest_a_little_longer_acts_at_the_beat(
    env: Env, clock: VirtualClock, heard: Heard
) -> None:
    """Or it would be a whole beat late, every time."""
    service = Scripted(env, heard)
    planned = clock.monotonic() + 2

    clock.advance("1800ms")
    assert not service.is_time(planned)
    clock.advance("150ms")
    assert service.is_time(planned)


@pytest.mark.usefixtures("no_poll")
async def test_stopping_ends_the_rest_and_lets_the_round_be_the_last(env: Env, heard: Heard) -> None:
    service = Scripted(env, heard)
    task = run(service)
    await until(lambda: service.rounds == 1)

    await stopped(service, task)

    assert service.rounds == 1
    assert service.is_stopping


@pytest.mark.usefixtures("no_poll")
async def test_an_error_pauses_it_and_does_not_end_it(env: Env, heard: Heard) -> None:
    service = Scripted(env, heard, ValueError("oh"), AT_ONCE)
    task = run(service)

    await until(lambda: service.rounds == 3)

    (failed,) = heard.of(ServiceFailed)
    assert (failed.service, failed.error) == ("scripted", "ValueError: oh")
    assert timedelta(seconds=0.05) <= failed.pause <= timedelta(seconds=0.1)
    assert "in tick" in (failed.traceback or "")
    assert heard.of(ServiceRecovered) == [ServiceRecovered("scripted", 1)]
    await stopped(service, task)


async def test_an_unreachable_database_is_told_without_a_stack(env: Env, heard: Heard) -> None:
    service = Scripted(env, heard, StoreUnavailable("gone"))
    task = run(service)

    await until(lambda: heard)

    assert heard.of(ServiceFailed)[0].traceback is None
    await stopped(service, task)


async def test_the_pauses_grow_up_to_a_second(env: Env, heard: Heard) -> None:
    service = Scripted(env, heard)

    pauses = [service._after_error(ValueError("oh")).total_seconds() for _ in range(30)]

    for number, pause in enumerate(pauses):
        longest = min(0.1 * 2**number, 1)
        assert longest / 2 <= pause <= longest
    assert len(set(pauses)) == 30, "those that failed together do not come back together"


@pytest.mark.usefixtures("no_poll")
async def test_a_success_makes_the_pauses_short_again(env: Env, heard: Heard) -> None:
    service = Scripted(env, heard, ValueError("1"), AT_ONCE, ValueError("2"), AT_ONCE)
    task = run(service)

    await until(lambda: service.rounds == 5)

    assert all(failed.pause <= timedelta(seconds=0.1) for failed in heard.of(ServiceFailed))
    assert heard.of(ServiceRecovered) == [ServiceRecovered("scripted", 1)] * 2
    await stopped(service, task)


@pytest.mark.usefixtures("long_pauses")
async def test_waking_does_not_end_the_pause_after_an_error(env: Env, heard: Heard) -> None:
    """A busy service would run into the same wall over and over."""
    service = Scripted(env, heard, ValueError("oh"))
    task = run(service)
    await until(lambda: heard)

    for _ in range(20):
        service.wake()
        await asyncio.sleep(0)

    assert service.rounds == 1
    await stopped(service, task)


@pytest.mark.usefixtures("long_pauses")
async def test_stopping_ends_the_pause_after_an_error(env: Env, heard: Heard) -> None:
    service = Scripted(env, heard, *[ValueError("oh")] * 9)
    task = run(service)
    await until(lambda: heard)

    await stopped(service, task)

    assert service.rounds == 1


@pytest.mark.usefixtures("no_poll")
async def test_it_can_be_cut_off(env: Env, heard: Heard) -> None:
    service = Scripted(env, heard)
    task = run(service)
    await until(lambda: service.rounds == 1)

    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
