"""What this worker does not run now: handlers left to workers with newer code, and retries beyond the budget of their target."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from timeball.config.settings import WorkerSettings
from timeball.domain.execution import ClaimedExecution, Failed, FinishedAttempt, Outcome, Released, Snoozed
from timeball.domain.handler import (
    ContractVersion,
    Handler,
    MismatchAction,
    decide_mismatch,
    has_newer_contract,
    short_fingerprint,
)
from timeball.engine.node import LONGEST_REST, Service, Signal
from timeball.env import Env
from timeball.telemetry.events import Emit, HandlerResumed, HandlerYielded, RetriesHeldBack

if TYPE_CHECKING:
    from timeball.domain.handler import HandlerContract
    from timeball.store.nodes import HandlerStore

_WINDOW_SECONDS = 10
_MANY_TARGETS = 1_000


class RetryBudget:
    """How many retries a target may get: a fixed rate, and a share of its first attempts.

    When a target is down, everything sent to it fails and comes back, and the retries of many jobs become the load that keeps it down.
    So within ten seconds a target gets at most ten times the rate in retries, and a fifth of its first attempts. A retry that succeeds
    gives its place back: a target that has recovered may get any number. Instants are seconds of any clock that does not go back.
    """

    def __init__(self, per_second: float, share: float) -> None:
        self._always = per_second * _WINDOW_SECONDS
        self._share = share
        self._windows: dict[str, _Window] = {}
        # The cell of each target's last first attempt: the next one is likely to fall into the same second.
        self._latest: dict[str, _Cell] = {}

    def note_first(self, target: str, now: float) -> None:
        """A first attempt is made."""
        cell = self._latest.get(target)
        if cell is None or cell.second != int(now):
            cell = self._latest[target] = self._window(target, now).now(now)
        cell.add_first()

    def take(self, target: str, now: float) -> bool:
        """Take a place for one retry; False if none is left."""
        window = self._window(target, now)
        cell = window.now(now)
        if window.retries() + 1 > self._always + self._share * window.firsts():
            return False
        cell.add_retries(1)
        return True

    def give_back(self, target: str, now: float) -> None:
        """A retry succeeded: its place is free again."""
        self._window(target, now).now(now).add_retries(-1)

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

    def add_first(self) -> None:
        self.firsts += 1

    def add_retries(self, number: int) -> None:
        self.retries += number


class _Window:
    """The last seconds of one target."""

    __slots__ = ("_cells",)

    def __init__(self) -> None:
        self._cells: deque[_Cell] = deque()

    def now(self, now: float) -> _Cell:
        """The cell of this second; cells that have left the window are removed."""
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
        # A retry that succeeded may have been counted in a second that has left the window: never less than none.
        return max(sum(cell.retries for cell in self._cells), 0)


# How often a worker checks whether the workers that it left a handler to are still alive.
_CONTRACT_POLL_SECONDS = 2.0

AcceptsPayload = Callable[[Mapping[str, Any], str], bool]


class ClaimableHandlers:
    """The handlers of this worker that it claims executions of: all, except those left to workers with newer code."""

    def __init__(self, names: Iterable[str]) -> None:
        self._all = frozenset(names)
        self.names = sorted(self._all)
        self.changed = Signal()

    def hold_back(self, names: frozenset[str]) -> None:
        """Claim nothing of these handlers, and everything of all others."""
        self.names = sorted(self._all - names)
        self.changed.send()


class WorkerContracts:
    """The contracts of this worker's handlers, and the store in which workers publish theirs. Outlives the nodes of a process."""

    def __init__(
        self, store: HandlerStore, contracts: Sequence[HandlerContract], accepts_payload: AcceptsPayload
    ) -> None:
        self.store = store
        self.accepts_payload = accepts_payload
        self.fingerprints = {contract.name: contract.fingerprint for contract in contracts}
        self._contracts = contracts
        self._is_published = False

    async def publish(self) -> None:
        """Make the contracts known, before the worker is registered."""
        # A process whose node starts again has not been deployed again.
        await self.store.publish(self._contracts, is_start=not self._is_published)
        self._is_published = True


