"""The input and output of the gates: everything known about one execution or job at one moment, and the answer of a gate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from shlex import quote
from typing import TYPE_CHECKING

from timeball.domain.execution import DueKind, Execution
from timeball.domain.node import NodeStatus
from timeball.domain.rollup import TypicalDuration
from timeball.domain.values.ids import ExecutionId, Incarnation, JobId, format_execution_id
from timeball.domain.values.wording import duration_in_words

if TYPE_CHECKING:
    from timeball.domain.job import Job

# What the gates look at: everything that is known about one execution, or one job, at one moment.


class ExecutionTable(StrEnum):
    """Where an execution is."""

    DUE = "due"
    READY = "ready"
    BLOCKED = "blocked"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class Competitor:
    """Another execution that is on its way: since when it runs, and how long its like usually take."""

    id: ExecutionId
    job_id: JobId
    state_table: ExecutionTable
    started_at: datetime | None = None
    typical: TypicalDuration | None = None

    def expected_end(self, now: datetime) -> datetime | None:
        """When it should be over; one that is over its time could end at any moment."""
        if self.started_at is None or self.typical is None:
            return None
        return max(self.started_at + self.typical.median, now)

    def words(self, now: datetime) -> str:
        """The competitor with its age, and a mark if that is unusual: `exe_…5M (12 min, usually 3 min)`."""
        name = format_execution_id(self.id)
        if self.started_at is None:
            return name
        age = now - self.started_at
        usually = "" if self.typical is None else f", usually {duration_in_words(self.typical.median)}"
        return f"{name} ({duration_in_words(age)}{usually})"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFacts:
    """A queue: whether it is open, its limit, and who has its places."""

    name: str
    paused_at: datetime | None = None
    pause_reason: str | None = None
    max_running: int | None = None
    taken: int = 0
    holders: Sequence[Competitor] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitFacts:
    """A limit of a job or of a key, and who has its places."""

    key: str
    max_running: int | None = None
    taken: int = 0
    holders: Sequence[Competitor] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractFacts:
    """A published version of the handler, and whether it takes the payload."""

    fingerprint: str
    is_newest: bool
    takes_payload: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainFacts:
    """All of it. Without an execution, the question is about the job: why does it not run at all?"""

    now: datetime
    job: Job | None
    queue: QueueFacts
    execution: Execution | None = None
    state_table: ExecutionTable | None = None
    due_kind: DueKind | None = None
    is_parked: bool = False
    stop: str | None = None
    progress: float | None = None
    progress_note: str | None = None
    workers: Sequence[NodeStatus] = ()
    schedulers: Sequence[NodeStatus] = ()
    competitors: Sequence[Competitor] = ()
    on_workers: Sequence[Competitor] = ()
    limit: LimitFacts | None = None
    key_holder: ExecutionId | None = None
    ahead: int = 0
    most_ahead: int = 1_000
    typical: TypicalDuration | None = None
    clock_error: timedelta = timedelta(0)
    # What workers have published of the handler, the newest first.
    versions: Sequence[ContractFacts] = ()

    @property
    def handler(self) -> str:
        if self.execution is not None:
            return self.execution.handler
        return "" if self.job is None else self.job.handler

    @property
    def run_at(self) -> datetime | None:
        return None if self.execution is None else self.execution.run_at

    @property
    def is_coming(self) -> bool:
        """Whether its time has not come yet."""
        return self.run_at is not None and self.run_at > self.now

    @property
    def serving(self) -> list[NodeStatus]:
        """The workers that take from this queue."""
        return [worker for worker in self.workers if worker.serves(self.queue.name)]

    @property
    def able(self) -> list[NodeStatus]:
        """Those of them that know the handler."""
        return [worker for worker in self.serving if self.handler in worker.handlers]

    @property
    def fitting(self) -> list[NodeStatus]:
        """Those of them whose version takes the payload, as far as versions are known."""
        refusing = {version.fingerprint for version in self.versions if not version.takes_payload}
        return [worker for worker in self.able if not refusing.intersection(worker.fingerprints)]

    @property
    def holder(self) -> NodeStatus | None:
        """The worker that has it in its hands."""
        wanted: Incarnation | None = None if self.execution is None else self.execution.worker
        return next((worker for worker in self.workers if worker.incarnation == wanted), None)


# What a gate answers: `passed`, `stopped` or `not_asked`, in one sentence; and the words that several gates share.


class GateVerdict(StrEnum):
    """What a gate says."""

    PASSED = "passed"
    STOPPED = "stopped"
    NOT_ASKED = "not_asked"


@dataclass(frozen=True, slots=True)
class GateResult:
    """The answer of one gate: one sentence, what to do next if somebody can do something, and the ids of what is in the way.

    The advice holds the command too, if there is one to type.
    """

    verdict: GateVerdict
    sentence: str
    advice: str | None = None
    links: tuple[str, ...] = ()
    command: str | None = None


def passed(sentence: str) -> GateResult:
    """The gate is open."""
    return GateResult(GateVerdict.PASSED, sentence)


def not_asked(sentence: str) -> GateResult:
    """The gate does not stand in this way, or not yet."""
    return GateResult(GateVerdict.NOT_ASKED, sentence)


def stopped(
    sentence: str, words: str | None = None, links: tuple[str, ...] = (), command: str | None = None
) -> GateResult:
    """The gate is closed; *words* and *command* are what to do about it."""
    advice = ": ".join(part for part in (words, command) if part) or None
    return GateResult(GateVerdict.STOPPED, sentence, advice, links, command)


def competitor_ids(competitors: Sequence[Competitor]) -> tuple[str, ...]:
    """What to link to: those that stand in the way."""
    return tuple(format_execution_id(competitor.id) for competitor in competitors)


def trigger_command(name: str) -> str:
    """The command that runs a job now."""
    return f"timeball jobs trigger {quote(name)}"
