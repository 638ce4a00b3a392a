"""Lists as files, and the stream of changes: the API answers them itself."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from timeball.dashboard.routing import Pages
from timeball.dashboard.visit import Visit

pages = Pages()


class _Passed(Response):
    """Whatever the API answers to the same request."""

    def __init__(self, visit: Visit, *path: str) -> None:
        super().__init__()
        self._visit = visit
        self._path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._visit.api.forward(scope, Request(scope, receive).receive, send, *self._path)


@pages.get("/calendar.ics")
async def calendar(visit: Visit) -> Response:
    """What is to run, for calendar programs."""
    return _Passed(visit, "calendar.ics")


@pages.get("/jobs/{job}/calendar.ics")
async def calendar_of_job(visit: Visit) -> Response:
    """When one job is to run."""
    return _Passed(visit, "jobs", visit.path["job"], "calendar.ics")


@pages.get("/jobs/export")
async def jobs(visit: Visit) -> Response:
    """The jobs that match, as CSV."""
    return _Passed(visit, "jobs", "export")


@pages.get("/executions/export")
async def executions(visit: Visit) -> Response:
    """The executions that match, as CSV."""
    return _Passed(visit, "executions", "export")
