"""Whether everything is in order, and what needs a human."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter
from starlette.responses import Response

from timeball.api.auth import Role
from timeball.api.described import EXECUTION_ID, described
from timeball.api.desk import TheDesk
from timeball.api.schemas.common import Many
from timeball.api.schemas.doctor import ConcernOut, DoctorOut
from timeball.api.views import Document, answer
from timeball.domain.diagnosis import Diagnosis, worst
from timeball.insights import Concern
from timeball.version import __version__

router = APIRouter(tags=["system"])

_LINE_EXAMPLE = {
    "code": "queue_unserved",
    "status": "fail",
    "subject": "queue reports",
    "found": "61 waiting, no worker serves it",
    "advice": "start one: timeball worker app:tb --queue reports",
    "command": "timeball worker app:tb --queue reports",
    "target": {"kind": "queue", "id": "reports"},
}
_CONCERN_EXAMPLE = {
    "code": "late",
    "status": "warn",
    "sentence": f"app.etl:nightly ({EXECUTION_ID}) in queue batch is 14 min late",
    "advice": f"timeball why {EXECUTION_ID}",
    "command": f"timeball why {EXECUTION_ID}",
    "target": {"kind": "execution", "id": EXECUTION_ID},
    "why": "NOT STARTED: all 8 slots of web-1 are taken.",
}


@router.get(
    "/doctor",
    response_model=DoctorOut,
    **described(Role.VIEWER, {"status": "fail", "version": __version__, "lines": [_LINE_EXAMPLE]}),
)
async def doctor(desk: TheDesk) -> Response:
    """Look at everything: database, clock, schedulers, workers, queues, handlers, history, access; what was found and what to type."""
    lines = await desk.insights.diagnose()
    shown = [_targeted(line) for line in lines]
    return answer({"status": worst(lines), "version": __version__, "lines": shown})


@router.get("/attention", response_model=Many[ConcernOut], **described(Role.VIEWER, {"data": [_CONCERN_EXAMPLE]}))
async def attention(desk: TheDesk) -> Response:
    """What needs a human, the gravest first: each with a sentence, what to type, where to look, and why."""
    return answer({"data": [_targeted(concern) for concern in await desk.insights.attention()]})


def _targeted(item: Diagnosis | Concern) -> Document:
    target = item.target
    return asdict(item) | {"target": None if target is None else {"kind": target[0], "id": target[1]}}
