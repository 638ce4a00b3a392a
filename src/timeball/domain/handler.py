"""Handlers: named functions, how they run, and the options declared with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from timeball.domain.job_fields import OPTION_FIELDS, SPEC_FIELDS
from timeball.errors import PayloadError


class RunStyle(StrEnum):
    """Where a handler's code runs."""

    COROUTINE = "coroutine"
    THREAD = "thread"
    PROCESS = "process"


class PayloadMismatch(PayloadError):
    """A stored payload does not fit the handler's parameters. A retry would not help."""

    code = "payload_mismatch"
    # Whether a worker found it when it was about to call the handler; the handler was not called then.
    is_of_call = False


class Binder(Protocol):
    """Converts between the arguments of a call and the stored JSON object, by parameter names."""

    @property
    def call(self) -> Callable[[str], Any]:
        """Call the function with a stored payload; for a coroutine function this makes the coroutine.

        Raises `PayloadMismatch` before the function is called if the payload does not fit. A property, so that frequent
        callers can keep the prepared callable.
        """

    def encode(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """The payload for these arguments. Raises `InvalidInput` if they do not fit, `PayloadError` if they cannot be JSON."""

    def prepare(self) -> None:
        """Build what `call` needs before the first call; a worker does so before it claims."""

    def check(self, payload: str) -> object:
        """Raises `PayloadMismatch` if a stored payload does not fit; does not call the function."""

    def schema(self) -> dict[str, Any]:
        """The JSON Schema of the payload; it refuses what `call` always refuses, as far as JSON Schema can express it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerOptions:
    """The options of a handler. Its jobs inherit *fields*, some of `OPTION_FIELDS`, unless they set their own."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    no_retry: tuple[type[BaseException], ...] = ()

    def job_fields(self) -> dict[str, Any]:
        """What a handler gives to its jobs: a value for each of `OPTION_FIELDS`."""
        return {name: self.fields.get(name, SPEC_FIELDS[name].default) for name in OPTION_FIELDS}


class RunWrapper(Protocol):
    """What surrounds every run of a handler.

    It sees the error of a handler that raises, and may raise another one instead. It cannot swallow the error: one that is
    swallowed goes on all the same. A context manager with state of its own belongs to one run, so each call makes a new one.
    """

    def around(self) -> AbstractContextManager[object]:
        """Entered before a plain function is called, left after it has returned or raised; in the thread that calls it."""

    def around_async(self) -> AbstractAsyncContextManager[object]:
        """The same for a coroutine function; in the task that awaits it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Handler:
    """A function under its name, ready to be called with a stored payload."""

    name: str
    function: Callable[..., Any]
    style: RunStyle
    binder: Binder
    options: HandlerOptions = field(default_factory=HandlerOptions)
    # The target of a stored payload, such as a host, if the retry budget counts by target and not by handler alone.
    target: Callable[[str], str | None] | None = None
    # They surround every run, the first one outermost (`timeball.handlers.invoke`).
    wrappers: tuple[RunWrapper, ...] = ()


class HandlerSource(Protocol):
    """Finds handlers by name."""

    def find(self, name: str) -> Handler | None:
        """The handler of that name, if this process has it."""


class PayloadRules(Protocol):
    """Knows which payloads handlers accept."""

    def knows(self, name: str) -> bool:
        """Whether this process knows the handler *name*, regardless of published contracts."""

    def check(self, schema: Mapping[str, Any], name: str, payload: str) -> None:
        """Raises `PayloadMismatch` for a payload (JSON text) of handler *name* that does not fit its published schema."""

    def checker(self, name: str) -> Callable[[str], object] | None:
        """A check that raises `PayloadMismatch` for a payload (JSON text) that handler *name* never accepts; None if unknown."""


class UncheckedPayloads:
    """The rules of a process that knows no handlers."""

    def knows(self, name: str) -> bool:
        """No handler is known."""
        return False

    def check(self, schema: Mapping[str, Any], name: str, payload: str) -> None:
        """Every payload fits."""

    def checker(self, name: str) -> None:
        """There is no check."""


# Handlers that run commands from their payload or delete history. Only an administrator may choose them or write their payload.
ADMIN_HANDLERS = frozenset({"shell.command", "system.cleanup"})
