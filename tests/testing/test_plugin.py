"""The pytest plugin, in a pytest run of its own."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

from tests.support.servers import PostgresServer
from timeball.store.embedded.data_directory import SYSTEM_DIRECTORY

# Imported before an inner pytest starts: modules that the inner one imports first are removed at its end.
from timeball.testing import TimeballHarness, environment  # noqa: F401

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "howto" / "testing.md"
ON_ONE_SERVER = pytest.mark.parametrize("postgres_server", ["pg15"], indirect=True)
Run = Callable[..., pytest.RunResult]

PROGRAM = """
    from timeball import Timeball

    tb = Timeball(database_url="postgresql://nobody@nowhere.invalid/none")

    @tb.handler
    def add(a: int, b: int = 2) -> int:
        return a + b

    @tb.handler(retries=0)
    async def fail() -> None:
        raise ValueError("no luck")

    @tb.every("1h", name="hourly")
    def hourly() -> None: ...
"""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs tests with this plugin and no other installed one."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeini("[pytest]\nasyncio_mode = strict\nasyncio_default_fixture_loop_scope = function\n")
    pytester.makepyfile(program=PROGRAM)

    def run(*options: str, **files: str) -> pytest.RunResult:
        pytester.makepyfile(**files)
        return pytester.runpytest_inprocess("-p", "timeball.testing.plugin", "-p", "pytest_asyncio.plugin", *options)

    return run


@pytest.fixture
def on_server(postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> PostgresServer:
    monkeypatch.setenv("TIMEBALL_TEST_DATABASE_URL", postgres_server.dsn())
    return postgres_server


def left_behind(server: PostgresServer) -> int:
    return server.execute("SELECT count(*)::int FROM pg_database WHERE datname LIKE 'timeball_test_%'")[0][0]


def snippets() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@ON_ONE_SERVER
def test_the_page_about_testing_is_true(run: Run, on_server: PostgresServer) -> None:
    program, tests = snippets()

    result = run("--strict-markers", "-W", "error", shop=program, test_shop=tests)

    result.assert_outcomes(passed=6)
    assert left_behind(on_server) == 0


@ON_ONE_SERVER
def test_a_test_has_an_empty_database_and_leaves_the_program_as_it_was(run: Run, on_server: PostgresServer) -> None:
    result = run(
        test_it="""
        import program
        import pytest

        @pytest.mark.parametrize("number", [1, 2])
        def test_it(timeball, number):
            timeball.use(program.tb, schedules=False)
            assert timeball.executions() == []
            program.add.enqueue(number)
            timeball.assert_enqueued(program.add, number, times=1)

        def test_afterwards():
            assert program.tb.settings.database_url == "postgresql://nobody@nowhere.invalid/none"
        """
    )

    result.assert_outcomes(passed=3)
    assert left_behind(on_server) == 0


@ON_ONE_SERVER
def test_the_program_is_named_in_the_configuration_or_by_a_marker(run: Run, on_server: PostgresServer) -> None:
    result = run(
        "-o",
        "timeball_app=program:tb",
        test_it="""
        import program
        import pytest

        def test_configured(timeball):
            timeball.clock.advance("2h")
            assert len(timeball.fired("hourly")) == 2

        @pytest.mark.timeball(app="program", schedules=False, start="2030-01-01")
        class TestMarked:
            def test_it(self, timeball):
                timeball.clock.advance("2h")
                assert timeball.executions() == []
                assert f"{timeball.clock.now():%Y-%m-%d %H:%M %Z}" == "2030-01-01 02:00 UTC"

            @pytest.mark.timeball(schedules=True)
            def test_nearer(self, timeball):
                timeball.clock.advance("2h")
                assert len(timeball.fired(program.hourly)) == 2
        """,
    )

    result.assert_outcomes(passed=3)


@ON_ONE_SERVER
def test_failures_are_reported(run: Run, on_server: PostgresServer) -> None:
    result = run(
        test_it="""
        import program
        import pytest

        def test_told(timeball):
            timeball.use(program.tb)
            program.fail.enqueue()
            assert timeball.drain().failed == 0

        def test_raised(timeball):
            timeball.use(program.tb)
            program.fail.enqueue()
            timeball.drain(raise_errors=True)

        @pytest.mark.timeball(begin="2030-01-01")
        def test_mistyped(timeball): ...
        """
    )

    result.assert_outcomes(failed=2, errors=1)
    result.stdout.fnmatch_lines(
        [
            "*@pytest.mark.timeball was given begin, expected app, start, schedules by name*",
            "*Captured timeball call*",
            "program:fail attempt 1 failed, now dead: ValueError: no luck",
            "*timeball.drain(raise_errors=True)",
            "E *ExecutionFailed: execution exe_* is dead: ValueError: no luck",
            'E *raise ValueError("no luck")',
        ]
    )


@ON_ONE_SERVER
def test_the_fixture_works_with_anyio(run: Run, on_server: PostgresServer) -> None:
    result = run(
        "-p",
        "anyio.pytest_plugin",
        test_it="""
        import program
        import pytest

        @pytest.fixture
        def anyio_backend():
            return "asyncio"

        @pytest.mark.anyio
        async def test_it(timeball):
            timeball.use(program.tb)
            await program.add.aenqueue(1)
            await timeball.aassert_enqueued(program.add, 1, b=2)
            assert (await timeball.clock.aadvance("1h")).succeeded == 2
            assert (await timeball.alast(program.add)).result == 3
            assert len(await timeball.afired("hourly")) == 1
            assert len(await timeball.aexecutions(program.add)) == 1
        """,
    )

    result.assert_outcomes(passed=1)


def test_without_a_server_the_embedded_one_is_used(
    run: Run, pytester: pytest.Pytester, short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(short_folder))

    result = run(
        test_it="""
        import program

        def test_it(timeball):
            timeball.use(program.tb)
            assert program.add.enqueue(1) and timeball.drain().succeeded == 1
        """
    )

    result.assert_outcomes(passed=1)
    assert not (pytester.path / ".timeball").exists()
    assert list(short_folder.iterdir()) == []
    # A cluster that the account of root's server cannot reach would be put there.
    assert not [
        origin for origin in SYSTEM_DIRECTORY.glob("*/origin") if origin.read_text().startswith(str(short_folder))
    ]


@pytest.mark.parametrize(
    ("address", "message"),
    [
        (
            "mysql://root:hunter2@db/x",
            "TIMEBALL_TEST_DATABASE_URL is not a PostgreSQL URL, expected postgresql://*",
        ),
        ("postgresql://root:hunter2@127.0.0.1:1/x", "PostgreSQL cannot be reached: *"),
    ],
)
def test_a_server_that_cannot_be_used_fails_without_its_password(
    run: Run, monkeypatch: pytest.MonkeyPatch, address: str, message: str
) -> None:
    monkeypatch.setenv("TIMEBALL_TEST_DATABASE_URL", address)

    result = run(test_it="from timeball import Timeball\n\ndef test_it(timeball): timeball.use(Timeball())")

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([message])
    assert "hunter2" not in result.stdout.str()


def test_loading_the_plugin_imports_next_to_nothing() -> None:
    code = "import pytest, sys; before = set(sys.modules); import timeball.testing.plugin; print(*sorted(set(sys.modules) - before))"

    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert printed.split() == ["timeball", "timeball.testing", "timeball.testing.plugin", "timeball.version"]


def test_pytest_finds_the_plugin_by_itself() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

    assert hasattr(import_module(project["entry-points"]["pytest11"]["timeball"]), "pytest_addoption")
    assert not any(re.match("pytest", needed) for needed in project["dependencies"])
