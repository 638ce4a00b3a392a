"""The text of a cron expression: what may be written, and errors that name the field, what was found and what was expected.

Five fields (minute, hour, day of month, month, day of week), or six with seconds in front:

    field          values                 also
    second         0-59
    minute         0-59
    hour           0-23
    day-of-month   1-31                   L (last day), LW (last weekday)
    month          1-12 or jan-dec
    day-of-week    0-7 or sun-sat         5L or friL (last Friday), fri#2 (second Friday); 0 and 7 are Sunday

A field is a list of values, ranges `a-b`, and `*`; a range, `*` or a value (then "from there on") may have a step `/n`.
A range may run over the end of its field: `fri-mon`, `nov-feb`, `22-2`. A step may be as large as the field, not
larger: `*/60` for minutes is every hour, but `*/90` would not be every 90 minutes, so it is refused.
If neither day field begins with `*`, a day must match one of them; otherwise it must match both (Debian's rule).
`@yearly @annually @monthly @weekly @daily @midnight @hourly` stand for the usual five fields.

What cronsim cannot read, such as a range over the end, is written out for it. Each field is read once from left to
right, and the text is short, so reading is quick whatever is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from timeball.errors import CronSyntaxError, quote_text

MAX_LENGTH = 256

NICKNAMES: Mapping[str, str] = MappingProxyType(
    {
        "@yearly": "0 0 1 1 *",
        "@annually": "0 0 1 1 *",
        "@monthly": "0 0 1 * *",
        "@weekly": "0 0 * * 0",
        "@daily": "0 0 * * *",
        "@midnight": "0 0 * * *",
        "@hourly": "0 * * * *",
    }
)


def parse_expression(text: str) -> tuple[str, str]:
    """An expression as it is shown, and as cronsim reads it; CronSyntaxError says which field does not fit."""
    canonical = _canonical(text)
    fields = (_FieldReader(canonical, kind).read(field) for kind, field in _split(canonical))
    return canonical, " ".join(fields)


@dataclass(frozen=True, slots=True)
class _FieldKind:
    """What may stand in one field."""

    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()

    @property
    def expected(self) -> str:
        named = f" or {self.names[0]}-{self.names[-1]}" if self.names else ""
        return f"{self.low}-{self.high}{named}"

    @property
    def size(self) -> int:
        return len(self.values)

    @property
    def values(self) -> range:
        # Day 7 is day 0 again, not an eighth one.
        return range(self.low, 7 if self.is_weekday else self.high + 1)

    @property
    def is_weekday(self) -> bool:
        return self.name == "day-of-week"

    @property
    def is_day(self) -> bool:
        return self.name == "day-of-month"


_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_KINDS = (
    _FieldKind("second", 0, 59),
    _FieldKind("minute", 0, 59),
    _FieldKind("hour", 0, 23),
    _FieldKind("day-of-month", 1, 31),
    _FieldKind("month", 1, 12, _MONTHS),
    _FieldKind("day-of-week", 0, 7, _WEEKDAYS),
)


@dataclass(frozen=True, slots=True)
class _FieldReader:
    """Checks one field and writes it down in the way cronsim reads it."""

    text: str
    kind: _FieldKind

    def read(self, field: str) -> str:
        return ",".join(self._term(term) for term in field.split(","))

    def _term(self, term: str) -> str:
        base, slash, step = term.partition("/")
        if self.kind.is_day and term.upper().startswith("L") and term.upper() not in ("L", "LW"):
            raise self._error(term, "L or LW by itself, or 1-31")
        if slash:
            return self._stepped(base, self._step(step))
        if base == "*" or (self.kind.is_day and base.upper() in ("L", "LW")):
            return base.upper()
        if self.kind.is_weekday and "#" in base:
            return self._nth(base)
        if self.kind.is_weekday and base.upper().endswith("L"):
            return self._last(base)
        return self._range(base) if "-" in base else str(self._value(base))

    def _stepped(self, base: str, step: int) -> str:
        if base == "*":
            # Kept as it is: whether a field begins with a star has a meaning of its own.
            return f"*/{step}"
        start, end = self._ends(base) if "-" in base else self._from(base)
        return ",".join(map(str, self._values(start, end)[::step]))

    def _range(self, base: str) -> str:
        start, end = self._ends(base)
        if start <= end:
            return f"{start}-{end}"
        if self.kind.is_weekday:
            # Sunday as day 7 closes the week, so that "fri-sun" stays one range in plain words.
            return f"{start}-7" if end == 0 else f"{start}-7,{self._short(1, end)}"
        return f"{self._short(start, self.kind.high)},{self._short(self.kind.low, end)}"

    def _values(self, start: int, end: int) -> list[int]:
        """All values from *start* to *end*, over the end of the field if need be."""
        values = self.kind.values
        length = (end - start) % self.kind.size if start > end else end - start
        return [
            values[(start - self.kind.low + step) % self.kind.size] for step in range(min(length + 1, self.kind.size))
        ]

    def _ends(self, base: str) -> tuple[int, int]:
        left, _, right = base.partition("-")
        if "-" in right:
            raise self._error(base, f"a range within {self.kind.expected}")
        start, end = self._value(left), self._value(right)
        if self.kind.is_weekday and start == 7 and end != 7:
            start = 0
        return start, end

    def _last(self, base: str) -> str:
        if len(base) == 1:
            raise self._error(base, "a day before L", hint="for the last Friday of the month, write friL")
        return f"{self._value(base[:-1])}L"

    def _from(self, base: str) -> tuple[int, int]:
        start = self._value(base)
        return 0 if self.kind.is_weekday and start == 7 else start, self.kind.values[-1]

    def _nth(self, base: str) -> str:
        day, _, nth = base.partition("#")
        if nth not in ("1", "2", "3", "4", "5"):
            raise self._error(nth, "1-5 after #", part=f"{self.kind.name} number")
        return f"{self._value(day)}#{nth}"

    def _step(self, step: str) -> int:
        value = _whole_number(step)
        if value is None or not 1 <= value <= self.kind.size:
            hint = "for a period that does not divide the hour or the day, use interval_seconds" if value else None
            raise self._error(step, f"1-{self.kind.size}", part=f"{self.kind.name} step", hint=hint)
        return value

    def _value(self, word: str) -> int:
        if word.lower() in self.kind.names:
            return self.kind.names.index(word.lower()) + self.kind.low
        value = _whole_number(word)
        if value is None or not self.kind.low <= value <= self.kind.high:
            hint = "write * instead of ?" if word == "?" else None
            raise self._error(word, self.kind.expected, hint=hint)
        return value

    @staticmethod
    def _short(start: int, end: int) -> str:
        return str(start) if start == end else f"{start}-{end}"

    def _error(self, found: str, expected: str, *, part: str | None = None, hint: str | None = None) -> CronSyntaxError:
        return CronSyntaxError(
            self.text, part=part or self.kind.name, found=found or "empty", expected=expected, hint=hint
        )


def _canonical(text: str) -> str:
    if len(text) > MAX_LENGTH:
        found = f"{len(text)} characters"
        raise CronSyntaxError(quote_text(text), part="length", found=found, expected=f"at most {MAX_LENGTH}")
    if not text.replace("\t", " ").isprintable():
        raise CronSyntaxError(
            quote_text(text), part="text", found="not printable", expected="fields separated by spaces"
        )
    return " ".join(text.split())


def _split(text: str) -> list[tuple[_FieldKind, str]]:
    fields = text.split()
    if text.startswith("@"):
        fields = _spelt_out(text).split()
    if len(fields) not in (5, 6):
        expected = "5 (minute hour day-of-month month day-of-week), or 6 with seconds in front"
        raise CronSyntaxError(text, part="number of fields", found=str(len(fields)), expected=expected)
    return list(zip(_KINDS[-len(fields) :], fields, strict=True))


def _spelt_out(word: str) -> str:
    if word.lower() not in NICKNAMES:
        hint = "for a fixed period, use interval_seconds" if word.lower().startswith("@every") else None
        raise CronSyntaxError(word, part="word", found=word, expected=", ".join(NICKNAMES), hint=hint)
    return NICKNAMES[word.lower()]


def _whole_number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None
