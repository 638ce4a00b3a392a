"""Completing a search while it is typed: which fields there are, and which values they have."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from starlette.responses import Response

from timeball.api.auth import Role
from timeball.dashboard.pages.job_form import known_handlers
from timeball.dashboard.routing import Pages
from timeball.dashboard.visit import Visit
from timeball.domain.civil_time import zone_names
from timeball.domain.execution import ExecutionState
from timeball.domain.query import EXECUTION_FIELDS, JOB_FIELDS, Field, Kind
from timeball.domain.search import JobFilter, JobOrder, PageRequest

pages = Pages()
_MOST = 12
_FIELDS: Mapping[str, Mapping[str, Field]] = {"/executions": EXECUTION_FIELDS, "/jobs": JOB_FIELDS}
# A term goes on to the next blank; inside quotes a blank is none.
_TERM = re.compile(r'(?:[^\s"]|"[^"]*"?)+')
_EXAMPLES = {
    Kind.SPAN: (">1s", ">30s", ">5m", ">1h", "<1s"),
    Kind.MOMENT: ("-1h", "-24h", "-7d"),
    Kind.NUMBER: (">1", ">50", "<50", "0"),
}


@pages.get("/parts/search-ends")
async def search_ends(visit: Visit) -> Response:
    """Ways in which a search may go on, each as the whole search."""
    fields = _FIELDS.get(visit.query("list"), EXECUTION_FIELDS)
    text = visit.request.query_params.get("q", "")[:1_000]
    before, minus, word = split_last(text)
    name, colon, typed = word.partition(":")
    if not colon:
        ends = [
            f"{end}." if fields[end].kind is Kind.JSON else f"{end}:" for end in _fitting(_allowed(visit, fields), name)
        ]
    else:
        first, comma, last = typed.rpartition(",")
        values = await _values(visit, name, fields.get(name), last.strip('"'))
        ends = [
            f"{name}:{first}{comma}{_quoted(value)}"
            for value in _fitting(values, last.strip('"'))
            if not (comma and _is_odd(value))
        ]
    return visit.page("partials/search_ends.html", ends=[f"{before}{minus}{end}" for end in ends[:_MOST]])


def split_last(text: str) -> tuple[str, str, str]:
    """What stands before the term that is being typed, its minus if it has one, and the term."""
    last = ""
    for found in _TERM.finditer(text):
        last = found[0] if found.end() == len(text) else ""
    minus = "-" if last.startswith("-") else ""
    return text[: len(text) - len(last)], minus, last.removeprefix("-")


def _allowed(visit: Visit, fields: Mapping[str, Field]) -> list[str]:
    """Searching payloads needs the role editor."""
    return [name for name, field in fields.items() if field.kind is not Kind.JSON or visit.can(Role.EDITOR)]


def _fitting(values: Iterable[str], typed: str) -> list[str]:
    """Those that begin with what was typed, then those that contain it; not what is typed whole already."""
    low = typed.lower()
    known = [
        value for value in dict.fromkeys(values) if low in value.lower() and value.lower() != low and '"' not in value
    ]
    return sorted(known, key=lambda value: not value.lower().startswith(low))


async def _values(visit: Visit, name: str, field: Field | None, typed: str) -> list[str]:
    if field is None:
        return []
    if field.kind is Kind.STATE:
        return [*field.choices, *ExecutionState]
    if field.kind is Kind.CHOICE:
        return list(field.choices)
    if field.kind is not Kind.TEXT:
        return list(_EXAMPLES.get(field.kind, ()))
    return await _texts(visit, name, typed)


async def _texts(visit: Visit, name: str, typed: str) -> list[str]:
    insights = visit.site.insights
    match name:
        case "queue":
            return [row["name"] for row in await insights.queues()]
        case "handler":
            return await known_handlers(insights)
        case "worker":
            return [worker["id"] for worker in (await visit.api.get("workers"))["data"]]
        case "zone":
            return sorted(zone_names())
        case "job" | "name":
            wanted = JobFilter(search=typed.replace("\0", "") or None, is_named=True)
            page = await insights.jobs(wanted, JobOrder.NAME, PageRequest(limit=_MOST))
            return [view.job.name or "" for view in page.items]
        case "tag":
            page = await insights.jobs(JobFilter(is_named=True), JobOrder.NAME, PageRequest(limit=100))
            return sorted({tag for view in page.items for tag in view.job.tags})
    return []


def _quoted(value: str) -> str:
    return f'"{value}"' if _is_odd(value) else value


def _is_odd(value: str) -> bool:
    """Whether a value needs quotes; those take commas for a part of it, so that it cannot be one of several."""
    return re.search(r"[\s,]", value) is not None
