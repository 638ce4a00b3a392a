"""Schedules declared in code: collected while modules are imported, made jobs when a worker starts.

A declaration defines the job of its name. `JobCommands.declare` creates or updates that job, once, however many processes declare it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import orjson

from timeball.domain.handler import Handler
from timeball.domain.job import define_job
from timeball.domain.job_fields import JobSpec
from timeball.domain.policies import is_serial_word
from timeball.domain.values.ids import JobId
from timeball.env import SystemClock
from timeball.errors import Conflict, NeverFires
from timeball.handlers.registry import default_name
from timeball.sdk.options import ScheduleOptions, job_fields

if TYPE_CHECKING:
    from timeball.application.commands import Commands
    from timeball.sdk.handlers import HandlerHandle

_NO_JOB = JobId(UUID(int=0))


@dataclass(frozen=True, slots=True)
class _DeclaredSchedule:
    handle: HandlerHandle[..., Any]
    timing: Mapping[str, Any]
    options: ScheduleOptions

    @property
    def name(self) -> str:
        return self.options.get("name") or self.handle.name

    def spec(self) -> JobSpec:
        """The definition of the job; made when it is needed, because the handler may be declared more fully later."""
        handler = self.handle.handler
        fields = {**handler.options.job_fields(), **job_fields(self.options), **self.timing, "name": self.name}
        if is_serial_word(fields.get("overlap")):
            fields["max_running"] = self.options.get("max_running")
        if fields["max_running"] is not None:
            fields.setdefault("limit_key", handler.name)
        payload = orjson.Fragment(handler.binder.encode((), self.options.get("arguments", {})))
        return JobSpec(handler=handler.name, payload=payload, **fields)

    @property
    def declared_by(self) -> str:
        return default_name(self.handle.handler.function).partition(":")[0]


class DeclaredSchedules:
    """The schedules of a program, in the order of their declaration."""

    def __init__(self) -> None:
        self._declarations: dict[str, _DeclaredSchedule] = {}

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
        return {declaration.name: declaration.spec() for declaration in self._declarations.values()}

    def by_origin(self) -> list[tuple[str, JobSpec]]:
        """The definitions of the jobs, each with the module that declares it."""
        return [(declaration.declared_by, declaration.spec()) for declaration in self._declarations.values()]

    async def declare(self, commands: Commands) -> list[str]:
        """Create the jobs of these names, or update them; returns the names.

        A schedule whose `ends_at` has passed before it ever became a job is left out: code may outlive what it declares.
        """
        names: list[str] = []
        for declaration in self._declarations.values():
            try:
                await commands.jobs.declare(declaration.spec(), declaration.declared_by)
            except NeverFires:
                if not _has_ended(declaration):
                    raise
            else:
                names.append(declaration.name)
        return names


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
