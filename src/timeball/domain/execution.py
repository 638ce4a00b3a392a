"""Executions: the record of one occurrence, trigger, enqueue or backfill; the outcomes of its attempts, and their logs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from threading import Lock
from typing import Any, NamedTuple

from timeball.domain.values.field_errors import list_choices, unexpected_value
from timeball.domain.values.ids import ClaimId, ExecutionId, Incarnation, JobId
from timeball.domain.values.redaction import redact
from timeball.domain.values.text import MAX_LABEL, clean_text, shorten_text


class DueKind(StrEnum):
    """Why a row waits in `due`."""

    OCCURRENCE = "occurrence"
    LATER = "later"
    SNOOZE = "snooze"
    # It was queued when a freeze began, and has not failed before.
    PUT_BACK = "put_back"
    RETRY = "retry"
    RESUME = "resume"


MAX_LOG_BYTES = 1024 * 1024
MAX_LINE_CHARACTERS = 16_000
# The cost of a line beyond its message: instant, level, row header. Empty lines must not be free.
_LINE_OVERHEAD = 32


class BufferedLogLine(NamedTuple):
    """One line of an execution's log."""

    at: datetime
    level: str
    message: str


class LogBuffer:
    """The log of one attempt: takes any number of lines and keeps at most *cap* bytes, half from the start and half from the end.

    The first half can be drained while the attempt runs; the last half is known only at its end (`close`), with a line
    before it that says how much is missing. Lines may be added from any thread.
    """

    def __init__(self, cap: int = MAX_LOG_BYTES) -> None:
        self._head_left = cap // 2
        self._tail_left = cap - cap // 2
        self._head: list[BufferedLogLine] = []
        self._tail: deque[tuple[BufferedLogLine, int]] = deque()
        self._is_head_full = False
        self._last_dropped: BufferedLogLine | None = None
        self._dropped_lines = 0
        self._dropped_bytes = 0
        self._lock = Lock()

    def add(self, at: datetime, level: str, message: str) -> None:
        """Add a line; a line that is too long loses its middle, and passwords in URLs are hidden."""
        line = BufferedLogLine(at, level, shorten_text(redact(message), MAX_LINE_CHARACTERS))
        size = len(line.message.encode("utf-8", "replace")) + _LINE_OVERHEAD
        with self._lock:
            self._is_head_full = self._is_head_full or size > self._head_left
            if self._is_head_full:
                self._add_to_tail(line, size)
            else:
                self._head.append(line)
                self._head_left -= size

    def _add_to_tail(self, line: BufferedLogLine, size: int) -> None:
        self._tail.append((line, size))
        self._tail_left -= size
        while self._tail_left < 0:
            dropped, freed = self._tail.popleft()
            self._last_dropped = dropped
            self._tail_left += freed
            self._dropped_lines += 1
            self._dropped_bytes += freed - _LINE_OVERHEAD

    def drain(self) -> list[BufferedLogLine]:
        """The new lines that are certain to be kept."""
        with self._lock:
            lines, self._head = self._head, []
        return lines

    def close(self) -> list[BufferedLogLine]:
        """All lines that are left, in order. To be called once, when the attempt has ended."""
        lines = self.drain()
        with self._lock:
            kept, self._tail = [line for line, _ in self._tail], deque()
        if self._last_dropped is not None:
            note = f"… {self._dropped_lines} lines ({self._dropped_bytes} bytes) left out …"
            lines.append(BufferedLogLine(self._last_dropped.at, "warning", note))
        return lines + kept


class ExecutionState(StrEnum):
    """The eight states; each is a state table, or a verdict in `finished`."""

    SCHEDULED = "scheduled"
    QUEUED = "queued"
    RUNNING = "running"
    RETRYING = "retrying"
    SUCCEEDED = "succeeded"
    CANCELLED = "cancelled"
    DEAD = "dead"
    SKIPPED = "skipped"

    @property
    def is_final(self) -> bool:
        """Whether nothing can follow this state."""
        return self in _FINAL


