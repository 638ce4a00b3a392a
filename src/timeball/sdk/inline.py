"""Inline runs: an enqueue calls the handler at once, in the thread and the transaction of its caller, and needs no database.

    tb = Timeball(inline=True)               or TIMEBALL_INLINE=1: for the whole program
    with tb.inline(raise_errors=True): ...   or async with: what this thread or task enqueues inside of the block

What a worker does for a handler is done here too: the arguments become JSON and are bound by annotations, the wrappers surround the
call, `timeball.current` tells of the attempt, the result becomes JSON and is converted back. What differs, because nothing waits:

- `delay` and `at` are recorded (`current.scheduled_for`, `run.scheduled_for`), and the handler runs now.
- A failed attempt is the last one, unless the block or the program *retries*; then the next attempt follows at once. A handler that
  snoozes is not called again: its run ends as cancelled.
- Timeouts do not end a handler, `isolate` makes no child process, limits and priorities have nothing to choose between.
- A unique key counts while its run is under way: a handler that enqueues its own key is given its own run.

The error of a handler is kept in the run and logged, as a worker would keep it, or raised from the enqueue (*raise_errors*). A plain
function runs in the caller's thread, and a coroutine function in an event loop there; awaited (`aenqueue`), a coroutine function runs in
the caller's event loop, and a plain function in a thread beside it, as it would in a worker.

Nothing else of Timeball is there: what needs a database (schedules, `tb.jobs`) raises `InlineOnly`.
"""

from __future__ import annotations

from collections import deque
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Literal

from timeball.errors import InvalidInput

if TYPE_CHECKING:
    from timeball.sdk.inline_runs import InlineRun

# What a program may say of itself; None leaves it to the settings.
InlineChoice = bool | Literal["raise"] | None

# A block that stays open for months must not keep all of its runs.
MOST_KEPT = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class InlinePolicy:
    """What becomes of a handler that fails inline."""

    raise_errors: bool = False
    retries: bool = False


@dataclass(frozen=True, slots=True)
class InlineScope:
    """Where enqueues run inline: the whole program of *client*, or one block of it."""

    client: object
    policy: InlinePolicy
    runs: deque[InlineRun] = field(default_factory=lambda: deque(maxlen=MOST_KEPT))


_OPEN: ContextVar[tuple[InlineScope, ...]] = ContextVar("timeball_inline", default=())


def innermost_scope(client: object) -> InlineScope | None:
    """The innermost block around the caller, for the Timeball of this client."""
    scopes = _OPEN.get()
    if not scopes:
        return None
    return next((scope for scope in reversed(scopes) if scope.client is client), None)


def program_scope(client: object, choice: InlineChoice) -> InlineScope | None:
    """The scope of a program that runs inline as a whole."""
    if choice not in (True, False, "raise"):
        raise InvalidInput(f'inline is {choice!r}, expected True, False or "raise"', field="inline")
    if choice is False:
        return None
    return InlineScope(client, InlinePolicy(raise_errors=choice == "raise"), deque(maxlen=0))


class InlineBlock:
    """`with tb.inline() as runs`, also `async with`: what this thread or task enqueues runs inline; *runs* lists it."""

    def __init__(self, client: object, policy: InlinePolicy) -> None:
        self._client = client
        self._policy = policy
        self._entered: list[tuple[Token[tuple[InlineScope, ...]], tuple[InlineScope, ...]]] = []

    def __enter__(self) -> deque[InlineRun]:
        before, scope = _OPEN.get(), InlineScope(self._client, self._policy)
        self._entered.append((_OPEN.set((*before, scope)), before))
        return scope.runs

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        token, before = self._entered.pop()
        try:
            _OPEN.reset(token)
        except ValueError:  # the fixture of an asynchronous test may be left in another context than it was entered in
            _OPEN.set(before)

    async def __aenter__(self) -> deque[InlineRun]:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)
