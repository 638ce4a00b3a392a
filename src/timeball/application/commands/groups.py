"""Begin and cancel groups."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from timeball.application.commands.requests import LOCAL, Actor, new_ids
from timeball.domain.follow_ups import confine_calls
from timeball.domain.job import check_group_work, check_meta
from timeball.domain.values.ids import format_id
from timeball.errors import NotFound, StoreUnavailable
from timeball.store.db.database import retry_write

if TYPE_CHECKING:
    from collections.abc import Mapping

    from timeball.application.commands.executions import ExecutionCommands
    from timeball.application.commands.requests import ContractChecks
    from timeball.domain.follow_ups import GroupStatus
    from timeball.domain.values.ids import IdempotentRequest
    from timeball.env import Env
    from timeball.store.db.database import WithinConnection
    from timeball.store.store import Store


@dataclass(frozen=True, slots=True)
class CreatedGroup:
    """The id of a new group, and warnings for the caller."""

    id: UUID
    warnings: list[str]


class GroupCommands:
    """Begin and cancel groups: parts that run side by side, and what follows when all of them have ended."""

    def __init__(self, store: Store, env: Env, contracts: ContractChecks, executions: ExecutionCommands) -> None:
        self._store = store
        self._env = env
        self._contracts = contracts
        self._executions = executions

    async def begin(
        self,
        work: Mapping[str, Any],
        actor: Actor = LOCAL,
        connection: WithinConnection | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> UUID:
        """Begin a group, all of its parts or none, in one statement; in the transaction of *connection*, if one is given.

        All of its calls have the *meta*, beside their own.
        """
        confined = self._checked(work, actor)
        root, at = self._env.new_id(), self._env.clock.now()

        async def write() -> UUID:
            return await self._store.follow_ups.begin_group(confined, root, at, actor.created_by, connection, meta)

        if connection is not None:
            return await write()
        try:
            return await write()
        except StoreUnavailable:

            async def look() -> UUID | None:
                return None  # done once under the same root, however often it is written

            return await retry_write(self._env.clock, look, write)

    async def create(
        self,
        work: Mapping[str, Any],
        actor: Actor = LOCAL,
        idempotency: IdempotentRequest | None = None,
        *,
        meta: Mapping[str, Any] | None = None,
        is_unchecked: bool = False,
    ) -> CreatedGroup:
        """Begin a group or a chain as a caller outside of the program requests it.

        Its calls take the options of the published contracts of their handlers, and payloads that these refuse are accepted only if
        *is_unchecked*. A chain is a group of one part. All of its calls have the *meta*, beside their own.
        """
        meta = None if meta is None else check_meta(meta)
        resolved, warnings = await self._contracts.resolve_work(work, is_unchecked=is_unchecked)
        confined = await asyncio.to_thread(self._checked, resolved, actor)
        root, note = new_ids(self._env, 2, idempotency)
        group_id = await self._store.follow_ups.begin_audited_group(
            confined if "group" in confined else {"group": [confined]},
            root,
            self._env.clock.now() if idempotency is None else idempotency.requested_at,
            actor.created_by,
            meta=meta,
            note=note,
            audit=actor.entry,
        )
        return CreatedGroup(group_id, warnings)

    def _checked(self, work: Mapping[str, Any], actor: Actor) -> dict[str, Any]:
        """A group or chain as it is stored for an actor."""
        checked = check_group_work(work)
        self._contracts.check_follow_ups(checked, actor)
        confined = confine_calls({"work": checked}, actor.is_confined)["work"]
        assert confined is not None
        return confined

    async def status(self, group_id: UUID) -> GroupStatus:
        """A group as it stands; NotFound if there is none."""
        status = await self._store.follow_ups.find_group(group_id)
        if status is None:
            raise NotFound("group", format_id("grp", group_id))
        return status

    async def results(self, group_id: UUID) -> str:
        """What the parts of a group returned, as a JSON list in their order; a note in its place if it is too large."""
        return await self._store.follow_ups.results(group_id)

    async def cancel(self, group_id: UUID, actor: Actor = LOCAL) -> int:
        """Cancel what waits of a group and ask what runs to stop; returns how many executions that were.

        Its parts fail by that, and what follows its failure is written. A step of a chain that succeeds nevertheless is the last one of
        its chain, which fails. A statement that has begun the next step is awaited, and the step found by the next look.
        """
        await self.status(group_id)
        reached: set[Any] = set()
        while unfinished := [id_ for id_ in await self._store.follow_ups.cancel_group(group_id) if id_ not in reached]:
            reached |= await self._executions.cancel(unfinished, actor)
            reached |= set(unfinished)
        return len(reached)
