"""What the executor knows of a way to run handlers."""

from __future__ import annotations

from typing import Protocol

from timeball.current import RunContext
from timeball.domain.execution import Outcome
from timeball.domain.handler import Handler


class Runner(Protocol):
    """Runs handlers, one attempt per call."""

    async def run(self, handler: Handler, context: RunContext) -> Outcome:
        """Run one attempt (`context.claimed`) to its outcome; whatever the handler does, this does not raise.

        `context.halt(...)` from outside makes it return soon, with the outcome the halt asks for.
        Only cancelling the surrounding task itself gets a `CancelledError` out of here, after cleaning up.
        """

    async def stop(self) -> None:
        """Free what the runner holds. Attempts still running are ended where that is possible."""
