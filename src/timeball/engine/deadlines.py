"""One wheel for all timeouts: a timer per attempt would cost more than many an attempt does."""

from __future__ import annotations

import asyncio

from timeball.clock import Clock
from timeball.current import Halt, RunContext

_NOTCH_SECONDS = 0.05


class DeadlineWheel:
    """Halts attempts that run past their timeout, to within a notch."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._notches: dict[int, set[RunContext]] = {}
        self._places: dict[RunContext, int] = {}
        self._turned_to = self._notch(clock.monotonic())
        self._timer: asyncio.TimerHandle | None = None

    @staticmethod
    def _notch(monotonic: float) -> int:
        return int(monotonic / _NOTCH_SECONDS)

    def add(self, context: RunContext, seconds: float) -> None:
        """Halt this attempt once *seconds* have passed."""
        # The notch after, so that no attempt is halted early.
        notch = self._notch(self._clock.monotonic() + seconds) + 1
        self._notches.setdefault(notch, set()).add(context)
        self._places[context] = notch
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_NOTCH_SECONDS, self._turn)

    def remove(self, context: RunContext) -> None:
        """Forget an attempt that has ended."""
        notch = self._places.pop(context, None)
        if notch is None:
            return
        neighbours = self._notches[notch]
        neighbours.discard(context)
        if not neighbours:
            del self._notches[notch]

    def _turn(self) -> None:
        self._timer = None
        now = self._notch(self._clock.monotonic())
        for notch in [notch for notch in self._notches if notch <= now]:
            for context in self._notches.pop(notch):
                self._places.pop(context, None)
                seconds = (context.claimed.timeout_ms or 0) / 1000
                context.halt(Halt.TIMEOUT, f"ran longer than its timeout of {seconds:g} s")
        if self._places:
            self._timer = asyncio.get_running_loop().call_later(_NOTCH_SECONDS, self._turn)
