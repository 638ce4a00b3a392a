"""Text that may be stored."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from timeball.domain.values.text import MAX_DESCRIPTION, MAX_LABEL, check_description, check_label, clean_text
from timeball.errors import InvalidInput

any_text = st.text(st.characters())  # surrogates too


def can_be_stored(text: str) -> bool:
    return "\0" not in text and not any("\ud800" <= letter <= "\udfff" for letter in text)


def shows_as_it_is(text: str) -> bool:
    """Whether a label may contain a character: no control characters, line separators or bidi marks."""
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
        ("a\ud800", "name contains half of a surrogate pair, which is not a character"),
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
