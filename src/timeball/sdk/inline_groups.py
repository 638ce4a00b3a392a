"""Chains and groups inline: their calls are made one after the other, and what follows them at once."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import orjson

from timeball.domain.follow_ups import GroupState, GroupStatus
from timeball.domain.payload_references import CauseRecord
from timeball.errors import ExecutionFailed
from timeball.sdk.groups import GroupRun

if TYPE_CHECKING:
    from timeball.domain.values.wording import Duration
    from timeball.sdk.enqueue import EnqueueClient

_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class InlineStep:
    """A call that is to be made now, and the end that it follows."""

    call: Mapping[str, Any]
    cause: CauseRecord | None


# Yields each call in its turn, and is sent its end; returns the end of the whole.
Steps = Generator[InlineStep, CauseRecord, CauseRecord]


def steps_of(work: Mapping[str, Any], cause: CauseRecord | None, new_id: Callable[[], UUID]) -> Steps:
    """The calls of a stored call, chain or group, in the order in which they are made."""
    if "chain" in work:
        return (yield from _steps_of_chain(work, cause, new_id))
    if "group" in work:
        return (yield from _steps_of_group(work, cause, new_id))
    return (yield InlineStep(work, cause))


def _steps_of_chain(work: Mapping[str, Any], cause: CauseRecord | None, new_id: Callable[[], UUID]) -> Steps:
    end = cause
    for step in work["chain"]:
        end = yield from steps_of(step, end, new_id)
        if end.state != GroupState.SUCCEEDED:
            if "on_failure" in work:
                yield from steps_of(work["on_failure"], end, new_id)
            break
    assert end is not None
    return end


def _steps_of_group(work: Mapping[str, Any], cause: CauseRecord | None, new_id: Callable[[], UUID]) -> Steps:
    ends = []
    for part in work["group"]:
        ends.append((yield from steps_of(part, cause, new_id)))
    end = end_of_group(ends, new_id())
    if end.state == GroupState.SUCCEEDED:
        return (yield from steps_of(work["then"], end, new_id)) if "then" in work else end
    if "on_failure" in work:
        yield from steps_of(work["on_failure"], end, new_id)
    return end


def end_of_group(ends: Sequence[CauseRecord], group_id: UUID) -> CauseRecord:
    """How a group ended whose parts ended so."""
    failed = [(number, end) for number, end in enumerate(ends, 1) if end.state != GroupState.SUCCEEDED]
    if failed:
        named = "; ".join(f"part {number}: {end.error or end.state}" for number, end in failed[:_MOST_NAMED])
        error = f"{len(failed)} of {len(ends)} failed; {named}"
        return CauseRecord(id=group_id, state=GroupState.FAILED, result=None, error=error, is_group=True)
    results = orjson.dumps([orjson.loads(end.result or "null") for end in ends]).decode()
    return CauseRecord(id=group_id, state=GroupState.SUCCEEDED, result=results, error=None, is_group=True)


class InlineGroupRun(GroupRun):
    """A group or chain that was made inline: it has ended when `enqueue` returns it."""

    def __init__(
        self,
        client: EnqueueClient,
        group_id: UUID,
        parts: Sequence[CauseRecord],
        began_at: datetime,
        ended_at: datetime,
    ) -> None:
        super().__init__(client, group_id)
        self._end = end_of_group(parts, group_id)
        failed = sum(part.state != GroupState.SUCCEEDED for part in parts)
        self._final_status = GroupStatus(
            id=group_id,
            state=GroupState.FAILED if failed else GroupState.SUCCEEDED,
            total=len(parts),
            succeeded=len(parts) - failed,
            failed=failed,
            created_at=began_at,
            closed_at=ended_at,
        )

    def status(self) -> GroupStatus:
        return self._final_status

    async def astatus(self) -> GroupStatus:
        return self._final_status

    def results(self, timeout: Duration | None = None) -> list[Any]:
        if self._end.result is None:
            raise ExecutionFailed(self.id, self._final_status.state.value, self._end.error)
        results: list[Any] = orjson.loads(self._end.result)
        return results

    async def aresults(self, timeout: Duration | None = None) -> list[Any]:
        return self.results()

    def cancel(self, reason: str | None = None) -> int:
        """0: everything has ended."""
        return 0

    async def acancel(self, reason: str | None = None) -> int:
        return 0
