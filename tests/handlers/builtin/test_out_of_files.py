"""A worker without a free file descriptor gives its work back: nothing is the fault of the execution."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

# Fills the table of files of this process, then runs the handlers in the box by the runners they get.
_PROGRAM = """
import asyncio, json, os, resource, sys
from pathlib import Path
from tests.handlers.builtin.support import attempt_at, run
from tests.engine.runners.support import Attempt
from timeball.env import SystemClock
from timeball.domain.execution import Snoozed
from timeball.handlers.catalogue import BuiltinHandlers
from timeball.handlers.registry import make_handler
from timeball.engine.runners.process import ProcessRunner
from timeball.config.settings import Settings

folder = Path(sys.argv[1])
settings = Settings(
    shell_enabled=True, shell_programs=("/usr/bin/id",), webhook_allow=("127.0.0.1:9",), webhook_http=True, data_dir=folder
)

def open_one():
    return os.open("/dev/null", os.O_RDONLY)

async def main():
    box = BuiltinHandlers(settings, SystemClock(), folder)
    payloads = {
        "file.write": {"path": "a/b.txt", "content": "x"},
        "folder.create": {"path": "c/d"},
        "shell.command": {"command": "id"},
        "http.webhook": {"url": "http://127.0.0.1:9/x"},
    }
    handlers = {name: box.find(name) for name in payloads}
    handlers["own"], payloads["own"] = make_handler(open_one, name="own"), {}
    # What is opened and imported once is there before the files run out.
    for name, handler in handlers.items():
        await run(handler, payloads[name])
    isolated = ProcessRunner("tests.engine.runners.isolated_app:registry")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    held = []
    try:
        while True:
            held.append(open_one())
    except OSError:
        pass
    outcomes = {}
    for name, handler in handlers.items():
        outcomes[name] = await run(handler, payloads[name])
    outcomes["child"] = await isolated.run(handlers["own"], Attempt())
    for one in held:
        os.close(one)
    found = {n: [type(o).__name__, isinstance(o, Snoozed) and o.delay.total_seconds()] for n, o in outcomes.items()}
    print(json.dumps(found))
    print(outcomes, file=sys.stderr)

asyncio.run(main())
"""


@pytest.mark.timeout(120)
def test_running_out_of_files_is_no_failure_of_any_handler(tmp_path: Path) -> None:
    """Fault 40."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(tmp_path)], capture_output=True, text=True, cwd=Path.cwd(), check=False
    )

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert set(found) == {"file.write", "folder.create", "shell.command", "http.webhook", "own", "child"}
    assert {name: outcome for name, outcome in found.items() if outcome != ["Snoozed", 5.0]} == {}, done.stderr
