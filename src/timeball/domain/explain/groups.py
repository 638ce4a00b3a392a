"""Which parts a group waits for, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from timeball.domain.follow_ups import GroupState, GroupStatus
from timeball.domain.values.ids import ExecutionId, format_execution_id, format_id
from timeball.domain.values.wording import counted, instant_in_words

MOST_NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupWait:
    """A part that has not ended, and why: the sentence about the execution or the group that it waits for."""

    part: int
    headline: str
    execution_id: ExecutionId | None = None
    group_id: UUID | None = None
    handler: str | None = None
    state: str | None = None
    stopped_by: str | None = None

    @property
    def name(self) -> str:
        """What it waits for, in short: `read_page (exe_...)`."""
        if self.execution_id is not None:
            return f"{self.handler} ({format_execution_id(self.execution_id)})"
        return f"part {self.part}" if self.group_id is None else f"the group {format_id('grp', self.group_id)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupExplanation:
    """Why a group has not ended, or how it has."""

    status: GroupStatus
    checked_at: datetime
    headline: str
    waits: Sequence[GroupWait]


def explain_group(status: GroupStatus, waits: Sequence[GroupWait], now: datetime) -> GroupExplanation:
    """The sentence about a group, of which *waits* are the first parts that have not ended."""
    return GroupExplanation(status=status, checked_at=now, headline=_headline(status, waits, now), waits=waits)


def _headline(status: GroupStatus, waits: Sequence[GroupWait], now: datetime) -> str:
    if status.state is not GroupState.OPEN:
        when = "" if status.closed_at is None else f" at {instant_in_words(status.closed_at, now)}"
        failed = f"{status.failed} of {counted(status.total, 'part')} failed"
        return f"ENDED: {status.state}{when}; {failed if status.failed else 'all parts succeeded'}."
    failed = f" {status.failed} failed." if status.failed else ""
    stopped = [wait for wait in waits if wait.stopped_by is not None]
    why = f" {stopped[0].name}: {stopped[0].headline}" if stopped else ""
    return f"OPEN: {waiting_words(status, waits)}.{failed}{why}"


def waiting_words(status: GroupStatus, waits: Sequence[GroupWait]) -> str:
    """What an open group waits for: `waits for 3 of 20: read_page (exe_...), ... and 1 more`."""
    names = [wait.name for wait in waits[:MOST_NAMED]]
    more = status.waits_for - len(names)
    if more > 0 and names:
        names[-1] += f" and {more:,} more"
    named = f": {', '.join(names)}" if names else ""
    return f"waits for {status.waits_for:,} of {status.total:,}{named}"
