"""What this worker must not run now: payloads that need newer code, and retries beyond the budget of their target."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from timeball.config.settings import WorkerSettings
from timeball.domain.execution import ClaimedExecution, Failed, FinishedAttempt, Outcome, Released, Snoozed
from timeball.domain.handler import Handler
from timeball.domain.handler_contract import (
    ContractVersion,
    MismatchAction,
    decide_mismatch,
    has_newer_contract,
    short_fingerprint,
)
from timeball.engine.service import LONGEST_REST, Service
from timeball.env import Env
from timeball.telemetry.events import Emit, HandlerResumed, HandlerYielded, RetriesHeldBack

if TYPE_CHECKING:
    from timeball.store.nodes import HandlerStore


# How many retries a target is worth: a fixed rate, and a share of what is tried there for the first time.
#
# When a target is down, everything sent to it fails and comes back, and the retries of many jobs become the load that keeps it down.
# So in any ten seconds a target gets at most ten times the rate in retries, and a fifth of its first attempts. A retry that
# succeeds gives its place back: a target that has recovered is worth as many as come.

_WINDOW_SECONDS = 10
_MANY_TARGETS = 1_000


class RetryBudget:
    """Counts first attempts and retries by target; instants are seconds on any clock that does not go back."""

    def __init__(self, per_second: float, share: float) -> None:
        self._always = per_second * _WINDOW_SECONDS
        self._share = share
        self._windows: dict[str, _Window] = {}
        # The cell of each target's last first attempt: the next one is likely to fall into the same second.
        self._latest: dict[str, _Cell] = {}

    def note_first(self, target: str, now: float) -> None:
        """Something is tried for the first time."""
        cell = self._latest.get(target)
        if cell is None or cell.second != int(now):
            cell = self._latest[target] = self._window(target, now).now(now)
        cell.firsts += 1

    def take(self, target: str, now: float) -> bool:
        """Take the place of one retry, if there is one."""
        window = self._window(target, now)
        cell = window.now(now)
        if window.retries() + 1 > self._always + self._share * window.firsts():
            return False
        cell.retries += 1
        return True

    def give_back(self, target: str, now: float) -> None:
        """A retry succeeded: its place is free again."""
        self._window(target, now).now(now).retries -= 1

    def _window(self, target: str, now: float) -> _Window:
        window = self._windows.get(target)
        if window is None:
            if len(self._windows) >= _MANY_TARGETS:
                self._forget_quiet(now)
            window = self._windows[target] = _Window()
        return window

    def _forget_quiet(self, now: float) -> None:
        self._windows = {target: window for target, window in self._windows.items() if not window.is_quiet(now)}
        self._latest.clear()


class _Cell:
    """What happened in one second."""

    __slots__ = ("firsts", "retries", "second")

    def __init__(self, second: int) -> None:
        self.second = second
        self.firsts = 0
        self.retries = 0


class _Window:
    """The last seconds of one target."""

    __slots__ = ("_cells",)

    def __init__(self) -> None:
        self._cells: deque[_Cell] = deque()

    def now(self, now: float) -> _Cell:
        """The cell of this second; those that are too old are dropped."""
        second = int(now)
        cells = self._cells
        if cells and cells[-1].second == second:
            return cells[-1]
        while cells and cells[0].second <= second - _WINDOW_SECONDS:
            cells.popleft()
        cells.append(_Cell(second))
        return cells[-1]

    def is_quiet(self, now: float) -> bool:
        return not self._cells or self._cells[-1].second <= now - _WINDOW_SECONDS

    def firsts(self) -> int:
        return sum(cell.firsts for cell in self._cells)

    def retries(self) -> int:
        # What succeeded may have been taken in a second that has left the window: no more is given back than was taken.
        return max(sum(cell.retries for cell in self._cells), 0)


# What becomes of executions whose payload does not fit the code of this worker.
#
# During a deploy, workers of two versions serve the same queues. A payload of the new signature that an old worker claims is not
# wrong: it is
# given back, uncounted, and from then on the old worker leaves this handler to the newer ones, as long as one of them lives. Only a worker
# with the newest contract ends such an execution dead, and not while another living worker would take it (`domain/contract.judge`).

# How often a worker looks whether the newer ones that it left a handler to are still there.
_CONTRACT_POLL_SECONDS = 2.0

AcceptsPayload = Callable[[Mapping[str, Any], str], bool]


class ContractGate(Service):
    """Judges mismatches, and keeps this worker from claiming what it has left to newer ones."""

    def __init__(
        self,
        env: Env,
        emit: Emit,
        handlers: HandlerStore,
        fingerprints: Mapping[str, str],
        takes: AcceptsPayload,
        hold_back: Callable[[frozenset[str]], None],
    ) -> None:
        super().__init__(env, emit)
        self._handlers = handlers
        self._fingerprints = fingerprints
        self._takes = takes
        self._hold_back = hold_back
        self._held_back: frozenset[str] = frozenset()
        self._looks_at = 0.0

    async def judge(self, findings: Sequence[FinishedAttempt]) -> list[FinishedAttempt]:
        """The same findings; those of payloads that do not fit with what becomes of them."""
        misfits = [finding for finding in findings if is_payload_mismatch(finding)]
        versions = await self._handlers.versions({finding.claimed.handler for finding in misfits})
        schemas = await self._handlers.schemas(
            version for found in versions.values() for version in found if version.workers
        )
        return [self._judged(f, versions, schemas) if is_payload_mismatch(f) else f for f in findings]

    def _judged(
        self,
        finding: FinishedAttempt,
        versions: Mapping[str, Sequence[ContractVersion]],
        schemas: Mapping[str, Mapping[str, Any]],
    ) -> FinishedAttempt:
        name, payload = finding.claimed.handler, finding.claimed.payload
        known, own = versions.get(name, ()), self._fingerprints.get(name, "")
        refusal, pause = decide_mismatch(known, own, lambda other: self._takes(schemas.get(other, {}), payload))
        if refusal is MismatchAction.DEAD:
            return finding
        if refusal is MismatchAction.LEAVE_TO_NEWER:
            self._leave(name, own, known)
        outcome: Outcome = Released() if refusal is MismatchAction.LEAVE_TO_NEWER else Snoozed(pause)
        return finding._replace(outcome=outcome, started_at=None)

    def _leave(self, name: str, own: str, versions: Sequence[ContractVersion]) -> None:
        if name in self._held_back:
            return
        self._change(self._held_back | {name})
        self._looks_at = self.env.clock.monotonic() + _CONTRACT_POLL_SECONDS
        self.emit(HandlerYielded(name, short_fingerprint(own), short_fingerprint(versions[0].fingerprint)))

    async def tick(self) -> timedelta:
        if self._held_back and self.is_time(self._looks_at):
            self._looks_at = self.env.clock.monotonic() + _CONTRACT_POLL_SECONDS
            await self._look()
        return LONGEST_REST

    async def _look(self) -> None:
        """Take up again what no living worker has a newer contract for."""
        versions = await self._handlers.versions(self._held_back)
        back = [
            name for name in self._held_back if not has_newer_contract(versions.get(name, ()), self._fingerprints[name])
        ]
        if back:
            self._change(self._held_back.difference(back))
            for name in back:
                self.emit(HandlerResumed(name, short_fingerprint(self._fingerprints[name])))

    def _change(self, held_back: frozenset[str]) -> None:
        self._held_back = held_back
        self._hold_back(held_back)


def is_payload_mismatch(finding: FinishedAttempt) -> bool:
    """Whether an attempt ended because the payload did not fit, before the handler was entered."""
    return isinstance(finding.outcome, Failed) and finding.outcome.is_payload_mismatch


# Lets no more retries through to a target than its budget is worth; the others wait a little longer.
#
# A target is a handler or, where the handler says so, what its payload points to: the host of a webhook. What is held back goes
# into `due` again, as `retrying`, with its attempt uncounted. The budget is this process's own: nobody is asked.

# Long enough that ten thousand which wait so are not work in themselves, short enough for a target that has recovered.
_SHORTEST_WAIT_SECONDS = 10.0
_LONGEST_WAIT_SECONDS = 30.0


class RetryGate(Service):
    """Decides about every start, and tells every second how many were held back."""

    def __init__(self, env: Env, emit: Emit, settings: WorkerSettings) -> None:
        super().__init__(env, emit)
        self._budget = RetryBudget(settings.retry_budget_per_second, settings.retry_budget_share)
        self._held_back: Counter[str] = Counter()

    def admit(self, handler: Handler, claimed: ClaimedExecution) -> timedelta | None:
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

    def note_success(self, handler: Handler, claimed: ClaimedExecution) -> None:
        """An attempt that was let through succeeded."""
        if claimed.is_retry:
            self._budget.give_back(_target_of(handler, claimed), self.env.clock.monotonic())

    async def tick(self) -> timedelta:
        held_back, self._held_back = self._held_back, Counter()
        for target, count in held_back.items():
            self.emit(RetriesHeldBack(target, count))
        return LONGEST_REST


def _target_of(handler: Handler, claimed: ClaimedExecution) -> str:
    if handler.target is None:
        return handler.name
    aim = handler.target(claimed.payload)
    return handler.name if aim is None else f"{handler.name} {aim}"
