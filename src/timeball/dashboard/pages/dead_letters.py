"""Dead letters, grouped by error, handler or queue; retry one, some or all."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup
from starlette.responses import Response

from timeball.api.auth import Role
from timeball.dashboard import charts
from timeball.dashboard.components import Components, time_tag
from timeball.dashboard.context import PageContext, PageRouter
from timeball.dashboard.formatting import format_instant, format_number, pluralize, short_type
from timeball.dashboard.pages.executions import named_execution_rows
from timeball.dashboard.pages.operations import go_to_operation, is_operation, retry_undo, summarize
from timeball.domain.search import (
    DEAD_LETTERS,
    EXACT_UP_TO,
    DeadLetterGroup,
    DeadLetterGrouping,
    ExecutionFilter,
    where,
)
from timeball.domain.values.ids import format_execution_id

router = PageRouter()

_GROUPS, _PAGE, _MAX_BESIDE = 50, 50, 3
_SMALL: dict[str, Any] = {"class": "small"}
_DISCARD: dict[str, Any] = _SMALL | {
    "danger": True,
    "detail": "They leave this list without being run again; their history stays.",
    "reason": True,
}


@router.get("/dead")
async def list_groups(context: PageContext) -> Response:
    """Dead executions that were neither retried nor discarded: in groups, or those of one group."""
    chosen = next((by for by in DeadLetterGrouping if by.field in context.request.query_params), None)
    if chosen is not None:
        return await _group_page(context, chosen, context.query(chosen.field))
    by = (
        DeadLetterGrouping(context.query("by"))
        if context.query("by") in list(DeadLetterGrouping)
        else DeadLetterGrouping.ERROR
    )
    groups = await context.site.queries.executions.dead_groups(_GROUPS, by)
    return context.page(
        "dead.html",
        part="partials/dead_list.html",
        groups=[_row(context, group) for group in groups],
        since=groups[0].since if groups else None,
        by=by,
        groupings=list(DeadLetterGrouping),
        total=await context.site.queries.executions.dead_count(),
        most=EXACT_UP_TO,
    )


async def _group_page(context: PageContext, by: DeadLetterGrouping, key: str) -> Response:
    group: dict[str, Any] = {by.field: key}
    filter_ = ExecutionFilter((*DEAD_LETTERS, *where(**group)))
    page = await context.site.queries.executions.page(filter_, context.page_request(_PAGE))
    groups = await context.site.queries.executions.dead_groups(_GROUPS, by)
    return context.page(
        "dead_group.html",
        part="partials/dead_group.html",
        group=next((_row(context, group) for group in groups if group.key == key), None),
        by=by,
        key=key,
        rows=await named_execution_rows(context, page.items),
        page=page,
    )


def _row(context: PageContext, group: DeadLetterGroup) -> dict[str, Any]:
    """A group as the list shows it; built in Python, because a template is slow for fifty of them."""
    is_by_error = group.by is DeadLetterGrouping.ERROR
    kind = short_type(group.error_type)
    beside = group.queues if group.by is DeadLetterGrouping.HANDLER else group.handlers
    latest = format_execution_id(group.latest_id)
    between = f"between {format_instant(group.first_at)} and {format_instant(group.last_at)}"
    return {
        "key": group.key,
        "href": context.url("/dead", **{group.by.field: group.key}),
        "executions": group.executions,
        "title": (kind or "No error was recorded") if is_by_error else group.key,
        "place": group.top_frame if is_by_error else kind,
        "top_frame": group.top_frame,
        "latest_error": group.latest_error or "",
        "latest_id": latest,
        "latest_page": context.site_url(f"/executions/{latest}"),
        "last_at": time_tag(group.last_at),
        "died": charts.sparkline(group.deaths, f"{format_number(group.executions)} died {between}"),
        "beside": beside[:_MAX_BESIDE],
        "more_beside": len(beside) - _MAX_BESIDE,
        "acts": _group_actions(context.components, group, latest),
    }


def _group_actions(components: Components, group: DeadLetterGroup, latest: str) -> Markup:
    """The buttons of a group: retry one, retry all, discard."""
    fields = {group.by.field: group.key}
    question = f"Discard {pluralize(group.executions, 'execution')}?"
    is_one = group.executions == 1
    first = (
        ""
        if is_one
        else components.action("/dead/retry", "Test one retry first…", fields={"one": latest}, **_SMALL) + " "
    )
    retry = components.action("/dead/retry", "Retry" if is_one else "Retry all", key="r", fields=fields, **_SMALL)
    return (
        first + retry + " " + components.action("/dead/discard", "Discard", fields=fields, confirm=question, **_DISCARD)
    )


@router.post("/dead/retry", Role.OPERATOR)
async def retry(context: PageContext) -> Response:
    """Retry one, some or all executions of a group; the new executions can be cancelled again."""
    result = await context.api.post("dead-letter", "retry", body=_selection(context))
    if is_operation(result):
        return go_to_operation(context, result)
    created = [item["execution_id"] for item in result["results"] if item["execution_id"]]
    failed = [item["error"] for item in result["results"] if item["status"] == "failed"]
    if len(created) == 1 and "one" in context.form:
        toast = "Retried one of the group. If it succeeds, retry the rest."
        return context.go(context.site_url(f"/executions/{created[0]}"), toast)
    toast = summarize(result["done"], "execution", "retried", failed)
    return context.go(context.back("/dead"), toast, undo=retry_undo(context, created))


@router.post("/dead/discard", Role.OPERATOR)
async def discard(context: PageContext) -> Response:
    """Remove executions from the list without running them; their history stays."""
    result = await context.api.post("dead-letter", "discard", body=_selection(context))
    if is_operation(result):
        return go_to_operation(context, result)
    return context.go(context.back("/dead"), summarize(result["done"], "execution", "discarded", []))


def _selection(context: PageContext) -> dict[str, Any]:
    body: dict[str, Any] = {"reason": context.form.get("reason") or None}
    ids = context.form_list("ids") or ([context.form["one"]] if context.form.get("one") else [])
    if ids:
        return body | {"ids": ids[:500]}
    group: dict[str, Any] = {
        by.field: context.form[by.field] for by in DeadLetterGrouping if context.form.get(by.field)
    }
    return body | (group or {"all": True})
