"""`timeball api`: the HTTP API and dashboard in this process."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import TYPE_CHECKING

from timeball.api.server import ApiServer
from timeball.cli.nodes import (
    report_restart,
    report_unknown_settings,
    run_event_loop,
    supervisor_link,
    tune_garbage_collector,
)
from timeball.cli.program import load_program, settings_of
from timeball.config.settings import Settings
from timeball.dashboard.app import make_web_app
from timeball.runtime import make_server_runtime, open_runtime
from timeball.telemetry.emitter import make_emit
from timeball.telemetry.output import queue_standard_output

if TYPE_CHECKING:
    from timeball.cli.nodes import SupervisorLink

_NICENESS = 10


def run_api(reference: str | None, host: str | None, port: int | None) -> None:
    """Serve the API here until a signal ends it."""
    queue_standard_output()
    link = supervisor_link()
    if link is not None:
        # The nodes beside it say what is wrong with program, settings and database.
        link.wait_to_go()
        # On a busy machine requests wait for the nodes beside them, and not jobs for requests.
        os.nice(_NICENESS)
    given = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    settings = settings_of(load_program(reference))
    run_event_loop(_serve(settings.model_copy(update=given), link))


async def _serve(settings: Settings, link: SupervisorLink | None) -> None:
    emit = make_emit(settings)
    if link is None:
        report_unknown_settings(emit)
    else:
        report_restart(link, emit)
    async with open_runtime(settings) as parts:
        front = make_server_runtime(settings, parts.store, parts.commands, link, emit)
        server = ApiServer(front, make_web_app(front))
        await server.open()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, server.stop)
        tune_garbage_collector()
        if link is None:
            _say(f"\n  {await server.greeting()}\n")
        else:
            link.started(server.address)
            if not link.deaths:
                _say(_welcome(settings, parts.store.database.dsn, await server.greeting()))
        await server.run()


def _welcome(settings: Settings, dsn: str, api: str) -> str:
    is_embedded = settings.database_url is None
    where = f"the embedded PostgreSQL in {settings.data_dir}" if is_embedded else "your PostgreSQL"
    words = f"\n  Timeball is up on {where}. Ctrl-C stops it; again, at once.\n  {api}\n"
    return words + (f"  Other programs reach it with: TIMEBALL_DATABASE_URL='{dsn}'\n\n" if is_embedded else "")


def _say(words: str) -> None:
    sys.stderr.write(words)
    sys.stderr.flush()
