"""The command line, called in this process on a database of its own."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import FreshDatabase
from tests.support.servers import PostgresServer, Servers, ServiceMissing, give_up_on
from timeball.cli.app import run as run_command


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)

    @property
    def lines(self) -> list[list[str]]:
        assert self.code == 0, self.err
        return [line.split("\t") for line in self.out.splitlines()]


Cli = Callable[..., Done]


@pytest.fixture
def fresh_database(servers: Servers, template_of: Callable[[PostgresServer], str]) -> Iterator[FreshDatabase]:
    """One kind of server is enough here."""
    try:
        server = servers.postgres("pg15")
    except ServiceMissing as error:
        give_up_on(error)
        raise
    name = server.create_database(template_of(server))
    yield FreshDatabase(server, name, server.dsn(name))
    server.drop_database(name)


def run(*arguments: str) -> Done:
    """Run a command in this process, its output not a terminal."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = run_command(arguments)
    return Done(code, out.getvalue(), err.getvalue())


@pytest.fixture
def cli(fresh_database: FreshDatabase, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cli:
    """Runs commands on the test's database, as the user ana."""
    monkeypatch.setenv("TIMEBALL_DATABASE_URL", fresh_database.dsn)
    monkeypatch.setenv("TIMEBALL_MIGRATE", "false")
    monkeypatch.setenv("LOGNAME", "ana")
    monkeypatch.chdir(tmp_path)
    return run
