"""Lets no more retries through to a target than its budget is worth; the others wait a little longer.

A target is a handler or, where the handler says so, what its payload points to: the host of a webhook. What is held back goes
into `due` again, as `retrying`, with its attempt uncounted. The budget is this process's own: nobody is asked.
"""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

from timeball.domain.events import Emit, RetriesHeldBack
from timeball.domain.execution import Claimed
from timeball.domain.handler import Handler
from timeball.domain.retry_budget import RetryBudget
from timeball.engine.service import LONGEST_REST, Service
from timeball.env import Env
from timeball.settings import WorkerSettings

# Long enough that ten thousand which wait so are not work in themselves, short enough for a target that has recovered.
_SHORTEST_WAIT_SECONDS = 10.0
_LONGEST_WAIT_SECONDS = 30.0


class RetryGate(Service):
    """Decides about every start, and tells every second how many were held back."""

    def __init__(self, env: Env, emit: Emit, settings: WorkerSettings) -> None:
        super().__init__(env, emit)
        self._budget = RetryBudget(settings.retry_budget_per_second, settings.retry_budget_share)
        self._held_back: Counter[str] = Counter()

    def admit(self, handler: Handler, claimed: Claimed) -> timedelta | None:
        """How long an attempt has to wait before it may be made; None lets it through."""
        target = handler.name if handler.target is None else _target_of(handler, claimed)
        now = self.env.clock.monotonic()
        if not claimed.is_retry:
            self._budget.note_first(target, now)
            return None
        if self._budget.take(target, now):
            return None
        self._held_back[target] += 1
        return timedelta(seconds=self.env.random.uniform(_SHORTEST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS))

    def note_success(self, handler: Handler, claimed: Claimed) -> None:
        """An attempt that was let through succeeded."""
        if claimed.is_retry:
            self._budget.give_back(_target_of(handler, claimed), self.env.clock.monotonic())

    async def tick(self) -> timedelta:
        held_back, self._held_back = self._held_back, Counter()
        for target, count in held_back.items():
            self.emit(RetriesHeldBack(target, count))
        return LONGEST_REST


def _target_of(handler: Handler, claimed: Claimed) -> str:
    if handler.target is None:
        return handler.name
    aim = handler.target(claimed.payload)
    return handler.name if aim is None else f"{handler.name} {aim}"
