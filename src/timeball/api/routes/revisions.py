"""How a job came to be as it is."""

from __future__ import annotations

import asyncio
from dataclasses import asdict

from fastapi import APIRouter
from starlette.responses import Response

from timeball.api.auth import Role
from timeball.api.described import MOMENT, described, listed
from timeball.api.desk import TheDesk
from timeball.api.routes.jobs import JobRef, ThePage
from timeball.api.schemas.common import ListOut
from timeball.api.schemas.jobs import RevisionOut
from timeball.api.views import Document, answer, page_document, to_bytes
from timeball.domain.redaction import redacted_fields_in_list
from timeball.insights import Change, Revision

router = APIRouter(tags=["jobs"])

_EXAMPLE = {
    "at": MOMENT,
    "actor": "key:4c1a9d02b7e1 deploy",
    "action": "job.update",
    "reason": "less often",
    "version": 2,
    "changes": [{"field": "schedule", "before": "*/5 * * * *", "after": "0 * * * *"}],
    "effective_from": MOMENT,
    "effective_until": None,
}


@router.get(
    "/jobs/{job}/revisions",
    response_model=ListOut[RevisionOut],
    **described(Role.VIEWER, listed(_EXAMPLE), fails=[404]),
)
async def revisions(job: JobRef, desk: TheDesk, page: ThePage) -> Response:
    """Who changed what of a job, when and why, field by field, the latest first; the last of all is its creation.

    In the place of a value of more than 8 KB stands a note, `{"$timeball": "..."}`.
    """
    found = await desk.insights.revisions(job, page)
    return answer(await asyncio.to_thread(page_document, found, page, _document))


def _document(revision: Revision) -> Document:
    return asdict(revision) | {"changes": [_change_document(change) for change in revision.changes]}


def _change_document(change: Change) -> Document:
    sides = (redacted_fields_in_list(to_bytes({change.field: side}).decode()) for side in (change.before, change.after))
    before, after = (side[change.field] for side in sides)
    return {"field": change.field, "before": before, "after": after}
