"""One action on many: those that were selected, or all that match a search, counted and confirmed before anything is done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from timeball.dashboard.inner_api import ApiProblem
from timeball.dashboard.visit import Visit
from timeball.dashboard.wording import counted

Body = dict[str, Any]
# As many as the API takes by name.
MOST = 500


@dataclass(frozen=True, slots=True)
class Many:
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
    def of(cls, visit: Visit) -> Many:
        """Read it from the form of a request."""
        expected = visit.form.get("expected", "")
        return cls(
            action=visit.form.get("action", ""),
            ids=visit.form_list("ids")[:MOST],
            is_matching=visit.form.get("matching") == "yes",
            q=visit.form.get("q", ""),
            status=visit.form.get("status", ""),
            with_one_offs=visit.form.get("all") == "yes",
            reason=visit.form.get("reason") or None,
            until=visit.form.get("until", ""),
            expected=int(expected) if expected.isascii() and expected.isdecimal() else None,
        )


async def as_agreed(visit: Visit, wish: Many, address: Sequence[str], body: Body) -> dict[str, Any] | None:
    """Do it to all that match; None if the visitor has not agreed yet, or to another number than there is now."""
    if wish.expected is None:
        return None
    try:
        return await visit.api.post(*address, body=body | {"expected_count": wish.expected})
    except ApiProblem as problem:
        if problem.status != 409:
            raise
        return None


async def confirm_many(
    visit: Visit, wish: Many, address: Sequence[str], body: Body, *, noun: str, path: str, until: str = ""
) -> Response:
    """Say how many it would be, and ask."""
    would = await visit.api.post(*address, body=body | {"dry_run": True})
    return visit.page(
        "confirm_many.html", wish=wish, count=would["done"], noun=noun, path=path, back=visit.back("/"), until=until
    )


def sum_up(done: int, noun: str, verb: str, failed: Sequence[str]) -> str:
    """What came of it, in a sentence."""
    text = f"{counted(done, noun)} {verb}."
    if failed:
        text += f" {len(failed)} could not be: {failed[0]}"
    return text
