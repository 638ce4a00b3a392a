"""The local key: how programs of one account know each other where the kernel does not tell who is calling (see `api.peers`).

A server writes a fresh one at every start, for its port, into the data directory, and removes it at its end. Clients of the same
account send it to that port. A key of an earlier start opens nothing, so a foreign program that takes the port later learns nothing.
"""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

_PREFIX = "tblocal_"
_LONGEST = 200


def _path(data_dir: Path, port: int) -> Path:
    return data_dir / f"api-{port}.key"


def write_local_key(data_dir: Path, port: int) -> str:
    """Make the key of a server that starts; only its account can read the file."""
    key = _PREFIX + secrets.token_urlsafe(32)
    path = _path(data_dir, port)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    remove_local_key(data_dir, port)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(key)
    return key


def remove_local_key(data_dir: Path, port: int) -> None:
    """The server ends: its key opens nothing from now on."""
    with suppress(OSError):
        _path(data_dir, port).unlink(missing_ok=True)


def find_local_key(url: str, data_dir: Path | None = None) -> str | None:
    """The local key of the server at this address, if it is on this machine and its file is ours; None otherwise."""
    parts = urlsplit(url)
    if not _is_loopback(parts.hostname or ""):
        return None
    port = parts.port or (443 if parts.scheme == "https" else 80)
    folder = data_dir or Path(os.environ.get("TIMEBALL_DATA_DIR") or ".timeball")
    with suppress(OSError):
        descriptor = os.open(_path(folder, port), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(descriptor) as file:
            facts = os.fstat(descriptor)
            is_private = stat.S_ISREG(facts.st_mode) and not facts.st_mode & 0o077
            if is_private and facts.st_uid in (0, os.geteuid()):
                key = file.read(_LONGEST)
                return key if key.startswith(_PREFIX) and key.isascii() and key.isprintable() else None
    return None


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
