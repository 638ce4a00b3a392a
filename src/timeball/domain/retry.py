"""How long until the next attempt."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

# Past this many doublings the result is above any accepted `max_backoff_ms` anyway; a larger power only costs time.
_MOST_DOUBLINGS = 62


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Waits of `min(initial * 2^n, max)` with full jitter, and the budgets of tries."""

    max_retries: int = 3
    max_lost: int = 3
    initial_backoff_ms: int = 1_000
    max_backoff_ms: int = 3_600_000

    def ceiling(self, failures: int) -> timedelta:
        """The longest wait after so many failed attempts (1 for the first)."""
        doublings = min(max(failures - 1, 0), _MOST_DOUBLINGS)
        return timedelta(milliseconds=min(self.initial_backoff_ms * 2**doublings, self.max_backoff_ms))

    def delay(self, failures: int, chance: float) -> timedelta:
        """The wait after so many failed attempts, between half of the initial back-off and the ceiling.

        *chance* is a random number in [0, 1). Jitter spreads a thousand jobs that failed together; the floor keeps the
        target from being called again at once.
        """
        ceiling = self.ceiling(failures)
        floor = min(timedelta(milliseconds=self.initial_backoff_ms), ceiling) / 2
        return floor + (ceiling - floor) * chance
