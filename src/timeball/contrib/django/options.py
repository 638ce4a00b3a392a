"""The options of a task: those of Django, and those of Timeball that a task, a call of it or its backend may have.

    @task(retries=5, timeout="30s", isolate=True)       what `@tb.handler(...)` takes, for every call
    send.using(key="r-42", expires="1h").enqueue(42)    what `handler.options(...)` takes, for one call
    "OPTIONS": {"retries": 5}                           for all tasks of a backend

Each goes before those below it in this list: a call, the task, its backend.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import field, make_dataclass, replace
from datetime import datetime
from typing import Any, Final, cast

from django.utils import timezone

from timeball.contrib.django.compat import AnyTask
from timeball.domain.values.field_errors import did_you_mean, nearest_names
from timeball.errors import InvalidInput
from timeball.sdk.options import EnqueueOptions, HandlerDeclaration, SharedOptions, handler_options


class _Unset:
    """The option is not there; None is a value of its own, as in `timeout=None`."""

    def __repr__(self) -> str:
        return "unset"


UNSET: Final = _Unset()


# Queue and priority are Django's own options, with values of its own, and so is the time.
_OWN_TO_DJANGO = frozenset({"queue", "priority", "delay", "at", "timezone"})
# What belongs to the function, and so to every call of it: as in `@tb.handler(...)`.
_OF_FUNCTION = HandlerDeclaration.__optional_keys__ - SharedOptions.__optional_keys__ - {"name"}
# What one enqueue may say, too: `send.using(key="r-42")`.
CALL_OPTIONS = EnqueueOptions.__optional_keys__ - _OWN_TO_DJANGO - {"connection", "unchecked"}
TASK_OPTIONS = CALL_OPTIONS | _OF_FUNCTION
# A backend's OPTIONS may have these, too.
_BACKEND_OPTIONS = frozenset({"database", "modules"})
# A key of all tasks of a backend would be that of one task.
_OF_BACKEND = (TASK_OPTIONS - {"key", "if_exists", "unique_for"}) | _BACKEND_OPTIONS


def _using(self: AnyTask, **changes: Any) -> AnyTask:
    """The same task with other options for an enqueue: Django's, or those of Timeball that belong to a call."""
    known = CALL_OPTIONS | _OPTIONS_OF_DJANGO
    for word in changes:
        if word not in known:
            raise _unknown_option("using()", word, known)
    return replace(
        self, **{word: value for word, value in changes.items() if word in CALL_OPTIONS or value is not None}
    )


_OPTIONS_OF_DJANGO = frozenset({"priority", "queue_name", "run_after", "backend"})


# A task with the options that Timeball has beyond Django's.
TimeballTask: Any = make_dataclass(
    "TimeballTask",
    [(word, Any, field(default=UNSET)) for word in sorted(TASK_OPTIONS)],
    bases=(AnyTask,),
    namespace={"__module__": __name__, "using": _using},
    frozen=True,
    slots=True,
    kw_only=True,
)


def enqueue_options(task: AnyTask, backend_options: Mapping[str, Any]) -> EnqueueOptions:
    """The options of one enqueue: those of the task go before those of its backend."""
    check_options(backend_options)
    # A function that computes the pause belongs to the handler.
    options = {
        word: value
        for word, value in _options(task, backend_options)
        if word in CALL_OPTIONS and not (word == "backoff" and callable(value))
    }
    options |= {"queue": task.queue_name, "priority": to_timeball_priority(task.priority)}
    if task.run_after is not None and (at := _aware(task.run_after)) > timezone.now():
        options["at"] = at
    return cast(EnqueueOptions, options)


def function_options(task: AnyTask, backend_options: Mapping[str, Any]) -> dict[str, Any]:
    """What a task declares for every call of its function, as `@tb.handler(...)` would: also for a schedule of it."""
    words = HandlerDeclaration.__optional_keys__
    options = {word: value for word, value in _options(task, backend_options) if word in words}
    return options | {"queue": task.queue_name, "priority": to_timeball_priority(task.priority)}


def check_options(backend_options: Mapping[str, Any]) -> None:
    """Refuse unknown OPTIONS."""
    for name in backend_options:
        if name not in _OF_BACKEND:
            raise InvalidInput(f"OPTIONS has {name!r}, expected some of {', '.join(sorted(_OF_BACKEND))}", field=name)


def _options(task: AnyTask, backend_options: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for word in TASK_OPTIONS:
        value = getattr(task, word, UNSET)
        value = backend_options.get(word, UNSET) if value is UNSET else value
        if value is not UNSET:
            yield word, value


_COUNTERPARTS = {"delay": "run_after", "at": "run_after", "queue": "queue_name"}


def _unknown_option(where: str, word: str, known: Collection[str]) -> InvalidInput:
    counterpart = _COUNTERPARTS.get(word)
    if word in _OF_FUNCTION:
        hint = f"it holds for every call of the function: @task({word}=...)"
    elif counterpart is not None:
        hint = f"Django calls it {counterpart}"
    else:
        hint = did_you_mean(nearest_names(word, sorted(known))) or "leave it out"
    return InvalidInput(f"{where} has no option {word!r}; known are {', '.join(sorted(known))}", field=word, hint=hint)


def check_backend_options(backend_options: Mapping[str, Any]) -> None:
    """Refuse unknown OPTIONS, and values that no task could have."""
    check_options(backend_options)
    words = HandlerDeclaration.__optional_keys__
    handler_options({word: value for word, value in backend_options.items() if word in words})


def _aware(instant: datetime) -> datetime:
    """An instant with its zone: without USE_TZ, Django's instants are local times of TIME_ZONE."""
    return timezone.make_aware(instant) if timezone.is_naive(instant) else instant


def to_timeball_priority(priority: int) -> int:
    """Django's priorities from -100 to 100 as Timeball's from 0 to 100; 0 is 50."""
    return (int(priority) + 100) // 2


def to_django_priority(priority: int) -> int:
    """The reverse; an odd priority of Django's comes back as the next lower one."""
    return priority * 2 - 100
