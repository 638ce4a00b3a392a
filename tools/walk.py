"""Prints the files of Timeball that a piece of work passes, in the order in which it enters them.

`make walk` follows three: a cron job from its POST to its recorded success, one `handler.enqueue()`, and one view of a job's page.
ARCHITECTURE.md tells them in words; `tests/tools/test_walk.py` compares the two.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import httpx

import timeball
from timeball import Timeball
from timeball.api.app import make_api
from timeball.client.in_process import InProcessTransport
from timeball.config.settings import Settings, load_settings
from timeball.current import LogCapture
from timeball.dashboard.app import make_web_app
from timeball.runtime import ServerRuntime, make_server_runtime, make_supervisor, open_runtime

SOURCES = Path(timeball.__file__).parent
_PREFIX = f"{SOURCES}/"
# A node that has nothing to do renews its lease and looks around; what it does more often than this is left out of a walk.
_IDLE_SECONDS = 3.0
# What it does less often, or when it connects anew.
_IDLE_FILES = (
    "brokers/base.py",
    "config/settings.py",
    "domain/rollup.py",
    "engine/lease.py",
    "engine/scheduler/housekeeping.py",
    "engine/scheduler/shards.py",
    "engine/scheduler/webhooks.py",
    "engine/supervisor.py",
    "runtime.py",
    "store/db/url.py",
    "store/history.py",
    "store/rollups.py",
    "store/store.py",
    "telemetry/events.py",
)
# How this tool sends its requests.
_OF_THE_TOOL = ("api/in_process.py", "client/in_process.py")
_CRON_JOB = {"name": "walk", "handler": "test.echo", "schedule": "* * * * * *", "payload": {"message": "hello"}}

Functions = dict[tuple[str, str], None]


class Tracer:
    """Notes which functions of Timeball are called, in this thread and in those that are started from now on."""

    def __init__(self) -> None:
        self._functions: Functions | None = None

    def install(self) -> None:
        """Watch calls until `remove`."""
        threading.setprofile(self._on_call)
        sys.setprofile(self._on_call)

    def remove(self) -> None:
        """Watch no more; threads that were started meanwhile note nothing either."""
        self._functions = None
        sys.setprofile(None)
        threading.setprofile(None)

    def _on_call(self, frame: FrameType, event: str, _argument: Any) -> None:
        functions = self._functions
        if event == "call" and functions is not None:
            path = frame.f_code.co_filename
            if path.startswith(_PREFIX):
                functions.setdefault((path.removeprefix(_PREFIX), frame.f_code.co_qualname))

    @contextmanager
    def noting(self) -> Iterator[Functions]:
        """Note what is called meanwhile."""
        functions: Functions = {}
        self._functions = functions
        try:
            yield functions
        finally:
            self._functions = None

    @contextmanager
    def pausing(self) -> Iterator[None]:
        """Leave out what is called meanwhile."""
        functions, self._functions = self._functions, None
        try:
            yield
        finally:
            self._functions = functions


def files_of(functions: Functions, idle: Functions | None = None) -> list[str]:
    """The files of these functions, without those that belong to an idle node."""
    ours = [path for path, name in functions if (path, name) not in (idle or {}) and path not in _IDLE_FILES]
    return [path for path in dict.fromkeys(ours) if path not in _OF_THE_TOOL]


@contextmanager
def tracing() -> Iterator[Tracer]:
    """A tracer, for as long as it is used."""
    tracer = Tracer()
    tracer.install()
    try:
        yield tracer
    finally:
        tracer.remove()


def walk_of_cron_job(settings: Settings) -> list[str]:
    """From `POST /jobs` to the recorded success of the first occurrence, with a scheduler and a worker in this process."""
    with tracing() as tracer:
        return asyncio.run(_run_cron_job(settings, tracer))


async def _run_cron_job(settings: Settings, tracer: Tracer) -> list[str]:
    async with open_runtime(settings) as runtime:
        supervisor = make_supervisor(runtime, lambda _event: None, with_scheduler=True, with_worker=True)
        nodes = asyncio.create_task(supervisor.run())
        server = make_server_runtime(settings, runtime.store, runtime.commands)
        try:
            async with _client(make_api(server)) as client:
                # Once before: what only the first job of a process passes is not part of the walk.
                await _post_and_wait(client, tracer, "warm-up")
                # What it left is done by then.
                await asyncio.sleep(_IDLE_SECONDS)
                with tracer.noting() as idle:
                    await asyncio.sleep(_IDLE_SECONDS)
                with tracer.noting() as functions:
                    await _post_and_wait(client, tracer, "walk")
            return files_of(functions, idle)
        finally:
            supervisor.stop()
            await nodes
            _stop_capturing_logs()


def _stop_capturing_logs() -> None:
    """The worker captures the logs of this process; the logs of another walk would pass through it."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, LogCapture):
            handler.remove()


async def _post_and_wait(client: httpx.AsyncClient, tracer: Tracer, name: str) -> None:
    answer = await client.post("/api/v1/jobs", json={**_CRON_JOB, "name": name})
    answer.raise_for_status()
    job = answer.json()["id"]
    while True:
        await asyncio.sleep(0.1)
        with tracer.pausing():
            executions = (await client.get(f"/api/v1/jobs/{job}/executions")).json()
            if any(execution["state"] == "succeeded" for execution in executions["data"]):
                (await client.delete(f"/api/v1/jobs/{job}")).raise_for_status()
                return


def walk_of_enqueue(settings: Settings) -> list[str]:
    """One `handler.enqueue()` of a program that has enqueued before."""
    with tracing() as tracer, Timeball(settings=settings) as program:

        @program.handler
        def greet(name: str) -> None:
            """Does nothing: only its enqueue is looked at."""

        greet.enqueue("first")
        with tracer.noting() as functions:
            greet.enqueue("second")
        return files_of(functions)


def walk_of_page(settings: Settings) -> list[str]:
    """One view of a job's page."""
    with tracing() as tracer:
        return asyncio.run(_view_page(settings, tracer))


async def _view_page(settings: Settings, tracer: Tracer) -> list[str]:
    async with open_runtime(settings) as runtime:
        server: ServerRuntime = make_server_runtime(settings, runtime.store, runtime.commands)
        async with _client(make_web_app(server)) as client:
            (await client.post("/api/v1/jobs", json={**_CRON_JOB, "name": "page"})).raise_for_status()
            (await client.get("/jobs/page")).raise_for_status()
            with tracer.noting() as functions:
                (await client.get("/jobs/page")).raise_for_status()
            return files_of(functions)


def _client(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=InProcessTransport(app), base_url="http://localhost:8080")


WALKS: dict[str, Callable[[Settings], list[str]]] = {
    "A cron job, from POST /jobs to its recorded success": walk_of_cron_job,
    "handler.enqueue()": walk_of_enqueue,
    "GET /jobs/{job} of the dashboard": walk_of_page,
}


def main() -> None:
    """Print all walks, on an embedded database that is gone afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        settings = load_settings(data_dir=Path(folder))
        for title, walk in WALKS.items():
            files = walk(settings)
            print(f"{title}: {len(files)} files", *files, sep="\n  ")


if __name__ == "__main__":
    main()
