"""Jobs as they are declared, compared with those that are there: what would have to be done, and nothing done yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

import orjson

from timeball.domain.job import SPEC_FIELDS, Job, JobSpec, redefine, spec_of
from timeball.errors import InvalidInput


class Step(StrEnum):
    """What a declaration asks for."""

    CREATE = "create"
    CHANGE = "change"
    LEAVE = "leave"
    DELETE = "delete"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedJob:
    """One job of a plan: how it is, how it is to be, and which fields differ.

    A job to be created has no *before*, one to be deleted no *after*. *wish* is what the declaration says.
    """

    name: str
    step: Step
    before: Job | None = None
    after: Job | None = None
    wish: JobSpec | None = None
    fields: Mapping[str, Any]

    @property
    def changes(self) -> dict[str, tuple[Any, Any]]:
        """Each field that differs: its value before and after."""
        if self.before is None or self.after is None:
            return {}
        old, new = _values(self.before), _values(self.after)
        return {name: (old[name], new[name]) for name in sorted(old) if old[name] != new[name]}


def differences(present: Job, wish: JobSpec, now: datetime, shards: int) -> tuple[Job, dict[str, Any]]:
    """The job that a declaration wants in place of this one, and the fields to change for it: none, if they are the same."""
    wanted = {name: getattr(wish, name) for name in SPEC_FIELDS}
    if wish.interval_seconds is not None and wish.scheduled_at is None:
        # An interval without an anchor keeps the one it has: a restart must not shift the rhythm.
        wanted.pop("scheduled_at")
    fresh = redefine(present, wanted, present.created_at or now, shards)
    return (present, {}) if _is_same(present, fresh) else (fresh, wanted)


def plan(
    present: Mapping[str, Job], wishes: Sequence[tuple[JobSpec, Job]], pruned: Sequence[Job], now: datetime, shards: int
) -> list[PlannedJob]:
    """What is to be done so that the jobs are as declared; *wishes* come with the job that each would make anew."""
    names = [job.name for _, job in wishes]
    steps = [
        _planned(number, present.get(job.name or ""), wish, job, now, shards)
        for number, (wish, job) in enumerate(wishes)
    ]
    seen = {name: number for number, name in enumerate(names)}
    for number, name in enumerate(names):
        if seen[name] != number:
            raise InvalidInput(f"two of the jobs are named {name!r}", field=f"jobs/{seen[name]}/name")
    gone = [PlannedJob(name=job.name or "", step=Step.DELETE, before=job, fields={}) for job in pruned]
    return [*steps, *(one for one in gone if one.name not in seen)]


def _planned(number: int, present: Job | None, wish: JobSpec, job: Job, now: datetime, shards: int) -> PlannedJob:
    if job.name is None:
        raise InvalidInput("a declared job needs a name", field=f"jobs/{number}/name")
    if present is None:
        return PlannedJob(name=job.name, step=Step.CREATE, after=job, wish=wish, fields={})
    after, fields = differences(present, wish, now, shards)
    step = Step.CHANGE if fields else Step.LEAVE
    return PlannedJob(name=job.name, step=step, before=present, after=after, wish=wish, fields=fields)


def _values(job: Job) -> dict[str, Any]:
    spec = spec_of(job)
    return {name: getattr(spec, name) for name in SPEC_FIELDS} | {"payload": orjson.loads(job.payload)}


def _is_same(one: Job, other: Job) -> bool:
    return _comparable(one) == _comparable(other) and orjson.loads(one.payload) == orjson.loads(other.payload)


def _comparable(job: Job) -> Job:
    """A job without what differs in any case; the database writes a payload in its own way."""
    return replace(job, payload="", version=0, created_at=None, updated_at=None)
