"""Schedules of a program: declared in code, or made while it runs.

Declarations are collected while modules are imported, and made jobs when a worker starts: `JobCommands.declare` creates or updates the
job of that name, once, however many processes declare it. Schedules that a program makes as it goes, one for each of its users for
example, are written at once (`sdk/jobs.py`); they belong to no declaration, so no worker misses them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import orjson

from timeball.domain.handler import Handler
from timeball.domain.job import causes_first, define_job
from timeball.domain.job_fields import JobSpec
from timeball.domain.policies import is_serial_word
from timeball.domain.values.ids import JobId
from timeball.domain.values.wording import Duration, parse_duration
from timeball.env import SystemClock
from timeball.errors import Conflict, InvalidInput, NeverFires
from timeball.handlers.registry import default_name
from timeball.sdk.enqueue_hooks import EnqueueHook, changed_options
from timeball.sdk.options import InstantInput, ScheduleOptions, ScheduleParams, check_options, job_fields

if TYPE_CHECKING:
    from timeball.application.commands import Commands
    from timeball.sdk.handlers import EnqueueTarget, HandlerHandle

_NO_JOB = JobId(UUID(int=0))
_TIMING_WORDS = ("cron", "every", "at", "after")


@dataclass(frozen=True, slots=True)
class _DeclaredSchedule:
    handle: HandlerHandle[..., Any]
    timing: Mapping[str, Any]
    options: ScheduleOptions

    @property
    def name(self) -> str:
        return self.options.get("name") or self.handle.name

    def spec(self, hooks: Sequence[EnqueueHook] = ()) -> JobSpec:
        """The definition of the job; made when it is needed, because the handler may be declared more fully later."""
        return schedule_request(self.handle.target, self.timing, self.options | {"name": self.name}, hooks).spec

    @property
    def declared_by(self) -> str:
        return default_name(self.handle.handler.function).partition(":")[0]


@dataclass(frozen=True, slots=True)
class ScheduleRequest:
    """The job that a schedule is to be, and the fields that were given; those of a handler of this program are complete."""

    spec: JobSpec
    given_fields: frozenset[str]
    is_complete: bool


def schedule_request(
    target: EnqueueTarget, timing: Mapping[str, Any], options: ScheduleOptions, hooks: Sequence[EnqueueHook] = ()
) -> ScheduleRequest:
    """The request for a schedule of a handler: the handler's options, overridden by those of the schedule."""
    text = target.encode((), options.get("arguments", {}))
    if hooks:
        options = cast(
            ScheduleOptions, changed_options(hooks, target.name, [text], options, ScheduleOptions, is_schedule=True)
        )
    fields = {**target.inherited, **job_fields(options), **timing}
    if is_serial_word(fields.get("overlap")):
        fields["max_running"] = options.get("max_running")
    if fields.get("max_running") is not None:
        fields.setdefault("limit_key", target.name)
    spec = JobSpec(handler=target.name, payload=orjson.Fragment(text), **fields)
    return ScheduleRequest(spec, frozenset({*fields, "payload"}), target.is_declared_here)


def schedule_request_of(
    target: EnqueueTarget,
    cron: str | None,
    every: Duration | None,
    at: InstantInput | None,
    after: str | None,
    options: ScheduleOptions,
    hooks: Sequence[EnqueueHook] = (),
) -> ScheduleRequest:
    """The request for a schedule, as `.schedule(...)` is given it."""
    check_options(options, ScheduleOptions, "schedule()")
    return schedule_request(target, timing_fields(cron, every, at, after), options, hooks)


