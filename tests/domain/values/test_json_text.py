"""JSON from outside is parsed within limits; JSON to be stored is written as it is, or refused with the reason."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from timeball.domain.values.json_text import (
    MAX_DEPTH,
    MAX_PAYLOAD_BYTES,
    encode_object,
    parse_bounded_json,
    parse_json,
    to_json,
)
from timeball.errors import InvalidJson, PayloadError

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=15,
)


@given(json_values)
@settings(deadline=None)
def test_json_is_written_as_it_is_or_refused_for_a_nul(value: Any) -> None:
    if has_nul(value):
        with pytest.raises(PayloadError, match="NUL"):
            to_json(value)
    else:
        assert orjson.loads(to_json(value)) == value


def has_nul(value: Any) -> bool:
    match value:
        case str():
            return "\0" in value
        case list():
            return any(map(has_nul, value))
        case dict():
            return any(map(has_nul, (*value, *value.values())))
        case _:
            return False


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def test_a_backslash_before_u0000_is_no_nul() -> None:
    assert orjson.loads(to_json({"a": "\\u0000"})) == {"a": "\\u0000"}


@pytest.mark.parametrize("value", [nested(MAX_DEPTH), [[1]] * 500, {"a": [{"b": {}}] * 200}])
def test_wide_is_not_deep(value: Any) -> None:
    assert orjson.loads(to_json(value)) == value


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (nested(MAX_DEPTH + 1), "payload is nested more than 100 levels deep"),
        (nested(3_000), "payload is not JSON"),
        ({"a": {1, 2}}, "payload is not JSON"),
        ({1: 2}, "payload is not JSON"),
        ({"a": 2**70}, "payload is not JSON"),
        ({"a": "\ud800"}, "payload is not JSON"),
        ({"a": [None, float("nan")]}, "payload contains NaN or an infinity"),
        (float("-inf"), "payload contains NaN or an infinity"),
        ({"a": ["x\0"]}, "payload contains a NUL character"),
        ({"x\0": 1}, "payload contains a NUL character"),
        ("x" * MAX_PAYLOAD_BYTES, "payload has 262146 bytes as JSON, expected at most 262144"),
    ],
)
def test_a_refused_payload_says_why(value: Any, words: str) -> None:
    with pytest.raises(PayloadError) as refusal:
        to_json(value)

    assert words in str(refusal.value)
    assert refusal.value.field == "payload"


def test_the_largest_payload_fits() -> None:
    text = "x" * (MAX_PAYLOAD_BYTES - 2)

    assert len(to_json(text)) == MAX_PAYLOAD_BYTES


@pytest.mark.parametrize(
    ("value", "detail"),
    [
        (float("nan"), "a contains NaN or an infinity"),
        ((1, None, float("inf")), "a contains NaN or an infinity"),
        ("x\0", "a contains a NUL character"),
        (nested(MAX_DEPTH), "a is nested more than 100 levels deep"),
        (object(), "a is not JSON"),
    ],
)
def test_an_argument_that_cannot_be_stored_is_named(value: Any, detail: str) -> None:
    with pytest.raises(PayloadError) as error:
        encode_object({"b": None, "a": value})

    assert str(error.value).startswith(detail)
    assert error.value.field == "a"


@pytest.mark.parametrize(
    ("body", "code", "detail"),
    [
        (b"{", "invalid_json", "the body is not valid JSON: unexpected end of data"),
        (b"\xff", "invalid_json", "the body is not valid JSON: str is not valid UTF-8"),
        (b"[1,2,3,4]", "too_many_values", "the body has more than 4 values"),
        (b"[[[]]]", "too_deep", "the body has more than 2 levels, expected at most that many"),
        (b"[" * 5_000 + b"]" * 5_000, "too_many_values", "the body has more than 4 values"),
    ],
)
def test_a_body_beyond_its_limits_is_refused_with_the_limit(body: bytes, code: str, detail: str) -> None:
    with pytest.raises(InvalidJson) as error:
        parse_bounded_json(body, max_values=4, max_depth=2)

    assert error.value.code == code
    assert str(error.value).startswith(detail)


def test_the_parser_limits_the_depth_where_no_limit_is_given() -> None:
    assert parse_bounded_json(b"[[[[]]]]", max_values=10, max_depth=None) == [[[[]]]]
    with pytest.raises(InvalidJson) as error:
        parse_bounded_json(b"[" * 5_000 + b"]" * 5_000, max_values=10_000, max_depth=None)
    assert error.value.code == "too_deep"


def test_commas_and_brackets_inside_texts_are_not_counted() -> None:
    assert parse_bounded_json(b'["a,b,c,d,[[[[", "\\"[[[["]', max_values=3, max_depth=1) == ["a,b,c,d,[[[[", '"[[[[']


def test_text_that_is_not_json_is_named_as_the_user_knows_it() -> None:
    with pytest.raises(InvalidJson, match=r"^--payload is not valid JSON: ") as error:
        parse_json("nope", "--payload", field="payload", hint="quote it")

    assert (error.value.field, error.value.hint) == ("payload", "quote it")
