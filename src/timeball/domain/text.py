"""What may be stored as text and as JSON."""

from __future__ import annotations

import math
import re
from typing import Any, cast

import orjson

from timeball.errors import InvalidInput, PayloadError

MAX_LABEL = 200
MAX_DESCRIPTION = 10_000
MAX_PAYLOAD_BYTES = 256 * 1024
MAX_DEPTH = 100
# They move a cursor, break a line, or turn the direction of a text around: a name that holds one can be shown as another.
_DECEIVING = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def check_label(value: object, field: str, *, longest: int = MAX_LABEL) -> str:
    """A name, queue, key or tag: 1 to *longest* characters that the database can hold and that show as what they are."""
    if not isinstance(value, str):
        raise InvalidInput(f"{field} is {type(value).__name__}, expected text", field=field)
    if not value.strip() or len(value) > longest:
        raise InvalidInput(f"{field} has {len(value)} characters, expected 1 to {longest}, not all blank", field=field)
    _check_characters(value, field)
    if not value.isprintable() and (found := _DECEIVING.search(value)):
        raise InvalidInput(
            f"{field} contains the character U+{ord(found[0]):04X}, expected no control characters, line breaks or bidi marks",
            field=field,
            hint="remove it",
        )
    return value


def check_description(value: object, field: str) -> str:
    """Longer text; may be empty."""
    if not isinstance(value, str) or len(value) > MAX_DESCRIPTION:
        raise InvalidInput(f"{field} is not text of at most {MAX_DESCRIPTION} characters", field=field)
    return _check_characters(value, field)


def _check_characters(value: str, field: str, refusal: type[InvalidInput] = InvalidInput) -> str:
    if "\0" in value:
        raise refusal(f"{field} contains a NUL character, which cannot be stored", field=field, hint="remove it")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise refusal(f"{field} contains half of a surrogate pair, which is no character", field=field) from None
    return value


def clean(value: object) -> str:
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


def shorten(text: str, longest: int) -> str:
    """Text of at most *longest* characters: what is too long loses its middle."""
    if len(text) <= longest:
        return text
    kept = max(longest - len(_left_out(len(text))), 0)
    head, tail = kept - kept // 3, kept // 3
    return f"{text[:head]}{_left_out(len(text) - kept)}{text[len(text) - tail :]}"[:longest]


def _left_out(characters: int) -> str:
    return f"\n… {characters} characters left out …\n"


def to_json(value: Any, field: str = "payload") -> str:
    """A value as JSON text, or PayloadError: not JSON, too large, too deep, or with characters that cannot be stored."""
    try:
        encoded = orjson.dumps(value)
    except (orjson.JSONEncodeError, RecursionError) as error:
        raise PayloadError(f"{field} is not JSON: {error}", field=field) from None
    if len(encoded) > MAX_PAYLOAD_BYTES:
        raise PayloadError(
            f"{field} has {len(encoded)} bytes as JSON, at most {MAX_PAYLOAD_BYTES} are kept",
            field=field,
            hint="store the data elsewhere and pass a reference to it",
        )
    # Text is searched in a sixth of the time that bytes take.
    text = encoded.decode()
    if "null" in text or "\\u0000" in text or (len(text) > MAX_DEPTH and text.count("[") + text.count("{") > MAX_DEPTH):
        _check_value(value, field, MAX_DEPTH)
    return text


def _check_value(value: Any, field: str, depth: int) -> None:
    if depth < 0:
        raise PayloadError(f"{field} is nested more than {MAX_DEPTH} levels deep", field=field)
    if isinstance(value, str):
        _check_characters(value, field, PayloadError)
    elif isinstance(value, float) and not math.isfinite(value):
        raise PayloadError(f"{field} contains NaN or an infinity, which JSON does not know", field=field)
    elif isinstance(value, dict):
        for key, inner in value.items():
            _check_value(key, field, depth)
            _check_value(inner, field, depth - 1)
    elif isinstance(value, list | tuple):
        for inner in value:
            _check_value(inner, field, depth - 1)