def timing_fields(
    cron: str | None, every: Duration | None, at: InstantInput | None, after: str | None
) -> dict[str, Any]:
    """The fields of a job that say when it runs, of which a caller gives one."""
    given = {"cron": cron, "every": every, "at": at, "after": after}
    words = [word for word, value in given.items() if value is not None]
    if len(words) != 1:
        found = f"{' and '.join(words)} are given" if words else "none of cron, every, at and after is given"
        raise InvalidInput(
            f"{found}, expected one of cron, every, at and after",
            field=words[0] if words else "cron",
            hint='.schedule("0 7 * * *"), .schedule(every="15m"), .schedule(at=...) or .schedule(after="nightly-etl")',
        )
    if every is not None:
        return {"interval_seconds": parse_duration(every, "every").total_seconds()}
    if after is not None:
        return {"after": after}
    return {"schedule": cron} if cron is not None else {"scheduled_at": at}


def schedule_requests(
    target: EnqueueTarget, schedules: Iterable[ScheduleParams], hooks: Sequence[EnqueueHook] = ()
) -> list[ScheduleRequest]:
    """The requests for many schedules of a handler."""
    requests: list[ScheduleRequest] = []
    for number, params in enumerate(schedules):
        options: dict[str, Any] = {**params}
        try:
            check_options(options, ScheduleParams, "schedule_many()")
            timing = timing_fields(*(options.pop(word, None) for word in _TIMING_WORDS))
            requests.append(schedule_request(target, timing, cast(ScheduleOptions, options), hooks))
        except InvalidInput as error:
            raise error.below(str(number)) from None
    return requests


class DeclaredSchedules:
    """The schedules of a program, in the order of their declaration."""

    def __init__(self, hooks: Sequence[EnqueueHook] = ()) -> None:
        self._declarations: dict[str, _DeclaredSchedule] = {}
        # They may be registered later than the schedules, so a declaration is checked without them.
        self._hooks = hooks

    def add(self, handle: HandlerHandle[..., Any], timing: Mapping[str, Any], options: ScheduleOptions) -> None:
        """Add a schedule; an error in it is raised here, so that the traceback leads to the declaration."""
        declaration = _DeclaredSchedule(handle, timing, options)
        _check(declaration.spec())
        if declaration.name in self._declarations:
            raise Conflict(
                f"schedule {declaration.name!r} is declared twice",
                hint='give one of them another name: @tb.cron("...", name=...)',
            )
        self._declarations[declaration.name] = declaration

    def specs(self) -> dict[str, JobSpec]:
        """The definitions of the jobs, by name."""
        return {declaration.name: declaration.spec(self._hooks) for declaration in self._declarations.values()}

    def by_origin(self) -> list[tuple[str, JobSpec]]:
        """The definitions of the jobs, each with the module that declares it, and behind those that it comes after."""
        return [(declaration.declared_by, spec) for declaration, spec in self._in_order()]

    async def declare(self, commands: Commands) -> list[str]:
        """Create the jobs of these names, or update them; returns the names.

        A schedule whose `ends_at` has passed before it ever became a job is left out: code may outlive what it declares.
        """
        names: list[str] = []
        for declaration, spec in self._in_order():
            try:
                await commands.jobs.declare(spec, declaration.declared_by)
            except NeverFires:
                if not _has_ended(declaration):
                    raise
            else:
                names.append(declaration.name)
        return names

    def _in_order(self) -> list[tuple[_DeclaredSchedule, JobSpec]]:
        # By their names of now: a handler that is declared below its schedule names both.
        declarations = {declaration.name: declaration for declaration in self._declarations.values()}
        specs = causes_first([declaration.spec(self._hooks) for declaration in declarations.values()])
        return [(declarations[spec.name or ""], spec) for spec in specs]


def _has_ended(declaration: _DeclaredSchedule) -> bool:
    return "ends_at" in declaration.options


def _check(spec: JobSpec) -> None:
    try:
        define_job(spec, _NO_JOB, SystemClock().now(), 1)
    except NeverFires:
        if spec.ends_at is None:
            raise


def check_handler(handler: Handler) -> None:
    """Refuse, at the declaration, options of a handler that no job could have."""
    define_job(JobSpec(handler=handler.name, **handler.options.job_fields()), _NO_JOB, datetime.now(UTC), 1)
