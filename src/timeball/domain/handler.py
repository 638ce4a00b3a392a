"""Handlers: named functions, how they run, the options declared with them, and the contracts that workers publish of them.

A worker publishes a contract of each handler when it starts, and jobs take from it what they do not say themselves. It is the JSON
Schema of the payload, the options that were declared with the handler, its docstring and how it runs. The fingerprint names exactly
that, so two workers with the same code publish the same one. Of several contracts of a handler, the newest is the one that a worker
process started with last: a deploy makes its contract the newest, and so does its roll-back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from hashlib import blake2b
from typing import Any, Protocol

import orjson

from timeball.domain.job_fields import GROWING_BACKOFF, LIST_FIELDS, OPTION_FIELDS, SPEC_FIELDS, JobSpec
from timeball.domain.policies import Delivery, is_serial_word
from timeball.domain.values.field_errors import unexpected_value
from timeball.domain.values.wording import Duration, format_size, parse_size
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

    def parameters_json_cannot_hold(self) -> Sequence[tuple[str, str]]:
        """The parameters that take values of a class of which none can be in a payload, each with the name of that class."""


# A process of Python alone takes about so much.
_LEAST_MEMORY = 16 * 2**20


def check_memory(value: object, field: str = "max_memory") -> int:
    """A bound of the memory of a process, in bytes."""
    size = parse_size(value, field)
    if size < _LEAST_MEMORY:
        raise unexpected_value(
            field, value, f"at least {format_size(_LEAST_MEMORY)}, which a process takes before it does anything"
        )
    return size


@dataclass(frozen=True, slots=True)
class Isolate:
    """How a handler runs in child processes: `isolate=Isolate(runs_per_child=50, max_memory="1GB")`.

    A child is replaced after so many runs, or after the run that left it with more memory than that. The memory is what the process
    itself keeps in the main memory of the machine. One run in a child that is not bounded may take whatever it likes.
    """

    runs_per_child: int = 1_000
    max_memory: int | str | None = None
    # The bound in bytes.
    memory: int | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        runs = self.runs_per_child
        if isinstance(runs, bool) or not isinstance(runs, int) or runs < 1:
            raise unexpected_value("runs_per_child", runs, "a whole number from 1")
        if self.max_memory is not None:
            object.__setattr__(self, "memory", check_memory(self.max_memory))

    def allows(self, runs: int, memory: int) -> bool:
        """Whether a child that has had so many runs, and keeps so much memory, may have another."""
        return runs < self.runs_per_child and (self.memory is None or memory <= self.memory)


# How long a handler may go on after it was told to stop: one that gets an error for that, to clean up; a thread that has to ask.
DEFAULT_GRACE = timedelta(seconds=10)
THREAD_GRACE = timedelta(seconds=1)

BackoffFunction = Callable[[int, BaseException], Duration]


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerOptions:
    """The options of a handler. Its jobs inherit *fields*, some of `OPTION_FIELDS`, unless they set their own."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    # Errors after which trying again is no use; and, if there are any, the only ones after which it is.
    no_retry: tuple[type[BaseException], ...] = ()
    retry_on: tuple[type[BaseException], ...] = ()
    # Errors that are no news: recorded and retried as others are, but no reason to look.
    expected: tuple[type[BaseException], ...] = ()
    # The pause after a failure, from the number of failed attempts so far and the error.
    backoff: BackoffFunction | None = None
    # How long it may go on once it was told to stop; None means what its style usually has.
    grace: timedelta | None = None
    # Whether the error that tells it to stop is raised in its thread.
    interrupt: bool = False
    # How its children are recycled, if it says so.
    isolate: Isolate | None = None

    def retries(self, kind: type[BaseException]) -> bool:
        """Whether an error of this kind may be tried again; `no_retry` goes before `retry_on`."""
        return not issubclass(kind, self.no_retry) and (not self.retry_on or issubclass(kind, self.retry_on))

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
    # They surround every run, the first one outermost (`timeball.handlers.registry`).
    wrappers: tuple[RunWrapper, ...] = ()

    @property
    def grace(self) -> timedelta:
        """How long it may go on after it was told to stop, before it is ended by force or given up."""
        if self.options.grace is not None:
            return self.options.grace
        is_plain_thread = self.style is RunStyle.THREAD and not self.options.interrupt
        return THREAD_GRACE if is_plain_thread else DEFAULT_GRACE

    @property
    def ignores_timeouts(self) -> bool:
        """Whether it declares a timeout that nothing enforces: a plain function in a thread, which only learns of it if it asks."""
        has_timeout = self.options.fields.get("timeout_ms") is not None
        return self.style is RunStyle.THREAD and not self.options.interrupt and has_timeout


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


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerContract:
    """What a worker publishes of a handler. *options* are fields of a job; those left out are the usual ones."""

    name: str
    schema: Mapping[str, Any]
    options: Mapping[str, Any]
    doc: str
    run_style: str

    @property
    def fingerprint(self) -> str:
        """The name of exactly this contract: equal contracts have equal fingerprints."""
        parts = [self.name, self.schema, self.options, self.doc, self.run_style]
        return blake2b(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractVersion:
    """A published contract of a handler: since when it is known, when a worker last started with it, and which living workers have it."""

    name: str
    fingerprint: str
    options: Mapping[str, Any]
    doc: str
    run_style: str
    published_at: datetime
    started_at: datetime
    is_newest: bool
    workers: Sequence[str] = ()


def short_fingerprint(fingerprint: str) -> str:
    """A fingerprint as people read it."""
    return fingerprint[:8]


def inherit_options(spec: JobSpec, given_fields: Collection[str], options: Mapping[str, Any]) -> JobSpec:
    """The spec with the handler's options in the fields that were not given."""
    taken = {name: value for name, value in options.items() if name in OPTION_FIELDS and name not in given_fields}
    if is_serial_word(spec.overlap):
        taken.pop("max_running", None)
    if GROWING_BACKOFF & set(given_fields):
        taken.pop("backoff_ms", None)
    taken |= {name: tuple(taken[name]) for name in LIST_FIELDS if name in taken}
    if taken.get("max_running") is not None and spec.limit_key is None:
        # The limit is that of all jobs of the handler; a one-off's own would limit nothing.
        taken["limit_key"] = spec.handler
    return replace(spec, **taken)


def inherit_call_options(call: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """A call that follows a run, with the handler's options in the fields that were not given."""
    return {name: value for name, value in options.items() if name in OPTION_FIELDS and name != "expect"} | dict(call)


def keep_at_most_once(fields: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an edit that chooses another handler: `at_most_once` is not loosened unless the edit says so."""
    if "delivery" in fields or options.get("delivery") != Delivery.AT_MOST_ONCE:
        return dict(fields)
    return {**fields, "delivery": Delivery.AT_MOST_ONCE}


def clear_inherited_limit(fields: Mapping[str, Any], limit_key: str | None, handler: str) -> Mapping[str, Any]:
    """The fields of an edit: with the limit, the key goes that the job took from its handler (see `inherit`)."""
    is_taken_away = "max_running" in fields and fields["max_running"] is None and "limit_key" not in fields
    return {**fields, "limit_key": None} if is_taken_away and limit_key == handler else fields


class MismatchAction(StrEnum):
    """What becomes of an execution whose payload does not fit the contract of the worker that claimed it."""

    DEAD = "dead"
    # Given back at once; the worker claims nothing of this handler while a living worker has a newer contract.
    LEAVE_TO_NEWER = "leave_to_newer"
    # Given back for a while: another living worker takes such payloads, or a worker of the newest contract has to start.
    WAIT = "wait"


# How long an execution waits that another living worker takes; and one for which a worker has to be started first.
_SOON = timedelta(seconds=1)
_LATER = timedelta(seconds=5)


def decide_mismatch(
    versions: Sequence[ContractVersion], fingerprint: str, takes: Callable[[str], bool]
) -> tuple[MismatchAction, timedelta]:
    """What follows a mismatch on a worker with this contract; *takes* tells whether another one takes the payload.

    Only the newest contract makes an execution dead, and not while a living worker has one that takes it.
    """
    newest = next((version for version in versions if version.is_newest), None)
    if newest is None or newest.fingerprint == fingerprint:
        others = (version for version in versions if version.workers and version.fingerprint != fingerprint)
        if any(takes(version.fingerprint) for version in others):
            return MismatchAction.WAIT, _SOON
        return MismatchAction.DEAD, timedelta(0)
    if has_newer_contract(versions, fingerprint):
        return MismatchAction.LEAVE_TO_NEWER, timedelta(0)
    return MismatchAction.WAIT, _LATER


def has_newer_contract(versions: Sequence[ContractVersion], fingerprint: str) -> bool:
    """Whether a living worker has a contract of the handler that is newer than this one."""
    own = next((version for version in versions if version.fingerprint == fingerprint), None)
    return own is not None and any(
        version.workers and (version.is_newest or version.started_at > own.started_at) and version is not own
        for version in versions
    )


# showing


def first_sentence(doc: str) -> str:
    """The first paragraph of a docstring, in one line."""
    return doc.partition("\n\n")[0].replace("\n", " ")


def example_of(schema: Mapping[str, Any]) -> Any:
    """The example of the model, or one made of its fields' examples and defaults."""
    if schema.get("examples"):
        return schema["examples"][0]
    fields = {name: _example_of_field(field) for name, field in schema.get("properties", {}).items()}
    required = set(schema.get("required", ()))
    return {name: value for name, value in fields.items() if value is not None or name in required}


def _example_of_field(field: dict[str, Any]) -> Any:
    example = field.get("examples", [field.get("default")])[0]
    return _PLACEHOLDERS.get(field.get("type", "")) if example is None else example


_PLACEHOLDERS: dict[str, Any] = {"string": "text", "integer": 1, "number": 1.0, "array": [], "object": {}}
