"""What may be stored as text and as JSON."""

from __future__ import annotations

import unicodedata
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from timeball.domain.values.text import (
    MAX_DEPTH,
    MAX_DESCRIPTION,
    MAX_LABEL,
    MAX_PAYLOAD_BYTES,
    check_description,
    check_label,
    clean_text,
    to_json,
)
from timeball.errors import InvalidInput, PayloadError

any_text = st.text(st.characters())  # surrogates too
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=15,
)


def can_be_stored(text: str) -> bool:
    return "\0" not in text and not any("\ud800" <= letter <= "\udfff" for letter in text)


def shows_as_it_is(text: str) -> bool:
    """Neither control characters, nor separators of lines, nor what turns the direction around, by their Unicode names."""
    is_turning = any(unicodedata.bidirectional(letter) in TURNING or letter in MARKS for letter in text)
    return not is_turning and not any(unicodedata.category(letter) in ("Cc", "Zl", "Zp") for letter in text)


TURNING = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
MARKS = "\u061c\u200e\u200f"


@given(any_text)
@settings(deadline=None)
def test_a_label_is_kept_as_it_is_or_refused(text: str) -> None:
    if text.strip() and len(text) <= MAX_LABEL and can_be_stored(text) and shows_as_it_is(text):
        assert check_label(text, "name") == text
    else:
        with pytest.raises(InvalidInput) as refusal:
            check_label(text, "name")
        assert refusal.value.field == "name"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("", "name has 0 characters, expected 1 to 200, not all blank"),
        ("   ", "name has 3 characters, expected 1 to 200, not all blank"),
        ("x" * 201, "name has 201 characters, expected 1 to 200, not all blank"),
        ("a\0b", "name contains a NUL character, which cannot be stored"),
        ("a\x1b[2J", "name contains the character U+001B, expected no control characters, line breaks or bidi marks"),
        ("a\nb", "name contains the character U+000A, expected no control characters, line breaks or bidi marks"),
        ("a\x9b2J", "name contains the character U+009B, expected no control characters, line breaks or bidi marks"),
        ("a\u202eb", "name contains the character U+202E, expected no control characters, line breaks or bidi marks"),
        ("a\ud800", "name contains half of a surrogate pair, which is no character"),
        (7, "name is int, expected text"),
        (None, "name is NoneType, expected text"),
        (b"x", "name is bytes, expected text"),
    ],
)
def test_a_refused_label_says_what_was_found_and_expected(value: object, words: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        check_label(value, "name")

    assert str(refusal.value) == words
    assert refusal.value.field == "name"


def test_the_longest_label_and_description_fit() -> None:
    assert check_label("é" * MAX_LABEL, "name") == "é" * MAX_LABEL
    assert check_description("x" * MAX_DESCRIPTION, "description") == "x" * MAX_DESCRIPTION
    assert check_description("", "description") == ""


@pytest.mark.parametrize("value", ["x" * (MAX_DESCRIPTION + 1), 7, "a\0", "\udfff"])
def test_a_description_that_cannot_be_stored_is_refused(value: object) -> None:
    with pytest.raises(InvalidInput) as refusal:
        check_description(value, "description")

    assert refusal.value.field == "description"


@given(any_text)
@settings(deadline=None)
def test_cleaned_text_can_always_be_stored(text: str) -> None:
    """Fault 33."""
    cleaned = clean_text(text)

    assert can_be_stored(cleaned)
    assert cleaned.encode().decode() == cleaned
    if can_be_stored(text):
        assert cleaned == text


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
        ("x" * MAX_PAYLOAD_BYTES, "payload has 262146 bytes as JSON, at most 262144 are kept"),
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


def test_every_character_is_judged_by_what_unicode_says_of_it() -> None:
    for code in range(1, 0x110000):
        letter = chr(code)
        if not can_be_stored(letter):
            continue
        try:
            check_label(f"a{letter}b", "name")
            is_accepted = True
        except InvalidInput:
            is_accepted = False
        assert is_accepted == shows_as_it_is(letter), f"U+{code:04X}"


def test_letters_of_any_script_and_joined_emoji_are_fine() -> None:
    for label in ("nächtlich", "夜間", "ночной", "ליל", "a b", "👨‍👩‍👧", "e\u0301", "ﷺ"):
        assert check_label(label, "name") == label
