"""Reads groups: their list, and each with its parts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

from timeball.domain.follow_ups import GroupPart, GroupState, GroupStatus, GroupTree
from timeball.domain.search import PageRequest, ResultPage
from timeball.domain.values.ids import parse_id
from timeball.errors import InvalidInput, NotFound, quote_text

if TYPE_CHECKING:
    from timeball.store.store import Store

# A group inside of another one is shown with its parts if it has at most so many; so many of all such parts are shown at once.
MAX_SHOWN_INSIDE = 200
_MAX_LEVELS = 5
_MAX_FOLLOWERS = 200


class GroupQueries:
    """Reads groups."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def find(self, reference: str) -> GroupStatus:
        """A group by its id; NotFound if there is none."""
        try:
            group_id = parse_id("grp", reference)
        except InvalidInput:
            raise NotFound("group", quote_text(reference)) from None
        status = (await self._store.groups.find([group_id])).get(group_id)
        if status is None:
            raise NotFound("group", quote_text(reference))
        return status

    async def page(self, state: GroupState | None, request: PageRequest, *, is_nested: bool) -> ResultPage[GroupStatus]:
        """A page of groups, the latest first; those inside of other groups only if *is_nested*."""
        return await self._store.groups.page(state, request, is_nested=is_nested)

    async def tree(self, reference: str, after: int, limit: int, *, is_open: bool = False) -> GroupTree:
        """A group with a page of its parts after a number, and the parts of the groups among them; or only of those that are open."""
        status = await self.find(reference)
        rows = (await self._store.groups.parts([status.id], after, limit + 1, is_open=is_open)).get(status.id, [])
        shown = await self._with_inner_parts(rows[:limit], MAX_SHOWN_INSIDE, _MAX_LEVELS)
        return GroupTree(
            status=status,
            parts=shown,
            next_after=shown[-1].number if len(rows) > limit else None,
            followed_by=await self._store.groups.followed_by(status.id, _MAX_FOLLOWERS),
        )

    async def _with_inner_parts(self, parts: list[GroupPart], room: int, levels: int) -> list[GroupPart]:
        """These parts, with the parts of the groups among them, as far as there is room: one statement for each level."""
        groups = [step.group for part in parts for step in part.steps if step.group is not None]
        small = [group.id for group in groups if group.total <= MAX_SHOWN_INSIDE]
        if not small or room <= 0 or not levels:
            return parts
        inner = await self._store.groups.parts(small, 0, room)
        flat = [part for id_ in small for part in inner.get(id_, [])]
        deeper = iter(await self._with_inner_parts(flat, room - len(flat), levels - 1))
        whole: dict[UUID, list[GroupPart]] = {id_: [next(deeper) for _ in inner.get(id_, [])] for id_ in small}
        return [
            replace(part, steps=[replace(step, parts=whole.get(step.id, ())) for step in part.steps]) for part in parts
        ]