_FINAL = frozenset({ExecutionState.SUCCEEDED, ExecutionState.CANCELLED, ExecutionState.DEAD, ExecutionState.SKIPPED})


# The words of other systems for four of our states.
STATE_ALIASES = {"pending": "scheduled", "picked": "queued", "completed": "succeeded", "failed": "dead"}


def parse_states(words: Iterable[str], field: str = "status") -> tuple[ExecutionState, ...]:
    """States by name, each once; `pending picked completed failed` are accepted too."""
    return tuple(dict.fromkeys(_state(word, field) for word in words))


def _state(word: str, field: str) -> ExecutionState:
    try:
        return ExecutionState(STATE_ALIASES.get(word, word))
    except ValueError:
        raise unexpected_value(field, word, list_choices([*ExecutionState, *STATE_ALIASES])) from None


class Origin(StrEnum):
    """What created an execution."""

    SCHEDULE = "schedule"
    ENQUEUE = "enqueue"
    TRIGGER = "trigger"
    BACKFILL = "backfill"
    RETRY = "retry"
    # The success of another job: an occurrence of a job of kind `after`.
    AFTER = "after"


class ClaimedExecution(NamedTuple):
    """An execution that a worker has claimed. A tuple in the order of the claim's columns: thousands are made a second."""

    id: ExecutionId
    job_id: JobId
    fence: int
    attempt: int
    lost: int
    handler: str
    payload: str
    run_at: datetime
    scheduled_for: datetime
    timeout_ms: int | None
    queue: str
    priority: int
    # A word of `Origin`, as it is stored.
    origin: str
    version: int
    job_name: str | None
    # If it has not begun by then, it is not to begin. None if it may begin at any time, or has begun before.
    expires_at: datetime | None
    # JSON text, of its own or of its job.
    meta: str | None
    claim_id: ClaimId
    stop: str | None

    @property
    def is_retry(self) -> bool:
        """Whether an earlier attempt failed; an attempt that was lost with its worker is no failure."""
        return self.attempt - self.lost > 1


# What a worker holds: an execution, by the claim that gave it to the worker.
ClaimKey = tuple[ExecutionId, ClaimId]


MAX_MESSAGE = 4_000
MAX_TRACEBACK = 16_000
_MAX_FRAME = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorInfo:
    """The error of an attempt, as people and the dead-letter list need it.

    The database can store any ErrorInfo: this is the one place that replaces characters and shortens long texts.
    Passwords in URLs are hidden before a text is cut, so that no half of a password remains.
    """

    type: str
    message: str
    traceback: str | None = None
    top_frame: str | None = None
    fingerprint: str | None = None

    def __post_init__(self) -> None:
        _set_frozen(self, "type", clean_text(self.type)[:MAX_LABEL])
        _set_frozen(self, "message", _storable(self.message, MAX_MESSAGE))
        _set_frozen(self, "traceback", None if self.traceback is None else _storable(self.traceback, MAX_TRACEBACK))
        _set_frozen(self, "top_frame", None if self.top_frame is None else _storable(self.top_frame, _MAX_FRAME))
        _set_frozen(self, "fingerprint", None if self.fingerprint is None else clean_text(self.fingerprint)[:MAX_LABEL])


def _set_frozen(value: object, name: str, text: str | None) -> None:
    object.__setattr__(value, name, text)


