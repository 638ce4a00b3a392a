"""Text that may be stored: names, descriptions, and text from outside made storable."""

from __future__ import annotations

import re
from typing import cast

from timeball.errors import InvalidInput

MAX_LABEL = 200
MAX_DESCRIPTION = 10_000

# They move a cursor, break a line, or turn the direction of a text around: a name that holds one can be shown as another.
_DECEIVING = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def check_label(value: object, field: str, *, longest: int = MAX_LABEL) -> str:
    """A name, queue, key or tag: 1 to *longest* characters that the database can hold and that show as what they are."""
    if not isinstance(value, str):
        raise InvalidInput(f"{field} is {type(value).__name__}, expected text", field=field)
    if not value.strip() or len(value) > longest:
        raise InvalidInput(f"{field} has {len(value)} characters, expected 1 to {longest}, not all blank", field=field)
    check_characters(value, field)
    if not value.isprintable() and (found := _DECEIVING.search(value)):
        raise InvalidInput(
            f"{field} contains the character U+{ord(found[0]):04X}, expected no control characters, line breaks or bidi marks",
            field=field,
            hint="remove it",
        )
    return value


def check_description(value: object, field: str, *, longest: int = MAX_DESCRIPTION) -> str:
    """Longer text; may be empty."""
    if not isinstance(value, str) or len(value) > longest:
        raise InvalidInput(f"{field} is not text of at most {longest} characters", field=field)
    return check_characters(value, field)


def check_characters(value: str, field: str, error: type[InvalidInput] = InvalidInput) -> str:
    """Text that PostgreSQL can hold; *error* names the field and the character."""
    if "\0" in value:
        raise error(f"{field} contains a NUL character, which cannot be stored", field=field, hint="remove it")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise error(f"{field} contains half of a surrogate pair, which is not a character", field=field) from None
    return value


def clean_text(value: object) -> str:
    """Text from outside, made storable: what a database cannot hold is replaced by the replacement character.

    Takes anything and never raises: a value whose text cannot be had is named by its type.
    """
    if type(value) is str and value.isascii() and "\0" not in value:
        return value
    # By `str` itself: a subclass may have replaced every method, and what comes out is a plain str.
    encoded = str.encode(_text_of(value), "utf-8", "replace")
    return encoded.decode().replace("\0", "\ufffd")


def _text_of(value: object) -> str:
    if issubclass(type(value), str):
        return cast("str", value)
    try:
        return str(value)
    except BaseException as error:  # from code of the value's own, which may raise anything
        return f"<{_name_of(type(value))}: its text cannot be had, {_name_of(type(error))} was raised>"


def _name_of(kind: type) -> str:
    # By `type` itself: a metaclass may have replaced the attribute.
    return str(type.__dict__["__name__"].__get__(kind))


def shorten_text(text: str, longest: int) -> str:
    """Text of at most *longest* characters: what is too long loses its middle."""
    if len(text) <= longest:
        return text
    kept = max(longest - len(_left_out(len(text))), 0)
    head, tail = kept - kept // 3, kept // 3
    return f"{text[:head]}{_left_out(len(text) - kept)}{text[len(text) - tail :]}"[:longest]


def _left_out(characters: int) -> str:
    return f"\n… {characters} characters left out …\n"
