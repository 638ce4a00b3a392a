"""Sketches: mergeable in any order, and right to within their stated error."""

from __future__ import annotations

from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from timeball.domain.rollup import (
    FINEST_SECONDS,
    LAST_BUCKET,
    RELATIVE_ERROR,
    DurationSketch,
    bucket_of,
    merge_sketches,
    middle_of,
    upper_bound,
)

SPANS = st.floats(min_value=2 * FINEST_SECONDS, max_value=3e7)


@given(SPANS)
def test_a_bucket_stands_for_what_is_in_it_within_the_stated_error(seconds: float) -> None:
    assert abs(middle_of(bucket_of(seconds)) - seconds) <= seconds * (RELATIVE_ERROR + 1e-9)


@given(st.lists(SPANS, min_size=1, max_size=200), st.sampled_from([0.5, 0.95, 0.99, 1.0]))
def test_every_percentile_is_within_the_stated_error(spans: list[float], share: float) -> None:
    exact = sorted(spans)[ceil(len(spans) * share) - 1]

    told = DurationSketch.of(spans).percentile(share)

    assert told is not None
    assert abs(told - exact) <= exact * (RELATIVE_ERROR + 1e-9)


@given(st.lists(st.lists(SPANS, max_size=20), max_size=5))
def test_merging_is_the_same_as_counting_together(groups: list[list[float]]) -> None:
    assert merge_sketches(DurationSketch.of(group) for group in groups) == DurationSketch.of(
        span for group in groups for span in group
    )
    assert merge_sketches(DurationSketch.of(group) for group in reversed(groups)) == merge_sketches(
        DurationSketch.of(group) for group in groups
    )


def test_the_error_is_a_few_percent() -> None:
    assert RELATIVE_ERROR < 0.025


def test_the_shortest_and_the_longest_have_a_bucket_too() -> None:
    assert [bucket_of(seconds) for seconds in (-1, 0, FINEST_SECONDS, 1e30)] == [0, 0, 0, LAST_BUCKET]
    assert upper_bound(LAST_BUCKET) > 366 * 86_400


def test_an_empty_sketch_has_no_percentiles() -> None:
    assert DurationSketch().percentile(0.5) is None
    assert DurationSketch().total == 0


def test_at_most_counts_durations_up_to_a_limit() -> None:
    sketch = DurationSketch.of([0.001, 0.01, 0.01, 1, 60])

    assert [sketch.at_most(seconds) for seconds in (0.0005, 0.005, 0.05, 5, 600)] == [0, 1, 3, 4, 5]
