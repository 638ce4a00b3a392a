"""Reads that many browsers ask for at once, made once: each answer is good for half a second, for everybody of one role."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass

# For so long an answer is the answer to everybody who asks the same.
FRESH_SECONDS = 0.5
# More different questions than that within half a second are not worth keeping.
_MOST_KEPT = 500


@dataclass(frozen=True, slots=True)
class _Kept:
    asked_at: float
    answer: asyncio.Future[bytes]


class SharedReads:
    """Answers to questions, while they are fresh; who asks while an answer is being made waits for that one."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._kept: dict[Hashable, _Kept] = {}

    async def get(self, question: Hashable, ask: Callable[[], Awaitable[bytes]]) -> bytes:
        """The answer to a question: a fresh one, or what *ask* says."""
        kept = self._kept.get(question)
        if kept is None or self._is_stale(kept):
            kept = self._keep(question, ask)
        # Whoever began it may go away; the others still want it.
        return await asyncio.shield(kept.answer)

    def forget(self) -> None:
        """Something was changed: what was read before may be wrong."""
        self._kept.clear()

    def _keep(self, question: Hashable, ask: Callable[[], Awaitable[bytes]]) -> _Kept:
        if len(self._kept) >= _MOST_KEPT:
            self._kept = {key: one for key, one in self._kept.items() if not self._is_stale(one)}
        kept = _Kept(self._now(), asyncio.ensure_future(ask()))
        # An answer that nobody waits for any more may fail in silence.
        kept.answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        if len(self._kept) < _MOST_KEPT:
            self._kept[question] = kept
        return kept

    def _is_stale(self, kept: _Kept) -> bool:
        return self._now() - kept.asked_at > FRESH_SECONDS or (
            kept.answer.done() and kept.answer.exception() is not None
        )
