"""Whose turn it is to look at a hint, so that one execution does not bring every worker to the database.

Workers that serve the same queues and know the same handlers can stand in for each other: they are peers. A hint's lot
draws those of them who look at once, no more than have the slots for what is announced; another lot draws others, so
that the work is spread. Everybody else has a place in line behind them, to look whether something was left: those who
were drawn may be dead or full, and nobody can know. That line is the same for all hints, so that one late look of
the first in it serves all hints that came meanwhile.

Nothing here is more than a courtesy. Where peers disagree on who is alive, two look at once, or the next in line does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from timeball.domain.hints import MANY, Hints
from timeball.domain.ids import Incarnation

FIRST_TURN = 0


@dataclass(frozen=True, slots=True)
class Peer:
    """A worker as its peers know it, by its last renewal."""

    incarnation: Incarnation
    slots: int
    busy: int

    @property
    def is_full(self) -> bool:
        """Whether it had no slot left."""
        return self.busy >= self.slots


class Turns:
    """The turns of one worker among its peers, itself included. Who knows of no others looks at everything at once."""

    def __init__(self, own: Incarnation, peers: Iterable[Peer] = ()) -> None:
        self._line = sorted(peers, key=lambda peer: (peer.is_full, peer.incarnation.bytes))
        # A lot is drawn for each of them with every hint: their numbers are at hand.
        self._numbers = [peer.incarnation.int for peer in self._line]
        self._free = sum(not peer.is_full for peer in self._line)
        self._place = next((place for place, peer in enumerate(self._line) if peer.incarnation == own), None)

    def of(self, hints: Hints) -> int:
        """`FIRST_TURN`, or the place in the line of those who look later."""
        if self._place is None or hints.executions >= MANY:
            return FIRST_TURN
        drawn = self._drawn(hints.lot, hints.executions)
        if self._place in drawn:
            return FIRST_TURN
        return 1 + sum(place not in drawn for place in range(self._place))

    def _drawn(self, lot: int, executions: int) -> set[int]:
        """The places of those who look at once: full ones only if all others are too few."""
        drawn: set[int] = set()
        room = 0
        for place in sorted(range(len(self._line)), key=lambda place: self._weight(lot, place)):
            drawn.add(place)
            room += self._line[place].slots
            if room >= executions:
                break
        return drawn

    def _weight(self, lot: int, place: int) -> tuple[bool, int]:
        return place >= self._free, _mixed(lot, self._numbers[place])


def _mixed(lot: int, number: int) -> int:
    """As good as chance, and the same in every process: cheaper by far than a digest, of which a hint would need one for each peer."""
    return ((lot * 0x9E3779B97F4A7C15 ^ number) * 0xBF58476D1CE4E5B9 >> 29) & 0xFFFFFFFF
