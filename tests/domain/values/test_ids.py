"""Ids are ordered by time, readable, and derived ones are the same on every machine."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from random import Random
from uuid import RFC_4122, UUID, SafeUUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.domain.scheduling.oracle import utc, wall
from timeball.domain.values.ids import (
    format_execution_id,
    format_id,
    format_job_id,
    new_id,
    new_ids,
    occurrence_id,
    parse_id,
    shard_of,
)
from timeball.errors import InvalidInput

uuids = st.uuids()
instants = st.datetimes(wall(1970, 1, 1), wall(2199, 12, 31, 23, 59, 59), timezones=st.just(UTC))
milliseconds = st.integers(0, 2**48 - 1)
random_bits = st.integers(0, 2**74 - 1)
MILLISECOND = timedelta(milliseconds=1)


@given(milliseconds, milliseconds, random_bits, random_bits)
@settings(deadline=None)
def test_ids_made_later_sort_behind(one: int, other: int, bits: int, more_bits: int) -> None:
    earlier, later = sorted((one, other))

    if earlier < later:
        assert new_id(earlier, bits) < new_id(later, more_bits)


@given(milliseconds, random_bits)
@settings(deadline=None)
def test_a_new_id_is_a_uuid_of_version_7(moment: int, bits: int) -> None:
    made = new_id(moment, bits)

    assert (made.version, made.variant) == (7, "specified in RFC 4122")
    assert made.int >> 80 == moment


@given(milliseconds, st.lists(random_bits, unique=True, min_size=2, max_size=20))
@settings(deadline=None)
def test_every_random_bit_is_kept(moment: int, drawn: list[int]) -> None:
    assert len({new_id(moment, bits) for bits in drawn}) == len(drawn)


@given(milliseconds, st.integers(0, 2**73 - 1), st.lists(st.integers(0, 2**32 - 1), max_size=20))
@settings(deadline=None)
def test_many_new_ids_follow_each_other_within_their_moment(moment: int, start: int, gaps: list[int]) -> None:
    made = list(new_ids(moment, start, gaps))

    assert len(made) == len(gaps)
    assert all(one < other for one, other in pairwise(made))
    assert [(id_.version, id_.variant, id_.int >> 80) for id_ in made] == [(7, RFC_4122, moment)] * len(gaps)
    assert [(other.int - one.int) for one, other in pairwise(made)] == [gap + 1 for gap in gaps[1:]]
    assert pickle.loads(pickle.dumps(made)) == made
    assert all(id_.is_safe is SafeUUID.unknown for id_ in made)


def test_the_widest_gaps_stay_within_their_moment() -> None:
    """The sum of a hundred million gaps, as one gap."""
    (last,) = new_ids(1, 2**73 - 1, [100_000_000 * 2**32])

    assert (last.version, last.variant, last.int >> 64) == (7, RFC_4122, 0x1_7FFF)


@given(uuids, uuids, instants, instants)
@settings(deadline=None)
def test_ids_of_occurrences_sort_by_their_instants(job: UUID, other_job: UUID, one: datetime, other: datetime) -> None:
    earlier, later = sorted((one, other))

    if later - earlier >= MILLISECOND:
        assert occurrence_id(job, earlier) < occurrence_id(other_job, later)


@given(st.sets(st.tuples(uuids, instants), min_size=2, max_size=20))
@settings(deadline=None)
def test_occurrences_of_different_jobs_or_instants_have_different_ids(pairs: set[tuple[UUID, datetime]]) -> None:
    assert len({occurrence_id(job, instant) for job, instant in pairs}) == len(pairs)


def test_instants_a_microsecond_apart_have_different_ids() -> None:
    job, instant = UUID(int=7), utc(2026, 3, 2)

    made = {occurrence_id(job, instant + timedelta(microseconds=number)) for number in range(5_000)}

    assert len(made) == 5_000


@given(uuids, instants, milliseconds, random_bits)
@settings(deadline=None)
def test_a_derived_id_never_equals_a_random_one(job: UUID, instant: datetime, moment: int, bits: int) -> None:
    assert occurrence_id(job, instant) != new_id(moment, bits)


def test_two_machines_derive_the_same_id() -> None:
    program = (
        "from uuid import UUID; from datetime import datetime; from timeball.domain.values.ids import occurrence_id\n"
        "print(occurrence_id(UUID(int=2**100 + 5), datetime.fromisoformat('2026-03-29T03:30:00.000001+02:00')))"
    )
    elsewhere = os.environ | {"PYTHONHASHSEED": "77", "TZ": "Asia/Kathmandu"}

    there = subprocess.run([sys.executable, "-c", program], env=elsewhere, capture_output=True, text=True, check=True)

    here = occurrence_id(UUID(int=2**100 + 5), utc(2026, 3, 29, 1, 30).replace(microsecond=1))
    assert there.stdout.strip() == str(here)


def test_the_derivation_never_changes() -> None:
    """Ids are in databases: another formula would record every pending occurrence twice."""
    made = occurrence_id(UUID("0193c8a2-5d1e-7abc-8def-0123456789ab"), utc(2026, 3, 2, 12))

    assert str(made) == "019cae6b-6600-8609-8dac-e8e12ba1a356"


@given(uuids)
@settings(deadline=None)
def test_an_id_reads_back_as_it_was_shown(value: UUID) -> None:
    for text in (format_job_id(value), format_job_id(value).lower(), str(value), value.hex):
        assert parse_id("job", text) == value
    assert parse_id("exe", format_execution_id(value)) == value


@given(st.lists(uuids, unique=True, min_size=2, max_size=10))
@settings(deadline=None)
def test_shown_ids_sort_like_ids(values: list[UUID]) -> None:
    shown = [format_id("exe", value) for value in sorted(values)]

    assert all(one < other for one, other in pairwise(shown))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "exe_",
        "exe_01JCV3V1KC8M2T4QZ5R7N9X0A",  # a letter short
        "exe_01JCV3V1KC8M2T4QZ5R7N9X0ABB",  # one too many
        "exe_81JCV3V1KC8M2T4QZ5R7N9X0AB",  # more than 128 bits
        "exe_01JCV3V1KC8M2T4QZ5R7N9X0AU",  # no such letter
        "job_01JCV3V1KC8M2T4QZ5R7N9X0AB",  # of another kind
        "nightly",
        "0193c8a2-5d1e-7abc-8def-0123456789zz",
        "'; DROP TABLE job; --",
    ],
)
def test_an_invalid_id_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidInput, match="expected one like exe_") as refusal:
        parse_id("exe", text)

    assert refusal.value.field == "id"


@given(st.text())
@settings(deadline=None)
def test_any_text_is_an_id_or_refused(text: str) -> None:
    try:
        value = parse_id("exe", text)
    except InvalidInput:
        return

    assert isinstance(value, UUID)


@given(uuids, st.integers(1, 1024))
@settings(deadline=None)
def test_a_shard_is_one_of_the_shards(job: UUID, shards: int) -> None:
    assert 0 <= shard_of(job, shards) < shards


def test_jobs_made_in_the_same_moment_spread_over_the_shards() -> None:
    chance = Random(1833)
    drawn = [new_id(1_772_000_000_000, chance.getrandbits(74)) for _ in range(6_400)]

    sizes = Counter(shard_of(job, 64) for job in drawn)

    assert len(sizes) == 64
    assert max(sizes.values()) < 200
