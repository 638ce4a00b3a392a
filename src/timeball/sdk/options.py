"""What can be said beside the arguments: with a handler, with a schedule, with one enqueue.

These are the words of the Python face (`retries=5, timeout="30s"`); here they become the fields of a job.
Each says only what it wants to say: an enqueue overrules its handler, a schedule too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any, Literal, Protocol, TypedDict, cast, runtime_checkable

from timeball.domain.expectations import Expect, check_expect
from timeball.domain.expiry import NEVER, parse_expiry
from timeball.domain.follow_ups import FOLLOW_UP_FIELDS
from timeball.domain.handler import BackoffFunction, HandlerOptions, Isolate
from timeball.domain.job import check_meta
from timeball.domain.job_fields import SPEC_FIELDS, Labels
from timeball.domain.policies import Delivery, IfExists, Misfire, OnGap, OnRepeat, Overlap, Shift
from timeball.domain.values.field_errors import list_choices, unexpected_value
from timeball.domain.values.wording import Duration, parse_duration
from timeball.errors import InvalidInput

InstantInput = datetime | str


@runtime_checkable
class FollowUpCall(Protocol):
    """What `handler.call(...)` returns."""

    def as_follow_up(self) -> dict[str, Any]:
        """The call as a job keeps it."""


class SharedOptions(TypedDict, total=False):
    """How the executions of a job are treated. Spans are texts like `30s`, seconds, or timedeltas."""

    queue: str
    priority: int
    """0 to 100, higher first; 50 if nothing is said."""
    retries: int
    """How many more tries follow a failed first one."""
    max_lost: int
    """How many workers may die over an execution before it is given up."""
    timeout: Duration | None
    """How long one try may take; None lets it take as long as it likes."""
    backoff: Duration | Sequence[Duration]
    """The pause before the first retry, which doubles with each further one; or a list of the pauses, whose last one repeats."""
    max_backoff: Duration
    delivery: Delivery | Literal["at_least_once", "at_most_once"]
    max_running: int | None
    """How many may run together, across all workers."""
    expires: Duration | datetime | None
    """Skip an execution that has not begun this span after its time; an enqueue may also name the instant."""
    tags: Sequence[str]


class HandlerDeclaration(SharedOptions, total=False):
    """What `@tb.handler(...)` takes; it holds for all jobs of the handler that do not say otherwise."""

    name: str | None
    """`module:function` if nothing is said."""
    expect: Expect | Mapping[str, Any] | None
    """What is expected of its schedules, such as `Expect(succeed_every="26h")`: an alert opens while it is not so."""
    isolate: bool | Isolate
    """Run it in a child process, which can be ended whatever it does; `Isolate(...)` says when a child is replaced."""
    backoff: Duration | Sequence[Duration] | BackoffFunction  # type: ignore[misc]  # a handler may also compute it
    """As for a job; or a function that is given the number of failed attempts and the error, and returns the pause."""
    no_retry: type[BaseException] | tuple[type[BaseException], ...]
    """Errors after which trying again is no use."""
    grace: Duration
    """How long it may go on after it was told to stop, before it is ended by force; up to 10 minutes, 10 s if nothing is said."""
    interrupt: bool
    """Raise the error that tells it to stop in its thread, too; for a plain function."""
    retry_on: type[BaseException] | tuple[type[BaseException], ...]
    """The only errors after which it is tried again, save those that `no_retry` names."""
    expected: type[BaseException] | tuple[type[BaseException], ...]
    """Errors that are no news: counted and shown, but no warning and no dead letter."""


class EnqueueOptions(SharedOptions, total=False):
    """What `.options(...)` takes; it holds for one enqueue."""

    delay: Duration
    """Run it after this span; not together with `at`."""
    at: InstantInput
    """Run it at this instant; one without an offset is read on the clock of `timezone`."""
    timezone: str
    key: str
    """While an execution with this key is unfinished, enqueuing gives that one instead of a second."""
    if_exists: IfExists | Literal["keep", "replace", "extend"]
    """What becomes of it if it has not begun: it stays, takes the newest arguments, or takes them and the newest time."""
    unique_for: Duration | None
    """The key stays taken so long after the time of the execution, even if that has ended."""
    limit_key: str
    """Those that share it share `max_running`; the handler's name if nothing is said."""
    meta: Mapping[str, Any] | None
    """A JSON object about the run that is no argument, such as its tenant: `current.meta`."""
    on_success: FollowUpCall | None
    """What is called when the execution has succeeded: `archive.call(tb.result)`."""
    on_failure: FollowUpCall | None
    """What is called when it has ended otherwise: dead, cancelled or skipped."""
    connection: Any
    """Enqueue inside the transaction of this connection or session: asyncpg, psycopg, Django or SQLAlchemy."""
    unchecked: bool
    """Take a payload that the published contract refuses, of a handler that is not known here; one that is known checks its own."""


