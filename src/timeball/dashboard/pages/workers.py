"""Workers and schedulers: slots, queues, handlers, shards, heartbeats; letting one go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from timeball.api.auth import Role
from timeball.dashboard.inner_api import Document
from timeball.dashboard.routing import Pages
from timeball.dashboard.visit import Visit
from timeball.dashboard.wording import counted, moment
from timeball.domain.brokers import broker_name

pages = Pages()


@pages.get("/workers")
async def workers(visit: Visit) -> Response:
    """Everybody who is believed alive."""
    now = visit.site.insights.now()
    found = {kind: (await visit.api.get(kind))["data"] for kind in ("workers", "schedulers")}
    rows: dict[str, Any] = {kind: [_node(node, now) for node in nodes] for kind, nodes in found.items()}
    versions = {node["version"] for nodes in found.values() for node in nodes}
    return visit.page("workers.html", part="partials/workers.html", **rows, versions=sorted(versions))


@pages.post("/workers/drain", Role.OPERATOR)
async def drain(visit: Visit) -> Response:
    """Ask one to leave in good order. There is no way back: it ends, and whoever runs it may start another."""
    node = await visit.api.post(
        "workers", visit.form.get("id", "")[:100], "drain", body={"reason": visit.form.get("reason") or None}
    )
    return visit.go(visit.back("/workers"), f"{node['name']} takes nothing more, and leaves when it is done.")


def _node(node: Document, now: Any) -> Mapping[str, Any]:
    renewed, until = moment(node["renewed_at"]), moment(node["lease_until"])
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
    runs = counted(node["busy"], "execution")
    broker = broker_name(node["broker"])
    return {**node, "age": age, "state": state, "tone": tone, "icon": icon, "runs": runs, "broker_name": broker}
