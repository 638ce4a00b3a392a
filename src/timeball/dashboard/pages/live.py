"""Live: the numbers of now, what needs attention, recent starts and lateness; and the event stream that refreshes all pages."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from math import log10
from typing import Any

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from timeball.api.auth import Role
from timeball.api.errors import HttpProblem
from timeball.api.resources.events import KEEP_ALIVE_SECONDS, SEND_SECONDS, until_access_ends
from timeball.api.resources.metrics import counts_document, metrics_document, series_document
from timeball.api.responses import json_bytes
from timeball.application.events import EventSubscription, TopicSubscription
from timeball.application.queries.metrics import Overview
from timeball.dashboard import charts
from timeball.dashboard.context import PageContext, PageRouter, target_url
from timeball.dashboard.formatting import format_seconds, parse_instant, pluralize
from timeball.dashboard.history import history_of
from timeball.dashboard.internal_api import ApiProblem
from timeball.dashboard.pages.executions import named_execution_rows
from timeball.dashboard.pages.freezes import freeze_rows
from timeball.domain.change_event import EXECUTION_STARTED, ChangeEvent, EventFilter, event_document
from timeball.domain.execution import ExecutionState
from timeball.domain.node import NodeKind
from timeball.domain.search import ExecutionFilter, PageRequest, where
from timeball.domain.values.ids import format_execution_id

router = PageRouter()


_MAX_STARTS = 18
_MAX_NEXT = 6
_MAX_RUNNING = 50
_MAX_ADVANCING = 6
_LONGEST_MARK = 32


# Starts later than this are marked in the chart.
_LATE_SECONDS = 1.0


# The minutes of a row of the table beside the charts.
_TABLE_STEP = 5
DEMO_JOB: dict[str, Any] = {
    "name": "demo",
    "description": "Says hello every ten seconds. You can pause or delete it at any time.",
    "handler": "test.log",
    "payload": {"message": "hello from Timeball"},
    "interval_seconds": 10,
    "tags": ["demo"],
}


@router.get("/")
async def live(context: PageContext) -> Response:
    """The numbers of now; the first steps, as long as there is no job."""
    part = context.query("part")
    if context.is_partial and part in _PARTS:
        name = part if part == "history" else f"live_{part}"
        return context.page(f"partials/{name}.html", **await _PARTS[part](context))
    if not await context.site.queries.jobs.exist():
        return await _welcome(context)
    if context.is_partial:
        # The first job was created: this page replaces the checklist.
        return Response(status_code=204, headers={"HX-Refresh": "true"})
    return context.page("home.html", starts=await _recent_starts(context), **await _all_parts(context))


@router.post("/welcome/demo", Role.EDITOR)
async def demo(context: PageContext) -> Response:
    """Create a job that runs at once, and then every ten seconds."""
    try:
        await context.api.post("jobs", body=DEMO_JOB)
    except ApiProblem as problem:
        # The job is there already.
        if problem.status != 409:
            raise
    await context.api.post("jobs", DEMO_JOB["name"], "trigger", body={})
    return context.go(context.site_url("/"), "The demo job runs now and every ten seconds.")


@router.post("/seen", Role.VIEWER)
async def note_seen(context: PageContext) -> Response:
    """Put away what was missed, in this browser, until more is missed."""
    response = context.go(context.back("/"))
    mark = context.form.get("mark", "")
    if mark.isalnum() and len(mark) <= _LONGEST_MARK:
        context.note_seen(response, mark)
    return response


async def _welcome(context: PageContext) -> Response:
    nodes = await context.shared("nodes", context.site.queries.nodes)
    workers = [node for node in nodes if node.kind is NodeKind.WORKER]
    schedulers = [node for node in nodes if node.kind is NodeKind.SCHEDULER]
    address = str(context.request.base_url).rstrip("/")
    return context.page(
        "welcome.html", part="partials/welcome.html", workers=workers, schedulers=schedulers, address=address
    )


async def _all_parts(context: PageContext) -> dict[str, Any]:
    """The variables of all parts but the history, from one read of the metrics."""
    overview = await _overview(context)
    return {**await _now_of(context, overview), **_charts_of(overview), **await _next(context)}


async def _overview(context: PageContext) -> Overview:
    return await context.shared("overview", context.site.queries.metrics.overview)


async def _now(context: PageContext) -> dict[str, Any]:
    return await _now_of(context, await _overview(context))


async def _now_of(context: PageContext, overview: Overview) -> dict[str, Any]:
    concerns = await context.shared("attention", context.site.queries.alerts.attention)
    freezes = await context.shared("freezes", context.site.queries.freezes)
    now = context.site.queries.now()
    return {
        "metrics": metrics_document(overview),
        "concerns": [one for one in concerns if one.mark is None or one.mark not in context.seen],
        "page_of": target_url,
        "freezes": await freeze_rows(context, [one for one in freezes.freezes if one.covers(now)]),
        "advancing": await _advancing(context) if overview.now.running else [],
    }


async def _advancing(context: PageContext) -> list[dict[str, Any]]:
    """Running executions that tell how far they are: of the latest ones, a few."""
    running = ExecutionFilter(where(status=ExecutionState.RUNNING))
    page = await context.shared(
        "running", lambda: context.site.queries.executions.page(running, PageRequest(limit=_MAX_RUNNING))
    )
    told = [execution for execution in page.items if execution.progress is not None]
    return await named_execution_rows(context, told[:_MAX_ADVANCING])


async def _charts(context: PageContext) -> dict[str, Any]:
    return _charts_of(await _overview(context))


def _charts_of(overview: Overview) -> dict[str, Any]:
    late = counts_document(overview.last_hour)["lateness_seconds"]
    return {"late": late, **_chart_data(series_document(overview.hour))}


async def _next(context: PageContext) -> dict[str, Any]:
    rows = await context.shared("next due", lambda: context.site.queries.executions.next_due(_MAX_NEXT))
    upcoming = [
        {"id": format_execution_id(row["id"]), "label": row["name"] or row["handler"], "at": row["run_at"]}
        for row in rows
    ]
    return {"upcoming": upcoming}


async def _history(context: PageContext) -> dict[str, Any]:
    return {"history": await history_of(context, "/")}


_PARTS = {"now": _now, "charts": _charts, "next": _next, "history": _history}


async def _recent_starts(context: PageContext) -> list[dict[str, Any]]:
    """The latest starts, which the ticker shows before the stream adds more."""
    states = (ExecutionState.RUNNING, ExecutionState.SUCCEEDED, ExecutionState.DEAD)
    page = await context.site.queries.executions.page(
        ExecutionFilter(where(status=states)), PageRequest(limit=_MAX_STARTS * 2)
    )
    runs = [run for run in await named_execution_rows(context, page.items) if run["started_at"]]
    return [_start_row(run) for run in sorted(runs, key=lambda run: run["started_at"], reverse=True)[:_MAX_STARTS]]


def _start_row(run: Mapping[str, Any]) -> dict[str, Any]:
    started, due = parse_instant(run["started_at"]), parse_instant(run["scheduled_for"])
    assert started is not None
    assert due is not None
    late = (started - due).total_seconds() * 1_000 if run["attempts"] <= 1 else None
    label = run["job_name"] or run["handler"]
    return {"id": run["id"], "at": started, "label": label, "lateness_ms": late}


def _chart_data(series: Mapping[str, Any]) -> dict[str, Any]:
    """Lateness and throughput of the last hour, minute by minute."""
    points = series["points"]
    late = [point["lateness_seconds"]["p99"] or 0.0 for point in points]
    done = [point["succeeded"] for point in points]
    failed = [point["failed"] + point["timed_out"] + point["lost"] for point in points]
    clocks = [f"{parse_instant(point['at']):%H:%M} UTC" for point in points]
    return {
        "table": [_row(points, late, done, failed, first) for first in range(0, len(points), _TABLE_STEP)],
        "late_chart": charts.bars(
            [_height(value) for value in late],
            f"Started late by, minute by minute: at most {format_seconds(max(late, default=0))} in the last hour",
            tones=["tone-warn" if value > _LATE_SECONDS else "tone-live" for value in late],
            titles=[f"{at}: {format_seconds(value)}" for at, value in zip(clocks, late, strict=True)],
            height=40,
        ),
        "flow_chart": charts.stacked_bars(
            [("tone-good", done), ("tone-bad", failed)],
            f"{pluralize(sum(done), 'execution')} done and {pluralize(sum(failed), 'attempt')} failed in the last hour",
        ),
    }


def _row(points: Sequence[Any], late: Sequence[float], done: Sequence[int], failed: Sequence[int], first: int) -> Any:
    """Five minutes as one row of the table."""
    minutes = slice(first, first + _TABLE_STEP)
    return points[first]["at"], max(late[minutes]), sum(done[minutes]), sum(failed[minutes])


def _height(late: float) -> float:
    """The logarithm, so that one chart shows milliseconds and minutes."""
    return log10(1 + late * 1_000)


# The event stream, one per browser: it names the topics that changed, and pages fetch the parts that show them again.
# Only starts carry data, because the ticker must not miss any.

MAX_STREAMS = 500
_STREAM_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",
}


# Starts within this time are sent together.
_STARTS_SECONDS = 0.25


@router.get("/parts/stream")
async def event_stream(context: PageContext) -> Response:
    """Send the topics that change, for as long as the browser listens."""
    streams, most = context.site.streams, context.site.settings.api.concurrent_requests
    if streams.total() >= MAX_STREAMS:
        raise HttpProblem(
            503, "too_many_streams", f"{MAX_STREAMS} event streams are open already", headers={"Retry-After": "30"}
        )
    if streams[context.caller.name] >= most:
        raise HttpProblem(
            429, "too_many_streams", f"{most} event streams of this key are open already", headers={"Retry-After": "30"}
        )
    return _DashboardStream(context)


class _DashboardStream(Response):
    """The stream of one browser, until it disconnects, is too slow, loses its access, or the server ends."""

    def __init__(self, context: PageContext) -> None:
        super().__init__(headers=_STREAM_HEADERS)
        # A stream has no length.
        del self.headers["content-length"]
        self._context = context
        site = context.site
        self._live = site.live
        self._streams = site.streams
        self._names = site.queries.jobs.names
        self._read_cache = site.read_cache
        self._sending = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        self._streams[self._context.caller.name] += 1
        access = until_access_ends(self._is_still_allowed, self._context.site.settings.api.longest_stream)
        loops = (_until_disconnect(receive), self._send_topics(send), self._send_starts(send), access)
        tasks = [asyncio.ensure_future(loop) for loop in loops]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._streams -= Counter([self._context.caller.name])
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if tasks[0].cancelled():
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _is_still_allowed(self) -> bool:
        return await self._context.site.authenticator.is_still_allowed(self._context.request, self._context.caller)

    async def _send_topics(self, send: Send) -> None:
        async with self._live.watch() as listener:
            await self._send(send, b"retry: 3000\n\n")
            async for text in _topics(listener):
                await self._send(send, text)

    async def _send_starts(self, send: Send) -> None:
        async with self._live.listen(EventFilter(types=(EXECUTION_STARTED,))) as listener:
            async for text in self._starts(listener):
                await self._send(send, text)

    async def _starts(self, listener: EventSubscription) -> AsyncIterator[bytes]:
        while not listener.is_over:
            news = await listener.next(KEEP_ALIVE_SECONDS)
            if news.is_gap:
                yield b"event: gap\ndata: {}\n\n"
            if news.events:
                yield b"event: starts\ndata: %s\n\n" % await self._named(news.events)
                await asyncio.sleep(_STARTS_SECONDS)

    async def _named(self, starts: Sequence[ChangeEvent]) -> bytes:
        """Starts with the names of their jobs; browsers that listen together get the same ones from one read."""

        async def read() -> bytes:
            names = await self._names([start.job_id for start in starts if start.job_id is not None])
            named = [event_document(start) | {"name": names.get(start.job_id)} for start in starts if start.job_id]
            return json_bytes(named)

        return await self._read_cache.get(("starts", *(start.id for start in starts)), read)

    async def _send(self, send: Send, text: bytes) -> None:
        async with self._sending, asyncio.timeout(SEND_SECONDS):
            await send({"type": "http.response.body", "body": text, "more_body": True})


async def _topics(listener: TopicSubscription) -> AsyncIterator[bytes]:
    while not listener.is_over:
        topics = await listener.next(KEEP_ALIVE_SECONDS)
        # An event and not a comment: by it the page sees that the stream is alive.
        yield b"event: topics\ndata: %s\n\n" % orjson.dumps(sorted(topics)) if topics else b"event: beat\ndata: {}\n\n"


async def _until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
