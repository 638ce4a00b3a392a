"""`Timeball`: the face for Python users.

    tb = Timeball()                       # TIMEBALL_DATABASE_URL, or the embedded PostgreSQL

    @tb.handler(queue="mail", retries=5, timeout="30s")
    def send_receipt(order_id: int, to: str) -> str: ...

    @tb.cron("0 9 * * mon-fri", timezone="Europe/Berlin")
    async def morning_report() -> None: ...

    run = send_receipt.enqueue(42, to="a@b.co")

Declaring only takes note: nothing is read, opened or started before the first use, so a module with handlers can be
imported anywhere. Schedules are declarations by name: however many processes declare one, there is one job.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar, Unpack, cast, overload

from timeball.domain.job_fields import JobSpec
from timeball.domain.values.ids import ExecutionId, JobId, parse_id
from timeball.domain.values.json_text import encode_object, to_json
from timeball.domain.values.wording import Duration, parse_duration
from timeball.errors import InvalidInput, TimeballError
from timeball.handlers.registry import Registry, default_name, make_handler
from timeball.sdk.enqueue import EnqueueClient, SdkRuntime
from timeball.sdk.handlers import (
    AsyncHandlerHandle,
    Enqueueable,
    EnqueueTarget,
    HandlerDecorator,
    HandlerHandle,
    SyncHandlerHandle,
    make_handle,
)
from timeball.sdk.options import EnqueueOptions, HandlerDeclaration, ScheduleOptions, check_options, handler_options
from timeball.sdk.runs import Run
from timeball.sdk.schedules import DeclaredSchedules, check_handler

if TYPE_CHECKING:
    from timeball.application.commands import Commands
    from timeball.config.settings import Settings
    from timeball.domain.job import Job
    from timeball.env import Env
    from timeball.sdk.embedding import HostAuth, MountedDashboard

P = ParamSpec("P")
R = TypeVar("R")
Function = Callable[..., Any]


class Timeball:
    """Handlers and schedules of a program, and the way to the database they are kept in.

    Settings are read from the environment and from `timeball.toml` when first needed; what is given here goes before.
    Verbs have twins for coroutines, with an `a` before their names.
    """

    def __init__(
        self,
        database_url: str | None = None,
        *,
        data_dir: str | Path | None = None,
        settings: Settings | None = None,
    ) -> None:
        if settings is not None and (database_url is not None or data_dir is not None):
            raise InvalidInput(
                "settings are given beside database_url or data_dir, expected one or the other",
                hint="give them to load_settings: Timeball(settings=load_settings(database_url=...))",
            )
        _check_settings(settings)
        self._given = {"database_url": database_url, "data_dir": data_dir}
        self._known_settings = settings
        self._env: Env | None = None
        self._enqueue_client = EnqueueClient(lambda: self.settings, lambda: self._env)
        self._handles: dict[str, HandlerHandle[..., Any]] = {}
        self._registry = Registry()
        self._schedules = DeclaredSchedules()
        self._mounted: list[MountedDashboard] = []

    # what is declared

    @property
    def settings(self) -> Settings:
        """The settings of this program; read when first asked for."""
        if self._known_settings is None:
            from timeball.config.settings import load_settings

            self._known_settings = load_settings(**{k: v for k, v in self._given.items() if v is not None})
        return self._known_settings

    @property
    def registry(self) -> Registry:
        """The handlers declared so far."""
        return self._registry

    @property
    def schedules(self) -> Mapping[str, JobSpec]:
        """The schedules declared so far, by name, as the jobs they ask for."""
        return self._schedules.specs()

    def declarations(self) -> list[tuple[str, JobSpec]]:
        """The schedules declared so far, as the jobs they ask for, each with the module that declares it."""
        return self._schedules.by_origin()

    # A coroutine function is a function too: of the first two, the first that fits is meant.
    @overload
    def handler(  # type: ignore[overload-overlap]
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncHandlerHandle[P, R]: ...
    @overload
    def handler(self, function: Callable[P, R], /) -> SyncHandlerHandle[P, R]: ...
    @overload
    def handler(self, /, **options: Unpack[HandlerDeclaration]) -> HandlerDecorator: ...
    def handler(self, function: Function | None = None, /, **options: Any) -> Any:
        """Declare a handler: `@tb.handler`, or with options `@tb.handler(queue="mail", retries=5, timeout="30s")`."""
        check_options(options, HandlerDeclaration, "@tb.handler")
        declaration = cast(HandlerDeclaration, options)
        if function is not None:
            return self._declare(function, declaration)
        return lambda function: self._declare(function, declaration)

    def cron(self, expression: str, **options: Unpack[ScheduleOptions]) -> HandlerDecorator:
        """Declare a handler that runs at the times of a cron expression; also above `@tb.handler(...)`."""
        return self._scheduled({"schedule": expression}, options, "@tb.cron")

    def every(self, interval: Duration, **options: Unpack[ScheduleOptions]) -> HandlerDecorator:
        """Declare a handler that runs in a steady rhythm, such as `30s`; also above `@tb.handler(...)`."""
        seconds = parse_duration(interval, "interval").total_seconds()
        return self._scheduled({"interval_seconds": seconds}, options, "@tb.every")

    def _scheduled(self, rhythm: Mapping[str, Any], options: ScheduleOptions, where: str) -> HandlerDecorator:
        check_options(options, ScheduleOptions, where)

        def decorate(function: Function) -> Any:
            known = self._handle_of(function)
            handle = known or self._declare(function, {})
            try:
                self._schedules.add(handle, rhythm, options)
            except TimeballError:
                # Whoever corrects it in the same session is not to be told that it is declared twice.
                if known is None:
                    self._forget(handle)
                raise
            return handle

        return decorate

    def _forget(self, handle: HandlerHandle[..., Any]) -> None:
        self._registry = Registry([handler for handler in self._registry if handler.name != handle.name])
        del self._handles[handle.name]

    def _declare(self, function: Function, options: HandlerDeclaration) -> HandlerHandle[..., Any]:
        _check_function(function)
        known = self._handle_of(function)
        declared = make_handler(
            function if known is None else known.handler.function,
            name=options.get("name") or (None if known is None else known.name),
            isolate=options.get("isolate", False),
            options=handler_options(options),
        )
        check_handler(declared)
        if known is None:
            self._registry.add(declared)
            handle = self._handles[declared.name] = make_handle(self._enqueue_client, declared)
            return handle
        others = [handler for handler in self._registry if handler.name != known.name]
        self._registry = Registry([*others, declared])
        del self._handles[known.name]
        known.redeclare(declared)
        self._handles[declared.name] = known
        return known

    def _handle_of(self, function: object) -> HandlerHandle[..., Any] | None:
        """The handle itself, if it is one of ours already."""
        if not isinstance(function, HandlerHandle):
            return None
        if self._handles.get(function.name) is not function:
            raise InvalidInput(f"{function!r} belongs to another Timeball; declare its function here instead")
        return function

    # schedules become jobs

    def sync_schedules(self) -> list[str]:
        """Make the declared schedules jobs, or bring those of the same names up to date; returns the names."""
        return self._enqueue_client.background_loop.call(self._sync)

    async def async_sync_schedules(self) -> list[str]:
        """Like `sync_schedules`, for coroutines."""
        return await self._enqueue_client.background_loop.acall(self._sync)

    async def declare_with(self, commands: Commands) -> list[Job]:
        """The same through commands that are open already, in their event loop: for a starting worker.

        Returns the jobs that this program's modules declared once and declare no more: they go on running.
        """
        await self._schedules.declare(commands)
        modules = {default_name(handler.function).partition(":")[0] for handler in self.registry}
        return await commands.jobs.undeclared(sorted(modules), sorted(self._schedules.specs()))

    async def _sync(self, runtime: SdkRuntime) -> list[str]:
        await runtime.now()  # first occurrences are computed from it
        return await self._schedules.declare(runtime.commands)

    # by name

    @overload
    def enqueue(
        self, handler: HandlerHandle[..., R], payload: Any = None, **options: Unpack[EnqueueOptions]
    ) -> Run[R]: ...
    @overload
    def enqueue(self, handler: str, payload: Any = None, **options: Unpack[EnqueueOptions]) -> Run[Any]: ...
    def enqueue(
        self, handler: str | HandlerHandle[..., Any], payload: Any = None, **options: Unpack[EnqueueOptions]
    ) -> Run[Any]:
        """Enqueue a handler that need not be known here: `tb.enqueue("http.webhook", {"url": ...}, queue="web")`."""
        target, text = self._addressed(handler, payload)
        return target.options(**options).enqueue_payload(text)

    @overload
    async def aenqueue(
        self, handler: HandlerHandle[..., R], payload: Any = None, **options: Unpack[EnqueueOptions]
    ) -> Run[R]: ...
    @overload
    async def aenqueue(self, handler: str, payload: Any = None, **options: Unpack[EnqueueOptions]) -> Run[Any]: ...
    async def aenqueue(
        self, handler: str | HandlerHandle[..., Any], payload: Any = None, **options: Unpack[EnqueueOptions]
    ) -> Run[Any]:
        """Like `enqueue`, for coroutines."""
        target, text = self._addressed(handler, payload)
        return await target.options(**options).aenqueue_payload(text)

    def _addressed(self, handler: str | HandlerHandle[..., Any], payload: Any) -> tuple[Enqueueable[..., Any], str]:
        target = handler if isinstance(handler, HandlerHandle) else self._handles.get(handler)
        if target is not None:
            return target, target.call(**_arguments(target.name, payload)).payload
        given = {} if payload is None else payload
        text = encode_object(given) if isinstance(given, dict) else to_json(given)
        return Enqueueable(self._enqueue_client, EnqueueTarget.elsewhere(str(handler)), {}), text

    def get_run(self, execution_id: str) -> Run[Any]:
        """A hold on an execution by its id (`exe_...`), from another process for example; nothing is looked up yet."""
        id_ = ExecutionId(parse_id("exe", execution_id))
        return Run(self._enqueue_client.background_loop, id_, JobId(id_), is_new=False)

    def trigger(self, job: str, payload: Any = None) -> Run[Any]:
        """Run a job now, beside its schedule, by its name or id; with another payload, if one is given."""
        return self._triggered(*self._enqueue_client.background_loop.call(partial(_trigger, job, payload)))

    async def atrigger(self, job: str, payload: Any = None) -> Run[Any]:
        """Like `trigger`, for coroutines."""
        return self._triggered(*await self._enqueue_client.background_loop.acall(partial(_trigger, job, payload)))

    def _triggered(self, job_id: JobId, execution_id: ExecutionId) -> Run[Any]:
        return Run(self._enqueue_client.background_loop, execution_id, job_id)

    def pause(self, job: str, until: datetime | None = None, reason: str | None = None) -> None:
        """Let nothing of a job start until it is resumed, by hand or at *until*."""
        self._enqueue_client.background_loop.call(partial(_pause, job, until, reason))

    async def apause(self, job: str, until: datetime | None = None, reason: str | None = None) -> None:
        """Like `pause`, for coroutines."""
        await self._enqueue_client.background_loop.acall(partial(_pause, job, until, reason))

    def resume(self, job: str, reason: str | None = None) -> None:
        """Let a paused job go on from now."""
        self._enqueue_client.background_loop.call(partial(_resume, job, reason))

    async def aresume(self, job: str, reason: str | None = None) -> None:
        """Like `resume`, for coroutines."""
        await self._enqueue_client.background_loop.acall(partial(_resume, job, reason))

    # inside a web application

    def lifespan(
        self, *, worker: bool = False, scheduler: bool = False
    ) -> Callable[[Any], AbstractAsyncContextManager[None]]:
        """For `FastAPI(lifespan=tb.lifespan())`: closes what was used when the application ends.

        Asked to, it runs a worker, a scheduler or both in the application's own process and event loop; not while the program
        is redirected, for then somebody else does their work.
        """

        @asynccontextmanager
        async def lifespan(_app: Any) -> AsyncIterator[None]:
            async with AsyncExitStack() as stack:
                stack.push_async_callback(self._close_all)
                if (worker or scheduler) and self._env is None:
                    from timeball.sdk.embedding import run_nodes

                    nodes = run_nodes(
                        self.settings,
                        self.registry,
                        lambda parts: self.declare_with(parts.commands),
                        worker=worker,
                        scheduler=scheduler,
                    )
                    await stack.enter_async_context(nodes)
                yield

        return lifespan

    def dashboard(self, auth: HostAuth | None = None) -> MountedDashboard:
        """API and dashboard, for `app.mount("/timeball", tb.dashboard(auth=...))`.

        *auth* is given the headers of a request and says who sent it: a name and a role (viewer, operator, editor, admin), such as
        `("ada@example.com", "editor")`, or a role alone, or None. The name stands in the audit, and has limits of its own; all
        who are given only a role are one caller, `host`. Without *auth*, and for None, an API key is needed; nothing is open here.
        """
        from timeball.sdk.embedding import MountedDashboard

        mounted = MountedDashboard(lambda: self.settings, auth, lambda: self._env)
        self._mounted.append(mounted)
        return mounted

    async def _close_all(self) -> None:
        for mounted in self._mounted:
            await mounted.close()
        await self.aclose()

    # opening and closing

    def close(self) -> None:
        """Give the database connections back and leave the embedded server; the next use opens them again."""
        self._enqueue_client.background_loop.close()

    async def aclose(self) -> None:
        """Like `close`, for coroutines."""
        await self._enqueue_client.background_loop.aclose()

    @contextmanager
    def redirected(self, settings: Settings, env: Env) -> Iterator[None]:
        """Keep to other settings, and to another clock, until the block ends: how a test takes a program to its own database."""
        before = self._known_settings, self._env
        self.close()
        self._known_settings, self._env = settings, env
        try:
            yield
        finally:
            self.close()
            self._known_settings, self._env = before

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def _check_settings(settings: object) -> None:
    if settings is None:
        return
    from timeball.config.settings import Settings

    if not isinstance(settings, Settings):
        raise InvalidInput(
            f"settings is {type(settings).__name__}, expected Settings",
            field="settings",
            hint="make them with load_settings of timeball.config.settings, or give database_url alone",
        )


def _check_function(function: object) -> None:
    if not callable(function):
        raise InvalidInput(
            f"@tb.handler was given {function!r}, expected a function; options have names: @tb.handler(name=...)"
        )


def _arguments(handler: str, payload: Any) -> Mapping[str, Any]:
    if payload is None:
        return {}
    if not isinstance(payload, Mapping):
        raise InvalidInput(
            f"the payload for {handler} is a {type(payload).__name__}, expected its arguments by name", field="payload"
        )
    return payload


async def _trigger(job: str, payload: Any, runtime: SdkRuntime) -> tuple[JobId, ExecutionId]:
    job_id = (await runtime.find_job(job)).id
    return job_id, await runtime.commands.executions.trigger(job_id, payload)


async def _pause(job: str, until: datetime | None, reason: str | None, runtime: SdkRuntime) -> None:
    await runtime.commands.jobs.pause((await runtime.find_job(job)).id, until, runtime.actor(reason))


async def _resume(job: str, reason: str | None, runtime: SdkRuntime) -> None:
    await runtime.commands.jobs.resume((await runtime.find_job(job)).id, runtime.actor(reason))
