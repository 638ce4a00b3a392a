"""What may be stored as text and as JSON, and how Python values become JSON."""

from __future__ import annotations

import math
import re
from typing import Any, cast

import orjson
from pydantic_core import PydanticSerializationError, to_jsonable_python

from timeball.errors import InvalidInput, PayloadError

# What may be stored as text and as JSON.

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


# Python values as JSON: what users hand to handlers, and what handlers return.
#
# Beyond plain JSON: dates, times, UUIDs, enums, dataclasses, Pydantic models, Decimal (as text), timedelta (ISO 8601), sets,
# paths and bytes that are text. Nothing is ever turned back by a name that stands in the data.

_OPTIONS = orjson.OPT_SERIALIZE_NUMPY


# Only when the quick way has failed: for text keys it is slower.
_PATIENT_OPTIONS = _OPTIONS | orjson.OPT_NON_STR_KEYS
_NO_RESULT = "$timeball"
_LONGEST_WHY = 1_000


def encode_object(values: dict[str, Any]) -> str:
    """Named values as one JSON object, or a PayloadError that names the value which cannot be stored."""
    try:
        encoded = orjson.dumps(values, _simplify, _OPTIONS)
    except orjson.JSONEncodeError:
        encoded = _encode_slowly(values)
    if len(encoded) > MAX_PAYLOAD_BYTES:
        raise _too_large(encoded)
    # Text is searched in a sixth of the time that bytes take.
    text = encoded.decode()
    if "null" in text:
        _refuse_nan(values)
    if "\\u0000" in text or (len(text) > MAX_DEPTH and text.count("[") + text.count("{") > MAX_DEPTH):
        _check_decoded_json(orjson.loads(encoded))
    return text


def encode_result(value: Any) -> str | None:
    """A handler's result as JSON text; None for None.

    The work is done, so a result that cannot be kept does not make it fail: in its place stands a note,
    `{"$timeball": "the result was dropped: ..."}`.
    """
    if value is None:
        return None
    try:
        encoded = orjson.dumps(value, _simplify, _PATIENT_OPTIONS)
    except (orjson.JSONEncodeError, RecursionError) as error:
        return dropped_result(f"it is not JSON: {clean_text(error)}")
    return check_result(encoded)


def check_result(encoded: bytes) -> str:
    """JSON that the database is sure to take, for what is said to be JSON: the same values, or a note that they were dropped."""
    if len(encoded) > MAX_PAYLOAD_BYTES:
        return dropped_result(f"it has {len(encoded)} bytes as JSON, at most {MAX_PAYLOAD_BYTES} are kept")
    try:
        # Read and written again: an `orjson.Fragment` is copied as it stands, whatever its text or its numbers are.
        value = orjson.loads(encoded)
        return orjson.dumps(_without_nul(value) if b"\\u0000" in encoded else value).decode()
    except (orjson.JSONDecodeError, orjson.JSONEncodeError, RecursionError) as error:
        return dropped_result(f"it is not JSON: {clean_text(error)}")


def dropped_result(why: str) -> str:
    """What stands in the place of a result that cannot be kept."""
    return orjson.dumps({_NO_RESULT: f"the result was dropped: {shorten_text(clean_text(why), _LONGEST_WHY)}"}).decode()


def _simplify(value: Any) -> Any:
    try:
        return to_jsonable_python(value)
    except PydanticSerializationError as error:
        raise TypeError(str(error)) from None


def _encode_slowly(values: dict[str, Any]) -> bytes:
    parts: dict[str, orjson.Fragment] = {}
    for name, value in values.items():
        try:
            parts[name] = orjson.Fragment(orjson.dumps(value, _simplify, _PATIENT_OPTIONS))
        except orjson.JSONEncodeError as error:
            raise PayloadError(f"{name} is not JSON: {error}", field=name) from None
    return orjson.dumps(parts)


def _too_large(encoded: bytes) -> PayloadError:
    return PayloadError(
        f"the payload has {len(encoded)} bytes as JSON, at most {MAX_PAYLOAD_BYTES} are kept",
        field="payload",
        hint="store the data elsewhere and pass a reference to it",
    )


def _refuse_nan(values: dict[str, Any]) -> None:
    for name, value in values.items():
        if _has_nan(value):
            raise PayloadError(f"{name} contains NaN or an infinity, which JSON does not know", field=name)


def _has_nan(value: Any) -> bool:
    """Whether a value holds a number in whose place orjson would store null without a word."""
    match value:
        case float():
            return not math.isfinite(value)
        case dict():
            return any(map(_has_nan, value.values()))
        case list() | tuple():
            return any(map(_has_nan, value))
        case _:
            return False


def _check_decoded_json(values: dict[str, Any]) -> None:
    for name, value in values.items():
        _check_decoded(value, name, MAX_DEPTH - 1)


def _check_decoded(value: Any, name: str, depth: int) -> None:
    if depth < 0:
        raise PayloadError(f"{name} is nested more than {MAX_DEPTH} levels deep", field=name)
    match value:
        case str():
            if "\0" in value:
                raise PayloadError(f"{name} contains a NUL character, which cannot be stored", field=name)
        case dict():
            for key, inner in value.items():
                _check_decoded(key, name, depth)
                _check_decoded(inner, name, depth - 1)
        case list():
            for inner in value:
                _check_decoded(inner, name, depth - 1)


def _without_nul(value: Any) -> Any:
    match value:
        case str():
            return value.replace("\0", "\ufffd")
        case dict():
            return {_without_nul(key): _without_nul(inner) for key, inner in value.items()}
        case list():
            return [_without_nul(inner) for inner in value]
        case _:
            return value
