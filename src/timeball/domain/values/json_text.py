"""JSON from outside and JSON to be stored: parsing within limits, Python values as JSON, and what the database cannot hold.

Handlers and programs may use more than plain JSON: dates, times, UUIDs, enums, dataclasses, Pydantic models, Decimal (as text),
timedelta (ISO 8601), sets, paths, and bytes that are text. Nothing is turned back by a name that stands in the data.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

import orjson
from pydantic_core import PydanticSerializationError, to_jsonable_python

from timeball.domain.values.field_errors import unexpected_value
from timeball.domain.values.text import check_characters, clean_text, shorten_text
from timeball.errors import InvalidInput, InvalidJson, JsonTooDeep, JsonTooLarge, PayloadError

MAX_PAYLOAD_BYTES = 256 * 1024
MAX_DEPTH = 100

_OPTIONS = orjson.OPT_SERIALIZE_NUMPY
# Only after `_OPTIONS` have failed: for keys that are text they are slower.
_LENIENT_OPTIONS = _OPTIONS | orjson.OPT_NON_STR_KEYS
_NO_RESULT = "$timeball"
_MAX_REASON = 1_000

_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
# An opening bracket as the number 1, a closing one as -1.
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")


# Reading


def parse_json(text: str | bytes, name: str, *, field: str | None = None, hint: str | None = None) -> Any:
    """A JSON value; InvalidJson says where the text is wrong, by the *name* that the user knows."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        kind = JsonTooDeep if "depth limit" in str(error) else InvalidJson
        raise kind(f"{name} is not valid JSON: {error}", field=field, hint=hint) from None


def parse_bounded_json(body: bytes, *, max_values: int, max_depth: int | None) -> Any:
    """The JSON value of a request's body; JsonTooLarge or JsonTooDeep if it has more values or levels than allowed.

    Without *max_depth* only the parser's own limit holds: in a large body the depth takes longer to find than all the rest.
    """
    if _has_more_values(body, max_values):
        raise JsonTooLarge(
            f"the body has more than {max_values} values (objects, lists, texts, numbers), expected at most that many",
            hint="send less at once",
        )
    value = parse_json(body, "the body", hint="send JSON in UTF-8")
    if max_depth is not None and body.count(b"[") + body.count(b"{") > max_depth and _depth(body) > max_depth:
        raise JsonTooDeep(f"the body has more than {max_depth} levels, expected at most that many")
    return value


def _has_more_values(body: bytes, most: int) -> bool:
    """Whether a body has more values than that, counted by what separates them."""
    if _separators(body) < most:
        return False
    # Texts may be full of commas; only now, because finding the texts takes longer than parsing.
    number, end = 1, 0
    for text in _STRING.finditer(body):
        number += _separators(body[end : text.start()])
        end = text.end()
        if number > most:
            return True
    return number + _separators(body[end:]) > most


def _separators(body: bytes) -> int:
    return body.count(b",") + body.count(b"[") + body.count(b"{")


def _depth(body: bytes) -> int:
    brackets = _STRING.sub(b"", body).translate(_STEPS, _NO_BRACKETS)
    return max(accumulate(memoryview(brackets).cast("b")), default=0)


# Writing


def to_json(value: Any, field: str = "payload") -> str:
    """A plain JSON value as text; PayloadError if it is not JSON, too large, too deep, or cannot be stored."""
    try:
        encoded = orjson.dumps(value)
    except (orjson.JSONEncodeError, RecursionError) as error:
        raise PayloadError(f"{field} is not JSON: {error}", field=field) from None
    if len(encoded) > MAX_PAYLOAD_BYTES:
        raise _too_large(encoded, field, field)
    text = encoded.decode()
    if "null" in text or "\\u0000" in text or text.count("[") + text.count("{") > MAX_DEPTH:
        _check_storable(value, field, MAX_DEPTH)
    return text


def check_small_object(value: object, field: str, most_bytes: int) -> dict[str, Any]:
    """A JSON object of plain values, as it is stored; InvalidInput if it is none, or has more bytes as JSON."""
    if not isinstance(value, Mapping):
        raise unexpected_value(field, value, 'a JSON object, such as {"tenant": "acme"}')
    try:
        text = to_json(dict(value), field)
    except PayloadError as error:
        raise InvalidInput(str(error), field=field, hint=error.hint) from None
    if (size := len(text.encode())) > most_bytes:
        raise InvalidInput(
            f"{field} has {size} bytes as JSON, expected at most {most_bytes}",
            field=field,
            hint="what the code needs as data belongs into its arguments; meta is about the run",
        )
    plain: dict[str, Any] = orjson.loads(text)
    return plain


