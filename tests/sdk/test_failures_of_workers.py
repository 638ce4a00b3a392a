"""A real worker with isolated children: what is logged of their failures, and kept of what they print."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engine.runners.failing_app import tb as program
from tests.engine.runners.test_failure_log import Collector, collector  # noqa: F401 (a fixture)
from tests.sdk.conftest import ON_ONE_SERVER, running_node
from tests.support.pace import patience
from timeball import ExecutionFailed, Settings, Timeball

pytestmark = [ON_ONE_SERVER, pytest.mark.skipif(sys.platform != "linux", reason="children need Linux")]
APP = "tests.engine.runners.failing_app:tb"


def test_a_failure_in_a_child_is_logged_there_and_nowhere_else(
    tb: Timeball,
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    collector: Collector,  # noqa: F811
) -> None:
    collected = tmp_path / "collected"
    monkeypatch.setenv("COLLECTED", str(collected))
    with running_node(program, settings, APP):
        run = tb.enqueue("fail_in_child", retries=1, backoff="1ms")
        with pytest.raises(ExecutionFailed, match="nothing there"):
            run.result(timeout=patience(60))

    lines = [ast.literal_eval(line) for line in collected.read_text().splitlines()]
    assert [(level, name) for level, name, _, _ in lines] == [
        ("WARNING", "fail_in_child"),
        ("ERROR", "fail_in_child"),
    ]
    assert os.getpid() not in {process for _, _, process, _ in lines}
    assert collector.records == []


def test_prints_of_threads_and_children_are_lines_of_their_runs(
    tb: Timeball, settings: Settings, rows: Callable[[str], list[dict[str, Any]]]
) -> None:
    with running_node(program, settings, APP):
        for name in ("print_in_thread", "print_in_child"):
            tb.enqueue(name).result(timeout=patience(60))

    lines = rows("SELECT level, message FROM timeball.log_line ORDER BY message")
    assert lines == [{"level": "print", "message": "from a child"}, {"level": "print", "message": "from a thread"}]
