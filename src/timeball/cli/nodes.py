"""Running nodes from the command line: signals, several processes, the greeting."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from timeball.cli.program import load_program, settings_of
from timeball.domain.events import Emit, ScheduleUndeclared, SettingUnknown
from timeball.domain.text import check_label
from timeball.engine.supervisor import Supervisor
from timeball.errors import InvalidInput
from timeball.handlers.registry import Registry
from timeball.settings import Settings, unknown_variables
from timeball.telemetry.emitting import make_emit
from timeball.wiring import Parts, front_parts, make_supervisor, opened

if TYPE_CHECKING:
    from timeball.api.server import ApiServer
    from timeball.telemetry.metrics import ProcessMetrics


_OBJECTS_BETWEEN_COLLECTIONS = 20_000


def run_nodes(
    reference: str | None,
    *,
    slots: int | None = None,
    queues: list[str] | None = None,
    with_scheduler: bool = False,
    with_worker: bool = False,
    is_up: bool = False,
    with_demo: bool = False,
) -> None:
    """Run nodes here until a signal ends them."""
    program = load_program(reference)
    settings = _with_flags(settings_of(program), slots, queues)
    main = _run(
        settings,
        reference,
        program,
        with_scheduler=with_scheduler,
        with_worker=with_worker,
        is_up=is_up,
        with_demo=with_demo,
    )
    run_on_best_loop(main)


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


def run_on_best_loop(main: Any) -> None:
    """Run a coroutine on the quickest loop there is."""
    try:
        import uvloop
    except ImportError:  # no uvloop on this platform: slower, and right all the same
        asyncio.run(main)
        return
    uvloop.run(main)


async def _run(
    settings: Settings,
    reference: str | None,
    program: Any,
    *,
    with_scheduler: bool,
    with_worker: bool,
    is_up: bool,
    with_demo: bool,
) -> None:
    metrics = _counters() if is_up or settings.metrics_port is not None else None
    emit = make_emit(settings, *([] if metrics is None else [metrics.emit]))
    tell_strangers(emit)
    async with opened(settings) as parts:
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
        )
        _heed_signals(supervisor)
        spare_what_stays()
        if not is_up:
            with _metrics_served(metrics, settings):
                await supervisor.run()
            return
        # A worker alone has no use for a web server, and no memory for one.
        from timeball.api.server import ApiServer
        from timeball.dashboard.app import make_front

        front = front_parts(settings, parts.store, parts.commands, metrics)
        api = ApiServer(front, make_front(front))
        await api.open()
        _greet(parts, await api.greeting())
        await _run_both(supervisor, api)


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


async def _run_both(supervisor: Supervisor, api: ApiServer) -> None:
    """The API answers as long as the nodes run."""
    answering = asyncio.ensure_future(api.run())
    try:
        await supervisor.run()
    finally:
        api.stop()
        await answering


def _heed_signals(supervisor: Supervisor) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, supervisor.stop)


def _greet(parts: Parts, api: str) -> None:
    settings = parts.settings
    where = (
        "the embedded PostgreSQL in " + str(settings.data_dir) if settings.database_url is None else "your PostgreSQL"
    )
    sys.stderr.write(f"\n  Timeball is up on {where}. Ctrl-C stops it; again, at once.\n  {api}\n")
    if settings.database_url is None:
        sys.stderr.write(f"  Other programs reach it with: TIMEBALL_DATABASE_URL='{parts.store.database.dsn}'\n\n")
    sys.stderr.flush()


def run_processes(number: int) -> NoReturn:
    """Run so many worker processes with the same arguments, and stop them together."""
    arguments = _without_processes(sys.argv[1:])
    # In groups of their own: Ctrl-C in a terminal would reach them besides, and being told twice means "at once".
    command = [sys.executable, "-m", "timeball", *arguments]
    children = [subprocess.Popen(command, process_group=0) for _ in range(number)]

    def pass_on(received: int, _frame: object) -> None:
        for child in children:
            if child.poll() is None:
                child.send_signal(signal.SIGTERM if received == signal.SIGHUP else received)

    for number_ in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number_, pass_on)
    codes = [_wait(child) for child in children]
    os._exit(max(abs(code) for code in codes))


def _wait(child: subprocess.Popen[bytes]) -> int:
    while True:
        try:
            return child.wait()
        except KeyboardInterrupt:
            continue


def _without_processes(arguments: list[str]) -> list[str]:
    kept: list[str] = []
    skips_next = False
    for argument in arguments:
        if skips_next:
            skips_next = False
        elif argument == "--processes":
            skips_next = True
        elif not argument.startswith("--processes="):
            kept.append(argument)
    return kept
