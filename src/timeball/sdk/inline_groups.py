"""Chains and groups inline: their calls are made one after the other, and what follows them at once."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import orjson

from timeball.domain.follow_ups import GroupState
from timeball.domain.payload_references import CauseRecord

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
