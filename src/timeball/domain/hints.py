"""Hints: what one node tells the others so that they need not wait for their next poll. Losing one costs time, never work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, TypeVar
from uuid import UUID

import orjson

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
# PostgreSQL takes 8,000 bytes; past this a hint says only that there is something.
_LARGEST = 7_000
# So many executions, or nobody knows how many: all workers are to look.
MANY = 10_000

Lane = tuple[str, int]
T = TypeVar("T")


class Mark(NamedTuple):
    """A place in a lane: by instant and, among those that share one, by id, so that a crowd can be read in parts."""

    run_at: datetime
    id: UUID = UUID(int=0)


@dataclass(slots=True)
class Hints:
    """A bundle: lanes with something ready, shards with something due, holders with something to stop, a change among the nodes.

    *executions* says how many are ready in the lanes, and *named* which one, where it is one alone. The *lot* is drawn by who sends the
    bundle, and decides who looks first.
    """

    lanes: dict[Lane, datetime] = field(default_factory=dict)
    shards: dict[int, datetime] = field(default_factory=dict)
    holders: set[UUID] = field(default_factory=set)
    nodes_changed: bool = False
    look_everywhere: bool = False
    executions: int = MANY
    named: UUID | None = None
    lot: int = 0

    def __bool__(self) -> bool:
        return bool(self.lanes or self.shards or self.holders or self.nodes_changed or self.look_everywhere)

    def add_lane(
        self, queue: str, priority: int, run_at: datetime, executions: int = MANY, named: UUID | None = None
    ) -> None:
        """So many executions of this lane are ready, from *run_at* on; *named* is the one, where it is one alone."""
        self._add_lanes({(queue, priority): run_at}, executions, named)

    def _add_lanes(self, lanes: Mapping[Lane, datetime], executions: int, named: UUID | None) -> None:
        if lanes:
            self.named = None if self.lanes else named
            self.executions = min(self.executions + executions, MANY) if self.lanes else executions
        for lane, run_at in lanes.items():
            known = self.lanes.get(lane)
            self.lanes[lane] = run_at if known is None else min(known, run_at)

    def add_shard(self, shard: int, run_at: datetime) -> None:
        """Something of this shard falls due, from *run_at* on."""
        known = self.shards.get(shard)
        self.shards[shard] = run_at if known is None else min(known, run_at)

    def add_holders(self, holders: Iterable[UUID]) -> None:
        """These workers hold something that is to stop."""
        self.holders.update(holders)

    def merge(self, other: Hints) -> None:
        """Take another bundle in."""
        self._add_lanes(other.lanes, other.executions, other.named)
        for shard, run_at in other.shards.items():
            self.add_shard(shard, run_at)
        self.holders |= other.holders
        self.nodes_changed |= other.nodes_changed
        self.look_everywhere |= other.look_everywhere

    def encode(self) -> str:
        """The bundle as one line of text; too large a one says "look everywhere"."""
        document = {
            "l": [[queue, priority, _to_number(run_at)] for (queue, priority), run_at in self.lanes.items()],
            "s": [[shard, _to_number(run_at)] for shard, run_at in self.shards.items()],
            "h": [holder.hex for holder in self.holders],
            "c": self.executions if self.lanes and self.executions < MANY else None,
            "i": self.named.hex if self.named is not None else None,
            "t": self.lot,
            "n": self.nodes_changed,
            "e": self.look_everywhere,
        }
        text = orjson.dumps({key: value for key, value in document.items() if value}).decode()
        return text if len(text.encode()) <= _LARGEST else '{"e":true,"n":true}'

    @classmethod
    def decode(cls, text: str) -> Hints:
        """Read a bundle. Anything unreadable, from an older or newer release perhaps, means "look everywhere"."""
        try:
            document = orjson.loads(text)
            hints = cls(nodes_changed=bool(document.get("n")), look_everywhere=bool(document.get("e")))
            for queue, priority, number in document.get("l", ()):
                hints.add_lane(_expect(queue, str), _expect(priority, int), _to_instant(number))
            hints.executions = min(_expect(document.get("c", MANY), int), MANY)
            hints.named = UUID(hex=document["i"]) if "i" in document else None
            hints.lot = _expect(document.get("t", 0), int)
            for shard, number in document.get("s", ()):
                hints.add_shard(_expect(shard, int), _to_instant(number))
            hints.holders = {UUID(hex=holder) for holder in document.get("h", ())}
        except (ValueError, TypeError, AttributeError, OverflowError):
            return cls(look_everywhere=True)
        return hints


def _expect(value: object, kind: type[T]) -> T:
    """What a statement would choke on must not get any further: whoever may connect may send hints."""
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"expected {kind.__name__}")
    return value


def _to_number(instant: datetime) -> int:
    return (instant - _EPOCH) // _MICROSECOND


def _to_instant(number: int) -> datetime:
    return _EPOCH + number * _MICROSECOND
