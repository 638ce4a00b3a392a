"""Handlers in a program: called directly, a handle is the function; `.enqueue(...)` has a worker call it.

The types follow the function: mypy and pyright refuse wrong arguments, and `run.result()` has the type that the function returns
(for `async def`, the type it returns when awaited).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, update_wrapper
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, Unpack, cast, overload

import orjson

from timeball.domain.handler import Handler, inherit_call_options
from timeball.domain.job_fields import JobSpec
from timeball.domain.values.ids import ExecutionId, JobId
from timeball.domain.values.json_text import encode_object
from timeball.domain.values.wording import Duration, parse_duration
from timeball.errors import InvalidInput
from timeball.sdk.enqueue import EnqueueClient, EnqueueRequest, SdkRuntime, execution_of
from timeball.sdk.enqueue_hooks import changed_options
from timeball.sdk.options import (
    EnqueueOptions,
    InstantInput,
    ScheduleOptions,
    ScheduleParams,
    check_options,
    job_fields,
)
from timeball.sdk.runs import ResultConverter, Run
from timeball.sdk.schedules import ScheduleRequest, schedule_request_of, schedule_requests

if TYPE_CHECKING:
    from timeball.sdk.jobs import ScheduleAction, ScheduledJob
    from timeball.store.db.database import CallerConnection
    from timeball.store.types import CreatedJob

# What a call cannot say that follows a run: it starts when that run has ended, in a transaction that is not the caller's.
_NOT_OF_FOLLOW_UPS = frozenset({"delay", "at", "timezone", "key", "connection", "unchecked"})

_FOLLOW_UPS = frozenset({"on_success", "on_failure"})

P = ParamSpec("P")
R = TypeVar("R")


# Not frozen: that triples the cost of making one, and a bulk enqueue makes hundreds of thousands.
@dataclass(slots=True, unsafe_hash=True)
class Call(Generic[P, R]):
    """A call of a handler that is not made yet: checked, its arguments encoded; made by `handler.call(...)`.

    `enqueue_many` makes many, and `options(on_success=..., on_failure=...)` one when a run has ended.
    """

    handler: str
    payload: str
    source: Enqueueable[P, R] = field(compare=False, repr=False)

    def as_follow_up(self) -> dict[str, Any]:
        """The call as a job keeps it, to be made when an execution has ended; InvalidInput if it has an option that cannot hold then."""
        return {
            "handler": self.handler,
            "payload": orjson.loads(self.payload),
            **self.source.fields_of_follow_up(self.payload),
        }


@dataclass(frozen=True, slots=True)
class EnqueueTarget:
    """The handler that an enqueue is for, as far as this program declares it."""

    name: str
    inherited: Mapping[str, Any]
    encode: Callable[[Sequence[Any], Mapping[str, Any]], str]
    returns: ResultConverter | None
    is_declared_here: bool = True

    @classmethod
    def of(cls, handler: Handler) -> EnqueueTarget:
        """A handler of this program."""
        returns = ResultConverter(handler.function)
        return cls(handler.name, handler.options.job_fields(), handler.binder.encode, returns)

    @classmethod
    def elsewhere(cls, name: str) -> EnqueueTarget:
        """A handler of another program: its options are those that workers have published, and its results stay JSON."""
        return cls(name, {}, _encode_unchecked, None, is_declared_here=False)


def _encode_unchecked(_args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    return encode_object(dict(kwargs))


class Enqueueable(Generic[P, R]):
    """A handler, or a handler with options, that can be enqueued.

    Methods for coroutines have an `a` before their names.
    """

    def __init__(self, enqueue_client: EnqueueClient, target: EnqueueTarget, options: EnqueueOptions) -> None:
        self._enqueue_client = enqueue_client
        self._target = target
        self._options = options
        self._request: EnqueueRequest | None = None
        self._last_hooked: tuple[Mapping[str, Any], EnqueueRequest] | None = None

    @property
    def name(self) -> str:
        """The name of the handler in jobs and workers."""
        return self._target.name

    if not TYPE_CHECKING:  # a type checker would take any name for an attribute

        def __getattr__(self, name: str) -> Any:
            from timeball.handlers.counterparts import unknown_attribute

            raise unknown_attribute(self, name)

    def options(self, **options: Unpack[EnqueueOptions]) -> Enqueueable[P, R]:
        """The same handler with options for an enqueue: `send.options(priority=90, delay="10m", key="r-42").enqueue(42)`.

        They go before the options of the handler. Kept in a variable, the object may be enqueued any number of times.
        """
        check_options(options, EnqueueOptions, "options()")
        return Enqueueable(self._enqueue_client, self._target, self._options | options)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Run[R]:
        """Have a worker call the handler with these arguments; the job is committed when this returns.

        Arguments that do not fit the function, or that JSON cannot hold, are refused here. With `options(connection=...)` the job is
        written in that transaction instead, and exists if it commits. Calls of several threads at a time share commits.
        """
        return self.enqueue_payload(self._target.encode(args, kwargs))

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Run[R]:
        """Like `enqueue`, for coroutines; calls of several coroutines at a time share commits."""
        return await self.aenqueue_payload(self._target.encode(args, kwargs))

    def enqueue_payload(self, payload: str) -> Run[R]:
        """Enqueue with a payload that is JSON text already."""
        client, request = self._enqueue_client, self._request_of((payload,))
        if (scope := client.inline_scope()) is not None:
            return client.inline_runs.run(scope, request, payload, self._target.returns)
        if client.joins:
            request = client.joined(request)
        return self._run(request, client.send(request, payload))

    async def aenqueue_payload(self, payload: str) -> Run[R]:
        """Like `enqueue_payload`, for coroutines."""
        client, request = self._enqueue_client, self._request_of((payload,))
        if (scope := client.inline_scope()) is not None:
            return await client.inline_runs.arun(scope, request, payload, self._target.returns)
        if client.joins:
            request = await client.ajoined(request)
        return self._run(request, await client.asend(request, payload))

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[P, R]:
        """A call that is not made yet, for `enqueue_many`, `on_success` and `on_failure`; its arguments are checked and encoded now."""
        target = self._target
        return Call(target.name, target.encode(args, kwargs), self)

    def fields_of_follow_up(self, payload: str) -> dict[str, Any]:
        """The options of a call that follows a run, as fields of a job; the hooks of the program see it as an enqueue."""
        options = self._options
        if hooks := self._enqueue_client.before_enqueue:
            changed = changed_options(hooks, self._target.name, (payload,), options, EnqueueOptions, is_follow_up=True)
            options = cast(EnqueueOptions, changed)
        for word in options:
            if word in _NOT_OF_FOLLOW_UPS:
                raise InvalidInput(
                    f"{word} is given for {self.name}, but a call that follows a run starts when that run has ended",
                    field=word,
                    hint="leave it out",
                )
        return _shared_limit(self._target, inherit_call_options(job_fields(options), self._target.inherited))

    def enqueue_many(self, calls: Iterable[Call[P, R]]) -> list[Run[R]]:
        """Enqueue many calls in one transaction, all or none: `send.enqueue_many(send.call(order.id) for order in orders)`.

        Tens of thousands a second, where `enqueue` makes some thousands. Options hold for all of them; a unique `key` cannot be given.
        """
        client, payloads = self._enqueue_client, self._payloads(calls)
        request = self._request_for_many(payloads)
        if (scope := client.inline_scope()) is not None:
            return [*client.inline_runs.run_many(scope, request, payloads, self._target.returns)]
        if client.joins:
            request = client.joined(request)
        return self._runs(request, client.send_many(request, payloads))

    async def aenqueue_many(self, calls: Iterable[Call[P, R]]) -> list[Run[R]]:
        """Like `enqueue_many`, for coroutines."""
        client, payloads = self._enqueue_client, self._payloads(calls)
        request = self._request_for_many(payloads)
        if (scope := client.inline_scope()) is not None:
            return [*await client.inline_runs.arun_many(scope, request, payloads, self._target.returns)]
        if client.joins:
            request = await client.ajoined(request)
        return self._runs(request, await client.asend_many(request, payloads))

    def _payloads(self, calls: Iterable[object]) -> list[str]:
        payloads: list[str] = []
        for call in calls:
            if not isinstance(call, Call):
                kind = type(call).__name__
                raise InvalidInput(
                    f"enqueue_many was given a {kind}, expected calls: {self.name}.call(...)", field="calls"
                )
            if call.handler != self.name:
                raise InvalidInput(f"enqueue_many of {self.name} was given a call of {call.handler}", field="calls")
            payloads.append(call.payload)
        return payloads

    def _request_for_many(self, payloads: Sequence[str]) -> EnqueueRequest:
        request = self._request_of(payloads)
        if request.spec.unique_key is not None:
            raise InvalidInput(
                f"key is {request.spec.unique_key!r}, and enqueue_many gives its options to every call: all would be one run",
                field="key",
                hint="enqueue them one by one, each with a key of its own",
            )
        return request

    def _request_of(self, payloads: Sequence[str]) -> EnqueueRequest:
        """The request for these payloads: one object for all enqueues with the same options."""
        if self._enqueue_client.before_enqueue:
            return self._hooked_request(payloads)
        if self._request is None:
            self._request = _make_request(self._target, self._options)
        return self._request

    def _hooked_request(self, payloads: Sequence[str]) -> EnqueueRequest:
        """The request as the program's hooks want it. The last one is kept: many enqueues in a row are of one tenant."""
        hooks = self._enqueue_client.before_enqueue
        options = changed_options(hooks, self._target.name, payloads, self._options, EnqueueOptions)
        last = self._last_hooked
        # What follows is seen by the hooks, too: it may be of another tenant, although the rest is the same.
        if last is None or last[0] != options or options.keys() & _FOLLOW_UPS:
            last = self._last_hooked = options, _make_request(self._target, cast(EnqueueOptions, options))
        return last[1]

    def _run(self, request: EnqueueRequest, created: CreatedJob) -> Run[R]:
        return Run(
            self._enqueue_client.background_loop,
            execution_of(created),
            created.job_id,
            is_new=created.is_new,
            is_committed=request.connection is None,
            convert=self._target.returns,
        )

    def _runs(self, request: EnqueueRequest, ids: Iterable[ExecutionId]) -> list[Run[R]]:
        background_loop, is_committed, convert = (
            self._enqueue_client.background_loop,
            request.connection is None,
            self._target.returns,
        )
        return [Run(background_loop, id_, JobId(id_), is_committed=is_committed, convert=convert) for id_ in ids]


