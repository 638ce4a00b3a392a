"""What all loops of a node share: waiting, waking, errors and stopping (`Service`), their timer, and signals between them."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from datetime import timedelta

from timeball.env import Env
from timeball.errors import StoreUnavailable
from timeball.telemetry.events import Emit, ServiceFailed, ServiceRecovered

AT_ONCE = timedelta(0)
LONGEST_REST = timedelta(seconds=1)
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 1.0
# The shared timer wakes a service up to this much before its time. The service acts then: the next beat would be a second late.
_EARLY_SECONDS = 0.1


class Signal:
    """Tells its subscribers that something has happened, in the order of their subscription."""

    __slots__ = ("_subscribers",)

    def __init__(self) -> None:
        self._subscribers: list[Callable[[], object]] = []

    def subscribe(self, subscriber: Callable[[], object]) -> None:
        """Call *subscriber* at each `send` from now on."""
        self._subscribers.append(subscriber)

    def send(self) -> None:
        """It has happened."""
        for subscriber in self._subscribers:
            subscriber()


class SharedTimer:
    """Wakes all resting services of a node once a second, so that none rests for longer.

    *phase* is the part of a second before the first beat. It differs by node: nodes that start together must not query the database
    at the same moments for ever.
    """

    def __init__(self, phase: float = 1.0) -> None:
        self._phase = phase
        self._resting: dict[asyncio.Event, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def wait(self, woken: asyncio.Event) -> None:
        """Wait until the event is set: by the next beat, or by anything else before that."""
        self._resting[woken] = None
        if self._timer is None:
            self._schedule_strike(self._phase * LONGEST_REST)
        try:
            await woken.wait()
        finally:
            self._resting.pop(woken, None)

    def _schedule_strike(self, rest: timedelta) -> None:
        self._timer = asyncio.get_running_loop().call_later(rest.total_seconds(), self._strike)

    def _strike(self) -> None:
        self._timer = None
        resting, self._resting = self._resting, {}
        if resting:
            # Scheduled now, before the services run: otherwise each beat would be late by what they do.
            self._schedule_strike(LONGEST_REST)
        for woken in resting:
            woken.set()


class Service:
    """Runs `tick` again and again until stopped. An error pauses the service; it does not end it."""

    def __init__(self, env: Env, emit: Emit) -> None:
        self.env = env
        self.emit = emit
        self._woken = asyncio.Event()
        self._stopped = asyncio.Event()
        self._failures = 0
        self.is_stopping = False
        self._timer = SharedTimer()

    @property
    def name(self) -> str:
        """What logs call this service."""
        return type(self).__name__.lower()

    async def tick(self) -> timedelta:
        """Do one round, and say how long to rest before the next."""
        raise NotImplementedError  # pragma: no cover

    def is_time(self, at: float) -> bool:
        """Whether this moment (monotonic) has come, or is so near that the next beat would be too late."""
        return self.env.clock.monotonic() >= at - _EARLY_SECONDS

    def wake(self) -> None:
        """End the present rest, or skip the next one."""
        self._woken.set()

    def stop(self) -> None:
        """Let the present round be the last one."""
        self.is_stopping = True
        self._woken.set()
        self._stopped.set()

    async def run(self, timer: SharedTimer | None = None) -> None:
        """Tick until stopped; *timer* is the one of the node."""
        self._timer = timer or self._timer
        while not self.is_stopping:
            self._woken.clear()
            rest = await self._one_round()
            if not self.is_stopping:
                await self._rest(min(rest, LONGEST_REST))

    async def _one_round(self) -> timedelta:
        try:
            rest = await self.tick()
        except Exception as error:
            # `wake` does not end this pause: a busy service would meet the same error over and over.
            await self._pause_after_error(self._after_error(error))
            return AT_ONCE
        if self._failures:
            self.emit(ServiceRecovered(self.name, self._failures))
            self._failures = 0
        return rest

    def _after_error(self, error: Exception) -> timedelta:
        self._failures += 1
        longest = min(_FIRST_PAUSE * 2 ** min(self._failures - 1, 10), _LONGEST_PAUSE)
        pause = timedelta(seconds=longest * (0.5 + self.env.random.random() / 2))
        # The stack says nothing new when the database cannot be reached.
        trace = None if isinstance(error, StoreUnavailable) else traceback.format_exc()
        self.emit(ServiceFailed(self.name, f"{type(error).__name__}: {error}", pause, trace, self._failures))
        return pause

    async def _rest(self, rest: timedelta) -> None:
        if rest <= AT_ONCE:
            # Even a service that never rests lets the others run.
            await asyncio.sleep(0)
            return
        if rest >= LONGEST_REST:
            await self._timer.wait(self._woken)
            return
        # `asyncio.timeout` would do the same, but the claimer would take twice as long to wake up.
        alarm = asyncio.get_running_loop().call_later(rest.total_seconds(), self._woken.set)
        try:
            await self._woken.wait()
        finally:
            alarm.cancel()

    async def _pause_after_error(self, pause: timedelta) -> None:
        try:
            async with asyncio.timeout(pause.total_seconds()):
                await self._stopped.wait()
        except TimeoutError:
            return
