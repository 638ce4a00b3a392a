"""What `timeball up`, `api`, `scheduler` and `worker` run in their process: nodes or the API, an event loop and signal handlers."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from timeball.cli.errors import FAILED, OK, TO_BE_REPLACED
from timeball.cli.session import load_program, record_data_dir, settings_of
from timeball.cli.supervisor import SupervisorLink, connect_to_supervisor
from timeball.config.environment import raise_file_limit, resident_memory
from timeball.config.settings import Settings, find_unknown_variables
from timeball.domain.job_fields import JobSpec
from timeball.domain.values.text import check_label
from timeball.domain.values.wording import format_size
from timeball.errors import InvalidInput, LoopClosed
from timeball.handlers.hooks import NO_PROCESS_HOOKS
from timeball.handlers.registry import Registry
from timeball.runtime import make_supervisor, open_runtime
from timeball.telemetry.emitter import make_emit
from timeball.telemetry.events import (
    ApiStarted,
    ApiStopped,
    Emit,
    ProcessRestarted,
    ScheduleUndeclared,
    UnknownSetting,
    WatchStarted,
    WatchStopped,
    WorkerOverMemory,
)
from timeball.telemetry.output import drain_standard_output, queue_standard_output

if TYPE_CHECKING:
    from timeball.api.server import ApiServer
    from timeball.application.commands import Commands
    from timeball.engine.watcher import WatchReport
    from timeball.sdk.app import Timeball
    from timeball.telemetry.metrics import ProcessMetrics

_OBJECTS_BETWEEN_COLLECTIONS = 20_000
# On a busy machine requests wait for the nodes beside the API, and jobs do not wait for requests.
_API_NICENESS = 10
# How long tasks that ignore their cancellation may hold up a process that is done.
_EXIT_SECONDS = 10.0
# How often a worker looks at its memory, if that is bounded.
_MEMORY_SECONDS = 1.0


def run_nodes(
    reference: str | None,
    *,
    slots: int | None = None,
    queues: list[str] | None = None,
    with_scheduler: bool = False,
    with_worker: bool = False,
    with_demo: bool = False,
    worker_flags: Mapping[str, Any] | None = None,
) -> int:
    """Run a scheduler, a worker or both here until a signal ends them, or until the process has grown too large; returns the exit code."""
    queue_standard_output()
    link = connect_to_supervisor()
    program = load_program(reference)
    settings = _with_flags(settings_of(program), slots, queues, worker_flags or {})
    memory = MemoryWatch(settings.worker.max_memory if with_worker else None)
    run_event_loop(
        _run_nodes(
            settings,
            memory,
            reference,
            program,
            link,
            with_scheduler=with_scheduler,
            with_worker=with_worker,
            with_demo=with_demo,
        )
    )
    return TO_BE_REPLACED if memory.is_exceeded else OK


class MemoryWatch:
    """Has a process leave in good order once it keeps more than *allowed* bytes of memory."""

    def __init__(self, allowed: int | None) -> None:
        self._allowed = allowed
        self.is_exceeded = False

    def check_start(self) -> None:
        """Refuse a bound that the process exceeds before it has done anything: it would be replaced for ever."""
        used = resident_memory()
        if self._allowed is not None and used > self._allowed:
            raise InvalidInput(
                f"max_memory is {format_size(self._allowed)}, but this worker takes {format_size(used)} before its first execution",
                field="max_memory",
                hint="allow twice that, or more",
            )

    async def run(self, emit: Emit, stop: Callable[[], object]) -> None:
        """Look every second or so, until it is too much."""
        while self._allowed is not None and not self.is_exceeded:
            await asyncio.sleep(_MEMORY_SECONDS)
            self.look(emit, stop)

    def look(self, emit: Emit, stop: Callable[[], object]) -> None:
        """Call *stop* if it is too much."""
        used = resident_memory()
        if self._allowed is not None and used > self._allowed:
            self.is_exceeded = True
            emit(WorkerOverMemory(format_size(used), format_size(self._allowed)))
            stop()


def _with_flags(
    settings: Settings, slots: int | None, queues: list[str] | None, worker_flags: Mapping[str, Any]
) -> Settings:
    flags: dict[str, Any] = {name: value for name, value in worker_flags.items() if value is not None}
    if slots is not None:
        flags["slots"] = slots
    if queues:
        flags["queues"] = tuple(check_label(queue, "--queue") for queue in queues)
    if not flags:
        return settings
    return settings.model_copy(update={"worker": settings.worker.model_copy(update=flags)})


async def _run_nodes(
    settings: Settings,
    memory: MemoryWatch,
    reference: str | None,
    program: Timeball | None,
    link: SupervisorLink | None,
    *,
    with_scheduler: bool,
    with_worker: bool,
    with_demo: bool,
) -> None:
    is_read = settings.metrics_port is not None or settings.otlp_metrics_url is not None
    metrics = _process_metrics() if is_read or (link is not None and with_scheduler) else None
    emit = make_emit(settings, metrics)
    report_unknown_settings(emit)
    if link is not None:
        _report_restart(link, emit)
        link.grace_seconds = settings.worker.grace_seconds
        link.write_metrics = None if metrics is None else metrics.text
    async with open_runtime(settings) as runtime:
        record_data_dir(settings)
        registry = Registry() if program is None else program.registry
        if program is not None and with_worker:
            for job in await program.declare_with(runtime.commands):
                emit(ScheduleUndeclared(job.id, str(job.name), str(job.declared_by)))
        if with_demo:
            await _create_demo_jobs(runtime.commands)
        nodes = make_supervisor(
            runtime,
            emit,
            registry=registry,
            app_reference=reference,
            with_scheduler=with_scheduler,
            with_worker=with_worker,
            trouble=None if link is None else link.trouble,
        )

        def stop() -> None:
            nodes.stop()
            if link is not None:
                link.release()

        _on_stop_signals(stop)
        hooks = registry.process_hooks if with_worker else NO_PROCESS_HOOKS
        # Before it reports that it has started: a process whose hook raises has not.
        async with hooks.around_worker():
            _tune_garbage_collector()
            memory.check_start()
            if link is not None:
                link.report_started()
                await link.wait_async()
            watching = asyncio.ensure_future(memory.run(emit, stop))
            with _metrics_server(metrics, settings), _metrics_pusher(metrics, settings, emit):
                await nodes.run()
            watching.cancel()


def run_api(reference: str | None, host: str | None, port: int | None) -> None:
    """Serve the API and the dashboard here until a signal ends it."""
    queue_standard_output()
    link = connect_to_supervisor()
    if link is not None:
        # The nodes report what is wrong with program, settings and database.
        link.wait()
        os.nice(_API_NICENESS)
    flags = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    settings = settings_of(load_program(reference))
    run_event_loop(_serve_api(settings.model_copy(update=flags), link))


async def _serve_api(settings: Settings, link: SupervisorLink | None) -> None:
    # Imported here: a worker or scheduler needs no web framework.
    from timeball.api.server import ApiServer
    from timeball.dashboard.app import make_web_app
    from timeball.runtime import make_server_runtime

    emit = make_emit(settings)
    if link is None:
        report_unknown_settings(emit)
    else:
        _report_restart(link, emit)
    async with open_runtime(settings) as runtime:
        server_runtime = make_server_runtime(settings, runtime.store, runtime.commands, link, emit)
        server = ApiServer(server_runtime, make_web_app(server_runtime))
        await server.open()
        _on_stop_signals(server.stop)
        _tune_garbage_collector()
        address = server.address
        is_embedded = settings.database_url is None
        emit(ApiStarted(address, runtime.store.database.dsn if is_embedded else None))
        if link is not None:
            link.report_started(address)
        # Where every line of the log is JSON, the event has to do.
        if settings.log_format != "json" and (link is None or not link.deaths):
            _say(await _greeting(settings, runtime.store.database.dsn, server, is_alone=link is None))
        await server.run()
        emit(ApiStopped(address))


def run_watcher(settings: Settings, on_look: Callable[[WatchReport], None]) -> None:
    """Watch until a signal ends it."""
    queue_standard_output()
    emit = make_emit(settings)
    report_unknown_settings(emit)
    run_event_loop(_watch(settings, emit, on_look))


async def _watch(settings: Settings, emit: Emit, on_look: Callable[[WatchReport], None]) -> None:
    from timeball.runtime import open_watcher

    async with open_watcher(settings, emit, on_look) as watcher:
        _on_stop_signals(watcher.stop)
        emit(WatchStarted(watcher.installation, timedelta(seconds=settings.watch.every_seconds), _tells(settings)))
        await watcher.run()
        emit(WatchStopped())


def _tells(settings: Settings) -> str:
    """How a watcher tells what it sees, in words."""
    watch = settings.watch
    channels = f"the channels {', '.join(watch.channels)}" if watch.channels else "the channels of the routes"
    urls = [name for name, url in (("a webhook", watch.webhook_url), ("a ping", watch.ping_url)) if url is not None]
    return ", ".join([channels, *urls])


async def _greeting(settings: Settings, dsn: str, server: ApiServer, *, is_alone: bool) -> str:
    api = await server.greeting()
    if is_alone:
        return f"\n  {api}\n"
    is_embedded = settings.database_url is None
    database = f"the embedded PostgreSQL in {settings.data_dir}" if is_embedded else "your PostgreSQL"
    text = f"\n  Timeball is up on {database}. Ctrl-C stops it; again, at once.\n  {api}\n"
    return text + (f"  Other programs reach it with: TIMEBALL_DATABASE_URL='{dsn}'\n\n" if is_embedded else "")


def _say(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def run_event_loop(main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine on the fastest event loop that is installed, with as many open files as the system allows.

    LoopClosed if a task ends the loop before the coroutine does. A task that ignores its cancellation, such as a handler's, holds up
    the exit of the process for some seconds at most.
    """
    raise_file_limit()
    has_returned = False

    async def run_main() -> None:
        nonlocal has_returned
        await main
        has_returned = True

    loop = _make_loop()
    try:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            try:
                runner.run(run_main())
            finally:
                _exit_after_timeout(lambda: OK if has_returned else FAILED)
    except asyncio.CancelledError:
        raise LoopClosed("all tasks of this process were cancelled") from None
    except SystemExit as error:
        if not has_returned:
            raise LoopClosed(f"a task of this process called sys.exit({error.code!r})") from None
    except RuntimeError:
        if has_returned or loop.stopped_by is None:
            raise
        raise LoopClosed(f"the event loop of this process was stopped by {loop.stopped_by}") from None


