"""Jobs from a program, without a server: schedules that it makes as it goes, and `tb.jobs`.

Everything goes through the commands and queries that the API uses, so a rule that holds there holds here. The program is its own
author: it holds the database's password, so there is nothing that it may not do, and secrets in its payloads are not hidden from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast

import orjson
from pydantic import Field

from timeball.api.models.jobs import JobOut as Job
from timeball.api.models.jobs import job_document
from timeball.application.commands.jobs import DefinedJob
from timeball.application.commands.requests import JobRequest
from timeball.domain.job import JobView
from timeball.domain.job_fields import JobSpec
from timeball.sdk.enqueue import SdkRuntime
from timeball.sdk.schedules import ScheduleRequest
from timeball.store.db.database import CallerConnection

__all__ = ["Job", "ScheduleAction", "ScheduledJob", "schedule", "schedule_many"]

ScheduleAction = Literal["create", "change", "leave"]


class ScheduledJob(Job):
    """A job that `.schedule(...)` has created, changed, or left as it is."""

    action: ScheduleAction = Field(description="`leave` if the job of this name was as asked for.")
    warnings: list[str] = Field(
        description="What may be wrong with it, such as a handler that no worker has published."
    )


async def schedule(request: ScheduleRequest, runtime: SdkRuntime, connection: CallerConnection | None) -> ScheduledJob:
    """Create or change the job of a schedule."""
    await runtime.now()  # compares the clocks: the first occurrence is computed from this time
    (spec,), warnings = await _complete([request], runtime)
    defined = await runtime.commands.jobs.define(spec, runtime.actor(None), connection)
    view = defined.view or await runtime.queries.jobs.view(str(defined.job.id), connection)
    return ScheduledJob.model_validate_json(_json(view, action=_action(defined), warnings=warnings))


async def schedule_many(
    requests: Sequence[ScheduleRequest], runtime: SdkRuntime, connection: CallerConnection | None
) -> dict[str, ScheduleAction]:
    """Create or change the jobs of many schedules, all or none; says what was done, by name."""
    await runtime.now()
    specs, _ = await _complete(requests, runtime)
    defined = await runtime.commands.jobs.define_all(specs, runtime.actor(None), connection)
    return {done.job.name or "": _action(done) for done in defined}


async def _complete(requests: Sequence[ScheduleRequest], runtime: SdkRuntime) -> tuple[list[JobSpec], list[str]]:
    """The definitions, with the published options of handlers that are not declared here; and the warnings for these."""
    if all(request.is_complete for request in requests):
        return [request.spec for request in requests], []
    resolved = await runtime.commands.contracts.resolve(
        [JobRequest(request.spec, request.given_fields) for request in requests]
    )
    return resolved.specs, resolved.warnings


def _action(defined: DefinedJob) -> ScheduleAction:
    return cast(ScheduleAction, defined.action.value)


def _json(view: JobView, **more: object) -> bytes:
    return orjson.dumps(job_document(view, shows_secrets=True) | more)
