"""Write and end freezes."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from timeball.application.commands.requests import LOCAL, Actor, new_ids
from timeball.domain.freeze import Afterwards, Freeze, FreezeId, FreezeScope, format_freeze_id
from timeball.domain.job_changes import refuse_past
from timeball.domain.values.text import check_label
from timeball.errors import Conflict, InvalidInput, NotFound

if TYPE_CHECKING:
    from timeball.application.commands.jobs import JobCommands
    from timeball.domain.values.ids import IdempotentRequest, JobId
    from timeball.env import Env
    from timeball.store.store import Store


class FreezeCommands:
    """Freeze an installation, a queue, a tag or a job, and end freezes before their time."""

    def __init__(self, store: Store, env: Env, jobs: JobCommands) -> None:
        self._store = store
        self._env = env
        self._jobs = jobs

    async def add(
        self,
        scope: FreezeScope,
        target: str | None = None,
        job_id: JobId | None = None,
        *,
        until: datetime,
        since: datetime | None = None,
        afterwards: Afterwards = Afterwards.SKIP,
        actor: Actor = LOCAL,
        idempotency: IdempotentRequest | None = None,
    ) -> Freeze:
        """Let nothing in a scope start, from *since* (or now) until an instant. Running executions go on."""
        freeze_id = FreezeId(next(new_ids(self._env, 1, idempotency)))
        if idempotency is not None and idempotency.is_repeated:
            done = await self._store.freezes.find(freeze_id)
            if done is not None:
                return done
        if target is not None:
            check_label(target, scope.value)
        if job_id is not None:
            await self._jobs.existing(job_id)
        self._check_span(since, until)
        freeze = await self._store.freezes.add(
            freeze_id, scope, target, job_id, since=since, until=until, afterwards=afterwards, audit=actor.entry
        )
        if freeze is None:
            refuse_past(until, until)
            raise AssertionError("an end that has passed is refused")
        return freeze

    def _check_span(self, since: datetime | None, until: datetime) -> None:
        now = self._env.clock.now()
        refuse_past(until, now)
        if since is not None and since < now:
            raise InvalidInput(
                f"from is {since.isoformat()}, which has passed; expected an instant in the future",
                hint="leave it out, and the freeze begins now",
                field="from",
            )
        if since is not None and since >= until:
            raise InvalidInput(
                f"from is {since.isoformat()}, expected an instant before until, {until.isoformat()}", field="from"
            )

    async def end(self, freeze_id: FreezeId, actor: Actor = LOCAL) -> Freeze:
        """End a freeze now: what it held back goes on. One that has not begun never begins."""
        freeze = await self._store.freezes.end(freeze_id, actor.entry)
        if freeze is not None:
            return freeze
        over = await self._store.freezes.find(freeze_id)
        if over is None:
            raise NotFound("freeze", format_freeze_id(freeze_id))
        raise Conflict(f"the freeze was over at {over.until_at.isoformat()}")
