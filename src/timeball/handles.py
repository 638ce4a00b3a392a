"""Handlers as a program sees them: called directly, a handle is just the function; `.enqueue` has a worker call it.

The types follow the function: wrong arguments are refused by mypy and pyright, and `run.result()` has the type that the
function returns, for `async def` the awaited one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, Unpack, cast, overload

from timeball.domain.handler import Handler
from timeball.domain.ids import ExecutionId, JobId
from timeball.domain.job import JobSpec
from timeball.domain.json_values import encode_object
from timeball.domain.spans import parse_span
from timeball.errors import InvalidInput
from timeball.office import Office, Wish, execution_of
from timeball.options import EnqueueOptions, check_options, inherited_fields, job_fields
from timeball.runs import ReturnType, Run

if TYPE_CHECKING:
    from timeball.store.interface import Created

P = ParamSpec("P")
R = TypeVar("R")


# Not frozen: that would make each three times as dear, and there are hundreds of thousands of them.
@dataclass(slots=True, unsafe_hash=True)
class Call(Generic[P, R]):
    """One call of a handler that has not been made: arguments that fit, for `enqueue_many`."""

    handler: str
    payload: str


@dataclass(frozen=True, slots=True)
class Target:
    """What is to be called: a handler, as far as it is known here."""

    name: str
    inherited: Mapping[str, Any]
    encode: Callable[[Sequence[Any], Mapping[str, Any]], str]
    returns: ReturnType | None
    is_known_here: bool = True

    @classmethod
    def of(cls, handler: Handler) -> Target:
        """A handler of this program."""
        returns = ReturnType(handler.function)
        return cls(handler.name, inherited_fields(handler.options), handler.binder.encode, returns)

    @classmethod
    def elsewhere(cls, name: str) -> Target:
        """A handler that only workers know: its options are those that they have published; what it returns is not known here."""
        return cls(name, {}, _encode_unchecked, None, is_known_here=False)


def _encode_unchecked(_args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    return encode_object(dict(kwargs))


class Enqueueable(Generic[P, R]):
    """What can be enqueued: a handler, or a handler with options. Twins for coroutines have an `a` before their names."""

    def __init__(self, office: Office, target: Target, options: EnqueueOptions) -> None:
        self._office = office
        self._target = target
        self._options = options
        self._wish: Wish | None = None

    @property
    def name(self) -> str:
        """The name of the handler, by which jobs and workers know it."""
        return self._target.name

    def options(self, **options: Unpack[EnqueueOptions]) -> Enqueueable[P, R]:
        """The same with options: `send.options(priority=90, delay="10m", key="r-42").enqueue(42)`."""
        check_options(options, EnqueueOptions, "options()")
        return Enqueueable(self._office, self._target, self._options | options)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Run[R]:
        """Have a worker call the handler with these arguments; when this returns, that is certain (committed)."""
        return self.enqueue_payload(self._target.encode(args, kwargs))

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Run[R]:
        """Like `enqueue`, for coroutines. Many at a time share commits."""
        return await self.aenqueue_payload(self._target.encode(args, kwargs))

    def enqueue_payload(self, payload: str) -> Run[R]:
        """Enqueue with arguments that are encoded already."""
        wish = self._wanted()
        return self._run(wish, self._office.send(wish, payload))

    async def aenqueue_payload(self, payload: str) -> Run[R]:
        """Like `enqueue_payload`, for coroutines."""
        wish = self._wanted()
        return self._run(wish, await self._office.asend(wish, payload))

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[P, R]:
        """One call for `enqueue_many`; the arguments are checked and encoded now."""
        target = self._target
        return Call(target.name, target.encode(args, kwargs))

    def enqueue_many(self, calls: Iterable[Call[P, R]]) -> list[Run[R]]:
        """Enqueue many calls in one go, all or none: `send.enqueue_many(send.call(order.id) for order in orders)`."""
        payloads, wish = self._payloads(calls), self._wanted()
        return self._runs(wish, self._office.send_many(wish, payloads))

    async def aenqueue_many(self, calls: Iterable[Call[P, R]]) -> list[Run[R]]:
        """Like `enqueue_many`, for coroutines."""
        payloads, wish = self._payloads(calls), self._wanted()
        return self._runs(wish, await self._office.asend_many(wish, payloads))

    def _payloads(self, calls: Iterable[object]) -> list[str]:
        payloads: list[str] = []
        for call in calls:
            if not isinstance(call, Call):
                found = type(call).__name__
                raise InvalidInput(
                    f"enqueue_many was given a {found}, expected calls: {self.name}.call(...)", field="calls"
                )
            if call.handler != self.name:
                raise InvalidInput(f"enqueue_many of {self.name} was given a call of {call.handler}", field="calls")
            payloads.append(call.payload)
        return payloads

    def _wanted(self) -> Wish:
        if self._wish is None:
            self._wish = _make_wish(self._target, self._options)
        return self._wish

    def _run(self, wish: Wish, made: Created) -> Run[R]:
        return Run(
            self._office.portal,
            execution_of(made),
            made.job_id,
            is_new=made.is_new,
            is_committed=wish.connection is None,
            convert=self._target.returns,
        )

    def _runs(self, wish: Wish, ids: Iterable[ExecutionId]) -> list[Run[R]]:
        portal, is_committed, convert = self._office.portal, wish.connection is None, self._target.returns
        return [Run(portal, id_, JobId(id_), is_committed=is_committed, convert=convert) for id_ in ids]


class HandlerHandle(Enqueueable[P, R]):
    """A declared handler."""

    # What `update_wrapper` copies from the function.
    __name__: str
    __qualname__: str
    __wrapped__: Callable[..., Any]

    def __init__(self, office: Office, handler: Handler) -> None:
        super().__init__(office, Target.of(handler), {})
        self._handler = handler
        update_wrapper(cast(Callable[..., Any], self), handler.function)

    @property
    def handler(self) -> Handler:
        """What a worker needs to know of it."""
        return self._handler

    def redeclare(self, handler: Handler) -> None:
        """Put a fuller declaration in the place of the one so far: `@tb.handler(...)` above `@tb.cron(...)`."""
        self._handler, self._target, self._wish = handler, Target.of(handler), None

    def __reduce__(self) -> str:
        # Like a function, a handle is pickled by its place in its module.
        return self.__qualname__

    def __repr__(self) -> str:
        return f"<handler {self.name}>"


class SyncHandlerHandle(HandlerHandle[P, R]):
    """A handler made of a function."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function, here and now."""
        value: R = self._handler.function(*args, **kwargs)
        return value


