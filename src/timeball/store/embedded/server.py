"""The PostgreSQL that comes in a wheel: started on demand, shared by the processes of a machine.

With no TIMEBALL_DATABASE_URL, every Timeball process of a data directory is a *member* of one private server.
The first member starts it, the last one stops it, and only the file locks of the kernel (flock) record the members:
they vanish with their process, so they are right after `kill -9`, and no pid in a file has to be trusted.

| lock | holder | meaning |
|---|---|---|
| `start.lock`, exclusive | a member while it starts, attaches or leaves | these three never overlap |
| `members.lock`, shared | every member, as long as it is one | a member that gets it exclusively is the last one |
| `server.lock`, exclusive | the server, which inherits it, and its children | free: no process of the server is left |

Rules for failures:

- A member dies: its share of `members.lock` goes. If it was the last, the server runs on, and the next member attaches.
- A member dies while starting the server: the server goes on starting by itself, and the next member waits for it.
- The server dies: `server.lock` is free once its last child has gone. The next `ensure_running` of any member starts it
  again, and PostgreSQL recovers from its log; what was committed is there.
- Everything dies, or the machine: the same. A `postmaster.pid` and a socket are left over; both are removed while
  holding `server.lock`, unless the pid is that of a living server of this cluster, started by hand.
- The first start dies half way: the cluster is made under another name and renamed when complete, so it is made anew,
  once the programs that were making it are gone: they hold `server.lock` too.
- The data directory is deleted under its members: the server notices and stops; members leave without a trace.
- Starting takes longer than allowed: an error with the last lines of the server's log. A server still recovering is
  left alone, because stopping it would make the next one begin again.
- A process forks: the child is no member until it starts itself, and its `leave` does nothing.

The server has a session of its own: Ctrl-C and a closed terminal reach members, not the server under the others.
It opens no TCP port. Its socket is in a folder that only its account can enter, and it asks the kernel for the account of
the caller (`peer`): only its own account and root may connect. `data_directory.py` explains where the files are, and why.

All calls block, for seconds at worst: call them from a thread in asynchronous code.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

from timeball.errors import EmbeddedServerError
from timeball.store.embedded import cluster
from timeball.store.embedded.cluster import Binaries, FileLock, find_binaries, reachable_binaries
from timeball.store.embedded.data_directory import (
    SYSTEM_DIRECTORY,
    DataDirectory,
    clean_environment,
    drop_short_sockets,
    make_data_dir,
    open_data_directory,
    open_file,
)

_LARGEST_LOG = 4 * 1024 * 1024
_POLL = timedelta(milliseconds=10)


def find_running_server(data_dir: Path) -> str | None:
    """The address of the server of a data directory, if it runs. This process becomes no member: it neither starts nor keeps it."""
    return EmbeddedServer(data_dir).find_running()


class EmbeddedServer:
    """This process's membership in the server of one data directory.

    `start` and `leave` may be called any number of times, from any thread. Leaving is needed only to stop the
    server when no other process uses it; a process that just exits does no harm.
    """

    def __init__(
        self, data_dir: Path, *, patience: timedelta = timedelta(seconds=60), shelter: Path = SYSTEM_DIRECTORY
    ) -> None:
        self.data_dir = Path(data_dir).resolve()
        self._patience = patience
        self._shelter = shelter
        self._mutex = threading.RLock()
        self._membership: FileLock | None = None
        self._member_pid = 0
        self._home: DataDirectory | None = None
        self._binaries: Binaries | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    @property
    def dsn(self) -> str:
        """The address for asyncpg and psycopg, once started."""
        home, _ = self._started()
        return _address_of(home)

    @property
    def version(self) -> str:
        """The version of PostgreSQL that serves this data directory, such as `18.4`, once started."""
        home, binaries = self._started()
        return home.account.run(binaries.program("postgres"), "--version").stdout.split()[-1]

    @property
    def log(self) -> Path:
        """The log file of the server."""
        return self.data_dir / "server.log"

    def start(self) -> str:
        """Become a member and return the address; afterwards the server accepts connections."""
        return self.ensure_running()

    def ensure_running(self) -> str:
        """Start the server if it is not there (any more), become a member if this process is none, return the address.

        The address can differ from the one before, if the folder of the socket was deleted.
        """
        with self._mutex, self._explained():
            make_data_dir(self.data_dir)
            with self._alone():
                self._join()
                try:
                    self._bring_up()
                except Exception:
                    self._resign()
                    raise
                except BaseException:
                    # Ctrl-C: a caller that gives up on purpose leaves no server running.
                    self._depart()
                    raise
            return self.dsn

    def find_running(self) -> str | None:
        """The address of the server if it accepts connections; None if it does not, or if there is no data directory."""
        if not (self.data_dir / "server.json").is_file():
            return None
        with self._mutex, self._explained(), self._alone():
            home = open_data_directory(self.data_dir, self._shelter)
            is_running = cluster.status(home) == "ready" and cluster.accepts_connections(home)
        return _address_of(home) if is_running else None

    def leave(self) -> None:
        """Stop being a member; the last one stops the server, and then it is gone when this returns."""
        with self._mutex:
            if self._membership is None:
                return
            if not self._is_member:
                self._resign()
                return
            with self._explained(), self._alone():
                self._depart()

    @property
    def _is_member(self) -> bool:
        """Whether the share we hold is our own and still counts: not one a fork left us, nor of a deleted directory."""
        return self._membership is not None and self._member_pid == os.getpid() and self._membership.is_current

    def _join(self) -> None:
        if self._is_member:
            return
        self._resign()
        self._membership = FileLock(self.data_dir / "members.lock")
        self._member_pid = os.getpid()
        # Only a leaving member holds it exclusively, and it also holds the start lock, which is held here now.
        self._membership.try_shared()

    def _depart(self) -> None:
        try:
            if self._home is not None and self._membership is not None and self._membership.try_exclusive():
                self._shut_down(self._home)
                drop_short_sockets(self._home)
        finally:
            self._resign()

    def _resign(self) -> None:
        # Closed and not unlocked: in a forked child, unlocking would take the parent's share away.
        if self._membership is not None:
            self._membership.close()
            self._membership = None

    def _bring_up(self) -> None:
        self._home = home = open_data_directory(self.data_dir, self._shelter)
        self._binaries = reachable_binaries(find_binaries(home.cluster), home.account, self._shelter)
        # A server may be starting, recovering or stopping: wait for the result.
        self._wait(lambda: self._is_ready() or self._is_gone() or self._is_cut_off())
        if self._is_cut_off():
            self._shut_down(home)
        if self._is_gone():
            self._spawn(home, self._binaries)
            self._wait(lambda: self._is_ready() or self._is_gone())
        if not self._is_ready():
            raise self._failure("could not be started" if self._is_gone() else f"was not ready within {self._limit}")

    def _spawn(self, home: DataDirectory, binaries: Binaries) -> None:
        lock = FileLock(self.data_dir / "server.lock")
        try:
            if not lock.try_exclusive():
                raise self._failure("is still running")
            if not home.cluster.exists():
                cluster.make_cluster(home, binaries, lock)
            cluster.remove_stale_files(home)
            cluster.write_ident_map(home)
            self._launch(home, binaries, lock)
        finally:
            lock.close()

    def _launch(self, home: DataDirectory, binaries: Binaries, lock: FileLock) -> None:
        log = open_file(self.log, os.O_WRONLY | os.O_APPEND)
        try:
            if os.fstat(log).st_size > _LARGEST_LOG:
                os.ftruncate(log, 0)
            # Through a shell, so that the server is not a child of this process: it never becomes a zombie here, and
            # never appears in a wait() of the program that uses Timeball.
            subprocess.run(
                ["/bin/sh", "-c", '"$@" &', "sh", binaries.program("postgres"), "-D", home.cluster, "-k", home.sockets],
                cwd="/",
                env=clean_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(lock.descriptor,),
                start_new_session=True,
                umask=0o077,
                check=True,
                **home.account.identity(),
            )
        finally:
            os.close(log)

    def _shut_down(self, home: DataDirectory) -> None:
        """Stop the server, fast first (sessions are cut, work is kept), then at once (the next start recovers)."""
        for request in (signal.SIGINT, signal.SIGQUIT):
            self._wait(partial(self._is_told, home, request))
            if self._wait(self._is_gone):
                return
        raise self._failure("did not stop")

    def _is_told(self, home: DataDirectory, request: signal.Signals) -> bool:
        """Send the signal; not possible while a server has just been launched and has not noted its process id."""
        pid = cluster.server_pid(home)
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, request)
        return pid is not None or self._is_gone()

    def _is_gone(self) -> bool:
        lock = FileLock(self.data_dir / "server.lock")
        try:
            return lock.try_shared()
        finally:
            lock.close()

    def _is_ready(self) -> bool:
        home, _ = self._started()
        # A killed server leaves its status, and its children the lock for a moment: so all three are checked.
        return cluster.status(home) == "ready" and cluster.accepts_connections(home) and not self._is_gone()

    def _is_cut_off(self) -> bool:
        """Whether the server runs but cannot be reached, because its socket was deleted."""
        home, _ = self._started()
        return cluster.status(home) == "ready" and not home.socket.exists() and cluster.server_pid(home) is not None

    def _started(self) -> tuple[DataDirectory, Binaries]:
        if self._home is None or self._binaries is None:
            raise EmbeddedServerError("the embedded PostgreSQL has not been started", hint="call start() first")
        return self._home, self._binaries

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the start lock."""
        lock = self._take_start_lock()
        try:
            yield
        finally:
            # Unlocked and not only closed: a child forked by another thread meanwhile has a copy.
            lock.unlock()
            lock.close()

    def _take_start_lock(self) -> FileLock:
        lock = FileLock(self.data_dir / "start.lock")
        if not self._wait(lock.try_exclusive):
            lock.close()
            raise EmbeddedServerError(
                f"another process has been starting or stopping the server of {self.data_dir} for {self._limit}"
            )
        if lock.is_current:
            return lock
        # The directory was deleted and created again in between.
        lock.close()
        return self._take_start_lock()

    @property
    def _limit(self) -> str:
        return f"{self._patience.total_seconds():g} s"

    def _wait(self, is_so: Callable[[], bool]) -> bool:
        """Wait until the condition holds; False after the timeout."""
        deadline = time.monotonic() + self._patience.total_seconds()
        while not is_so():
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL.total_seconds())
        return True

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (OSError, subprocess.SubprocessError) as error:
            raise EmbeddedServerError(
                f"the embedded PostgreSQL cannot use the data directory {self.data_dir}: {error}",
                hint="set TIMEBALL_DATA_DIR to a directory of your own, or TIMEBALL_DATABASE_URL to a server",
            ) from error

    def _failure(self, what: str) -> EmbeddedServerError:
        try:
            last_lines = self.log.read_text(errors="replace").splitlines()[-12:]
        except OSError:
            last_lines = []
        output = "\n  ".join(last_lines) or "(nothing)"
        return EmbeddedServerError(f"the embedded PostgreSQL {what}; {self.log} ends with:\n  {output}")


def _address_of(home: DataDirectory) -> str:
    return f"postgresql://{cluster.DATABASE_NAME}@/{cluster.DATABASE_NAME}?host={quote(str(home.sockets), safe='')}"
