"""Run scheduler and worker in this process: event loop, signals, and the link to the supervisor process."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from timeball.cli.errors import FAILED, OK
from timeball.cli.program import load_program, record_data_dir, settings_of
from timeball.cli.supervisor import CHILD
from timeball.config.file_limit import raise_file_limit
from timeball.config.settings import Settings, find_unknown_variables
from timeball.domain.job import JobSpec
from timeball.domain.values.text import check_label
from timeball.engine.supervisor import Supervisor
from timeball.errors import InvalidInput, LoopClosed
from timeball.handlers.registry import Registry
from timeball.runtime import make_supervisor, open_runtime
from timeball.telemetry.emitter import make_emit
from timeball.telemetry.events import Emit, ProcessRestarted, ScheduleUndeclared, UnknownSetting
from timeball.telemetry.output import drain_standard_output, queue_standard_output

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client.metrics_core import Metric

    from timeball.application.commands import Commands
    from timeball.telemetry.metrics import ProcessMetrics


# Running nodes from the command line, in this process; several processes are the matter of `cli/supervisor.py`.

_OBJECTS_BETWEEN_COLLECTIONS = 20_000


# How long what is left may hold up a process whose work is done.
_EXIT_SECONDS = 10.0


def run_nodes(
    reference: str | None,
    *,
    slots: int | None = None,
    queues: list[str] | None = None,
    with_scheduler: bool = False,
    with_worker: bool = False,
    with_demo: bool = False,
) -> None:
    """Run nodes here until a signal ends them."""
    queue_standard_output()
    link = supervisor_link()
    program = load_program(reference)
    settings = _with_flags(settings_of(program), slots, queues)
    main = _run(
        settings,
        reference,
        program,
        with_scheduler=with_scheduler,
        with_worker=with_worker,
        with_demo=with_demo,
        link=link,
    )
    run_event_loop(main)


def supervisor_link() -> SupervisorLink | None:
    """The link to the process that supervises this one; most are started by hand, and have none."""
    if "_TIMEBALL_CHILD" not in os.environ:
        return None

    return open_link()


def _with_flags(settings: Settings, slots: int | None, queues: list[str] | None) -> Settings:
    given: dict[str, Any] = {}
    if slots is not None:
        given["slots"] = slots
    if queues:
        given["queues"] = tuple(check_label(queue, "--queue") for queue in queues)
    if not given:
        return settings
    return settings.model_copy(update={"worker": settings.worker.model_copy(update=given)})


def report_unknown_settings(emit: Emit) -> None:
    """Say which variables of the environment look like settings and are none."""
    for stranger in find_unknown_variables():
        emit(UnknownSetting(stranger.name, stranger.advice))


def run_event_loop(main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine on the quickest loop there is, with as many files as the system allows.

    LoopEnded if something that runs there ends the loop before it.

    What does not end with the coroutine, such as a handler that ignores its cancellation, holds up the process for some seconds.
    """
    raise_file_limit()
    has_returned = False

    async def to_the_end() -> None:
        nonlocal has_returned
        await main
        has_returned = True

    loop = _make_loop()
    try:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            try:
                runner.run(to_the_end())
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
    """A loop that remembers who stopped it first."""
    try:
        from uvloop import Loop
    except ImportError:  # no uvloop on this platform: slower, and right all the same
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
        # The nodes have left or been lost; nothing of the engine runs any more.
        drain_standard_output()
        os._exit(code())

    timer = threading.Timer(_EXIT_SECONDS, end)
    timer.daemon = True
    timer.start()


async def _run(
    settings: Settings,
    reference: str | None,
    program: Any,
    *,
    with_scheduler: bool,
    with_worker: bool,
    with_demo: bool,
    link: SupervisorLink | None,
) -> None:
    metrics = _process_metrics() if settings.metrics_port is not None or (link is not None and with_scheduler) else None
    emit = make_emit(settings, metrics)
    report_unknown_settings(emit)
    if link is not None:
        report_restart(link, emit)
        link.grace_seconds = settings.worker.grace_seconds
        link.count = None if metrics is None else metrics.text
    async with open_runtime(settings) as parts:
        record_data_dir(settings)
        registry = Registry() if program is None else program.registry
        if program is not None and with_worker:
            for job in await program.declare_with(parts.commands):
                emit(ScheduleUndeclared(job.id, str(job.name), str(job.declared_by)))
        if with_demo:
            await declare_demo(parts.commands)
        supervisor = make_supervisor(
            parts,
            emit,
            registry=registry,
            app_reference=reference,
            with_scheduler=with_scheduler,
            with_worker=with_worker,
            trouble=None if link is None else link.trouble,
        )
        _handle_signals(supervisor, link)
        tune_garbage_collector()
        if link is not None:
            link.started()
            await link.going()
        with _metrics_server(metrics, settings):
            await supervisor.run()


def report_restart(link: SupervisorLink, emit: Emit) -> None:
    """Say that this process stands for one that died."""
    if link.deaths:
        emit(ProcessRestarted(link.name, link.reason, link.deaths))


def _process_metrics() -> ProcessMetrics:
    """Counters of what is emitted; a process whose metrics nothing reads has no memory for them."""
    from timeball.telemetry.metrics import ProcessMetrics

    return ProcessMetrics()


