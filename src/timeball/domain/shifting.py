"""A schedule some minutes earlier or later, where a clear rule says what that is.

`every` is moved by its anchor. `cron` is moved by its minute, which must be a single one; the hours go along when it
runs over the hour, if they are numbers, and past midnight only if every day is meant. So a schedule that was shifted
fires as often a day as before. Whatever else is written in an expression stays as it is.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from timeball.domain.cron_text import WORDS
from timeball.domain.instants import MAX_INSTANT, MIN_INSTANT, stamp
from timeball.domain.schedule import Cron, Every, Schedule
from timeball.domain.spans import show_span

_MINUTE = timedelta(minutes=1)


def why_fixed(rule: Schedule) -> str | None:
    """Why a schedule cannot be shifted at all; None if it can."""
    match rule:
        case Every():
            return None
        case Cron(expression=expression):
            minute = _fields(expression)[-5]
            return None if minute.isdigit() else f'its minutes are "{minute}", and only a single minute can be moved'
    return "it does not recur"


def shifted(rule: Schedule, by: timedelta) -> Schedule | None:
    """The schedule moved by whole minutes; None where no rule says what that would be."""
    match rule:
        case Every(anchor=anchor):
            return replace(rule, anchor=anchor + by) if MIN_INSTANT <= anchor + by <= MAX_INSTANT else None
        case Cron(expression=expression):
            moved = _moved(_fields(expression), by // _MINUTE)
            return None if moved is None else replace(rule, expression=moved)
    return None


def spelt(rule: Schedule) -> str:
    """What of a schedule a shift changes, as people write it."""
    match rule:
        case Cron(expression=expression):
            return expression
        case Every(anchor=anchor):
            return f"every {show_span(rule.interval)} from {stamp(anchor)}"
    return rule.describe()


def timing_fields(rule: Schedule) -> dict[str, str]:
    """The fields of a job that say what a shift changes."""
    match rule:
        case Cron(expression=expression):
            return {"schedule": expression}
        case Every(anchor=anchor):
            return {"scheduled_at": stamp(anchor)}
    return {}


def _fields(expression: str) -> list[str]:
    return WORDS.get(expression.strip().lower(), expression).split()


def _moved(fields: list[str], minutes: int) -> str | None:
    *seconds, minute, hour, day, month, weekday = fields
    if not minute.isdigit():
        return None
    hours_over, moved = divmod(int(minute) + minutes, 60)
    hours = _moved_hours(hour, hours_over, is_daily=day == month == weekday == "*")
    return None if hours is None else " ".join([*seconds, str(moved), hours, day, month, weekday])


def _moved_hours(field: str, by: int, *, is_daily: bool) -> str | None:
    if by == 0 or field == "*":
        return field
    hours = field.split(",")
    if not all(hour.isdigit() for hour in hours):
        return None
    moved = [int(hour) + by for hour in hours]
    if not is_daily and not all(0 <= hour < 24 for hour in moved):
        return None
    return ",".join(str(hour % 24) for hour in moved)
