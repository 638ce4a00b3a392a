"""Schedulers and workers as processes of their own, on a database that can be restarted.

    _, worker = cluster.nodes(1, 1)               # `timeball scheduler`, `timeball worker app:tb`, both registered
    await cluster.eventually(lambda: cluster.ledger.runs("a"), "the job runs")
    worker.kill()
    await cluster.drained()
    cluster.check_books()                         # ledger against history, and what `timeball verify` finds

Nothing here sleeps for a guess: it waits for an event in a log, a row or a line of the ledger, with a deadline. Every
process is ended by its id, and dies with the test process whatever happens to that.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import psycopg

from tests.support.pace import patience
from tests.support.servers import POSTGRES_PORT, ROLE, PostgresServer, service_account, system_programs
from tests.system.handler_journal import Finished, Ledger, problems
from timeball.application.commands import Commands
from timeball.config.settings import load_settings
from timeball.domain.job_fields import JobSpec
from timeball.domain.values.ids import parse_id
from timeball.runtime import Runtime, open_runtime
from timeball.store.verify.checks import VerifyReport
from timeball.store.verify.proof import verify

T = TypeVar("T")

PROGRAM = Path(__file__).with_name("app.py")
# Short enough that a test can wait for a lease to run out.
LEASE_SECONDS = 3.0
SHORT_LEASES = {
    "TIMEBALL_SCHEDULER__LEASE_SECONDS": "3",
    "TIMEBALL_SCHEDULER__RENEW_SECONDS": "1",
    "TIMEBALL_WORKER__LEASE_SECONDS": "3",
    "TIMEBALL_WORKER__RENEW_SECONDS": "1",
    "TIMEBALL_HOUSEKEEPING__REAP_SECONDS": "0.5",
}
# Long enough that no lease runs out, however busy the machine: for tests in which no node is meant to die.
LONG_LEASES = SHORT_LEASES | {
    "TIMEBALL_SCHEDULER__LEASE_SECONDS": "60",
    "TIMEBALL_WORKER__LEASE_SECONDS": "60",
}
_STATE_TABLES = ("due", "ready", "blocked", "running")


async def eventually(is_so: Callable[[], T], what: str, seconds: float = 30) -> T:
    """Look again and again until it is so, and return what was found; a test that waits in vain says for what."""
    began_at = time.monotonic()
    while not (found := is_so()):
        if time.monotonic() > began_at + patience(seconds):
            raise TimeoutError(f"waited {time.monotonic() - began_at:.0f} s in vain until {what}")
        await asyncio.sleep(0.05)
    return found


async def enqueue(commands: Commands, handler: str, payload: dict[str, Any] | None = None, **fields: Any) -> UUID:
    """Enqueue a one-off, and return the id of its execution."""
    created = await commands.jobs.create(JobSpec(handler=handler, payload=payload or {}, **fields))
    assert created.execution_id is not None
    return created.execution_id


class Process:
    """One `timeball` process, with its log."""

    def __init__(
        self,
        command: Sequence[str | Path],
        folder: Path,
        environment: dict[str, str],
        log: Path,
        *,
        in_terminal: bool = False,
        output: int | None = None,
    ) -> None:
        self.log = log
        self.was_frozen = False
        self._terminal = Terminal(log) if in_terminal else None
        with log.open("wb") as file:
            if output is None:
                output = file.fileno() if self._terminal is None else self._terminal.inner
            self._popen = subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL if self._terminal is None else output,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent if self._terminal is None else _die_with_parent_in_terminal,
            )
        if self._terminal is not None:
            self._terminal.watch()

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def is_running(self) -> bool:
        return self._popen.poll() is None

    def kill(self) -> None:
        """KILL, and wait until it is gone."""
        self._popen.kill()
        self._popen.wait(30)

    def freeze(self) -> None:
        self.was_frozen = True
        self._popen.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._popen.send_signal(signal.SIGCONT)

    def terminate(self) -> None:
        self._popen.send_signal(signal.SIGTERM)

    def press_ctrl_c(self) -> None:
        """Type Ctrl-C in its terminal."""
        assert self._terminal is not None
        self._terminal.type(b"\x03")

    def interrupt_group(self) -> None:
        """What Ctrl-C in a terminal does: every process of the group is interrupted."""
        os.killpg(self.pid, signal.SIGINT)

    async def exit_code(self, seconds: float = 30) -> int:
        """Wait until it has ended by itself."""
        await eventually(lambda: not self.is_running, f"{self.log.stem} ends", seconds)
        return self._popen.returncode

    def end(self) -> None:
        """Make sure that nothing of it is left, children of it neither."""
        for pid in _processes_of_session(self.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._popen.wait(30)
        if self._terminal is not None:
            self._terminal.close()

    def events(self, name: str, **fields: Any) -> list[dict[str, Any]]:
        """The log lines of this event, in their order."""
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if f'"event": "{name}"' in line]
        events = [json.loads(line) for line in lines if line.endswith("}")]
        return [event for event in events if fields.items() <= event.items()]

    async def event(self, name: str, seconds: float = 30, *, count: int = 1, **fields: Any) -> dict[str, Any]:
        """Wait until it has logged this event so many times, and return the last."""

        def logged() -> dict[str, Any] | None:
            events = self.events(name, **fields)
            if len(events) < count and not self.is_running:
                raise AssertionError(f"{self.log.stem} ended without logging {name} {fields}:\n{self.tail()}")
            return events[-1] if len(events) >= count else None

        found = await eventually(logged, f"{self.log.stem} logs {name} {fields or ''} {count} times", seconds)
        assert found is not None
        return found

    @property
    def text(self) -> str:
        """All that it has said, without colors."""
        return re.sub(r"\x1b\[[\d;]*m", "", self.log.read_text(errors="replace"))

    def tail(self, lines: int = 60) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


class Terminal:
    """A pseudo-terminal; what is shown in it is kept in a file."""

    def __init__(self, log: Path) -> None:
        self._outer, self.inner = os.openpty()
        self._log = log
        self._watcher = threading.Thread(target=self._keep, name="terminal", daemon=True)

    def watch(self) -> None:
        os.close(self.inner)
        self._watcher.start()

    def _keep(self) -> None:
        with self._log.open("ab", buffering=0) as file, suppress(OSError):
            while shown := os.read(self._outer, 65536):
                file.write(shown)

    def type(self, keys: bytes) -> None:
        os.write(self._outer, keys)

    def close(self) -> None:
        self._watcher.join(10)
        os.close(self._outer)


def _die_with_parent_in_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    _die_with_parent()


def _processes_of_session(session: int) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            # After the name, which is in brackets: state, parent, group, session.
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == session:
                found.append(int(entry.name))
    return found


def _die_with_parent() -> None:
    if sys.platform == "linux":
        parent_death_signal = 1
        ctypes.CDLL(None).prctl(parent_death_signal, int(signal.SIGKILL))


class Cluster:
    """The processes of one test, their database, and the ledger of what their handlers did."""

    def __init__(self, folder: Path, dsn: str | None, **environment: str) -> None:
        self.folder = folder
        self.dsn = dsn
        self.processes: list[Process] = []
        # What stands before each command, such as the way into another network.
        self.inside: tuple[str, ...] = ()
        self._gates = folder / "gates"
        self._gates.mkdir()
        self.ledger = Ledger(folder / "ledger")
        shutil.copy(PROGRAM, folder / "app.py")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("TIMEBALL_")}
        self.environment = {
            **inherited,
            "LEDGER": str(folder / "ledger"),
            "GATES": str(self._gates),
            "TIMEBALL_LOG_FORMAT": "json",
            "TIMEBALL_PORT": "0",
            **({} if dsn is None else {"TIMEBALL_DATABASE_URL": dsn}),
            **environment,
        }

    # processes

    def start(
        self,
        *arguments: str,
        patch: str = "",
        in_terminal: bool = False,
        output: int | None = None,
        **environment: str,
    ) -> Process:
        """`timeball` with these arguments; returns at once. *patch* is Python to run in the process before it begins.

        It writes to its log, or to a terminal that is kept there, or to the descriptor *output*.
        """
        log = self.folder / f"{arguments[0]}-{len(self.processes) + 1}.log"
        program = ["-c", f"{patch}\nfrom timeball.cli.app import main\nmain()"] if patch else ["-m", "timeball"]
        command = [*self.inside, sys.executable, *program, *arguments]
        environment = self.environment | environment
        process = Process(command, self.folder, environment, log, in_terminal=in_terminal, output=output)
        self.processes.append(process)
        return process

    def launch_scheduler(self, patch: str = "", **environment: str) -> Process:
        return self.start("scheduler", patch=patch, **environment)

    def launch_worker(self, *arguments: str, patch: str = "", **environment: str) -> Process:
        return self.start("worker", "app:tb", *arguments, patch=patch, **environment)

    async def nodes(
        self, schedulers: int, workers: int, *arguments: str, patch: str = "", **environment: str
    ) -> list[Process]:
        """So many schedulers and then workers, started side by side and all registered."""
        started = [self.launch_scheduler(patch, **environment) for _ in range(schedulers)]
        started += [self.launch_worker(*arguments, patch=patch, **environment) for _ in range(workers)]
        for process in started:
            await process.event("node.started", 60)
        return started

    def end_lease(self, process: Process) -> None:
        """Expire the lease of its first node, as if the time had passed: so living nodes need no short leases."""
        incarnation = parse_id("nod", process.events("node.started")[0]["incarnation"])
        self.sql("UPDATE timeball.node SET lease_until = now() WHERE incarnation = %s", incarnation)

    def of_pid(self, pid: int) -> Process:
        return next(process for process in self.processes if process.pid == pid)

    def end(self) -> None:
        for process in self.processes:
            process.end()

    # work

    @asynccontextmanager
    async def commands(self, dsn: str | None = None) -> AsyncIterator[Commands]:
        """What a front would use, in the test's own process."""
        async with self._opened(dsn) as parts:
            yield parts.commands

    def _opened(self, dsn: str | None = None) -> AbstractAsyncContextManager[Runtime]:
        behind = self.environment.get("TIMEBALL_BEHIND_PGBOUNCER") == "true"
        return open_runtime(load_settings(database_url=dsn or self.dsn, behind_pgbouncer=behind))

    def open_gate(self, gate: str) -> None:
        """Let the handlers that wait for it end."""
        (self._gates / gate).touch()

    # looking

    def sql(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Ask the database, in a connection of its own."""
        assert self.dsn is not None
        with psycopg.connect(self.dsn, autocommit=True, prepare_threshold=None) as connection:
            cursor = connection.execute(statement.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    def value(self, statement: str, *values: Any) -> Any:
        return self.sql(statement, *values)[0][0]

    def state(self, execution_id: UUID) -> str | None:
        found = self.sql("SELECT state FROM timeball.execution WHERE id = %s", execution_id)
        return found[0][0] if found else None

    def row(self, execution_id: UUID) -> dict[str, Any]:
        """An execution, in whatever state table it is."""
        columns = ("state", "attempts", "lost", "fence", "worker", "reason", "error_type")
        (found,) = self.sql(f"SELECT {', '.join(columns)} FROM timeball.execution WHERE id = %s", execution_id)
        return dict(zip(columns, found, strict=True))

    async def ends(self, execution_id: UUID, seconds: float = 30) -> dict[str, Any]:
        """Wait until an execution has ended, and return its row."""
        await self.eventually(
            lambda: self.state(execution_id) in ("succeeded", "dead", "cancelled", "skipped"),
            f"{execution_id} ends",
            seconds,
        )
        return self.row(execution_id)

    async def begins(self, label: str, count: int = 1, seconds: float = 30) -> list[Any]:
        """Wait until a job with this label has been begun so many times, and return its runs."""

        def begun() -> list[Any]:
            runs = self.ledger.runs(label)
            return runs if len(runs) >= count else []

        return await self.eventually(begun, f"{label!r} is begun {count} times", seconds)

    async def eventually(self, is_so: Callable[[], T], what: str, seconds: float = 30) -> T:
        return await eventually(is_so, what, seconds)

    def live(self) -> dict[str, int]:
        """How many executions are in each state table but the last."""
        counts = [f"(SELECT count(*) FROM timeball.{table}) AS {table}" for table in _STATE_TABLES]
        (found,) = self.sql(f"SELECT {', '.join(counts)}")
        return {table: number for table, number in zip(_STATE_TABLES, found, strict=True) if number}

    async def drained(self, seconds: float = 60) -> None:
        """Wait until nothing is left to do."""
        try:
            await self.eventually(lambda: not self.live(), "everything has ended", seconds)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; left: {self.live()}") from None

    # the books

    def finished(self) -> list[Finished]:
        rows = self.sql(
            "SELECT id, state, scheduled_for, fence, attempts, lost FROM timeball.finished"
            " WHERE handler NOT LIKE 'test.%%' AND handler <> 'alert.deliver'"
        )
        names = ("id", "state", "scheduled_for", "fence", "attempts", "lost")
        return [Finished(**dict(zip(names, row, strict=True))) for row in rows]

    def check_books(self) -> None:
        """The ledger of the handlers must agree with the history, and the history with the promises."""
        was_frozen = any(process.was_frozen for process in self.processes)
        found = problems(self.ledger.runs(), self.finished(), was_frozen=was_frozen)
        assert not found, "\n".join(["the books do not agree:", *found[:20]])
        self.verify()

    def verify(self) -> None:
        """Every promise holds: what `timeball verify` finds, without the seconds of a processor that its start takes."""
        with ThreadPoolExecutor(1) as aside:  # the loop of the test is none of our business
            report = aside.submit(lambda: asyncio.run(self._report())).result(120)
        assert report.holds, "\n".join(report.lines())

    async def _report(self) -> VerifyReport:
        async with self._opened() as parts:
            return await verify(parts.store.database)

    def verify_by_command(self) -> str:
        """`timeball verify` says that every promise holds; returns what it says."""
        command = [sys.executable, "-m", "timeball", "verify"]
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, f"timeball verify: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout


class DurableServer(PostgresServer):
    """A PostgreSQL that may be killed: it writes everything through to the disk, as in production."""

    def _initialise(self) -> None:
        super()._initialise()
        with (self._data / "postgresql.conf").open("a") as file:
            file.write("fsync = on\nfull_page_writes = on\nsynchronous_commit = on\n")

    def copy_from(self, primary: PostgresServer) -> subprocess.CompletedProcess[str]:
        """Become a copy of a running server that follows it once started."""
        where = ["-h", primary.host, "-p", str(POSTGRES_PORT), "-U", ROLE]
        options = ["--write-recovery-conf", "--checkpoint=fast", "--no-sync"]
        return self._account.run(self._programs / "pg_basebackup", "-D", self._data, *where, *options)

    def stop_at_once(self) -> None:
        """The immediate mode: no checkpoint, sessions are cut; the next start recovers."""
        assert self._process is not None
        self._process.end(signal.SIGQUIT)


def make_server(folder: Path) -> DurableServer:
    """A server of the test's own in this folder."""
    account = service_account()
    folder.mkdir(mode=0o700)
    if os.geteuid() == 0:
        os.chown(folder, account.uid, account.gid)
    return DurableServer(system_programs(), folder, account)
