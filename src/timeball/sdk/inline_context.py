"""What is known of an inline run while its handler is called; `sdk/inline.py` says what inline means."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from timeball.current import RUNNING, AttemptContext
from timeball.domain.execution import Attempt, BufferedLogLine, ClaimedExecution, Execution
from timeball.domain.payload_references import CauseRecord
from timeball.env import Env


@dataclass(slots=True)
class InlineRecord:
    """What is known of an inline run, from its enqueue to its end."""

    execution: Execution
    payload: str
    # What the handler raised, with its traceback, if its last attempt failed.
    exception: BaseException | None = None
    attempts: list[Attempt] = field(default_factory=list)
    lines: list[BufferedLogLine] = field(default_factory=list)
    # The run that this one follows.
    cause: CauseRecord | None = None


class InlineContext(AttemptContext):
    """The attempt of an inline run, as `timeball.current` shows it."""

    __slots__ = ("depth", "is_last", "record")

    def __init__(self, record: InlineRecord, claimed: ClaimedExecution, env: Env, *, depth: int, is_last: bool) -> None:
        super().__init__(claimed, env.clock, lambda _: _InlineSink(record))
        self.record = record
        self.depth = depth
        # Whether no other attempt follows if this one fails.
        self.is_last = is_last


def inline_context() -> InlineContext | None:
    """The inline run that the caller is in, if it is in one."""
    context = RUNNING.get(None)
    return context if isinstance(context, InlineContext) else None


class _InlineSink:
    """Keeps log lines with the run."""

    def __init__(self, record: InlineRecord) -> None:
        self._record = record

    def emit_log(self, at: datetime, level: str, message: str) -> None:
        self._record.lines.append(BufferedLogLine(at, level, message))

    def report_progress(self, fraction: float, note: str | None) -> None:
        """A run that has ended when its caller sees it has no progress."""

    def keep_trace(self, words: dict[str, str]) -> None:
        """Nothing is kept of an inline run, and what follows it runs inside of its span."""
