"""Dead letters: by what killed them; retry one, look, then all."""

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
from timeball.domain.execution import ExecutionState
from timeball.domain.search import ExecutionFilter, PageRequest

pages = Pages()
_GROUPS, _PAGE = 100, 50


@pages.get("/dead")
async def groups(visit: Visit) -> Response:
    """The dead that nobody has dealt with, in groups; or those of one group."""
    fingerprint = visit.request.query_params.get("fingerprint")
    found = [dead_group_document(row) for row in await visit.site.insights.dead_groups(_GROUPS)]
    rows: list[dict[str, Any]] = []
    page = None
    if fingerprint is not None:
        wanted = ExecutionFilter(states=(ExecutionState.DEAD,), fingerprint=fingerprint or None, is_unsettled=True)
        page = await visit.site.insights.executions(
            wanted, PageRequest(limit=_PAGE, cursor=visit.query("cursor") or None)
        )
        rows = await named(visit, page.items)
    group = next((one for one in found if one["fingerprint"] == fingerprint), None)
    return visit.page(
        "dead.html",
        part="partials/dead_list.html",
        groups=found,
        group=group,
        fingerprint=fingerprint,
        rows=rows,
        page=page,
        total=sum(one["executions"] for one in found),
    )


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
    if visit.form.get("fingerprint"):
        return body | {"fingerprint": visit.form["fingerprint"]}
    return body | {"all": True}
