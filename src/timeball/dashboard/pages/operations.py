"""Bulk actions: the form, its confirmation and its undo, and the pages of operations that run in the background."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from timeball.api.auth import Role
from timeball.api.resources.operations import item_document, operation_document
from timeball.dashboard.context import PageContext, PageRouter, Undo
from timeball.dashboard.formatting import pluralize
from timeball.dashboard.internal_api import ApiProblem

router = PageRouter()


# A cookie carries the way back, and holds no more than this many ids.
MAX_UNDO_IDS = 40


def retry_undo(context: PageContext, made: list[str]) -> Undo | None:
    """The way back from a retry: cancel what it made."""
    if not 0 < len(made) <= MAX_UNDO_IDS:
        return None
    return Undo(context.site_url("/executions/undo"), {"ids": " ".join(made)})


# Operations: what is done to very many executions or jobs in the background, and how far it has come.

_PAGE, _MAX_FAILED = 50, 50


# What an operation's state looks like, in the words of executions.
STATE_STYLES = {
    "pending": "queued",
    "running": "running",
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
        rows=[operation_document(operation) for operation in page.items],
        page=page,
        looks=STATE_STYLES,
    )


@router.get("/operations/{operation}")
async def operation_page(context: PageContext) -> Response:
    """One operation: how far it is, and what it could not do."""
    queries = context.site.queries
    operation = await queries.operations.find(context.path["operation"])
    failed = await queries.operations.items(operation.id, "failed", 0, _MAX_FAILED + 1)
    return context.page(
        "operation.html",
        part="partials/operation.html",
        one=operation_document(operation),
        failed=[item_document(item) for item in failed[:_MAX_FAILED]],
        has_more=len(failed) > _MAX_FAILED,
        is_over=operation.finished_at is not None,
        looks=STATE_STYLES,
    )


@router.post("/operations/{operation}/cancel", Role.OPERATOR)
async def cancel(context: PageContext) -> Response:
    """Stop it where it is."""
    found = context.path["operation"]
    await context.api.post("operations", found, "cancel", body={"reason": context.form.get("reason") or None})
    return context.go(context.site_url(f"/operations/{found}"), "It stops where it is; what is done stays done.")


def is_operation(result: dict[str, Any]) -> bool:
    """Whether many were too many to be done at once: then the API answers with an operation."""
    return "progress" in result


def go_to_operation(context: PageContext, result: dict[str, Any]) -> Response:
    """Go where the operation can be watched."""
    told = f"{result['total']} at once would take too long: they are done one after the other."
    return context.go(context.site_url(f"/operations/{result['id']}"), told)


# One action on many: those that were selected, or all that match a search, counted and confirmed before anything is done.

Body = dict[str, Any]


# As many as the API takes by name.
MAX_IDS = 500


@dataclass(frozen=True, slots=True)
class BulkForm:
    """What a bulk form asks for."""

    action: str
    ids: list[str]
    is_matching: bool
    q: str
    status: str
    with_one_offs: bool
    reason: str | None
    # Up to when: a list of what has come so far means no more than that, however long it takes to agree.
    until: str
    # How many the visitor was shown and agreed to; None if they have not been asked yet.
    expected: int | None

    @classmethod
    def of(cls, context: PageContext) -> BulkForm:
        """Read it from the form of a request."""
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
            expected=int(expected) if expected.isascii() and expected.isdecimal() else None,
        )


async def run_if_confirmed(
    context: PageContext, bulk: BulkForm, address: Sequence[str], body: Body
) -> dict[str, Any] | None:
    """Do it to all that match; None if the visitor has not agreed yet, or to another number than there is now."""
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
    """Say how many it would be, and ask."""
    would = await context.api.post(*address, body=body | {"dry_run": True})
    return context.page(
        "confirm_many.html", bulk=bulk, count=would["done"], noun=noun, path=path, back=context.back("/"), until=until
    )


def summarize(done: int, noun: str, verb: str, failed: Sequence[str]) -> str:
    """What came of it, in a sentence."""
    text = f"{pluralize(done, noun)} {verb}."
    if failed:
        text += f" {len(failed)} could not be: {failed[0]}"
    return text
