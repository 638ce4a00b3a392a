"""Freezes: spans in which nothing of an installation, a queue, a tag or a job starts, and what becomes of the occurrences afterwards.

A freeze lasts from one instant, which belongs to it, to another, which does not. No job is edited for it. Freezes that overlap count as one
window; the one that ends last decides about the occurrences that fell into it.

The statements that promote and claim check freezes by themselves; what is here plans for them, and explains them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import NewType
from uuid import UUID

from timeball.domain.policies import Policy
from timeball.domain.values.ids import JobId, format_id, format_job_id

FreezeId = NewType("FreezeId", UUID)


class FreezeScope(StrEnum):
    """What a freeze holds."""

    INSTALLATION = "installation"
    QUEUE = "queue"
    TAG = "tag"
    JOB = "job"


class Afterwards(Policy):
    """What becomes of the occurrences of a schedule that fell into a freeze, once it is over."""

    SKIP = "skip", "none of them runs"
    LATEST = "latest", "the latest of each job runs"
    ALL = "all", "all run, as many as misfire_cap allows"


@dataclass(frozen=True, slots=True, kw_only=True)
class Freeze:
    """One freeze. *target* is the name of its queue or tag, *job_id* its job; *ended_by* ended it before its time."""

    id: FreezeId
    scope: FreezeScope
    target: str | None = None
    job_id: JobId | None = None
    from_at: datetime
    until_at: datetime
    afterwards: Afterwards
    actor: str
    reason: str | None = None
    created_at: datetime
    ended_by: str | None = None
    epoch: int

    @property
    def version(self) -> int:
        """A freeze changes once, when it is ended before its time."""
        return 1 if self.ended_by is None else 2

    def covers(self, instant: datetime) -> bool:
        """Whether nothing starts at this instant."""
        return self.from_at <= instant < self.until_at

    def touches(self, start: datetime, end: datetime) -> bool:
        """Whether a part of it lies between two instants."""
        return self.from_at < end and self.until_at > start

    def holds(self, queue: str, job_id: JobId | None, tags: Collection[str]) -> bool:
        """Whether executions of this queue and job are in its scope."""
        match self.scope:
            case FreezeScope.INSTALLATION:
                return True
            case FreezeScope.QUEUE:
                return self.target == queue
            case FreezeScope.TAG:
                return self.target is not None and self.target in tags
            case FreezeScope.JOB:
                return self.job_id == job_id

    @property
    def what(self) -> str:
        """What it holds, for people."""
        if self.scope is FreezeScope.INSTALLATION:
            return "everything"
        if self.job_id is not None:
            return f"job {format_job_id(self.job_id)}"
        return f"{self.scope} {self.target}"


def format_freeze_id(freeze_id: UUID) -> str:
    """A freeze as people and the API name it."""
    return format_id("frz", freeze_id)


@dataclass(frozen=True, slots=True)
class FrozenWindow:
    """Freezes that overlap, as one: nothing starts from *start* on and before *end*."""

    start: datetime
    end: datetime
    afterwards: Afterwards

    def covers(self, instant: datetime) -> bool:
        return self.start <= instant < self.end


# If two freezes end at the same instant, the one that runs less decides.
_STRICTNESS = {Afterwards.SKIP: 2, Afterwards.LATEST: 1, Afterwards.ALL: 0}


def frozen_windows(freezes: Iterable[Freeze]) -> tuple[FrozenWindow, ...]:
    """The windows of some freezes, in order; those that overlap are one. A freeze that was ended before it began has none."""
    windows: list[FrozenWindow] = []
    for freeze in sorted(freezes, key=lambda one: one.from_at):
        if freeze.from_at >= freeze.until_at:
            continue
        window = FrozenWindow(freeze.from_at, freeze.until_at, freeze.afterwards)
        if windows and window.start < windows[-1].end:
            window = _merged(windows.pop(), window)
        windows.append(window)
    return tuple(windows)


def _merged(one: FrozenWindow, other: FrozenWindow) -> FrozenWindow:
    last = max(one, other, key=lambda window: (window.end, _STRICTNESS[window.afterwards]))
    return FrozenWindow(min(one.start, other.start), last.end, last.afterwards)


def window_at(windows: Iterable[FrozenWindow], instant: datetime) -> FrozenWindow | None:
    """The window in which nothing starts at this instant."""
    return next((window for window in windows if window.covers(instant)), None)


@dataclass(frozen=True, slots=True)
class FreezeList:
    """All freezes that are kept, as they were when their *epoch* was read. Every change of a freeze makes another epoch."""

    epoch: int = 0
    freezes: Sequence[Freeze] = field(default=())

    @property
    def tags(self) -> frozenset[str]:
        """The tags that some freeze names: only for these it matters which jobs have them."""
        return frozenset(freeze.target for freeze in self.freezes if freeze.scope is FreezeScope.TAG and freeze.target)

    def between(self, start: datetime, end: datetime, queue: str | None = None) -> list[Freeze]:
        """The freezes that touch a span, those of another queue than *queue* left out."""
        return [
            freeze
            for freeze in self.freezes
            if freeze.touches(start, end)
            and (queue is None or freeze.scope is not FreezeScope.QUEUE or freeze.target == queue)
        ]

    def windows_of(self, queue: str, job_id: JobId, tags: Mapping[JobId, Collection[str]]) -> tuple[FrozenWindow, ...]:
        """The windows in which nothing of this job and queue starts."""
        return frozen_windows(freeze for freeze in self.freezes if freeze.holds(queue, job_id, tags.get(job_id, ())))
