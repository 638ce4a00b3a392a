"""Routes of queues, workers and schedulers."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query
from starlette.convertors import Convertor, register_url_convertor
from starlette.responses import Response

from timeball.api.auth import CurrentCaller, Role
from timeball.api.models import FullList, PageOut, ReasonIn
from timeball.api.models.system import (
    NodeOut,
    PurgeIn,
    PurgeOut,
    QueueChangeIn,
    QueueOut,
    QueuePauseIn,
    node_document,
    queue_document,
)
from timeball.api.openapi import INSTANT_EXAMPLE, WORKER_ID, page_example, route_options
from timeball.api.params import Context, IdempotencyKey, optional_instant
from timeball.api.responses import json_response, page_document
from timeball.domain.node import NodeKind, NodeStatus
from timeball.domain.search import PageRequest
from timeball.domain.values.field_errors import unexpected_value
from timeball.domain.values.ids import format_id, parse_id
from timeball.domain.values.text import check_label
from timeball.errors import InvalidInput, NotFound, quote_text

router = APIRouter()


class _AnyPath(Convertor[str]):
    """Matches the rest of a path with slashes and line breaks; Starlette's `path` stops at a line break."""

    regex = "(?s:.*)"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("words", _AnyPath())


# A slash in a name may stand in the path as it is, or as %2F.
QueueName = Annotated[str, Path(max_length=200, description="A queue's name; it may contain a slash.")]
NodeRef = Annotated[str, Path(max_length=200, description="A node's id.")]

_QUEUE_EXAMPLE = {
    "name": "default",
    "is_paused": False,
    "paused_at": None,
    "paused_until": None,
    "pause_reason": None,
    "max_running": None,
    "max_oldest_wait_seconds": 300,
    "must_be_served": False,
    "depth": 12,
    "running": 3,
    "oldest_at": INSTANT_EXAMPLE,
    "oldest_wait_seconds": 0.25,
}
_NODE_EXAMPLE = {
    "id": WORKER_ID,
    "kind": "worker",
    "name": "host-1/4711",
    "started_at": INSTANT_EXAMPLE,
    "renewed_at": INSTANT_EXAMPLE,
    "lease_until": INSTANT_EXAMPLE,
    "slots": 20,
    "busy": 3,
    "queues": None,
    "handlers": ["http.webhook"],
    "shards": [],
    "version": "0.1.0",
    "draining": False,
    "broker": "redis",
    "broker_state": "works",
    "broker_error": None,
    "trouble": None,
    "trouble_at": None,
}


@router.get(
    "/queues",
    tags=["queues"],
    response_model=PageOut[QueueOut],
    **route_options(Role.VIEWER, page_example(_QUEUE_EXAMPLE)),
)
async def list_queues(
    context: Context,
    limit: Annotated[int, Query(ge=1, le=200, description="The size of a page.")] = 200,
    cursor: Annotated[str | None, Query(max_length=1_000, description="`next_cursor` of the previous page.")] = None,
    sort: Annotated[
        Literal["name", "need"], Query(description="`need`: the queue with the longest wait first, one page only.")
    ] = "name",
) -> Response:
    """Every queue that has a ready or running execution, a pause or a limit; with its depth and its longest wait."""
    if sort == "need":
        rows = (await context.queries.queues())[:limit]
        total = rows[0]["total"] if rows else 0
        shown = [queue_document(row) for row in rows]
        return json_response({"data": shown, "next_cursor": None, "has_more": len(rows) < total, "total": total})
    page = PageRequest(limit=limit, cursor=cursor)
    return json_response(page_document(await context.queries.queue_page(page), page, queue_document))


@router.get(
    "/queues/{queue:words}", tags=["queues"], response_model=QueueOut, **route_options(Role.VIEWER, _QUEUE_EXAMPLE)
)
async def get_queue(queue: QueueName, context: Context) -> Response:
    """One queue; a queue that was never used is empty."""
    return json_response(queue_document(await context.queries.queue(check_label(queue, "queue"))))


@router.patch(
    "/queues/{queue:words}",
    tags=["queues"],
    response_model=QueueOut,
    **route_options(Role.EDITOR, _QUEUE_EXAMPLE, request={"max_running": 10}, has_body=True, fails=[409]),
)
async def change_queue(queue: QueueName, body: QueueChangeIn, context: Context, caller: CurrentCaller) -> Response:
    """Limit how many executions of a queue run at the same time, across all workers; and say what is expected of it."""
    given, actor = body.model_fields_set - {"reason"}, caller.as_actor(body.reason)
    if not given:
        raise InvalidInput(
            "nothing is given, expected max_running, max_oldest_wait_seconds or must_be_served", field="max_running"
        )
    if "must_be_served" in given and body.must_be_served is None:
        raise unexpected_value("must_be_served", None, "true or false")
    if given - {"max_running"}:
        wait = {"max_oldest_wait": body.max_oldest_wait_seconds} if "max_oldest_wait_seconds" in given else {}
        await context.commands.queues.expect(queue, actor, **wait, must_be_served=body.must_be_served)
    if "max_running" in given:
        await context.commands.queues.limit(queue, body.max_running, actor)
    return json_response(queue_document(await context.queries.queue(queue)))


