"""What surrounds the pages: sidebar counts, command palette, search completion, and downloads that the API answers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from timeball.api.auth import Role
from timeball.dashboard.context import PageContext, PageRouter, known_handlers
from timeball.dashboard.formatting import format_number_short
from timeball.domain.execution import ExecutionState
from timeball.domain.node import NodeKind
from timeball.domain.scheduling.civil_time import zone_names
from timeball.domain.search import (
    EXECUTION_FIELDS,
    JOB_FIELDS,
    JobFilter,
    JobOrder,
    PageRequest,
    SearchField,
    SearchFieldKind,
    SearchRelation,
    where,
)
from timeball.domain.values.ids import format_id, format_job_id

router = PageRouter()


_MAX_PALETTE = 8
_NAMED = JobFilter(is_named=True)
_COUNT_ONLY = PageRequest(limit=1, with_total=True)


@router.get("/parts/palette")
async def palette(context: PageContext) -> Response:
    """Jobs whose name contains the typed words, and the execution, job or group of a typed id."""
    words = context.query("words").replace("\0", "")
    jobs: list[tuple[str, str | None]] = []
    if words and not words.startswith(("exe_", "job_", "grp_")):
        by_name = JobFilter(where(SearchRelation.CONTAINS, name=words))
        page = await context.site.queries.jobs.page(by_name, JobOrder.NAME, PageRequest(limit=_MAX_PALETTE))
        jobs = [(format_job_id(view.job.id), view.job.name) for view in page.items]
    return context.page("partials/palette.html", words=words, jobs=jobs)


@router.get("/parts/nav")
async def nav(context: PageContext) -> Response:
    """The sidebar with its numbers. Pages that are opened later show the same numbers until they are counted again."""
    queries = context.site.queries
    overview = await context.shared("overview", queries.metrics.overview)
    named = await context.shared("named jobs", lambda: queries.jobs.page(_NAMED, JobOrder.NAME, _COUNT_ONLY))
    open_alerts = await context.shared("open alerts", queries.alerts.count_open)
    numbers = {
        "/alerts": sum(open_alerts.values()),
        "/jobs": 0 if named.total is None else named.total.count,
        "/dead": overview.now.dead,
        "/queues": overview.number_of_queues,
        "/workers": sum(node.kind is NodeKind.WORKER for node in overview.nodes),
    }
    context.site.counts.update({path: format_number_short(value) for path, value in numbers.items()})
    return context.page("partials/nav.html", section=context.query("section"), counts=context.site.counts)


@router.get("/parts/ping")
async def ping(_context: PageContext) -> Response:
    """Answer a browser that checks whether the server runs and its session is valid."""
    return Response(status_code=204)


_MAX_COMPLETIONS = 12
_FIELDS: Mapping[str, Mapping[str, SearchField]] = {"/executions": EXECUTION_FIELDS, "/jobs": JOB_FIELDS}


# A term ends at a blank that is not inside quotes.
_TERM = re.compile(r'(?:[^\s"]|"[^"]*"?)+')
_EXAMPLES = {
    SearchFieldKind.SPAN: (">1s", ">30s", ">5m", ">1h", "<1s"),
    SearchFieldKind.MOMENT: ("-1h", "-24h", "-7d"),
    SearchFieldKind.NUMBER: (">1", ">50", "<50", "0"),
}


@router.get("/parts/search-ends")
async def complete_search(context: PageContext) -> Response:
    """Completions of a search that is being typed, each as the whole search."""
    fields = _FIELDS.get(context.query("list"), EXECUTION_FIELDS)
    text = context.request.query_params.get("q", "")[:1_000]
    before, minus, word = split_last_term(text)
    name, colon, typed = word.partition(":")
    if not colon:
        ends = [
            f"{end}." if fields[end].kind is SearchFieldKind.JSON else f"{end}:"
            for end in _matching(_allowed(context, fields), name)
        ]
    else:
        first, comma, last = typed.rpartition(",")
        values = await _values(context, name, fields.get(name), last.strip('"'))
        ends = [
            f"{name}:{first}{comma}{_quoted(value)}"
            for value in _matching(values, last.strip('"'))
            if not (comma and _needs_quotes(value))
        ]
    return context.page("partials/search_ends.html", ends=[f"{before}{minus}{end}" for end in ends[:_MAX_COMPLETIONS]])


def split_last_term(text: str) -> tuple[str, str, str]:
    """The text before the last term, the minus of the term if it has one, and the term."""
    last = ""
    for match in _TERM.finditer(text):
        last = match[0] if match.end() == len(text) else ""
    minus = "-" if last.startswith("-") else ""
    return text[: len(text) - len(last)], minus, last.removeprefix("-")


def _allowed(context: PageContext, fields: Mapping[str, SearchField]) -> list[str]:
    """The fields that the caller may search: payloads need the role editor."""
    return [
        name for name, field in fields.items() if field.kind is not SearchFieldKind.JSON or context.can(Role.EDITOR)
    ]


def _matching(values: Iterable[str], typed: str) -> list[str]:
    """The values that begin with the typed text, then those that contain it; not the text itself."""
    low = typed.lower()
    matching = [
        value for value in dict.fromkeys(values) if low in value.lower() and value.lower() != low and '"' not in value
    ]
    return sorted(matching, key=lambda value: not value.lower().startswith(low))


async def _values(context: PageContext, name: str, field: SearchField | None, typed: str) -> list[str]:
    if field is None:
        return []
    if field.kind is SearchFieldKind.STATE:
        return [*field.choices, *ExecutionState]
    if field.kind is SearchFieldKind.CHOICE:
        return list(field.choices)
    if field.kind is not SearchFieldKind.TEXT:
        return list(_EXAMPLES.get(field.kind, ()))
    return await _texts(context, name, typed)


async def _texts(context: PageContext, name: str, typed: str) -> list[str]:
    queries = context.site.queries
    match name:
        case "queue":
            return [row["name"] for row in await queries.queues()]
        case "handler":
            return await known_handlers(queries)
        case "worker":
            return [format_id("wrk", node.incarnation) for node in await queries.nodes(NodeKind.WORKER)]
        case "zone":
            return sorted(zone_names())
        case "job" | "name":
            by_name = JobFilter(where(SearchRelation.CONTAINS, name=typed.replace("\0", "") or None), is_named=True)
            page = await queries.jobs.page(by_name, JobOrder.NAME, PageRequest(limit=_MAX_COMPLETIONS))
            return [view.job.name or "" for view in page.items]
        case "tag":
            page = await queries.jobs.page(JobFilter(is_named=True), JobOrder.NAME, PageRequest(limit=100))
            return sorted({tag for view in page.items for tag in view.job.tags})
    return []


def _quoted(value: str) -> str:
    return f'"{value}"' if _needs_quotes(value) else value


def _needs_quotes(value: str) -> bool:
    """Whether a value needs quotes. A comma inside quotes is part of the value, so such a value cannot be one of several."""
    return re.search(r"[\s,]", value) is not None


class _ApiResponse(Response):
    """The response of the API to the same request."""

    def __init__(self, context: PageContext, *path: str) -> None:
        super().__init__()
        self._context = context
        self._path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._context.api.forward(scope, Request(scope, receive).receive, send, *self._path)


@router.get("/calendar.ics")
async def calendar(context: PageContext) -> Response:
    """The expected runs as a calendar."""
    return _ApiResponse(context, "calendar.ics")


@router.get("/jobs/{job}/calendar.ics")
async def job_calendar(context: PageContext) -> Response:
    """The expected runs of one job as a calendar."""
    return _ApiResponse(context, "jobs", context.path["job"], "calendar.ics")


@router.get("/jobs/export")
async def export_jobs(context: PageContext) -> Response:
    """The jobs that match, as CSV."""
    return _ApiResponse(context, "jobs", "export")


@router.get("/executions/export")
async def export_executions(context: PageContext) -> Response:
    """The executions that match, as CSV."""
    return _ApiResponse(context, "executions", "export")