class ScheduleOptions(SharedOptions, total=False):
    """What `@tb.cron(...)`, `@tb.every(...)` and `.schedule(...)` take beside their rhythm."""

    name: str | None
    """The name of the job. Without one, a declaration has the name of its handler, and `.schedule(...)` makes a new job each time."""
    description: str
    owner: str | None
    """What the schedule belongs to, such as `query:17`; `tb.jobs` lists, pauses, resumes and deletes all schedules of an owner."""
    arguments: Mapping[str, Any]
    """What the handler is called with, by the names of its parameters."""
    timezone: str
    on_gap: OnGap | Literal["next_valid", "skip"]
    on_repeat: OnRepeat | Literal["first", "second", "both"]
    skip_on: Sequence[str]
    """The names of calendars whose days are left out."""
    only_on: Sequence[str]
    """The names of calendars: on other days than theirs it does not run."""
    shift: Shift | Literal["none", "next", "previous"]
    """Where an occurrence on a day of `skip_on` goes."""
    misfire: Misfire | Literal["latest", "skip", "all"]
    misfire_grace: Duration
    misfire_cap: int
    misfire_max_age: Duration
    overlap: Overlap | Literal["skip", "allow", "queue", "cancel_running", "latest"]
    jitter: Duration
    starts_at: InstantInput
    ends_at: InstantInput
    max_executions: int
    pause_after_failures: int
    """After so many dead executions in a row the job is paused."""
    expect: Expect | Mapping[str, Any] | None
    """What is expected of it, such as `Expect(start_within="1m", succeed_every="26h")`: an alert opens while it is not so."""
    limit_key: str
    meta: Mapping[str, Any] | None
    """A JSON object about its runs that is no argument, such as their tenant."""
    on_success: FollowUpCall | None
    """What is called when an execution has succeeded: `archive.call(tb.result)`."""
    on_failure: FollowUpCall | None
    """What is called when one has ended otherwise: dead, cancelled or skipped."""


class ScheduleParams(ScheduleOptions, total=False):
    """One of the schedules that `schedule_many` takes: a rhythm or an instant, and the options beside it."""

    cron: str
    every: Duration
    at: InstantInput
    after: str


class UpdateOptions(ScheduleOptions, total=False):
    """What `tb.jobs.update(...)` takes beside a new rhythm: what is to be changed."""

    handler: str


_LONGEST_GRACE = timedelta(minutes=10)
_UNITS = {"ms": timedelta(milliseconds=1), "seconds": timedelta(seconds=1), None: None}
# By the word: the name of the field, the unit of a span, and whether it is a list.
_FIELDS = {line.word: (name, _UNITS[line.unit], isinstance(line.rule, Labels)) for name, line in SPEC_FIELDS.items()}
# The words that are not fields of a job.
_NOT_FIELDS = frozenset(
    {
        "isolate",
        "no_retry",
        "retry_on",
        "expected",
        "grace",
        "interrupt",
        "delay",
        "connection",
        "unchecked",
        "arguments",
    }
)
_OF_HANDLER = frozenset({"name", *_NOT_FIELDS})


def check_options(options: Mapping[str, Any], known: type[Any], where: str) -> None:
    """Refuse a word that *known* does not know, for those who write without a type checker."""
    words = known.__optional_keys__
    for word in options:
        if word not in words:
            raise InvalidInput(
                f"{where} has no option {word!r}; known are {', '.join(sorted(words))}",
                field=word,
                hint=_advice(word, sorted(words)),
            )


def _advice(word: str, words: Sequence[str]) -> str:
    # Imported here: only a word that is not known needs them.
    from timeball.domain.values.field_errors import did_you_mean, nearest_names
    from timeball.handlers.counterparts import option_hint

    if word in HandlerDeclaration.__optional_keys__:
        return f"it belongs to the function, and holds for every call: @tb.handler({word}=...)"
    return option_hint(word) or did_you_mean(nearest_names(word, words)) or "leave it out"


