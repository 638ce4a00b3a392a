"""Jobs as programs declare them: by name, and the same however often it is said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from timeball.commands.actor import LOCAL, Actor
from timeball.commands.changing import Changing
from timeball.commands.creating import Creating
from timeball.domain.declaration import PlannedJob, Step, differences, plan
from timeball.domain.job import Job, JobSpec
from timeball.domain.text import check_label
from timeball.errors import Conflict, InvalidInput

_DECLARATION = Actor("declaration")


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
                return (await self._create_declared([spec], declared_by, _DECLARATION))[0]
            except Conflict:
                continue  # another process was quicker: compare with what it made
        raise Conflict(f"job {spec.name!r} is being created and deleted over and over")

    async def _align(self, present: Job, spec: JobSpec) -> Job:
        fields = self.differences(present, spec)
        if not fields:
            return present
        return await self.update(present.id, fields, _DECLARATION)

    async def undeclared(self, modules: Sequence[str], names: Sequence[str]) -> list[Job]:
        """The jobs that these modules declared once, under other names than these, and that are still active."""
        return await self._store.jobs.undeclared(modules, names)

    def differences(self, present: Job, spec: JobSpec) -> dict[str, Any]:
        """Which fields of a declaration differ from the job that is there."""
        return differences(present, spec, self._env.clock.now(), self._store.shards)[1]

    # many at once

    async def plan_sync(
        self, wishes: Sequence[JobSpec], declared_by: str, *, prune: bool = False, actor: Actor = LOCAL
    ) -> list[PlannedJob]:
        """What `sync` would do: a step for each job, and with *prune* one for each that *declared_by* no longer declares."""
        check_label(declared_by, "declared_by")
        made = [self._prepared(number, wish, actor) for number, wish in enumerate(wishes)]
        present = await self._store.jobs.find_by_names([job.name for job in made if job.name is not None])
        pruned = await self._store.jobs.declared_by(declared_by) if prune else []
        return plan(present, list(zip(wishes, made, strict=True)), pruned, self._env.clock.now(), self._store.shards)

    def _prepared(self, number: int, wish: JobSpec, actor: Actor) -> Job:
        try:
            return self.prepare([wish], actor)[0][0]
        except InvalidInput as error:
            raise error.below(f"jobs/{number}") from error

    async def sync(
        self, wishes: Sequence[JobSpec], declared_by: str, *, prune: bool = False, actor: Actor = LOCAL
    ) -> list[PlannedJob]:
        """Make the jobs of these names what is declared: created, changed, or left; with *prune*, deleted if no longer declared.

        Everything is checked before anything is done. A job that somebody edits meanwhile raises Conflict; repeat the call.
        """
        steps = await self.plan_sync(wishes, declared_by, prune=prune, actor=actor)
        new = [step.wish for step in steps if step.step is Step.CREATE and step.wish is not None]
        created = {job.name: job for job in await self._create_declared(new, declared_by, actor)} if new else {}
        return [await self._take(step, created, actor) for step in steps]

    async def _take(self, step: PlannedJob, created: dict[str | None, Job], actor: Actor) -> PlannedJob:
        before = step.before
        if before is None:
            return replace(step, after=created[step.name])
        if step.step is Step.CHANGE:
            return replace(step, after=await self.update(before.id, step.fields, actor, before.version))
        if step.step is Step.DELETE:
            await self.delete(before.id, actor)
        return step

    async def _create_declared(self, wishes: Sequence[JobSpec], declared_by: str, actor: Actor) -> list[Job]:
        prepared = self.prepare(wishes, actor)
        jobs = [replace(job, declared_by=declared_by) for job, _ in prepared]
        openings = [opening for _, opening in prepared if opening is not None]
        await self._store.jobs.create(jobs, openings, audit=actor.entry)
        return jobs
