"""Workers and schedulers: slots, queues, handlers, shards, heartbeats; letting one go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from timeball.api.auth import Role
from timeball.dashboard.context import PageContext, PageRouter
from timeball.dashboard.formatting import parse_instant, pluralize
from timeball.dashboard.internal_api import Document
from timeball.domain.node import broker_name

router = PageRouter()


@router.get("/workers")
async def workers(context: PageContext) -> Response:
    """Everybody who is believed alive."""
    now = context.site.queries.now()
    found = {kind: (await context.api.get(kind))["data"] for kind in ("workers", "schedulers")}
    rows: dict[str, Any] = {kind: [_node(node, now) for node in nodes] for kind, nodes in found.items()}
    versions = {node["version"] for nodes in found.values() for node in nodes}
    return context.page("workers.html", part="partials/workers.html", **rows, versions=sorted(versions))


@router.post("/workers/drain", Role.OPERATOR)
async def drain(context: PageContext) -> Response:
    """Ask one to leave in good order. There is no way back: it ends, and whoever runs it may start another."""
    node = await context.api.post(
        "workers", context.form.get("id", "")[:100], "drain", body={"reason": context.form.get("reason") or None}
    )
    return context.go(context.back("/workers"), f"{node['name']} takes nothing more, and leaves when it is done.")


def _node(node: Document, now: Any) -> Mapping[str, Any]:
    renewed, until = parse_instant(node["renewed_at"]), parse_instant(node["lease_until"])
    assert renewed is not None
    assert until is not None
    age = max((now - renewed).total_seconds(), 0.0)
    share = age / max((until - renewed).total_seconds(), 0.001)
    if node["draining"]:
        state, tone, icon = "draining", "warn", "pause"
    elif share > 0.75:
        state, tone, icon = "late", "bad", "alert"
    else:
        state, tone, icon = "alive", "good", "check"
    runs = pluralize(node["busy"], "execution")
    broker = broker_name(node["broker"])
    return {**node, "age": age, "state": state, "tone": tone, "icon": icon, "runs": runs, "broker_name": broker}
