"""The trace of an execution, as its meta carries it."""

from __future__ import annotations

from typing import Any

import pytest

from timeball.domain.trace import TRACE_KEY, trace_id, trace_words, with_trace, without_trace

PARENT = f"00-{'ab' * 16}-{'cd' * 8}-01"


def test_a_trace_is_kept_beside_the_words_of_the_user() -> None:
    meta = with_trace({"tenant": "acme"}, {"traceparent": PARENT, "tracestate": "vendor=1"})

    assert meta == {"tenant": "acme", TRACE_KEY: {"traceparent": PARENT, "tracestate": "vendor=1"}}
    assert trace_words(meta) == {"traceparent": PARENT, "tracestate": "vendor=1"}
    assert trace_id(meta) == "ab" * 16
    assert without_trace(meta) == {"tenant": "acme"}


def test_meta_that_is_a_trace_alone_is_none_of_the_users() -> None:
    assert without_trace(with_trace(None, {"traceparent": PARENT})) is None
    assert without_trace(None) is None
    assert trace_id(None) is trace_id({}) is None


@pytest.mark.parametrize(
    "found",
    [
        "text",
        7,
        None,
        [],
        {},
        {"tracestate": "a=b"},
        {"traceparent": 7},
        {"traceparent": "00-abc"},
        {"traceparent": PARENT.upper()},
        {"traceparent": f"ff{PARENT[2:]}"},
        {"traceparent": f"00-{'0' * 32}-{'cd' * 8}-01"},
        {"traceparent": f"00-{'ab' * 16}-{'0' * 16}-01"},
        {"traceparent": f"{PARENT}\r\nX-Admin: 1"},
        {"traceparent": f"{PARENT}-" + "x" * 200},
    ],
)
def test_what_is_no_trace_is_taken_for_none(found: Any) -> None:
    assert trace_words({TRACE_KEY: found}) == {}
    assert trace_id({TRACE_KEY: found}) is None
    assert with_trace({"a": 1}, found if isinstance(found, dict) else {}) == {"a": 1}


@pytest.mark.parametrize("state", ["", "a=b\r\nX: 1", "é=1", "a=" + "b" * 300, 7])
def test_a_state_that_no_header_can_carry_is_left_out(state: Any) -> None:
    assert trace_words({TRACE_KEY: {"traceparent": PARENT, "tracestate": state}}) == {"traceparent": PARENT}


def test_a_later_version_of_the_words_is_understood() -> None:
    assert trace_id({TRACE_KEY: {"traceparent": f"01{PARENT[2:]}-more"}}) == "ab" * 16
