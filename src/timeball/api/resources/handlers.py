"""Handlers that can be scheduled: what each takes, and which stored payloads a new version would refuse."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Path
from starlette.responses import Response

from timeball.api.auth import Role
from timeball.api.models import PageOut
from timeball.api.models.system import HandlerCheckIn, HandlerCheckOut, HandlerOut
from timeball.api.openapi import EXECUTION_ID, INSTANT_EXAMPLE, page_example, route_options
from timeball.api.params import CatalogueItem, CatalogueReader, Context, IdempotencyKey, PageParams
from timeball.api.responses import Document, json_response, page_document
from timeball.application.queries.handlers import IncompatiblePayload, PublishedHandler, find_incompatible
from timeball.domain.handler import ADMIN_HANDLERS, example_of, first_sentence
from timeball.domain.node import NodeKind
from timeball.domain.search import PageRequest, ResultPage
from timeball.errors import NotFound, quote_text

if TYPE_CHECKING:
    from timeball.application.queries import Queries

router = APIRouter(prefix="/handlers", tags=["handlers"])

HandlerName = Annotated[str, Path(max_length=200, description="A handler's name.")]
# The number of stored payloads that one request checks.
_CHECKED_AT_ONCE = 200

_EXAMPLE = {
    "name": "app.mail:send_receipt",
    "description": "Send a receipt.",
    "doc": "Send a receipt.",
    "run_style": "thread",
    "payload_schema": {"type": "object", "properties": {"order_id": {"type": "integer"}}, "required": ["order_id"]},
    "options": {"queue": "mail", "max_retries": 5},
    "example": {"order_id": 1},
    "is_enabled_here": None,
    "workers": 2,
    "needs_role": "editor",
    "versions": [
        {
            "fingerprint": "7c1f09a3be21d450",
            "is_newest": True,
            "published_at": INSTANT_EXAMPLE,
            "started_at": INSTANT_EXAMPLE,
            "workers": ["web-1/4711"],
        }
    ],
}


@router.get("", response_model=PageOut[HandlerOut], **route_options(Role.VIEWER, page_example(_EXAMPLE)))
async def list_handlers(context: Context, page: PageParams) -> Response:
    """Every handler by name: built-in ones, those of installed packages, and those that workers know or have published."""
    handlers, show = await handlers_page(context.queries, context.catalogue, page)
    return json_response(page_document(handlers, page, show))


@router.get("/{handler}", response_model=HandlerOut, **route_options(Role.VIEWER, _EXAMPLE, fails=[404]))
async def get_handler(handler: HandlerName, context: Context) -> Response:
    """One handler: its payload, the options of its jobs, and the versions that workers have published."""
    return json_response(await read_handler(context.queries, context.catalogue, handler))


_CHECK_EXAMPLE = {
    "checked": 180,
    "misfits": [
        {
            "kind": "execution",
            "id": EXECUTION_ID,
            "name": None,
            "handler": "app.mail:send_receipt",
            "errors": [{"pointer": "/payload/currency", "detail": "currency is missing"}],
        }
    ],
    "next_cursor": None,
}


@router.post(
    "/check",
    response_model=HandlerCheckOut,
    **route_options(
        Role.EDITOR,
        _CHECK_EXAMPLE,
        request={"handlers": [{"name": "app.mail:send_receipt", "payload_schema": {"required": ["currency"]}}]},
        has_body=True,
    ),
)
async def check_handlers(body: HandlerCheckIn, context: Context, idempotency_key: IdempotencyKey = None) -> Response:
    """Find stored payloads that other schemas would refuse: of named jobs, templates and waiting executions.

    Meant for the schemas of a version that is not deployed yet. Nothing is changed. Repeat with `next_cursor` until it is null.
    """
    checks: dict[str, Callable[[str], object]] = {
        handler.name: partial(context.catalogue.check, handler.payload_schema, handler.name)
        for handler in body.handlers
    }
    stored, cursor = await context.queries.handlers.payloads(list(checks), body.cursor, _CHECKED_AT_ONCE)
    # In a thread: large payloads would block the loop.
    incompatible = await asyncio.to_thread(find_incompatible, stored, checks)
    return json_response(
        {
            "checked": len(stored),
            "misfits": [incompatible_payload_document(item) for item in incompatible],
            "next_cursor": cursor,
        }
    )


def incompatible_payload_document(incompatible: IncompatiblePayload) -> Document:
    """A job, template or execution whose payload does not fit."""
    stored = incompatible.stored
    return {
        "kind": stored.kind,
        "id": stored.id,
        "name": stored.name,
        "handler": stored.handler,
        "errors": [dict(error) for error in incompatible.refusal.errors],
    }


async def handlers_page(
    queries: Queries, catalogue: CatalogueReader, page: PageRequest
) -> tuple[ResultPage[PublishedHandler], Callable[[PublishedHandler], Document]]:
    """A page of handlers by name, and the serialiser of each."""
    entries, workers = await _known_handlers(queries, catalogue)
    handlers = await queries.handlers.page([*entries, *workers], page)
    return handlers, lambda handler: _document(handler, entries.get(handler.name), workers[handler.name])


async def read_handler(queries: Queries, catalogue: CatalogueReader, name: str) -> Document:
    """One handler; NotFound if neither this process, nor a live worker, nor a published contract has it."""
    entries, workers = await _known_handlers(queries, catalogue)
    published = (await queries.handlers.read([name]))[0]
    if not published.versions and name not in entries and name not in workers:
        raise NotFound("handler", quote_text(name))
    return _document(published, entries.get(name), workers[name])


async def _known_handlers(
    queries: Queries, catalogue: CatalogueReader
) -> tuple[Mapping[str, CatalogueItem], Counter[str]]:
    """The handlers of this process, and the number of live workers that know each handler."""
    nodes = await queries.nodes(NodeKind.WORKER)
    entries = {entry.name: entry for entry in catalogue.entries()}
    return entries, Counter(name for node in nodes for name in node.handlers)


def _document(published: PublishedHandler, entry: CatalogueItem | None, workers: int) -> Document:
    newest = published.versions[0] if published.versions else None
    schema = published.schema if entry is None else entry.payload_schema
    doc = None if newest is None else newest.doc
    return {
        "name": published.name,
        "description": entry.description if entry is not None else doc and first_sentence(doc),
        "doc": doc,
        "run_style": entry.run_style if entry is not None else newest and newest.run_style,
        "payload_schema": schema,
        "options": None if newest is None else newest.options,
        "example": entry.example if entry is not None else schema and example_of(schema),
        "is_enabled_here": entry and entry.is_enabled_here,
        "workers": workers,
        "needs_role": (Role.ADMIN if published.name in ADMIN_HANDLERS else Role.EDITOR).value,
        "versions": _versions(published),
    }


def _versions(published: PublishedHandler) -> Sequence[Document]:
    return [
        {
            "fingerprint": version.fingerprint,
            "is_newest": version.is_newest,
            "published_at": version.published_at,
            "started_at": version.started_at,
            "workers": list(version.workers),
        }
        for version in published.versions
    ]