def job_fields(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as the fields of a `JobSpec`; what is no field is left out."""
    fields: dict[str, Any] = {}
    for word, given in options.items():
        if word == "expires":
            fields |= asdict(NEVER if given is None else parse_expiry(given, timezone=options.get("timezone", "UTC")))
        elif word == "meta":
            fields["meta"] = None if given is None else check_meta(given)
        elif word == "expect":
            fields["expect"] = None if given is None else check_expect(given)
        elif word in FOLLOW_UP_FIELDS:
            fields[word] = _follow_up(word, given)
        elif word == "backoff":
            fields |= _backoff_fields(given)
        elif word not in _NOT_FIELDS:
            name, value = _field(word, given)
            fields[name] = value
    return fields


def follow_ups(on_success: FollowUpCall | None, on_failure: FollowUpCall | None) -> dict[str, Any] | None:
    """What is called after one run, as the fields of a job; None if nothing is."""
    given = {"on_success": on_success, "on_failure": on_failure}
    return {word: _follow_up(word, call) for word, call in given.items() if call is not None} or None


def _follow_up(word: str, given: object) -> dict[str, Any] | None:
    if given is None:
        return None
    if not isinstance(given, FollowUpCall):
        kind = "a function" if callable(given) else type(given).__name__
        raise InvalidInput(
            f"{word} is {kind}, expected a call that is not made yet: {word}=handler.call(...)", field=word
        )
    return given.as_follow_up()


def _backoff_fields(given: object) -> dict[str, Any]:
    """One pause grows with each retry; several are those of a list."""
    _, milliseconds, _ = _FIELDS["backoff"]
    assert milliseconds is not None
    if not isinstance(given, list | tuple):
        return {"initial_backoff_ms": _whole(cast(Duration, given), "backoff", milliseconds), "backoff_ms": ()}
    if not given:
        raise InvalidInput(
            "backoff is an empty list, expected a pause for each retry",
            field="backoff",
            hint='retries=0 tries it once; backoff="1s" doubles with each retry',
        )
    return {"backoff_ms": tuple(_whole(wait, "backoff", milliseconds) for wait in given)}


def _field(word: str, value: Any) -> tuple[str, Any]:
    name, unit, is_list = _FIELDS[word]
    if unit is not None and value is not None:
        return name, _whole(value, word, unit)
    if is_list and not isinstance(value, str):
        return name, tuple(value)
    return name, value


def _whole(value: Duration, word: str, unit: timedelta) -> int:
    number, rest = divmod(parse_duration(value, word), unit)
    if rest:
        size = "milliseconds" if unit < timedelta(seconds=1) else "seconds"
        raise unexpected_value(word, value, f"a whole number of {size}")
    return number


def handler_options(options: Mapping[str, Any]) -> HandlerOptions:
    """What was said with a handler, as its jobs are given it."""
    backoff = options.get("backoff")
    not_fields = _OF_HANDLER | ({"backoff"} if callable(backoff) else set())
    fields = job_fields({word: value for word, value in options.items() if word not in not_fields})
    if fields.pop("expires_at", None) is not None:
        raise InvalidInput(
            f"expires of a handler is {options['expires']}, expected a span such as 10m",
            field="expires",
            hint="an instant is for one enqueue: options(expires=...)",
        )
    if "delivery" in fields:
        fields["delivery"] = _delivery(fields["delivery"])
    errors: dict[str, Any] = {
        word: _errors(options[word], word) for word in ("no_retry", "retry_on", "expected") if word in options
    }
    if errors.get("retry_on") == ():
        raise InvalidInput(
            "retry_on is empty, expected classes of exceptions", field="retry_on", hint="retries=0 tries it once"
        )
    return HandlerOptions(
        fields=fields,
        backoff=_backoff_function(backoff) if callable(backoff) else None,
        isolate=_isolate(options.get("isolate", False)),
        grace=_grace(options["grace"]) if "grace" in options else None,
        interrupt=_flag(options.get("interrupt", False), "interrupt"),
        **errors,
    )


def _isolate(given: object) -> Isolate | None:
    if isinstance(given, Isolate):
        return given
    if not isinstance(given, bool):
        raise unexpected_value("isolate", given, "True, False or Isolate(...)")
    return None


def _grace(given: Duration) -> timedelta:
    grace = parse_duration(given, "grace")
    if grace > _LONGEST_GRACE:
        raise unexpected_value("grace", given, "up to 10m")
    return grace


def _flag(given: object, word: str) -> bool:
    if not isinstance(given, bool):
        raise unexpected_value(word, given, "True or False")
    return given


def _backoff_function(function: Callable[..., Any]) -> BackoffFunction:
    """Refuse a function that cannot be called with a number and an error, while the program is being written."""
    if inspect.iscoroutinefunction(function):
        raise InvalidInput(
            "backoff is a coroutine function, expected a plain one: it is called after the failure", field="backoff"
        )
    try:
        inspect.signature(function).bind(1, ValueError())
    except TypeError:
        raise InvalidInput(
            f"backoff is {function!r}, expected a function of the number of failed attempts and the error",
            field="backoff",
            hint='such as lambda failures, error: "30s"',
        ) from None
    except ValueError:
        pass  # a function written in C does not tell its parameters
    return function


def _delivery(value: str) -> Delivery:
    try:
        return Delivery(value)
    except ValueError:
        raise unexpected_value("delivery", value, list_choices(Delivery)) from None


def _errors(given: object, word: str) -> tuple[type[BaseException], ...]:
    errors: list[type[BaseException]] = []
    for error in given if isinstance(given, tuple) else (given,):
        if not (isinstance(error, type) and issubclass(error, BaseException)):
            raise InvalidInput(f"{word} has {error!r}, expected classes of exceptions", field=word)
        errors.append(error)
    return tuple(errors)
