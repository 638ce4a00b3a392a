"""By when an execution must have begun: what has not begun by then is skipped, and never started.

An execution has so many seconds after its time, `start_within_seconds`, or until an instant, `expires_at`; the earlier of the two counts.
Expiry concerns the first start: an execution that has begun, whatever became of that attempt, expires no more.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from timeball.domain.scheduling.civil_time import format_instant, parse_instant
from timeball.domain.values.field_errors import unexpected_value
from timeball.domain.values.wording import Duration, parse_duration
from timeball.errors import InvalidInput

_SECOND = timedelta(seconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expiry:
    """How long an execution has to begin, as a request says it."""

    start_within_seconds: int | None = None
    expires_at: datetime | None = None

    def instant(self, run_at: datetime) -> datetime | None:
        """When an execution that is to run at an instant expires; None if it never does. `timeball.expiry` is the same in SQL."""
        if self.start_within_seconds is None:
            return self.expires_at
        latest = run_at + self.start_within_seconds * _SECOND
        return latest if self.expires_at is None else min(latest, self.expires_at)

    def refuse_if_over(self, now: datetime) -> None:
        """InvalidInput if an execution that is to run now would expire at once."""
        if self.expires_at is not None and self.expires_at <= now:
            raise InvalidInput(
                f"expires_at is {format_instant(self.expires_at)}, which has passed; expected an instant in the future",
                field="expires_at",
            )


NEVER = Expiry()


def parse_expiry(value: Duration | datetime, field: str = "expires", timezone: str = "UTC") -> Expiry:
    """How long there is to begin, in one word: a span such as `10m`, or an instant; without an offset it is on the clock of *timezone*."""
    if isinstance(value, datetime):
        return Expiry(expires_at=parse_instant(value, timezone, field))
    try:
        seconds, rest = divmod(parse_duration(value, field), _SECOND)
    except InvalidInput:
        return Expiry(expires_at=_instant(value, field, timezone))
    if rest or seconds < 1:
        raise unexpected_value(field, value, "a whole number of seconds, from 1 up")
    return Expiry(start_within_seconds=seconds)


def _instant(value: Duration, field: str, timezone: str) -> datetime:
    try:
        return parse_instant(str(value), timezone, field)
    except InvalidInput:
        raise unexpected_value(field, value, "a span such as 10m, or an instant such as 2030-01-31T09:00:00Z") from None
