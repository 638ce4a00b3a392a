"""Every example of every help text does what it says."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.cli.command_tree import all_commands, all_examples, examples_of
from tests.cli.conftest import Cli, run
from tests.cli.sample_data import World, make_world
from tests.conftest import FreshDatabase
from tests.sdk.conftest import running_node
from tests.support.pace import patience
from tests.support.servers import PostgresServer, Servers, ServiceMissing, give_up_on
from timeball import Timeball
from timeball.config.settings import load_settings

PROGRAM = """
from timeball import Timeball
tb = Timeball()

@tb.every("1h", name="hourly")
def tick() -> None:
    print("tick")
"""
JOBS = '{"name": "a", "handler": "test.echo", "schedule": "manual"}\n{"name": "b", "handler": "test.echo", "interval_seconds": 60}\n'
JOBS_JSON = '[{"name": "d", "handler": "test.echo", "schedule": "manual"}]'
DAYS_ICS = (
    "BEGIN:VCALENDAR\nVERSION:2.0\nPRODID:-//t//EN\nBEGIN:VEVENT\nUID:1\nSUMMARY:closed\n"
    "DTSTART;VALUE=DATE:20270514\nEND:VEVENT\nEND:VCALENDAR\n"
)
BOOK = '{"group": [{"handler": "test.echo", "payload": {"n": 1}}, {"handler": "test.echo"}]}'
JOBS_CSV = 'name,handler,interval_seconds,payload\nc,test.echo,60,"{""n"": 1}"\n'

# An instant that examples name and that has to be ahead, whatever the year.
HOLIDAYS_END = "2027-01-04T06:00"

# These serve until they are stopped.
SERVING = ("timeball up", "timeball api", "timeball scheduler", "timeball worker ", "timeball watch")


def is_serving(example: str) -> bool:
    return example == "timeball worker" or (example.startswith(SERVING) and "--once" not in example)


def in_three_days() -> str:
    return (datetime.now(UTC) + timedelta(days=3)).strftime("%Y-%m-%dT06:00")


def run_of(example: str, world: World) -> str:
    """The execution that stands for RUN."""
    return {"cancel": world.waiting, "watch": world.succeeded}.get(" ".join(example.split()[2:3]), world.dead)


def alert_of(example: str, world: World) -> str:
    """The alert that stands for ALERT."""
    return world.known_alert if " unacknowledge " in example else world.alert


# These change nothing, so one database serves them all.
LOOKING = frozenset(
    {
        "list",
        "show",
        "deliveries",
        "delivery",
        "groups",
        "next",
        "logs",
        "export",
        "status",
        "why",
        "doctor",
        "forecast",
        "tail",
        "top",
    }
    | {"verify", "check", "alive", "plan", "watch"}
)


def only_looks(example: str) -> bool:
    noun, *rest = shlex.split(example)[1:3]
    is_a_noun_alone = not rest or rest[0].startswith("-")
    # `groups` is a verb of `dead`, and a noun.
    return is_a_noun_alone or noun in LOOKING - {"groups"} or rest[0] in LOOKING


SHORT = [example for example in all_examples() if not is_serving(example)]
LONG = [example for example in all_examples() if is_serving(example)]


@pytest.fixture(scope="session")
def template_world(
    servers: Servers, template_of: Callable[[PostgresServer], str]
) -> Iterator[tuple[PostgresServer, str, World]]:
    """A database with a small world in it, for each example to have a copy of."""
    try:
        server = servers.postgres("pg15")
    except ServiceMissing as error:
        give_up_on(error)
        raise
    name = server.create_database(template_of(server))
    world = make_world(server.dsn(name))
    yield server, name, world
    server.drop_database(name)


@contextmanager
def copy_of(template_world: tuple[PostgresServer, str, World]) -> Iterator[FreshDatabase]:
    server, template, _ = template_world
    name = server.create_database(template)
    yield FreshDatabase(server, name, server.dsn(name))
    server.drop_database(name)


@pytest.fixture(scope="session")
def shared_database(template_world: tuple[PostgresServer, str, World]) -> Iterator[FreshDatabase]:
    with copy_of(template_world) as database:
        yield database


@pytest.fixture
def fresh_database(
    request: pytest.FixtureRequest, example: str, template_world: tuple[PostgresServer, str, World]
) -> Iterator[FreshDatabase]:
    """A copy for each example that changes something; those that serve change nothing while nothing is due."""
    if only_looks(example) or (is_serving(example) and "--demo" not in example):
        yield request.getfixturevalue("shared_database")
        return
    with copy_of(template_world) as database:
        yield database


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what examples name."""
    (tmp_path / "app.py").write_text(PROGRAM)
    (tmp_path / "jobs.jsonl").write_text(JOBS)
    (tmp_path / "jobs.json").write_text(JOBS_JSON)
    (tmp_path / "jobs.csv").write_text(JOBS_CSV)
    (tmp_path / "book.json").write_text(BOOK)
    (tmp_path / "days.ics").write_text(DAYS_ICS)
    monkeypatch.delitem(sys.modules, "app", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("example", SHORT)
def test_example(
    example: str,
    cli: Cli,
    folder: Path,
    template_world: tuple[PostgresServer, str, World],
    fresh_database: FreshDatabase,
) -> None:
    world = template_world[2]
    names = {"RUN": run_of(example, world), "WORKER": world.worker, "KEY": world.key}
    names |= {
        "FREEZE": world.freeze,
        "ALERT": alert_of(example, world),
        "GROUP": world.group,
        "WEBHOOK": world.webhook,
        "DELIVERY": world.delivery,
        HOLIDAYS_END: in_three_days(),
    }
    words = [names.get(word, word) for word in shlex.split(example)[1:]]

    if "--wait" in words:
        settings = load_settings(database_url=fresh_database.dsn, migrate=False)
        with running_node(Timeball(settings=settings), settings):
            done = run(*words)
    else:
        done = run(*words)

    # Nothing runs on this machine, and the doctor finds fault with that; so does verify, once something has waited for a minute.
    may_complain = words[0] in ("doctor", "alive", "watch") or (words[0] == "verify" and "stuck" in done.out)
    assert done.code in ((0, 1) if may_complain else (0,)), done.err
    assert "Traceback" not in done.err


@pytest.mark.slow
@pytest.mark.parametrize("example", LONG)
def test_serving_example(example: str, folder: Path, fresh_database: FreshDatabase) -> None:
    environment = {
        **os.environ,
        "TIMEBALL_DATABASE_URL": fresh_database.dsn,
        "TIMEBALL_MIGRATE": "false",
        "TIMEBALL_PORT": "0",
        "TIMEBALL_LOG_FORMAT": "json",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "timeball", *shlex.split(example)[1:]],
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        first = process.stderr.readline()
        assert first, "it ended without a word"
        process.send_signal(signal.SIGTERM)
        _, rest = process.communicate(timeout=patience(60))
        assert process.returncode == 0, first + rest
    finally:
        process.kill()


def test_every_command_has_an_example_or_is_one_word() -> None:
    silent = [" ".join(path) for path, command in all_commands() if path and not examples_of(command)]

    assert silent == []
