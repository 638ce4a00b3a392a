"""Dead letters: by what killed them or by where they ran; retry one, look, then all."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup
from starlette.responses import Response

from timeball.api.auth import Role
from timeball.dashboard import charts
from timeball.dashboard.pages.execution_actions import undo_of
from timeball.dashboard.pages.executions import named
from timeball.dashboard.pages.many import sum_up
from timeball.dashboard.pages.operations import is_operation, watch
from timeball.dashboard.pieces import Pieces, when
from timeball.dashboard.routing import Pages
from timeball.dashboard.visit import Visit
from timeball.dashboard.wording import counted, number, short_type, stamp
from timeball.domain.dead_letters import DeadGroup, DeadGrouping
from timeball.domain.execution import ExecutionState
from timeball.domain.ids import show_execution
from timeball.domain.search import EXACT_UP_TO, ExecutionFilter, PageRequest

pages = Pages()
_GROUPS, _PAGE, _MOST_BESIDE = 50, 50, 3
_SMALL: dict[str, Any] = {"class": "small"}
_DISCARD: dict[str, Any] = _SMALL | {
    "danger": True,
    "detail": "They leave this list without being run again; their history stays.",
    "reason": True,
}


@pages.get("/dead")
async def groups(visit: Visit) -> Response:
    """The dead that nobody has dealt with, in groups; or those of one group."""
    chosen = next((by for by in DeadGrouping if by.field in visit.request.query_params), None)
    if chosen is not None:
        return await _one_group(visit, chosen, visit.query(chosen.field))
    by = DeadGrouping(visit.query("by")) if visit.query("by") in list(DeadGrouping) else DeadGrouping.ERROR
    found = await visit.site.insights.dead_groups(_GROUPS, by)
    return visit.page(
        "dead.html",
        part="partials/dead_list.html",
        groups=[_row(visit, group) for group in found],
        since=found[0].since if found else None,
        by=by,
        groupings=list(DeadGrouping),
        total=await visit.site.insights.dead_count(),
        most=EXACT_UP_TO,
    )


async def _one_group(visit: Visit, by: DeadGrouping, key: str) -> Response:
    chosen: dict[str, Any] = {by.field: key}
    wanted = ExecutionFilter(states=(ExecutionState.DEAD,), is_unsettled=True, **chosen)
    request = PageRequest(limit=_PAGE, cursor=visit.query("cursor") or None)
    page = await visit.site.insights.executions(wanted, request)
    found = await visit.site.insights.dead_groups(_GROUPS, by)
    return visit.page(
        "dead_group.html",
        part="partials/dead_group.html",
        group=next((_row(visit, one) for one in found if one.key == key), None),
        by=by,
        key=key,
        rows=await named(visit, page.items),
        page=page,
    )


def _row(visit: Visit, group: DeadGroup) -> dict[str, Any]:
    """A group as the list shows it: put together here, because there are fifty of them and a template takes long for each piece."""
    is_of_errors = group.by is DeadGrouping.ERROR
    kind = short_type(group.error_type)
    beside = group.queues if group.by is DeadGrouping.HANDLER else group.handlers
    latest = show_execution(group.latest_id)
    between = f"between {stamp(group.first_at)} and {stamp(group.last_at)}"
    return {
        "key": group.key,
        "href": visit.url("/dead", **{group.by.field: group.key}),
        "executions": group.executions,
        "title": (kind or "No error was recorded") if is_of_errors else group.key,
        "place": group.top_frame if is_of_errors else kind,
        "top_frame": group.top_frame,
        "latest_error": group.latest_error or "",
        "latest_id": latest,
        "latest_page": visit.site_url(f"/executions/{latest}"),
        "last_at": when(group.last_at),
        "died": charts.sparkline(group.deaths, f"{number(group.executions)} died {between}"),
        "beside": beside[:_MOST_BESIDE],
        "more_beside": len(beside) - _MOST_BESIDE,
        "acts": _acts(visit.pieces, group, latest),
    }


def _acts(pieces: Pieces, group: DeadGroup, latest: str) -> Markup:
    """What can be done to a group: look at one first, then all."""
    chosen = {group.by.field: group.key}
    question = f"Discard {counted(group.executions, 'execution')}?"
    is_one = group.executions == 1
    first = (
        "" if is_one else pieces.action("/dead/retry", "Retry one, then all", fields={"one": latest}, **_SMALL) + " "
    )
    retry = pieces.action("/dead/retry", "Retry" if is_one else "Retry all", key="r", fields=chosen, **_SMALL)
    return first + retry + " " + pieces.action("/dead/discard", "Discard", fields=chosen, confirm=question, **_DISCARD)


@pages.post("/dead/retry", Role.OPERATOR)
async def retry(visit: Visit) -> Response:
    """Retry one, some or all of a cause; what was made can be cancelled again."""
    result = await visit.api.post("dead-letter", "retry", body=_choice(visit))
    if is_operation(result):
        return watch(visit, result)
    made = [item["execution_id"] for item in result["results"] if item["execution_id"]]
    failed = [item["error"] for item in result["results"] if item["status"] == "failed"]
    told = sum_up(result["done"], "execution", "retried", failed)
    if len(made) == 1 and "one" in visit.form:
        told = "One is retried: look how it ends, then retry the others."
        return visit.go(visit.site_url(f"/executions/{made[0]}"), told)
    return visit.go(visit.back("/dead"), told, undo=undo_of(visit, made))


@pages.post("/dead/discard", Role.OPERATOR)
async def discard(visit: Visit) -> Response:
    """Take them off the list without running them; their history stays."""
    result = await visit.api.post("dead-letter", "discard", body=_choice(visit))
    if is_operation(result):
        return watch(visit, result)
    return visit.go(visit.back("/dead"), sum_up(result["done"], "execution", "discarded", []))


def _choice(visit: Visit) -> dict[str, Any]:
    body: dict[str, Any] = {"reason": visit.form.get("reason") or None}
    ids = visit.form_list("ids") or ([visit.form["one"]] if visit.form.get("one") else [])
    if ids:
        return body | {"ids": ids[:500]}
    group: dict[str, Any] = {by.field: visit.form[by.field] for by in DeadGrouping if visit.form.get(by.field)}
    return body | (group or {"all": True})
