"""Workers and schedulers: slots, queues, handlers, shards, heartbeats; letting one go."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from starlette.responses import Response

from timeball.api.auth import Role
from timeball.api.resources.cluster import node_document
from timeball.dashboard.context import PageContext, PageRouter
from timeball.dashboard.formatting import pluralize
from timeball.domain.node import NodeKind, NodeStatus, broker_name

router = PageRouter()


@router.get("/workers")
async def workers(context: PageContext) -> Response:
    """Everybody who is believed alive."""
    now = context.site.queries.now()
    nodes = await context.shared("nodes", context.site.queries.nodes)
    return context.page(
        "workers.html",
        part="partials/workers.html",
        workers=[_node(node, now) for node in nodes if node.kind is NodeKind.WORKER],
        schedulers=[_node(node, now) for node in nodes if node.kind is NodeKind.SCHEDULER],
        versions=sorted({node.version for node in nodes}),
    )


@router.post("/workers/drain", Role.OPERATOR)
async def drain(context: PageContext) -> Response:
    """Ask one to leave in good order. There is no way back: it ends, and whoever runs it may start another."""
    node = await context.api.post(
        "workers", context.form.get("id", "")[:100], "drain", body={"reason": context.form.get("reason") or None}
    )
    return context.go(context.back("/workers"), f"{node['name']} takes nothing more, and leaves when it is done.")


def _node(node: NodeStatus, now: datetime) -> dict[str, Any]:
    age = max((now - node.renewed_at).total_seconds(), 0.0)
    share = age / max((node.lease_until - node.renewed_at).total_seconds(), 0.001)
    if node.draining:
        state, tone, icon = "draining", "warn", "pause"
    elif share > 0.75:
        state, tone, icon = "late", "bad", "alert"
    else:
        state, tone, icon = "alive", "good", "check"
    return node_document(node) | {
        "age": age,
        "state": state,
        "tone": tone,
        "icon": icon,
        "runs": pluralize(node.busy, "execution"),
        "broker_name": broker_name(node.broker),
    }
