"""How jobs that collide could be spread."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from timeball.api.auth import Role
from timeball.api.described import JOB_ID, described
from timeball.api.desk import TheDesk
from timeball.api.routes.jobs import IdempotencyKey
from timeball.api.routes.time import COLLISION_EXAMPLE, collision_document
from timeball.api.schemas.time import SuggestIn, SuggestionsOut
from timeball.api.views import Document, answer
from timeball.api.wishes import moment_from
from timeball.domain.ids import show_job
from timeball.domain.shifting import spelt, timing_fields
from timeball.domain.spreading import Move
from timeball.insights import Advice, SpreadWish

router = APIRouter(tags=["time"])

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


@router.post(
    "/schedules/suggest",
    response_model=SuggestionsOut,
    **described(
        Role.VIEWER,
        _EXAMPLE,
        request={"queues": ["batch"], "at": "2026-11-17T02:00:00Z"},
        has_body=True,
        fails=[409],
    ),
)
async def suggest_schedules(body: SuggestIn, desk: TheDesk, idempotency_key: IdempotencyKey = None) -> Response:
    """Which of the jobs that collide to move by some minutes so that fewer run at once; nothing is changed.

    Each job is moved to the nearest time at which every run of it within the forecast finds a free slot. The suggestions
    count on each other, in their order; one is applied by `PATCH /jobs/{job}` with its `changes` and its version.
    """
    at = moment_from(body.at, "at", body.timezone)
    wish = SpreadWish(queues=body.queues, at=at, days=body.days, timezone=body.timezone)
    return answer(advice_document(await desk.insights.spread(wish)))


def advice_document(advice: Advice | None) -> Document:
    """What was found for a collision, as the API shows it."""
    if advice is None:
        return {"collision": None, "suggestions": [], "left_out": [], "sentence": "nothing collides there"}
    spread = advice.spread
    return {
        "collision": collision_document(spread.collision),
        "suggestions": [_suggestion(move, advice) for move in advice.moves],
        "left_out": [{"id": show_job(stay.job_id), "label": stay.label, "why": stay.why} for stay in spread.stays],
        "sentence": spread.sentence,
    }


def _suggestion(move: Move, advice: Advice) -> Document:
    job = advice.jobs[move.line.job_id]
    return {
        "job": {"id": show_job(job.id), "label": move.line.label},
        "version": job.version,
        "schedule_before": spelt(job.rule),
        "schedule_after": spelt(move.rule),
        "shift_seconds": int(move.by.total_seconds()),
        "changes": timing_fields(move.rule),
        "peak_before": move.peak_before,
        "peak_after": move.peak_after,
        "declared_by": job.declared_by,
        "sentence": move.sentence,
    }
