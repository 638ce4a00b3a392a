"""Outcomes become rows, in batches.

While one batch is being written the next one gathers, so the batches grow with the load by themselves. An outcome
leaves memory only when the database has taken or refused it. When the reply to a commit is lost, the same batch is
written again: every write is keyed by its claim, so the second one finds nothing to do, and what it then calls stale
is looked up before it is believed.

A batch that is refused for what is in it is taken apart, so that one outcome which cannot be written costs its neighbours nothing.
In its place one is written that says why. Should that be refused, too, the fault is in the row: the outcome is kept aside and tried
again now and then, and no other worker gets the execution while this one lives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta

from timeball.domain.events import AttemptFailed, Emit, OutcomeRefused, OutcomeUnwritable, SucceededInBatch
from timeball.domain.execution import Finding, Released, Snoozed, Stake, Succeeded
from timeball.domain.lifecycle import Finish, Move, Standing, Transition, decide, written_instead
from timeball.engine.contract_watch import is_misfit
from timeball.engine.service import AT_ONCE, LONGEST_REST, Service
from timeball.env import Env
from timeball.errors import Unwritable
from timeball.store.interface import RoomStore

_BATCH = 1_000
# Under load a batch is worth waiting a moment for: a statement for a thousand outcomes costs little more than one for a hundred.
_WORTHWHILE = 500
_BUSY = 100
_GATHER_SECONDS = 0.004
# Encoding a batch takes the loop milliseconds, in which nothing can start: a crowd that is just being dropped goes first, for so long.
_GIVES_WAY_SECONDS = 0.01
_A_MOMENT = timedelta(milliseconds=1)
_REPORT_SECONDS = 1.0
_ASIDE_SECONDS = 30.0
_ZERO = timedelta(0)


class Recorder(Service):
    """Writes the outcomes it is handed, and tells of those that were refused."""

    def __init__(
        self, env: Env, emit: Emit, rooms: RoomStore, on_recorded: Callable[[int], None] = lambda _: None
    ) -> None:
        super().__init__(env, emit)
        self._rooms = rooms
        self._on_recorded = on_recorded
        self._waiting: list[Finding] = []
        self._in_doubt: list[Finding] = []
        # What could not be written, nor anything in its place.
        self._aside: list[Finding] = []
        self._next_try_aside = 0.0
        self._idle = asyncio.Event()
        self._idle.set()
        self._last_size = 0
        self._succeeded = 0
        self._worst = _ZERO
        self._next_report = 0.0
        # Whether a crowd is being dropped just now; and since when it has been given way to.
        self.is_dropping: Callable[[], bool] = lambda: False
        self._gives_way_since: float | None = None
        # What becomes of payloads that did not fit; without anyone to ask, they have failed.
        self.judge: Callable[[Sequence[Finding]], Awaitable[list[Finding]]] | None = None

    def hand_over(self, finding: Finding) -> None:
        """Take an outcome; it will be written soon."""
        if not self._waiting:
            # With something in the list, the recorder is awake, or will look again before it rests.
            self._idle.clear()
            self.wake()
        self._waiting.append(finding)

    def unrecorded(self) -> set[Stake]:
        """Whose outcomes are not known to be written yet."""
        unwritten = (*self._in_doubt, *self._waiting, *self._aside)
        return {(finding.claimed.id, finding.claimed.claim_id) for finding in unwritten}

    def forget_all(self) -> None:
        """Drop what has not been written: this life is over, and none of it would be accepted."""
        self._waiting.clear()
        self._in_doubt.clear()
        self._aside.clear()
        self._idle.set()

    async def flush(self) -> None:
        """Wait until everything handed over has been written."""
        await self._idle.wait()

    async def tick(self) -> timedelta:
        batch, was_tried = (self._in_doubt, True) if self._in_doubt else (self._waiting[:_BATCH], False)
        if not batch:
            self._idle.set()
            if self.is_time(self._next_report):
                self._report_successes()
            if self._aside and self.is_time(self._next_try_aside):
                await self._try_aside_again()
            return LONGEST_REST
        if not was_tried:
            if self._gives_way():
                return _A_MOMENT
            if self._last_size >= _BUSY and len(self._waiting) < _WORTHWHILE:
                await self.env.clock.sleep(_GATHER_SECONDS)
                batch = self._waiting[:_BATCH]
            del self._waiting[:_BATCH]
            self._last_size = len(batch)
            self._in_doubt = batch
        await self.write(batch, was_tried=was_tried)
        self._in_doubt = []
        self._on_recorded(len(batch))
        return AT_ONCE

    def _gives_way(self) -> bool:
        if not self.is_dropping():
            self._gives_way_since = None
            return False
        now = self.env.clock.monotonic()
        if self._gives_way_since is None:
            self._gives_way_since = now
        return now - self._gives_way_since < _GIVES_WAY_SECONDS

    async def write(self, batch: Sequence[Finding], *, was_tried: bool) -> None:
        """Write outcomes; those that cannot be written are sorted out."""
        try:
            await self._record(batch, was_tried=was_tried)
        except Unwritable as error:
            if len(batch) == 1:
                await self._write_instead(batch[0], str(error))
                return
            middle = len(batch) // 2
            # Part of the batch may have been written before the rest was refused.
            await self.write(batch[:middle], was_tried=True)
            await self.write(batch[middle:], was_tried=True)

    async def _write_instead(self, finding: Finding, why: str) -> None:
        instead = finding._replace(outcome=written_instead(finding.outcome, why))
        try:
            await self._record([instead], was_tried=True)
        except Unwritable as error:
            self._aside.append(instead)
            self._next_try_aside = self.env.clock.monotonic() + _ASIDE_SECONDS
            self.emit(OutcomeUnwritable(finding.claimed.id, finding.claimed.handler, str(error), is_replaced=False))
        else:
            self.emit(OutcomeUnwritable(finding.claimed.id, finding.claimed.handler, why, is_replaced=True))

    async def _try_aside_again(self) -> None:
        self._next_try_aside = self.env.clock.monotonic() + _ASIDE_SECONDS
        for finding in list(self._aside):
            try:
                await self._record([finding], was_tried=True)
            except Unwritable:
                continue
            self._aside.remove(finding)

    async def _record(self, batch: Sequence[Finding], *, was_tried: bool) -> None:
        others = [finding for finding in batch if not isinstance(finding.outcome, Succeeded)]
        succeeded = [finding for finding in batch if isinstance(finding.outcome, Succeeded)] if others else batch
        refused = await self._rooms.finish_succeeded(succeeded) if succeeded else []
        if others:
            if self.judge is not None and any(map(is_misfit, others)):
                others = await self.judge(others)
            refused = refused + await self._record_others(others)
        if refused and was_tried:
            refused = await self._rooms.not_yet_recorded(refused)
        for finding in refused:
            claimed = finding.claimed
            self.emit(OutcomeRefused(claimed.id, claimed.handler, claimed.fence))
        self._count_successes([finding for finding in succeeded if finding not in refused] if refused else succeeded)

    async def _record_others(self, findings: Sequence[Finding]) -> list[Finding]:
        """Write what follows; and decide again about those of which somebody has said something between the reading and the writing."""
        refused: list[Finding] = []
        while findings:
            standings = await self._rooms.standings([finding.claimed for finding in findings])
            refused += [finding for finding in findings if finding.claimed.id not in standings]
            moves = [self._move(f, standings[f.claimed.id]) for f in findings if f.claimed.id in standings]
            findings = await self._rooms.record_transitions(moves) if moves else []
            self._tell([move for move in moves if move.finding not in findings])
        return refused

    def _move(self, finding: Finding, standing: Standing) -> Move:
        chance = self.env.random.random()
        try:
            transition = decide(standing, finding.outcome, finding.finished_at, chance)
        except (TypeError, ArithmeticError) as error:  # an instant that no calendar has
            raise Unwritable(f"what follows the outcome cannot be told: {error}") from error
        return Move(finding, standing, transition)

    def _tell(self, moves: Sequence[Move]) -> None:
        for finding, _, transition in moves:
            # What was given back, or held back before it began, is no news of a handler.
            if not isinstance(finding.outcome, Released) and not _was_held_back(finding):
                self.emit(_failure(finding, transition))

    def _count_successes(self, findings: Sequence[Finding]) -> None:
        self._succeeded += len(findings)
        worst = self._worst
        for claimed, _, started_at, _ in findings:
            if started_at is not None and started_at - claimed.scheduled_for > worst:
                worst = started_at - claimed.scheduled_for
        self._worst = worst
        if self.env.clock.monotonic() >= self._next_report:
            self._report_successes()

    def _report_successes(self) -> None:
        if self._succeeded:
            self.emit(SucceededInBatch(self._succeeded, self._worst))
            self._succeeded, self._worst = 0, _ZERO
            self._next_report = self.env.clock.monotonic() + _REPORT_SECONDS


def _was_held_back(finding: Finding) -> bool:
    return isinstance(finding.outcome, Snoozed) and finding.started_at is None


def _failure(finding: Finding, transition: Transition) -> AttemptFailed:
    claimed = finding.claimed
    becomes = transition.state.value if isinstance(transition, Finish) else type(transition).__name__.lower()
    error = transition.error
    told = finding.outcome.reason if isinstance(finding.outcome, Snoozed) else None
    return AttemptFailed(
        claimed.id,
        claimed.handler,
        claimed.attempt,
        type(finding.outcome).__name__.lower(),
        {"wait": "retrying", "requeue": "queued"}.get(becomes, becomes),
        told if error is None else f"{error.type}: {error.message}",
    )


async def record_at_once(env: Env, emit: Emit, rooms: RoomStore, findings: Sequence[Finding]) -> None:
    """Write outcomes outside of any loop; StoreError if some of them may not have been written."""
    await Recorder(env, emit, rooms).write(findings, was_tried=False)
