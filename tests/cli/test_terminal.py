"""On a real terminal: tables, and a bar for what takes long."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

from tests.cli.conftest import Cli


def on_a_terminal(*words: str, folder: Path, interrupt_at: bytes | None = None) -> tuple[int, str]:
    """Run a command whose stdin, stdout and stderr are one terminal; its exit code, and all that was seen.

    It is interrupted, as by Ctrl-C, once *interrupt_at* is seen.
    """
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}
    process = subprocess.Popen(
        [sys.executable, "-m", "timeball", *words],
        cwd=folder,
        env=environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    seen = b""
    try:
        while chunk := _read(ours):
            seen += chunk
            if interrupt_at is not None and interrupt_at in seen:
                process.send_signal(signal.SIGINT)
                interrupt_at = None
        return process.wait(60), seen.decode(errors="replace")
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError:  # a terminal reports this when its other end is closed
        return b""


def test_a_long_import_has_a_bar_and_a_list_is_a_table(cli: Cli, tmp_path: Path) -> None:
    jobs = "".join(f'{{"name": "job-{number}", "handler": "test.echo"}}\n' for number in range(1_200))
    (tmp_path / "jobs.jsonl").write_text(jobs)

    code, imported = on_a_terminal("jobs", "import", "jobs.jsonl", folder=tmp_path)
    _, listed = on_a_terminal("jobs", "list", "--sort", "name", "-n", "2", folder=tmp_path)

    assert code == 0, imported
    assert "\x1b[" in imported
    assert "━" in imported
    assert "1200/1200" in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", imported)
    header, first, *_ = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", listed).splitlines()
    assert header.split()[:2] == ["NAME", "STATUS"]
    assert first.split()[:2] == ["job-0", "active"]
