"""`timeball api`: the HTTP API alone, or beside the nodes of `timeball up`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import TYPE_CHECKING

from timeball.api.server import ApiServer
from timeball.cli.nodes import run_on_best_loop, spare_what_stays, supervisor_link, tell_restart, tell_strangers
from timeball.cli.program import load_program, settings_of
from timeball.dashboard.app import make_front
from timeball.settings import Settings
from timeball.telemetry.emitting import make_emit
from timeball.telemetry.output import queue_standard_output
from timeball.wiring import front_parts, opened

if TYPE_CHECKING:
    from timeball.cli.supervised import Link

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
    run_on_best_loop(_serve(settings.model_copy(update=given), link))


async def _serve(settings: Settings, link: Link | None) -> None:
    emit = make_emit(settings)
    if link is None:
        tell_strangers(emit)
    else:
        tell_restart(link, emit)
    async with opened(settings) as parts:
        front = front_parts(settings, parts.store, parts.commands, link, emit)
        server = ApiServer(front, make_front(front))
        await server.open()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, server.stop)
        spare_what_stays()
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
