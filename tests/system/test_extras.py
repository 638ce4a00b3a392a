"""The built wheel with the packages of some extras and nothing else: what runs, and what an error says to install."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from importlib.metadata import Distribution, PathDistribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.conftest import FreshDatabase
from tests.support.pace import patience
from timeball.config.environment import EXTRAS

ROOT = Path(__file__).parents[2]

Install = Callable[..., Path]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This package, built."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=patience(120),
    )
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def install(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Install:
    """A folder with the wheel and the packages that it requires with *extras*, links to those of this environment."""

    def install(*extras: str) -> Path:
        folder = tmp_path_factory.mktemp("-".join(("site", *extras)))
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
        (metadata,) = folder.glob("timeball-*.dist-info")
        for package in required(PathDistribution(metadata), {"", *extras}):
            for file in distribution(package).files or []:
                top = folder / file.parts[0]
                if file.parts[0] not in ("..", "__pycache__") and not top.exists():
                    top.symlink_to(Path(str(distribution(package).locate_file(file.parts[0]))))
        return folder

    return install


def required(package: Distribution, extras: set[str]) -> set[str]:
    """The names of all packages that one requires, directly or not."""
    names: set[str] = set()

    def visit(package: Distribution, extras: set[str]) -> None:
        for requirement in map(Requirement, package.requires or []):
            if not _applies(requirement, extras):
                continue
            if requirement.name == "timeball":
                visit(package, requirement.extras)
            elif requirement.name not in names or requirement.extras:
                names.add(requirement.name)
                visit(distribution(requirement.name), {"", *requirement.extras})

    visit(package, extras)
    return names


def _applies(requirement: Requirement, extras: set[str]) -> bool:
    return requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in extras)


def run(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the packages of *folder* alone: -S leaves out those of this environment."""
    return subprocess.run(
        [sys.executable, "-S", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder), "TIMEBALL_URL": ""} | environment,
        capture_output=True,
        text=True,
        timeout=patience(60),
    )


ENQUEUE = """
import asyncio
from timeball import Timeball

tb = Timeball()

@tb.handler()
def greet(name: str) -> None: ...

@tb.handler()
async def agreet(name: str) -> None: ...

async def enqueue_async() -> str:
    return (await agreet.aenqueue("Ada")).id

print(greet.enqueue("Ada").id, asyncio.run(enqueue_async()))
"""


def test_bare_package_enqueues_without_web_server_templates_command_line_and_mail(
    install: Install, fresh_database: FreshDatabase
) -> None:
    done = run(
        install(),
        "-c",
        ENQUEUE,
        TIMEBALL_DATABASE_URL=fresh_database.dsn,
        TIMEBALL_BEHIND_PGBOUNCER=str(fresh_database.behind_pgbouncer),
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert len(re.findall(r"exe_\w+", done.stdout)) == 2


def test_bare_package_requires_no_package_of_an_extra(install: Install) -> None:
    folder = install()

    assert [name for name in EXTRAS if (folder / name).exists()] == []


@pytest.mark.parametrize(
    ("extras", "arguments", "package", "extra"),
    [
        ((), ("--help",), "typer", "cli"),
        (("cli",), ("worker",), "structlog", "worker"),
        (("cli",), ("jobs",), "fastapi", "server"),
        (("worker",), ("api",), "uvicorn", "server"),
    ],
)
def test_command_without_its_extra_says_in_one_line_what_to_install(
    install: Install,
    fresh_database: FreshDatabase,
    extras: tuple[str, ...],
    arguments: tuple[str, ...],
    package: str,
    extra: str,
) -> None:
    done = run(
        install(*extras),
        "-m",
        "timeball",
        *arguments,
        TIMEBALL_DATABASE_URL=fresh_database.dsn,
        TIMEBALL_BEHIND_PGBOUNCER=str(fresh_database.behind_pgbouncer),
    )

    assert done.returncode == 1
    assert done.stderr == f'timeball: {package} is not installed: pip install "timeball[{extra}]"\n'


def test_client_without_its_extra_says_what_to_install(install: Install) -> None:
    done = run(install(), "-c", "from timeball import Client")

    assert 'httpx is not installed: pip install "timeball[client]"' in done.stderr.splitlines()[-1]


def test_command_line_needs_no_other_extra_for_what_needs_no_server(install: Install) -> None:
    done = run(install("cli"), "-m", "timeball", "next", "0 9 * * *")

    assert (done.returncode, done.stderr) == (0, "")


def test_every_package_of_an_extra_is_known_by_its_import_name() -> None:
    def packages(extra: str) -> Iterator[str]:
        for text in distribution("timeball").requires or []:
            requirement = Requirement(text)
            if requirement.marker is not None and requirement.marker.evaluate({"extra": extra}):
                yield requirement.name.replace("-", "_")

    known = {*packages("")}
    for extra in ("client", "cli", "worker", "server"):
        assert {*packages(extra)} - known <= {name for name, each in EXTRAS.items() if each == extra}
        known |= {*packages(extra)}
