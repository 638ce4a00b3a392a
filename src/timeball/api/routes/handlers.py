"""Handlers: what can be scheduled, and what each takes."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

from fastapi import APIRouter, Path
from starlette.responses import Response

from timeball.api.auth import Role
from timeball.api.described import described
from timeball.api.desk import Desk, HandlerEntry, TheDesk
from timeball.api.schemas.common import Many
from timeball.api.schemas.machinery import HandlerOut
from timeball.api.views import Document, answer
from timeball.domain.handler import OWNED_BY_ADMINISTRATORS
from timeball.domain.instants import shown
from timeball.domain.node import NodeKind
from timeball.errors import NotFound

router = APIRouter(prefix="/handlers", tags=["handlers"])

HandlerName = Annotated[str, Path(max_length=200, description="A handler's name.")]

_EXAMPLE = {
    "name": "test.delay",
    "description": "Wait for a while, then succeed, or fail if told so.",
    "run_style": "coroutine",
    "payload_schema": {"type": "object", "properties": {"durationMs": {"type": "integer"}}},
    "example": {"durationMs": 500},
    "is_enabled_here": True,
    "workers": 2,
    "needs_role": "editor",
}


@router.get("", response_model=Many[HandlerOut], **described(Role.VIEWER, {"data": [_EXAMPLE]}))
async def list_handlers(desk: TheDesk) -> Response:
    """Every handler in the box, of installed packages, and of the workers that are alive; with what it takes."""
    return answer({"data": await _documents(desk)})


@router.get("/{handler}", response_model=HandlerOut, **described(Role.VIEWER, _EXAMPLE, fails=[404]))
async def get_handler(handler: HandlerName, desk: TheDesk) -> Response:
    """One handler."""
    found = next((document for document in await _documents(desk) if document["name"] == handler), None)
    if found is None:
        raise NotFound("handler", shown(handler))
    return answer(found)


async def _documents(desk: Desk) -> list[Document]:
    nodes = await desk.insights.nodes(NodeKind.WORKER)
    workers = Counter(name for node in nodes for name in node.handlers)
    entries: dict[str, HandlerEntry | None] = dict.fromkeys(workers)
    entries |= {entry.name: entry for entry in desk.catalogue.entries()}
    return [_document(name, entry, workers[name]) for name, entry in sorted(entries.items())]


def _document(name: str, entry: HandlerEntry | None, workers: int) -> Document:
    return {
        "name": name,
        "description": entry and entry.description,
        "run_style": entry and entry.run_style,
        "payload_schema": entry and entry.payload_schema,
        "example": entry and entry.example,
        "is_enabled_here": entry and entry.is_enabled_here,
        "workers": workers,
        "needs_role": (Role.ADMIN if name in OWNED_BY_ADMINISTRATORS else Role.EDITOR).value,
    }
