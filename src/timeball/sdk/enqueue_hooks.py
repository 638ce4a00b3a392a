"""Code of a program that sees every enqueue before it is made: `@tb.before_enqueue`.

It is called in the thread or task of the caller, so that it reads the caller's context variables: the tenant or the user of a request
becomes meta of the execution. It may change the options, and refuses an enqueue by raising. A program without such code pays one look
into an empty list.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import orjson

from timeball.domain.job import check_meta
from timeball.errors import InvalidInput
from timeball.handlers.hooks import hook_name
from timeball.sdk.options import check_options


class PendingEnqueue:
    """An enqueue that is about to be made, or a schedule that is about to be written.

    *options* are those that were given with it, without the ones of its handler; they and *meta* may be changed.
    """

    def __init__(
        self,
        handler: str,
        payloads: Sequence[str],
        options: dict[str, Any],
        meta: dict[str, Any],
        *,
        is_schedule: bool,
        is_follow_up: bool = False,
    ) -> None:
        self.handler = handler
        self.options = options
        self.meta = meta
        # Whether it is a schedule: its executions are made later, with what is said here.
        self.is_schedule = is_schedule
        # Whether it is a call that follows a run, or a part of a chain or group: it has the meta of what it follows, too.
        self.is_follow_up = is_follow_up
        self._payloads = payloads

    @property
    def number_of_calls(self) -> int:
        """How many calls are enqueued."""
        return len(self._payloads)

    @cached_property
    def calls(self) -> list[Any]:
        """The arguments of each call: one for `enqueue` and a schedule, many for `enqueue_many`. They are read and not changed."""
        return [orjson.loads(payload) for payload in self._payloads]

    @property
    def arguments(self) -> Any:
        """The arguments of the one call, by the names of the parameters; InvalidInput if it is an enqueue of many."""
        if len(self._payloads) != 1:
            raise InvalidInput(
                f"this is an enqueue of {len(self._payloads)} calls of {self.handler}, and arguments is of one",
                hint="read calls, the arguments of each",
            )
        return self.calls[0]

    def __repr__(self) -> str:
        return f"<{'schedule' if self.is_schedule else 'enqueue'} of {self.handler}>"


EnqueueHook = Callable[[PendingEnqueue], object]


def check_enqueue_hook(function: Callable[..., Any]) -> None:
    """Refuse what could not be called before an enqueue, which may be a plain call: a coroutine would never be awaited there."""
    name = hook_name(function)
    if any(is_one(function) for is_one in _NOT_CALLED):
        raise InvalidInput(
            f"before_enqueue was given {name}, which is async or a generator, expected a plain function",
            hint="it is called by enqueue and by aenqueue, just before them",
        )
    try:
        inspect.signature(function).bind(None)
    except (TypeError, ValueError):
        raise InvalidInput(f"before_enqueue was given {name}, expected a function that takes the enqueue") from None


_NOT_CALLED = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)


def changed_options(
    hooks: Iterable[EnqueueHook],
    handler: str,
    payloads: Sequence[str],
    options: Mapping[str, Any],
    known: type[Any],
    *,
    is_schedule: bool = False,
    is_follow_up: bool = False,
) -> dict[str, Any]:
    """The options of an enqueue after all hooks, which may raise. *known* are the options that there are."""
    given = options.get("meta")
    others = {word: value for word, value in options.items() if word != "meta"}
    pending = PendingEnqueue(
        handler,
        payloads,
        others,
        {} if given is None else check_meta(given),
        is_schedule=is_schedule,
        is_follow_up=is_follow_up,
    )
    for hook in hooks:
        try:
            hook(pending)
            check_options(pending.options, known, hook_name(hook))
            meta = check_meta(pending.meta)
        except Exception as error:
            error.add_note(f"raised by {hook_name(hook)}, which @tb.before_enqueue has registered, at {pending!r}")
            raise
    return pending.options | ({"meta": meta} if meta or given is not None else {})
