"""Leases, and each scheduler's fair share of the shards."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from hashlib import sha256
from random import Random
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from timeball.domain.node import Lease, fair_share
from timeball.domain.values.ids import Incarnation
from timeball.errors import SettingsError

shard_counts = st.integers(1, 128)
node_sets = st.sets(st.uuids().map(Incarnation), min_size=1, max_size=12)


def node(*parts: int) -> Incarnation:
    return Incarnation(UUID(bytes=sha256(repr(parts).encode()).digest()[:16]))


def test_a_lease_outlives_three_renewals() -> None:
    Lease(span=timedelta(seconds=9), interval=timedelta(seconds=3))

    with pytest.raises(SettingsError, match="shorter than three renewal intervals"):
        Lease(span=timedelta(seconds=9) - timedelta(microseconds=1), interval=timedelta(seconds=3))


@given(shard_counts, node_sets)
@settings(deadline=None)
def test_every_shard_has_one_owner_and_the_shares_differ_by_one_at_most(shards: int, nodes: set[Incarnation]) -> None:
    share = fair_share(range(shards), nodes)

    assert share.keys() == set(range(shards))
    sizes = Counter(share.values())
    assert sizes.keys() <= nodes
    assert max(sizes.values()) - min(sizes.get(node, 0) for node in nodes) <= 1


@given(shard_counts, st.lists(st.uuids().map(Incarnation), min_size=1, max_size=8, unique=True), st.randoms())
@settings(deadline=None)
def test_every_node_computes_the_same_shares_in_any_order(
    shards: int, nodes: list[Incarnation], chance: Random
) -> None:
    shuffled = list(nodes)
    chance.shuffle(shuffled)

    assert fair_share(reversed(range(shards)), shuffled) == fair_share(range(shards), nodes)


@given(st.lists(st.uuids().map(Incarnation), min_size=2, max_size=8, unique=True))
@settings(deadline=None)
def test_few_shards_move_when_a_node_leaves(nodes: list[Incarnation]) -> None:
    leaver, *stayers = nodes
    before, after = fair_share(range(64), nodes), fair_share(range(64), stayers)

    moved = [shard for shard in before if before[shard] != leaver and before[shard] != after[shard]]

    # All of the leaver's move, of course; of the others' only what evens the shares out.
    assert len(moved) <= 24


def test_few_other_shards_move_on_average() -> None:
    moved = 0
    for round_number in range(100):
        leaver, *stayers = (node(round_number, number) for number in range(4))
        before, after = fair_share(range(64), [leaver, *stayers]), fair_share(range(64), stayers)
        moved += sum(before[shard] != leaver and before[shard] != after[shard] for shard in before)

    assert moved / 100 < 5


def test_without_nodes_no_shard_has_an_owner() -> None:
    assert fair_share(range(64), []) == {}


def test_a_single_node_owns_everything() -> None:
    only = node(1)

    assert fair_share(range(64), [only]) == dict.fromkeys(range(64), only)
