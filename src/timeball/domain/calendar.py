"""Calendars as people keep them, and where their days come from: a list, an iCalendar file, or the holidays of a country.

A file is read once: the calendar keeps its days, not its text. All-day events count; an event that repeats by a plain yearly or weekly rule
becomes days of every year or week, any other rule is spelt out up to 2100. The holidays of a country are those from 2000 to 2100, as far as
the package `holidays` knows them. Both packages are extras of Timeball, because few installations need them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from importlib import import_module
from itertools import islice
from typing import Any

from timeball.domain.scheduling.calendars import MAX_DAYS, DaySet, parse_days
from timeball.errors import InvalidInput, quote_text

FIRST_HOLIDAY_YEAR, LAST_HOLIDAY_YEAR = 2000, 2100
MAX_ICS_LENGTH = 1_000_000
_EXPANDED = ("YEARLY", "MONTHLY", "WEEKLY", "DAILY")
_WEEKDAYS = {"MO": 0, "TU": 1, "WE": 2, "TH": 3, "FR": 4, "SA": 5, "SU": 6}


@dataclass(frozen=True, slots=True, kw_only=True)
class Calendar:
    """A named set of days. *source* says where they came from; *version* goes up with every change."""

    name: str
    description: str | None
    source: Mapping[str, Any]
    days: DaySet
    version: int = 1
    created_at: datetime | None = None
    updated_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class CalendarDays:
    """Days and where they came from, and what could not be taken over."""

    days: DaySet
    source: Mapping[str, Any]
    warnings: list[str] = field(default_factory=list)


def listed_days(entries: Iterable[object]) -> CalendarDays:
    """The days of a list."""
    return CalendarDays(parse_days(entries), {"kind": "list"})


def country_days(country: str, subdivision: str | None) -> CalendarDays:
    """The public holidays of a country, or of a part of it; InvalidInput if the package `holidays` does not know it, or is missing."""
    holidays = _package("holidays", "country", "the holidays of a country")
    known = holidays.list_supported_countries()
    code = country.strip().upper()
    if code not in known:
        raise InvalidInput(
            f'country is "{quote_text(country, 40)}", expected the code of a country that `holidays` knows, such as DE',
            field="country",
        )
    part = None if subdivision is None else subdivision.strip().upper()
    if part is not None and part not in known[code]:
        parts = ", ".join(known[code]) or "none"
        raise InvalidInput(
            f'subdivision is "{quote_text(subdivision or "", 40)}", expected one of {code}: {parts}',
            field="subdivision",
        )
    years = range(FIRST_HOLIDAY_YEAR, LAST_HOLIDAY_YEAR + 1)
    days = frozenset(holidays.country_holidays(code, subdiv=part, years=years))
    source = {"kind": "country", "country": code, "subdivision": part, "package": f"holidays {holidays.__version__}"}
    return CalendarDays(DaySet(days), source)


def ics_days(text: str) -> CalendarDays:
    """The all-day events of an iCalendar file; InvalidInput if it is none, or has none."""
    if len(text) > MAX_ICS_LENGTH:
        raise InvalidInput(f"ics has {len(text):,} characters, expected at most {MAX_ICS_LENGTH:,}", field="ics")
    icalendar = _package("icalendar", "ics", "an iCalendar file")
    try:
        events = [event for part in icalendar.Calendar.from_ical(text, multiple=True) for event in part.walk("VEVENT")]
    except ValueError as error:
        raise InvalidInput(
            f"ics is not an iCalendar file: {quote_text(str(error), 100)}; expected text that begins with BEGIN:VCALENDAR",
            field="ics",
        ) from None
    entries: list[str] = []
    warnings: list[str] = []
    for event in events:
        try:
            entries += _event_days(event)
        except _LeftOut as why:
            warnings.append(f'the event "{quote_text(str(event.get("SUMMARY", "")), 60)}" is left out: {why}')
        if len(entries) > MAX_DAYS:
            raise InvalidInput(f"ics has more than {MAX_DAYS:,} days, expected at most that many", field="ics")
    if not entries:
        raise InvalidInput(f"ics has no all-day events; {'; '.join(warnings[:3]) or 'it has no events'}", field="ics")
    return CalendarDays(parse_days(entries, "ics"), {"kind": "ics"}, warnings[:100])


class _LeftOut(Exception):
    """An event has no days that a calendar could have."""


def _event_days(event: Any) -> Iterator[str]:
    start = _value(event, "DTSTART")
    if not isinstance(start, date) or isinstance(start, datetime):
        raise _LeftOut("it is not an all-day event")
    end = _value(event, "DTEND") or start + (_value(event, "DURATION") or timedelta(days=1))
    length = max((end - start).days, 1) if isinstance(end, date) and not isinstance(end, datetime) else 1
    if length > 366:
        raise _LeftOut("it is longer than a year")
    rule = event.get("RRULE")
    if rule is None:
        return _spread([start, *_dates(event, "RDATE")], length, date.isoformat)
    if event.get("EXDATE") is None and event.get("RDATE") is None:
        if _is_every_year(rule, start):
            return _spread([start], length, lambda day: f"{day:%m-%d}")
        if (weekdays := _weekly(rule, start)) is not None and length == 1:
            return iter(weekdays)
    return _spread(_expanded(event, rule, start), length, date.isoformat)


def _spread(starts: Iterable[date], length: int, entry: Callable[[date], str]) -> Iterator[str]:
    """Every day of events that last some days."""
    return (entry(start + timedelta(days=number)) for start in starts for number in range(length))


def _is_every_year(rule: Mapping[str, Any], start: date) -> bool:
    """Whether a rule says no more than "every year on this day"."""
    plain = {
        "FREQ": ["YEARLY"],
        "INTERVAL": [1],
        "BYMONTH": [start.month],
        "BYMONTHDAY": [start.day],
        "WKST": rule.get("WKST"),
    }
    return _names(rule, "FREQ") == ["YEARLY"] and all(
        list(rule[key]) == plain.get(key) or key == "WKST" for key in rule
    )


def _weekly(rule: Mapping[str, Any], start: date) -> list[str] | None:
    """The days of a rule that says no more than "every week on these days"."""
    if _names(rule, "FREQ") != ["WEEKLY"] or set(rule) - {"FREQ", "BYDAY", "WKST"}:
        return None
    names = _names(rule, "BYDAY") or [list(_WEEKDAYS)[start.weekday()]]
    words = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
    return [words[_WEEKDAYS[name]] for name in names if name in _WEEKDAYS]


def _expanded(event: Any, rule: Any, start: date) -> list[date]:
    # A package of icalendar, and without types.
    rrulestr = import_module("dateutil.rrule").rrulestr
    if _names(rule, "FREQ") not in [[word] for word in _EXPANDED]:
        raise _LeftOut(f"it repeats by FREQ={','.join(_names(rule, 'FREQ'))}, expected {', '.join(_EXPANDED)}")
    try:
        text = rule.to_ical().decode()
        # A rule of days may end at an instant; its day is what counts.
        until = rule.get("UNTIL")
        if until is not None:
            last = until[0].date() if isinstance(until[0], datetime) else until[0]
            text = ";".join(part for part in text.split(";") if not part.startswith("UNTIL="))
            text += f";UNTIL={last:%Y%m%d}T235959"
        instants = rrulestr(text, dtstart=datetime.combine(start, time.min))
    except ValueError as error:
        raise _LeftOut(f"its rule cannot be read: {error}") from None
    end = datetime(LAST_HOLIDAY_YEAR + 1, 1, 1, tzinfo=UTC).replace(tzinfo=None)
    excluded = set(_dates(event, "EXDATE"))
    days = (at.date() for at in islice(instants, MAX_DAYS + 1) if at < end)
    return [day for day in days if day not in excluded] + list(_dates(event, "RDATE"))


def _dates(event: Any, name: str) -> Iterator[date]:
    """The days of a property that may be given several times, each with several days."""
    given = event.get(name)
    for part in given if isinstance(given, list) else [given] if given is not None else []:
        for one in part.dts:
            yield one.dt.date() if isinstance(one.dt, datetime) else one.dt


def _names(rule: Mapping[str, Any], key: str) -> list[str]:
    return [str(word) for word in rule.get(key, [])]


def _value(event: Any, name: str) -> Any:
    value = event.get(name)
    return None if value is None else getattr(value, "dt", value)


def _package(name: str, extra_field: str, what: str) -> Any:
    extra = {"holidays": "holidays", "icalendar": "ics"}[name]
    try:
        return import_module(name)
    except ModuleNotFoundError:
        raise InvalidInput(
            f"{extra_field} cannot be read here: {what} needs the package {name}, which the server does not have",
            field=extra_field,
            hint=f'pip install "timeball[{extra}]" where the server runs, or give the days as a list',
        ) from None
