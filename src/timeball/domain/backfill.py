"""Backfills: which occurrences of a past span are run, and in which order.

A backfill goes along the instants that the versions of its job named at the time (or those that the present schedule names), a page at
a time. `Occurrences` puts the records of the ledger beside the instants, and `is_chosen` says which of them run:

    missing   skipped, and not filled in yet
    failed    begun or filled in, but no execution of it succeeded, and none is waiting or running: its own, its retries, its backfills
    all       everything that is over

An occurrence that never ran is filled in under one derived id, whatever backfill does it: it cannot be filled in twice. What runs again
has an id derived from the operation: each backfill runs it once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any
from uuid import UUID

from timeball.domain.execution import ExecutionState, Origin
from timeball.domain.policies import Verdict
from timeball.domain.scheduling.civil_time import MICROSECOND, format_instant
from timeball.domain.values.field_errors import unexpected_value
from timeball.domain.values.ids import ExecutionId, JobId, filling_id, repetition_id
from timeball.errors import Conflict, InvalidInput

if TYPE_CHECKING:
    from timeball.domain.scheduling.ledger import VersionPeriod
    from timeball.domain.scheduling.verdicts import LedgerLine

MAX_RUNNING = 1_000


class BackfillSelection(StrEnum):
    """Which occurrences of the span are run."""

    MISSING = "missing"
    FAILED = "failed"
    ALL = "all"


class BackfillSource(StrEnum):
    """Which instants are occurrences: those that the versions of the job named at the time, or those of its present schedule."""

    VERSIONS = "versions"
    PRESENT = "present"


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfill:
    """What to run of a job: occurrences of [since, until], at most *max_running* of them unfinished at a time."""

    job_id: JobId
    since: datetime
    until: datetime
    only: BackfillSelection = BackfillSelection.MISSING
    by: BackfillSource = BackfillSource.VERSIONS
    max_running: int = 1
    priority: int = 0
    newest_first: bool = False
    # The payload of all its executions, in place of the job's, and the handler for which it was checked.
    payload: str | None = None
    handler: str | None = None
    bound_secrets_only: bool = False

    def __post_init__(self) -> None:
        if self.until < self.since:
            raise InvalidInput(
                f"until is {format_instant(self.until)}, expected a past instant that is not before from, "
                f"which is {format_instant(self.since)}",
                field="until",
            )
        if not 1 <= self.max_running <= MAX_RUNNING:
            raise unexpected_value("max_running", self.max_running, f"1 to {MAX_RUNNING}")

    def as_document(self) -> dict[str, Any]:
        """The backfill as JSON, as its operation keeps it."""
        return {
            "job_id": str(self.job_id),
            "from": self.since.isoformat(),
            "until": self.until.isoformat(),
            "only": self.only.value,
            "by": self.by.value,
            "max_running": self.max_running,
            "priority": self.priority,
            "order": "desc" if self.newest_first else "asc",
            "payload": self.payload,
            "handler": self.handler,
            "bound_secrets_only": self.bound_secrets_only,
        }

    def as_facts(self) -> dict[str, Any]:
        """What the audit says of it: everything but the payload, which may be private."""
        return {
            name: value for name, value in self.as_document().items() if name not in ("payload", "bound_secrets_only")
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Backfill:
        """A backfill from its JSON."""
        return cls(
            job_id=JobId(UUID(document["job_id"])),
            since=datetime.fromisoformat(document["from"]),
            until=datetime.fromisoformat(document["until"]),
            only=BackfillSelection(document["only"]),
            by=BackfillSource(document["by"]),
            max_running=document["max_running"],
            priority=document["priority"],
            newest_first=document["order"] == "desc",
            payload=document["payload"],
            handler=document["handler"],
            bound_secrets_only=document["bound_secrets_only"],
        )

    @property
    def end(self) -> datetime:
        """The cursor of a backfill that has looked at its whole span."""
        return self.since if self.newest_first else self.until

    def share_before(self, cursor: datetime | None) -> float:
        """How much of the span lies behind the cursor, from 0 to 1."""
        if cursor is None:
            return 0.0
        if cursor == self.end:
            return 1.0
        behind = self.until - cursor if self.newest_first else cursor - self.since
        return max(behind / (self.until - self.since), 0.0)

    def instants(self, periods: Sequence[VersionPeriod], cursor: datetime | None) -> Iterator[datetime]:
        """The occurrences behind the cursor in the order of the backfill, lazily."""
        if self.newest_first:
            until = self.until if cursor is None else cursor - MICROSECOND
            for period in reversed(periods):
                low, high = _within(period, self.since - MICROSECOND, until)
                if low < high:
                    yield from period.rule.occurrences_back(high, low)
            return
        after = self.since - MICROSECOND if cursor is None else cursor
        for period in periods:
            low, high = _within(period, after, self.until)
            if low < high:
                yield from (occurrence.at for occurrence in period.rule.occurrences(low, high))


def _within(period: VersionPeriod, after: datetime, until: datetime) -> tuple[datetime, datetime]:
    if not period.rule.is_recurring:
        return until, until
    return max(period.after, after), until if period.until is None else min(period.until, until)


class Standing(StrEnum):
    """How an occurrence stands before a backfill."""

    SUCCEEDED = "succeeded"
    UNFINISHED = "unfinished"
    FAILED = "failed"
    MISSING = "missing"
    # Nothing is known of it: its record was deleted, or it is not recorded yet. It is left alone.
    UNKNOWN = "unknown"


_CHOSEN = {
    BackfillSelection.MISSING: frozenset({Standing.MISSING}),
    BackfillSelection.FAILED: frozenset({Standing.FAILED}),
    BackfillSelection.ALL: frozenset({Standing.MISSING, Standing.FAILED, Standing.SUCCEEDED}),
}


@dataclass(frozen=True, slots=True)
class OccurrenceStanding:
    """How the occurrence at an instant stands, with its verdict and reason for people."""

    at: datetime
    standing: Standing
    verdict: str
    reason: str | None = None
    # It is one of the occurrences of a skip range, which counts how many of them are filled in.
    is_in_range: bool = False

    def is_chosen(self, only: BackfillSelection) -> bool:
        """Whether a backfill runs it."""
        return self.standing in _CHOSEN[only]

    def execution_id(self, job_id: JobId, operation_id: UUID) -> ExecutionId:
        """The id under which a backfill runs it."""
        if self.standing is Standing.MISSING:
            return filling_id(job_id, self.at)
        return repetition_id(job_id, self.at, operation_id)


@dataclass(slots=True)
class Occurrences:
    """The instants of a page, and what the ledger has about them."""

    source: BackfillSource
    # Records from before were deleted, unless they are from before *known_from*, the beginning of the job.
    history_from: datetime | None
    known_from: datetime | None
    # Waiting or skipped by the present pause, and not recorded yet.
    ahead: Sequence[LedgerLine] = ()
    # The versions of the job: what a range holds are the instants that its version names.
    versions: Sequence[VersionPeriod] = ()
    _records: dict[datetime, list[LedgerLine]] = field(default_factory=dict)
    _ranges: list[LedgerLine] = field(default_factory=list)

    def enter(self, lines: Iterable[LedgerLine]) -> None:
        """Add records of the ledger."""
        for line in lines:
            if line.is_range:
                self._ranges.append(line)
            else:
                self._records.setdefault(line.first, []).append(line)

    def ended_badly(self, instants: Iterable[datetime]) -> list[ExecutionId]:
        """The executions whose retries matter: those of occurrences without a success."""
        return [
            line.execution_id
            for at in instants
            for line in self._records.get(at, ())
            if line.execution_id is not None and line.state is not ExecutionState.SUCCEEDED
        ]

    def standing(self, at: datetime, retries: Mapping[ExecutionId, Sequence[ExecutionState]]) -> OccurrenceStanding:
        """How an occurrence stands."""
        records = self._records.get(at, [])
        if not records:
            return self._without_record(at)
        retried = [state for line in records if line.execution_id for state in retries.get(line.execution_id, ())]
        states = [line.state for line in records] + retried
        if ExecutionState.SUCCEEDED in states:
            return OccurrenceStanding(at, Standing.SUCCEEDED, Verdict.RAN)
        unfinished = next((line for line in records if line.state is not None and not line.state.is_final), None)
        if unfinished is not None:
            return OccurrenceStanding(at, Standing.UNFINISHED, unfinished.verdict)
        if any(not state.is_final for state in retried):
            return OccurrenceStanding(at, Standing.UNFINISHED, Verdict.WAITING)
        begun = [line for line in records if line.verdict is Verdict.RAN or line.origin is Origin.BACKFILL]
        if begun:
            last = begun[-1]
            return OccurrenceStanding(at, Standing.FAILED, last.verdict, last.reason or last.state)
        return OccurrenceStanding(at, Standing.MISSING, Verdict.SKIPPED, records[0].reason)

    def _without_record(self, at: datetime) -> OccurrenceStanding:
        line = next((line for line in self._ranges if line.first <= at <= line.last), None)
        if line is not None and self._is_named(at, line.version):
            return OccurrenceStanding(at, Standing.MISSING, Verdict.SKIPPED, line.reason, is_in_range=True)
        line = next((line for line in self.ahead if line.first <= at <= line.last), None)
        if line is not None:
            return OccurrenceStanding(at, Standing.UNKNOWN, line.verdict, line.reason)
        is_before_the_job = self.known_from is None or at <= self.known_from
        if not is_before_the_job and self.history_from is not None and at <= self.history_from:
            return OccurrenceStanding(at, Standing.UNKNOWN, "unrecorded", "deleted")
        if self.source is BackfillSource.PRESENT:
            return OccurrenceStanding(at, Standing.MISSING, "unrecorded", "not_scheduled")
        return OccurrenceStanding(at, Standing.UNKNOWN, "unrecorded", "not_scheduled")

    def _is_named(self, at: datetime, version: int) -> bool:
        """Whether a version names an instant. Those that come from the versions are named; the present schedule may be another."""
        if self.source is BackfillSource.VERSIONS:
            return True
        period = next((period for period in self.versions if period.version == version), None)
        return period is not None and period.rule.next_after(at - MICROSECOND) == at


@dataclass(frozen=True, slots=True)
class StandingCount:
    """How many occurrences have a verdict and a reason, and how many of them would run."""

    verdict: str
    reason: str | None
    count: int
    would_run: int


@dataclass(slots=True)
class BackfillPreview:
    """What a backfill would do, by verdict and reason; *counted_until* is set if it did not look further than that."""

    backfill: Backfill
    counted_until: datetime | None = None
    _counts: Counter[tuple[str, str | None, bool]] = field(default_factory=Counter)

    def count(self, standings: Iterable[OccurrenceStanding]) -> None:
        """Add occurrences."""
        only = self.backfill.only
        self._counts.update((one.verdict, one.reason, one.is_chosen(only)) for one in standings)

    @property
    def would_run(self) -> int:
        return sum(number for (_, _, is_chosen), number in self._counts.items() if is_chosen)

    @property
    def total(self) -> int:
        return self._counts.total()

    @property
    def counts(self) -> list[StandingCount]:
        keys = sorted(
            {(verdict, reason) for verdict, reason, _ in self._counts}, key=lambda key: (key[0], key[1] or "")
        )
        return [
            StandingCount(
                verdict,
                reason,
                self._counts[verdict, reason, True] + self._counts[verdict, reason, False],
                self._counts[verdict, reason, True],
            )
            for verdict, reason in keys
        ]


def unique_key_conflict(key: str) -> Conflict:
    """A job with a unique_key cannot be backfilled."""
    return Conflict(
        f"the job has the unique_key {key!r}: only one execution of it can be unfinished at a time",
        hint="remove the unique_key first, or trigger the job once for each occurrence",
    )
