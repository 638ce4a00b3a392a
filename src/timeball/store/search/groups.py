"""Reads lists of groups, and groups with their parts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from timeball.domain.execution import ExecutionState
from timeball.domain.follow_ups import GroupPart, GroupState, GroupStatus, GroupStep
from timeball.domain.search import PageRequest, ResultPage, read_cursor, write_cursor
from timeball.domain.values.ids import ExecutionId
from timeball.store.follow_ups import group_from
from timeball.store.search.query import QueryParameters, QueryReader

if TYPE_CHECKING:
    from timeball.store.db.database import Database

_BY_ID = "group"


class GroupStore:
    """Reads groups."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._reader = QueryReader(database)

    async def page(self, state: GroupState | None, request: PageRequest, *, is_nested: bool) -> ResultPage[GroupStatus]:
        """A page of groups, the latest first; those inside of other groups only if *is_nested*."""
        values = QueryParameters()
        conditions = [] if is_nested else ["group_id IS NULL"]
        if state is not None:
            conditions.append(f"state = '{state.value}'")  # as text: an index has the few groups that are open
        if request.cursor is not None:
            place = values.add(UUID(read_cursor(request.cursor, _BY_ID, 1)[0]), "uuid")
            conditions.append(f"id < {place}")
        text = (
            f"SELECT id FROM timeball.execution_group WHERE {' AND '.join(conditions) or 'true'} ORDER BY id DESC "
            f"OFFSET {int(request.offset)} LIMIT {int(request.limit) + 1}"
        )
        ids = [row["id"] for row in await self._reader.fetch(text, values)]
        groups = await self.find(ids[: request.limit])
        shown = [groups[id_] for id_ in ids[: request.limit] if id_ in groups]
        has_more = len(ids) > request.limit
        return ResultPage(shown, write_cursor(_BY_ID, ids[request.limit - 1]) if has_more else None)

    async def find(self, ids: Sequence[UUID]) -> dict[UUID, GroupStatus]:
        """Some groups as they stand."""
        rows = await self._database.fetch("read_groups", ids=list(ids)) if ids else []
        return {row["id"]: group_from(row) for row in rows}

    async def parts(
        self, ids: Sequence[UUID], after: int, limit: int, *, is_open: bool = False
    ) -> dict[UUID, list[GroupPart]]:
        """The parts of some groups after a number, at most *limit* of all; only those that have not ended, if *is_open*."""
        rows = await self._database.fetch("parts_of_groups", ids=list(ids), after=after, limit=limit, is_open=is_open)
        if not rows:
            return {}
        begun, steps_left = await self._steps(ids, {row["number"] for row in rows})
        parts: dict[UUID, list[GroupPart]] = defaultdict(list)
        for row in rows:
            key = row["group_id"], row["number"]
            state = GroupState.OPEN if row["state"] is None else GroupState(row["state"])
            left = steps_left.get(key, 0) if state is GroupState.OPEN else 0
            parts[row["group_id"]].append(
                GroupPart(number=row["number"], state=state, steps=begun.get(key, []), steps_left=left)
            )
        return parts

    async def _steps(
        self, ids: Sequence[UUID], numbers: set[int]
    ) -> tuple[Mapping[tuple[UUID, int], list[GroupStep]], Mapping[tuple[UUID, int], int]]:
        """What each part has begun; and how many steps of its chain have not been begun."""
        rows = await self._database.fetch("steps_of_parts", ids=list(ids), numbers=sorted(numbers))
        groups = await self.find([row["id"] for row in rows if row["is_group"]])
        executions = [row["id"] for row in rows if not row["is_group"]]
        states = {
            row["id"]: row
            for row in (await self._database.fetch("states_of_executions", ids=executions) if executions else [])
        }
        begun: dict[tuple[UUID, int], list[GroupStep]] = defaultdict(list)
        left: dict[tuple[UUID, int], int] = {}
        for row in rows:
            key = row["group_id"], row["number"]
            left[key] = row["steps_left"]
            group = groups.get(row["id"])
            begun[key].append(
                GroupStep(id=row["id"], group=group) if row["is_group"] else _step_from(row, states.get(row["id"]))
            )
        return begun, left

    async def followed_by(self, group_id: UUID, limit: int) -> list[ExecutionId]:
        """The first executions that follow the end of a group."""
        rows = await self._database.fetch("followers_of_group", id=group_id, limit=limit)
        return [ExecutionId(row["id"]) for row in rows]


def _step_from(row: Any, ended: Any) -> GroupStep:
    """An execution; without a state if its history is no longer kept."""
    if ended is None:
        return GroupStep(id=row["id"], handler=row["handler"])
    error = f"{ended['error_type']}: {ended['error']}" if ended["error_type"] and ended["error"] else ended["error"]
    return GroupStep(
        id=row["id"],
        handler=row["handler"],
        state=ExecutionState(ended["state"]),
        error=error or ended["error_type"],
    )
