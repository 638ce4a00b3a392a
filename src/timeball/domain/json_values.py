"""Python values as JSON: what users hand to handlers, and what handlers return.

Beyond plain JSON: dates, times, UUIDs, enums, dataclasses, Pydantic models, Decimal (as text), timedelta (ISO 8601), sets,
paths and bytes that are text. Nothing is ever turned back by a name that stands in the data.
"""

from __future__ import annotations

import math
from typing import Any

import orjson
from pydantic_core import PydanticSerializationError, to_jsonable_python

from timeball.domain.text import MAX_DEPTH, MAX_PAYLOAD_BYTES, clean, shorten
from timeball.errors import PayloadError

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
        encoded = _encode_patiently(values)
    if len(encoded) > MAX_PAYLOAD_BYTES:
        raise _too_large(encoded)
    # Text is searched in a sixth of the time that bytes take.
    text = encoded.decode()
    if "null" in text:
        _refuse_nan(values)
    if "\\u0000" in text or (len(text) > MAX_DEPTH and text.count("[") + text.count("{") > MAX_DEPTH):
        _check_closely(orjson.loads(encoded))
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
        return dropped_result(f"it is not JSON: {clean(error)}")
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
        return dropped_result(f"it is not JSON: {clean(error)}")


def dropped_result(why: str) -> str:
    """What stands in the place of a result that cannot be kept."""
    return orjson.dumps({_NO_RESULT: f"the result was dropped: {shorten(clean(why), _LONGEST_WHY)}"}).decode()


def _simplify(value: Any) -> Any:
    try:
        return to_jsonable_python(value)
    except PydanticSerializationError as error:
        raise TypeError(str(error)) from None


def _encode_patiently(values: dict[str, Any]) -> bytes:
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


def _check_closely(values: dict[str, Any]) -> None:
    for name, value in values.items():
        _check_value(value, name, MAX_DEPTH - 1)


def _check_value(value: Any, name: str, depth: int) -> None:
    if depth < 0:
        raise PayloadError(f"{name} is nested more than {MAX_DEPTH} levels deep", field=name)
    match value:
        case str():
            if "\0" in value:
                raise PayloadError(f"{name} contains a NUL character, which cannot be stored", field=name)
        case dict():
            for key, inner in value.items():
                _check_value(key, name, depth)
                _check_value(inner, name, depth - 1)
        case list():
            for inner in value:
                _check_value(inner, name, depth - 1)


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
