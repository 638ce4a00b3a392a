"""Numbers."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, Field


class Percentiles(BaseModel):
    """Seconds: half, 95 and 99 of a hundred stay below; right to within 2.5 %."""

    p50: float | None
    p95: float | None
    p99: float | None


class Counts(BaseModel):
    """How often things happened. `starts` are tries where they began; succeeded, cancelled, dead and skipped are executions,
    failed, timed_out and lost are tries, where they ended."""

    starts: int
    succeeded: int
    cancelled: int
    dead: int
    skipped: int
    failed: int
    timed_out: int
    lost: int
    duration_seconds: Percentiles
    lateness_seconds: Percentiles


class StatsRow(Counts):
    """What happened to the executions of a handler."""

    handler: str


class WaitingOut(BaseModel):
    """What waits and runs; more than 10,000 shows as 10,001."""

    scheduled: int
    retrying: int
    queued: int
    running: int


class StatsOut(BaseModel):
    """What waits and runs, and what happened in a window."""

    waiting: WaitingOut
    hours: float
    since: datetime
    until: datetime
    total: Counts
    by_handler: list[StatsRow]


class PointOut(Counts):
    """What happened in one step."""

    at: datetime


class SeriesOut(BaseModel):
    """What happened, step by step."""

    since: datetime
    until: datetime
    step_seconds: int
    points: list[PointOut]


class NowOut(WaitingOut):
    """This moment: `late` is ready for more than two seconds, `overdue` has not even been hoisted, `dead` waits for somebody."""

    late: int
    overdue: int
    dead: int
    oldest_seconds: float


class LastHourOut(Counts):
    """The last hour; `failure_share` is the share of tries that did not succeed."""

    failure_share: float | None


class QueueNumbers(BaseModel):
    """A queue at this moment."""

    name: str
    depth: int
    running: int
    oldest_seconds: float | None
    is_paused: bool


class NodeNumbers(BaseModel):
    """The workers and schedulers that are alive."""

    workers: int
    schedulers: int
    slots: int
    busy: int
    draining: int


class MetricsOut(BaseModel):
    """The numbers of this moment and of the last hour."""

    at: datetime
    now: NowOut
    last_hour: LastHourOut
    queues: list[QueueNumbers] = Field(description="Up to 100: those whose oldest execution waits longest.")
    queues_total: int
    nodes: NodeNumbers
