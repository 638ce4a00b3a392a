"""Log records that a handler emits become lines of its execution's log."""

from __future__ import annotations

import logging

from timeball.current import RUNNING

_OWN_LOGGER = "timeball"


class LogCapture(logging.Handler):
    """Copies records of running handlers into their log; records from elsewhere go where they went before."""

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

        A root logger that nobody has touched would let only warnings through; it is opened to `info`.
        One captures for all workers of a process: a second one would write every line twice.
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
    """Without us, a record for which there is no handler would have been written to stderr."""
    is_alone = logging.getLogger().handlers == [capture]
    if is_alone and logging.lastResort is not None and record.levelno >= logging.lastResort.level:
        logging.lastResort.handle(record)


def _level_of(record: logging.LogRecord) -> str:
    for least, name in ((50, "critical"), (40, "error"), (30, "warning"), (20, "info")):
        if record.levelno >= least:
            return name
    return "debug"
