"""Bulk actions: the form, its confirmation and its undo, and the pages of operations that run in the background."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from timeball.api.auth import Role
from timeball.api.models.executions import operation_document
from timeball.api.resources.operations import item_document
from timeball.dashboard.context import PageContext, PageRouter, Undo, browser_zone, zone_label
from timeball.dashboard.formatting import iso, pluralize
from timeball.dashboard.internal_api import ApiProblem
from timeball.domain.bulk_operation import Operation
from timeball.domain.values.ids import format_job_id

router = PageRouter()


# The undo of a toast is kept in a cookie, which has room for so many ids.
MAX_UNDO_IDS = 40


def retry_undo(context: PageContext, created: list[str]) -> Undo | None:
    """The undo of a retry: cancel the new executions."""
    if not 0 < len(created) <= MAX_UNDO_IDS:
        return None
    return Undo(context.site_url("/executions/undo"), {"ids": " ".join(created)})


_PAGE, _MAX_FAILED = 50, 50


# The states of operations, each with the state of executions whose look it has.
STATE_STYLES = {
    "pending": "queued",
    "running": "running",
    "paused": "paused",
    "succeeded": "succeeded",
    "cancelled": "cancelled",
    "failed": "dead",
}


@router.get("/operations")
async def list_operations(context: PageContext) -> Response:
    """The operations of the last week, the latest first."""
    page = await context.site.queries.operations.page(context.page_request(_PAGE))
    return context.page(
        "operations.html",
        part="partials/operations_list.html",
        rows=await _rows(context, page.items),
        page=page,
        looks=STATE_STYLES,
    )


async def _rows(context: PageContext, operations: Sequence[Operation]) -> list[dict[str, Any]]:
    """Operations as pages show them; a backfill by its job, because what it creates is counted only as it goes on."""
    ids = [operation.backfill.job_id for operation in operations if operation.backfill is not None]
    names = await context.site.queries.jobs.names(ids) if ids else {}
    rows = []
    for operation in operations:
        backfill, verb = operation.backfill, operation.action.capitalize()
        row = operation_document(operation) | {"backfill": backfill}
        if backfill is None:
            row["title"] = f"{verb} {pluralize(operation.total, operation.subject)}"
        else:
            job = format_job_id(backfill.job_id)
            row["title"] = f"{verb} {names.get(backfill.job_id) or job}"
            row["ledger"] = context.url(
                f"/jobs/{job}", tab="ledger", **{"from": iso(backfill.since), "until": iso(backfill.until)}
            )
        rows.append(row)
    return rows


@router.get("/operations/{operation}")
async def operation_page(context: PageContext) -> Response:
    """One operation: its progress, and the items that failed."""
    queries = context.site.queries
    operation = await queries.operations.find(context.path["operation"])
    failed = await queries.operations.items(operation.id, "failed", 0, _MAX_FAILED + 1)
    return context.page(
        "operation.html",
        part="partials/operation.html",
        operation=(await _rows(context, [operation]))[0],
        failed=[item_document(item) for item in failed[:_MAX_FAILED]],
        has_more=len(failed) > _MAX_FAILED,
        is_over=operation.finished_at is not None,
        looks=STATE_STYLES,
    )


@router.post("/operations/{operation}/cancel", Role.OPERATOR)
async def cancel(context: PageContext) -> Response:
    """Stop an operation; what it has done stays."""
    operation = context.path["operation"]
    await context.api.post("operations", operation, "cancel", body={"reason": context.form.get("reason") or None})
    return context.go(context.site_url(f"/operations/{operation}"), "The operation stops; what is done stays done.")


@router.post("/operations/{operation}/pause", Role.OPERATOR)
async def pause(context: PageContext) -> Response:
    """Let a backfill rest."""
    operation = context.path["operation"]
    await context.api.post("operations", operation, "pause")
    return context.go(context.site_url(f"/operations/{operation}"), "Paused; what it has created runs on.")


@router.post("/operations/{operation}/resume", Role.OPERATOR)
async def resume(context: PageContext) -> Response:
    """Let a paused backfill go on."""
    operation = context.path["operation"]
    await context.api.post("operations", operation, "resume")
    return context.go(context.site_url(f"/operations/{operation}"), "It goes on.")


def is_operation(result: dict[str, Any]) -> bool:
    """Whether a bulk action became an operation that runs in the background."""
    return "progress" in result


def go_to_operation(context: PageContext, result: dict[str, Any]) -> Response:
    """Go to the page of an operation."""
    toast = f"{result['action'].capitalize()}: {pluralize(result['total'], result['subject'])}, in the background."
    return context.go(context.site_url(f"/operations/{result['id']}"), toast)


Body = dict[str, Any]


# The most ids that the API takes.
MAX_IDS = 500


@dataclass(frozen=True, slots=True)
class BulkForm:
    """The fields of a bulk form."""

    action: str
    ids: list[str]
    is_matching: bool
    q: str
    status: str
    with_one_offs: bool
    reason: str | None
    # The end of the list when the form was shown: executions that come later are not included.
    until: str
    # The end of the pauses that it makes.
    pause_until: str
    # The number that was confirmed; None if it was not asked yet.
    expected: int | None

    @classmethod
    def of(cls, context: PageContext) -> BulkForm:
        """Read it from a request."""
        expected = context.form.get("expected", "")
        return cls(
            action=context.form.get("action", ""),
            ids=context.form_list("ids")[:MAX_IDS],
            is_matching=context.form.get("matching") == "yes",
            q=context.form.get("q", ""),
            status=context.form.get("status", ""),
            with_one_offs=context.form.get("all") == "yes",
            reason=context.form.get("reason") or None,
            until=context.form.get("until", ""),
            pause_until=context.form.get("pause_until", ""),
            expected=int(expected) if expected.isascii() and expected.isdecimal() else None,
        )


async def run_if_confirmed(
    context: PageContext, bulk: BulkForm, address: Sequence[str], body: Body
) -> dict[str, Any] | None:
    """Do it to all that match; None if their number was not confirmed yet, or is another one now."""
    if bulk.expected is None:
        return None
    try:
        return await context.api.post(*address, body=body | {"expected_count": bulk.expected})
    except ApiProblem as problem:
        if problem.status != 409:
            raise
        return None


async def ask_to_confirm(
    context: PageContext, bulk: BulkForm, address: Sequence[str], body: Body, *, noun: str, path: str, until: str = ""
) -> Response:
    """The page that shows how many match, and asks for confirmation."""
    dry_run = await context.api.post(*address, body=body | {"dry_run": True})
    return context.page(
        "confirm_many.html",
        bulk=bulk,
        count=dry_run["done"],
        noun=noun,
        path=path,
        back=context.back("/"),
        until=until,
        zone=zone_label(browser_zone(context.request)),
    )


def summarize(done: int, noun: str, verb: str, failed: Sequence[str]) -> str:
    """The result of a bulk action in a sentence."""
    text = f"{pluralize(done, noun)} {verb}."
    if failed:
        text += f" {len(failed)} failed: {failed[0]}"
    return text
