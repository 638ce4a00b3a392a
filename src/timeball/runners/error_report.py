"""What went wrong, told for people: type, message, traceback, the frame to look at, and a fingerprint.

Frames of Timeball's own machinery are left out; they are the same every time. The frame to look at is the innermost one
of the user's own code: neither of Python's library nor of an installed package, unless there is nothing else.
The fingerprint names the kind of error and the place, not the line nor the data in the message, so that the same
failure has the same fingerprint on every machine and after an edit elsewhere in the file.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from traceback import StackSummary, TracebackException, walk_stack, walk_tb
from types import FrameType

from timeball.domain.execution import ErrorInfo
from timeball.domain.text import clean

_PACKAGE = os.path.join(Path(__file__).parents[1], "")
_BUILT_IN = os.path.join(_PACKAGE, "handlers", "")
# What stands between the worker and a handler's code.
_MACHINERY = tuple(
    os.path.join(_PACKAGE, part) for part in ("engine", "runners", "handlers/binding.py", "contrib/django")
)
_INSTALLED = tuple(
    os.path.join(sysconfig.get_path(kind), "") for kind in ("stdlib", "platstdlib", "purelib", "platlib")
)


def describe(error: BaseException) -> ErrorInfo:
    """An error that a handler raised. Never raises, whatever class it is of and whatever that has broken."""
    return _report(_type_name(type(error)), clean(error), _place_of(error), _traceback_of(error))


def describe_interruption(kind: str, message: str, frame: FrameType | None) -> ErrorInfo:
    """Something that befell a handler from outside, while it was at *frame* (or nobody knows where)."""
    if frame is None:
        return _report(kind, message, None, None)
    stack = list(walk_stack(frame))[::-1]
    lines = _without_machinery(StackSummary.extract(iter(stack))).format()
    return _report(kind, message, _Place.innermost(stack), "".join(["Stack (most recent call last):\n", *lines]))


def describe_death(kind: str, message: str, handler: str) -> ErrorInfo:
    """The end of a child process, of which no more is known than how it ended."""
    return ErrorInfo(type=kind, message=message, fingerprint=_fingerprint(kind, handler))


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a frame stands."""

    filename: str
    line: int
    module: str
    function: str

    @classmethod
    def innermost(cls, frames: Iterable[tuple[FrameType, int]]) -> _Place | None:
        """The last frame of the user's code; failing that, the last of anybody's but ours."""
        places = [cls.of(frame, line) for frame, line in frames if not _is_machinery(frame.f_code.co_filename)]
        users = [place for place in places if place.is_users]
        return next(reversed(users or places), None)

    @classmethod
    def of(cls, frame: FrameType, line: int) -> _Place:
        function = frame.f_code.co_qualname.rpartition("<locals>.")[2]
        return cls(frame.f_code.co_filename, line, clean(frame.f_globals.get("__name__", "")), function)

    @property
    def is_users(self) -> bool:
        is_ours = self.filename.startswith(_PACKAGE) and not self.filename.startswith(_BUILT_IN)
        return not is_ours and not self.filename.startswith((*_INSTALLED, "<"))

    def __str__(self) -> str:
        return f"{_short_path(self.filename)}:{self.line} in {self.function}"


def _report(kind: str, message: str, place: _Place | None, traceback: str | None) -> ErrorInfo:
    return ErrorInfo(
        type=kind,
        message=message,
        traceback=traceback,
        top_frame=None if place is None else str(place),
        fingerprint=_fingerprint(kind, "" if place is None else f"{place.module}:{place.function}"),
    )


def _fingerprint(kind: str, place: str) -> str:
    return blake2b(f"{kind}|{place}".encode("utf-8", "replace"), digest_size=6).hexdigest()


def _type_name(kind: type[BaseException]) -> str:
    try:
        name, module = clean(kind.__qualname__).rpartition("<locals>.")[2], clean(kind.__module__)
    except BaseException:  # a metaclass may have broken them
        return "Exception"
    return name if module == "builtins" else f"{module}.{name}"


def _place_of(error: BaseException) -> _Place | None:
    try:
        return _Place.innermost(walk_tb(error.__traceback__))
    except BaseException:
        return None


def _traceback_of(error: BaseException) -> str | None:
    try:
        report = TracebackException.from_exception(error, compact=True)
        _strip(report)
        return "".join(report.format())
    except BaseException:
        # An error may be of any class, with any attribute broken; what it has broken must stay its own attempt.
        return None


def _strip(report: TracebackException) -> None:
    to_strip = [report]
    while to_strip:
        part = to_strip.pop()
        part.stack = _without_machinery(part.stack)
        to_strip += [
            inner for inner in (part.__cause__, part.__context__, *(part.exceptions or ())) if inner is not None
        ]


def _without_machinery(stack: StackSummary) -> StackSummary:
    return StackSummary.from_list([frame for frame in stack if not _is_machinery(frame.filename)])


def _is_machinery(filename: str) -> bool:
    return filename.startswith(_MACHINERY)


def _short_path(filename: str) -> str:
    """A path below the working directory, or below a place Python imports from, relative to it."""
    bases = sorted(sys.path, key=len, reverse=True)
    if not filename.startswith(_INSTALLED):
        bases.insert(0, _working_directory())
    for base in bases:
        if base and filename.startswith(os.path.join(base, "")):
            return filename[len(os.path.join(base, "")) :]
    return filename


def _working_directory() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""
