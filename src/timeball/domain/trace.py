"""The trace that an execution belongs to: the words of W3C Trace Context, carried in its meta under a name of their own.

Meta goes wherever an execution goes: through the database, to retries, to what follows it and to the parts of a group, inline or not,
and a broker carries only its id. So a trace needs no way of its own. It is no word of the user: `current.meta`, lists and pages leave
it out, and show the id of the trace beside it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

# No name of a user's own begins like this in an example of ours, and a search has to quote it.
TRACE_KEY = "$trace"
_PARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})(?P<trace_id>[0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?", re.ASCII
)
_PARENT_BYTES = 55
# A longer list of vendors is left out, as the recommendation allows.
_LONGEST_STATE = 256


def trace_words(meta: Mapping[str, Any] | None) -> dict[str, str]:
    """`traceparent`, and `tracestate` if there is one, as headers carry them; empty if the execution has no trace."""
    words = None if meta is None else meta.get(TRACE_KEY)
    if not isinstance(words, Mapping):
        return {}
    parent, state = words.get("traceparent"), words.get("tracestate")
    if not isinstance(parent, str) or trace_id_of(parent) is None:
        return {}
    has_state = isinstance(state, str) and state.isascii() and state.isprintable() and 0 < len(state) <= _LONGEST_STATE
    return {"traceparent": parent} | ({"tracestate": str(state)} if has_state else {})


def trace_id(meta: Mapping[str, Any] | None) -> str | None:
    """The id of the trace, 32 hexadecimal digits."""
    parent = trace_words(meta).get("traceparent")
    return None if parent is None else trace_id_of(parent)


def trace_id_of(parent: str) -> str | None:
    """The id of the trace in a `traceparent`; None if it is none."""
    match = _PARENT.fullmatch(parent) if len(parent) <= 2 * _PARENT_BYTES and parent.isprintable() else None
    return None if match is None else match["trace_id"]


def with_trace(meta: Mapping[str, Any] | None, words: Mapping[str, str]) -> dict[str, Any]:
    """The meta with these words, if they are those of a trace."""
    kept = trace_words({TRACE_KEY: dict(words)})
    return {**(meta or {}), **({TRACE_KEY: kept} if kept else {})}


def without_trace(meta: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The meta as its user has given it; None if that was none."""
    return None if meta is None else {word: value for word, value in meta.items() if word != TRACE_KEY} or None
