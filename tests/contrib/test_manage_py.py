"""`manage.py test` in a new project: Timeball uses the test database, and has left it when Django drops it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.contrib.conftest import tasks_are
from tests.sdk.conftest import SOURCES
from tests.support.servers import POSTGRES_PORT, VERSIONS, PostgresServer

pytestmark = [pytest.mark.parametrize("postgres_server", VERSIONS, indirect=True), pytest.mark.slow]

_SETTINGS = """
INSTALLED_APPS += ["shop"] + (["django_tasks"] if "{tasks}" == "django_tasks" else [])
TASKS = {{"default": {{"BACKEND": "timeball.contrib.django.Backend"}}}}
DATABASES = {{"default": {{
    "ENGINE": "django.db.backends.postgresql", "NAME": "{name}", "USER": "{role}", "HOST": "{host}", "PORT": "{port}",
}}}}
"""
_TASKS = """
from {tasks} import task
from timeball.contrib.django import tb

@task
def noop() -> None:
    pass

@tb.handler
def count(number: int) -> int:
    return number

@tb.handler
def count_users() -> int:
    from django.contrib.auth.models import User

    return User.objects.count()
"""
_TESTS = """
from django.db import connection
from django.test import TestCase, TransactionTestCase

from shop.tasks import count, noop


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


class HandlerInATransaction(TestCase):
    def test_enqueue(self):
        count.enqueue(1)
        self.assertEqual(jobs(), 1)

    def test_again(self):
        count.enqueue(1)
        self.assertEqual(jobs(), 1)


class HandlerCommitted(TransactionTestCase):
    def test_enqueue(self):
        self.assertEqual(count.enqueue(1).state(), "queued")
        count.enqueue_many([count.call(number) for number in range(20)])
        for number in range(20):
            count.enqueue(number)
        self.assertGreaterEqual(jobs(), 41)


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

# As pytest-django does it.
_CONFTEST = """
import django
import pytest

django.setup()

from django.test.utils import setup_databases, setup_test_environment, teardown_databases, teardown_test_environment


@pytest.fixture(scope="session", autouse=True)
def databases():
    setup_test_environment()
    config = setup_databases(verbosity=0, interactive=False)
    yield
    teardown_databases(config, verbosity=0)
    teardown_test_environment()
"""
_PYTEST_TESTS = """
import pytest
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.test import TestCase

from shop.tasks import count, count_users, noop
from timeball import InvalidInput
from timeball.contrib.django import tb


def test_the_fixture_runs_what_was_enqueued_in_the_test_database(timeball):
    timeball.use(tb)
    User.objects.create(username="ada")
    with transaction.atomic():
        noop.enqueue()
        count.enqueue(7)
        result = count_users.enqueue()
    with transaction.atomic():
        count.enqueue(8)
        transaction.set_rollback(True)
    count.options(delay="1d").enqueue(9)

    timeball.assert_enqueued(count, 7)
    assert timeball.drain(raise_errors=True).succeeded == 3
    assert timeball.last(count).result == 7
    assert result.result() == 1
    timeball.clock.advance("1d")
    assert timeball.last(count).result == 9


def test_each_test_finds_nothing_of_the_one_before(timeball):
    timeball.use(tb)

    assert timeball.executions() == []


class InATransaction(TestCase):
    @pytest.fixture(autouse=True)
    def keep(self, timeball):
        self.timeball = timeball

    def test_the_fixture_says_that_it_cannot_see_what_is_not_committed(self):
        with pytest.raises(InvalidInput, match="inside of a transaction that is not committed"):
            self.timeball.use(tb)

    def test_handlers_run_inline_in_it(self):
        User.objects.create(username="bob")
        with tb.inline(raise_errors=True):
            assert count_users.enqueue().result() == User.objects.count()


def test_without_the_fixture_timeball_works_as_ever():
    assert count.enqueue(1).state() == "queued"
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) > 1 FROM timeball.shard")
        assert cursor.fetchone() == (True,)
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

    # No package: the runner of Django does not look into it.
    (tmp_path / "for_pytest").mkdir()
    (tmp_path / "for_pytest" / "conftest.py").write_text(_CONFTEST)
    (tmp_path / "for_pytest" / "test_with_pytest.py").write_text(_PYTEST_TESTS)

    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        program = ["-m", *arguments] if arguments[0] == "pytest" else ["manage.py", *arguments]
        return subprocess.run(
            [sys.executable, *program],
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
    assert "Ran 7 tests" in done.stderr
    assert left_behind(postgres_server, role) == []


def test_tests_do_not_touch_the_database_of_timeball_s_settings(
    manage: Callable[..., subprocess.CompletedProcess[str]], postgres_server: PostgresServer, role: str
) -> None:
    url = f"postgresql://{role}@/{role}?host={postgres_server.host}&port={POSTGRES_PORT}"

    done = manage("test", "--noinput", TIMEBALL_DATABASE_URL=url)

    assert done.returncode == 0, done.stdout + done.stderr
    assert postgres_server.execute("SELECT to_regclass('timeball.job')::text", role) == [(None,)]
    assert left_behind(postgres_server, role) == []


def test_the_fixture_of_pytest_uses_django_s_test_database(
    manage: Callable[..., subprocess.CompletedProcess[str]], postgres_server: PostgresServer, role: str
) -> None:
    done = manage("pytest", "-q", "-p", "no:cacheprovider", "for_pytest", PYTHONPATH=str(SOURCES))

    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed" in done.stdout
    assert left_behind(postgres_server, role) == []
