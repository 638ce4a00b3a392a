"""Bodies about metrics, timelines, forecasts and collisions."""

from __future__ import annotations

import datetime as dt
from datetime import datetime
from typing import Literal

from pydantic import BaseModel, Field

from timeball.api.models import InstantText, RequestModel, ShortText
from timeball.api.models.system import FreezeOut


class PercentilesOut(BaseModel):
    """The 50th, 95th and 99th percentile in seconds, exact to 2.5 %."""

    p50: float | None
    p95: float | None
    p99: float | None


class OccurrenceCountsOut(BaseModel):
    """Occurrences of schedules: those that ran, counted where they ended, and those that were skipped, counted where that was recorded."""

    ran: int
    skipped: dict[str, int] = Field(description="The number by reason; a range counts as many as it holds.")


class CountsOut(BaseModel):
    """Counts of a span. `starts` counts attempts that began in it; `succeeded`, `cancelled`, `dead`, `skipped` and `expected` count
    executions that ended in it, `failed`, `timed_out`, `lost` and `expected_tries` count attempts that ended in it. What failed with an
    error that its handler expects is counted as expected alone."""

    starts: int
    succeeded: int
    cancelled: int
    dead: int
    skipped: int
    failed: int
    timed_out: int
    lost: int
    expected: int
    expected_tries: int
    occurrences: OccurrenceCountsOut
    duration_seconds: PercentilesOut
    lateness_seconds: PercentilesOut


class HandlerStatsOut(CountsOut):
    """The counts of a handler."""

    handler: str


class WaitingOut(BaseModel):
    """Waiting and running executions; more than 10,000 are shown as 10,001."""

    scheduled: int
    retrying: int
    queued: int
    running: int


class StatsOut(BaseModel):
    """Waiting and running executions, and the counts of a window."""

    waiting: WaitingOut
    hours: float
    since: datetime
    until: datetime
    total: CountsOut
    by_handler: list[HandlerStatsOut]


class PointOut(CountsOut):
    """The counts of one step."""

    at: datetime


class SeriesOut(BaseModel):
    """The counts of a window, step by step."""

    since: datetime
    until: datetime
    step_seconds: int
    points: list[PointOut]


class NowOut(WaitingOut):
    """The present: `late` is ready for more than two seconds, `overdue` is due for as long and not promoted, `dead` needs attention."""

    late: int
    overdue: int
    dead: int
    oldest_seconds: float


class LastHourOut(CountsOut):
    """The last hour; `failure_share` is the share of attempts that did not succeed."""

    failure_share: float | None


class QueueMetricsOut(BaseModel):
    """A queue at present."""

    name: str
    depth: int
    running: int
    oldest_seconds: float | None
    is_paused: bool


class NodeMetricsOut(BaseModel):
    """The live workers and schedulers."""

    workers: int
    schedulers: int
    slots: int
    busy: int
    draining: int


class MetricsOut(BaseModel):
    """The present and the last hour."""

    at: datetime
    now: NowOut
    last_hour: LastHourOut
    queues: list[QueueMetricsOut] = Field(description="Up to 100: those with the longest wait.")
    queues_total: int
    nodes: NodeMetricsOut


class MarkOut(BaseModel):
    """One run, or several that are too close to be drawn apart; or occurrences that were skipped, whose `states` are the reasons."""

    kind: Literal["past", "skipped", "running", "predicted"]
    start: datetime
    end: datetime
    count: int
    states: dict[str, int]
    execution_id: str | None = Field(description="Set if the mark stands for one known execution.")
    is_guess: bool = Field(description="Whether the job has no history to predict its duration from.")


class TimelineRowOut(BaseModel):
    """One row of the timeline."""

    key: str
    label: str
    kind: str
    cut_before: datetime | None = Field(description="Runs before this instant were not read.")
    freezes: list[str] = Field(description="The freezes that hold the whole row.")
    marks: list[MarkOut]


class BandStepOut(BaseModel):
    """The slots in one step."""

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
    left_out: int = Field(description="How many jobs were left out because their runs are too many to predict.")
    without_history: list[str]
    durations_at: datetime | None = Field(
        description="When the typical durations were read: at most a minute ago. `null` if there are no runs ahead."
    )
    freezes: list[FreezeOut] = Field(description="The freezes of these hours: nothing in their scope starts meanwhile.")


class HourOut(BaseModel):
    """One hour on the clock of the zone: `gap` is skipped, `repeat` happens twice, `past` is over."""

    hour: int
    at: datetime | None
    value: float | None = Field(description="Busy slots or starts, as `measure` says.")
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
    """How good the forecast was: yesterday as predicted and as measured, in busy slots."""

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
    left_out: int = Field(description="How many jobs were left out because their runs are too many to predict.")
    without_history: list[str]
    durations_at: datetime | None = Field(
        description="When the typical durations were read: at most a minute ago. `null` if there are no runs ahead."
    )
    hindsight: HindsightOut
    freezes: list[FreezeOut] = Field(description="The freezes of these days: nothing in their scope starts meanwhile.")


class CollidingJobOut(BaseModel):
    """A job that takes part in a collision."""

    id: str
    label: str


class CollisionOut(BaseModel):
    """Jobs that together need more slots than there are."""

    queues: list[str]
    start: datetime
    end: datetime
    local: str = Field(description="The time of day, in the requested zone.")
    need: int
    slots: int
    seconds: float
    delay_seconds: float = Field(description="About how much later the last job finishes.")
    times: int = Field(description="How often this collision happens within the forecast.")
    jobs: list[CollidingJobOut]
    sentence: str


class SuggestIn(RequestModel):
    """The collision to spread: the worst one that matches."""

    queues: list[ShortText] = Field(
        default_factory=list, max_length=100, description="The queues of the collision; any if empty."
    )
    at: InstantText | None = Field(
        None, description="The instant of the collision, such as its `start`; any if missing."
    )
    days: int = Field(7, ge=1, le=31, description="The number of days, including today.")
    timezone: str = Field("UTC", max_length=200, description="The IANA time zone of days and hours.")


class SuggestionOut(BaseModel):
    """A job that could run at another time, assuming the suggestions before it."""

    job: CollidingJobOut
    version: int = Field(description="The present version of the job: send it as `If-Match`.")
    schedule_before: str
    schedule_after: str
    shift_seconds: int = Field(description="How much later the job would run; earlier if negative.")
    changes: dict[str, str] = Field(description="The body of `PATCH /jobs/{job}` that applies it.")
    peak_before: int = Field(description="The largest number of concurrent runs during the collision.")
    peak_after: int
    declared_by: str | None = Field(description="The program that declares the job: change the schedule there too.")
    sentence: str


class UnmovedJobOut(BaseModel):
    """A job that stays where it is, and why."""

    id: str
    label: str
    why: str


class SuggestionsOut(BaseModel):
    """How to spread a collision; `collision` is `null` if no jobs collide there."""

    collision: CollisionOut | None
    suggestions: list[SuggestionOut]
    left_out: list[UnmovedJobOut] = Field(description="Jobs of the collision that cannot be moved.")
    sentence: str