def tune_garbage_collector() -> None:
    """Let the garbage collector leave alone what was imported, and come less often: a batch of executions is thousands of objects.

    With its own settings it was at work in every seventh sample of a busy worker's profile.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS, *gc.get_threshold()[1:])


@contextmanager
def _metrics_server(metrics: ProcessMetrics | None, settings: Settings) -> Iterator[None]:
    """A process without an API listens on nothing, unless it was asked to let Prometheus read it."""
    if metrics is None or settings.metrics_port is None:
        yield
        return
    from timeball.telemetry.metrics import serve

    try:
        end = serve(metrics, settings.metrics_port, settings.metrics_host)
    except OSError as error:
        raise InvalidInput(
            f"metrics cannot be served on {settings.metrics_host}:{settings.metrics_port}: {error.strerror or error}",
            field="metrics_port",
            hint="choose another address with TIMEBALL_METRICS_HOST and TIMEBALL_METRICS_PORT",
        ) from error
    try:
        yield
    finally:
        end()


def _handle_signals(supervisor: Supervisor, link: SupervisorLink | None) -> None:
    def stop() -> None:
        supervisor.stop()
        if link is not None:
            link.go()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)


# A child's end of the conversation with its supervisor (`cli/supervisor.py`).
#
# A thread of its own listens, so that the end of the supervisor is noticed whatever the event loop does: then this process leaves as if
# it had been told to (SIGTERM), and ends by force should that take too long.

_PUSH_SECONDS = 5.0


# Past the grace: what ends by itself has written down its end by then.
_ORPHAN_EXIT_SECONDS = 15.0


def open_link() -> SupervisorLink | None:
    """The link to the supervisor of this process, if it has one; programs that this process starts have none."""
    about = os.environ.pop(CHILD, None)
    return None if about is None else SupervisorLink(json.loads(about), _detach_socket())


def _detach_socket() -> socket.socket:
    """Move the socket away from fd 0, where the programs a handler starts would inherit it."""
    connection = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return connection


class SupervisorLink:
    """What a supervised process hears from its supervisor, and says to it."""

    def __init__(self, about: dict[str, Any], connection: socket.socket) -> None:
        self.name: str = about["name"]
        # How often it has died lately, and how it did the last time.
        self.deaths: int = about["deaths"]
        self.reason: str = about["reason"]
        self._connection = connection
        self._sending = threading.Lock()
        self._going = threading.Event()
        self._on_go: Callable[[], object] = lambda: None
        # What this process counts, as text; and what another one has counted.
        self.count: Callable[[], str] | None = None
        self.counted_elsewhere = ""
        self.grace_seconds = 0.0
        # It has no terminal of its own, and may write to that of its supervisor.
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        connection.settimeout(_PUSH_SECONDS)
        threading.Thread(target=self._listen, name="supervisor", daemon=True).start()

    @property
    def trouble(self) -> str | None:
        """What became of the process that this one stands for."""
        return f"its process was started again: the one before {self.reason}" if self.deaths else None

    def started(self, address: str = "") -> None:
        """Say that this process has come so far that it can be kept alive."""
        self._send({"started": address})

    def wait_to_go(self) -> None:
        """Wait until the others have come as far as they must."""
        self._going.wait()

    async def going(self) -> None:
        """The same on an event loop."""
        loop, going = asyncio.get_running_loop(), asyncio.Event()
        self._on_go = lambda: loop.call_soon_threadsafe(going.set)
        if not self._going.is_set():
            await going.wait()

    def go(self) -> None:
        """Wait no longer."""
        self._going.set()
        self._on_go()

    def _listen(self) -> None:
        received = b""
        while True:
            try:
                data = self._connection.recv(65536)
            except TimeoutError:
                self._push()
                continue
            except OSError:
                data = b""
            if not data:
                self._exit_orphaned()
                return
            *lines, received = (received + data).split(b"\n")
            for line in lines:
                self._on_message(json.loads(line))

    def _on_message(self, message: dict[str, Any]) -> None:
        if "go" in message:
            self.go()
        elif "metrics" in message:
            self.counted_elsewhere = message["metrics"]

    def _push(self) -> None:
        if self.count is not None:
            self._send({"metrics": self.count()})

    def _send(self, message: dict[str, Any]) -> None:
        with self._sending, suppress(OSError):
            # Otherwise the supervisor has gone, which the thread will notice.
            self._connection.sendall(json.dumps(message).encode() + b"\n")

    def _exit_orphaned(self) -> None:
        """The supervisor is gone: leave, in good order if that can be."""
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(self.grace_seconds + _ORPHAN_EXIT_SECONDS)
        drain_standard_output()
        os._exit(FAILED)

    def collect(self) -> Iterable[Metric]:
        """What the process on the other side has counted, for Prometheus."""
        from prometheus_client.parser import text_string_to_metric_families

        return text_string_to_metric_families(self.counted_elsewhere)


# A few jobs to look at, made by `timeball up --demo` and by nothing else; all are called demo-...

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
        description="Fails every time, is tried once more, and ends among the dead letters.",
        handler="test.delay",
        payload={"duration_ms": 200, "should_fail": True, "fail_message": "the demo fails on purpose"},
        interval_seconds=30,
        max_retries=1,
        tags=("demo",),
    ),
)


async def declare_demo(commands: Commands) -> list[str]:
    """Make the demo's jobs, unless they are there; returns their names."""
    for spec in _DEMO_JOBS:
        await commands.jobs.declare(spec, "timeball up --demo")
    return [str(spec.name) for spec in _DEMO_JOBS]
