"""What can be said to Timeball about a task: for all of a backend in its OPTIONS, for one with `@task(retries=5)`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Final

from django.utils import timezone

from timeball.contrib.django.frameworks import AnyTask, Task
from timeball.errors import InvalidInput


class _Unset:
    """Nothing was said: None is a word of its own, as in `timeout=None`."""

    def __repr__(self) -> str:
        return "unset"


UNSET: Final = _Unset()


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeballTask(AnyTask):
    """A task with the words that Timeball has beyond Django's; they are those of `@tb.handler(...)`."""

    retries: Any = UNSET
    timeout: Any = UNSET
    backoff: Any = UNSET
    max_backoff: Any = UNSET
    max_lost: Any = UNSET
    max_running: Any = UNSET
    delivery: Any = UNSET
    tags: Any = UNSET


OWN_WORDS = frozenset(field.name for field in fields(TimeballTask)) - {field.name for field in fields(Task)}
# What a backend's OPTIONS may say beyond that.
_OF_BACKEND = frozenset({"database", "modules"})


def enqueue_options(task: AnyTask, of_backend: Mapping[str, Any]) -> dict[str, Any]:
    """The options of one enqueue: the task's word goes before its backend's."""
    check_words(of_backend)
    said = {word: value for word, value in of_backend.items() if word in OWN_WORDS}
    said |= dict(_own(task))
    said |= {"queue": task.queue_name, "priority": to_timeball(task.priority)}
    if task.run_after is not None and (at := _aware(task.run_after)) > timezone.now():
        said["at"] = at
    return said


def check_words(of_backend: Mapping[str, Any]) -> None:
    """Refuse OPTIONS that nobody knows."""
    known = OWN_WORDS | _OF_BACKEND
    for word in of_backend:
        if word not in known:
            raise InvalidInput(f"OPTIONS has no word {word!r}; known are {', '.join(sorted(known))}", field=word)


def _own(task: AnyTask) -> Iterator[tuple[str, Any]]:
    for word in OWN_WORDS:
        value = getattr(task, word, UNSET)
        if value is not UNSET:
            yield word, value


def _aware(instant: datetime) -> datetime:
    """An instant with its zone: without USE_TZ, Django's are on the clock of TIME_ZONE."""
    return timezone.make_aware(instant) if timezone.is_naive(instant) else instant


def to_timeball(priority: int) -> int:
    """Django's priorities from -100 to 100 as Timeball's from 0 to 100; 0 is 50."""
    return (int(priority) + 100) // 2


def to_django(priority: int) -> int:
    """The way back; an odd one comes back as the next lower."""
    return priority * 2 - 100
