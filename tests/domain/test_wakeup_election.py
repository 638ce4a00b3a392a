"""The election elects one of the peers, another each time; the others are backstops in line."""

from __future__ import annotations

import random
from collections import Counter
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timeball.domain.values.ids import Incarnation
from timeball.domain.wakeup import ELECTED, MANY, PeerWorker, Wakeup, WakeupElection

incarnations = st.lists(st.uuids(), min_size=1, max_size=12, unique=True)


def peers_of(ids: list[UUID], slots: int = 20, busy: int = 0) -> list[PeerWorker]:
    return [PeerWorker(Incarnation(id_), slots, busy) for id_ in ids]


def team(number: int, slots: int = 20) -> list[PeerWorker]:
    return peers_of(
        [UUID(int=(place + 1) * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128) for place in range(number)], slots
    )


def turns_of(peers: list[PeerWorker], wakeup: Wakeup) -> list[int]:
    return [WakeupElection(peer.incarnation, peers).of(wakeup) for peer in peers]


@given(incarnations, st.integers())
def test_one_peer_is_elected_and_the_others_are_backstops(ids: list[UUID], nonce: int) -> None:
    turns = turns_of(peers_of(ids), Wakeup(executions=1, nonce=nonce))

    assert sorted(turns) == list(range(len(ids)))


@pytest.mark.parametrize(("seed", "microseconds"), [(0, 10_007), (2, 2**20), (3, 1)])
def test_nonces_spread_the_work(seed: int, microseconds: int) -> None:
    """For any names of workers and any rhythm of wake-ups: their nonces are instants."""
    chance, number = random.Random(seed), 2_000
    peers = peers_of([UUID(int=chance.getrandbits(128)) for _ in range(8)])
    turns = [WakeupElection(peer.incarnation, peers) for peer in peers]

    called: Counter[int] = Counter()
    for place in range(number):
        wakeup = Wakeup(executions=1, nonce=1_790_000_000_000_000 + place * microseconds)
        called.update(index for index, turn in enumerate(turns) if turn.of(wakeup) == ELECTED)

    assert called.total() == number
    assert max(called.values()) <= 1.3 * number / 8
    assert min(called.values()) >= 0.7 * number / 8


def test_the_order_of_backstops_is_the_same_for_all_wakeups() -> None:
    """One late look of the first backstop serves all wake-ups."""
    peers = team(6)
    in_line = sorted(range(6), key=lambda place: peers[place].incarnation.bytes)

    for nonce in range(0, 1_000_000, 10_007):
        turns = turns_of(peers, Wakeup(executions=1, nonce=nonce))
        first, *line = sorted(range(6), key=turns.__getitem__)
        assert line == [place for place in in_line if place != first]


@pytest.mark.parametrize(("executions", "called"), [(1, 1), (20, 1), (21, 2), (60, 3), (90, 5), (1_000, 5), (MANY, 5)])
def test_as_many_peers_are_elected_as_have_the_slots(executions: int, called: int) -> None:
    turns = turns_of(team(5), Wakeup(executions=executions, nonce=7))

    assert turns.count(ELECTED) == called


def test_every_worker_looks_at_an_uncounted_wakeup() -> None:
    turns = turns_of(team(3, slots=2 * MANY), Wakeup(executions=MANY, nonce=7))

    assert turns == [ELECTED] * 3


def test_full_workers_are_elected_last() -> None:
    peers = [
        *peers_of([peer.incarnation for peer in team(4)], busy=20),
        PeerWorker(Incarnation(UUID(int=2**127)), 20, 19),
    ]

    for nonce in range(0, 1_000_000, 10_007):
        assert turns_of(peers, Wakeup(executions=1, nonce=nonce))[-1] == ELECTED


def test_a_worker_without_peers_is_elected() -> None:
    alone = Incarnation(UUID(int=1))

    assert WakeupElection(alone).of(Wakeup(executions=1, nonce=3)) == ELECTED
    assert WakeupElection(alone, team(3)).of(Wakeup(executions=1, nonce=3)) == ELECTED, "it is not among those"


def test_an_unknown_peer_affects_only_its_own_wakeups() -> None:
    everybody = team(5)
    known, gone = everybody[:4], everybody[4]

    for nonce in range(0, 1_000_000, 10_007):
        wakeup = Wakeup(executions=1, nonce=nonce)
        if WakeupElection(gone.incarnation, everybody).of(wakeup) != ELECTED:
            before = [WakeupElection(peer.incarnation, everybody).of(wakeup) == ELECTED for peer in known]
            assert before == [WakeupElection(peer.incarnation, known).of(wakeup) == ELECTED for peer in known]
