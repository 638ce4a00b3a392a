"""What a read answers with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from timeball.domain.execution import Attempt, Execution
from timeball.domain.job import Job, JobStatus
from timeball.domain.schedule import Manual, Occurrence
from timeball.store.listing import Standing


@dataclass(frozen=True, slots=True)
class JobView:
    """A job and how it stands."""

    job: Job
    standing: Standing

    @property
    def status(self) -> JobStatus:
        if self.job.is_paused:
            return JobStatus.PAUSED
        is_open = self.standing.is_live or isinstance(self.job.rule, Manual)
        return JobStatus.ACTIVE if is_open else JobStatus.FINISHED


@dataclass(frozen=True, slots=True)
class ExecutionView:
    """An execution in full: its attempts, the payload it was given, why it is being stopped."""

    execution: Execution
    attempts: Sequence[Attempt]
    payload: str
    fingerprint: str | None
    stop: str | None


@dataclass(frozen=True, slots=True)
class FireTime:
    """An instant of a schedule, as the clock of its zone shows it."""

    occurrence: Occurrence
    local: datetime


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at: `ok`, `warn` or `fail`, and what was found."""

    name: str
    status: str
    detail: str
