"""What every route shares: the context it is given, the role it requires, its cost, and its description with examples."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, Protocol
from uuid import UUID

from fastapi import Depends, Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute, iter_route_contexts
from starlette.routing import BaseRoute

from timeball.api.auth import KeyLookup, Role, require_role
from timeball.api.errors import PROBLEM_MEDIA_TYPE, HttpProblem
from timeball.api.limits import HeavyRequestLimiter
from timeball.api.models import ProblemOut
from timeball.config.settings import Settings
from timeball.domain.values.ids import ExecutionId, IdempotentRequest
from timeball.env import Env
from timeball.errors import quote_text
from timeball.telemetry.events import Emit
from timeball.telemetry.metrics import MetricsSource

if TYPE_CHECKING:
    from timeball.application.commands import Commands
    from timeball.application.events import EventHub
    from timeball.application.queries import Queries


class RecordedResponse(Protocol):
    """What is remembered of a request."""

    @property
    def request_hash(self) -> bytes: ...
    @property
    def status(self) -> int | None: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def body(self) -> bytes: ...


class IdempotencyRecords(Protocol):
    """Where requests and their answers are remembered."""

    async def begin(self, caller: str, key: str, request_hash: bytes) -> RecordedResponse | IdempotentRequest: ...
    async def finish(self, caller: str, key: str, status: int, headers: Mapping[str, str], body: bytes) -> None: ...
    async def forget(self, caller: str, key: str) -> None: ...
    async def leave_open(self, caller: str, key: str) -> None: ...


# How routes describe themselves: their role, an example, and every way they can fail.

_ALWAYS = (400, 401, 403, 422, 429, 503)
_WITH_BODY = (413, 415)

JOB_ID, EXECUTION_ID = "job_01JCV3V1KC8M2T4QZ5R7N9X0AB", "exe_01JCV3V1KC8M2T4QZ5R7N9X0AB"
WORKER_ID = "wrk_01JCV3V1KC8M2T4QZ5R7N9X0AB"
INSTANT_EXAMPLE = "2026-11-16T06:00:00Z"


def route_options(
    role: Role | None,
    example: Any,
    *,
    status: int = 200,
    request: Any = None,
    has_body: bool = False,
    fails: Sequence[int] = (),
    media_type: str = "application/json",
    is_heavy: bool = False,
) -> dict[str, Any]:
    """The arguments of a route that say who may use it, what it answers, how it can fail, and whether it is much work."""
    codes = sorted({*_ALWAYS, *fails, *(_WITH_BODY if has_body else ())})
    responses: dict[int | str, Any] = {status: {} if status == 204 else {"content": {media_type: {"example": example}}}}
    responses |= {code: _problem_response(code) for code in codes}
    extra: dict[str, Any] = {"x-role": "none" if role is None else role.value}
    if role is None:
        extra["security"] = []
    if request is not None:
        extra["requestBody"] = {"content": {"application/json": {"example": request}}}
    return {
        "status_code": status,
        "responses": responses,
        "dependencies": [
            *([] if role is None else [Depends(require_role(role))]),
            Depends(refuse_unknown_parameters),
            *([Depends(limit_heavy_request)] if is_heavy else []),
        ],
        "openapi_extra": extra,
    }


def probe_options(get: dict[str, Any]) -> dict[str, Any]:
    """The arguments of the HEAD route beside a GET route: the same role, and no description of its own."""
    return {"include_in_schema": False, "dependencies": get["dependencies"], "openapi_extra": get["openapi_extra"]}


def export_options(example: str) -> dict[str, Any]:
    """The arguments of a route that answers with a file."""
    made = route_options(Role.VIEWER, example, media_type="text/csv")
    made["responses"][200]["content"]["application/jsonl"] = {"example": '{"id":"..."}\n'}
    made["responses"][200]["content"]["application/json"] = {"example": [{"id": "..."}]}
    return made


@dataclass(frozen=True, slots=True)
class RouteRequirement:
    """What a route asks of its caller; a role of None means that the route is for everybody."""

    role: Role | None


class RouteRequirements:
    """Finds what the route of a request asks of its caller, without reading the body."""

    def __init__(self, routes: Sequence[BaseRoute]) -> None:
        self._routes = routes
        self._table: list[tuple[re.Pattern[str], frozenset[str], RouteRequirement]] | None = None

    def find(self, method: str, path: str) -> RouteRequirement | None:
        """What the route asks; None if no route answers this method at this path."""
        # Made by the first request: reading the signatures of all routes takes long.
        if self._table is None:
            self._table = [_entry(route) for route in iter_route_contexts(self._routes)]
        return next((need for regex, methods, need in self._table if method in methods and regex.match(path)), None)

    def methods_at(self, path: str) -> list[str]:
        """Every method that some route answers at this path."""
        self.find("", path)
        return sorted({method for regex, methods, _ in self._table or () if regex.match(path) for method in methods})


def _entry(route: Any) -> tuple[re.Pattern[str], frozenset[str], RouteRequirement]:
    role = route.openapi_extra["x-role"]
    return route.path_regex, frozenset(route.methods), RouteRequirement(None if role == "none" else Role(role))


def _problem_response(code: int) -> dict[str, Any]:
    return {
        "description": HTTPStatus(code).phrase,
        "model": ProblemOut,
        "content": {PROBLEM_MEDIA_TYPE: {"example": _problem_example(code)}},
    }


def _problem_example(code: int) -> dict[str, Any]:
    phrase = HTTPStatus(code).phrase
    name = phrase.lower().replace(" ", "_")
    return {
        "type": f"urn:timeball:problem:{name}",
        "title": phrase,
        "status": code,
        "detail": "what was found, and what was expected",
        "instance": "/api/v1/jobs",
        "code": name,
        "errors": [],
        "hint": "what to do",
        "request_id": "req_01JCV3V1KC8M2T4QZ5R7N9X0AB",
    }


def page_example(item: Any) -> dict[str, Any]:
    """An example of a list."""
    return {"data": [item], "next_cursor": None, "has_more": False}


JOB_EXAMPLE: dict[str, Any] = {
    "id": JOB_ID,
    "name": "daily-report",
    "description": "Generate daily sales report",
    "handler": "http.webhook",
    "payload": {"url": "https://api.example.com/reports/generate", "method": "POST"},
    "kind": "cron",
    "schedule": "0 6 * * *",
    "interval_seconds": None,
    "scheduled_at": None,
    "timezone": "UTC",
    "on_gap": "next_valid",
    "on_repeat": "first",
    "starts_at": None,
    "ends_at": None,
    "max_executions": None,
    "jitter_seconds": 0,
    "misfire": "latest",
    "misfire_grace_seconds": 30,
    "misfire_cap": 100,
    "misfire_max_age_seconds": None,
    "overlap": "skip",
    "queue": "default",
    "priority": 75,
    "max_retries": 3,
    "max_lost": 3,
    "initial_backoff_ms": 1000,
    "max_backoff_ms": 3600000,
    "timeout_ms": 60000,
    "delivery": "at_least_once",
    "max_running": None,
    "limit_key": None,
    "unique_key": None,
    "tags": [],
    "status": "active",
    "next_run_at": INSTANT_EXAMPLE,
    "last_execution": None,
    "paused_at": None,
    "paused_until": None,
    "pause_reason": None,
    "version": 1,
    "declared_by": None,
    "created_by": "key:key_01JD2XW0Z7Q9V5T3M8R6N4K2H1 deploy",
    "created_at": "2026-11-15T09:30:00Z",
    "updated_at": "2026-11-15T09:30:00Z",
}
NEW_JOB_EXAMPLE: dict[str, Any] = {
    "name": "daily-report",
    "description": "Generate daily sales report",
    "handler": "http.webhook",
    "payload": {"url": "https://api.example.com/reports/generate", "method": "POST"},
    "schedule": "0 6 * * *",
    "priority": 75,
    "max_retries": 3,
    "timeout_ms": 60000,
}
EXECUTION_EXAMPLE: dict[str, Any] = {
    "id": EXECUTION_ID,
    "job_id": JOB_ID,
    "state": "succeeded",
    "origin": "schedule",
    "job_version": 1,
    "handler": "http.webhook",
    "queue": "default",
    "priority": 75,
    "scheduled_for": INSTANT_EXAMPLE,
    "run_at": None,
    "queued_at": "2026-11-16T05:59:59.512000Z",
    "started_at": "2026-11-16T06:00:00.001000Z",
    "finished_at": "2026-11-16T06:00:00.842000Z",
    "lateness_ms": 1.0,
    "duration_ms": 841.0,
    "attempts": 1,
    "lost": 0,
    "worker": WORKER_ID,
    "error_type": None,
    "error": None,
    "reason": None,
    "retry_of": None,
    "created_by": None,
}
BULK_EXAMPLE = {
    "done": 1,
    "failed": 0,
    "has_more": False,
    "results": [{"id": EXECUTION_ID, "status": "done", "execution_id": EXECUTION_ID, "error": None}],
}


# A parameter nobody knows is refused: a misspelt filter that is ignored would list everything.


async def refuse_unknown_parameters(request: Request) -> None:
    """Refuse parameters in the query that the route does not have."""
    route = request.scope.get("route")
    if not request.query_params or not isinstance(route, APIRoute):
        return
    known = _parameter_names(route.dependant)
    unknown = sorted(set(request.query_params) - known)
    if unknown:
        listed = ", ".join(sorted(known)) or "none"
        raise HttpProblem(
            422,
            "unknown_parameter",
            f"unknown parameter {quote_text(unknown[0])!r}; known are: {listed}",
            hint="check its spelling",
        )


def _parameter_names(dependant: Dependant) -> set[str]:
    own = {parameter.alias for parameter in dependant.query_params}
    return own.union(*(_parameter_names(inner) for inner in dependant.dependencies))


# What every route has at hand: the commands and the insights of this process.


class DeadLetterStore(Protocol):
    """Where dead executions are marked as dealt with."""

    async def settle(self, ids: Sequence[ExecutionId], how: str, audit: Any) -> set[ExecutionId]: ...


class CatalogueItem(Protocol):
    """A handler as the catalogue shows it."""

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def run_style(self) -> str: ...
    @property
    def payload_schema(self) -> dict[str, Any]: ...
    @property
    def example(self) -> Any: ...
    @property
    def is_enabled_here(self) -> bool: ...


class CatalogueReader(Protocol):
    """What can be scheduled."""

    def entries(self) -> Sequence[CatalogueItem]: ...

    def check(self, schema: Mapping[str, Any], name: str, payload: str) -> None: ...


class ApiParts(Protocol):
    """What the API is made of."""

    @property
    def settings(self) -> Settings: ...
    @property
    def env(self) -> Env: ...
    @property
    def commands(self) -> Commands: ...
    @property
    def queries(self) -> Queries: ...
    @property
    def live(self) -> EventHub: ...
    @property
    def process(self) -> MetricsSource: ...
    @property
    def emit(self) -> Emit: ...
    @property
    def keys(self) -> KeyLookup: ...
    @property
    def requests(self) -> IdempotencyRecords: ...
    @property
    def dead_letters(self) -> DeadLetterStore: ...
    @property
    def catalogue(self) -> CatalogueReader: ...


@dataclass(frozen=True, slots=True)
class ApiContext:
    """Where a route finds what it calls."""

    commands: Commands
    queries: Queries
    live: EventHub
    process: MetricsSource
    dead_letters: DeadLetterStore
    catalogue: CatalogueReader
    # Under which name this process works off operations.
    holder: UUID
    # After so long a stream of events ends, and its reader connects anew.
    longest_stream: timedelta
    turns: HeavyRequestLimiter


async def _context(request: Request) -> ApiContext:
    context: ApiContext = request.app.state.context
    return context


Context = Annotated[ApiContext, Depends(_context)]


async def limit_heavy_request(request: Request) -> AsyncIterator[None]:
    """A dependency of routes that are much work: one request of a caller at a time."""
    context: ApiContext = request.app.state.context
    caller = request.state.caller
    async with context.turns.of("" if caller is None else caller.name):
        yield


CREATED_EXAMPLE = JOB_EXAMPLE | {"execution_id": EXECUTION_ID, "warnings": []}
