"""The API as an ASGI application."""

from __future__ import annotations

from functools import cache
from typing import Any

from fastapi import APIRouter, FastAPI
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute

from timeball.api.auth import Doorkeeper, Gate
from timeball.api.described import RouteNeeds
from timeball.api.desk import ApiParts, Desk
from timeball.api.docs_page import CONTENT_POLICY, render_docs
from timeball.api.door import FrontDoor
from timeball.api.limits import KeyTries, Limits, Turns
from timeball.api.openapi import API_VERSION, openapi_document, served_below
from timeball.api.problems import install_problems
from timeball.api.routes import (
    bulk_jobs,
    calendars,
    dead_letter,
    doctor,
    events,
    executions,
    explain,
    handlers,
    jobs,
    machinery,
    meters,
    operations,
    revisions,
    suggestions,
    sync,
    system,
    templates,
    time,
)
from timeball.api.views import answer

PREFIX = "/api/v1"
_COMPRESS_FROM = 1_000
# `bulk` and `sync` before the rest: a job could be called so. `system` last: looking for its routes builds all others.
_ROUTERS = (
    bulk_jobs.router,
    sync.router,
    jobs.router,
    executions.router,
    explain.router,
    dead_letter.router,
    templates.router,
    operations.router,
    machinery.router,
    handlers.router,
    events.router,
    meters.router,
    doctor.router,
    revisions.router,
    time.router,
    calendars.router,
    suggestions.router,
    system.router,
)


class _Api(FastAPI):
    """An application that describes itself in full."""

    def openapi(self) -> dict[str, Any]:
        """The description of all routes, made when it is first asked for."""
        if self.openapi_schema is None:
            self.openapi_schema = openapi_document(self.routes)
        return self.openapi_schema


def make_tries(parts: ApiParts) -> KeyTries:
    """What API and dashboard of one process count together: requests by caller, and tries without a valid key."""
    monotonic = parts.env.clock.monotonic
    return KeyTries(Limits(parts.settings.api, monotonic), parts.keys, parts.emit, monotonic)


def make_api(parts: ApiParts, gate: Doorkeeper | None = None, tries: KeyTries | None = None) -> FastAPI:
    """The whole API over the parts of an open process; keys open its gate, unless another one is given."""
    routes = list(all_routes())
    app = _Api(title="Timeball", version=API_VERSION, routes=routes, openapi_url=None, docs_url=None, redoc_url=None)
    app.state.desk = Desk(
        commands=parts.commands,
        insights=parts.insights,
        live=parts.live,
        process=parts.process,
        dead_letters=parts.dead_letters,
        catalogue=parts.catalogue,
        holder=parts.env.new_id(),
        longest_stream=parts.settings.api.longest_stream,
        turns=Turns(),
    )
    install_problems(app)
    _add_pages(app)
    keeper = gate or Gate(parts.keys, parts.settings.host)
    settings = parts.settings.api
    app.add_middleware(
        FrontDoor,
        gate=keeper,
        memory=parts.requests,
        tries=tries or make_tries(parts),
        settings=settings,
        new_id=parts.env.new_id,
        needs=RouteNeeds(routes),
    )
    app.add_middleware(GZipMiddleware, minimum_size=_COMPRESS_FROM, compresslevel=4)
    return app


@cache
def all_routes() -> tuple[BaseRoute, ...]:
    """Every route, built once a process: they know nothing of an application, and reading their signatures takes long."""
    whole = APIRouter()
    whole.include_router(meters.plain_router)
    for router in _ROUTERS:
        whole.include_router(router, prefix=PREFIX)
    return tuple(whole.routes)


def _add_pages(app: FastAPI) -> None:
    """The description for programs and the one for people; both need no key, and no file from outside."""

    async def openapi(request: Request) -> Response:
        return answer(served_below(app.openapi(), request.scope.get("root_path", "")))

    async def docs(_request: Request) -> Response:
        return HTMLResponse(render_docs(app.openapi()), headers={"Content-Security-Policy": CONTENT_POLICY})

    app.add_route("/openapi.json", openapi, include_in_schema=False)
    app.add_route("/docs", docs, include_in_schema=False)
