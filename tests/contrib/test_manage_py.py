"""`manage.py test` in a new project: Timeball uses the test database, and has left it when Django drops it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.contrib.conftest import tasks_are
from tests.support.servers import POSTGRES_PORT, VERSIONS, PostgresServer

pytestmark = [pytest.mark.parametrize("postgres_server", VERSIONS, indirect=True), pytest.mark.slow]

_SETTINGS = """
INSTALLED_APPS += ["shop"] + (["django_tasks"] if "{tasks}" == "django_tasks" else [])
TASKS = {{"default": {{"BACKEND": "timeball.contrib.django.Backend"}}}}
DATABASES = {{"default": {{
    "ENGINE": "django.db.backends.postgresql", "NAME": "{name}", "USER": "{role}", "HOST": "{host}", "PORT": "{port}",
}}}}
"""
_TASKS = "from {tasks} import task\n\n@task\ndef noop() -> None:\n    pass\n"
_TESTS = """
from django.db import connection
from django.test import TestCase, TransactionTestCase

from shop.tasks import noop


def jobs() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*), current_database() FROM timeball.job")
        exists, name = cursor.fetchone()
        assert name.startswith("test_"), name
        return exists


class InATransaction(TestCase):
    def test_enqueue(self):
        noop.enqueue()
        self.assertEqual(jobs(), 1)

    def test_again(self):
        noop.enqueue()
        self.assertEqual(jobs(), 1)


class Committed(TransactionTestCase):
    def test_enqueue_and_read_back(self):
        result = noop.enqueue()
        for _ in range(20):
            noop.enqueue()
        self.assertEqual(noop.get_result(result.id).status, "READY")
        self.assertGreaterEqual(jobs(), 21)


class CommittedElsewhere(TransactionTestCase):
    def test_enqueue_and_read_back(self):
        result = noop.enqueue()
        self.assertEqual(noop.get_result(result.id).status, "READY")
        self.assertGreaterEqual(jobs(), 1)
"""


@pytest.fixture
def role(postgres_server: PostgresServer) -> Iterator[str]:
    """A role that may create databases, and is not a superuser."""
    role = f"django_{os.getpid()}"
    postgres_server.execute(f"CREATE ROLE {role} LOGIN CREATEDB")
    postgres_server.execute(f'CREATE DATABASE "{role}" OWNER {role}')
    yield role
    postgres_server.drop_database(role)
    for database in left_behind(postgres_server, role):
        postgres_server.drop_database(database)
    postgres_server.execute(f"DROP ROLE {role}")


def left_behind(server: PostgresServer, role: str) -> list[str]:
    names = server.execute("SELECT datname FROM pg_database")
    return [str(name) for (name,) in names if str(name).startswith(f"test_{role}")]


@pytest.fixture
def manage(
    tmp_path: Path, postgres_server: PostgresServer, role: str
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs `manage.py` of a new project with these arguments and variables."""
    subprocess.run([sys.executable, "-m", "django", "startproject", "site_of_tests", str(tmp_path)], check=True)
    values = {
        "tasks": tasks_are(),
        "name": role,
        "role": role,
        "host": postgres_server.host,
        "port": POSTGRES_PORT,
    }
    with (tmp_path / "site_of_tests" / "settings.py").open("a") as settings:
        settings.write(_SETTINGS.format(**values))
    (tmp_path / "shop").mkdir()
    for name, text in {"__init__": "", "tasks": _TASKS.format(**values), "tests": _TESTS}.items():
        (tmp_path / "shop" / f"{name}.py").write_text(text)

    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=tmp_path,
            env=os.environ | {"DJANGO_SETTINGS_MODULE": "site_of_tests.settings"} | variables,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )

    return run


@pytest.mark.parametrize("arguments", [[], ["--parallel", "2"]], ids=["alone", "parallel"])
def test_tests_that_enqueue_end_well_and_leave_no_database(
    manage: Callable[..., subprocess.CompletedProcess[str]],
    postgres_server: PostgresServer,
    role: str,
    arguments: list[str],
) -> None:
    done = manage("test", "--noinput", *arguments)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert "Ran 4 tests" in done.stderr
    assert left_behind(postgres_server, role) == []


def test_tests_do_not_touch_the_database_of_timeball_s_settings(
    manage: Callable[..., subprocess.CompletedProcess[str]], postgres_server: PostgresServer, role: str
) -> None:
    url = f"postgresql://{role}@/{role}?host={postgres_server.host}&port={POSTGRES_PORT}"

    done = manage("test", "--noinput", TIMEBALL_DATABASE_URL=url)

    assert done.returncode == 0, done.stdout + done.stderr
    assert postgres_server.execute("SELECT to_regclass('timeball.job')::text", role) == [(None,)]
    assert left_behind(postgres_server, role) == []
