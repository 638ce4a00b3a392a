"""Ids: 128 bits, ordered by time, written with a prefix that says what they name.

Two kinds share one layout, so that one index order serves both: 48 bits of milliseconds, then either random bits (`new_id`,
a UUID of version 7) or a hash (`occurrence_id`). An id of the second kind is *derived*: every node computes the same id for
the occurrence of a job at an instant, so the primary key of a state table refuses a second record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import blake2b, shake_128
from itertools import accumulate
from typing import NewType
from uuid import UUID, SafeUUID

from timeball.errors import InvalidInput, quote_text

JobId = NewType("JobId", UUID)
ExecutionId = NewType("ExecutionId", UUID)
Incarnation = NewType("Incarnation", UUID)
ClaimId = NewType("ClaimId", UUID)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford's base 32: no I, L, O, U to misread
_VALUES = {letter: value for value, letter in enumerate(_ALPHABET)}
_LENGTH = 26
_PAIRS = tuple(first + second for first in _ALPHABET for second in _ALPHABET)
_HIGHEST_PAIR = 5 * (_LENGTH - 2)
_VARIANT = 0b10 << 62
_LOW_BITS = 0x3FFF_FFFF_FFFF_FFFF


# Looked up once, because access to an enum member is slow.
_UNKNOWN = SafeUUID.unknown


def new_id(milliseconds: int, random_bits: int) -> UUID:
    """A UUID of version 7 from a moment and 74 random bits."""
    high = (milliseconds & 0xFFFF_FFFF_FFFF) << 16 | 0x7000 | (random_bits >> 62 & 0xFFF)
    low = _VARIANT | (random_bits & _LOW_BITS)
    return _uuid(high << 64 | low)


def new_ids(milliseconds: int, random_bits: int, gaps: Iterable[int]) -> Iterator[UUID]:
    """UUIDs of version 7 from one moment, in order: each is its gap plus one greater than the one before.

    *random_bits* are 73 bits and set the number before the first; there are fewer than 500 million *gaps*, of 32 random bits.
    """
    # In order, an index appends them page after page; at random, it would search and split a page for each.
    above = (milliseconds & 0xFFFF_FFFF_FFFF) << 16 | 0x7000 | random_bits >> 61
    # One bit stays free for the sum of the gaps: it must not reach the bits above.
    before = above << 64 | _VARIANT | random_bits & _LOW_BITS >> 1
    numbers = accumulate((gap + 1 for gap in gaps), initial=before)
    next(numbers)
    return map(_uuid, numbers)


def _uuid(number: int) -> UUID:
    """`UUID(int=number)` without its checks of the arguments, which take twice as long as all the rest."""
    value = object.__new__(UUID)
    object.__setattr__(value, "int", number)
    object.__setattr__(value, "is_safe", _UNKNOWN)
    return value


def occurrence_id(job_id: UUID, scheduled_for: datetime, purpose: bytes = b"") -> ExecutionId:
    """The id of the occurrence of a job at an instant, the same on every machine; that of a backfill has a *purpose*."""
    microseconds = (scheduled_for - _EPOCH) // timedelta(microseconds=1)
    digest = blake2b(job_id.bytes + microseconds.to_bytes(8, "big", signed=True) + purpose, digest_size=10).digest()
    tail = int.from_bytes(digest, "big")
    high = (microseconds // 1000 & 0xFFFF_FFFF_FFFF) << 16 | 0x8000 | (tail >> 62 & 0xFFF)
    low = _VARIANT | (tail & _LOW_BITS)
    return ExecutionId(UUID(int=high << 64 | low))


def filling_id(job_id: UUID, scheduled_for: datetime) -> ExecutionId:
    """The id under which an occurrence that did not run is filled in: only one, so it cannot be filled in twice."""
    return occurrence_id(job_id, scheduled_for, b"backfill")


def repetition_id(job_id: UUID, scheduled_for: datetime, operation_id: UUID) -> ExecutionId:
    """The id under which a backfill runs an occurrence again: once for each operation."""
    return occurrence_id(job_id, scheduled_for, b"backfill" + operation_id.bytes)


def id_created_at(value: UUID) -> datetime:
    """The instant in an id, to the millisecond: its creation or, for an occurrence, the scheduled instant."""
    return _EPOCH + timedelta(milliseconds=value.int >> 80)


def first_id_at(moment: datetime) -> UUID:
    """The smallest id that a moment's millisecond can have."""
    milliseconds = max((moment - _EPOCH) // timedelta(milliseconds=1), 0)
    return UUID(int=(milliseconds & 0xFFFF_FFFF_FFFF) << 80)


def shard_of(job_id: UUID, shards: int) -> int:
    """The shard of a job. The last bits of an id are random or a hash, so they spread evenly."""
    return (job_id.int & 0xFFFF_FFFF) % shards


def jitter_of(job_id: UUID, jitter_seconds: int) -> timedelta:
    """The delay of a job within its jitter, the same on every machine."""
    if not jitter_seconds:
        return timedelta(0)
    digest = int.from_bytes(blake2b(job_id.bytes, digest_size=8).digest(), "big")
    return timedelta(microseconds=digest % (jitter_seconds * 1_000_000 + 1))


def format_id(prefix: str, value: UUID) -> str:
    """An id with its prefix: `exe_01JCV3V1KC8M2T4QZ5R7N9X0AB`."""
    number = value.int
    # Two letters at a time, because lists and bulk responses format tens of thousands of ids.
    pairs = [_PAIRS[number >> shift & 1023] for shift in range(_HIGHEST_PAIR, -1, -10)]
    return f"{prefix}_{''.join(pairs)}"


def format_job_id(value: UUID) -> str:
    """The id of a job with its prefix."""
    return format_id("job", value)


def format_execution_id(value: UUID) -> str:
    """The id of an execution with its prefix."""
    return format_id("exe", value)


def parse_id(prefix: str, text: str) -> UUID:
    """An id from text: with its prefix, or as a bare UUID."""
    body = text.removeprefix(f"{prefix}_")
    if body == text:
        return _parse_uuid(prefix, text)
    number = 0
    for letter in body.upper():
        if letter not in _VALUES:
            raise _not_an_id(prefix, text)
        number = number << 5 | _VALUES[letter]
    if len(body) != _LENGTH or number >> 128:
        raise _not_an_id(prefix, text)
    return UUID(int=number)


def _parse_uuid(prefix: str, text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise _not_an_id(prefix, text) from None


def _not_an_id(prefix: str, text: str) -> InvalidInput:
    example = format_id(prefix, UUID(int=0x0193_37B1_D860_7000_8000_0000_0000_0000))
    return InvalidInput(f'"{quote_text(text)}" is not an id, expected one like {example}, or a UUID', field="id")


@dataclass(frozen=True, slots=True)
class IdempotentRequest:
    """A request that the caller may repeat because the result of the first try is unknown; it creates the same ids each time."""

    seed: UUID
    # Whether an earlier try is known.
    is_repeated: bool = False

    @property
    def requested_at(self) -> datetime:
        """When it was first made."""
        return id_created_at(self.seed)

    def parts(self, number: int) -> list[IdempotentRequest]:
        """The parts it consists of, each with ids of its own."""
        return [IdempotentRequest(seed, self.is_repeated) for seed in self.ids(number)]

    def ids(self, number: int) -> Iterator[UUID]:
        """A number of ids in order, the same for every try."""
        bits = shake_128(self.seed.bytes).digest(16 + 4 * number)
        return new_ids(self.seed.int >> 80, int.from_bytes(bits[:16], "big") >> 55, memoryview(bits[16:]).cast("I"))
