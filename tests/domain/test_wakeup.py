"""Wake-ups decode as they were encoded, are never too long, and nonsense only makes a node look everywhere."""

from __future__ import annotations

from datetime import UTC, timedelta
from uuid import UUID

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.domain.scheduling.oracle import utc, wall
from timeball.domain.wakeup import MANY, Wakeup

NOW = utc(2026, 3, 2, 12)

instants = st.datetimes(wall(1970, 1, 1), wall(2199, 12, 31), timezones=st.just(UTC))
labels = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=200)
lanes = st.dictionaries(st.tuples(labels, st.integers(0, 100)), instants, max_size=15)
bundles = st.builds(
    Wakeup,
    lanes=lanes,
    shards=st.dictionaries(st.integers(0, 1023), instants, max_size=15),
    holders=st.sets(st.uuids(), max_size=15),
    nodes_changed=st.booleans(),
    look_everywhere=st.booleans(),
    named=st.none() | st.uuids(),
    nonce=st.integers(0, 2**63 - 1),
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("lshnecti"), inner, max_size=5),
    max_leaves=12,
)


@given(bundles)
@settings(deadline=None)
def test_a_wakeup_decodes_as_it_was_encoded_or_says_look_everywhere(told: Wakeup) -> None:
    text = told.encode()

    heard = Wakeup.decode(text)

    assert len(text.encode()) < 8_000  # what a NOTIFY takes
    if heard != told:
        assert heard == Wakeup(look_everywhere=True, nodes_changed=True)
        assert len(told.lanes) + len(told.shards) + len(told.holders) > 5


def test_a_wakeup_that_is_too_large_says_look_everywhere() -> None:
    told = Wakeup(shards=dict.fromkeys(range(1_000), NOW))

    assert Wakeup.decode(told.encode()) == Wakeup(look_everywhere=True, nodes_changed=True)


def test_an_ordinary_wakeup_is_short() -> None:
    told = Wakeup()
    told.add_lane("default", 50, NOW)

    assert len(told.encode()) < 50


def test_merged_wakeups_add_their_numbers() -> None:
    told, other = Wakeup(), Wakeup()
    told.add_lane("default", 50, NOW, 1)
    told.add_lane("default", 50, NOW, 2)
    other.add_lane("mail", 50, NOW, 3)
    told.merge(other)
    told.merge(Wakeup(nodes_changed=True))

    assert told.executions == 6
    assert Wakeup.decode(told.encode()) == told


def test_a_wakeup_names_an_execution_only_if_there_is_one() -> None:
    one, other, nobody = Wakeup(), Wakeup(), Wakeup(nodes_changed=True)
    one.add_lane("default", 50, NOW, 1, UUID(int=1))
    other.add_lane("default", 50, NOW, 1, UUID(int=2))

    for first, then, named in ((one, nobody, UUID(int=1)), (nobody, one, UUID(int=1)), (one, other, None)):
        together = Wakeup()
        together.merge(first)
        together.merge(then)
        assert Wakeup.decode(together.encode()).named == named


def test_an_unknown_number_counts_as_many() -> None:
    """Older releases send no number, and released executions are not counted: every worker looks."""
    told, counted = Wakeup(), Wakeup()
    told.add_lane("default", 50, NOW)
    counted.add_lane("default", 50, NOW, 1)

    assert Wakeup.decode('{"l":[["default",50,1]]}').executions == MANY
    for first, then in ((told, counted), (counted, told)):
        together = Wakeup()
        together.merge(first)
        together.merge(then)
        assert Wakeup.decode(together.encode()).executions == MANY


@given(st.text())
@settings(deadline=None)
def test_any_text_can_be_decoded(text: str) -> None:
    assert isinstance(Wakeup.decode(text), Wakeup)


@given(json_values)
@settings(deadline=None)
def test_any_json_decodes_to_a_valid_wakeup(value: object) -> None:
    heard = Wakeup.decode(orjson.dumps(value).decode())

    assert type(heard.executions) is int
    assert type(heard.nonce) is int
    assert heard.named is None or type(heard.named) is UUID
    assert all(type(queue) is str and type(priority) is int for queue, priority in heard.lanes)
    assert all(type(shard) is int for shard in heard.shards)
    assert all(type(holder) is UUID for holder in heard.holders)
    assert all(at.tzinfo is UTC for at in (*heard.lanes.values(), *heard.shards.values()))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        "[]",
        "7",
        '{"l": 3}',
        '{"l": [["default", 50]]}',
        '{"l": [["default", "high", 1772452800000000]]}',
        '{"l": [[null, 50, 1772452800000000]]}',
        '{"l": [["default", 50, 1e300]]}',
        '{"s": [["one", 1772452800000000]]}',
        '{"s": [[1, 9223372036854775807]]}',
        '{"h": ["nobody"]}',
        '{"h": [7]}',
    ],
)
def test_an_unreadable_wakeup_means_look_everywhere(text: str) -> None:
    heard = Wakeup.decode(text)

    assert heard == Wakeup(look_everywhere=True)


@given(bundles, bundles)
@settings(deadline=None)
def test_merging_keeps_the_earliest_instant_of_each(one: Wakeup, other: Wakeup) -> None:
    merged = Wakeup()
    merged.merge(one)
    merged.merge(other)

    assert merged.lanes.keys() == one.lanes.keys() | other.lanes.keys()
    for lane, at in merged.lanes.items():
        assert at == min(wakeup.lanes[lane] for wakeup in (one, other) if lane in wakeup.lanes)
    for shard, at in merged.shards.items():
        assert at == min(wakeup.shards[shard] for wakeup in (one, other) if shard in wakeup.shards)
    assert merged.holders == one.holders | other.holders
    assert merged.look_everywhere == (one.look_everywhere or other.look_everywhere)
    assert merged.nodes_changed == (one.nodes_changed or other.nodes_changed)


def test_a_later_wakeup_does_not_hide_an_earlier_one() -> None:
    wakeup = Wakeup()
    wakeup.add_lane("mail", 50, NOW)
    wakeup.add_lane("mail", 50, NOW + timedelta(seconds=5))
    wakeup.add_shard(3, NOW + timedelta(seconds=5))
    wakeup.add_shard(3, NOW)

    assert (wakeup.lanes, wakeup.shards) == ({("mail", 50): NOW}, {3: NOW})


@pytest.mark.parametrize(
    "wakeup",
    [
        Wakeup(lanes={("a", 1): NOW}),
        Wakeup(shards={1: NOW}),
        Wakeup(holders={UUID(int=1)}),
        Wakeup(nodes_changed=True),
        Wakeup(look_everywhere=True),
    ],
)
def test_a_wakeup_with_content_is_truthy(wakeup: Wakeup) -> None:
    assert wakeup
    assert not Wakeup()
