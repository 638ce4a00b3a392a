"""Turns: of the peers one is called upon, another each time, and the others stand in line behind it."""

from __future__ import annotations

import random
from collections import Counter
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timeball.domain.hints import MANY, Hints
from timeball.domain.ids import Incarnation
from timeball.domain.turns import FIRST_TURN, Peer, Turns

incarnations = st.lists(st.uuids(), min_size=1, max_size=12, unique=True)


def peers_of(ids: list[UUID], slots: int = 20, busy: int = 0) -> list[Peer]:
    return [Peer(Incarnation(id_), slots, busy) for id_ in ids]


def team(number: int, slots: int = 20) -> list[Peer]:
    return peers_of(
        [UUID(int=(place + 1) * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128) for place in range(number)], slots
    )


def turns_of(peers: list[Peer], hints: Hints) -> list[int]:
    return [Turns(peer.incarnation, peers).of(hints) for peer in peers]


@given(incarnations, st.integers())
def test_one_looks_at_once_and_the_others_stand_in_line(ids: list[UUID], lot: int) -> None:
    turns = turns_of(peers_of(ids), Hints(executions=1, lot=lot))

    assert sorted(turns) == list(range(len(ids)))


@pytest.mark.parametrize(("seed", "microseconds"), [(0, 10_007), (2, 2**20), (3, 1)])
def test_the_lots_spread_the_work(seed: int, microseconds: int) -> None:
    """Whatever the workers are called, and in whatever rhythm the hints come: their lots are instants."""
    chance, number = random.Random(seed), 2_000
    peers = peers_of([UUID(int=chance.getrandbits(128)) for _ in range(8)])
    turns = [Turns(peer.incarnation, peers) for peer in peers]

    called: Counter[int] = Counter()
    for place in range(number):
        hints = Hints(executions=1, lot=1_790_000_000_000_000 + place * microseconds)
        called.update(index for index, turn in enumerate(turns) if turn.of(hints) == FIRST_TURN)

    assert called.total() == number
    assert max(called.values()) <= 1.3 * number / 8
    assert min(called.values()) >= 0.7 * number / 8


def test_the_line_is_the_same_for_all_hints() -> None:
    """So that one late look of its first serves all of them."""
    peers = team(6)
    in_line = sorted(range(6), key=lambda place: peers[place].incarnation.bytes)

    for lot in range(0, 1_000_000, 10_007):
        turns = turns_of(peers, Hints(executions=1, lot=lot))
        first, *line = sorted(range(6), key=turns.__getitem__)
        assert line == [place for place in in_line if place != first]


@pytest.mark.parametrize(("executions", "called"), [(1, 1), (20, 1), (21, 2), (60, 3), (90, 5), (1_000, 5), (MANY, 5)])
def test_as_many_are_called_as_have_the_slots(executions: int, called: int) -> None:
    turns = turns_of(team(5), Hints(executions=executions, lot=7))

    assert turns.count(FIRST_TURN) == called


def test_nobody_has_the_slots_for_what_nobody_has_counted() -> None:
    turns = turns_of(team(3, slots=2 * MANY), Hints(executions=MANY, lot=7))

    assert turns == [FIRST_TURN] * 3


def test_full_workers_are_called_last() -> None:
    peers = [*peers_of([peer.incarnation for peer in team(4)], busy=20), Peer(Incarnation(UUID(int=2**127)), 20, 19)]

    for lot in range(0, 1_000_000, 10_007):
        assert turns_of(peers, Hints(executions=1, lot=lot))[-1] == FIRST_TURN


def test_who_knows_of_nobody_looks_at_once() -> None:
    alone = Incarnation(UUID(int=1))

    assert Turns(alone).of(Hints(executions=1, lot=3)) == FIRST_TURN
    assert Turns(alone, team(3)).of(Hints(executions=1, lot=3)) == FIRST_TURN, "it is not among those"


def test_where_one_is_not_known_to_all_only_its_own_hints_are_in_doubt() -> None:
    everybody = team(5)
    known, gone = everybody[:4], everybody[4]

    for lot in range(0, 1_000_000, 10_007):
        hints = Hints(executions=1, lot=lot)
        if Turns(gone.incarnation, everybody).of(hints) != FIRST_TURN:
            before = [Turns(peer.incarnation, everybody).of(hints) == FIRST_TURN for peer in known]
            assert before == [Turns(peer.incarnation, known).of(hints) == FIRST_TURN for peer in known]
