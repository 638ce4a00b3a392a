"""Calls of collectors of the program, such as those of errors and of spans, in a thread beside the engine.

A collector may block or raise, and neither may reach what it collects from. So it is called in a thread, which runs while there is
something to do. What finds too many waiting is given up; that, and an error, is an event.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from timeball.telemetry.events import Emit, TelemetryFailed, ignore

_MOST_WAITING = 1_000


class BackgroundCalls:
    """Makes calls one after the other, in the order of `add`; may be used from any thread."""

    def __init__(self, name: str, emit: Emit = ignore) -> None:
        self._name = name
        self._emit = emit
        self._changed = threading.Condition()
        self._waiting: deque[Callable[[], object]] = deque()
        self._is_busy = False
        self._troubles = 0

    def add(self, call: Callable[[], object]) -> None:
        """Make the call soon, without waiting for it."""
        with self._changed:
            is_full = len(self._waiting) >= _MOST_WAITING
            if not is_full:
                self._waiting.append(call)
                self._start()
        if is_full:
            self._report(f"a collector is too slow: {_MOST_WAITING} calls wait for it, and one more was given up")

    def _start(self) -> None:
        if self._is_busy:
            return
        thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return  # the machine has no thread left; the next call tries again
        self._is_busy = True

    def _serve(self) -> None:
        while True:
            with self._changed:
                if not self._waiting:
                    self._is_busy = False
                    self._changed.notify_all()
                    return
                call = self._waiting.popleft()
            try:
                call()
            except BaseException as error:  # of code of the program, in a thread of ours
                self._report(f"a collector raised {type(error).__name__}")
            del call  # with what it holds, such as the frames of a handler

    def _report(self, trouble: str) -> None:
        self._troubles += 1
        self._emit(TelemetryFailed(self._name, trouble, self._troubles))

    def flush(self, seconds: float) -> bool:
        """Wait for a bounded time until all calls are made; False if some are not."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._is_busy, seconds)
