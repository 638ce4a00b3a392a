"""Rollups: what happened in a minute, an hour or a longer window, without looking at single executions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from enum import StrEnum

from timeball.domain.ids import JobId
from timeball.domain.sketch import Sketch, merged

# How long each span is kept; what is older is known by the hour, then not at all.
MINUTES_KEPT = timedelta(days=8)
HOURS_KEPT = timedelta(days=400)


class Span(StrEnum):
    """What a rollup is about: a minute, an hour, or all time."""

    MINUTE = "minute"
    HOUR = "hour"
    EVER = "ever"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """How often things happened.

    `starts` are tries, counted where they began; `succeeded`, `cancelled`, `dead` and `skipped` are executions, `failed`,
    `timed_out` and `lost` are tries, counted where they ended.
    """

    starts: int = 0
    succeeded: int = 0
    cancelled: int = 0
    dead: int = 0
    skipped: int = 0
    failed: int = 0
    timed_out: int = 0
    lost: int = 0

    @property
    def unsuccessful_tries(self) -> int:
        """Tries that failed, timed out or were lost with their worker."""
        return self.failed + self.timed_out + self.lost

    @property
    def ended(self) -> int:
        """Executions that ended, however."""
        return self.succeeded + self.cancelled + self.dead + self.skipped

    @property
    def failure_share(self) -> float | None:
        """The share of all ended tries that did not succeed; None if none ended."""
        tries = self.succeeded + self.unsuccessful_tries
        return self.unsuccessful_tries / tries if tries else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollup:
    """What happened in a span of time, to one (queue, handler) or to all: then those are empty."""

    at: datetime
    queue: str = ""
    handler: str = ""
    tally: Tally = field(default_factory=Tally)
    lateness: Sketch = field(default_factory=Sketch)
    lateness_seconds: float = 0.0
    duration: Sketch = field(default_factory=Sketch)
    duration_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RollupQuery:
    """Which rollups: a window, and whose; all of them if nobody is named."""

    since: datetime
    until: datetime
    job_id: JobId | None = None
    queue: str | None = None
    handler: str | None = None
    span: Span = Span.MINUTE


def summed(rollups: Iterable[Rollup], at: datetime, queue: str = "", handler: str = "") -> Rollup:
    """Several rollups as one."""
    parts = list(rollups)
    return Rollup(
        at=at,
        queue=queue,
        handler=handler,
        tally=Tally(**{name: sum(getattr(part.tally, name) for part in parts) for name in TALLIED}),
        lateness=merged(part.lateness for part in parts),
        lateness_seconds=sum(part.lateness_seconds for part in parts),
        duration=merged(part.duration for part in parts),
        duration_seconds=sum(part.duration_seconds for part in parts),
    )


TALLIED: tuple[str, ...] = tuple(one.name for one in fields(Tally))
