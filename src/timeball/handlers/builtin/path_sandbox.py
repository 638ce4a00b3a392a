"""A folder that paths cannot leave: each part is opened relative to the folder before it."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from timeball.handlers.binding import HandlerRefused

FOLDER_MODE = 0o750
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_PARTS = 32
_MAX_PART_LENGTH = 255


class PathRefused(HandlerRefused):
    """A path leads out of the folder it must stay in, or through a link."""

    code = "path_refused"


def path_parts(path: str) -> tuple[str, ...]:
    """The names a relative path consists of; `ValueError` if it could lead elsewhere."""
    if path.startswith(("/", "~")) or "\\" in path:
        raise ValueError("the path is absolute, or written for another system; expected one below the files folder")
    if any(character < " " or character == "\x7f" for character in path):
        raise ValueError("the path contains control characters")
    steps = tuple(step for step in path.split("/") if step not in ("", "."))
    if ".." in steps:
        raise ValueError("the path goes up with '..'; expected one below the files folder")
    if not steps or len(steps) > _MAX_PARTS:
        raise ValueError(f"the path has {len(steps)} parts, expected 1 to {_MAX_PARTS}")
    if any(len(step.encode("utf-8", "surrogatepass")) > _MAX_PART_LENGTH for step in steps):
        raise ValueError(f"a part of the path is longer than {_MAX_PART_LENGTH} bytes")
    return steps


class PathSandbox:
    """The folder, which is made when it is first needed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def folder(self, steps: tuple[str, ...], *, creates: bool) -> Iterator[int]:
        """The open folder at the end of these steps, as a descriptor; missing ones are made if *creates*."""
        here = self._open()
        try:
            for step in steps:
                below = _open_part(here, step, "/".join(steps), creates=creates)
                os.close(here)
                here = below
            yield here
        finally:
            os.close(here)

    def _open(self) -> int:
        self.path.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        # The administrator may well have made the root itself a link.
        return os.open(self.path, _OPEN_FOLDER & ~os.O_NOFOLLOW)


def _open_part(here: int, step: str, path: str, *, creates: bool) -> int:
    if creates:
        with suppress(FileExistsError):
            os.mkdir(step, FOLDER_MODE, dir_fd=here)
    try:
        return os.open(step, _OPEN_FOLDER, dir_fd=here)
    except OSError as error:
        # A link shows as ENOTDIR or ELOOP, depending on the system.
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            kind = "a link, and links are not followed" if is_link(here, step) else "not a folder"
            raise PathRefused(f"{path}: {step} is {kind}") from None
        if error.errno == errno.ENOENT:
            raise PathRefused(f"{path}: there is no folder {step}") from None
        raise


def is_link(here: int, name: str) -> bool:
    """Whether that name in a folder is a symbolic link."""
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=here, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False
