"""Sketches: how long things took, in few numbers, with every percentile right to within 2.5 %.

A span of time falls into a bucket of a fixed logarithmic scale: each bucket reaches 5 % further than the one before it. A sketch is
how many fell into each bucket, so two sketches are merged by adding, in any order. `timeball.bucket` in the schema is the
same scale in SQL; the two may never differ.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from math import ceil, log

# Everything up to a tenth of a millisecond is in the first bucket; the last one begins after a year.
FINEST_SECONDS = 1e-4
GROWTH = 1.05
LAST_BUCKET = 550
# A bucket's middle is at most this share away from anything in it.
RELATIVE_ERROR = (GROWTH - 1) / (GROWTH + 1)


def bucket_of(seconds: float) -> int:
    """The bucket that a span falls into."""
    if seconds <= FINEST_SECONDS:
        return 0
    return min(ceil(log(seconds / FINEST_SECONDS) / log(GROWTH)), LAST_BUCKET)


def upper_bound(bucket: int) -> float:
    """The longest span that falls into a bucket, in seconds."""
    return FINEST_SECONDS * GROWTH**bucket


@cache
def middle_of(bucket: int) -> float:
    """What a bucket stands for, in seconds."""
    return FINEST_SECONDS if bucket == 0 else upper_bound(bucket) * 2 / (GROWTH + 1)


@dataclass(frozen=True, slots=True)
class Sketch:
    """How many spans fell into each bucket, the buckets in order."""

    buckets: Sequence[int] = ()
    counts: Sequence[int] = ()

    @classmethod
    def of(cls, spans: Iterable[float]) -> Sketch:
        """The sketch of some spans in seconds."""
        counts: dict[int, int] = {}
        for seconds in spans:
            bucket = bucket_of(seconds)
            counts[bucket] = counts.get(bucket, 0) + 1
        return _from_counts(counts)

    @property
    def total(self) -> int:
        """How many spans it holds."""
        return sum(self.counts)

    def percentile(self, share: float) -> float | None:
        """The span, in seconds, that this share of all did not exceed; None if there were none."""
        return self.percentiles([share])[0]

    def percentiles(self, shares: Sequence[float]) -> list[float | None]:
        """Several of them at once: charts ask for three of each of a thousand sketches."""
        if not self.counts:
            return [None] * len(shares)
        up_to = list(accumulate(self.counts))
        places = [bisect_left(up_to, max(ceil(up_to[-1] * share), 1)) for share in shares]
        return [middle_of(self.buckets[place]) for place in places]

    def at_most(self, seconds: float) -> int:
        """How many did not exceed a span, as well as the buckets can tell."""
        pairs = zip(self.buckets, self.counts, strict=True)
        return sum(count for bucket, count in pairs if middle_of(bucket) <= seconds)


def merged(sketches: Iterable[Sketch]) -> Sketch:
    """One sketch of everything that is in these."""
    counts: dict[int, int] = {}
    for sketch in sketches:
        for bucket, count in zip(sketch.buckets, sketch.counts, strict=True):
            counts[bucket] = counts.get(bucket, 0) + count
    return _from_counts(counts)


def _from_counts(counts: Mapping[int, int]) -> Sketch:
    buckets = sorted(counts)
    return Sketch(buckets, [counts[bucket] for bucket in buckets])