class AsyncHandlerHandle(HandlerHandle[P, R]):
    """A handler made of a coroutine function."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Call the coroutine function, here and now."""
        coroutine: Coroutine[Any, Any, R] = self._handler.function(*args, **kwargs)
        return coroutine


class HandlerDecorator(Protocol):
    """What makes a function a handler."""

    # A coroutine function is a function too: the first that fits is meant.
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncHandlerHandle[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> SyncHandlerHandle[P, R]: ...


def make_handle(office: Office, handler: Handler) -> HandlerHandle[..., Any]:
    """The handle for a handler."""
    is_coroutine = inspect.iscoroutinefunction(handler.function)
    return AsyncHandlerHandle(office, handler) if is_coroutine else SyncHandlerHandle(office, handler)


def _make_wish(target: Target, options: EnqueueOptions) -> Wish:
    """What an enqueue asks for: the handler's word, unless the options say otherwise."""
    if "delay" in options and "at" in options:
        raise InvalidInput("delay and at are both given, expected one of them", field="delay")
    fields = {**target.inherited, **job_fields(options)}
    if fields.get("max_running") is not None:
        # The limit is that of all jobs of the handler; a one-off's own would limit nothing.
        fields.setdefault("limit_key", target.name)
    delay = parse_span(options["delay"], "delay") if "delay" in options else None
    told = None if target.is_known_here else frozenset(fields)
    is_unchecked = options.get("unchecked", False)
    return Wish(JobSpec(handler=target.name, **fields), delay, options.get("connection"), told, is_unchecked)
