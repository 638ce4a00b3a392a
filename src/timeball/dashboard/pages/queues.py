"""Queues: how deep, how long the oldest waits, who serves them; pausing and limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.responses import Response

from timeball.api.auth import Role
from timeball.api.errors import HttpProblem
from timeball.api.resources.cluster import queue_document
from timeball.dashboard.context import PageContext, PageRouter, Undo
from timeball.dashboard.formatting import pluralize
from timeball.dashboard.internal_api import ApiProblem
from timeball.domain.node import NodeKind, NodeStatus
from timeball.domain.values.text import check_label

router = PageRouter()

_MAX_SHOWN = 100


@router.get("/queues")
async def queues(context: PageContext) -> Response:
    """The queues in use: all of them by name, or those that need attention most, if they are many."""
    workers = await _workers(context)
    queues = await context.shared("queues", context.site.queries.queues)
    rows = [_row(queue, workers) for queue in queues[:_MAX_SHOWN]]
    left_out = queues[0]["total"] - len(rows) if queues else 0
    if not left_out:
        rows.sort(key=lambda row: row["name"])
    return context.page("queues.html", part="partials/queues.html", rows=rows, workers=workers, left_out=left_out)


@router.get("/queues/one")
async def queue(context: PageContext) -> Response:
    """One queue; its name may hold any character, so it is no part of the path."""
    row = await _read_row(context, _name(context.query("name")))
    return context.page("queue.html", part="partials/queue.html", row=row, error=None, wanted=row["max_running"])


@router.post("/queues/pause", Role.OPERATOR)
async def pause(context: PageContext) -> Response:
    """Let nothing of a queue be claimed."""
    return await _toggle(context, "pause", "resume", "is paused; what runs goes on.")


@router.post("/queues/resume", Role.OPERATOR)
async def resume(context: PageContext) -> Response:
    """Let a paused queue go on."""
    return await _toggle(context, "resume", "pause", "goes on.")


@router.post("/queues/limit", Role.EDITOR)
async def limit(context: PageContext) -> Response:
    """Let at most so many run together."""
    name, text = _name(context.form.get("name", "")), context.form.get("max_running", "").strip()
    body = {"max_running": _number(text), "reason": context.form.get("reason") or None}
    try:
        before = await context.site.queries.queue(name)
        await context.api.change("queues", name, body=body)
    except ApiProblem as problem:
        if problem.status != 422:
            raise
        row = await _read_row(context, name)
        return context.page("queue.html", row=row, error=problem.detail, wanted=text, http_status=422)
    undo = Undo(context.site_url("/queues/limit"), {"name": name, "max_running": str(before["max_running"] or "")})
    words = f"at most {text} at once" if text else "no limit"
    return context.go(context.back("/queues"), f"Queue {name}: {words}.", undo=undo)


@router.post("/queues/purge", Role.EDITOR)
async def purge(context: PageContext) -> Response:
    """Cancel everything that waits in a queue, once its name was typed."""
    name = _name(context.form.get("name", ""))
    body = {"confirm": context.form.get("typed", ""), "reason": context.form.get("reason") or None}
    done = await context.api.post("queues", name, "purge", body=body)
    told = f"Queue {name}: {pluralize(done['cancelled'], 'execution')} cancelled."
    return context.go(context.url("/queues/one", name=name), told)


async def _toggle(context: PageContext, verb: str, opposite: str, words: str) -> Response:
    name, reason = _name(context.form.get("name", "")), context.form.get("reason") or None
    before = await context.site.queries.queue(name)
    await context.api.post("queues", name, verb, body={"reason": reason})
    fields = {"name": name, "reason": before["pause_reason"] or "undone" if opposite == "pause" else "undone"}
    return context.go(
        context.back("/queues"), f"Queue {name} {words}", undo=Undo(context.site_url(f"/queues/{opposite}"), fields)
    )


async def _workers(context: PageContext) -> list[NodeStatus]:
    nodes = await context.shared("nodes", context.site.queries.nodes)
    return [node for node in nodes if node.kind is NodeKind.WORKER]


async def _read_row(context: PageContext, name: str) -> dict[str, Any]:
    return _row(await context.site.queries.queue(name), await _workers(context))


def _row(found: Mapping[str, Any], workers: Sequence[NodeStatus]) -> dict[str, Any]:
    queue = queue_document(found)
    serving = [worker for worker in workers if not worker.draining and _serves(worker, queue["name"])]
    slots = sum(worker.slots for worker in serving)
    room = slots if queue["max_running"] is None else min(slots, queue["max_running"])
    return {
        **queue,
        "serving": serving,
        "slots": slots,
        "room": room,
        "is_stranded": bool(queue["depth"] and not serving),
    }


def _serves(worker: NodeStatus, queue: str) -> bool:
    return not worker.queues or queue in worker.queues


def _name(text: str) -> str:
    if not text.strip():
        raise HttpProblem(404, "not_found", f"{text[:60]!r} is not the name of a queue", hint="choose one of /queues")
    return check_label(text, "queue")


def _number(text: str) -> int | str | None:
    """What was typed, as a number if it is one: the API says what is wrong with the rest."""
    if not text:
        return None
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else text
