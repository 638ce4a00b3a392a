"""Jobs as programs declare them: by name, and the same however often it is said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import orjson

from timeball.commands.actor import Actor
from timeball.commands.changing import Changing
from timeball.commands.creating import Creating
from timeball.domain.job import SPEC_FIELDS, Job, JobSpec, redefine
from timeball.errors import Conflict, InvalidInput


class Declaring(Creating, Changing):
    """Make the jobs what a declaration says."""

    async def declare(self, spec: JobSpec, declared_by: str) -> Job:
        """Make the job of this name what the declaration says; ten processes that declare the same make one job.

        Only what differs is changed, so that a restart is no edit. A pause stays.
        """
        if spec.name is None:
            raise InvalidInput("a declared job needs a name", field="name")
        for _ in range(5):
            present = await self._store.jobs.find_by_name(spec.name)
            if present is not None:
                return await self._align(present, spec)
            try:
                prepared = self.prepare([spec])
                jobs = [replace(job, declared_by=declared_by) for job, _ in prepared]
                await self._store.jobs.create(jobs, [opening for _, opening in prepared if opening is not None])
            except Conflict:
                continue  # another process was quicker: compare with what it made
            return jobs[0]
        raise Conflict(f"job {spec.name!r} is being created and deleted over and over")

    async def _align(self, present: Job, spec: JobSpec) -> Job:
        fields = self.differences(present, spec)
        if not fields:
            return present
        return await self.update(present.id, fields, Actor("declaration"))

    async def undeclared(self, modules: Sequence[str], names: Sequence[str]) -> list[Job]:
        """The jobs that these modules declared once, under other names than these, and that are still active."""
        return await self._store.jobs.undeclared(modules, names)

    def differences(self, present: Job, spec: JobSpec) -> dict[str, Any]:
        """Which fields of a declaration differ from the job that is there."""
        wanted = {name: getattr(spec, name) for name in SPEC_FIELDS}
        if spec.interval_seconds is not None and spec.scheduled_at is None:
            # An interval without an anchor keeps the one it has: a restart must not shift the rhythm.
            wanted.pop("scheduled_at")
        fresh = redefine(present, wanted, present.created_at or self._env.clock.now(), self._store.shards)
        if _same_definition(present, fresh):
            return {}
        return wanted


def _same_definition(one: Job, other: Job) -> bool:
    return _comparable(one) == _comparable(other) and orjson.loads(one.payload) == orjson.loads(other.payload)


def _comparable(job: Job) -> Job:
    """A job without what differs in any case; the database writes a payload in its own way."""
    return replace(job, payload="", version=0, created_at=None, updated_at=None)
