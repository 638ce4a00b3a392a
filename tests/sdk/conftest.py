"""Programs that use Timeball, and nodes that serve them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

import timeball
from tests.conftest import FreshDatabase
from tests.support.pace import patience
from timeball import Settings, Timeball
from timeball.config.settings import load_settings
from timeball.engine.supervisor import Supervisor
from timeball.runtime import make_supervisor, open_runtime

SOURCES = Path(timeball.__file__).parent.parent
ON_ONE_SERVER = pytest.mark.parametrize("fresh_database", ["pg15"], indirect=True)


@pytest.fixture
def settings(fresh_database: FreshDatabase) -> Settings:
    return load_settings(
        database_url=fresh_database.dsn, behind_pgbouncer=fresh_database.behind_pgbouncer, migrate=False
    )


@pytest.fixture
def tb(settings: Settings) -> Iterator[Timeball]:
    """A program's Timeball on a database of its own."""
    with Timeball(settings=settings) as program:
        yield program


@pytest.fixture
def rows(fresh_database: FreshDatabase) -> Callable[[str], list[dict[str, Any]]]:
    """Reads from the test's database without Timeball."""

    def read(query: str) -> list[dict[str, Any]]:
        with psycopg.connect(fresh_database.server.dsn(fresh_database.name), row_factory=dict_row) as connection:
            return connection.execute(query).fetchall()

    return read


@contextmanager
def running_node(program: Timeball, settings: Settings, reference: str | None = None) -> Iterator[None]:
    """A scheduler and a worker for a program, in a thread with an event loop of its own."""
    ready, nodes = threading.Event(), _Nodes()
    thread = threading.Thread(target=lambda: asyncio.run(nodes.run(program, settings, reference, ready)))
    thread.start()
    assert ready.wait(30)
    try:
        yield
    finally:
        nodes.stop()
        thread.join(30)


class _Nodes:
    def __init__(self) -> None:
        self._supervisor: Supervisor | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self, program: Timeball, settings: Settings, reference: str | None, ready: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            async with open_runtime(settings) as parts:
                await program.declare_with(parts.commands)
                self._supervisor = make_supervisor(
                    parts,
                    lambda _event: None,
                    registry=program.registry,
                    app_reference=reference,
                    with_scheduler=True,
                    with_worker=True,
                )
                self._loop.call_soon(ready.set)
                await self._supervisor.run()
        finally:
            ready.set()

    def stop(self) -> None:
        if self._loop is not None and self._supervisor is not None:
            self._loop.call_soon_threadsafe(self._supervisor.stop)


@pytest.fixture
def node(tb: Timeball, settings: Settings) -> Callable[[], Any]:
    """Runs a worker and a scheduler for the test's program, once its handlers are declared: `with node(): ...`."""
    return lambda: running_node(tb, settings)


@pytest.fixture
def start_program(tmp_path: Path, settings: Settings) -> Callable[..., subprocess.Popen[str]]:
    """Starts a program in its own process, with the test's database; a variable that is None is not set."""

    def start(source: str, **environment: str | None) -> subprocess.Popen[str]:
        program = tmp_path / "program.py"
        program.write_text(source)
        variables = {"TIMEBALL_DATABASE_URL": settings.database_url, "PYTHONPATH": str(SOURCES), **environment}
        return subprocess.Popen(
            [sys.executable, str(program)],
            cwd=tmp_path,
            env={name: value for name, value in {**os.environ, **variables}.items() if value is not None},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


@pytest.fixture
def run_program(start_program: Callable[..., subprocess.Popen[str]]) -> Callable[..., list[str]]:
    """Runs a program to its end; returns what it printed, line by line."""

    def run(source: str, **environment: str | None) -> list[str]:
        return finish(start_program(source, **environment))

    return run


def finish(process: subprocess.Popen[str]) -> list[str]:
    """Wait for a program that must succeed; returns what it printed, line by line."""
    output, errors = process.communicate(timeout=patience(45))
    assert process.returncode == 0, errors
    return output.splitlines()
