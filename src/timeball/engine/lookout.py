"""Looks whether something was left that was announced to others.

A hint calls upon one worker, or a few; the others wait for their turn (`domain/turns`). Then one cheap statement says
whether anything has been ready for a while, and only if so there is a claim. However many hints come meanwhile, one look
serves them all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from timeball.domain.events import Emit
from timeball.domain.hints import Lane
from timeball.engine.claimer import Claimer
from timeball.engine.service import LONGEST_REST, Service
from timeball.env import Env
from timeball.store.interface import RoomStore

# How long the first in line waits, the second, and all others. A claim takes two milliseconds on a quiet machine: who was called
# upon should have been there.
_DELAYS = (0.025, 0.1, 0.4)
# What came into its room later than this may be on its way to whom it was announced.
_PATIENCE = timedelta(milliseconds=10)
# Timers of an event loop fire that early.
_EARLY_SECONDS = 0.002


class _Heard(NamedTuple):
    """What was announced to others in a lane: when, and when to look whether they have left it."""

    at: float
    looks_at: float
    lane: Lane
    run_at: datetime


class Lookout(Service):
    """Has the claimer take over what those who were called upon have left."""

    def __init__(self, env: Env, emit: Emit, rooms: RoomStore, claimer: Claimer) -> None:
        super().__init__(env, emit)
        self._rooms = rooms
        self._claimer = claimer
        self._heard: list[_Heard] = []
        self._looks_at = float("inf")

    def expect(self, lanes: Mapping[Lane, datetime], turn: int) -> None:
        """These are for others: look at them when it is our turn."""
        now = self.env.clock.monotonic()
        looks_at = now + _DELAYS[min(turn, len(_DELAYS)) - 1]
        self._heard.extend(_Heard(now, looks_at, lane, run_at) for lane, run_at in lanes.items())
        self._plan(now, looks_at)

    def _plan(self, now: float, looks_at: float) -> None:
        if looks_at < self._looks_at:
            self._looks_at = looks_at
            # A later one that was planned before wakes us for nothing, and that is cheaper than to keep and cancel it.
            asyncio.get_running_loop().call_later(looks_at - now, self.wake)

    async def tick(self) -> timedelta:
        now = self.env.clock.monotonic()
        if now >= self._looks_at - _EARLY_SECONDS:
            self._looks_at = float("inf")
            await self._look(now)
        return LONGEST_REST

    async def _look(self, now: float) -> None:
        # What the claimer has looked for since is no longer in question.
        in_question = [heard for heard in self._heard if heard.at >= self._claimer.asked_at]
        self._heard = [heard for heard in in_question if heard.at > now - _PATIENCE.total_seconds()]
        for heard in self._heard:
            self._plan(now, heard.looks_at)
        lanes: dict[Lane, datetime] = {}
        for heard in in_question:
            lanes[heard.lane] = min(lanes.get(heard.lane, heard.run_at), heard.run_at)
        if lanes and await self._rooms.is_anything_left(lanes, self._claimer.handlers, _PATIENCE):
            self._claimer.take_over(lanes)
