"""Why: of an execution, and of a job."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from timeball.api.auth import Role
from timeball.api.described import EXECUTION_ID, JOB_ID, MOMENT, described
from timeball.api.desk import TheDesk
from timeball.api.routes.executions import ExecutionRef
from timeball.api.routes.jobs import JobRef
from timeball.api.schemas.explain import ExplanationOut
from timeball.api.views import Document, answer
from timeball.domain.explanation import Explanation
from timeball.domain.gates import Gate
from timeball.domain.ids import show_execution, show_job

router = APIRouter()

_HOLDER = "exe_01JCV3V1KC8M2T4QZ5R7N9X0CD"
_EXAMPLE = {
    "checked_at": MOMENT,
    "job_id": JOB_ID,
    "job_name": "sync-crm",
    "execution_id": EXECUTION_ID,
    "state": "queued",
    "headline": "NOT STARTED: queue «crm» allows 1 at once and its one place is taken: "
    f"{_HOLDER} (12 min, usually 3 min). Likely start 06:01:00 UTC ± 20 s.",
    "stopped_by": "slots",
    "likely_start": {"at": "2026-11-16T06:01:00Z", "give_or_take_seconds": 20.0},
    "gates": [
        {
            "name": "slots",
            "title": "a slot is free",
            "verdict": "stopped",
            "sentence": f"queue «crm» allows 1 at once and its one place is taken: {_HOLDER} (12 min, usually 3 min)",
            "advice": "timeball queues limit crm 2",
            "command": "timeball queues limit crm 2",
            "links": [_HOLDER],
        }
    ],
}


@router.get(
    "/executions/{execution}/explain",
    tags=["executions"],
    response_model=ExplanationOut,
    **described(Role.VIEWER, _EXAMPLE, fails=[404]),
)
async def explain_execution(execution: ExecutionRef, desk: TheDesk) -> Response:
    """Why an execution has not started, gate by gate; or since when it runs, or how it ended."""
    return answer(explanation_document(await desk.insights.explain_execution(execution)))


@router.get(
    "/jobs/{job}/explain",
    tags=["jobs"],
    response_model=ExplanationOut,
    **described(Role.VIEWER, _EXAMPLE, fails=[404]),
)
async def explain_job(job: JobRef, desk: TheDesk) -> Response:
    """Why a job does not run: told of what of it runs, or else waits, or else of the job itself."""
    return answer(explanation_document(await desk.insights.explain_job(job)))


def explanation_document(explanation: Explanation) -> Document:
    """An explanation as the API shows it."""
    facts, stopped_by, likely = explanation.facts, explanation.stopped_by, explanation.likely_start
    execution = facts.execution
    job_id = execution.job_id if execution is not None else None if facts.job is None else facts.job.id
    return {
        "checked_at": facts.now,
        "job_id": None if job_id is None else show_job(job_id),
        "job_name": facts.job and facts.job.name,
        "execution_id": None if execution is None else show_execution(execution.id),
        "state": None if execution is None else execution.state,
        "headline": explanation.headline,
        "stopped_by": stopped_by and stopped_by.name,
        "likely_start": likely and {"at": likely.at, "give_or_take_seconds": likely.give_or_take.total_seconds()},
        "gates": [_gate_document(gate) for gate in explanation.gates],
    }


def _gate_document(gate: Gate) -> Document:
    return {
        "name": gate.name,
        "title": gate.title,
        "verdict": gate.finding.verdict,
        "sentence": gate.finding.sentence,
        "advice": gate.finding.advice,
        "command": gate.finding.command,
        "links": list(gate.finding.links),
    }
