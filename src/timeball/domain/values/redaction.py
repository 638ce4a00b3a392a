"""Redaction: values that look like secrets are hidden in responses, exports, pages and the audit."""

from __future__ import annotations

import re
from typing import Any

import orjson

from timeball.errors import PayloadError

REDACTED = "••••••"

# `author` is no secret, `authorization` is.
_SECRET_KEY = re.compile(
    r"passw|passphrase|pass$|pwd|secret|token|(api|access|private|signing)[-_]?key|auth(?!or(s|ed|ing)?(\b|[-_]))"
    r"|credential|cookie|signature|\bsig\b|\bdsn\b",
    re.IGNORECASE,
)
# The password in `amqp://user:password@host`; it may hold an @ itself.
_IN_ADDRESS = re.compile(r"(://[^/\s:@]{0,200}:)[^/\s]{1,500}(?=@)")
# The token in `https://host/path?token=...`. No `?` in the name, which would cause backtracking from every earlier one.
_IN_QUERY = re.compile(r"([?&]([^=&#?\s]{1,100})=)[^&#\s]+")
# Lists show payloads up to this size.
LONGEST_IN_LISTS = 8 * 1024


def is_secret(key: str) -> bool:
    """Whether values under this key are hidden."""
    return _SECRET_KEY.search(key) is not None


def redact(value: Any) -> Any:
    """JSON with the values under secret keys hidden; references to secrets are shown."""
    match value:
        case dict():
            return {key: _redacted_entry(str(key), inner) for key, inner in value.items()}
        case list() | tuple():
            return [redact(inner) for inner in value]
        case str() if "://" in value:
            return _IN_QUERY.sub(_redacted_parameter, _IN_ADDRESS.sub(rf"\1{REDACTED}", value))
        case _:
            return value


def redact_in_list(text: str) -> Any:
    """A JSON document as a list shows it: a large document is replaced by a note.

    A page of the largest payloads would have 50 MB. The note contains the dots, so that it cannot be stored by mistake.
    """
    if len(text) <= LONGEST_IN_LISTS:
        return redact(orjson.loads(text))
    return {"$timeball": f"{REDACTED} {len(text)} characters are left out of lists; the single item shows them"}


def redact_fields_in_list(text: str) -> Any:
    """A JSON object as a list shows it: each large field is replaced by a note."""
    document = orjson.loads(text)
    if len(text) <= LONGEST_IN_LISTS or not isinstance(document, dict):
        return redact_in_list(text)
    return {
        name: entry
        for name, value in document.items()
        for entry in redact({name: redact_in_list(orjson.dumps(value).decode())}).values()
    }


def _redacted_parameter(match: re.Match[str]) -> str:
    return f"{match[1]}{REDACTED}" if is_secret(match[2]) else match[0]


def _redacted_entry(key: str, value: Any) -> Any:
    if key == "$secret" or not is_secret(key) or value is None or value == "" or isinstance(value, bool):
        return redact(value)
    return value if _is_reference(value) else REDACTED


def _is_reference(value: Any) -> bool:
    """Whether this names a secret, or several, as during a rotation."""
    if isinstance(value, list | tuple):
        return bool(value) and all(map(_is_reference, value))
    return isinstance(value, dict) and value.keys() == {"$secret"} and isinstance(value["$secret"], str)


def refuse_redacted(value: Any, field: str = "payload") -> None:
    """Refuse a redacted value that a caller sends back: it would be stored in place of the secret."""
    if isinstance(value, str) and REDACTED in value:
        raise PayloadError(
            f"{field} contains {REDACTED}, which stands for a hidden value",
            field=field,
            hint=f"give the value itself, or leave {field} out to keep it as it is",
        )
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for item in inner:
        refuse_redacted(item, field)
