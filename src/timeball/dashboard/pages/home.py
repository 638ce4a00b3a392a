"""Live: the numbers of now, what needs a human, what is being dropped, how punctual it was; before all that, how to begin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log10
from typing import Any

from starlette.responses import Response

from timeball.api.auth import Role
from timeball.api.routes.meters import metrics_document, series_document
from timeball.dashboard import charts
from timeball.dashboard.inner_api import ApiProblem
from timeball.dashboard.pages.executions import named
from timeball.dashboard.routing import Pages
from timeball.dashboard.targets import page_of
from timeball.dashboard.visit import Visit
from timeball.dashboard.wording import counted, moment, seconds
from timeball.domain.execution import ExecutionState
from timeball.domain.ids import show_execution
from timeball.domain.search import ExecutionFilter, PageRequest

pages = Pages()

_MOST_DROPS = 18
_MOST_NEXT = 6
# From here on a start was late enough to look at.
_LATE_SECONDS = 1.0
# The minutes of a row, where the charts are shown as a table.
_TABLE_STEP = 5
DEMO_JOB: dict[str, Any] = {
    "name": "demo",
    "description": "Says hello every ten seconds. Pause or delete it whenever you like.",
    "handler": "test.log",
    "payload": {"message": "hello from Timeball"},
    "interval_seconds": 10,
    "tags": ["demo"],
}


@pages.get("/")
async def live(visit: Visit) -> Response:
    """The numbers of now; the first steps, as long as there is no job."""
    part = visit.query("part")
    if visit.is_partial and part in _PARTS:
        return visit.page(f"partials/live_{part}.html", **await _PARTS[part](visit))
    if not await visit.site.insights.has_jobs():
        return await _welcome(visit)
    if visit.is_partial:
        # The first job has come: the checklist becomes this page.
        return Response(status_code=204, headers={"HX-Refresh": "true"})
    return visit.page("home.html", drops=await _drops(visit), **await _whole(visit))


@pages.post("/welcome/demo", Role.EDITOR)
async def demo(visit: Visit) -> Response:
    """Make a job that runs at once, and then every ten seconds."""
    try:
        job = await visit.api.post("jobs", body=DEMO_JOB)
    except ApiProblem as problem:
        if problem.status != 409:
            raise
        job = await visit.api.get("jobs", DEMO_JOB["name"])
    await visit.api.post("jobs", job["id"], "trigger", body={})
    return visit.go(visit.site_url("/"), "The demo job runs, now and every ten seconds.")


async def _welcome(visit: Visit) -> Response:
    workers = (await visit.api.get("workers"))["data"]
    schedulers = (await visit.api.get("schedulers"))["data"]
    address = str(visit.request.base_url).rstrip("/")
    return visit.page(
        "welcome.html", part="partials/welcome.html", workers=workers, schedulers=schedulers, address=address
    )


async def _whole(visit: Visit) -> dict[str, Any]:
    """All parts at once: this moment and the last hour are read once for all of them."""
    overview = await visit.site.insights.meters.overview()
    metrics = metrics_document(overview)
    late = metrics["last_hour"]["lateness_seconds"]
    charted = _charted(series_document(overview.hour))
    return {"late": late, **charted, **await _concerns(visit), "metrics": metrics, **await _next(visit)}


async def _now(visit: Visit) -> dict[str, Any]:
    return {"metrics": await visit.api.get("metrics"), **await _concerns(visit)}


async def _concerns(visit: Visit) -> dict[str, Any]:
    return {"concerns": (await visit.api.get("attention"))["data"], "page_of": page_of}


async def _charts(visit: Visit) -> dict[str, Any]:
    late = (await visit.api.get("metrics"))["last_hour"]["lateness_seconds"]
    return {"late": late, **_charted(await visit.api.get("metrics", "executions", hours=1))}


async def _next(visit: Visit) -> dict[str, Any]:
    return {"coming": await _coming(visit)}


_PARTS = {"now": _now, "charts": _charts, "next": _next}


async def _coming(visit: Visit) -> list[dict[str, Any]]:
    """What is due next."""
    found = await visit.site.insights.next_due(_MOST_NEXT)
    return [
        {"id": show_execution(row["id"]), "label": row["name"] or row["handler"], "at": row["run_at"]} for row in found
    ]


async def _drops(visit: Visit) -> list[dict[str, Any]]:
    """The latest starts, as the ticker shows them before it hears of more."""
    states = (ExecutionState.RUNNING, ExecutionState.SUCCEEDED, ExecutionState.DEAD)
    page = await visit.site.insights.executions(ExecutionFilter(states=states), PageRequest(limit=_MOST_DROPS * 2))
    runs = [run for run in await named(visit, page.items) if run["started_at"]]
    return [_drop(run) for run in sorted(runs, key=lambda run: run["started_at"], reverse=True)[:_MOST_DROPS]]


def _drop(run: Mapping[str, Any]) -> dict[str, Any]:
    started, due = moment(run["started_at"]), moment(run["scheduled_for"])
    assert started is not None
    assert due is not None
    late = (started - due).total_seconds() * 1_000 if run["attempts"] <= 1 else None
    label = run["job_name"] or run["handler"]
    return {"id": run["id"], "at": started, "label": label, "lateness_ms": late}


def _charted(found: Mapping[str, Any]) -> dict[str, Any]:
    """Lateness and throughput of the last hour, minute by minute."""
    points = found["points"]
    late = [point["lateness_seconds"]["p99"] or 0.0 for point in points]
    done = [point["succeeded"] for point in points]
    failed = [point["failed"] + point["timed_out"] + point["lost"] for point in points]
    clocks = [f"{moment(point['at']):%H:%M} UTC" for point in points]
    return {
        "table": [_row(points, late, done, failed, first) for first in range(0, len(points), _TABLE_STEP)],
        "late_chart": charts.bars(
            [_height(value) for value in late],
            f"Started late by, minute by minute: at most {seconds(max(late, default=0))} in the last hour",
            tones=["tone-warn" if value > _LATE_SECONDS else "tone-live" for value in late],
            titles=[f"{at}: {seconds(value)}" for at, value in zip(clocks, late, strict=True)],
            height=40,
        ),
        "flow_chart": charts.stacked_bars(
            [("tone-good", done), ("tone-bad", failed)],
            f"{counted(sum(done), 'execution')} done and {counted(sum(failed), 'try', 'tries')} failed in the last hour",
        ),
    }


def _row(points: Sequence[Any], late: Sequence[float], done: Sequence[int], failed: Sequence[int], first: int) -> Any:
    """Some minutes as one row of the table."""
    some = slice(first, first + _TABLE_STEP)
    return points[first]["at"], max(late[some]), sum(done[some]), sum(failed[some])


def _height(late: float) -> float:
    """Milliseconds and minutes in one chart: each step of ten is as high as any other."""
    return log10(1 + late * 1_000)
