"""Handlers: named code, how it is run, and what was declared with it."""

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
    """A stored payload does not fit the handler's parameters. Trying again would not help."""

    code = "payload_mismatch"
    # Whether a worker that was about to call the handler found it; the handler was not entered then.
    is_of_call = False


class Binder(Protocol):
    """Arguments of a call <-> the JSON object that is stored, by the names of the parameters."""

    @property
    def invoke(self) -> Callable[[str], Any]:
        """Call the function with a stored payload; for a coroutine function this makes the coroutine.

        Raises `PayloadMismatch` before the function is entered if the payload does not fit. A property, so that the
        prepared callable can be kept by those who call it often.
        """

    def encode(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """The payload for these arguments. Raises `InvalidInput` if they do not fit, `PayloadError` if they are no JSON."""

    def prepare(self) -> None:
        """Build what `invoke` needs now and not at the first call; a worker does so before it claims."""

    def check(self, payload: str) -> object:
        """Raises `PayloadMismatch` if a stored payload does not fit; calls nothing."""

    def schema(self) -> dict[str, Any]:
        """The JSON Schema of the payload: what `invoke` refuses for certain, this refuses too, as far as JSON Schema can say it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerOptions:
    """What was declared with a handler: *fields* are those of its jobs that do not say otherwise, some of `OPTION_FIELDS`."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    no_retry: tuple[type[BaseException], ...] = ()

    def job_fields(self) -> dict[str, Any]:
        """What a handler gives to its jobs: a value for each of `OPTION_FIELDS`."""
        return {name: self.fields.get(name, SPEC_FIELDS[name].default) for name in OPTION_FIELDS}


class RunWrapper(Protocol):
    """What surrounds every run of a handler."""

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
    # What a stored payload points to, such as a host, if retries are to be counted by that and not by the handler alone.
    target: Callable[[str], str | None] | None = None
    # What surrounds every run, the first one outermost (`timeball.handlers.invoke`).
    around: tuple[RunWrapper, ...] = ()


class HandlerSource(Protocol):
    """Whatever can find handlers by name."""

    def find(self, name: str) -> Handler | None:
        """The handler of that name, if it is known here."""


class PayloadRules(Protocol):
    """Whatever knows what handlers can take."""

    def knows(self, name: str) -> bool:
        """Whether the handler *name* is known here, whatever workers have published."""

    def check(self, schema: Mapping[str, Any], name: str, payload: str) -> None:
        """Raises `PayloadMismatch` for a payload (JSON text) of handler *name* that does not fit its published schema."""

    def checker(self, name: str) -> Callable[[str], object] | None:
        """What raises `PayloadMismatch` for a payload (JSON text) that handler *name* could never take; None if nobody knows."""


class UncheckedPayloads:
    """Rules of somebody who knows no handler."""

    def knows(self, name: str) -> bool:
        """None is known."""
        return False

    def check(self, schema: Mapping[str, Any], name: str, payload: str) -> None:
        """Everything fits."""

    def checker(self, name: str) -> None:
        """Nobody knows."""


# Handlers that run whatever their payload says, or take history away. Only an administrator may write it, or choose such a handler.
ADMIN_HANDLERS = frozenset({"shell.command", "system.cleanup"})