def missing_result(result: Any) -> str | None:
    """Why a result was not kept, by the note that is kept in its place; None if it is a result."""
    return result["$timeball"] if isinstance(result, dict) and result.keys() == {"$timeball"} else None


def encode_object(values: dict[str, Any]) -> str:
    """Named Python values as one JSON object; PayloadError names the value that cannot be stored."""
    try:
        encoded = orjson.dumps(values, _simplify, _OPTIONS)
    except orjson.JSONEncodeError:
        encoded = _encode_each(values)
    # Few calls, since a bulk enqueue comes here for every job; in text, since bytes take six times as long to search.
    if len(encoded) > MAX_PAYLOAD_BYTES:
        raise _too_large(encoded, "the payload", "payload")
    text = encoded.decode()
    if "null" in text:
        # As they were given: orjson writes null for NaN without a word.
        _check_each(values)
    if "\\u0000" in text or (len(text) > MAX_DEPTH and text.count("[") + text.count("{") > MAX_DEPTH):
        _check_each(orjson.loads(encoded))
    return text


def encode_result(value: Any) -> str | None:
    """A handler's result as JSON text; None for None.

    The work is done, so a result that cannot be kept does not make it fail. In its place is a note:
    `{"$timeball": "the result was dropped: ..."}`.
    """
    if value is None:
        return None
    try:
        encoded = orjson.dumps(value, _simplify, _LENIENT_OPTIONS)
    except (orjson.JSONEncodeError, RecursionError) as error:
        return dropped_result(f"it is not JSON: {clean_text(error)}")
    return check_result(encoded)


def check_result(encoded: bytes) -> str:
    """JSON that the database takes, from bytes that claim to be JSON: the same values, or a note that they were dropped."""
    if len(encoded) > MAX_PAYLOAD_BYTES:
        return dropped_result(f"it has {len(encoded)} bytes as JSON, at most {MAX_PAYLOAD_BYTES} are kept")
    try:
        # Read and written again: an `orjson.Fragment` is copied as it stands, whatever its text or its numbers are.
        value = orjson.loads(encoded)
        return orjson.dumps(_without_nul(value) if b"\\u0000" in encoded else value).decode()
    except (orjson.JSONDecodeError, orjson.JSONEncodeError, RecursionError) as error:
        return dropped_result(f"it is not JSON: {clean_text(error)}")


def dropped_result(reason: str) -> str:
    """The note in the place of a result that cannot be kept."""
    return orjson.dumps(
        {_NO_RESULT: f"the result was dropped: {shorten_text(clean_text(reason), _MAX_REASON)}"}
    ).decode()


def _simplify(value: Any) -> Any:
    try:
        return to_jsonable_python(value)
    except PydanticSerializationError as error:
        raise TypeError(str(error)) from None


def _encode_each(values: dict[str, Any]) -> bytes:
    parts: dict[str, orjson.Fragment] = {}
    for name, value in values.items():
        try:
            parts[name] = orjson.Fragment(orjson.dumps(value, _simplify, _LENIENT_OPTIONS))
        except orjson.JSONEncodeError as error:
            raise PayloadError(f"{name} is not JSON: {error}", field=name) from None
    return orjson.dumps(parts)


def _too_large(encoded: bytes, name: str, field: str) -> PayloadError:
    return PayloadError(
        f"{name} has {len(encoded)} bytes as JSON, expected at most {MAX_PAYLOAD_BYTES}",
        field=field,
        hint="store the data elsewhere and pass a reference to it",
    )


def _check_each(values: dict[str, Any]) -> None:
    for name, value in values.items():
        _check_storable(value, name, MAX_DEPTH - 1)


def _check_storable(value: Any, field: str, depth: int) -> None:
    """PayloadError for what JSON or the database cannot hold: NaN, infinities, NUL, half a surrogate pair, too many levels."""
    if depth < 0:
        raise PayloadError(f"{field} is nested more than {MAX_DEPTH} levels deep", field=field)
    match value:
        case str():
            check_characters(value, field, PayloadError)
        case float():
            if not math.isfinite(value):
                raise PayloadError(f"{field} contains NaN or an infinity, which JSON does not know", field=field)
        case dict():
            for key, inner in value.items():
                _check_storable(key, field, depth)
                _check_storable(inner, field, depth - 1)
        case list() | tuple():
            for inner in value:
                _check_storable(inner, field, depth - 1)


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
