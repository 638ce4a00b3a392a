"""`import timeball`: cheap, and always the same names."""

from __future__ import annotations

import subprocess
import sys

import pytest

import timeball
from tests.sdk.conftest import SOURCES


def run(code: str) -> str:
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env={"PYTHONPATH": str(SOURCES)}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_the_package_imports_nothing_heavy() -> None:
    heavy = "{'asyncio', 'pydantic', 'asyncpg', 'orjson', 'cronsim', 'structlog'}"

    assert run(f"import sys, timeball; print({heavy} & set(sys.modules))") == "set()"


def test_declaring_handlers_needs_no_database_driver() -> None:
    code = "import sys; from timeball import Timeball; Timeball().handler(print); print('asyncpg' in sys.modules)"

    assert run(code) == "False"


@pytest.mark.parametrize("name", timeball.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(timeball, name) is not None


def test_there_is_no_other_name() -> None:
    with pytest.raises(AttributeError, match="module 'timeball' has no attribute 'Timebal'"):
        timeball.Timebal  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize("first", ["import timeball.current", "import timeball.runtime", "import timeball.sdk.app", ""])
def test_current_is_the_object_whoever_imported_its_module_first(first: str) -> None:
    assert run(f"{first}\nfrom timeball import current; print(type(current).__name__)") == "Current"
