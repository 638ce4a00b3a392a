"""What the gates are given and what they answer: the facts about one execution or job at one moment, and a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from shlex import quote
from typing import TYPE_CHECKING

from timeball.domain.execution import DueKind, Execution
from timeball.domain.node import NodeStatus
from timeball.domain.values.ids import ExecutionId, Incarnation, JobId, format_execution_id
from timeball.domain.values.wording import duration_in_words

if TYPE_CHECKING:
    from timeball.domain.freeze import Freeze
    from timeball.domain.job import Job
    from timeball.domain.rollup import TypicalDuration


class ExecutionTable(StrEnum):
    """The state table that holds an execution."""

    DUE = "due"
    READY = "ready"
    BLOCKED = "blocked"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class Competitor:
    """Another unfinished execution: when it started, and how long its job usually takes."""

    id: ExecutionId
    job_id: JobId
    state_table: ExecutionTable
    started_at: datetime | None = None
    typical: TypicalDuration | None = None

    def expected_end(self, now: datetime) -> datetime | None:
        """When it should end; one that is past its typical duration may end at any moment."""
        if self.started_at is None or self.typical is None:
            return None
        return max(self.started_at + self.typical.median, now)

    def words(self, now: datetime) -> str:
        """Its id, its age and its typical duration: `exe_…5M (12 min, usually 3 min)`."""
        name = format_execution_id(self.id)
        if self.started_at is None:
            return name
        age = now - self.started_at
        usually = "" if self.typical is None else f", usually {duration_in_words(self.typical.median)}"
        return f"{name} ({duration_in_words(age)}{usually})"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFacts:
    """A queue: whether it is paused, its limit, and the executions that use it."""

    name: str
    paused_at: datetime | None = None
    paused_until: datetime | None = None
    pause_reason: str | None = None
    max_running: int | None = None
    taken: int = 0
    holders: Sequence[Competitor] = ()


@dataclass(frozen=True, slots=True)
class QueueInterval:
    """A pause or a limit of a queue, from its beginning to its end; *until* is None while it lasts."""

    queue: str
    kind: str
    since: datetime
    until: datetime | None
    # The limit; None for a pause.
    value: int | None
    actor: str
    reason: str | None

    @property
    def is_pause(self) -> bool:
        return self.value is None

    def touches(self, start: datetime, end: datetime) -> bool:
        """Whether a part of it lies between two instants."""
        return self.since < end and (self.until is None or self.until > start)


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitFacts:
    """A limit of a job or of a key, and the executions that use it."""

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
    """All facts. Without an execution, the question is why the job does not run at all."""

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
    # The published contracts of the handler, the newest first.
    versions: Sequence[ContractFacts] = ()
    # The freeze that holds it: of several, the one that ends last.
    freeze: Freeze | None = None

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
        """Whether its time lies ahead."""
        return self.run_at is not None and self.run_at > self.now

    @property
    def serving(self) -> list[NodeStatus]:
        """The workers that serve this queue."""
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
        """The worker that runs or holds it."""
        incarnation: Incarnation | None = None if self.execution is None else self.execution.worker
        return next((worker for worker in self.workers if worker.incarnation == incarnation), None)


class GateVerdict(StrEnum):
    """Whether a gate is open or closed, or does not apply."""

    PASSED = "passed"
    STOPPED = "stopped"
    NOT_ASKED = "not_asked"


@dataclass(frozen=True, slots=True)
class GateResult:
    """The answer of one gate: a sentence, advice if something can be done, and the ids of what blocks it.

    The advice includes the command, if there is one.
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
    """The gate does not apply, or not yet."""
    return GateResult(GateVerdict.NOT_ASKED, sentence)


def stopped(
    sentence: str, words: str | None = None, links: tuple[str, ...] = (), command: str | None = None
) -> GateResult:
    """The gate is closed; *words* and *command* are what to do about it."""
    advice = ": ".join(part for part in (words, command) if part) or None
    return GateResult(GateVerdict.STOPPED, sentence, advice, links, command)


def competitor_ids(competitors: Sequence[Competitor]) -> tuple[str, ...]:
    """The ids of competitors, as links."""
    return tuple(format_execution_id(competitor.id) for competitor in competitors)


def trigger_command(name: str) -> str:
    """The command that runs a job now."""
    return f"timeball jobs trigger {quote(name)}"
