"""Operations: what is done to very many executions or jobs in the background, and how far it has come."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from timeball.api.auth import Role
from timeball.dashboard.routing import Pages
from timeball.dashboard.visit import Visit

pages = Pages()
_MOST_FAILED = 50
# What an operation's state looks like, in the words of executions.
LOOKS = {
    "pending": "queued",
    "running": "running",
    "succeeded": "succeeded",
    "cancelled": "cancelled",
    "failed": "dead",
}


@pages.get("/operations")
async def list_operations(visit: Visit) -> Response:
    """The operations of the last week, the latest first."""
    found = await visit.api.get("operations", limit=50, cursor=visit.query("cursor"))
    return visit.page(
        "operations.html",
        part="partials/operations_list.html",
        rows=found["data"],
        page=found,
        looks=LOOKS,
    )


@pages.get("/operations/{operation}")
async def show_operation(visit: Visit) -> Response:
    """One operation: how far it is, and what it could not do."""
    found = await visit.api.get("operations", visit.path["operation"])
    failed = await visit.api.get("operations", found["id"], "items", status="failed", limit=_MOST_FAILED)
    return visit.page(
        "operation.html",
        part="partials/operation.html",
        one=found,
        failed=failed,
        is_over=found["finished_at"] is not None,
        looks=LOOKS,
    )


@pages.post("/operations/{operation}/cancel", Role.OPERATOR)
async def cancel(visit: Visit) -> Response:
    """Stop it where it is."""
    found = visit.path["operation"]
    await visit.api.post("operations", found, "cancel", body={"reason": visit.form.get("reason") or None})
    return visit.go(visit.site_url(f"/operations/{found}"), "It stops where it is; what is done stays done.")


def is_operation(result: dict[str, Any]) -> bool:
    """Whether many were too many to be done at once: then the API answers with an operation."""
    return "progress" in result


def watch(visit: Visit, result: dict[str, Any]) -> Response:
    """Go where the operation can be watched."""
    told = f"{result['total']} at once would take too long: they are done one after the other."
    return visit.go(visit.site_url(f"/operations/{result['id']}"), told)
