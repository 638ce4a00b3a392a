"""Life signs: what API, schedulers, workers and watchers leave on their machine, and what `timeball alive` reads.

A container's health check runs every few seconds. So it reads a file that says until when its process holds its lease, and asks the
API over a socket; it needs no settings, no driver and no database, and imports none of them. A node that cannot reach its database is
alive until its lease has run out: by then it has given up its work.

The files are in a folder below TMPDIR, or /tmp, to which no other account can write. Instants are those of the monotonic clock, which
all processes of a machine share.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from contextlib import suppress

API = "api"
WATCH = "watch"
KINDS = (API, "scheduler", "worker", WATCH)
_ANSWER_SECONDS = 5.0
_REQUEST = "GET /api/v1/health/ready HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n"


class LifeSign:
    """The file of one node, or of the API, of this process. What cannot be written is left out: the process goes on."""

    def __init__(self, kind: str) -> None:
        self._name = f"{kind}-{os.getpid()}"

    def extend(self, until: float) -> None:
        """The node holds its lease until this monotonic instant; or a watcher looks again before it."""
        self._write(f"{until:.3f}")

    def listen(self, host: str, port: int) -> None:
        """The API can be asked at this address of the machine."""
        self._write(f"{host} {port}")

    def remove(self) -> None:
        """The process leaves in good order."""
        with suppress(OSError):
            os.unlink(f"{_folder()}/{self._name}")

    def _write(self, text: str) -> None:
        with suppress(OSError):
            folder = _folder()
            os.makedirs(folder, mode=0o700, exist_ok=True)
            if not _is_ours(folder):
                return
            # Readers see the old text or the new one. A name with a dot is no life sign.
            unfinished = f"{folder}/.{self._name}"
            with open(unfinished, "w", encoding="ascii") as file:
                file.write(text)
            os.replace(unfinished, f"{folder}/{self._name}")


def is_alive(kind: str | None) -> bool:
    """Whether a process of this machine and account is alive: of any kind, if none is named."""
    return any(_answers(text) if of == API else _lasts(text) for of, text in _signs() if kind in (None, of))


def _signs() -> Iterator[tuple[str, str]]:
    """Kind and text of each life sign whose process exists. Those of processes that have died are removed."""
    with suppress(OSError):
        folder = _folder()
        if not _is_ours(folder):
            return
        for name in sorted(os.listdir(folder)):
            kind, _, process = name.partition("-")
            if kind not in KINDS or not process.isdecimal():
                continue
            path = f"{folder}/{name}"
            with suppress(OSError):
                if _exists(int(process)):
                    with open(path, encoding="ascii") as file:
                        yield kind, file.read()
                else:
                    os.unlink(path)


def _lasts(text: str) -> bool:
    return float(text) > time.monotonic()


def _answers(text: str) -> bool:
    """Whether the API at this address says that it is ready."""
    import socket

    host, _, port = text.partition(" ")
    request = _REQUEST.format(host=f"[{host}]" if ":" in host else host, port=port)
    try:
        with socket.create_connection((host, int(port)), _ANSWER_SECONDS) as connection:
            connection.sendall(request.encode())
            status = connection.makefile("rb").readline(200)
    except OSError:
        return False
    return b" 200 " in status


def _exists(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _folder() -> str:
    return f"{os.environ.get('TMPDIR') or '/tmp'}/timeball-{os.getuid()}"  # noqa: S108


def _is_ours(folder: str) -> bool:
    """Whether only this account can write to the folder: another one may have made it first, or have placed a link."""
    status = os.lstat(folder)
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022