def _make_loop() -> Any:
    """An event loop that remembers which code stopped it first."""
    try:
        from uvloop import Loop
    except ImportError:  # uvloop is not available on this platform
        return _record_stop(asyncio.SelectorEventLoop)
    return _record_stop(Loop)


def _record_stop(kind: type[Any]) -> Any:
    def stop(self: Any) -> None:
        if self.stopped_by is None:
            caller = sys._getframe(1)
            self.stopped_by = f"{caller.f_code.co_qualname} ({caller.f_code.co_filename}:{caller.f_lineno})"
        kind.stop(self)

    return type("WatchedLoop", (kind,), {"stop": stop, "stopped_by": None})()


def _exit_after_timeout(code: Callable[[], int]) -> None:
    def end() -> None:
        # The nodes are deregistered or lost; nothing of the engine runs any more.
        drain_standard_output()
        os._exit(code())

    timer = threading.Timer(_EXIT_SECONDS, end)
    timer.daemon = True
    timer.start()


def _on_stop_signals(stop: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)


def _tune_garbage_collector() -> None:
    """Collect less often, and never look at what was imported: a batch of executions is thousands of objects.

    With Python's own thresholds the collector was in every seventh sample of a busy worker's profile.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS, *gc.get_threshold()[1:])


def report_unknown_settings(emit: Emit) -> None:
    """Report environment variables that look like settings and are not."""
    for variable in find_unknown_variables():
        emit(UnknownSetting(variable.name, variable.advice))


def _report_restart(link: SupervisorLink, emit: Emit) -> None:
    if link.deaths:
        emit(ProcessRestarted(link.name, link.reason, link.deaths))


def _process_metrics() -> ProcessMetrics:
    """Counters of what is emitted. Imported here: most processes have no reader for them."""
    from timeball.telemetry.metrics import ProcessMetrics

    return ProcessMetrics()


@contextmanager
def _metrics_server(metrics: ProcessMetrics | None, settings: Settings) -> Iterator[None]:
    """Serve the metrics of a process without an API, if TIMEBALL_METRICS_PORT asks for it."""
    if metrics is None or settings.metrics_port is None:
        yield
        return
    from timeball.telemetry.metrics import serve

    try:
        close = serve(metrics, settings.metrics_port, settings.metrics_host)
    except OSError as error:
        raise InvalidInput(
            f"metrics cannot be served on {settings.metrics_host}:{settings.metrics_port}: {error.strerror or error}",
            field="metrics_port",
            hint="choose another address with TIMEBALL_METRICS_HOST and TIMEBALL_METRICS_PORT",
        ) from error
    try:
        yield
    finally:
        close()


@contextmanager
def _metrics_pusher(metrics: ProcessMetrics | None, settings: Settings, emit: Emit) -> Iterator[None]:
    """Send the metrics of this process to a collector, if TIMEBALL_OTLP_METRICS_URL asks for it."""
    if metrics is None or settings.otlp_metrics_url is None:
        yield
        return
    from timeball.telemetry.otlp import pushed_metrics

    with pushed_metrics(metrics, settings.otlp_metrics_url, timedelta(seconds=settings.otlp_metrics_seconds), emit):
        yield


_DEMO_JOBS = (
    JobSpec(
        name="demo-heartbeat",
        description="A line in its log every five seconds.",
        handler="test.log",
        payload={"message": "still alive"},
        interval_seconds=5,
        tags=("demo",),
    ),
    JobSpec(
        name="demo-report",
        description="By cron, every minute; takes a second and a half.",
        handler="test.delay",
        payload={"duration_ms": 1500},
        schedule="* * * * *",
        queue="reports",
        tags=("demo",),
    ),
    JobSpec(
        name="demo-failing",
        description="Fails every time, is retried once, and ends among the dead letters.",
        handler="test.delay",
        payload={"duration_ms": 200, "should_fail": True, "fail_message": "the demo fails on purpose"},
        interval_seconds=30,
        max_retries=1,
        tags=("demo",),
    ),
)


async def _create_demo_jobs(commands: Commands) -> None:
    """Create the jobs of `timeball up --demo`, unless they exist."""
    for spec in _DEMO_JOBS:
        await commands.jobs.declare(spec, "timeball up --demo")
