"""`Timeball`: declares the handlers and schedules of a Python program, and enqueues them.

    tb = Timeball()                       # TIMEBALL_DATABASE_URL, or the embedded PostgreSQL

    @tb.handler(queue="mail", retries=5, timeout="30s")
    def send_receipt(order_id: int, to: str) -> str: ...

    @tb.cron("0 9 * * mon-fri", timezone="Europe/Berlin")
    async def morning_report() -> None: ...

    run = send_receipt.enqueue(42, to="a@b.co")

A declaration reads, opens and starts nothing: settings and database are needed at the first enqueue. So a module with handlers can
be imported anywhere. A schedule is declared by name: however many processes declare it, there is one job.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar, Unpack, cast, overload

from timeball.domain.job_fields import JobSpec
from timeball.domain.payload_references import CauseReference
from timeball.domain.values.ids import ExecutionId, JobId, parse_id
from timeball.domain.values.json_text import encode_object, to_json
from timeball.domain.values.text import check_label
from timeball.domain.values.wording import Duration, parse_duration
from timeball.errors import InvalidInput, NotFound, TimeballError
from timeball.handlers.hooks import ProcessHooks, RunHook, check_process_hook, surrounded
from timeball.handlers.registry import Registry, default_name, make_handler
from timeball.sdk.enqueue import EnqueueClient, SdkRuntime
from timeball.sdk.enqueue_hooks import check_enqueue_hook
from timeball.sdk.groups import Chain, Group, GroupRun
from timeball.sdk.handlers import (
    AsyncHandlerHandle,
    Enqueueable,
    EnqueueTarget,
    HandlerDecorator,
    HandlerHandle,
    SyncHandlerHandle,
    aschedule_handler,
    make_handle,
    schedule_handler,
)
from timeball.sdk.inline import InlineBlock, InlineChoice, InlinePolicy, program_scope
from timeball.sdk.options import (
    EnqueueOptions,
    FollowUpCall,
    HandlerDeclaration,
    InstantInput,
    ScheduleOptions,
    check_options,
    handler_options,
)
from timeball.sdk.runs import Run
from timeball.sdk.schedules import DeclaredSchedules, check_handler

if TYPE_CHECKING:
    from timeball.application.commands import Commands
    from timeball.config.settings import Settings
    from timeball.domain.handler import Handler
    from timeball.domain.job import Job
    from timeball.env import Env
    from timeball.sdk.embedding import HostAuth, MountedDashboard
    from timeball.sdk.jobs import Jobs, ScheduledJob
    from timeball.sdk.pages import QueueInfo, RunFilter, RunInfo, WorkerInfo

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class FailedRun:
    """A run that ended otherwise than by success, as the arguments of a call that follows it refer to it.

    *state* is `dead`, `cancelled` or `skipped`; *error* is that of the last attempt, or why it was cancelled or skipped.
    """

    id: Any = field(default_factory=lambda: {"$cause": CauseReference.EXECUTION_ID.value})
    state: Any = field(default_factory=lambda: {"$cause": CauseReference.STATE.value})
    error: Any = field(default_factory=lambda: {"$cause": CauseReference.ERROR.value})


_FAILED = FailedRun()
Function = Callable[..., Any]
AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


class Timeball:
    """The handlers and schedules of a program, and its connection to the database that keeps them.

    Arguments given here go before the environment (`TIMEBALL_...`) and `timeball.toml`, which are read when they are first needed.
    Without a `database_url` from any of them, an embedded PostgreSQL is started in `data_dir`. With `inline=True` no database is used:
    an enqueue calls the handler at once and keeps its error in the run; `inline="raise"` raises it.

    One object serves all threads and event loops of a program, and its forked children. Every method that waits for the database has
    a twin for coroutines with an `a` before its name: `enqueue`, `aenqueue`. Connections are opened by the first use and closed by
    `close`, at the end of a `with` block, or at the end of the program.
    """

    def __init__(
        self,
        database_url: str | None = None,
        *,
        data_dir: str | Path | None = None,
        settings: Settings | None = None,
        inline: InlineChoice = None,
    ) -> None:
        if inline is not None:
            program_scope(self, inline)  # refuses other values at once
        if settings is not None and (database_url is not None or data_dir is not None):
            raise InvalidInput(
                "settings are given beside database_url or data_dir, expected one or the other",
                hint="give them to load_settings: Timeball(settings=load_settings(database_url=...))",
            )
        _check_settings(settings)
        self._arguments = {"database_url": database_url, "data_dir": data_dir}
        self._cached_settings = settings
        self._env: Env | None = None
        self._inline_choice = inline
        self._enqueue_client = self._make_enqueue_client()
        self._handles: dict[str, HandlerHandle[..., Any]] = {}
        self._registry = Registry()
        self._schedules = DeclaredSchedules(self._enqueue_client.before_enqueue)
        self._run_hooks: list[RunHook] = []
        self._process_hooks = ProcessHooks()
        self._mounted: list[MountedDashboard] = []

    def _make_enqueue_client(self) -> EnqueueClient:
        return EnqueueClient(lambda: self.settings, lambda: self._env, self._find_handler, self._inline_choice)

    def _find_handler(self, name: str) -> Handler | None:
        """A handler as a worker would call it."""
        handler = next((handler for handler in self._program_handlers() if handler.name == name), None)
        return None if handler is None else surrounded(handler, self._run_hooks)

    # declarations

    @property
    def settings(self) -> Settings:
        """The settings of this program; read when they are first needed."""
        if self._cached_settings is None:
            from timeball.config.settings import load_settings

            self._cached_settings = load_settings(**{k: v for k, v in self._arguments.items() if v is not None})
        return self._cached_settings

    @property
    def registry(self) -> Registry:
        """All handlers of this program as they are now, with the code around their runs; one that is declared later is in the next."""
        handlers = self._program_handlers()
        return Registry((surrounded(handler, self._run_hooks) for handler in handlers), self._process_hooks)

    def _program_handlers(self) -> Iterable[Handler]:
        """What a program runs; a subclass that has handlers from elsewhere adds them here, and `registry` stays as it is."""
        return self._registry

    @property
    def schedules(self) -> Mapping[str, JobSpec]:
        """The schedules declared so far, by name: the definition of the job that each becomes."""
        return self._schedules.specs()

    def declarations(self) -> list[tuple[str, JobSpec]]:
        """The schedules declared so far: the module that declares each, and the definition of the job that it becomes."""
        return self._schedules.by_origin()

    # A coroutine function is a function, too. A type checker takes the first overload that fits.
    @overload
    def handler(  # type: ignore[overload-overlap]
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncHandlerHandle[P, R]: ...
    @overload
    def handler(self, function: Callable[P, R], /) -> SyncHandlerHandle[P, R]: ...
    @overload
    def handler(self, /, **options: Unpack[HandlerDeclaration]) -> HandlerDecorator: ...
    def handler(self, function: Function | None = None, /, **options: Any) -> Any:
        """Make a function a handler: `@tb.handler`, or with options `@tb.handler(queue="mail", retries=5, timeout="30s")`.

        Called directly, the decorated function does what it did before. `.enqueue(...)` has a worker call it, with the options given
        here unless the enqueue has others. Its parameters need annotations only if they are more than JSON: a `datetime`, a
        dataclass or a pydantic model is converted back before the call.
        """
        check_options(options, HandlerDeclaration, "@tb.handler")
        declaration = cast(HandlerDeclaration, options)
        if function is not None:
            return self._declare(function, declaration)
        return lambda function: self._declare(function, declaration)

    def cron(self, expression: str, **options: Unpack[ScheduleOptions]) -> HandlerDecorator:
        """Run a function at the times of a cron expression: `@tb.cron("0 9 * * mon-fri", timezone="Europe/Berlin")`.

        The function becomes a handler; above `@tb.handler(...)`, that handler gets the schedule. Several schedules of one handler need
        names of their own: `name="..."`. Schedules become jobs when a worker starts with this program, or by `sync_schedules`.
        """
        return self._scheduled({"schedule": expression}, options, "@tb.cron")

    def every(self, interval: Duration, **options: Unpack[ScheduleOptions]) -> HandlerDecorator:
        """Run a function at a fixed interval, such as `@tb.every("30s")`; like `cron` in everything else."""
        seconds = parse_duration(interval, "interval").total_seconds()
        return self._scheduled({"interval_seconds": seconds}, options, "@tb.every")

    def after(self, job: str, **options: Unpack[ScheduleOptions]) -> HandlerDecorator:
        """Run a function after each success of another job, for the same instant: `@tb.after("nightly-etl")`.

        Like `cron` in everything else. That job is there before this one is declared, or is declared by the same program.
        """
        return self._scheduled({"after": job}, options, "@tb.after")

    def _scheduled(self, timing: Mapping[str, Any], options: ScheduleOptions, where: str) -> HandlerDecorator:
        check_options(options, ScheduleOptions, where)

        def decorate(function: Function) -> Any:
            declared = self._handle_of(function)
            handle = declared or self._declare(function, {})
            try:
                self._schedules.add(handle, timing, options)
            except TimeballError:
                # Corrected in the same interactive session, it must not be refused as declared twice.
                if declared is None:
                    self._forget(handle)
                raise
            return handle

        return decorate

    def _forget(self, handle: HandlerHandle[..., Any]) -> None:
        self._registry = Registry([handler for handler in self._registry if handler.name != handle.name])
        del self._handles[handle.name]

    def _declare(self, function: Function, options: HandlerDeclaration) -> HandlerHandle[..., Any]:
        _check_function(function)
        handle = self._handle_of(function)
        handler = make_handler(
            function if handle is None else handle.handler.function,
            name=options.get("name") or (None if handle is None else handle.name),
            isolate=bool(options.get("isolate", False)),
            options=handler_options(options),
        )
        check_handler(handler)
        for hook in self._run_hooks:
            hook.check_surrounds(handler)
        if handle is None:
            self._registry.add(handler)
            handle = self._handles[handler.name] = make_handle(self._enqueue_client, handler)
            return handle
        others = [other for other in self._registry if other.name != handle.name]
        self._registry = Registry([*others, handler])
        del self._handles[handle.name]
        handle.redeclare(handler)
        self._handles[handler.name] = handle
        return handle

    def _handle_of(self, function: object) -> HandlerHandle[..., Any] | None:
        """The same object if it is a handle of this Timeball; None if it is a plain function."""
        if not isinstance(function, HandlerHandle):
            return None
        if self._handles.get(function.name) is not function:
            raise InvalidInput(f"{function!r} belongs to another Timeball; declare its function here instead")
        return function

    # code around runs, enqueues and processes

    @overload
    def around_run(self, function: AnyFunction, /) -> AnyFunction: ...
    @overload
    def around_run(self, /, *, coroutines_only: bool) -> Callable[[AnyFunction], AnyFunction]: ...
    def around_run(self, function: Function | None = None, /, *, coroutines_only: bool = False) -> Any:
        """Surround every run of this program's handlers: `@tb.around_run` on a generator function that yields once.

            @tb.around_run
            def with_tenant(run: ActiveRun) -> Iterator[None]:
                with tenant_context(run.meta["tenant"]):
                    yield

        Anything that returns a context manager will do, also one that takes no argument: `tb.around_run(app.app_context)`. It is
        entered where the handler is called, before the arguments are bound, in the order of registration, and left in reverse. At the
        `yield` it sees the error of the handler; `run.outcome` says then how the run ended. An error of its own fails the attempt; an
        error of the handler cannot be swallowed. An async one surrounds coroutine functions alone: a program that has plain functions
        as well says so with `coroutines_only=True`.
        """
        if function is None:
            return lambda function: self._surround(function, coroutines_only)
        return self._surround(function, coroutines_only)

    def _surround(self, function: AnyFunction, coroutines_only: bool) -> AnyFunction:
        hook = RunHook(function, coroutines_only=coroutines_only)
        for handler in self._registry:
            hook.check_surrounds(handler)
        self._run_hooks.append(hook)
        return function

    def before_enqueue(self, function: AnyFunction) -> AnyFunction:
        """See every enqueue of this program before it is made: one, many, in the caller's transaction, and every schedule.

            @tb.before_enqueue
            def add_tenant(enqueue: PendingEnqueue) -> None:
                enqueue.meta.setdefault("tenant", tenant.get())

        It may add `meta`, change `options`, and refuse the enqueue by raising. It is called in the caller's thread or task; a declared
        schedule is shown when it becomes a job. An enqueue of many calls is shown once.
        """
        check_enqueue_hook(function)
        self._enqueue_client.before_enqueue.append(function)
        return function

    def on_worker_start(self, function: AnyFunction) -> AnyFunction:
        """Call a function without arguments, or a coroutine function, in each process that runs handlers, before it runs the first.

        Isolated children included. If it raises, the process does not start.
        """
        check_process_hook(function, "on_worker_start")
        self._process_hooks = replace(self._process_hooks, starts=(*self._process_hooks.starts, function))
        return function

    def on_worker_stop(self, function: AnyFunction) -> AnyFunction:
        """The same once a process has run its last handler; those registered last are called first."""
        check_process_hook(function, "on_worker_stop")
        self._process_hooks = replace(self._process_hooks, stops=(*self._process_hooks.stops, function))
        return function

    # schedules

    def sync_schedules(self) -> list[str]:
        """Create the jobs of the declared schedules, or update those that exist under the same names; returns the names.

        A worker does this when it starts; a program without workers of its own calls it, for example when it is deployed.
        """
        return self._enqueue_client.background_loop.call(self._sync)

    async def async_sync_schedules(self) -> list[str]:
        """Like `sync_schedules`, for coroutines."""
        return await self._enqueue_client.background_loop.acall(self._sync)

    async def declare_with(self, commands: Commands) -> list[Job]:
        """Like `sync_schedules`, for a starting worker: through its own commands, in its event loop.

        Returns the jobs that modules of this program declared once and no longer declare; these go on running.
        """
        await self._schedules.declare(commands)
        modules = {default_name(handler.function).partition(":")[0] for handler in self.registry}
        return await commands.jobs.undeclared(sorted(modules), sorted(self._schedules.specs()))

    async def _sync(self, runtime: SdkRuntime) -> list[str]:
        await runtime.now()  # compares the clocks: first occurrences are computed from this time
        return await self._schedules.declare(runtime.commands)

    # jobs and executions by name or id

    @overload
    def enqueue(
        self, handler: HandlerHandle[..., R], payload: Any = None, **options: Unpack[EnqueueOptions]
    ) -> Run[R]: ...
    @overload
    def enqueue(self, handler: str, payload: Any = None, **options: Unpack[EnqueueOptions]) -> Run[Any]: ...
    def enqueue(
        self, handler: str | HandlerHandle[..., Any], payload: Any = None, **options: Unpack[EnqueueOptions]
    ) -> Run[Any]:
        """Enqueue a handler by its name: `tb.enqueue("http.webhook", {"url": ...}, queue="web")`; committed when this returns.

        The handler need not be declared in this program. The payload is checked against what workers have published of it; the option
        `unchecked=True` skips that.
        """
        target, text = self._target_and_payload(handler, payload)
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
        target, text = self._target_and_payload(handler, payload)
        return await target.options(**options).aenqueue_payload(text)

    def schedule(
        self,
        handler: str | HandlerHandle[..., Any],
        cron: str | None = None,
        *,
        every: Duration | None = None,
        at: InstantInput | None = None,
        after: str | None = None,
        connection: Any = None,
        **options: Unpack[ScheduleOptions],
    ) -> ScheduledJob:
        """Schedule a handler by its name: `tb.schedule("http.webhook", "0 7 * * *", name="ping", arguments={"url": ...})`.

        As `handler.schedule(...)`. The handler need not be declared in this program: what is not given is taken from what workers have
        published of it, and the arguments are checked against that.
        """
        return schedule_handler(
            self._enqueue_client, self._target_of(handler), cron, every, at, after, connection, options
        )

    async def aschedule(
        self,
        handler: str | HandlerHandle[..., Any],
        cron: str | None = None,
        *,
        every: Duration | None = None,
        at: InstantInput | None = None,
        after: str | None = None,
        connection: Any = None,
        **options: Unpack[ScheduleOptions],
    ) -> ScheduledJob:
        """Like `schedule`, for coroutines."""
        target = self._target_of(handler)
        return await aschedule_handler(self._enqueue_client, target, cron, every, at, after, connection, options)

    def _target_of(self, handler: str | HandlerHandle[..., Any]) -> EnqueueTarget:
        handle = handler if isinstance(handler, HandlerHandle) else self._handles.get(handler)
        return EnqueueTarget.elsewhere(str(handler)) if handle is None else handle.target

    def _target_and_payload(
        self, handler: str | HandlerHandle[..., Any], payload: Any
    ) -> tuple[Enqueueable[..., Any], str]:
        target = handler if isinstance(handler, HandlerHandle) else self._handles.get(handler)
        if target is not None:
            return target, target.call(**_arguments(target.name, payload)).payload
        document = {} if payload is None else payload
        text = encode_object(document) if isinstance(document, dict) else to_json(document)
        return Enqueueable(self._enqueue_client, EnqueueTarget.elsewhere(str(handler)), {}), text

    @property
    def result(self) -> Any:
        """Stands in `on_success=archive.call(tb.result)` for what the run returns before it; and inside of arguments, too."""
        return {"$cause": CauseReference.RESULT.value}

    @property
    def results(self) -> Any:
        """Stands in `tb.group(...).then(join.call(tb.results))` for the list of what the parts of the group returned."""
        return {"$cause": CauseReference.RESULTS.value}

    def chain(self, *steps: FollowUpCall) -> Chain:
        """Calls that run one after the other, as long as each succeeds: `tb.chain(a.call(1), b.call(tb.result)).enqueue()`.

        A step may be a chain or a group itself.
        """
        return Chain(self._enqueue_client, steps)

    def group(self, parts: Iterable[FollowUpCall]) -> Group:
        """Calls that run side by side: `tb.group(a.call(n) for n in range(20)).then(join.call(tb.results)).enqueue()`.

        A part may be a chain or a group itself.
        """
        return Group(self._enqueue_client, list(parts))

    def get_group(self, group_id: str) -> GroupRun:
        """The group of an id (`grp_...`), which another process may have enqueued; the database is not asked yet."""
        return GroupRun(self._enqueue_client, parse_id("grp", group_id))

    @property
    def failed(self) -> FailedRun:
        """Stands in `on_failure=tell.call(tb.failed.id, tb.failed.error)` for what is known of the run before it."""
        return _FAILED

    @cached_property
    def jobs(self) -> Jobs:
        """The jobs of the installation: get, list, change, pause, trigger and backfill them by name or id."""
        # Here and not above: most programs only enqueue, and the models of jobs take a while to import.
        from timeball.sdk.jobs import Jobs

        return Jobs(self._enqueue_client, self._target_of)

    def get_run(self, execution_id: str | None = None, *, key: str | None = None) -> Run[Any]:
        """The run of an execution by its id (`exe_...`), which another process may have enqueued; the database is not asked yet.

        By its *key*: the run that has the key, or else the latest that was enqueued with it; NotFound if there is none.
        """
        if key is None:
            return self._run_of(execution_id)
        if self._enqueue_client.inline_scope() is not None:
            return self._inline_run(self._enqueue_client.inline_runs.find_key(key), key)
        return self._enqueue_client.background_loop.call(self._finding(execution_id, key))

    async def aget_run(self, execution_id: str | None = None, *, key: str | None = None) -> Run[Any]:
        """Like `get_run`, for coroutines."""
        if key is None:
            return self._run_of(execution_id)
        if self._enqueue_client.inline_scope() is not None:
            return self._inline_run(self._enqueue_client.inline_runs.find_key(key), key)
        return await self._enqueue_client.background_loop.acall(self._finding(execution_id, key))

    def _run_of(self, execution_id: str | None) -> Run[Any]:
        if execution_id is None:
            raise InvalidInput(
                "get_run() was given neither an id nor a key", hint='get_run("exe_...") or get_run(key=...)'
            )
        id_ = ExecutionId(parse_id("exe", execution_id))
        if self._enqueue_client.inline_scope() is not None:
            return self._inline_run(self._enqueue_client.inline_runs.find(id_), execution_id)
        return Run(self._enqueue_client.background_loop, id_, JobId(id_), is_new=False)

    @staticmethod
    def _inline_run(run: Run[Any] | None, name: str) -> Run[Any]:
        if run is None:
            raise NotFound("inline run", name)
        return run

    def _finding(self, execution_id: str | None, key: str) -> Callable[[SdkRuntime], Coroutine[Any, Any, Run[Any]]]:
        from timeball.sdk.pages import find_by_key

        if execution_id is not None:
            raise InvalidInput("get_run() was given an id and a key, expected one of them", field="key")
        return partial(find_by_key, self._enqueue_client, check_label(key, "key"))

    # for pages of the program's own

    def runs(self, *, limit: int = 50, **asked: Unpack[RunFilter]) -> list[RunInfo]:
        """The latest runs that match, such as `runs(handler="app:export", state="running", meta={"tenant": "acme"})`.

        By `handler`, `state` (or several), `queue`, `tag`, `meta` and `key`; a star stands for any text: `handler="app:*"`.
        """
        from timeball.sdk import pages

        terms, key = pages.run_filter(asked, limit)
        return self._enqueue_client.background_loop.call(partial(pages.runs, terms, key, limit))

    async def aruns(self, *, limit: int = 50, **asked: Unpack[RunFilter]) -> list[RunInfo]:
        """Like `runs`, for coroutines."""
        from timeball.sdk import pages

        terms, key = pages.run_filter(asked, limit)
        return await self._enqueue_client.background_loop.acall(partial(pages.runs, terms, key, limit))

    def queues(self) -> list[QueueInfo]:
        """The queues in use, by name: how many executions wait and run in each, for how long, and whether it is paused."""
        from timeball.sdk.pages import queues

        return self._enqueue_client.background_loop.call(queues)

    async def aqueues(self) -> list[QueueInfo]:
        """Like `queues`, for coroutines."""
        from timeball.sdk.pages import queues

        return await self._enqueue_client.background_loop.acall(queues)

    def workers(self) -> list[WorkerInfo]:
        """The worker processes that are alive: their slots, how many are busy, their queues and handlers."""
        from timeball.sdk.pages import workers

        return self._enqueue_client.background_loop.call(workers)

    async def aworkers(self) -> list[WorkerInfo]:
        """Like `workers`, for coroutines."""
        from timeball.sdk.pages import workers

        return await self._enqueue_client.background_loop.acall(workers)

    def inline(self, *, raise_errors: bool = False, retries: bool = False) -> InlineBlock:
        """`with tb.inline() as runs:` what this thread or task enqueues in the block runs at once, in its own thread and transaction.

        Also `async with`. The error of a handler is kept in the run and logged; with *raise_errors* it is raised from the enqueue. A
        failed attempt is the last one; with *retries* the next ones follow at once. No database is used: what needs one raises
        InlineOnly. *runs* are those of the block, the last thousand of them.
        """
        return InlineBlock(self._enqueue_client, InlinePolicy(raise_errors=raise_errors, retries=retries))

    # inside a web application

    def lifespan(
        self, *, worker: bool = False, scheduler: bool = False
    ) -> Callable[[Any], AbstractAsyncContextManager[None]]:
        """For `FastAPI(lifespan=tb.lifespan())`: closes the database connections when the application ends.

        With *worker* or *scheduler*, these run in the application's process and event loop as long as the application does. In a test
        with the `timeball` fixture they do not: the test moves its own. Nor do they in a program that runs inline.
        """

        @asynccontextmanager
        async def lifespan(_app: Any) -> AsyncIterator[None]:
            async with AsyncExitStack() as stack:
                stack.push_async_callback(self._close_all)
                is_needed = self._env is None and self._enqueue_client.program_scope() is None
                if (worker or scheduler) and is_needed:
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
        """API and dashboard as an ASGI application: `app.mount("/timeball", tb.dashboard(auth=...))`.

        *auth* is called with the headers of each request and returns the caller: a name and a role (viewer, operator, editor, admin),
        such as `("ada@example.com", "editor")`, or a role alone, or None. The audit shows the name, and each name has its own rate
        limit; callers with a role alone share the name `host`. Without *auth*, and if it returns None, a request needs an API key.
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
        """Close the database connections, and leave the embedded server if one is used; the next use opens them again."""
        self._enqueue_client.background_loop.close()

    async def aclose(self) -> None:
        """Like `close`, for coroutines."""
        await self._enqueue_client.background_loop.aclose()

    @contextmanager
    def redirected(self, settings: Settings, env: Env) -> Iterator[None]:
        """Use other settings and another clock until the block ends: for tests, which have a database of their own."""
        before = self._cached_settings, self._env
        self.close()
        self._cached_settings, self._env = settings, env
        try:
            with self._enqueue_client.not_inline():
                yield
        finally:
            self.close()
            self._cached_settings, self._env = before

    def test_database_url(self) -> str | None:
        """The database that a test framework has made for this program; None if it has made none."""
        return None

    def check_test_is_committed(self) -> None:
        """Refuse to look for the work of a test in a transaction that is never committed: no worker would see it."""

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
