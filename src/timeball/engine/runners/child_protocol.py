"""Messages between a worker and its child processes: JSON, each with its length before it."""

from __future__ import annotations

import asyncio
import socket
import struct
from dataclasses import dataclass
from threading import Lock
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from timeball.current import StopReason
from timeball.domain.execution import Cancelled, ClaimedExecution, ErrorInfo, Failed, Outcome, Snoozed, Succeeded
from timeball.domain.values.json_text import check_result

_LENGTH = struct.Struct("!I")
# A payload, result or traceback is far smaller; more than this is no message of ours.
MAX_MESSAGE_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupMessage:
    """First words to a child: where to import from."""

    kind: Literal["setup"] = "setup"
    path: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMessage:
    """Run this attempt; *number* comes back with everything that is said about it."""

    kind: Literal["run"] = "run"
    number: int
    claimed: ClaimedExecution


@dataclass(frozen=True, slots=True, kw_only=True)
class StopMessage:
    """Ask the handler to stop."""

    kind: Literal["stop"] = "stop"
    number: int
    why: StopReason
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyMessage:
    """The app is imported. *pid* is that of the process with the user's code, and of its process group."""

    kind: Literal["ready"] = "ready"
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupFailedMessage:
    """The app could not be imported."""

    kind: Literal["broken"] = "broken"
    error: ErrorInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedMessage:
    """The handler is about to be called: from here on a death counts as the attempt's."""

    kind: Literal["begun"] = "begun"
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogMessage:
    """A log line."""

    kind: Literal["log"] = "log"
    number: int
    level: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressMessage:
    """How far the attempt is."""

    kind: Literal["progress"] = "progress"
    number: int
    fraction: float
    note: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeMessage:
    """The handler has ended, with one of these outcomes."""

    kind: Literal["ended"] = "ended"
    number: int
    succeeded: Succeeded | None = None
    failed: Failed | None = None
    snoozed: Snoozed | None = None
    cancelled: Cancelled | None = None
    has_noticed: bool
    is_reusable: bool

    @classmethod
    def of(cls, number: int, outcome: Outcome, *, has_noticed: bool, is_reusable: bool) -> OutcomeMessage:
        """The message that carries an outcome of a handler's own making."""
        return cls(
            number=number,
            succeeded=outcome if isinstance(outcome, Succeeded) else None,
            failed=outcome if isinstance(outcome, Failed) else None,
            snoozed=outcome if isinstance(outcome, Snoozed) else None,
            cancelled=outcome if isinstance(outcome, Cancelled) else None,
            has_noticed=has_noticed,
            is_reusable=is_reusable,
        )

    @property
    def outcome(self) -> Outcome:
        """The outcome that was carried; its result is checked again, for the handler's own code has had this process."""
        result = None if self.succeeded is None else self.succeeded.result
        success = Succeeded(None if result is None else check_result(result.encode()))
        return self.failed or self.snoozed or self.cancelled or success


ToChild = SetupMessage | RunMessage | StopMessage
FromChild = ReadyMessage | SetupFailedMessage | StartedMessage | LogMessage | ProgressMessage | OutcomeMessage

_TO_CHILD: TypeAdapter[ToChild] = TypeAdapter(Annotated[ToChild, Field(discriminator="kind")])
_FROM_CHILD: TypeAdapter[FromChild] = TypeAdapter(Annotated[FromChild, Field(discriminator="kind")])


def pack(message: ToChild) -> bytes:
    """A message to a child as bytes."""
    return _framed(_TO_CHILD.dump_json(message))


async def receive(reader: asyncio.StreamReader) -> FromChild | None:
    """The next message of a child; None when there will be no more. Raises ValueError for what is no message of ours."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        return _FROM_CHILD.validate_json(await reader.readexactly(_checked(length)))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


class Channel:
    """The child's end. Any thread may send; one receives."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._reader = connection.makefile("rb")
        self._lock = Lock()

    def send(self, message: FromChild) -> None:
        """Send a message whole."""
        with self._lock:
            self._connection.sendall(_framed(_FROM_CHILD.dump_json(message)))

    def receive(self) -> ToChild | None:
        """The next message; None when the worker has hung up."""
        head = self._reader.read(_LENGTH.size)
        if len(head) < _LENGTH.size:
            return None
        length = _checked(_LENGTH.unpack(head)[0])
        body = self._reader.read(length)
        return _TO_CHILD.validate_json(body) if len(body) == length else None


def _framed(body: bytes) -> bytes:
    return _LENGTH.pack(len(body)) + body


def _checked(length: int) -> int:
    if length > MAX_MESSAGE_BYTES:
        raise ValueError(f"a message of {length} bytes, expected at most {MAX_MESSAGE_BYTES}")
    return length
