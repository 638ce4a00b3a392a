"""How a log line looks: for people, or as JSON.

    2026-11-16T06:00:00.000000Z [info     ] node.started           kind=worker name=host/17
    {"kind": "worker", "name": "host/17", "event": "node.started", "level": "info", "timestamp": "2026-11-16T06:00:00.000000Z"}

Written here and not by a library: the usual one imports Rich and Pygments for tracebacks that a worker never prints, five megabytes
of each process.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

_RESET, _BOLD, _DIM = "\x1b[0m", "\x1b[1m", "\x1b[2m"
_NAME, _VALUE = "\x1b[36m", "\x1b[35m"
_LEVELS = {"debug": "\x1b[32m", "info": "\x1b[32m", "warning": "\x1b[33m", "error": "\x1b[31m"}
_EVENT_WIDTH, _LEVEL_WIDTH = 22, 9
_NEEDS_QUOTES = frozenset(" =\"'\\")


def json_line(at: datetime, level: str, event: str, fields: Mapping[str, Any]) -> str:
    """A line for programs; in ASCII, so that any stream can carry it."""
    return json.dumps({**fields, "event": event, "level": level, "timestamp": _stamp(at)}, default=repr) + "\n"


def text_line(at: datetime, level: str, event: str, fields: Mapping[str, Any], *, has_colors: bool) -> str:
    """A line for people."""
    paint = _painted if has_colors else _plain
    named = (f"{paint(name, _NAME)}={paint(_word(value), _VALUE)}" for name, value in sorted(fields.items()))
    head = f"{paint(_stamp(at), _DIM)} [{paint(f'{level:<{_LEVEL_WIDTH}}', _LEVELS[level] + _BOLD)}]"
    return " ".join([head, paint(f"{event:<{_EVENT_WIDTH}}", _BOLD), *named]).rstrip() + "\n"


def _stamp(at: datetime) -> str:
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _word(value: Any) -> str:
    """A value as one word: text as it is, unless it could be taken for two, or moves the cursor of a terminal."""
    if isinstance(value, str) and value and value.isprintable() and not _NEEDS_QUOTES & set(value):
        return value
    return repr(value)


def _painted(text: str, color: str) -> str:
    return f"{color}{text}{_RESET}"


def _plain(text: str, _color: str) -> str:
    return text
