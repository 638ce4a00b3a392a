"""What looks like a secret is not shown: not in answers, not in exports."""

from __future__ import annotations

import re
from typing import Any

from timeball.errors import PayloadError

REDACTED = "••••••"

_SECRET = re.compile(
    r"pass(word|wd|phrase)?$|secret|token|authori[sz]ation|api[-_]?key|private[-_]?key|access[-_]?key|credential|cookie|signature",
    re.IGNORECASE,
)


def is_secret(key: str) -> bool:
    """Whether values under this key are not for everybody's eyes."""
    return _SECRET.search(key) is not None


def redact(value: Any) -> Any:
    """A JSON value with everything under secret-looking keys hidden."""
    if isinstance(value, dict):
        return {
            key: REDACTED if is_secret(key) and inner not in (None, "") else redact(inner)
            for key, inner in value.items()
        }
    return [redact(inner) for inner in value] if isinstance(value, list) else value


def refuse_redacted(value: Any, field: str = "payload") -> None:
    """Whoever sends back what they were shown would store the dots in place of the secret."""
    if value == REDACTED:
        raise PayloadError(
            f"{field} contains {REDACTED}, which stands for a hidden value",
            field=field,
            hint="give the value itself, or leave the payload out to keep it as it is",
        )
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for one in inner:
        refuse_redacted(one, field)
