"""What a route is given: the parts of the process that it calls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Protocol
from uuid import UUID

from fastapi import Depends, Request

from timeball.api.auth import KeyLookup
from timeball.api.limits import HeavyRequestLimiter
from timeball.api.middleware import IdempotencyRecords
from timeball.config.settings import Settings
from timeball.domain.values.ids import ExecutionId
from timeball.env import Env
from timeball.telemetry.events import Emit
from timeball.telemetry.metrics import MetricsSource

if TYPE_CHECKING:
    from timeball.application.commands import Commands
    from timeball.application.events import EventHub
    from timeball.application.queries import Queries


class DeadLetterStore(Protocol):
    """Marks dead executions as settled."""

    async def settle(self, ids: Sequence[ExecutionId], how: str, audit: Any) -> set[ExecutionId]: ...


class CatalogueItem(Protocol):
    """A handler in the catalogue."""

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
    """The handlers that can be scheduled."""

    def entries(self) -> Sequence[CatalogueItem]: ...

    def check(self, schema: Mapping[str, Any], name: str, payload: str) -> None: ...


class ApiParts(Protocol):
    """The parts of a process that the API is built from."""

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
    """What a route calls."""

    commands: Commands
    queries: Queries
    live: EventHub
    process: MetricsSource
    dead_letters: DeadLetterStore
    catalogue: CatalogueReader
    # The holder of the operations that this process carries out.
    holder: UUID
    # A stream of events ends after this time, and its reader connects again.
    longest_stream: timedelta
    heavy_requests: HeavyRequestLimiter


async def _context(request: Request) -> ApiContext:
    context: ApiContext = request.app.state.context
    return context


Context = Annotated[ApiContext, Depends(_context)]


async def limit_heavy_request(request: Request) -> AsyncIterator[None]:
    """A dependency of expensive routes: one request of a caller at a time."""
    context: ApiContext = request.app.state.context
    caller = request.state.caller
    async with context.heavy_requests.of("" if caller is None else caller.name):
        yield
