"""`folder.create` and `file.write`, below one folder and nowhere else (see `path_sandbox`)."""

from __future__ import annotations

import binascii
import fcntl
import hashlib
import os
import stat
from base64 import b64decode
from contextlib import suppress
from typing import Any, Literal, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from timeball.current import current
from timeball.domain.values.json_text import MAX_PAYLOAD_BYTES
from timeball.handlers.binding import HandlerRefused, Payload
from timeball.handlers.builtin.path_sandbox import PathRefused, PathSandbox, is_link, path_parts

_FILE_MODE = 0o640
_EXECUTABLE = stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_READ_BYTES = 1024 * 1024


class _PathPayload(Payload):
    path: str = Field(
        min_length=1, max_length=1_000, description="Below the files folder.", examples=["reports/2024/may.csv"]
    )

    @field_validator("path")
    @classmethod
    def _check_path(cls, value: str) -> str:
        path_parts(value)
        return value


class FolderPayload(_PathPayload):
    """A folder to be there."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"path": "reports/2026"}]})


class FilePayload(_PathPayload):
    """A file and what is to be in it."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"path": "reports/2026/may.csv", "content": "a,b\n1,2\n", "mode": "overwrite"}]}
    )

    content: str = Field(max_length=MAX_PAYLOAD_BYTES, description="What to write.")
    mode: Literal["create", "overwrite", "append"] = Field(
        default="create", description="`create` fails if the file is there with another content."
    )
    encoding: Literal["utf-8", "base64"] = Field(default="utf-8", description="How `content` stands for bytes.")

    @model_validator(mode="after")
    def _check_content(self) -> Self:
        self.data()
        return self

    def data(self) -> bytes:
        """The content as bytes."""
        if self.encoding == "utf-8":
            return self.content.encode()
        try:
            return b64decode(self.content, validate=True)
        except binascii.Error:
            raise ValueError("content is not base64") from None


class FileExists(HandlerRefused):
    """`create` found a file with another content."""

    code = "file_exists"


class FolderCreate:
    """Make a folder below the files folder, with those above it; one that is there already is fine."""

    def __init__(self, root: PathSandbox) -> None:
        self._root = root

    def __call__(self, payload: FolderPayload) -> dict[str, Any]:
        steps = path_parts(payload.path)
        with self._root.folder(steps, creates=True):
            return {"path": "/".join(steps)}


class FileWrite:
    """Write a file below the files folder, whole or not at all; folders on the way are made."""

    def __init__(self, root: PathSandbox) -> None:
        self._root = root

    def __call__(self, payload: FilePayload) -> dict[str, Any]:
        steps, data = path_parts(payload.path), payload.data()
        with self._root.folder(steps[:-1], creates=True) as folder:
            size = _WRITERS[payload.mode](folder, steps[-1], data)
        return {"path": "/".join(steps), "bytes": len(data), "size": size, "sha256": hashlib.sha256(data).hexdigest()}


def _create(folder: int, name: str, data: bytes) -> int:
    with _Draft(folder, data) as draft:
        try:
            os.link(draft.name, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
        except FileExistsError:
            # An earlier attempt may have got as far as this before its worker died.
            if not _holds(folder, name, data):
                raise FileExists(f"{name} is there already, and is not to be overwritten") from None
    return len(data)


def _overwrite(folder: int, name: str, data: bytes) -> int:
    _check_place(folder, name)
    with _Draft(folder, data) as draft:
        # Puts the new file in place of whatever has the name: a link that came meanwhile is replaced, not followed.
        os.replace(draft.name, name, src_dir_fd=folder, dst_dir_fd=folder)
    return len(data)


def _append(folder: int, name: str, data: bytes) -> int:
    _check_place(folder, name)
    file = os.open(name, _APPEND, _FILE_MODE, dir_fd=folder)
    try:
        # One after the other: taking back half a record must not take a neighbour's with it.
        fcntl.flock(file, fcntl.LOCK_EX)
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1 or status.st_mode & _EXECUTABLE:
            raise PathRefused(f"{name} is executable, or no file of its own; nothing is appended to it")
        if os.write(file, data) < len(data):
            # Half a record is worse than none.
            os.ftruncate(file, status.st_size)
            raise OSError(f"{name}: the disk is full")
        os.fsync(file)
        return status.st_size + len(data)
    finally:
        os.close(file)


_WRITERS = {"create": _create, "overwrite": _overwrite, "append": _append}


class _Draft:
    """A file under a name of this claim's own, on disk with all its bytes; gone on leaving, unless it was moved to its place."""

    def __init__(self, folder: int, data: bytes) -> None:
        self.name = f".timeball-{current.execution_id}-{current.fence}"
        self._folder = folder
        self._data = data

    def __enter__(self) -> Self:
        file = os.open(self.name, _NEW, _FILE_MODE, dir_fd=self._folder)
        try:
            left = memoryview(self._data)
            while left:
                left = left[os.write(file, left) :]
            os.fsync(file)
        except BaseException:
            self._remove()
            raise
        finally:
            os.close(file)
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()
        os.fsync(self._folder)

    def _remove(self) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self.name, dir_fd=self._folder)


def _check_place(folder: int, name: str) -> None:
    if is_link(folder, name):
        raise PathRefused(f"{name} is a link, and links are not followed")
    with suppress(FileNotFoundError):
        if not stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise PathRefused(f"{name} exists and is not a file")


def _holds(folder: int, name: str, data: bytes) -> bool:
    try:
        file = os.open(name, _READ, dir_fd=folder)
    except OSError:
        return False
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_size != len(data):
            return False
        rest = data
        while part := os.read(file, _READ_BYTES):
            if not rest.startswith(part):
                return False
            rest = rest[len(part) :]
        return not rest
    finally:
        os.close(file)
