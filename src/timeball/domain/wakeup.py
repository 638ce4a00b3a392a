"""Wake-ups: the NOTIFY payload that spares nodes a poll, and the election of the workers that answer one.

A lost wake-up costs time, never work: nodes poll behind them.

The election lets few workers look at a wake-up, so that one execution does not bring every worker to the database. Workers
that serve the same queues and know the same handlers are peers. The nonce of a wake-up elects those peers that look at
once, no more than have the slots for what it announces; another nonce elects others, which spreads the work. Every other
peer has a place in the line of backstops behind them and looks later, because an elected worker may be dead or full. That
line is the same for all wake-ups, so that one late look of its first member serves all wake-ups that came meanwhile.

The election is an optimisation only. Where peers disagree on which workers are alive, two look at once, or a backstop does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, TypeVar
from uuid import UUID

import orjson

from timeball.domain.values.ids import Incarnation

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
# PostgreSQL allows 8,000 bytes; a larger wake-up says only that there is something.
_MAX_PAYLOAD_BYTES = 7_000
# This many executions or more, or an unknown number: every worker looks.
MANY = 10_000

Lane = tuple[str, int]
T = TypeVar("T")


class LanePosition(NamedTuple):
    """A position in a lane: by instant, then by id, so that many executions of one instant can be read in parts."""

    run_at: datetime
    id: UUID = UUID(int=0)


@dataclass(slots=True)
class Wakeup:
    """Lanes with ready executions, shards with due rows, workers that hold something to stop, and a change of the nodes or the webhooks.

    *executions* is the number of ready executions in the lanes; *named* is their id, if there is only one. The sender
    draws the *nonce*, which elects the workers that look first.
    """

    lanes: dict[Lane, datetime] = field(default_factory=dict)
    shards: dict[int, datetime] = field(default_factory=dict)
    holders: set[UUID] = field(default_factory=set)
    nodes_changed: bool = False
    webhooks_changed: bool = False
    look_everywhere: bool = False
    executions: int = MANY
    named: UUID | None = None
    nonce: int = 0

    def __bool__(self) -> bool:
        has_work = self.lanes or self.shards or self.holders
        return bool(has_work or self.nodes_changed or self.webhooks_changed or self.look_everywhere)

    def add_lane(
        self, queue: str, priority: int, run_at: datetime, executions: int = MANY, named: UUID | None = None
    ) -> None:
        """Announce ready executions of a lane from *run_at* on; *named* is the id, if there is only one."""
        self._add_lanes({(queue, priority): run_at}, executions, named)

    def _add_lanes(self, lanes: Mapping[Lane, datetime], executions: int, named: UUID | None) -> None:
        if lanes:
            self.named = None if self.lanes else named
            self.executions = min(self.executions + executions, MANY) if self.lanes else executions
        for lane, run_at in lanes.items():
            earliest = self.lanes.get(lane)
            self.lanes[lane] = run_at if earliest is None else min(earliest, run_at)

    def add_shard(self, shard: int, run_at: datetime) -> None:
        """Announce due rows of a shard from *run_at* on."""
        earliest = self.shards.get(shard)
        self.shards[shard] = run_at if earliest is None else min(earliest, run_at)

    def add_holders(self, holders: Iterable[UUID]) -> None:
        """Announce that these workers hold executions that are to stop."""
        self.holders.update(holders)

    def merge(self, other: Wakeup) -> None:
        """Add everything that another wake-up announces."""
        self._add_lanes(other.lanes, other.executions, other.named)
        for shard, run_at in other.shards.items():
            self.add_shard(shard, run_at)
        self.holders |= other.holders
        self.nodes_changed |= other.nodes_changed
        self.webhooks_changed |= other.webhooks_changed
        self.look_everywhere |= other.look_everywhere

    def encode(self) -> str:
        """The payload; a wake-up that is too large says "look everywhere"."""
        document = {
            "l": [[queue, priority, _to_number(run_at)] for (queue, priority), run_at in self.lanes.items()],
            "s": [[shard, _to_number(run_at)] for shard, run_at in self.shards.items()],
            "h": [holder.hex for holder in self.holders],
            "c": self.executions if self.lanes and self.executions < MANY else None,
            "i": self.named.hex if self.named is not None else None,
            "t": self.nonce,
            "n": self.nodes_changed,
            "w": self.webhooks_changed,
            "e": self.look_everywhere,
        }
        text = orjson.dumps({key: value for key, value in document.items() if value}).decode()
        return text if len(text.encode()) <= _MAX_PAYLOAD_BYTES else '{"e":true,"n":true}'

    @classmethod
    def decode(cls, text: str) -> Wakeup:
        """Read a payload. One that cannot be read, perhaps from another release, means "look everywhere"."""
        try:
            document = orjson.loads(text)
            wakeup = cls(
                nodes_changed=bool(document.get("n")),
                webhooks_changed=bool(document.get("w")),
                look_everywhere=bool(document.get("e")),
            )
            for queue, priority, number in document.get("l", ()):
                wakeup.add_lane(_expect(queue, str), _expect(priority, int), _to_instant(number))
            wakeup.executions = min(_expect(document.get("c", MANY), int), MANY)
            wakeup.named = UUID(hex=document["i"]) if "i" in document else None
            wakeup.nonce = _expect(document.get("t", 0), int)
            for shard, number in document.get("s", ()):
                wakeup.add_shard(_expect(shard, int), _to_instant(number))
            wakeup.holders = {UUID(hex=holder) for holder in document.get("h", ())}
        except (ValueError, TypeError, AttributeError, OverflowError):
            return cls(look_everywhere=True)
        return wakeup


def _expect(value: object, kind: type[T]) -> T:
    """Refuses a value of another type: any program that can connect can send wake-ups, and a statement would fail on it."""
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"expected {kind.__name__}")
    return value


def _to_number(instant: datetime) -> int:
    return (instant - _EPOCH) // _MICROSECOND


def _to_instant(number: int) -> datetime:
    return _EPOCH + number * _MICROSECOND


ELECTED = 0


@dataclass(frozen=True, slots=True)
class PeerWorker:
    """A worker as its peers know it, by its last renewal."""

    incarnation: Incarnation
    slots: int
    busy: int

    @property
    def is_full(self) -> bool:
        """Whether it had no slot left."""
        return self.busy >= self.slots


class WakeupElection:
    """The election among a worker and its peers. A worker that knows no peers looks at everything at once."""

    def __init__(self, incarnation: Incarnation, peers: Iterable[PeerWorker] = ()) -> None:
        self._line = sorted(peers, key=lambda peer: (peer.is_full, peer.incarnation.bytes))
        # Each wake-up weighs every peer, so their numbers are prepared.
        self._numbers = [peer.incarnation.int for peer in self._line]
        self._free = sum(not peer.is_full for peer in self._line)
        self._place = next((place for place, peer in enumerate(self._line) if peer.incarnation == incarnation), None)

    def of(self, wakeup: Wakeup) -> int:
        """`ELECTED`, or the place in the line of backstops."""
        if self._place is None or wakeup.executions >= MANY:
            return ELECTED
        elected = self._elected(wakeup.nonce, wakeup.executions)
        if self._place in elected:
            return ELECTED
        return 1 + sum(place not in elected for place in range(self._place))

    def _elected(self, nonce: int, executions: int) -> set[int]:
        """The places of the elected peers; full peers are elected only if the others have too few slots."""
        elected: set[int] = set()
        slots = 0
        for place in sorted(range(len(self._line)), key=lambda place: self._weight(nonce, place)):
            elected.add(place)
            slots += self._line[place].slots
            if slots >= executions:
                break
        return elected

    def _weight(self, nonce: int, place: int) -> tuple[bool, int]:
        return place >= self._free, _mixed(nonce, self._numbers[place])


def _mixed(nonce: int, number: int) -> int:
    """A pseudo-random number that is the same in every process, and far cheaper than a digest for each peer."""
    return ((nonce * 0x9E3779B97F4A7C15 ^ number) * 0xBF58476D1CE4E5B9 >> 29) & 0xFFFFFFFF
