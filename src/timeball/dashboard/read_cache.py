"""Reads that many browsers need at the same moment: made once, and good for half a second."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar

Answer = TypeVar("Answer")

FRESH_SECONDS = 0.5
# More different reads than that within half a second are not worth keeping.
_MAX_CACHED = 500


@dataclass(frozen=True, slots=True)
class _CachedRead:
    started_at: float
    answer: asyncio.Future[Any]


class ReadCache:
    """Results by their key while they are fresh. A read that is under way answers everyone who asks for its key."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._reads: dict[Hashable, _CachedRead] = {}

    async def get(self, key: Hashable, read: Callable[[], Awaitable[Answer]]) -> Answer:
        """A fresh result, or what *read* returns now. Callers share the result and must not change it."""
        cached = self._reads.get(key)
        if cached is None or self._is_stale(cached):
            cached = self._start(key, read)
        # The caller that started the read may be cancelled; the others still wait for it.
        answer: Answer = await asyncio.shield(cached.answer)
        return answer

    def clear(self) -> None:
        """Forget all results: something was written."""
        self._reads.clear()

    def _start(self, key: Hashable, read: Callable[[], Awaitable[Any]]) -> _CachedRead:
        if len(self._reads) >= _MAX_CACHED:
            self._reads = {key: cached for key, cached in self._reads.items() if not self._is_stale(cached)}
        cached = _CachedRead(self._now(), asyncio.ensure_future(read()))
        # A read may fail after its last caller was cancelled; asyncio would log that.
        cached.answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        if len(self._reads) < _MAX_CACHED:
            self._reads[key] = cached
        return cached

    def _is_stale(self, cached: _CachedRead) -> bool:
        has_failed = cached.answer.done() and cached.answer.exception() is not None
        return has_failed or self._now() - cached.started_at > FRESH_SECONDS
