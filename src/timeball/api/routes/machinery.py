"""Queues, workers and schedulers."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query
from starlette.convertors import Convertor, register_url_convertor
from starlette.responses import Response

from timeball.api.auth import Role, TheCaller
from timeball.api.described import MOMENT, WORKER_ID, described, listed
from timeball.api.desk import TheDesk
from timeball.api.routes.jobs import IdempotencyKey
from timeball.api.schemas.common import ListOut, Many, Reason
from timeball.api.schemas.machinery import NodeOut, PurgeIn, PurgeOut, QueueLimit, QueueOut
from timeball.api.views import answer, node_document, page_document, queue_document
from timeball.domain.ids import parse_id, show
from timeball.domain.instants import shown
from timeball.domain.node import NodeKind, NodeStatus
from timeball.domain.search import PageRequest
from timeball.domain.text import check_label
from timeball.errors import InvalidInput, NotFound

router = APIRouter()


class _Words(Convertor[str]):
    """Whatever stands in a path, slashes and line breaks too; `path` ends at a break, and leaves out the last one."""

    regex = "(?s:.*)"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("words", _Words())
# A name may hold a slash: in a path it stands as it is, or as %2F.
QueueName = Annotated[str, Path(max_length=200, description="A queue's name; it may hold a slash.")]
NodeRef = Annotated[str, Path(max_length=200, description="A node's id.")]

_QUEUE_EXAMPLE = {
    "name": "default",
    "is_paused": False,
    "paused_at": None,
    "pause_reason": None,
    "max_running": None,
    "depth": 12,
    "running": 3,
    "oldest_at": MOMENT,
    "oldest_wait_seconds": 0.25,
}
_NODE_EXAMPLE = {
    "id": WORKER_ID,
    "kind": "worker",
    "name": "host-1/4711",
    "started_at": MOMENT,
    "renewed_at": MOMENT,
    "lease_until": MOMENT,
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
    "/queues", tags=["queues"], response_model=ListOut[QueueOut], **described(Role.VIEWER, listed(_QUEUE_EXAMPLE))
)
async def list_queues(
    desk: TheDesk,
    limit: Annotated[int, Query(ge=1, le=200, description="How many.")] = 200,
    cursor: Annotated[str | None, Query(max_length=1_000, description="`next_cursor` of the page before.")] = None,
    sort: Annotated[
        Literal["name", "need"], Query(description="`need`: whose oldest waits longest; one page.")
    ] = "name",
) -> Response:
    """Every queue that has something ready or running, a pause or a limit; with its depth and its oldest wait."""
    if sort == "need":
        rows = (await desk.insights.queues())[:limit]
        total = rows[0]["total"] if rows else 0
        shown = [queue_document(row) for row in rows]
        return answer({"data": shown, "next_cursor": None, "has_more": len(rows) < total, "total": total})
    page = PageRequest(limit=limit, cursor=cursor)
    return answer(page_document(await desk.insights.queue_page(page), page, queue_document))


@router.get("/queues/{queue:words}", tags=["queues"], response_model=QueueOut, **described(Role.VIEWER, _QUEUE_EXAMPLE))
async def get_queue(queue: QueueName, desk: TheDesk) -> Response:
    """One queue; one that nobody has used yet is simply empty."""
    return answer(queue_document(await desk.insights.queue(check_label(queue, "queue"))))


@router.patch(
    "/queues/{queue:words}",
    tags=["queues"],
    response_model=QueueOut,
    **described(Role.EDITOR, _QUEUE_EXAMPLE, request={"max_running": 10}, has_body=True, fails=[409]),
)
async def limit_queue(queue: QueueName, body: QueueLimit, desk: TheDesk, caller: TheCaller) -> Response:
    """Let at most so many executions of a queue run together, across all workers."""
    await desk.commands.limit_queue(queue, body.max_running, caller.acting(body.reason))
    return answer(queue_document(await desk.insights.queue(queue)))


_TOGGLE = described(Role.OPERATOR, _QUEUE_EXAMPLE, request={"reason": "maintenance"}, has_body=True, fails=[409])


@router.post("/queues/{queue:words}/pause", tags=["queues"], response_model=QueueOut, **_TOGGLE)
async def pause_queue(
    queue: QueueName,
    desk: TheDesk,
    caller: TheCaller,
    body: Reason | None = None,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Let nothing of a queue be claimed; what runs goes on."""
    await desk.commands.pause_queue(queue, caller.acting((body or Reason()).reason))
    return answer(queue_document(await desk.insights.queue(queue)))


