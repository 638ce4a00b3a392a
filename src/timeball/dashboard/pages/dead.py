"""Dead letters: by what killed them or by where they ran; retry one, look, then all."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from timeball.api.auth import Role
from timeball.api.views import dead_group_document
from timeball.dashboard.pages.execution_actions import undo_of
from timeball.dashboard.pages.executions import named
from timeball.dashboard.pages.many import sum_up
from timeball.dashboard.pages.operations import is_operation, watch
from timeball.dashboard.routing import Pages
from timeball.dashboard.visit import Visit
from timeball.domain.dead_letters import DeadGrouping
from timeball.domain.execution import ExecutionState
from timeball.domain.search import EXACT_UP_TO, ExecutionFilter, PageRequest

pages = Pages()
_GROUPS, _PAGE = 50, 50


@pages.get("/dead")
async def groups(visit: Visit) -> Response:
    """The dead that nobody has dealt with, in groups; or those of one group."""
    chosen = next((by for by in DeadGrouping if by.field in visit.request.query_params), None)
    if chosen is not None:
        return await _one_group(visit, chosen, visit.query(chosen.field))
    by = DeadGrouping(visit.query("by")) if visit.query("by") in list(DeadGrouping) else DeadGrouping.ERROR
    found = await _groups(visit, by)
    return visit.page(
        "dead.html",
        part="partials/dead_list.html",
        groups=found,
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
    return visit.page(
        "dead_group.html",
        part="partials/dead_group.html",
        group=next((one for one in await _groups(visit, by) if one[by.field] == key), None),
        by=by,
        key=key,
        rows=await named(visit, page.items),
        page=page,
    )


async def _groups(visit: Visit, by: DeadGrouping) -> list[dict[str, Any]]:
    return [dead_group_document(group) for group in await visit.site.insights.dead_groups(_GROUPS, by)]


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
