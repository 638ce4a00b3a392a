"""Queues, workers, schedulers and handlers: their lists, the page of each, and the actions on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from statistics import median
from typing import Any

from starlette.responses import Response

from timeball.api.auth import Role
from timeball.api.errors import HttpProblem
from timeball.api.models.system import node_document, queue_document
from timeball.api.resources.handlers import handlers_page, read_handler
from timeball.application.queries.metrics import MetricsScope
from timeball.dashboard.context import PageContext, PageRouter, Undo, typed_instant
from timeball.dashboard.formatting import pluralize, pretty_json
from timeball.dashboard.history import history_of
from timeball.dashboard.internal_api import ApiProblem
from timeball.dashboard.pages.executions import attempt_rows, named_execution_rows
from timeball.domain.execution import ExecutionState
from timeball.domain.node import NodeKind, NodeStatus, broker_name
from timeball.domain.search import ExecutionFilter, PageRequest, where
from timeball.domain.values.ids import format_id, parse_id
from timeball.domain.values.text import check_label
from timeball.domain.values.wording import format_duration, parse_seconds
from timeball.errors import InvalidInput, NotFound, quote_text

router = PageRouter()

_MAX_SHOWN = 100
_MAX_RUNNING, _PAGE = 50, 50
# A worker's failed attempts are looked for among so many of all workers.
_ATTEMPTS_READ, _MAX_ATTEMPTS = 500, 20
_NODE_PREFIXES = {NodeKind.WORKER: "wrk", NodeKind.SCHEDULER: "sch"}


@router.get("/queues")
async def queues(context: PageContext) -> Response:
    """The queues in use by name; if there are more than a hundred, those whose oldest execution waits longest."""
    workers = await _workers(context)
    queues = await context.shared("queues", context.site.queries.queues)
    rows = [_row(queue, workers) for queue in queues[:_MAX_SHOWN]]
    left_out = queues[0]["total"] - len(rows) if queues else 0
    if not left_out:
        rows.sort(key=lambda row: row["name"])
    return context.page("queues.html", part="partials/queues.html", rows=rows, workers=workers, left_out=left_out)


@router.get("/admin/queues")
async def admin_queues(context: PageContext) -> Response:
    """Where other schedulers have their queues: the address that people have bookmarked leads here."""
    return context.go(context.site_url("/queues"))


@router.get("/queues/one")
async def queue(context: PageContext) -> Response:
    """One queue. Its name may contain any character, so it is a parameter and not a part of the path."""
    name = _name(context.query("name"))
    if context.is_partial and context.query("part") == "history":
        return context.page("partials/history.html", history=await _queue_history(context, name))
    return await _queue_page(context, name)


async def _queue_page(context: PageContext, name: str, **refusal: Any) -> Response:
    """The page of a queue; *refusal* is what was wrong with a limit, or with what is expected."""
    row = await _read_row(context, name)
    seconds = row["max_oldest_wait_seconds"]
    variables: dict[str, Any] = {
        "row": row,
        "error": None,
        "limit": row["max_running"],
        "wait": "" if seconds is None else format_duration(timedelta(seconds=seconds)),
        "wait_error": None,
        **refusal,
    }
    if not context.is_partial:
        variables["history"] = await _queue_history(context, name)
    return context.page("queue.html", part="partials/queue.html", **variables)


async def _queue_history(context: PageContext, name: str) -> dict[str, Any]:
    return await history_of(context, "/queues/one", MetricsScope(queue=name), name=name)


@router.post("/queues/pause", Role.OPERATOR)
async def pause(context: PageContext) -> Response:
    """Pause a queue, without end or until an instant: none of its executions is claimed."""
    until = typed_instant(context, "until")
    return await _toggle(context, "pause", "resume", "is paused; running executions continue.", until=until)


@router.post("/queues/resume", Role.OPERATOR)
async def resume(context: PageContext) -> Response:
    """Resume a paused queue."""
    return await _toggle(context, "resume", "pause", "is resumed.")


@router.post("/queues/limit", Role.EDITOR)
async def limit(context: PageContext) -> Response:
    """Limit how many executions of a queue run at once."""
    name, text = _name(context.form.get("name", "")), context.form.get("max_running", "").strip()
    body = {"max_running": _number(text), "reason": context.form.get("reason") or None}
    try:
        before = await context.site.queries.queue(name)
        await context.api.change("queues", name, body=body)
    except ApiProblem as problem:
        if problem.status != 422:
            raise
        return await _queue_page(context, name, error=problem.detail, limit=text, http_status=422)
    undo = Undo(context.site_url("/queues/limit"), {"name": name, "max_running": str(before["max_running"] or "")})
    words = f"at most {text} at once" if text else "no limit"
    return context.go(context.back("/queues"), f"Queue {name}: {words}.", undo=undo)


@router.post("/queues/expect", Role.EDITOR)
async def expect(context: PageContext) -> Response:
    """Say what is expected of a queue."""
    name, text = _name(context.form.get("name", "")), context.form.get("max_oldest_wait", "").strip()
    try:
        span = parse_seconds(text, "max_oldest_wait") if text else None
        body = {
            "max_oldest_wait_seconds": span,
            "must_be_served": context.form.get("must_be_served") == "yes",
            "reason": context.form.get("expect_reason") or None,
        }
        await context.api.change("queues", name, body=body)
    except (ApiProblem, InvalidInput) as problem:
        if isinstance(problem, ApiProblem) and problem.status != 422:
            raise
        words = problem.detail if isinstance(problem, ApiProblem) else str(problem)
        return await _queue_page(context, name, wait_error=words, wait=text, http_status=422)
    return context.go(context.back("/queues"), f"What is expected of queue {name} is written down.")


@router.post("/queues/purge", Role.EDITOR)
async def purge(context: PageContext) -> Response:
    """Cancel all waiting executions of a queue, if its name was typed."""
    name = _name(context.form.get("name", ""))
    body = {"confirm": context.form.get("typed", ""), "reason": context.form.get("reason") or None}
    result = await context.api.post("queues", name, "purge", body=body)
    toast = f"Queue {name}: {pluralize(result['cancelled'], 'execution')} cancelled."
    return context.go(context.url("/queues/one", name=name), toast)


async def _toggle(context: PageContext, verb: str, opposite: str, words: str, **given: str) -> Response:
    name, reason = _name(context.form.get("name", "")), context.form.get("reason") or None
    before = await context.site.queries.queue(name)
    fields = {field: value for field, value in given.items() if value}
    await context.api.post("queues", name, verb, body={"reason": reason, **fields})
    fields = {"name": name, "reason": "undone"}
    if opposite == "pause":
        until = before["paused_until"]
        fields |= {"reason": before["pause_reason"] or "undone", "until": "" if until is None else until.isoformat()}
    return context.go(
        context.back("/queues"), f"Queue {name} {words}", undo=Undo(context.site_url(f"/queues/{opposite}"), fields)
    )


async def _workers(context: PageContext) -> list[NodeStatus]:
    return [node for node in await _nodes(context) if node.kind is NodeKind.WORKER]


async def _read_row(context: PageContext, name: str) -> dict[str, Any]:
    return _row(await context.site.queries.queue(name), await _workers(context))


def _row(read: Mapping[str, Any], workers: Sequence[NodeStatus]) -> dict[str, Any]:
    queue = queue_document(read)
    serving = [worker for worker in workers if not worker.draining and _serves(worker, queue["name"])]
    slots = sum(worker.slots for worker in serving)
    capacity = slots if queue["max_running"] is None else min(slots, queue["max_running"])
    return {
        **queue,
        "serving": serving,
        "slots": slots,
        "capacity": capacity,
        "is_stranded": bool(queue["depth"] and not serving),
    }


def _serves(worker: NodeStatus, queue: str) -> bool:
    return not worker.queues or queue in worker.queues


def _name(text: str) -> str:
    if not text.strip():
        raise HttpProblem(404, "not_found", f"{text[:60]!r} is not the name of a queue", hint="choose one of /queues")
    return check_label(text, "queue")


def _number(text: str) -> int | str | None:
    """The typed limit as a number; other text stays text, and the API says what is wrong with it."""
    if not text:
        return None
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else text


@router.get("/workers")
async def workers(context: PageContext) -> Response:
    """The workers and schedulers that are believed alive."""
    now = context.site.queries.now()
    nodes = await _nodes(context)
    return context.page(
        "workers.html",
        part="partials/workers.html",
        workers=[_node_row(node, now) for node in nodes if node.kind is NodeKind.WORKER],
        schedulers=[_node_row(node, now) for node in nodes if node.kind is NodeKind.SCHEDULER],
        versions=sorted({node.version for node in nodes}),
    )


@router.get("/workers/{worker:path}")
async def worker_page(context: PageContext) -> Response:
    """One worker or scheduler by its id or name: what it runs, what it ran last, its failed attempts.

    A worker that is gone has only an id: its name goes with its node. The history is a part of its own, because a search for
    the executions of a worker that rarely ran may take two seconds.
    """
    reference = context.path["worker"]
    node = _find_node(reference, await _nodes(context))
    node_id = _id_of(reference) if node is None else _show_id(node)
    if context.is_partial and context.query("part") == "history":
        return context.page("partials/worker_history.html", **await _history(context, node_id))
    if node is None and not await _has_run(context, node_id):
        raise NotFound("worker", quote_text(reference))
    is_worker = node_id.startswith("wrk_")
    return context.page(
        "worker.html",
        part="partials/worker.html",
        id=node_id,
        node=None if node is None else _node_row(node, context.site.queries.now()),
        is_worker=is_worker,
        running=await _running(context, node_id) if node is not None and is_worker else [],
    )


async def _nodes(context: PageContext) -> list[NodeStatus]:
    return await context.shared("nodes", context.site.queries.nodes)


def _find_node(reference: str, nodes: Sequence[NodeStatus]) -> NodeStatus | None:
    """The living node of this id or name; a worker and a scheduler of one process share a name, then the worker."""
    matching = [node for node in nodes if reference in (_show_id(node), str(node.incarnation), node.name)]
    return next((node for node in matching if node.kind is NodeKind.WORKER), next(iter(matching), None))


def _show_id(node: NodeStatus) -> str:
    return format_id(_NODE_PREFIXES[node.kind], node.incarnation)


def _id_of(reference: str) -> str:
    """The id of a worker that is gone; NotFound if the reference is not an id."""
    try:
        return format_id("wrk", parse_id("wrk", reference))
    except InvalidInput:
        raise NotFound("worker", quote_text(reference)) from None


async def _has_run(context: PageContext, worker: str) -> bool:
    """Whether a worker has executions; True as well if the search ended before it found any."""
    page = await context.site.queries.executions.page(ExecutionFilter(where(worker=worker)), PageRequest(limit=1))
    return bool(page.items or page.next_cursor)


async def _running(context: PageContext, worker: str) -> list[dict[str, Any]]:
    filter_ = ExecutionFilter(where(worker=worker, status=ExecutionState.RUNNING))
    page = await context.site.queries.executions.page(filter_, PageRequest(limit=_MAX_RUNNING))
    return await named_execution_rows(context, page.items)


async def _history(context: PageContext, worker: str) -> dict[str, Any]:
    """What a worker ran last, how late it started them, and its attempts of the last hour that failed."""
    ended = tuple(state for state in ExecutionState if state.is_final)
    filter_ = ExecutionFilter(where(worker=worker, status=ended))
    page = await context.site.queries.executions.page(filter_, context.page_request(_PAGE))
    rows = await named_execution_rows(context, page.items)
    lateness = [row["lateness_ms"] for row in rows if row["lateness_ms"] is not None]
    now = context.site.queries.now()
    attempts = await context.site.queries.executions.unsuccessful_tries(now - timedelta(hours=1), now, _ATTEMPTS_READ)
    failed = [row for row in attempts if row["worker"] is not None and format_id("wrk", row["worker"]) == worker]
    return {
        "id": worker,
        "rows": rows,
        "page": page,
        "late": {"median": median(lateness), "most": max(lateness)} if lateness else None,
        "failed": await attempt_rows(context, failed[:_MAX_ATTEMPTS]),
        "more_failed": max(len(failed) - _MAX_ATTEMPTS, 0),
    }


@router.post("/workers/drain", Role.OPERATOR)
async def drain(context: PageContext) -> Response:
    """Ask a node to finish what it runs and end. This cannot be undone; an operator may start another."""
    node = await context.api.post(
        "workers", context.form.get("id", "")[:100], "drain", body={"reason": context.form.get("reason") or None}
    )
    return context.go(
        context.back("/workers"), f"{node['name']} takes nothing more, and ends when it has finished what it runs."
    )


def _node_row(node: NodeStatus, now: datetime) -> dict[str, Any]:
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


@router.get("/handlers")
async def list_handlers(context: PageContext) -> Response:
    """All handlers, by name."""
    site = context.site
    page, show = await handlers_page(site.queries, site.catalogue, context.page_request(_MAX_SHOWN))
    rows = [show(handler) for handler in page.items]
    return context.page("handlers.html", part="partials/handlers_list.html", rows=rows, page=page)


@router.get("/handlers/one")
async def handler_page(context: PageContext) -> Response:
    """One handler. Its name may contain any character, so it is a parameter and not a part of the path."""
    name = context.query("name")
    if not name:
        raise NotFound("handler", "")
    if context.is_partial and context.query("part") == "history":
        return context.page("partials/history.html", history=await _handler_history(context, name))
    handler = await read_handler(context.site.queries, context.site.catalogue, name)
    return context.page(
        "handler.html",
        part="partials/handler.html",
        handler=handler,
        fields=_fields(handler),
        schema=pretty_json(handler["payload_schema"]),
        example=pretty_json(handler["example"]),
        history=None if context.is_partial else await _handler_history(context, name),
    )


async def _handler_history(context: PageContext, name: str) -> dict[str, Any]:
    return await history_of(context, "/handlers/one", MetricsScope(handler=name), name=name)


def _fields(handler: dict[str, Any]) -> list[dict[str, Any]]:
    """The fields of the payload, one row each."""
    schema = handler["payload_schema"] or {}
    required = set(schema.get("required", ()))
    return [
        {"name": name, "kind": _kind(field), "is_required": name in required, "default": _default(field)}
        for name, field in schema.get("properties", {}).items()
    ]


def _kind(field: dict[str, Any]) -> str:
    if "anyOf" in field:
        return " or ".join(map(_kind, field["anyOf"]))
    if "$ref" in field:
        return str(field["$ref"]).rpartition("/")[2]
    return str(field.get("type", "anything"))


def _default(field: dict[str, Any]) -> str:
    return pretty_json(field["default"]) if "default" in field else ""
