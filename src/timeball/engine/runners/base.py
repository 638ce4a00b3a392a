"""What a runner is, and the capture of the log records of running handlers."""

from __future__ import annotations

import logging
from typing import Protocol

from timeball.current import RUNNING, AttemptContext
from timeball.domain.execution import Outcome
from timeball.domain.handler import Handler


class Runner(Protocol):
    """Runs handlers, one attempt per call."""

    async def run(self, handler: Handler, context: AttemptContext) -> Outcome:
        """Run one attempt (`context.claimed`) to its outcome; whatever the handler does, this does not raise.

        `context.halt(...)` from outside makes it return soon, with the outcome the halt asks for.
        Only cancelling the surrounding task itself gets a `CancelledError` out of here, after cleaning up.
        """

    async def stop(self) -> None:
        """Free what the runner holds. Attempts still running are ended where that is possible."""


_OWN_LOGGER = "timeball"


class LogCapture(logging.Handler):
    """Turns log records of a running handler into lines of its execution's log; other records go where they went before."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter())

    def emit(self, record: logging.LogRecord) -> None:
        context = RUNNING.get(None)
        if context is None or _is_ours(record):
            _pass_on(self, record)
            return
        # A process that a handler forked may go on logging, only not here.
        if not context.is_forked_copy:
            context.emit_log(_level_of(record), self.format(record))

    def install(self) -> None:
        """Start capturing, once the user's modules are imported: `logging.basicConfig` does nothing after this.

        An unconfigured root logger lets only warnings through; it is opened to `info`.
        One capture serves all workers of a process: a second one would write every line twice.
        """
        root = logging.getLogger()
        if any(isinstance(handler, LogCapture) for handler in root.handlers):
            return
        if not root.handlers and root.level == logging.WARNING:
            root.setLevel(logging.INFO)
        root.addHandler(self)

    def remove(self) -> None:
        """Stop capturing."""
        logging.getLogger().removeHandler(self)


def _is_ours(record: logging.LogRecord) -> bool:
    return record.name == _OWN_LOGGER or record.name.startswith(f"{_OWN_LOGGER}.")


def _pass_on(capture: LogCapture, record: logging.LogRecord) -> None:
    """Without the capture, a record without any other handler would have been written to stderr."""
    is_alone = logging.getLogger().handlers == [capture]
    if is_alone and logging.lastResort is not None and record.levelno >= logging.lastResort.level:
        logging.lastResort.handle(record)


def _level_of(record: logging.LogRecord) -> str:
    for least, name in ((50, "critical"), (40, "error"), (30, "warning"), (20, "info")):
        if record.levelno >= least:
            return name
    return "debug"