def _storable(text: object, longest: int) -> str:
    hidden: str = redact(clean_text(text))
    return shorten_text(hidden, longest)


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The handler returned; *result* is its JSON text, or None."""

    result: str | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The handler raised, or asked for a retry after a delay of its choice."""

    error: ErrorInfo
    is_retryable: bool = True
    retry_after: timedelta | None = None
    # The handler has declared that this error is to be expected.
    is_expected: bool = False
    # The payload did not fit the handler of this worker, so the handler was not called.
    is_payload_mismatch: bool = False
    # The error itself, in the process that has it; whether and where it is logged is no part of the outcome.
    raised: Any = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class TimeoutOutcome:
    """The attempt ran past its timeout; the rest as in `Failed`."""

    error: ErrorInfo
    is_retryable: bool = True
    is_expected: bool = False
    raised: Any = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Snoozed:
    """The handler asks to run later, or the worker cannot run it now for a *reason*; this attempt does not count."""

    delay: timedelta
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class CancelOutcome:
    """A person or the handler itself cancelled the execution."""

    reason: str

    def __post_init__(self) -> None:
        _set_frozen(self, "reason", _storable(self.reason, MAX_MESSAGE))


@dataclass(frozen=True, slots=True)
class NotStarted:
    """A claimed execution did not start, because its job was paused or deleted meanwhile, or because it expired."""

    reason: str

    def __post_init__(self) -> None:
        _set_frozen(self, "reason", _storable(self.reason, MAX_MESSAGE))


@dataclass(frozen=True, slots=True)
class Lost:
    """The worker died, or its lease expired, during the attempt."""

    error: ErrorInfo


@dataclass(frozen=True, slots=True)
class Released:
    """The worker gives the execution back; this attempt does not count. *has_started* says whether the handler was called."""

    has_started: bool = False


_WORDS = {"TimeoutOutcome": "timed_out", "CancelOutcome": "cancelled", "NotStarted": "not_started"}
Outcome = Succeeded | Failed | TimeoutOutcome | Snoozed | CancelOutcome | NotStarted | Lost | Released


def outcome_word(outcome: Outcome) -> str:
    """What an outcome is called in records, logs and pages."""
    name = type(outcome).__name__
    return _WORDS.get(name) or name.lower()


# The prefix of a stop that concerns held executions only, not started ones: the job was paused or deleted.
SKIP_STOP = "skip:"


def outcome_of_stop(stop: str) -> CancelOutcome | NotStarted:
    """The outcome of an execution that was asked to stop before it started."""
    if stop.startswith(SKIP_STOP):
        return NotStarted(stop.removeprefix(SKIP_STOP))
    return CancelOutcome(stop)


class FinishedAttempt(NamedTuple):
    """An outcome with its claim: what the recorder receives."""

    claimed: ClaimedExecution
    outcome: Outcome
    started_at: datetime | None
    finished_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One unsuccessful attempt."""

    execution_id: ExecutionId
    fence: int
    number: int
    worker: Incarnation | None
    started_at: datetime | None
    finished_at: datetime
    outcome: str
    error: ErrorInfo | None
    # Its handler has declared that this error is to be expected.
    is_expected: bool = False


class Progress(NamedTuple):
    """How far a running attempt is, as its handler has told: from 0 to 1, and in words."""

    fraction: float
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """An execution as reads return it, from any state table."""

    id: ExecutionId
    job_id: JobId
    state: ExecutionState
    origin: Origin
    version: int
    queue: str
    priority: int
    handler: str
    scheduled_for: datetime
    run_at: datetime | None
    queued_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    attempts: int
    lost: int
    fence: int
    worker: Incarnation | None
    result: Any
    error_type: str | None
    error: str | None
    reason: str | None
    retry_of: ExecutionId | None
    limit_key: str | None
    unique_key: str | None
    # The API key, person or program that created it; None for a scheduled occurrence.
    created_by: str | None
    # If it has not begun by then, it is skipped. None if it may begin at any time, or has begun.
    expires_at: datetime | None = None
    # Its own, or that of its job.
    meta: dict[str, Any] | None = None
    # Of the attempt that runs; None if it has told none.
    progress: Progress | None = None

    @property
    def lateness(self) -> timedelta | None:
        """How long after its instant the execution started."""
        return None if self.started_at is None else self.started_at - self.scheduled_for
