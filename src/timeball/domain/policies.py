"""The policies a job chooses from (misfire, overlap, clock changes, delivery, retry) and their defaults."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Self


class Policy(StrEnum):
    """The words that a field of a job takes: each member is its word, and says in *about* what the word does.

    These enums are the only lists of such words. The API, the form and the reference read them; literals for type checkers and the
    constraints of the schema are compared with them by `tests/domain/test_job_fields.py`.
    """

    about: str

    def __new__(cls, word: str, about: str = "") -> Self:
        member = str.__new__(cls, word)
        member._value_ = word
        member.about = about
        return member


class OnGap(Policy):
    """What becomes of a named wall time that a gap jumps over."""

    NEXT_VALID = "next_valid", "run at the next valid time"
    SKIP = "skip", "do not run"


class OnRepeat(Policy):
    """What becomes of a named wall time that comes twice."""

    FIRST = "first", "run the first time"
    SECOND = "second", "run the second time"
    BOTH = "both", "run both times"


class Shift(Policy):
    """Where an occurrence goes whose day a calendar of `skip_on` has."""

    NONE = "none", "leave it out"
    NEXT = "next", "move it to the next day that is allowed"
    PREVIOUS = "previous", "move it to the last day before that is allowed"


DEFAULT_MISFIRE_GRACE = timedelta(seconds=30)
DEFAULT_MISFIRE_CAP = 100


class Misfire(Policy):
    """What happens to occurrences that are late beyond the grace."""

    LATEST = "latest", "run the latest one only"
    SKIP = "skip", "skip it"
    ALL = "all", "run all that were missed"


class Overlap(Policy):
    """What happens when an occurrence is due while an earlier execution of its job is unfinished."""

    SKIP = "skip", "skip the new one"
    ALLOW = "allow", "run both"
    QUEUE = "queue", "queue the new one"
    CANCEL_RUNNING = "cancel_running", "stop the old one"
    LATEST = "latest", "let only the newest wait"

    @property
    def is_serial(self) -> bool:
        """Whether occurrences wait for each other, which they do by a limit of one; SQL asks `timeball.is_serial`."""
        return self in (Overlap.QUEUE, Overlap.CANCEL_RUNNING, Overlap.LATEST)


def is_serial_word(word: object) -> bool:
    """The same about a word that is not checked yet."""
    return any(str(word) == policy.value for policy in Overlap if policy.is_serial)


class IfExists(Policy):
    """What an enqueue does while an execution with its unique key waits; one that has begun stays as it is."""

    KEEP = "keep", "give it back as it is"
    REPLACE = "replace", "give it the newest arguments"
    EXTEND = "extend", "give it the newest arguments and the newest time"


class Verdict(StrEnum):
    """What became of an occurrence, or is to become of it."""

    RAN = "ran"
    RUNNING = "running"
    WAITING = "waiting"
    SKIPPED = "skipped"
    EXPECTED = "expected"


class SkipReason(StrEnum):
    """Why an occurrence was not run."""

    MISFIRE = "misfire"
    TOO_OLD = "too_old"
    CAPPED = "capped"
    OVERLAP = "overlap"
    PAUSED = "paused"
    UNIQUE_KEY = "unique_key"
    EXPIRED = "expired"
    EDITED = "edited"
    DELETED = "deleted"
    CANCELLED = "cancelled"
    ENDED = "ended"
    FREEZE = "freeze"
    CALENDAR = "calendar"
    CLOCK_GAP = "clock_gap"

    @property
    def is_missed(self) -> bool:
        """Whether the occurrence should have run, and nothing was there to run it in time."""
        return self in (SkipReason.MISFIRE, SkipReason.TOO_OLD, SkipReason.CAPPED)

    @property
    def is_left_out(self) -> bool:
        """Whether the schedule itself leaves the instant out: the version of the job proves it, and there is no record of it."""
        return self in (SkipReason.CALENDAR, SkipReason.CLOCK_GAP)


@dataclass(frozen=True, slots=True, kw_only=True)
class MisfireRule:
    """How a job treats what it missed."""

    policy: Misfire = Misfire.LATEST
    grace: timedelta = DEFAULT_MISFIRE_GRACE
    cap: int = DEFAULT_MISFIRE_CAP
    max_age: timedelta | None = None


# Past this many doublings the result is above any accepted `max_backoff_ms` anyway; a larger power only costs time.
_MOST_DOUBLINGS = 62


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Waits of `min(initial * 2^n, max)` with full jitter, or those of a list; and the budgets of tries."""

    max_retries: int = 3
    max_lost: int = 3
    initial_backoff_ms: int = 1_000
    max_backoff_ms: int = 3_600_000
    # The waits one by one, the last of which repeats; without any they grow.
    backoff_ms: tuple[int, ...] = ()

    def ceiling(self, failures: int) -> timedelta:
        """The longest wait after so many failed attempts (1 for the first)."""
        if self.backoff_ms:
            return timedelta(milliseconds=self.backoff_ms[min(max(failures, 1), len(self.backoff_ms)) - 1])
        doublings = min(max(failures - 1, 0), _MOST_DOUBLINGS)
        return timedelta(milliseconds=min(self.initial_backoff_ms * 2**doublings, self.max_backoff_ms))

    def delay(self, failures: int, chance: float) -> timedelta:
        """The wait after so many failed attempts, between half of the initial back-off and the ceiling.

        *chance* is a random number in [0, 1). Jitter spreads a thousand jobs that failed together; the floor keeps the
        target from being called again at once. A wait of a list is kept as it was said.
        """
        ceiling = self.ceiling(failures)
        if self.backoff_ms:
            return ceiling
        floor = min(timedelta(milliseconds=self.initial_backoff_ms), ceiling) / 2
        return floor + (ceiling - floor) * chance


DEFAULT_QUEUE = "default"
DEFAULT_PRIORITY = 50
DEFAULT_TIMEOUT_MS = 3_600_000


class Delivery(Policy):
    """Whether an attempt whose end is unknown may be repeated."""

    AT_LEAST_ONCE = "at_least_once", "try again (at least once)"
    AT_MOST_ONCE = "at_most_once", "do not try again (at most once)"
