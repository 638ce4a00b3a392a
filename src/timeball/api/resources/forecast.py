"""The timeline, the forecast of slot demand, collisions of jobs, and suggestions that spread them."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from starlette.responses import Response

from timeball.api.auth import Role
from timeball.api.models import FullList
from timeball.api.models.metrics import CollisionOut, ForecastOut, SuggestIn, SuggestionsOut, TimelineOut
from timeball.api.openapi import EXECUTION_ID, INSTANT_EXAMPLE, JOB_ID, route_options
from timeball.api.params import ApiContext, Context, Days, IdempotencyKey, QueueParam, Zone, optional_instant
from timeball.api.resources.freezes import FREEZE_EXAMPLE, freeze_document
from timeball.api.responses import Document, json_response
from timeball.application.queries.forecast import Forecast, ForecastRequest, Hour, SpreadAdvice, SpreadRequest
from timeball.application.queries.timeline import RowsBy, Timeline, TimelineRequest
from timeball.domain.forecast.demand import Collision
from timeball.domain.forecast.suggestions import ScheduleShift, spell_schedule, timing_fields
from timeball.domain.values.ids import format_job_id
from timeball.errors import InvalidInput

router = APIRouter(tags=["time"])

_MAX_RANGE = timedelta(days=31)
_MAX_COLLISIONS = 100
_DEFAULT_BEFORE, _DEFAULT_AFTER = timedelta(hours=2), timedelta(hours=2)
_MARK_EXAMPLE = {
    "kind": "predicted",
    "start": INSTANT_EXAMPLE,
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
    "rows": [
        {
            "key": JOB_ID,
            "label": "daily-report",
            "kind": "cron",
            "cut_before": None,
            "marks": [_MARK_EXAMPLE],
            "freezes": [FREEZE_EXAMPLE["id"]],
        }
    ],
    "has_more": False,
    "slots": 8,
    "band": [
        {
            "start": INSTANT_EXAMPLE,
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
    "freezes": [FREEZE_EXAMPLE],
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
    "freezes": [FREEZE_EXAMPLE],
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

FromParam = Annotated[
    str | None, Query(alias="from", max_length=100, description="The first instant; by default two hours ago.")
]
ToParam = Annotated[
    str | None, Query(alias="to", max_length=100, description="The last instant; by default in two hours.")
]


@router.get("/timeline", response_model=TimelineOut, **route_options(Role.VIEWER, _TIMELINE_EXAMPLE, is_heavy=True))
async def timeline(
    context: Context,
    start: FromParam = None,
    end: ToParam = None,
    queue: QueueParam = None,
    rows: Annotated[RowsBy, Query(description="What a row stands for.")] = RowsBy.JOBS,
    limit: Annotated[int, Query(ge=1, le=200, description="The largest number of rows.")] = 50,
    width: Annotated[int, Query(ge=100, le=10_000, description="The width of the drawing in pixels.")] = 1_000,
) -> Response:
    """Past, running and predicted runs, merged to about one mark per four pixels, at most 2,000, never across now.

    The width of a predicted mark is the median duration of its job. The band shows how many slots are busy or will be needed.
    """
    low, high = _span(context, start, end)
    request = TimelineRequest(start=low, end=high, queue=queue, rows_by=rows, limit=limit, width=width)
    document = timeline_document(await context.queries.timeline.draw(request))
    return json_response(document | {"freezes": await _freezes(context, queue, low, high)})


@router.get("/forecast", response_model=ForecastOut, **route_options(Role.VIEWER, _FORECAST_EXAMPLE, is_heavy=True))
async def forecast(
    context: Context,
    days: Days = 7,
    queue: QueueParam = None,
    measure: Annotated[Literal["busy", "starts"], Query(description="What the value of an hour counts.")] = "busy",
    timezone: Zone = "UTC",
) -> Response:
    """How many slots each hour of the next days needs: the expected durations of due runs, compared with the slots.

    Fire times come from the scheduler's own iterator; hours that a clock change skips or repeats are noted.
    """
    demand = await context.queries.forecast.demand(ForecastRequest(days=days, queue=queue, timezone=timezone))
    freezes = await _freezes(context, queue, demand.now, demand.now + timedelta(days=days))
    return json_response(forecast_document(demand, measure) | {"freezes": freezes})


async def _freezes(context: ApiContext, queue: str | None, start: datetime, end: datetime) -> list[Document]:
    """The freezes of a span; of one queue, if it is given: a tag or a job may be in any."""
    freezes = (await context.queries.freezes()).between(start, end, queue)
    return [freeze_document(freeze, context.queries.now()) for freeze in freezes]


@router.get(
    "/forecast/collisions",
    response_model=FullList[CollisionOut],
    **route_options(Role.VIEWER, {"data": [COLLISION_EXAMPLE]}, is_heavy=True),
)
async def collisions(context: Context, days: Days = 7, queue: QueueParam = None, timezone: Zone = "UTC") -> Response:
    """Jobs that together need more slots than there are: when, for how long, and with about how much delay; the worst first."""
    worst = await context.queries.forecast.collisions(ForecastRequest(days=days, queue=queue, timezone=timezone))
    return json_response({"data": [collision_document(collision) for collision in worst[:_MAX_COLLISIONS]]})


def _span(context: ApiContext, start: str | None, end: str | None) -> tuple[datetime, datetime]:
    now = context.queries.now()
    low, high = optional_instant(start, "from", "UTC"), optional_instant(end, "to", "UTC")
    low = low or min(high or now, now) - _DEFAULT_BEFORE
    high = high or max(low, now) + _DEFAULT_AFTER
    if not timedelta(seconds=1) <= high - low <= _MAX_RANGE:
        raise InvalidInput(
            f"the range is from {low.isoformat()} to {high.isoformat()}, expected 1 second to 31 days",
            field="to",
            hint="give from and to, with to the later of the two",
        )
    return low, high


def timeline_document(timeline: Timeline) -> Document:
    """A timeline as the API shows it."""
    request = timeline.request
    return {
        "now": timeline.now,
        "start": request.start,
        "end": request.end,
        "rows_by": request.rows_by,
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
        "timezone": forecast.request.timezone,
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


def collision_document(collision: Collision) -> Document:
    """A collision as the API shows it."""
    return {
        "queues": list(collision.pool.queues),
        "start": collision.start,
        "end": collision.end,
        "local": collision.local,
        "need": collision.need,
        "slots": collision.pool.slots,
        "seconds": (collision.end - collision.start).total_seconds(),
        "delay_seconds": collision.delay.total_seconds(),
        "times": collision.times,
        "jobs": [{"id": format_job_id(job_id), "label": label} for job_id, label in collision.jobs],
        "sentence": collision.sentence,
    }


suggestions_router = APIRouter(tags=["time"])

_SUGGESTION_EXAMPLE = {
    "job": {"id": JOB_ID, "label": "reindex"},
    "version": 3,
    "schedule_before": "0 3 * * *",
    "schedule_after": "10 3 * * *",
    "shift_seconds": 600,
    "changes": {"schedule": "10 3 * * *"},
    "peak_before": 11,
    "peak_after": 10,
    "declared_by": None,
    "sentence": "reindex 0 3 * * * → 10 3 * * * (10 min later), peak 11 → 10",
}
_EXAMPLE = {
    "collision": COLLISION_EXAMPLE,
    "suggestions": [_SUGGESTION_EXAMPLE],
    "left_out": [
        {"id": JOB_ID, "label": "sync", "why": 'its minutes are "*/30", and only a single minute can be moved'}
    ],
    "sentence": "with 1 job moved the peak is 10, which is still more than 8 slots",
}


@suggestions_router.post(
    "/schedules/suggest",
    response_model=SuggestionsOut,
    **route_options(
        Role.VIEWER,
        _EXAMPLE,
        request={"queues": ["batch"], "at": "2026-11-17T02:00:00Z"},
        has_body=True,
        fails=[409],
    ),
)
async def suggest_schedules(body: SuggestIn, context: Context, idempotency_key: IdempotencyKey = None) -> Response:
    """Suggest which colliding jobs to move by some minutes so that fewer run at once; nothing is changed.

    Each job is moved to the nearest time at which each of its runs within the forecast finds a free slot. Each suggestion
    assumes those before it. Apply one by `PATCH /jobs/{job}` with its `changes` and its version.
    """
    at = optional_instant(body.at, "at", body.timezone)
    request = SpreadRequest(queues=body.queues, at=at, days=body.days, timezone=body.timezone)
    return json_response(advice_document(await context.queries.forecast.spread(request)))


def advice_document(advice: SpreadAdvice | None) -> Document:
    """The suggestions for a collision, as the API shows them."""
    if advice is None:
        return {"collision": None, "suggestions": [], "left_out": [], "sentence": "nothing collides there"}
    spread = advice.spread
    return {
        "collision": collision_document(spread.collision),
        "suggestions": [_suggestion(move, advice) for move in advice.moves],
        "left_out": [{"id": format_job_id(stay.job_id), "label": stay.label, "why": stay.why} for stay in spread.stays],
        "sentence": spread.sentence,
    }


def _suggestion(move: ScheduleShift, advice: SpreadAdvice) -> Document:
    job = advice.jobs[move.job.job_id]
    return {
        "job": {"id": format_job_id(job.id), "label": move.job.label},
        "version": job.version,
        "schedule_before": spell_schedule(job.rule),
        "schedule_after": spell_schedule(move.rule),
        "shift_seconds": int(move.by.total_seconds()),
        "changes": timing_fields(move.rule),
        "peak_before": move.peak_before,
        "peak_after": move.peak_after,
        "declared_by": job.declared_by,
        "sentence": move.sentence,
    }
