"""The options of a task: those of Django, and those of Timeball that a task, a call of it or its backend may have.

    @task(retries=5, timeout="30s", isolate=True)       what `@tb.handler(...)` takes, for every call
    send.using(key="r-42", expires="1h").enqueue(42)    what `handler.options(...)` takes, for one call
    "OPTIONS": {"retries": 5}                           for all tasks of a backend

Each goes before those below it in this list: a call, the task, its backend.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import field, make_dataclass, replace
from datetime import datetime
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Literal,
    ParamSpec,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from django.utils import timezone

from timeball.contrib.django.compat import AnyTask, Task, TaskContext
from timeball.domain.expectations import Expect
from timeball.domain.handler import BackoffFunction, Isolate
from timeball.domain.policies import Delivery, IfExists
from timeball.domain.values.field_errors import did_you_mean, nearest_names
from timeball.domain.values.wording import Duration
from timeball.errors import InvalidInput
from timeball.handlers.counterparts import option_hint, unknown_attribute
from timeball.sdk.options import EnqueueOptions, FollowUpCall, HandlerDeclaration, handler_options

P = ParamSpec("P")
R = TypeVar("R")


class _Unset:
    """The option is not there; None is a value of its own, as in `timeout=None`."""

    def __repr__(self) -> str:
        return "unset"

    def __reduce__(self) -> str:
        return "UNSET"  # a task that was pickled has the same one


UNSET: Final = _Unset()


class TaskCallOptions(TypedDict, total=False):
    """What `using(...)` takes beside Django's own options: it holds for one call. The words are those of `handler.options(...)`."""

    retries: int
    max_lost: int
    timeout: Duration | None
    backoff: Duration | Sequence[Duration]
    max_backoff: Duration
    delivery: Delivery | Literal["at_least_once", "at_most_once"]
    max_running: int | None
    limit_key: str
    expires: Duration | datetime | None
    tags: Sequence[str]
    key: str
    if_exists: IfExists | Literal["keep", "replace", "extend"]
    unique_for: Duration | None
    meta: Mapping[str, Any] | None
    on_success: FollowUpCall | None
    on_failure: FollowUpCall | None


class TaskOptions(TaskCallOptions, total=False):
    """What `@task(...)` takes beside Django's own options: it holds for every call. The words are those of `@tb.handler(...)`."""

    expect: Expect | Mapping[str, Any] | None
    isolate: bool | Isolate
    backoff: Duration | Sequence[Duration] | BackoffFunction  # type: ignore[misc]  # a task may also compute it
    no_retry: type[BaseException] | tuple[type[BaseException], ...]
    retry_on: type[BaseException] | tuple[type[BaseException], ...]
    expected: type[BaseException] | tuple[type[BaseException], ...]
    grace: Duration
    interrupt: bool


class UsingOptions(TaskCallOptions, total=False):
    """All that `using(...)` takes."""

    priority: int | None
    queue_name: str | None
    run_after: datetime | None
    backend: str | None


CALL_OPTIONS = TaskCallOptions.__optional_keys__
TASK_OPTIONS = TaskOptions.__optional_keys__
# What belongs to the function, which the worker has, and so to every call of it.
_OF_FUNCTION = TASK_OPTIONS - CALL_OPTIONS
# A backend's OPTIONS may have these, too.
_BACKEND_OPTIONS = frozenset({"database", "modules"})
# A key of all tasks of a backend would be that of one task.
_OF_BACKEND = (TASK_OPTIONS - {"key", "if_exists", "unique_for"}) | _BACKEND_OPTIONS
_OF_DJANGO_S_TASK = frozenset({"priority", "queue_name", "backend", "takes_context"})
_OF_DJANGO_S_CALL = UsingOptions.__optional_keys__ - CALL_OPTIONS
_FIELDS_OF_DJANGO = _OF_DJANGO_S_TASK | _OF_DJANGO_S_CALL | {"func"}


def _new_task(cls: type[Any], **options: Any) -> Any:
    """Refuse an unknown option with what it is called here, where a dataclass would only say that it is unexpected."""
    _check_known("@task(...)", options, TASK_OPTIONS | _FIELDS_OF_DJANGO, shown=TASK_OPTIONS | _OF_DJANGO_S_TASK)
    return object.__new__(cls)


def _using(self: AnyTask, **changes: Any) -> AnyTask:
    """The same task with other options for an enqueue: Django's, or those of Timeball that belong to a call."""
    _check_known("using()", changes, CALL_OPTIONS | _OF_DJANGO_S_CALL)
    if callable(changes.get("backoff")):
        raise InvalidInput(
            "backoff is a function, and a call is kept as JSON; expected a pause or a list of pauses",
            field="backoff",
            hint='a function belongs to the task: @task(backoff=...); for one call backoff=["5s", "30s", "5m"]',
        )
    return replace(
        self, **{word: value for word, value in changes.items() if word in CALL_OPTIONS or value is not None}
    )


