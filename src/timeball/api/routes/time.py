"""The past and the future on one line."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from starlette.responses import Response

from timeball.api.auth import Role
from timeball.api.described import EXECUTION_ID, JOB_ID, MOMENT, described
from timeball.api.desk import Desk, TheDesk
from timeball.api.schemas.common import Many, Words
from timeball.api.schemas.time import CollisionOut, ForecastOut, TimelineOut
from timeball.api.views import Document, answer
from timeball.api.wishes import moment_from
from timeball.domain.collisions import Collision
from timeball.domain.ids import show_job
from timeball.errors import InvalidInput
from timeball.insights import Forecast, ForecastWish, RowsBy, Timeline, TimelineWish
from timeball.insights.forecast import Hour

router = APIRouter(tags=["time"])

_LONGEST = timedelta(days=31)
_MOST_COLLISIONS = 100
_DEFAULT_BEFORE, _DEFAULT_AFTER = timedelta(hours=2), timedelta(hours=2)
_MARK_EXAMPLE = {
    "kind": "predicted",
    "start": MOMENT,
    "end": "2026-11-16T06:00:09Z",
    "count": 1,
    "states": {},
    "execution_id": EXECUTION_ID,
    "is_guess": False,
}
_TIMELINE_EXAMPLE = {
    "now": "2026-11-16T05:42:00Z",
    "start": "2026-11-16T04:00:00Z",
    "end": "2026-11-16T08:00:00Z",
    "rows_by": "jobs",
    "rows": [{"key": JOB_ID, "label": "daily-report", "kind": "cron", "cut_before": None, "marks": [_MARK_EXAMPLE]}],
    "has_more": False,
    "slots": 8,
    "band": [
        {
            "start": MOMENT,
            "end": "2026-11-16T06:02:24Z",
            "busy": 0.06,
            "peak": 11,
            "is_predicted": True,
            "note": "needs 11 of 8",
        }
    ],
    "left_out": 0,
    "without_history": [],
    "durations_at": "2026-11-16T05:41:30Z",
}

_HOUR_EXAMPLE = {"hour": 3, "at": "2026-11-17T02:00:00Z", "value": 11.2, "busy": 11.2, "starts": 14, "note": None}
_FORECAST_EXAMPLE = {
    "now": "2026-11-16T05:42:00Z",
    "timezone": "Europe/Berlin",
    "measure": "busy",
    "slots": 8,
    "days": [
        {
            "date": "2026-11-17",
            "peak": {"hour": 3, "value": 11.2, "sentence": "peak 03:00, 11.2 of 8"},
            "hours": [_HOUR_EXAMPLE],
        }
    ],
    "left_out": 0,
    "without_history": ["new-report"],
    "durations_at": "2026-11-16T05:41:30Z",
    "hindsight": {
        "date": "2026-11-15",
        "predicted_peak": 7.6,
        "measured_peak": 7.9,
        "predicted_hours": 31.5,
        "measured_hours": 32.1,
    },
}
COLLISION_EXAMPLE = {
    "queues": ["batch"],
    "start": "2026-11-17T02:00:00Z",
    "end": "2026-11-17T02:09:00Z",
    "local": "03:00",
    "need": 11,
    "slots": 8,
    "seconds": 540.0,
    "delay_seconds": 360.0,
    "times": 7,
    "jobs": [{"id": JOB_ID, "label": "reindex"}],
    "sentence": "7 times at 03:00, queue batch: 5 jobs want 11 of 8 slots for 9 min, which adds about 6 min: reindex",
}

From = Annotated[
    str | None, Query(alias="from", max_length=100, description="The first instant; two hours ago if none is given.")
]
Until = Annotated[
    str | None, Query(alias="to", max_length=100, description="The last instant; in two hours if none is given.")
]
Queue = Annotated[Words | None, Query(description="Only of this queue.")]


Days = Annotated[int, Query(ge=1, le=31, description="For how many days, today included.")]
Zone = Annotated[str, Query(max_length=200, description="Whose days and hours: an IANA time zone.")]


@router.get("/timeline", response_model=TimelineOut, **described(Role.VIEWER, _TIMELINE_EXAMPLE, is_heavy=True))
async def timeline(
    desk: TheDesk,
    start: From = None,
    end: Until = None,
    queue: Queue = None,
    rows: Annotated[RowsBy, Query(description="What a row is.")] = RowsBy.JOBS,
    limit: Annotated[int, Query(ge=1, le=200, description="The most rows.")] = 50,
    width: Annotated[int, Query(ge=100, le=10_000, description="How wide the drawing is, in pixels.")] = 1_000,
) -> Response:
    """What ran, what runs and what is to run: merged to about one mark per four pixels, at most 2,000, never across now.

    The width of a predicted mark is the median duration of its job. The band says how many slots are busy, and need to be.
    """
    low, high = _span(desk, start, end)
    wish = TimelineWish(start=low, end=high, queue=queue, rows_by=rows, limit=limit, width=width)
    return answer(timeline_document(await desk.insights.timeline(wish)))


@router.get("/forecast", response_model=ForecastOut, **described(Role.VIEWER, _FORECAST_EXAMPLE, is_heavy=True))
async def forecast(
    desk: TheDesk,
    days: Days = 7,
    queue: Queue = None,
    measure: Annotated[Literal["busy", "starts"], Query(description="What an hour's value is.")] = "busy",
    timezone: Zone = "UTC",
) -> Response:
    """How many slots each hour of the next days needs: expected durations of what is due, against the slots there are.

    Fire times come from the scheduler's own iterator; hours that a clock change jumps over or repeats are noted.
    """
    found = await desk.insights.forecast(ForecastWish(days=days, queue=queue, timezone=timezone))
    return answer(forecast_document(found, measure))


@router.get(
    "/forecast/collisions",
    response_model=Many[CollisionOut],
    **described(Role.VIEWER, {"data": [COLLISION_EXAMPLE]}, is_heavy=True),
)
async def collisions(desk: TheDesk, days: Days = 7, queue: Queue = None, timezone: Zone = "UTC") -> Response:
    """Which jobs want more slots than there are, when, for how long, and about how much delay that adds; the worst first."""
    found = await desk.insights.collisions(ForecastWish(days=days, queue=queue, timezone=timezone))
    return answer({"data": [collision_document(one) for one in found[:_MOST_COLLISIONS]]})


def _span(desk: Desk, start: str | None, end: str | None) -> tuple[datetime, datetime]:
    now = desk.insights.now()
    low, high = moment_from(start, "from", "UTC"), moment_from(end, "to", "UTC")
    low = low or min(high or now, now) - _DEFAULT_BEFORE
    high = high or max(low, now) + _DEFAULT_AFTER
    if not timedelta(seconds=1) <= high - low <= _LONGEST:
        raise InvalidInput(
            f"from {low.isoformat()} to {high.isoformat()} is no span to draw; expected from 1 second to 31 days",
            field="to",
            hint="give from and to, with to the later of the two",
        )
    return low, high


def timeline_document(timeline: Timeline) -> Document:
    """A time line as the API shows it."""
    wish = timeline.wish
    return {
        "now": timeline.now,
        "start": wish.start,
        "end": wish.end,
        "rows_by": wish.rows_by,
        "rows": timeline.rows,
        "has_more": timeline.has_more,
        "slots": timeline.slots,
        "band": timeline.band,
        "left_out": timeline.left_out,
        "without_history": list(timeline.without_history),
        "durations_at": timeline.durations_at,
    }


def forecast_document(forecast: Forecast, measure: str) -> Document:
    """A forecast as the API shows it."""
    return {
        "now": forecast.now,
        "timezone": forecast.wish.timezone,
        "measure": measure,
        "slots": forecast.slots,
        "days": [
            {
                "date": day.date,
                "peak": _peak(day.hours, measure, forecast.slots),
                "hours": [_hour_document(hour, measure) for hour in day.hours],
            }
            for day in forecast.days
        ],
        "left_out": forecast.left_out,
        "without_history": list(forecast.without_history),
        "durations_at": forecast.durations_at,
        "hindsight": asdict(forecast.hindsight),
    }


def _hour_document(hour: Hour, measure: str) -> Document:
    return {
        "hour": hour.hour,
        "at": hour.at,
        "value": hour.busy if measure == "busy" else hour.starts,
        "busy": hour.busy,
        "starts": hour.starts,
        "note": hour.note,
    }


def _peak(hours: Any, measure: str, slots: int) -> Document | None:
    highest = max(hours, key=lambda hour: getattr(hour, measure) or 0)
    value = getattr(highest, measure)
    if not value:
        return None
    of = f" of {slots}" if measure == "busy" else " starts"
    return {"hour": highest.hour, "value": value, "sentence": f"peak {highest.hour:02}:00, {value:g}{of}"}


def collision_document(one: Collision) -> Document:
    """A collision as the API shows it."""
    return {
        "queues": list(one.pool.queues),
        "start": one.start,
        "end": one.end,
        "local": one.local,
        "need": one.need,
        "slots": one.pool.slots,
        "seconds": (one.end - one.start).total_seconds(),
        "delay_seconds": one.delay.total_seconds(),
        "times": one.times,
        "jobs": [{"id": show_job(job_id), "label": label} for job_id, label in one.jobs],
        "sentence": one.sentence,
    }
