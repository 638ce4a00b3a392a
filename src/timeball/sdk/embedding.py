"""Timeball inside another web application: nodes in its lifespan, API and dashboard under one of its paths."""

from __future__ import annotations

import asyncio
import inspect
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

from timeball.config.environment import explain_missing_extra
from timeball.errors import InvalidInput
from timeball.handlers.hooks import NO_PROCESS_HOOKS
from timeball.telemetry.events import ServiceFailed

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from timeball.config.settings import Settings
    from timeball.engine.supervisor import Supervisor
    from timeball.env import Env
    from timeball.handlers.registry import Registry
    from timeball.runtime import Runtime
    from timeball.telemetry.events import Emit

_PAUSE = timedelta(seconds=1)

# A role (viewer, operator, editor, admin), or the name of a caller and its role; None: the application does not know the caller.
HostIdentity: TypeAlias = "str | tuple[str, str] | None"
# Called with the headers of a request; returns its caller.
HostAuth = Callable[[Mapping[str, str]], "HostIdentity | Awaitable[HostIdentity]"]


class MountedDashboard:
    """API and dashboard as an ASGI application; the database is opened by the first request, or by the lifespan."""

    def __init__(
        self, settings: Callable[[], Settings], auth: HostAuth | None, env: Callable[[], Env | None] = lambda: None
    ) -> None:
        self._settings = settings
        self._auth = auth
        self._env = env
        self._stack = AsyncExitStack()
        self._front: ASGIApp | None = None
        self._opening = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise InvalidInput(
                f"a {scope['type']} connection cannot be answered here", hint="the API is served over HTTP"
            )
        front = self._front or await self.open()
        await front(scope, receive, send)

    async def open(self) -> ASGIApp:
        """Open the database, unless it is open."""
        with explain_missing_extra():
            from timeball.dashboard.app import make_web_app
            from timeball.runtime import make_server_runtime, open_runtime
            from timeball.telemetry.emitter import make_emit

        async with self._opening:
            if self._front is None:
                settings = self._settings()
                parts = await self._stack.enter_async_context(open_runtime(settings, self._env()))
                front = make_server_runtime(settings, parts.store, parts.commands, emit=make_emit(settings))
                self._front = make_web_app(front, make_host_authenticator(front.keys, self._auth))
        return self._front

    async def close(self) -> None:
        """Close the connections; the next request opens them again."""
        self._front = None
        await self._stack.aclose()


def make_host_authenticator(keys: Any, auth: HostAuth | None) -> Any:
    """An authenticator that asks the host application first, and then for an API key; no request passes without either."""
    from starlette.datastructures import Headers

    from timeball.api.auth import Caller, KeyAuthenticator, Role
    from timeball.domain.values.text import check_label

    class HostAuthenticator(KeyAuthenticator):
        """Takes the caller from the host application."""

        async def identify(self, scope: Scope) -> Caller | None:
            identity = None if auth is None else auth(Headers(scope=scope))
            if inspect.isawaitable(identity):
                identity = await identity
            if identity is None:
                return await super().identify(scope)
            if isinstance(identity, str):
                return Caller("host", Role(identity))
            name, role = identity
            return Caller(f"host:{check_label(name, 'the name that auth returned')}", Role(role))

    return HostAuthenticator(keys, "a host application")


@asynccontextmanager
async def run_nodes(
    settings: Settings,
    registry: Registry,
    declare: Callable[[Runtime], Awaitable[object]],
    *,
    worker: bool,
    scheduler: bool,
) -> AsyncIterator[None]:
    """A worker, a scheduler or both in this event loop, for as long as the application runs."""
    with explain_missing_extra():
        from timeball.runtime import make_supervisor, open_runtime
        from timeball.telemetry.emitter import make_emit

    hooks = registry.process_hooks if worker else NO_PROCESS_HOOKS
    async with open_runtime(settings) as parts, hooks.around_worker():
        if worker:
            await declare(parts)
        emit = make_emit(settings)

        def make() -> Supervisor:
            return make_supervisor(parts, emit, registry=registry, with_worker=worker, with_scheduler=scheduler)

        nodes = _EmbeddedNodes(make, emit)
        nodes.begin()
        try:
            yield
        finally:
            await nodes.stop()


class _EmbeddedNodes:
    """Nodes in an event loop that belongs to another program; if they fail or are cancelled, they are started again."""

    def __init__(self, make: Callable[[], Supervisor], emit: Emit) -> None:
        self._make = make
        self._emit = emit
        self._is_stopping = False
        self._failures = 0
        self._supervisor: Supervisor | None = None
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        if not self._is_stopping:
            self._supervisor = self._make()
            self._task = asyncio.create_task(self._supervisor.run())
            self._task.add_done_callback(self._on_ended)

    def _on_ended(self, task: asyncio.Task[None]) -> None:
        error = asyncio.CancelledError("the task was cancelled") if task.cancelled() else task.exception()
        if error is None or self._is_stopping:
            return
        self._failures += 1
        message = f"{type(error).__name__}: {error}"
        trace = "".join(traceback.format_exception(error))
        self._emit(ServiceFailed("nodes", message, _PAUSE, trace, self._failures))
        asyncio.get_running_loop().call_later(_PAUSE.total_seconds(), self.begin)

    async def stop(self) -> None:
        self._is_stopping = True
        if self._supervisor is not None and self._task is not None:
            self._supervisor.stop()
            await asyncio.wait([self._task])
