"""What a handler can say instead of returning a result or failing.

    return Snooze("30s")                 run me again in 30 s; this try does not count
    raise Retry(after="5m")              this try failed; the next one after 5 minutes, if any are left
    raise Cancel("the order is gone")    give this execution up, for good and without being a failure

They are words of control, not errors: they pass through `except Exception`, as `asyncio.CancelledError` does.
"""

from __future__ import annotations

from datetime import timedelta

from timeball.domain.spans import Span, parse_span, show_span


class ControlWord(BaseException):
    """What `Snooze`, `Retry` and `Cancel` have in common: each may be raised or returned."""


class Snooze(ControlWord):
    """Run this execution again after a span; the try does not count."""

    def __init__(self, delay: Span) -> None:
        self.delay: timedelta = parse_span(delay, "delay")
        super().__init__(f"snoozed for {show_span(self.delay)}")


class Retry(ControlWord):
    """This try has failed; make the next one after a span, or after the usual back-off.

    It counts against `max_retries` as any failure. Raised `from` an error, that error is the one recorded.
    """

    def __init__(self, reason: str | None = None, *, after: Span | None = None) -> None:
        self.after: timedelta | None = None if after is None else parse_span(after, "after")
        super().__init__(reason if reason is not None else "the handler asked for another try")


class Cancel(ControlWord):
    """Give this execution up: it ends as cancelled, with the reason."""

    def __init__(self, reason: str = "cancelled by its handler") -> None:
        self.reason = reason
        super().__init__(reason)
