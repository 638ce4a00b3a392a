"""Raises an error in the code of a handler: in a thread of the worker, or in the main thread of a child.

Python raises such an error between two bytecodes, wherever the thread is then. Only the code of the handler may see it: not what calls
the handler, which would lose the outcome, and not a part of Timeball that the handler has called, which may be in the middle of a
change. So the frames of the thread are looked at first (`is_in_handler`), and the sender tries again a little later if it is elsewhere.
A handler that waits for another run is as good as in its own code: the wait changes nothing.
A thread that waits inside of a call in C gets the error when that returns; the main thread of a child is woken by a signal.
"""

from __future__ import annotations

import contextlib
import operator
import os
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Lock, get_ident
from types import FrameType
from typing import Any

from timeball.current import Cancelled, Stopped, StopReason, TimedOut

# When the error could not be raised, the next look follows so much later.
RETRY_SECONDS = 0.01

_PACKAGE = os.path.join(Path(__file__).parents[2], "")
_BUILT_IN = os.path.join(_PACKAGE, "handlers", "builtin", "")
# The packages that call a handler, and the module that they call wrappers through.
_CALLERS = tuple(os.path.join(_PACKAGE, part, "") for part in ("engine", "handlers", "contrib"))
_GO_BETWEEN = contextlib.__file__
# The functions of ours that wait for what a handler has asked for, and may be left at any bytecode.
_WAITS = frozenset(
    (os.path.join(_PACKAGE, "sdk", module), function)
    for module, function in (("runs.py", "result"), ("groups.py", "results"), ("background_loop.py", "wait"))
)


def error_of_halt(halted: StopReason | None) -> type[Stopped]:
    """The error that tells the code of a handler why it is to stop."""
    match halted:
        case StopReason.TIMEOUT:
            return TimedOut
        case StopReason.CANCEL:
            return Cancelled
        case _:
            return Stopped


def is_in_handler(frame: FrameType | None) -> bool:
    """Whether a thread at this frame is in the code of a handler, or in something that it has called, but in nothing of ours."""
    has_entered = False
    while frame is not None:
        filename = frame.f_code.co_filename
        is_ours = filename.startswith(_PACKAGE) and not filename.startswith(_BUILT_IN)
        if is_ours and (filename, frame.f_code.co_name) not in _WAITS:
            return has_entered and filename.startswith(_CALLERS)
        has_entered = has_entered or filename != _GO_BETWEEN
        frame = frame.f_back
    return False


class ThreadInterrupt:
    """Lets other threads raise one error in a call that this thread makes, as long as the call has not returned."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._thread: int | None = None
        self._has_sent = False

    def call(self, function: Callable[[], Any]) -> Any:
        """Call a function. What it has returned stands, even if the error comes while we take it over."""
        returned: list[Any] = []
        try:
            try:
                self._thread = get_ident()
                # In C from the function to the list: there is no bytecode between them at which the error could come.
                returned.extend(map(operator.call, (function,)))
            finally:
                self._shut()
        except Stopped:
            if not returned:
                raise
        return returned[0]

    def _shut(self) -> None:
        with self._lock:
            thread, self._thread = self._thread, None
            if self._has_sent and thread is not None:
                # The error may still be on its way: it must not arrive after this.
                _take_back_error(thread)

    def send(self, error: type[Stopped]) -> bool:
        """Raise an error in the call; True if that is done, or the call is over. An error is raised once at most."""
        with self._lock:
            thread = self._thread
            if self._has_sent:
                return True
            if thread is None or not is_in_handler(sys._current_frames().get(thread)):
                return False
            # The thread rests while this one has the interpreter. If it has moved on nevertheless, the error is taken back.
            _set_error(thread, error)
            self._has_sent = is_in_handler(sys._current_frames().get(thread))
            if not self._has_sent:
                _take_back_error(thread)
            return self._has_sent


class _Flush(BaseException):
    """Raised in the thread that takes an error back, and caught there."""


def _take_back_error(thread: int) -> None:
    """Let no error arrive in a thread.

    Python sets a flag while an error is on its way, and only an error that arrives resets it. With the flag set all
    threads are slower, and Python 3.11 hangs under a debugger or a profiler. So an error of our own arrives here.
    """
    _set_error(thread, None)
    with contextlib.suppress(_Flush):
        _set_error(get_ident(), _Flush)
        for _ in range(100):
            """The error comes between two bytecodes of a loop."""


def _set_error(thread: int, error: type[BaseException] | None) -> None:
    import ctypes  # here and not above: an idle worker has no use for it

    pending = None if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), pending)