@router.post("/queues/{queue:words}/resume", tags=["queues"], response_model=QueueOut, **_TOGGLE)
async def resume_queue(
    queue: QueueName,
    desk: TheDesk,
    caller: TheCaller,
    body: Reason | None = None,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Let a paused queue go on."""
    await desk.commands.resume_queue(queue, caller.acting((body or Reason()).reason))
    return answer(queue_document(await desk.insights.queue(queue)))


@router.post(
    "/queues/{queue:words}/purge",
    tags=["queues"],
    response_model=PurgeOut,
    **described(
        Role.EDITOR,
        {"queue": "default", "cancelled": 12},
        request={"confirm": "default", "reason": "sent twice"},
        has_body=True,
        fails=[409],
    ),
)
async def purge_queue(
    queue: QueueName, body: PurgeIn, desk: TheDesk, caller: TheCaller, idempotency_key: IdempotencyKey = None
) -> Response:
    """Cancel everything that is queued there and has not begun. What runs goes on, and so do schedules."""
    if body.confirm != queue:
        raise InvalidInput(
            f"confirm is {shown(body.confirm)!r}, expected the name of the queue", field="confirm", hint="type it again"
        )
    cancelled = await desk.commands.purge_queue(queue, caller.acting(body.reason))
    return answer({"queue": queue, "cancelled": cancelled})


@router.get(
    "/workers", tags=["nodes"], response_model=Many[NodeOut], **described(Role.VIEWER, {"data": [_NODE_EXAMPLE]})
)
async def list_workers(desk: TheDesk) -> Response:
    """The workers that are believed alive: slots, queues, handlers, heartbeat."""
    return answer({"data": [node_document(node) for node in await desk.insights.nodes(NodeKind.WORKER)]})


@router.get(
    "/schedulers",
    tags=["nodes"],
    response_model=Many[NodeOut],
    **described(Role.VIEWER, {"data": [_NODE_EXAMPLE | {"kind": "scheduler", "shards": [0, 1]}]}),
)
async def list_schedulers(desk: TheDesk) -> Response:
    """The schedulers that are believed alive, with the shards each looks after."""
    return answer({"data": [node_document(node) for node in await desk.insights.nodes(NodeKind.SCHEDULER)]})


@router.get(
    "/workers/{node}", tags=["nodes"], response_model=NodeOut, **described(Role.VIEWER, _NODE_EXAMPLE, fails=[404])
)
async def get_worker(node: NodeRef, desk: TheDesk) -> Response:
    """One worker or scheduler."""
    return answer(node_document(_find(node, await desk.insights.nodes())))


@router.post(
    "/workers/{node}/drain",
    tags=["nodes"],
    response_model=NodeOut,
    **described(Role.OPERATOR, _NODE_EXAMPLE, status=202, request={}, has_body=True, fails=[404, 409]),
)
async def drain_worker(
    node: NodeRef, desk: TheDesk, caller: TheCaller, body: Reason | None = None, idempotency_key: IdempotencyKey = None
) -> Response:
    """Ask a worker or scheduler to leave in good order: it takes nothing more, and ends when it has finished what it runs."""
    found = _find(node, await desk.insights.nodes())
    await desk.commands.drain_node(found.incarnation, caller.acting((body or Reason()).reason))
    return answer(node_document(found) | {"draining": True}, 202)


def _find(reference: str, nodes: list[NodeStatus]) -> NodeStatus:
    prefix = "sch" if reference.startswith("sch_") else "wrk"
    try:
        wanted = parse_id(prefix, reference)
    except InvalidInput:
        raise NotFound("node", shown(reference)) from None
    found = next((node for node in nodes if node.incarnation == wanted), None)
    if found is None:
        raise NotFound("node", show(prefix, wanted))
    return found
