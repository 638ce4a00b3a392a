"""The examples do what they show."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sdk.conftest import ON_ONE_SERVER, SOURCES, finish, running_node
from timeball import Settings
from timeball.sdk.app_loader import load_app

EXAMPLES = Path(__file__).parents[2] / "examples"


@ON_ONE_SERVER
def test_quickstart(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(EXAMPLES / "quickstart.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    served = load_app("quickstart:tb")

    with running_node(served, settings):
        program = subprocess.Popen(
            [sys.executable, "quickstart.py"],
            env={**os.environ, "PYTHONPATH": str(SOURCES), "TIMEBALL_DATABASE_URL": settings.database_url or ""},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        (printed,) = finish(program)

    execution_id, result = printed.split(" ", 1)
    assert execution_id.startswith("exe_")
    assert result == "receipt 42 -> a@b.co"
    assert list(served.schedules) == ["quickstart:morning_report"]
