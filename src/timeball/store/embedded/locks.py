"""File locks that die with their process."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from timeball.store.embedded.home import open_file


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
        """Whether the path still names this file; not so once the directory was deleted, and perhaps made anew."""
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
