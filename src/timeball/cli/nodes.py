"""Running nodes from the command line, in this process; several processes are the matter of `cli/supervising.py`."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from timeball.cli.exits import FAILED, OK
from timeball.cli.place import leave_note
from timeball.cli.program import load_program, settings_of
from timeball.domain.events import Emit, ProcessRestarted, ScheduleUndeclared, SettingUnknown
from timeball.domain.text import check_label
from timeball.engine.supervisor import Supervisor
from timeball.errors import InvalidInput, LoopEnded
from timeball.handlers.registry import Registry
from timeball.loops import raise_file_limit
from timeball.settings import Settings, unknown_variables
from timeball.telemetry.emitting import make_emit
from timeball.telemetry.output import drain_standard_output, queue_standard_output
from timeball.wiring import make_supervisor, opened

if TYPE_CHECKING:
    from timeball.cli.supervised import Link
    from timeball.telemetry.metrics import ProcessMetrics


_OBJECTS_BETWEEN_COLLECTIONS = 20_000
# How long what is left may hold up a process whose work is done.
_LAST_SECONDS = 10.0


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
    run_on_best_loop(main)


def supervisor_link() -> Link | None:
    """The link to the process that supervises this one; most are started by hand, and have none."""
    if "_TIMEBALL_CHILD" not in os.environ:
        return None
    from timeball.cli.supervised import take_link

    return take_link()


def _with_flags(settings: Settings, slots: int | None, queues: list[str] | None) -> Settings:
    given: dict[str, Any] = {}
    if slots is not None:
        given["slots"] = slots
    if queues:
        given["queues"] = tuple(check_label(queue, "--queue") for queue in queues)
    if not given:
        return settings
    return settings.model_copy(update={"worker": settings.worker.model_copy(update=given)})


def tell_strangers(emit: Emit) -> None:
    """Say which variables of the environment look like settings and are none."""
    for stranger in unknown_variables():
        emit(SettingUnknown(stranger.name, stranger.advice))


def run_on_best_loop(main: Coroutine[Any, Any, None]) -> None:
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
                _end_by_force_later(lambda: OK if has_returned else FAILED)
    except asyncio.CancelledError:
        raise LoopEnded("all tasks of this process were cancelled") from None
    except SystemExit as error:
        if not has_returned:
            raise LoopEnded(f"a task of this process called sys.exit({error.code!r})") from None
    except RuntimeError:
        if has_returned or loop.stopped_by is None:
            raise
        raise LoopEnded(f"the event loop of this process was stopped by {loop.stopped_by}") from None


def _make_loop() -> Any:
    """A loop that remembers who stopped it first."""
    try:
        from uvloop import Loop
    except ImportError:  # no uvloop on this platform: slower, and right all the same
        return _watched(asyncio.SelectorEventLoop)
    return _watched(Loop)


def _watched(kind: type[Any]) -> Any:
    def stop(self: Any) -> None:
        if self.stopped_by is None:
            caller = sys._getframe(1)
            self.stopped_by = f"{caller.f_code.co_qualname} ({caller.f_code.co_filename}:{caller.f_lineno})"
        kind.stop(self)

    return type("WatchedLoop", (kind,), {"stop": stop, "stopped_by": None})()


def _end_by_force_later(code: Callable[[], int]) -> None:
    def end() -> None:
        # The nodes have left or been lost; nothing of the engine runs any more.
        drain_standard_output()
        os._exit(code())

    timer = threading.Timer(_LAST_SECONDS, end)
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
    link: Link | None,
) -> None:
    metrics = _counters() if settings.metrics_port is not None or (link is not None and with_scheduler) else None
    emit = make_emit(settings, metrics)
    tell_strangers(emit)
    if link is not None:
        tell_restart(link, emit)
        link.grace_seconds = settings.worker.grace_seconds
        link.count = None if metrics is None else metrics.text
    async with opened(settings) as parts:
        leave_note(settings)
        registry = Registry() if program is None else program.registry
        if program is not None and with_worker:
            for job in await program.declare_with(parts.commands):
                emit(ScheduleUndeclared(job.id, str(job.name), str(job.declared_by)))
        if with_demo:
            from timeball.cli.demo import declare_demo

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
        _heed_signals(supervisor, link)
        spare_what_stays()
        if link is not None:
            link.started()
            await link.going()
        with _metrics_served(metrics, settings):
            await supervisor.run()


def tell_restart(link: Link, emit: Emit) -> None:
    """Say that this process stands for one that died."""
    if link.deaths:
        emit(ProcessRestarted(link.name, link.reason, link.deaths))


def _counters() -> ProcessMetrics:
    """Counters of what is emitted; a process whose metrics nothing reads has no memory for them."""
    from timeball.telemetry.metrics import ProcessMetrics

    return ProcessMetrics()


def spare_what_stays() -> None:
    """Let the garbage collector leave alone what was imported, and come less often: a batch of executions is thousands of objects.

    With its own settings it was at work in every seventh sample of a busy worker's profile.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS, *gc.get_threshold()[1:])


@contextmanager
def _metrics_served(metrics: ProcessMetrics | None, settings: Settings) -> Iterator[None]:
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


def _heed_signals(supervisor: Supervisor, link: Link | None) -> None:
    def stop() -> None:
        supervisor.stop()
        if link is not None:
            link.go()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
