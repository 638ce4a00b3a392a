"""A database cluster on disk: how it is made, and what its files tell about the server running on it."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from pathlib import Path

from timeball.errors import EmbeddedServerError
from timeball.store.embedded.binaries import Binaries
from timeball.store.embedded.home import SOCKET_NAME, Home, make_private_folder
from timeball.store.embedded.locks import FileLock

NAME = "timeball"  # of the database, and of the role that owns it

# Written into postgresql.conf once, when the cluster is made: from then on the file belongs to the user.
_CONFIGURATION = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "100",
    "shared_buffers": "128MB",
    "fsync": "on",
    "synchronous_commit": "on",
    # Log files that are used again: making a new one stops every commit, on a slow disk for a tenth of a second.
    "min_wal_size": "256MB",
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "cluster_name": NAME,
}


def make_cluster(home: Home, binaries: Binaries, lock: FileLock) -> None:
    """Make a new cluster with an empty database; either it is complete afterwards, or it is not there.

    The programs that make it inherit the server's lock: should we die, the next one waits until they are done.
    """
    fresh = home.cluster.with_name("postgres.new")
    make_private_folder(fresh, home.account)
    _run_initdb(home, binaries, fresh, lock)
    _write(home, fresh / "pg_hba.conf", f"local all all peer map={NAME}\n")
    _create_database(home, binaries, fresh, lock)
    fresh.rename(home.cluster)
    _sync_folder(home.cluster.parent)


def admit_owner(home: Home) -> None:
    """Let the server's account and root in, and nobody else; repeated at each start, as a cluster can change hands."""
    _write(home, home.cluster / "pg_ident.conf", f'{NAME} "{home.account.name}" {NAME}\n{NAME} root {NAME}\n')


def server_pid(home: Home) -> int | None:
    """The process id of the server running on this cluster."""
    pid = _noted_pid(home)
    return pid if pid is not None and _serves(pid, home.cluster) else None


def status(home: Home) -> str:
    """What the server last noted about itself: `starting`, `ready`, `stopping`, or nothing."""
    lines = _postmaster_lines(home)
    return lines[7].strip() if len(lines) > 7 else ""


def answers(home: Home) -> bool:
    """Whether someone accepts connections at the socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.settimeout(1)
        try:
            caller.connect(str(home.socket))
        except OSError:
            return False
    return True


def clear_remains(home: Home) -> None:
    """Remove what a killed server left behind; call it only while holding the server's lock.

    PostgreSQL would do so itself, except when the old process id belongs to another process by now, as after a reboot.
    """
    if server_pid(home) is None:
        (home.cluster / "postmaster.pid").unlink(missing_ok=True)
        for name in (SOCKET_NAME, f"{SOCKET_NAME}.lock"):
            (home.sockets / name).unlink(missing_ok=True)


def _run_initdb(home: Home, binaries: Binaries, cluster: Path, lock: FileLock) -> None:
    settings = [f"--set={name}={value}" for name, value in _CONFIGURATION.items()]
    # The built-in locale knows Unicode, sorts alike on every machine and cannot change under an index.
    locale = ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"] if binaries.major >= 17 else []
    access = ["--auth-local=peer", "--auth-host=reject", f"--username={NAME}"]
    options = ["--encoding=UTF8", "--locale=C", *locale, *access, *settings]
    made = home.account.run(binaries.program("initdb"), "-D", cluster, *options, inherits=(lock.descriptor,))
    _check(made, "made")


def _create_database(home: Home, binaries: Binaries, cluster: Path, lock: FileLock) -> None:
    # Without a server: so the cluster is complete before anybody can see it.
    made = home.account.run(
        *(binaries.program("postgres"), "--single", "-D", cluster, "-c", "exit_on_error=on", "postgres"),
        stdin=f"CREATE DATABASE {NAME};\n",
        inherits=(lock.descriptor,),
    )
    _check(made, "given a database")


def _check(done: subprocess.CompletedProcess[str], what: str) -> None:
    if done.returncode != 0:
        said = "\n  ".join((done.stdout + done.stderr).splitlines()[-12:])
        raise EmbeddedServerError(f"the embedded PostgreSQL's files could not be {what}:\n  {said}")


def _write(home: Home, path: Path, text: str) -> None:
    # By the account itself: root does not write where another account could have laid a link.
    _check(home.account.run("/bin/sh", "-c", 'cat > "$1"', "sh", path, stdin=text), f"written ({path.name})")


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _postmaster_lines(home: Home) -> list[str]:
    try:
        return (home.cluster / "postmaster.pid").read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return []


def _noted_pid(home: Home) -> int | None:
    lines = _postmaster_lines(home)
    with contextlib.suppress(IndexError, ValueError):
        return abs(int(lines[0])) or None
    return None


def _serves(pid: int, cluster: Path) -> bool:
    """Whether this process lives and is the server of that cluster, not one that was given the number later."""
    process = Path(f"/proc/{pid}")
    if not Path("/proc/self").exists():
        return _is_alive(pid)
    try:
        return (process / "cwd").readlink() == cluster
    except PermissionError:
        # Root in a container may not see where another account's process stands, only what it is.
        return process.exists() and (process / "comm").read_text().strip() == "postgres"
    except OSError:
        return False


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
