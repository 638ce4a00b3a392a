"""Wake-ups: the NOTIFY payload that spares nodes a poll, and the election of the workers that answer one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, TypeVar
from uuid import UUID

import orjson

from timeball.domain.values.ids import Incarnation

# Hints: what one node tells the others so that they need not wait for their next poll. Losing one costs time, never work.

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


# PostgreSQL takes 8,000 bytes; past this a hint says only that there is something.
_MAX_PAYLOAD_BYTES = 7_000


# So many executions, or nobody knows how many: all workers are to look.
MANY = 10_000

Lane = tuple[str, int]
T = TypeVar("T")


class LanePosition(NamedTuple):
    """A place in a lane: by instant and, among those that share one, by id, so that a crowd can be read in parts."""

    run_at: datetime
    id: UUID = UUID(int=0)


@dataclass(slots=True)
class Wakeup:
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
    nonce: int = 0

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
            earliest = self.lanes.get(lane)
            self.lanes[lane] = run_at if earliest is None else min(earliest, run_at)

    def add_shard(self, shard: int, run_at: datetime) -> None:
        """Something of this shard falls due, from *run_at* on."""
        earliest = self.shards.get(shard)
        self.shards[shard] = run_at if earliest is None else min(earliest, run_at)

    def add_holders(self, holders: Iterable[UUID]) -> None:
        """These workers hold something that is to stop."""
        self.holders.update(holders)

    def merge(self, other: Wakeup) -> None:
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
            "t": self.nonce,
            "n": self.nodes_changed,
            "e": self.look_everywhere,
        }
        text = orjson.dumps({key: value for key, value in document.items() if value}).decode()
        return text if len(text.encode()) <= _MAX_PAYLOAD_BYTES else '{"e":true,"n":true}'

    @classmethod
    def decode(cls, text: str) -> Wakeup:
        """Read a bundle. Anything unreadable, from an older or newer release perhaps, means "look everywhere"."""
        try:
            document = orjson.loads(text)
            wakeup = cls(nodes_changed=bool(document.get("n")), look_everywhere=bool(document.get("e")))
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
    """What a statement would choke on must not get any further: whoever may connect may send hints."""
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"expected {kind.__name__}")
    return value


def _to_number(instant: datetime) -> int:
    return (instant - _EPOCH) // _MICROSECOND


def _to_instant(number: int) -> datetime:
    return _EPOCH + number * _MICROSECOND


# Whose turn it is to look at a hint, so that one execution does not bring every worker to the database.
#
# Workers that serve the same queues and know the same handlers can stand in for each other: they are peers. A hint's lot
# draws those of them who look at once, no more than have the slots for what is announced; another lot draws others, so
# that the work is spread. Everybody else has a place in line behind them, to look whether something was left: those who
# were drawn may be dead or full, and nobody can know. That line is the same for all hints, so that one late look of
# the first in it serves all hints that came meanwhile.
#
# Nothing here is more than a courtesy. Where peers disagree on who is alive, two look at once, or the next in line does.

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
    """The turns of one worker among its peers, itself included. Who knows of no others looks at everything at once."""

    def __init__(self, own: Incarnation, peers: Iterable[PeerWorker] = ()) -> None:
        self._line = sorted(peers, key=lambda peer: (peer.is_full, peer.incarnation.bytes))
        # A lot is drawn for each of them with every hint: their numbers are at hand.
        self._numbers = [peer.incarnation.int for peer in self._line]
        self._free = sum(not peer.is_full for peer in self._line)
        self._place = next((place for place, peer in enumerate(self._line) if peer.incarnation == own), None)

    def of(self, wakeup: Wakeup) -> int:
        """`FIRST_TURN`, or the place in the line of those who look later."""
        if self._place is None or wakeup.executions >= MANY:
            return ELECTED
        drawn = self._drawn(wakeup.nonce, wakeup.executions)
        if self._place in drawn:
            return ELECTED
        return 1 + sum(place not in drawn for place in range(self._place))

    def _drawn(self, nonce: int, executions: int) -> set[int]:
        """The places of those who look at once: full ones only if all others are too few."""
        drawn: set[int] = set()
        room = 0
        for place in sorted(range(len(self._line)), key=lambda place: self._weight(nonce, place)):
            drawn.add(place)
            room += self._line[place].slots
            if room >= executions:
                break
        return drawn

    def _weight(self, nonce: int, place: int) -> tuple[bool, int]:
        return place >= self._free, _mixed(nonce, self._numbers[place])


def _mixed(nonce: int, number: int) -> int:
    """As good as chance, and the same in every process: cheaper by far than a digest, of which a hint would need one for each peer."""
    return ((nonce * 0x9E3779B97F4A7C15 ^ number) * 0xBF58476D1CE4E5B9 >> 29) & 0xFFFFFFFF