class ContractGate(Service):
    """Decides what becomes of executions whose payload does not fit the code of this worker.

    During a deploy, workers of two versions serve the same queues. A payload of the new signature that an old worker claims is not
    wrong: the worker gives it back uncounted, and from then on leaves this handler to the workers with a newer contract, as long as
    one of them is alive. Only a worker with the newest contract lets such an execution end dead, and not while another living
    worker would accept it (`domain.handler.decide_mismatch`).
    """

    def __init__(self, env: Env, emit: Emit, contracts: WorkerContracts, handlers: ClaimableHandlers) -> None:
        super().__init__(env, emit)
        self._contracts = contracts
        self._handlers = handlers
        self._held_back: frozenset[str] = frozenset()
        self._checks_at = 0.0

    async def judge(self, attempts: Sequence[FinishedAttempt]) -> list[FinishedAttempt]:
        """The same attempts; those whose payload did not fit with the outcome that follows."""
        mismatches = [attempt for attempt in attempts if is_payload_mismatch(attempt)]
        store = self._contracts.store
        versions = await store.versions({attempt.claimed.handler for attempt in mismatches})
        schemas = await store.schemas(
            version for published in versions.values() for version in published if version.workers
        )
        return [self._judge(a, versions, schemas) if is_payload_mismatch(a) else a for a in attempts]

    def _judge(
        self,
        attempt: FinishedAttempt,
        versions: Mapping[str, Sequence[ContractVersion]],
        schemas: Mapping[str, Mapping[str, Any]],
    ) -> FinishedAttempt:
        name, payload = attempt.claimed.handler, attempt.claimed.payload
        published, own = versions.get(name, ()), self._contracts.fingerprints.get(name, "")
        accepts = self._contracts.accepts_payload
        action, pause = decide_mismatch(published, own, lambda other: accepts(schemas.get(other, {}), payload))
        if action is MismatchAction.DEAD:
            return attempt
        if action is MismatchAction.LEAVE_TO_NEWER:
            self._leave(name, own, published)
        outcome: Outcome = Released() if action is MismatchAction.LEAVE_TO_NEWER else Snoozed(pause)
        return attempt._replace(outcome=outcome, started_at=None)

    def _leave(self, name: str, own: str, versions: Sequence[ContractVersion]) -> None:
        if name in self._held_back:
            return
        self._change(self._held_back | {name})
        self._checks_at = self.env.clock.monotonic() + _CONTRACT_POLL_SECONDS
        self.emit(HandlerYielded(name, short_fingerprint(own), short_fingerprint(versions[0].fingerprint)))

    async def tick(self) -> timedelta:
        if self._held_back and self.is_time(self._checks_at):
            self._checks_at = self.env.clock.monotonic() + _CONTRACT_POLL_SECONDS
            await self._resume()
        return LONGEST_REST

    async def _resume(self) -> None:
        """Claim again the handlers for which no living worker has a newer contract."""
        versions = await self._contracts.store.versions(self._held_back)
        fingerprints = self._contracts.fingerprints
        resumed = [
            name for name in self._held_back if not has_newer_contract(versions.get(name, ()), fingerprints[name])
        ]
        if resumed:
            self._change(self._held_back.difference(resumed))
            for name in resumed:
                self.emit(HandlerResumed(name, short_fingerprint(fingerprints[name])))

    def _change(self, held_back: frozenset[str]) -> None:
        self._held_back = held_back
        self._handlers.hold_back(held_back)


def is_payload_mismatch(attempt: FinishedAttempt) -> bool:
    """Whether an attempt ended because the payload did not fit, before the handler was entered."""
    return isinstance(attempt.outcome, Failed) and attempt.outcome.is_payload_mismatch


# Long enough that ten thousand waiting retries are no load in themselves, short enough for a target that has recovered.
_SHORTEST_WAIT_SECONDS = 10.0
_LONGEST_WAIT_SECONDS = 30.0


class RetryGate(Service):
    """Lets no more retries through to a target than its budget allows; the others wait a little longer.

    A target is a handler or, where the handler says so, what its payload points to: the host of a webhook. A retry that is held
    back goes to `due` again as `retrying`, with its attempt uncounted. Each process has a budget of its own. Once a second, the
    number of retries that were held back is emitted.
    """

    def __init__(self, env: Env, emit: Emit, settings: WorkerSettings) -> None:
        super().__init__(env, emit)
        self._budget = RetryBudget(settings.retry_budget_per_second, settings.retry_budget_share)
        self._held_back: Counter[str] = Counter()

    def admit(self, handler: Handler, claimed: ClaimedExecution) -> timedelta | None:
        """How long the attempt has to wait; None if it may be made now."""
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
        """An attempt that was let through has succeeded."""
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
    target = handler.target(claimed.payload)
    return handler.name if target is None else f"{handler.name} {target}"