class HandlerHandle(Enqueueable[P, R]):
    """A function that `@tb.handler`, `@tb.cron` or `@tb.every` has made a handler."""

    # Copied from the function by `update_wrapper`.
    __name__: str
    __qualname__: str
    __wrapped__: Callable[..., Any]

    def __init__(self, enqueue_client: EnqueueClient, handler: Handler) -> None:
        super().__init__(enqueue_client, EnqueueTarget.of(handler), {})
        self._handler = handler
        update_wrapper(cast(Callable[..., Any], self), handler.function)

    @property
    def handler(self) -> Handler:
        """The declaration, as a worker uses it."""
        return self._handler

    @property
    def target(self) -> EnqueueTarget:
        """What jobs of this handler are made with."""
        return self._target

    def schedule(
        self,
        cron: str | None = None,
        *,
        every: Duration | None = None,
        at: InstantInput | None = None,
        after: str | None = None,
        connection: Any = None,
        **options: Unpack[ScheduleOptions],
    ) -> ScheduledJob:
        """Have workers call the handler by a schedule: `digest.schedule("0 7 * * *", name=f"digest-{user.id}", arguments={...})`.

        A cron expression, an interval (`every="15m"`), an instant (`at=...`), or the name of the job after whose successes it runs
        (`after="nightly-etl"`). If there is a job of this *name*, it is changed to what is given here, with defaults for what is not,
        and stays paused if it is paused; `action` of the result says whether the job was created, changed or left. Without a name each
        call makes a new job, to be found by its id. The job is committed when this returns; with *connection* it is written in that
        transaction instead, and exists if it commits.
        """
        return schedule_handler(self._enqueue_client, self._target, cron, every, at, after, connection, options)

    async def aschedule(
        self,
        cron: str | None = None,
        *,
        every: Duration | None = None,
        at: InstantInput | None = None,
        after: str | None = None,
        connection: Any = None,
        **options: Unpack[ScheduleOptions],
    ) -> ScheduledJob:
        """Like `schedule`, for coroutines."""
        return await aschedule_handler(self._enqueue_client, self._target, cron, every, at, after, connection, options)

    def schedule_many(
        self, schedules: Iterable[ScheduleParams], *, connection: Any = None
    ) -> dict[str, ScheduleAction]:
        """Schedule the handler many times in one transaction, all or none: `digest.schedule_many({"cron": "0 7 * * *", "name": ...} ...)`.

        Each of them is a dictionary of what `schedule` takes, and needs a name. Returns what was done, by name: `create`, `change`
        or `leave`. It takes a few statements for each thousand; repeated, it only reads.
        """
        requests = schedule_requests(self._target, schedules, self._enqueue_client.before_enqueue)
        return self._enqueue_client.call_within(connection, partial(_schedule_many, requests), "schedule_many")

    async def aschedule_many(
        self, schedules: Iterable[ScheduleParams], *, connection: Any = None
    ) -> dict[str, ScheduleAction]:
        """Like `schedule_many`, for coroutines."""
        requests = schedule_requests(self._target, schedules, self._enqueue_client.before_enqueue)
        return await self._enqueue_client.acall_within(connection, partial(_schedule_many, requests), "schedule_many")

    def redeclare(self, handler: Handler) -> None:
        """Replace the declaration by a fuller one: `@tb.handler(...)` above `@tb.cron(...)`."""
        self._handler, self._target, self._request = handler, EnqueueTarget.of(handler), None
        self._last_hooked = None

    def __reduce__(self) -> str:
        # Like a function, a handle is pickled by its place in its module.
        return self.__qualname__

    def __repr__(self) -> str:
        return f"<handler {self.name}>"


