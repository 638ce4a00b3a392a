"""What every route has at hand: the commands and the insights of this process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Protocol
from uuid import UUID

from fastapi import Depends, Request

from timeball.api.auth import KeyRing
from timeball.api.idempotency import Memory
from timeball.api.limits import Turns
from timeball.commands import Commands
from timeball.domain.events import Emit
from timeball.domain.ids import ExecutionId
from timeball.env import Env
from timeball.insights import Insights
from timeball.live import Live
from timeball.settings import Settings
from timeball.telemetry.metrics import Counts


class DeadLetters(Protocol):
    """Where dead executions are marked as dealt with."""

    async def settle(self, ids: Sequence[ExecutionId], how: str, audit: Any) -> set[ExecutionId]: ...


class HandlerEntry(Protocol):
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


class Catalogue(Protocol):
    """What can be scheduled."""

    def entries(self) -> Sequence[HandlerEntry]: ...

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
    def insights(self) -> Insights: ...
    @property
    def live(self) -> Live: ...
    @property
    def process(self) -> Counts: ...
    @property
    def emit(self) -> Emit: ...
    @property
    def keys(self) -> KeyRing: ...
    @property
    def requests(self) -> Memory: ...
    @property
    def dead_letters(self) -> DeadLetters: ...
    @property
    def catalogue(self) -> Catalogue: ...


@dataclass(frozen=True, slots=True)
class Desk:
    """Where a route finds what it calls."""

    commands: Commands
    insights: Insights
    live: Live
    process: Counts
    dead_letters: DeadLetters
    catalogue: Catalogue
    # Under which name this process works off operations.
    holder: UUID
    # After so long a stream of events ends, and its reader connects anew.
    longest_stream: timedelta
    turns: Turns


async def _desk(request: Request) -> Desk:
    desk: Desk = request.app.state.desk
    return desk


TheDesk = Annotated[Desk, Depends(_desk)]


async def take_turn(request: Request) -> AsyncIterator[None]:
    """A dependency of routes that are much work: one request of a caller at a time."""
    desk: Desk = request.app.state.desk
    caller = request.state.caller
    async with desk.turns.of("" if caller is None else caller.name):
        yield
