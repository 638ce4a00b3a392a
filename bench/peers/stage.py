"""A stage: one peer with its settings on empty stores, its client, and the processes it was asked to start."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from bench.peers.catalog import Variant
from bench.peers.environments import environment_of, working_folder
from bench.peers.families import family, kill
from bench.peers.marks import Marks
from bench.peers.servers import Servers

_WARM_UP_JOBS = 20
_WARM_UP_FIRST = 900_000_000
_LEAVE_SECONDS = 5.0
_START_SECONDS = 60.0
# A client that hangs must not hold up everybody: it has this long for an answer, and some more for each job.
_ANSWER_SECONDS = 60.0
_SECONDS_A_JOB = 0.01


class Stage:
    """What a question does with a peer."""

    def __init__(self, variant: Variant, environment: dict[str, str], folder: Path) -> None:
        self.variant = variant
        self.peer = variant.peer
        self.marks = Marks(folder / "marks")
        self._environment = environment | {"PEER_MARKS": str(self.marks.path)}
        self._folder = folder
        self._serials = count()
        self._processes: list[subprocess.Popen[Any]] = []
        self._client = self._spawn(self.peer.client, "client", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._answer()

    def ask(self, verb: str, **arguments: Any) -> Any:
        """Have the client do something, and return what it says."""
        assert self._client.stdin is not None
        self._client.stdin.write(json.dumps([verb, arguments]).encode() + b"\n")
        self._client.stdin.flush()
        return self._answer(arguments.get("count", 0))

    def _answer(self, jobs: int = 0) -> Any:
        assert self._client.stdout is not None
        watchdog = threading.Timer(_ANSWER_SECONDS + _SECONDS_A_JOB * jobs, self._client.kill)
        watchdog.start()
        try:
            line = self._client.stdout.readline()
        finally:
            watchdog.cancel()
        if not line:
            raise RuntimeError(f"the client of {self.variant.subject} gave up:\n{self.log('client')}")
        return json.loads(line)

    def start(self, processes: int = 1, schedules: int = 0) -> list[subprocess.Popen[Any]]:
        """Start so many worker processes."""
        return self._start("worker", processes, schedules)

    def start_scheduler(self, question: str, processes: int = 1, schedules: int = 0) -> None:
        """Start so many schedulers, if the peer needs them for this question and they are not its workers."""
        if question in self.peer.scheduler_for:
            self._start("scheduler", processes, schedules)

    def _start(self, role: str, processes: int, schedules: int) -> list[subprocess.Popen[Any]]:
        command = self.variant.commands[role]
        # Some have an option for the number, others are started as often.
        times = 1 if "{processes}" in command else processes
        return [
            self._spawn(self._filled(command, processes), role, PEER_SCHEDULES=str(schedules)) for _ in range(times)
        ]

    def _filled(self, command: Sequence[str], processes: int) -> list[str]:
        known = {"processes": processes, "folder": self._folder, "redis": self._environment["REDIS_URL"]}
        return [part.format(serial=next(self._serials), **known) for part in command]

    def _spawn(
        self, command: Sequence[str], role: str, stdin: Any = subprocess.DEVNULL, stdout: Any = None, **more: str
    ) -> Any:
        with (self._folder / f"{role}-{next(self._serials)}.log").open("wb") as log:
            process = subprocess.Popen(
                command,
                cwd=working_folder(self.peer),
                env=self._environment | dict(self.variant.environment) | more,
                stdin=stdin,
                stdout=stdout or log,
                stderr=log,
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    def warm_up(self) -> None:
        """Run a few jobs, so that everything is imported, connected and prepared."""
        before = self.marks.count()
        self.ask("enqueue", first=_WARM_UP_FIRST, count=_WARM_UP_JOBS)
        if not self.marks.wait_for(before + _WARM_UP_JOBS, _START_SECONDS):
            raise RuntimeError(f"{self.variant.subject} does not run anything:\n{self.log('worker')}")

    def kill(self, process: subprocess.Popen[Any]) -> None:
        """End it and everything it has started at once, as a machine does that loses its power."""
        for member in family(process.pid):
            kill(member)
        process.wait()
        self._processes.remove(process)

    def close(self) -> None:
        """Let all processes leave, and kill those that do not."""
        if self._client.stdin is not None:
            self._client.stdin.close()
        families = [family(process.pid) for process in self._processes]
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            _wait(process)
        for member in (member for members in families for member in members):
            kill(member)
        for process in self._processes:
            process.wait()

    def verify(self) -> None:
        """A number without a proof is worth nothing: who can prove that nothing was lost, has to."""
        if "verify" not in self.variant.commands:
            return
        process = self._spawn(self.variant.commands["verify"], "verify")
        if process.wait() != 0:
            raise SystemExit(f"{self.variant.subject} does not keep its promises:\n{self.log('verify')}")

    def log(self, role: str) -> str:
        """The last lines of what processes of a role have said."""
        texts = [path.read_text(errors="replace") for path in sorted(self._folder.glob(f"{role}-*.log"))]
        return "\n".join(text[-2000:] for text in texts)


def _wait(process: subprocess.Popen[Any]) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_LEAVE_SECONDS)


@contextlib.contextmanager
def staged(servers: Servers, variant: Variant) -> Iterator[Stage]:
    """A stage on empty stores; when the block ends, nothing of it is left."""
    with servers.databases() as variables, tempfile.TemporaryDirectory(prefix="timeball-peer-") as folder:
        inherited = {name: os.environ[name] for name in ("HOME", "LANG") if name in os.environ}
        stage = Stage(variant, inherited | variables | environment_of(variant.peer), Path(folder))
        try:
            yield stage
        finally:
            stage.close()
        stage.verify()