@router.post(
    "/queues/{queue:words}/pause",
    tags=["queues"],
    response_model=QueueOut,
    **route_options(
        Role.OPERATOR,
        _QUEUE_EXAMPLE
        | {
            "is_paused": True,
            "paused_at": INSTANT_EXAMPLE,
            "paused_until": "2026-11-16T08:00:00Z",
            "pause_reason": "maintenance",
        },
        request={"until": "2026-11-16T08:00:00Z", "reason": "maintenance"},
        has_body=True,
        fails=[409],
    ),
)
async def pause_queue(
    queue: QueueName,
    context: Context,
    caller: CurrentCaller,
    body: QueuePauseIn | None = None,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Pause a queue: none of its executions is claimed until it is resumed, by a request or at `until`; running ones go on."""
    body = body or QueuePauseIn()
    until = optional_instant(body.until, "until")
    await context.commands.queues.pause(queue, caller.as_actor(body.reason), until)
    return json_response(queue_document(await context.queries.queue(queue)))


@router.post(
    "/queues/{queue:words}/resume",
    tags=["queues"],
    response_model=QueueOut,
    **route_options(Role.OPERATOR, _QUEUE_EXAMPLE, request={"reason": "maintenance"}, has_body=True, fails=[409]),
)
async def resume_queue(
    queue: QueueName,
    context: Context,
    caller: CurrentCaller,
    body: ReasonIn | None = None,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Resume a paused queue."""
    await context.commands.queues.resume(queue, caller.as_actor((body or ReasonIn()).reason))
    return json_response(queue_document(await context.queries.queue(queue)))


@router.post(
    "/queues/{queue:words}/purge",
    tags=["queues"],
    response_model=PurgeOut,
    **route_options(
        Role.EDITOR,
        {"queue": "default", "cancelled": 12},
        request={"confirm": "default", "reason": "sent twice"},
        has_body=True,
        fails=[409],
    ),
)
async def purge_queue(
    queue: QueueName, body: PurgeIn, context: Context, caller: CurrentCaller, idempotency_key: IdempotencyKey = None
) -> Response:
    """Cancel all executions that are queued there. Running ones go on, and so do schedules."""
    if body.confirm != queue:
        raise unexpected_value("confirm", body.confirm, "the name of the queue", hint="type it again")
    cancelled = await context.commands.queues.purge(queue, caller.as_actor(body.reason))
    return json_response({"queue": queue, "cancelled": cancelled})


@router.get(
    "/workers",
    tags=["nodes"],
    response_model=FullList[NodeOut],
    **route_options(Role.VIEWER, {"data": [_NODE_EXAMPLE]}),
)
async def list_workers(context: Context) -> Response:
    """The workers whose lease has not expired: slots, queues, handlers, heartbeat."""
    return json_response({"data": [node_document(node) for node in await context.queries.nodes(NodeKind.WORKER)]})


@router.get(
    "/schedulers",
    tags=["nodes"],
    response_model=FullList[NodeOut],
    **route_options(Role.VIEWER, {"data": [_NODE_EXAMPLE | {"kind": "scheduler", "shards": [0, 1]}]}),
)
async def list_schedulers(context: Context) -> Response:
    """The schedulers whose lease has not expired, with their shards."""
    return json_response({"data": [node_document(node) for node in await context.queries.nodes(NodeKind.SCHEDULER)]})


@router.get(
    "/workers/{node}", tags=["nodes"], response_model=NodeOut, **route_options(Role.VIEWER, _NODE_EXAMPLE, fails=[404])
)
async def get_worker(node: NodeRef, context: Context) -> Response:
    """One worker or scheduler."""
    return json_response(node_document(_find(node, await context.queries.nodes())))


@router.post(
    "/workers/{node}/drain",
    tags=["nodes"],
    response_model=NodeOut,
    **route_options(Role.OPERATOR, _NODE_EXAMPLE, status=202, request={}, has_body=True, fails=[404, 409]),
)
async def drain_worker(
    node: NodeRef,
    context: Context,
    caller: CurrentCaller,
    body: ReasonIn | None = None,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Drain a worker or scheduler: it claims nothing more, and exits when its running executions have finished."""
    target = _find(node, await context.queries.nodes())
    await context.commands.nodes.drain(target.incarnation, caller.as_actor((body or ReasonIn()).reason))
    return json_response(node_document(target) | {"draining": True}, 202)


def _find(reference: str, nodes: list[NodeStatus]) -> NodeStatus:
    prefix = "sch" if reference.startswith("sch_") else "wrk"
    try:
        incarnation = parse_id(prefix, reference)
    except InvalidInput:
        raise NotFound("node", quote_text(reference)) from None
    node = next((node for node in nodes if node.incarnation == incarnation), None)
    if node is None:
        raise NotFound("node", format_id(prefix, incarnation))
    return node
