"""`timeball api`: the HTTP API alone."""

from __future__ import annotations

import asyncio
import signal
import sys

from timeball.api.server import ApiServer
from timeball.cli.nodes import run_on_best_loop, spare_what_stays, tell_strangers
from timeball.cli.program import load_program, settings_of
from timeball.dashboard.app import make_front
from timeball.settings import Settings
from timeball.telemetry.emitting import make_emit
from timeball.wiring import front_parts, opened


def run_api(reference: str | None, host: str | None, port: int | None) -> None:
    """Serve the API here until a signal ends it."""
    given = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    settings = settings_of(load_program(reference))
    run_on_best_loop(_serve(settings.model_copy(update=given)))


async def _serve(settings: Settings) -> None:
    tell_strangers(make_emit(settings))
    async with opened(settings) as parts:
        front = front_parts(settings, parts.store, parts.commands)
        server = ApiServer(front, make_front(front))
        await server.open()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, server.stop)
        spare_what_stays()
        sys.stderr.write(f"\n  {await server.greeting()}\n")
        sys.stderr.flush()
        await server.run()
