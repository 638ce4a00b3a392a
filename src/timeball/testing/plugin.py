"""The pytest plugin: the `timeball` fixture.

pytest loads this module wherever Timeball is installed. So the fixtures import what they need when they are used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

if TYPE_CHECKING:
    from timeball.testing.environment import SessionDatabases
    from timeball.testing.harness import TimeballHarness

_MARKER = (
    "timeball(app=None, start=None, schedules=True): the program the timeball fixture uses, "
    "when its clock starts, and which schedules become jobs"
)
T = TypeVar("T")

_OPTIONS = ("app", "start", "schedules")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("timeball_app", "the program that the timeball fixture uses, such as app:tb", default="")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARKER)


@pytest.fixture(scope="session")
def timeball_databases() -> Iterator[SessionDatabases]:
    """Creates the databases of this session; the first test that needs one starts the server, or connects to it."""
    from timeball.testing.environment import session_databases

    with ExitStack() as stack:
        yield _or_fail(lambda: stack.enter_context(session_databases()))


@pytest.fixture
def timeball(request: pytest.FixtureRequest) -> Iterator[TimeballHarness]:
    """A program with a database of its own for this test, and a clock that stands still until the test moves it.

    A Django project has a test database already, and that one is used.
    """
    from timeball.testing.harness import TimeballHarness

    options = _options(request.node)
    app = options.pop("app", None) or request.config.getini("timeball_app")
    start = {"start": options.pop("start")} if options.get("start") is not None else {}
    made: list[tuple[SessionDatabases, str]] = []

    def make_database() -> str:
        # Not a parameter of this fixture: a program with a test database of its own needs no server of ours.
        databases: SessionDatabases = request.getfixturevalue("timeball_databases")
        url = _or_fail(databases.create)
        made.append((databases, url))
        return url

    harness = TimeballHarness(
        make_database, report=lambda line: request.node.add_report_section("call", "timeball", line), **start
    )
    try:
        if app:
            harness.use(app, **options)
        yield harness
    finally:
        harness.close()
        for databases, url in made:
            databases.drop(url)


def _or_fail(work: Callable[[], T]) -> T:
    """Fail the test in one sentence if the server cannot be used: a traceback would show its URL, which may hold a password."""
    from timeball.errors import TimeballError

    try:
        return work()
    except TimeballError as error:
        pytest.fail(str(error), pytrace=False)


def _options(node: Any) -> dict[str, Any]:
    """The options of a test's markers; the nearest marker goes before the others."""
    options: dict[str, Any] = {}
    for marker in reversed(list(node.iter_markers("timeball"))):
        unknown = sorted(marker.kwargs.keys() - set(_OPTIONS))
        if marker.args or unknown:
            wrong = ", ".join([*map(repr, marker.args), *unknown])
            raise pytest.UsageError(f"@pytest.mark.timeball was given {wrong}, expected {', '.join(_OPTIONS)} by name")
        options |= marker.kwargs
    return options