def _no_attribute(self: AnyTask, name: str) -> Any:
    error = unknown_attribute(self, name)
    raise AttributeError(in_words_of_django(str(error)), name=name, obj=self)


if TYPE_CHECKING:

    class TimeballTask(Task[P, R]):
        """A task with the options that Timeball has beyond Django's."""

        def using(self, **options: Unpack[UsingOptions]) -> TimeballTask[P, R]:
            """The same task with other options for an enqueue."""

else:
    TimeballTask = make_dataclass(
        "TimeballTask",
        [(word, Any, field(default=UNSET)) for word in sorted(TASK_OPTIONS)],
        bases=(AnyTask,),
        namespace={"__module__": __name__, "__new__": _new_task, "__getattr__": _no_attribute, "using": _using},
        frozen=True,
        slots=True,
        kw_only=True,
    )


@overload
def task(function: Callable[P, R], /) -> TimeballTask[P, R]: ...
@overload
def task(
    *,
    priority: int = 0,
    queue_name: str = "default",
    backend: str = "default",
    takes_context: Literal[False] = False,
    **options: Unpack[TaskOptions],
) -> Callable[[Callable[P, R]], TimeballTask[P, R]]: ...
@overload
def task(
    *,
    priority: int = 0,
    queue_name: str = "default",
    backend: str = "default",
    takes_context: Literal[True],
    **options: Unpack[TaskOptions],
) -> Callable[[Callable[Concatenate[TaskContext, P], R]], TimeballTask[P, R]]: ...
def task(function: Any = None, /, **options: Any) -> Any:
    """Django's `@task` with the options of Timeball, in every version of Django: `@task(key="nightly", isolate=True)`.

    In a test whose settings name a backend of Django's, such as `ImmediateBackend`, the task works too; that backend makes nothing of
    these options.
    """
    _check_known("@task(...)", options, TASK_OPTIONS | _OF_DJANGO_S_TASK)

    def make(function: Callable[..., Any]) -> Any:
        task_class: Any = TimeballTask
        django_options = {"priority": 0, "queue_name": "default", "backend": "default", "run_after": None}
        return task_class(func=function, **(django_options | options))

    return make if function is None else make(function)


def enqueue_options(task: AnyTask, backend_options: Mapping[str, Any]) -> EnqueueOptions:
    """The options of one enqueue: those of the task go before those of its backend."""
    check_options(backend_options)
    # A function that computes the pause belongs to the task, whose worker calls it.
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
    _check_known("OPTIONS", backend_options, _OF_BACKEND)


def _options(task: AnyTask, backend_options: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for word in TASK_OPTIONS:
        value = getattr(task, word, UNSET)
        value = backend_options.get(word, UNSET) if value is UNSET else value
        if value is not UNSET:
            yield word, value


def _check_known(
    where: str, options: Collection[str], known: Collection[str], shown: Collection[str] | None = None
) -> None:
    for word in options:
        if word not in known:
            words = sorted(known if shown is None else shown)
            raise InvalidInput(
                f"{where} has no option {word!r}; known are {', '.join(words)}",
                field=word,
                hint=_hint(where, word) or did_you_mean(nearest_names(word, words)) or "leave it out",
            )


# What Django calls by another name than we do, and what others call as neither does.
_COUNTERPARTS = {
    "delay": "using(run_after=timezone.now() + timedelta(...))",
    "countdown": "using(run_after=timezone.now() + timedelta(...))",
    "at": "using(run_after=...)",
    "eta": "using(run_after=...)",
    "run_after": "using(run_after=...)",
    "queue": "queue_name",
    "name": "nothing: a task is called by its path",
    "bind": "takes_context=True, or `from timeball import current`",
    "context": "takes_context=True, or `from timeball import current`",
    "timezone": "run_after, an instant with a zone",
    "connection": "nothing: an enqueue joins the transaction of Django that is open",
}


def _hint(where: str, word: str) -> str | None:
    if word in _OF_FUNCTION:
        return f"it belongs to the function, which the worker has: @task({word}=...), for every call"
    if word in CALL_OPTIONS:
        return f"it belongs to a task or a call: @task({word}=...), using({word}=...)"
    if word in _COUNTERPARTS:
        return f"{word} is here: {_COUNTERPARTS[word]}"
    if word in _OF_DJANGO_S_TASK:
        return f"it belongs to the task: @task({word}=...)"
    hint = option_hint(word)
    return None if hint is None else in_words_of_django(hint)


def in_words_of_django(text: str) -> str:
    """A hint that is written for handlers, for tasks."""
    return text.replace("options(", "using(").replace("@tb.handler", "@task").replace(" queue=", " queue_name=")


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
