"""The API as an ASGI application."""

from __future__ import annotations

from functools import cache
from typing import Any

from fastapi import APIRouter, FastAPI
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute

from timeball.api.auth import Authenticator, KeyAuthenticator, RouteRequirements
from timeball.api.errors import install_error_handlers
from timeball.api.limits import FailedKeyLimiter, HeavyRequestLimiter, RateLimiter
from timeball.api.middleware import PREFIX, ApiMiddleware
from timeball.api.openapi import API_VERSION, CONTENT_POLICY, openapi_document, render_docs, served_below
from timeball.api.params import ApiContext, ApiParts
from timeball.api.resources import (
    alerts,
    bulk_jobs,
    calendars,
    channels,
    cluster,
    drop_in,
    events,
    executions,
    feed,
    forecast,
    freezes,
    groups,
    handlers,
    jobs,
    ledger,
    metrics,
    operations,
    prometheus,
    system,
    templates,
    webhooks,
)
from timeball.api.responses import json_response

_COMPRESS_FROM = 1_000


# `bulk` and `sync` come before the rest: a job may have such a name. `system` comes last: finding its routes builds all others.
_ROUTERS = (
    bulk_jobs.router,
    bulk_jobs.sync_router,
    jobs.router,
    ledger.router,
    executions.router,
    system.explain_router,
    executions.dead_letter_router,
    groups.router,
    templates.router,
    calendars.router,
    operations.router,
    cluster.router,
    freezes.router,
    alerts.router,
    channels.router,
    channels.routes_router,
    handlers.router,
    events.router,
    webhooks.router,
    metrics.router,
    system.doctor_router,
    system.revisions_router,
    forecast.router,
    feed.router,
    forecast.suggestions_router,
    system.router,
)


class _Api(FastAPI):
    """FastAPI with our own OpenAPI document."""

    def openapi(self) -> dict[str, Any]:
        """The description of all routes, built when it is first asked for."""
        if self.openapi_schema is None:
            self.openapi_schema = openapi_document(self.routes)
        return self.openapi_schema


def make_key_limiter(parts: ApiParts) -> FailedKeyLimiter:
    """The limits that API and dashboard of one process share: requests by caller, and tries without a valid key."""
    monotonic = parts.env.clock.monotonic
    return FailedKeyLimiter(RateLimiter(parts.settings.api, monotonic), parts.keys, parts.emit, monotonic)


def make_api(
    parts: ApiParts, authenticator: Authenticator | None = None, key_limiter: FailedKeyLimiter | None = None
) -> FastAPI:
    """The whole API over the parts of an open process; callers are identified by key, unless another way is given."""
    routes = list(all_routes())
    app = _Api(title="Timeball", version=API_VERSION, routes=routes, openapi_url=None, docs_url=None, redoc_url=None)
    app.state.context = ApiContext(
        commands=parts.commands,
        queries=parts.queries,
        live=parts.live,
        process=parts.process,
        dead_letters=parts.dead_letters,
        catalogue=parts.catalogue,
        holder=parts.env.new_id(),
        longest_stream=parts.settings.api.longest_stream,
        zone=parts.settings.api.timezone,
        heavy_requests=HeavyRequestLimiter(),
    )
    install_error_handlers(app)
    _add_pages(app)
    settings = parts.settings.api
    app.add_middleware(
        ApiMiddleware,
        authenticator=authenticator or KeyAuthenticator(parts.keys, parts.settings.host),
        records=parts.requests,
        key_limiter=key_limiter or make_key_limiter(parts),
        settings=settings,
        new_id=parts.env.new_id,
        requirements=RouteRequirements(routes),
    )
    app.add_middleware(GZipMiddleware, minimum_size=_COMPRESS_FROM, compresslevel=4)
    return app


@cache
def all_routes() -> tuple[BaseRoute, ...]:
    """Every route, built once per process: they do not depend on an application, and reading their signatures takes long."""
    whole = APIRouter()
    whole.include_router(prometheus.router)
    for router in _ROUTERS:
        whole.include_router(router, prefix=PREFIX)
    whole.include_router(drop_in.router)
    return tuple(whole.routes)


def _add_pages(app: FastAPI) -> None:
    """The OpenAPI document and the page for people; neither needs a key, nor a file from another site."""

    async def openapi(request: Request) -> Response:
        return json_response(served_below(app.openapi(), request.scope.get("root_path", "")))

    async def docs(_request: Request) -> Response:
        return HTMLResponse(render_docs(app.openapi()), headers={"Content-Security-Policy": CONTENT_POLICY})

    app.add_route("/openapi.json", openapi, include_in_schema=False)
    app.add_route("/docs", docs, include_in_schema=False)
