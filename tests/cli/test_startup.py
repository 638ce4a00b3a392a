"""What a command imports before it does anything. `make bench ONLY=startup` measures times."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.cli.command_tree import root_commands
from tests.conftest import FreshDatabase
from tests.support.pace import patience
from timeball.cli.tree import LazyCommand

# Not needed for a help text or for `timeball next`, and slow to import.
HEAVY = {
    *("aiohttp", "asyncio", "asyncpg", "fastapi", "httpx", "jinja2", "prometheus_client", "pydantic"),
    *("pydantic_core", "rich", "starlette", "uvicorn", "uvloop"),
}


def imported_by(*arguments: str) -> set[str]:
    """The packages that a command has imported when it ends."""
    program = (
        "import sys\nfrom timeball.cli.app import run\n"
        f"code = run({list(arguments)!r})\n"
        "print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)\nsys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.split())


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["jobs", "--help"],
        ["worker", "--help"],
        ["next", "30 2 * * *", "--tz", "Europe/Berlin"],
    ],
    ids=" ".join,
)
def test_light_commands_import_nothing_heavy(arguments: list[str]) -> None:
    assert imported_by(*arguments) & HEAVY == set()


def imported_by_a_running(kind: str, dsn: str) -> set[str]:
    """The modules of a node that has started and has nothing to do."""
    program = (
        f"import sys\nfrom timeball.cli.app import run\ncode = run([{kind!r}])\nprint(*sys.modules)\nsys.exit(code)"
    )
    node = subprocess.Popen(
        [sys.executable, "-c", program],
        env=os.environ | {"TIMEBALL_DATABASE_URL": dsn, "TIMEBALL_LOG_FORMAT": "json"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert node.stderr is not None
        assert any("listener.changed" in line for line in node.stderr), "it ended before it listened"
        node.terminate()
        out, err = node.communicate(timeout=patience(60))
    finally:
        node.kill()
    assert node.returncode == 0, err
    return set(out.split())


# Modules for mail, HTTP, pages, brokers, child processes, the embedded server, metrics and mistyped names.
SPARED = {
    *("aio_pika", "aiohttp", "aiosmtplib", "ctypes", "fastapi", "greenlet", "httpx", "jinja2"),
    *("prometheus_client", "pygments", "redis", "rich", "starlette", "wsgiref", "yarl", "_strptime"),
    *("timeball.handlers.builtin.email", "timeball.handlers.builtin.queue_publish", "timeball.handlers.builtin.shell"),
    *("timeball.application.queries", "timeball.application.events", "timeball.store.embedded"),
    *("timeball.domain.search", "timeball.store.changes", "timeball.store.operations", "timeball.store.templates"),
    *("timeball.brokers.redis", "timeball.brokers.rabbitmq"),
    "timeball.engine.tickets",
    *("opentelemetry", "sentry_sdk", "timeball.contrib", "timeball.telemetry.otlp"),
}


@pytest.mark.parametrize(
    ("kind", "other"),
    [
        (
            "worker",
            {
                *(
                    "timeball.engine.scheduler.scheduler",
                    "timeball.engine.scheduler.housekeeping",
                    "timeball.engine.runners.process",
                ),
                *("timeball.domain.rollup", "timeball.store.rollups"),
            },
        ),
        (
            "scheduler",
            {"timeball.engine.worker.claimer", "timeball.engine.worker.executor", "timeball.engine.runners.in_process"},
        ),
    ],
)
def test_an_idle_node_imports_only_what_it_needs(kind: str, other: set[str], fresh_database: FreshDatabase) -> None:
    """A node is small: optional modules are imported when they are needed."""
    imported = imported_by_a_running(kind, fresh_database.dsn)

    assert f"timeball.engine.{kind}.node" in imported
    assert imported & (SPARED | other) == set()


def test_help_imports_no_command() -> None:
    program = (
        "import sys\nfrom timeball.cli.app import run\nrun(['--help'])\n"
        "print(*sorted(name for name in sys.modules if name.startswith('timeball.cli.')), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)

    assert done.stderr.split() == [f"timeball.cli.{name}" for name in ("app", "errors", "output", "session", "tree")]


@pytest.mark.parametrize("lazy", root_commands(), ids=lambda lazy: str(lazy.name))
def test_the_summary_of_a_command_is_that_of_its_docstring(lazy: LazyCommand) -> None:
    command = lazy.load()

    assert (lazy.name, lazy.get_short_help_str(1000)) == (command.name, command.get_short_help_str(1000))
