"""Bodies about metrics, timelines, forecasts and collisions."""

from __future__ import annotations

import datetime as dt
from datetime import datetime
from typing import Literal

from pydantic import BaseModel, Field

from timeball.api.models import InstantText, RequestModel, ShortText

# Numbers.


class PercentilesOut(BaseModel):
    """Seconds: half, 95 and 99 of a hundred stay below; right to within 2.5 %."""

    p50: float | None
    p95: float | None
    p99: float | None


class CountsOut(BaseModel):
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
    duration_seconds: PercentilesOut
    lateness_seconds: PercentilesOut


class HandlerStatsOut(CountsOut):
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
    total: CountsOut
    by_handler: list[HandlerStatsOut]


class PointOut(CountsOut):
    """What happened in one step."""

    at: datetime


class SeriesOut(BaseModel):
    """What happened, step by step."""

    since: datetime
    until: datetime
    step_seconds: int
    points: list[PointOut]


class NowOut(WaitingOut):
    """This moment: `late` is ready for more than two seconds, `overdue` has not even been promoted, `dead` waits for somebody."""

    late: int
    overdue: int
    dead: int
    oldest_seconds: float


class LastHourOut(CountsOut):
    """The last hour; `failure_share` is the share of tries that did not succeed."""

    failure_share: float | None


class QueueMetricsOut(BaseModel):
    """A queue at this moment."""

    name: str
    depth: int
    running: int
    oldest_seconds: float | None
    is_paused: bool


class NodeMetricsOut(BaseModel):
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
    queues: list[QueueMetricsOut] = Field(description="Up to 100: those whose oldest execution waits longest.")
    queues_total: int
    nodes: NodeMetricsOut


# Time lines and forecasts.


class MarkOut(BaseModel):
    """One run, or several that lie too close to be told apart."""

    kind: Literal["past", "running", "predicted"]
    start: datetime
    end: datetime
    count: int
    states: dict[str, int]
    execution_id: str | None = Field(description="Of a mark that stands for one known execution.")
    is_guess: bool = Field(description="Whether there is no history to tell the length by.")


class TimelineRowOut(BaseModel):
    """One line of the drawing."""

    key: str
    label: str
    kind: str
    cut_before: datetime | None = Field(description="Older runs than this were not read.")
    marks: list[MarkOut]


class BandStepOut(BaseModel):
    """The slots in one step of time."""

    start: datetime
    end: datetime
    busy: float
    peak: int
    is_predicted: bool
    note: str | None


class TimelineOut(BaseModel):
    """Past, running and predicted on one axis; marks never cross `now`."""

    now: datetime
    start: datetime
    end: datetime
    rows_by: Literal["jobs", "queues", "workers"]
    rows: list[TimelineRowOut]
    has_more: bool
    slots: int
    band: list[BandStepOut]
    left_out: int = Field(description="How many jobs were too many to foresee.")
    without_history: list[str]
    durations_at: datetime | None = Field(
        description="When it was read how long jobs usually take: at most a minute ago. None if nothing lies ahead."
    )


class HourOut(BaseModel):
    """One hour as the clock of the zone shows it: `gap` is jumped over, `repeat` comes twice, `past` is over."""

    hour: int
    at: datetime | None
    value: float | None = Field(description="Busy slots or starts, as `measure` asked.")
    busy: float | None
    starts: int | None
    note: Literal["gap", "repeat", "past"] | None


class PeakOut(BaseModel):
    """The highest hour of a day."""

    hour: int
    value: float
    sentence: str


class DayOut(BaseModel):
    """A day of the zone, with its 24 hours."""

    date: dt.date
    peak: PeakOut | None
    hours: list[HourOut]


class HindsightOut(BaseModel):
    """How good was this? Yesterday, as it would have been foreseen and as it was, in busy slots."""

    date: dt.date
    predicted_peak: float
    measured_peak: float
    predicted_hours: float
    measured_hours: float


class ForecastOut(BaseModel):
    """Demand against slots, hour by hour."""

    now: datetime
    timezone: str
    measure: Literal["busy", "starts"]
    slots: int
    days: list[DayOut]
    left_out: int = Field(description="How many jobs were too many to foresee.")
    without_history: list[str]
    durations_at: datetime | None = Field(
        description="When it was read how long jobs usually take: at most a minute ago. None if nothing lies ahead."
    )
    hindsight: HindsightOut


class CollidingJobOut(BaseModel):
    """A job that takes part in a collision."""

    id: str
    label: str


class CollisionOut(BaseModel):
    """Some jobs want more slots than there are."""

    queues: list[str]
    start: datetime
    end: datetime
    local: str = Field(description="The time of day, in the zone asked for.")
    need: int
    slots: int
    seconds: float
    delay_seconds: float = Field(description="About how much later the last of them is done.")
    times: int = Field(description="How often just this happens within the forecast.")
    jobs: list[CollidingJobOut]
    sentence: str


class SuggestIn(RequestModel):
    """Which collision to spread: the worst of those that are meant."""

    queues: list[ShortText] = Field(
        default_factory=list, max_length=100, description="Of these queues, as the collision names them; any if none."
    )
    at: InstantText | None = Field(
        None, description="At this instant, such as the collision's `start`; at any if none."
    )
    days: int = Field(7, ge=1, le=31, description="Within how many days, today included.")
    timezone: str = Field("UTC", max_length=200, description="Whose days and hours: an IANA time zone.")


class SuggestionOut(BaseModel):
    """A job that could run at another time. It counts on the suggestions before it."""

    job: CollidingJobOut
    version: int = Field(description="The job's version now: send it as `If-Match`.")
    schedule_before: str
    schedule_after: str
    shift_seconds: int = Field(description="By how much later it would run; earlier, if negative.")
    changes: dict[str, str] = Field(description="The body of `PATCH /jobs/{job}` that applies it.")
    peak_before: int = Field(description="The most that run at once while the jobs collide.")
    peak_after: int
    declared_by: str | None = Field(description="The program that declares the job: a change belongs there too.")
    sentence: str


class UnmovedJobOut(BaseModel):
    """A job that stays where it is, and why."""

    id: str
    label: str
    why: str


class SuggestionsOut(BaseModel):
    """How a collision could be spread; `collision` is none if nothing collides there."""

    collision: CollisionOut | None
    suggestions: list[SuggestionOut]
    left_out: list[UnmovedJobOut] = Field(description="Jobs of the collision that cannot be moved.")
    sentence: str