class SyncHandlerHandle(HandlerHandle[P, R]):
    """A handler that is a plain function."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function, here and now."""
        value: R = self._handler.function(*args, **kwargs)
        return value


class AsyncHandlerHandle(HandlerHandle[P, R]):
    """A handler that is a coroutine function."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Call the coroutine function, here and now."""
        coroutine: Coroutine[Any, Any, R] = self._handler.function(*args, **kwargs)
        return coroutine


class HandlerDecorator(Protocol):
    """A decorator that makes a function a handler."""

    # A coroutine function is a function, too. A type checker takes the first overload that fits.
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncHandlerHandle[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> SyncHandlerHandle[P, R]: ...


def schedule_handler(
    client: EnqueueClient,
    target: EnqueueTarget,
    cron: str | None,
    every: Duration | None,
    at: InstantInput | None,
    after: str | None,
    connection: Any,
    options: ScheduleOptions,
) -> ScheduledJob:
    """Create or change the job of a schedule."""
    request = schedule_request_of(target, cron, every, at, after, options, client.before_enqueue)
    return client.call_within(connection, partial(_schedule, request), "schedule")


async def aschedule_handler(
    client: EnqueueClient,
    target: EnqueueTarget,
    cron: str | None,
    every: Duration | None,
    at: InstantInput | None,
    after: str | None,
    connection: Any,
    options: ScheduleOptions,
) -> ScheduledJob:
    """Like `schedule_handler`, for coroutines."""
    request = schedule_request_of(target, cron, every, at, after, options, client.before_enqueue)
    return await client.acall_within(connection, partial(_schedule, request), "schedule")


# The models of jobs take a while to import, and most programs only enqueue.


async def _schedule(request: ScheduleRequest, runtime: SdkRuntime, connection: CallerConnection | None) -> ScheduledJob:
    from timeball.sdk.jobs import schedule

    return await schedule(request, runtime, connection)


async def _schedule_many(
    requests: Sequence[ScheduleRequest], runtime: SdkRuntime, connection: CallerConnection | None
) -> dict[str, ScheduleAction]:
    from timeball.sdk.jobs import schedule_many

    return await schedule_many(requests, runtime, connection)


def make_handle(enqueue_client: EnqueueClient, handler: Handler) -> HandlerHandle[..., Any]:
    """The handle for a handler."""
    is_coroutine = inspect.iscoroutinefunction(handler.function)
    return AsyncHandlerHandle(enqueue_client, handler) if is_coroutine else SyncHandlerHandle(enqueue_client, handler)


def _shared_limit(target: EnqueueTarget, fields: dict[str, Any]) -> dict[str, Any]:
    """All jobs of the handler share its limit; the limit of a single one-off would limit nothing."""
    if fields.get("max_running") is not None:
        fields.setdefault("limit_key", target.name)
    return fields


def _make_request(target: EnqueueTarget, options: EnqueueOptions) -> EnqueueRequest:
    """The request of an enqueue: the options of the handler, overridden by those of the enqueue."""
    if "delay" in options and "at" in options:
        raise InvalidInput("delay and at are both given, expected one of them", field="delay")
    fields = _shared_limit(target, {**target.inherited, **job_fields(options)})
    delay = parse_duration(options["delay"], "delay") if "delay" in options else None
    given_fields = None if target.is_declared_here else frozenset(fields)
    is_unchecked = options.get("unchecked", False)
    return EnqueueRequest(
        JobSpec(handler=target.name, **fields), delay, options.get("connection"), given_fields, is_unchecked
    )
