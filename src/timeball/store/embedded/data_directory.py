"""Where the embedded PostgreSQL lives, and under which account it runs.

An ordinary user has everything inside the data directory:

    .timeball/
      start.lock  members.lock  server.lock    see `server.py`
      server.json                              what had to be put elsewhere (below)
      server.log                               the log of the server
      postgres/                                the database cluster, 0700
      run/                                     the socket, 0700

PostgreSQL refuses to run as root, so a root member runs the server under another account: the owner of the cluster
if there is one, else the owner of the data directory, else the first existing one of `timeball` and `postgres`. Never the
account `nobody`: other daemons and commands run as it, and the server accepts its own account as a superuser.
Three problems can arise then. Their solutions change no permission of a directory of others:

- That account cannot reach the data directory (it lies below root's home): the cluster and the socket go into
  a folder of their own in `/var/lib/timeball`, which belongs to root and is recorded in `server.json`.
- A socket's path is limited to 107 bytes, and the drivers split it at commas: where the data directory is long or
  has unusual characters, the socket goes into a new private folder in `/tmp`, recorded as well.
- The data directory was moved or copied: a moved one keeps its record; a copied one must not share the cluster of its
  original, which is an error.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from timeball.errors import EmbeddedServerError

SYSTEM_DIRECTORY = Path("/var/lib/timeball")
SOCKET_NAME = ".s.PGSQL.5432"

_ACCOUNTS_FOR_ROOT = ("timeball", "postgres")
_USERADD = "useradd --system timeball"
# macOS allows 103 bytes, Linux 107; the shorter limit keeps a data directory usable on both.
_LONGEST_SOCKET_PATH = 103
_PLAIN_PATH = re.compile(r"[A-Za-z0-9/._-]+")
# Not gettempdir(): TMPDIR may itself be too long for a socket, and differs between members.
_SHORT_FOLDER = Path("/tmp")  # noqa: S108 - only ever used through mkdtemp


@dataclass(frozen=True, slots=True)
class Account:
    """The system account that owns the cluster and runs the server."""

    name: str
    uid: int
    gid: int

    @classmethod
    def of_uid(cls, uid: int) -> Account:
        try:
            entry = pwd.getpwuid(uid)
        except KeyError as error:
            raise EmbeddedServerError(
                f"user id {uid} has no account on this system, and PostgreSQL wants one",
                hint="run as a user listed in /etc/passwd, or set TIMEBALL_DATABASE_URL",
            ) from error
        return cls(entry.pw_name, entry.pw_uid, entry.pw_gid)

    def identity(self) -> dict[str, Any]:
        """The arguments that make `subprocess` start a program under this account."""
        if self.uid == os.geteuid():
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": []}

    def run(
        self, *command: str | Path, stdin: str = "", inherits: Sequence[int] = ()
    ) -> subprocess.CompletedProcess[str]:
        """Run a program to its end under this account, from a folder every account may stand in."""
        return subprocess.run(
            [os.fspath(part) for part in command],
            cwd="/",
            env=clean_environment(),
            input=stdin,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            umask=0o077,
            pass_fds=inherits,
            **self.identity(),
        )

    def can_enter(self, folder: Path) -> bool:
        # Tried, not computed: mode bits do not show access lists, mounts and confinement.
        return self.run("/bin/sh", "-c", 'cd -- "$1"', "sh", folder).returncode == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DataDirectory:
    """The folders of one embedded server; all of them exist, except perhaps the cluster."""

    account: Account
    cluster: Path
    sockets: Path

    @property
    def socket(self) -> Path:
        return self.sockets / SOCKET_NAME


@dataclass(frozen=True, slots=True, kw_only=True)
class _LocationRecord:
    """What `server.json` holds: only what is not inside the data directory."""

    origin: str
    elsewhere: str | None = None
    sockets: str | None = None


def clean_environment() -> dict[str, str]:
    """An environment without PG* settings that mislead the server, and without secrets its account must not read."""
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH", "LD_PRELOAD") if name in os.environ}
    return {"PATH": os.defpath} | kept | {"LC_ALL": "C"}


def make_data_dir(data_dir: Path) -> None:
    """Create the data directory if it is missing; an existing one keeps its permissions."""
    # As root: the account of the server has to enter it to reach its own folders.
    mode = 0o711 if os.geteuid() == 0 else 0o700
    data_dir.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        data_dir.mkdir(mode=mode)


def open_file(path: Path, flags: int) -> int:
    """Open a file of the data directory, created for the directory's owner alone; the caller closes it."""
    descriptor = os.open(path, flags | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    owner = path.parent.stat()
    if os.geteuid() == 0 and os.fstat(descriptor).st_uid != owner.st_uid:
        os.fchown(descriptor, owner.st_uid, owner.st_gid)
    return descriptor


def open_data_directory(data_dir: Path, shelter: Path) -> DataDirectory:
    """Find the server's folders, or make them; call it under the start lock."""
    record = _read_record(data_dir)
    account = _choose_account(data_dir, record)
    elsewhere = _find_elsewhere(data_dir, record, account, shelter)
    base = elsewhere or data_dir
    sockets = _find_sockets(base, record, data_dir, account)
    current = _LocationRecord(
        origin=str(data_dir),
        elsewhere=str(elsewhere) if elsewhere else None,
        sockets=str(sockets) if sockets.parent != base else None,
    )
    if current != record:
        _write_record(data_dir, current)
    return DataDirectory(account=account, cluster=base / "postgres", sockets=sockets)


def make_private_folder(path: Path, account: Account) -> None:
    """Make an empty folder that only *account* (and root) can enter; what was there before is removed."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path)
    path.mkdir(mode=0o700)
    _give(path, account)


def drop_short_sockets(home: DataDirectory) -> None:
    """Remove a socket folder outside the data directory, once its server has gone; the next start makes another."""
    if home.sockets.parent == _SHORT_FOLDER:
        with contextlib.suppress(OSError):
            home.sockets.rmdir()


def _give(path: Path, account: Account) -> None:
    if os.geteuid() == 0:
        # lchown: if it was replaced by a link, only the owner of the link changes.
        os.lchown(path, account.uid, account.gid)


def _has_private_folder(folder: Path, account: Account) -> bool:
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
        _give(folder, account)
    return _is_private(folder, account)


def _is_private(folder: Path, account: Account) -> bool:
    try:
        status = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == account.uid and stat.S_IMODE(status.st_mode) == 0o700


def _choose_account(data_dir: Path, record: _LocationRecord | None) -> Account:
    if os.geteuid() != 0:
        return Account.of_uid(os.geteuid())
    base = Path(record.elsewhere) if record and record.elsewhere else data_dir
    for owned in (base / "postgres", data_dir):
        with contextlib.suppress(FileNotFoundError):
            uid = owned.lstat().st_uid
            if uid != 0:
                return _owner(owned, uid)
    return _unprivileged_account()


def _owner(folder: Path, uid: int) -> Account:
    account = Account.of_uid(uid)
    if account.name == "nobody":
        raise EmbeddedServerError(
            f"{folder} belongs to nobody, the account that commands and other daemons run as, and PostgreSQL would run as it too",
            hint=f"make an account for it and give it the folder: {_USERADD} && chown -R timeball {folder}",
        )
    return account


def _unprivileged_account() -> Account:
    for name in _ACCOUNTS_FOR_ROOT:
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            if entry.pw_uid != 0:
                return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)
    raise EmbeddedServerError(
        f"PostgreSQL does not run as root, and there is no account {' or '.join(_ACCOUNTS_FOR_ROOT)} to run it",
        hint=f"make one: {_USERADD} (Alpine: adduser -S timeball); or run as an ordinary user; or set TIMEBALL_DATABASE_URL",
    )


def _find_elsewhere(data_dir: Path, record: _LocationRecord | None, account: Account, shelter: Path) -> Path | None:
    """The folder that replaces the data directory if the account cannot reach it."""
    if record and record.elsewhere:
        _refuse_copy(data_dir, record)
        return _known_elsewhere(Path(record.elsewhere), shelter)
    if (data_dir / "postgres").exists() or account.uid == os.geteuid() or account.can_enter(data_dir):
        return None
    make_system_directory(shelter)
    folder = Path(tempfile.mkdtemp(prefix="database-", dir=shelter))
    folder.chmod(0o711)
    (folder / "origin").write_text(f"{data_dir}\n")
    return folder


def make_system_directory(shelter: Path) -> None:
    """Create root's folder for files that the account of the server could not reach otherwise, or check the existing one."""
    with contextlib.suppress(FileExistsError):
        shelter.mkdir(mode=0o755)
    status = shelter.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != 0 or status.st_mode & 0o022:
        raise EmbeddedServerError(
            f"{shelter} should be a directory that only root can write to",
            hint="correct its owner and permissions, or run as an ordinary user",
        )


def _known_elsewhere(folder: Path, shelter: Path) -> Path:
    # The record may be in a directory of another account: root does nothing in places that such a file names.
    if folder.parent != shelter or not folder.is_dir():
        raise EmbeddedServerError(
            f"the database is said to be in {folder}, but there is no such folder of Timeball's",
            hint="restore it from a backup, or delete the data directory to begin with an empty database",
        )
    make_system_directory(shelter)
    return folder


def _refuse_copy(data_dir: Path, record: _LocationRecord) -> None:
    if record.origin == str(data_dir):
        return
    original = _read_record(Path(record.origin))
    if original and original.elsewhere == record.elsewhere:
        raise EmbeddedServerError(
            f"{data_dir} is a copy of {record.origin}: the database of both is in {record.elsewhere}",
            hint=f"delete {data_dir / 'server.json'} to begin with an empty database, or delete the original",
        )


def _find_sockets(base: Path, record: _LocationRecord | None, data_dir: Path, account: Account) -> Path:
    inside = base / "run"
    if _fits_a_socket(inside) and _has_private_folder(inside, account):
        return inside
    if record and record.sockets and record.origin == str(data_dir) and _is_private(Path(record.sockets), account):
        return Path(record.sockets)
    folder = Path(tempfile.mkdtemp(prefix="timeball-", dir=_SHORT_FOLDER))
    _give(folder, account)
    return folder


def _fits_a_socket(folder: Path) -> bool:
    path = folder / SOCKET_NAME
    return bool(_PLAIN_PATH.fullmatch(str(path))) and len(os.fsencode(path)) <= _LONGEST_SOCKET_PATH


def _read_record(data_dir: Path) -> _LocationRecord | None:
    try:
        return _LocationRecord(**json.loads((data_dir / "server.json").read_text()))
    except FileNotFoundError:
        return None
    except (TypeError, ValueError) as error:
        raise EmbeddedServerError(
            f"{data_dir / 'server.json'} cannot be read: {error}",
            hint="it says where the database is; restore it from a backup",
        ) from error


def _write_record(data_dir: Path, record: _LocationRecord) -> None:
    fresh = data_dir / "server.json.new"
    with open(open_file(fresh, os.O_WRONLY | os.O_TRUNC), "w") as file:
        json.dump(asdict(record), file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(data_dir / "server.json")
