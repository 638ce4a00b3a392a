from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from tests.handlers.builtin.support import fail, succeed
from timeball.errors import Conflict, InvalidInput
from timeball.handlers import catalogue
from timeball.handlers.builtin.system import testing_handlers as handlers_for_trying
from timeball.handlers.catalogue import ENTRY_POINT_GROUP, installed_handlers
from timeball.handlers.registry import Registry

EXAMPLE = Path(__file__).parents[2] / "examples" / "handler_package"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the example package installed in it, as pip does it."""
    folder = tmp_path_factory.mktemp("site")
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, "--target", str(folder), str(EXAMPLE)],
        check=True,
        capture_output=True,
        text=True,
    )
    return folder


@pytest.fixture
def handlers(installed: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    monkeypatch.syspath_prepend(str(installed))
    return Registry(installed_handlers())


def point(name: str, value: str) -> EntryPoint:
    return EntryPoint(name, value, ENTRY_POINT_GROUP)


async def test_handlers_of_an_installed_package_are_found_and_run(handlers):
    assert handlers.names() == ("acme.count", "acme.greet")
    assert await succeed(handlers.get("acme.greet"), {"name": "Ada", "times": 2}) == "Hello, Ada! Hello, Ada!"
    assert await succeed(handlers.get("acme.count"), {"to": 3}) == {"counted": 3}


async def test_their_payloads_are_checked_by_their_annotations(handlers):
    outcome = await fail(handlers.get("acme.greet"), {"name": "Ada", "times": "often"})

    assert not outcome.is_retryable
    assert "times" in outcome.error.message


def test_a_worker_of_its_own_process_has_them(installed):
    program = (
        "from timeball.handlers.catalogue import installed_handlers; print(*[h.name for h in installed_handlers()])"
    )
    environment = dict(os.environ, PYTHONPATH=str(installed))

    said = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)

    assert said.stdout.split() == ["acme.count", "acme.greet"]


def test_a_package_that_ends_the_process_when_it_is_imported_does_not(tmp_path, monkeypatch):
    (tmp_path / "acme_ends_it.py").write_text("raise SystemExit(3)\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    with pytest.raises(InvalidInput, match=r"handler acme\.ends .* cannot be loaded from acme_ends_it:run: SystemExit"):
        installed_handlers([point("acme.ends", "acme_ends_it:run")])


@pytest.mark.parametrize(
    "value", ["no_such_module_anywhere:run", "timeball.handlers.builtin.system:no_such_name", "json:__doc__"]
)
def test_a_handler_that_cannot_be_loaded_stops_the_start_and_is_named(value):
    with pytest.raises(InvalidInput, match=r"handler acme\.broken"):
        installed_handlers([point("acme.broken", value)])


def test_a_package_cannot_take_the_name_of_a_handler_in_the_box():
    stranger = installed_handlers([point("test.echo", "timeball.handlers.builtin.system:delay")])

    with pytest.raises(Conflict, match=r"test\.echo"):
        Registry(handlers_for_trying()).merge(stranger)


def test_a_package_may_bring_a_whole_handler():

    from tests.handlers import test_installed

    test_installed.WHOLE = handlers_for_trying()[1]  # type: ignore[attr-defined]

    (found,) = installed_handlers([point("acme.delay", "tests.handlers.test_installed:WHOLE")])

    assert found.name == "acme.delay"
    assert found.binder is test_installed.WHOLE.binder  # type: ignore[attr-defined]


def test_packages_are_searched_for_handlers_once_and_not_at_every_enqueue(monkeypatch: pytest.MonkeyPatch) -> None:
    searches = []

    def search() -> tuple[str, ...]:
        searches.append(ENTRY_POINT_GROUP)
        return ()

    monkeypatch.setattr(catalogue, "installed_names", search)
    handlers = catalogue.HandlerCatalogue(Registry(()), ())

    for _ in range(3):
        assert handlers.checker("somebody.elses") is None

    assert searches == [ENTRY_POINT_GROUP]
