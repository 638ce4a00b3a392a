"""The options that describe or select jobs, shared by several commands."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from timeball.domain.job_fields import SPEC_FIELDS, TIME_FIELDS
from timeball.domain.policies import IfExists, Shift
from timeball.errors import InvalidInput, quote_text


@dataclass(frozen=True)
class JobFilterFlags:
    """Which jobs are meant."""

    status: Annotated[
        str | None, typer.Option("--status", help="active, paused, finished; or states of the latest execution.")
    ] = None
    kind: Annotated[str | None, typer.Option("--kind", help="once, every, cron, rrule, after or manual.")] = None
    handler: Annotated[str | None, typer.Option("--handler", help="The handler's name.")] = None
    queue: Annotated[str | None, typer.Option("--queue", help="The queue's name.")] = None
    tag: Annotated[str | None, typer.Option("--tag", help="A tag.")] = None
    search: Annotated[str | None, typer.Option("--search", help="Part of the name.")] = None
    payload: Annotated[str | None, typer.Option("--payload", help="Part of the payload, as JSON text.")] = None
    query: Annotated[
        str | None, typer.Option("-q", "--query", help="In the language of search: 'queue:mail -tag:test'.")
    ] = None
    since: Annotated[str | None, typer.Option("--since", help="Created since: an instant, or a span ago.")] = None
    until: Annotated[str | None, typer.Option("--until", help="Created up to.")] = None

    def params(self) -> dict[str, Any]:
        """The filter as the API takes it."""
        params = {
            "status": self.status,
            "kind": self.kind,
            "handler": self.handler,
            "queue": self.queue,
            "tag": self.tag,
            "search": self.search,
            "payload": self.payload,
            "q": self.query,
            "start_date": None if self.since is None else read_moment(self.since, "--since"),
            "end_date": None if self.until is None else read_moment(self.until, "--until"),
        }
        return {name: value for name, value in params.items() if value is not None}


Arguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...", help="The payload: values that are JSON are taken as such, others as text."
    ),
]
MetaOption = Annotated[
    list[str] | None,
    typer.Option("--meta", metavar="KEY=VALUE", help="A word about it that is no argument; repeat for more."),
]
# The fields that have no option of their own.
_OTHER_FIELDS = [
    name
    for name in SPEC_FIELDS
    if name not in ("name", "handler", "payload", "description", *TIME_FIELDS)
    and name not in ("timezone", "queue", "priority", "max_retries", "timeout_ms", "tags", "meta")
    and name not in ("start_within_seconds", "expires_at", "unique_key", "if_exists", "unique_for_seconds")
    and name not in ("skip_on", "only_on", "shift")
]
PRIORITIES = {"low": 25, "normal": 50, "high": 75, "critical": 100}


@dataclass(frozen=True)
class JobFlags:
    """When and how a job runs."""

    cron: Annotated[str | None, typer.Option("--cron", help='A cron expression, such as "0 6 * * *", or an RRULE.')] = (
        None
    )
    every: Annotated[str | None, typer.Option("--every", help="A rhythm, such as 30s or 1h30m.")] = None
    at: Annotated[
        str | None, typer.Option("--at", help="Once, at this instant (ISO 8601; local time, or on --tz).")
    ] = None
    delay: Annotated[str | None, typer.Option("--in", help="Once, after this span, such as 10m.")] = None
    after: Annotated[
        str | None, typer.Option("--after", help="After each success of this job, by its name; for the same instant.")
    ] = None
    manual: Annotated[bool, typer.Option("--manual", help="Only when it is triggered.")] = False
    tz: Annotated[str | None, typer.Option("--tz", help="The IANA time zone of --cron and --at.")] = None
    skip_on: Annotated[
        list[str] | None, typer.Option("--skip-on", help="A calendar whose days are left out; repeat for more.")
    ] = None
    only_on: Annotated[
        list[str] | None, typer.Option("--only-on", help="A calendar on whose days alone it runs; repeat for more.")
    ] = None
    shift: Annotated[
        str | None, typer.Option("--shift", help=f"Where a day of --skip-on goes: {', '.join(Shift)}.")
    ] = None
    queue: Annotated[str | None, typer.Option("--queue", help="The queue to wait in.")] = None
    priority: Annotated[
        str | None, typer.Option("--priority", help="0 to 100, higher first; or low, normal, high, critical.")
    ] = None
    retries: Annotated[int | None, typer.Option("--retries", min=0, help="How often it is tried again.")] = None
    timeout: Annotated[str | None, typer.Option("--timeout", help="How long an attempt may take, such as 30s.")] = None
    expires: Annotated[
        str | None,
        typer.Option(
            "--expires", help="Skip it if it has not begun so long after its time, such as 10m; or an instant."
        ),
    ] = None
    key: Annotated[
        str | None, typer.Option("--key", help="While an execution with this key is unfinished, there is no second.")
    ] = None
    if_exists: Annotated[
        str | None,
        typer.Option("--if-exists", help=f"What becomes of one that waits with the key: {', '.join(IfExists)}."),
    ] = None
    unique_for: Annotated[
        str | None, typer.Option("--unique-for", help="The key stays taken so long after its time, such as 10m.")
    ] = None
    tag: Annotated[list[str] | None, typer.Option("--tag", help="A tag; repeat for more.")] = None
    meta: MetaOption = None
    description: Annotated[str | None, typer.Option("--description", help="What it is for.")] = None
    payload: Annotated[
        str | None, typer.Option("--payload", help="The payload as JSON; @file reads a file, - reads stdin.")
    ] = None
    other: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="FIELD=VALUE", help=f"Any other field, such as overlap=allow: {', '.join(_OTHER_FIELDS)}."
        ),
    ] = None

    def fields(self, arguments: Sequence[str] | None = None) -> dict[str, Any]:
        """The fields of a job that were given, as the API takes them."""
        self._check_one_schedule()
        fields: dict[str, Any] = {
            "schedule": "manual" if self.manual else self.cron,
            "interval_seconds": None if self.every is None else _seconds(self.every, "--every"),
            "scheduled_at": self._instant(),
            "after": self.after,
            "timezone": self.tz,
            "skip_on": self.skip_on or None,
            "only_on": self.only_on or None,
            "shift": self.shift,
            "queue": self.queue,
            "priority": None if self.priority is None else read_priority(self.priority),
            "max_retries": self.retries,
            "timeout_ms": None if self.timeout is None else int(_seconds(self.timeout, "--timeout") * 1000),
            "unique_key": self.key,
            "if_exists": self.if_exists,
            "unique_for_seconds": None if self.unique_for is None else int(_seconds(self.unique_for, "--unique-for")),
            "tags": self.tag or None,
            "meta": read_pairs(self.meta or (), "--meta") or None,
            "description": self.description,
            "payload": self._payload(arguments or ()),
        }
        given = {name: value for name, value in fields.items() if value is not None}
        return given | expiry_fields(self.expires, self.tz) | _read_fields(self.other or ())

    def _check_one_schedule(self) -> None:
        schedules = {
            "--cron": self.cron,
            "--every": self.every,
            "--at": self.at,
            "--in": self.delay,
            "--after": self.after,
        }
        given = [option for option, text in schedules.items() if text is not None] + ["--manual"] * self.manual
        if len(given) > 1:
            raise InvalidInput(
                f"{' and '.join(given)} are given, expected one of them",
                field="schedule",
                hint="leave out what you do not mean",
            )

    def _instant(self) -> str | None:
        if self.delay is not None:
            from timeball.domain.values.wording import parse_duration
            from timeball.env import SystemClock

            return _utc_text(SystemClock().now() + parse_duration(self.delay, "--in"))
        if self.at is None or self.tz is not None:
            return self.at  # without an offset it is on the clock of --tz, and the API knows best
        return _utc_text(read_moment(self.at, "--at"))

    def _payload(self, arguments: Sequence[str]) -> Any:
        if self.payload is None:
            return read_pairs(arguments, "the payload") or None
        if arguments:
            raise InvalidInput(
                "--payload and KEY=VALUE are given, expected one of them", field="payload", hint="leave out one"
            )
        return read_json(self.payload)


def expiry_fields(text: str | None, timezone: str | None = None) -> dict[str, Any]:
    """The field that `--expires` gives: a span, or an instant, which is local time if it has neither offset nor *timezone*."""
    if text is None:
        return {}
    from timeball.domain.expiry import parse_expiry

    expiry = parse_expiry(text, "--expires", timezone or "UTC")
    if expiry.expires_at is None:
        return {"start_within_seconds": expiry.start_within_seconds}
    local = expiry.expires_at if timezone is not None else read_moment(text, "--expires")
    return {"expires_at": _utc_text(local)}


def read_pairs(pairs: Sequence[str], what: str) -> dict[str, Any]:
    """`key=value` words as a mapping."""
    mapping: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise InvalidInput(
                f"{what} has {quote_text(pair)!r}, expected KEY=VALUE", hint="such as to=a@b.co or count=3"
            )
        mapping[key] = read_value(text)
    return mapping


def _read_fields(pairs: Sequence[str]) -> dict[str, Any]:
    """The fields of `--set`. A field of text takes what looks like a number as text, and `null` as no value."""
    values = read_pairs(pairs, "--set")
    texts = {name: text for name, _, text in (pair.partition("=") for pair in pairs)}
    for name, value in values.items():
        is_text = name in SPEC_FIELDS and SPEC_FIELDS[name].is_text
        if is_text and value is not None and not isinstance(value, str):
            values[name] = texts[name]
    return values


def read_value(text: str) -> Any:
    """A value that is JSON as such, any other as text: `3`, `true`, `[1,2]`, `hello`."""
    import orjson

    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


def read_json(text: str) -> Any:
    """JSON as it stands, out of a file (`@file`), or out of stdin (`-`)."""
    from timeball.domain.values.json_text import parse_json

    hint = """such as --payload '{"to": "a@b.co"}'"""
    return parse_json(_payload_text(text), "--payload", field="payload", hint=hint)


def _payload_text(text: str) -> str:
    if text == "-":
        return sys.stdin.read()
    if not text.startswith("@"):
        return text
    return read_file(Path(text[1:]), "payload")


def read_file(file: Path, field: str) -> str:
    """The text of a file."""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        is_text = isinstance(error, OSError)
        why = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        hint = "check its name and who may read it; - reads stdin" if is_text else "save it as UTF-8"
        raise InvalidInput(f"{file} cannot be read: {why}", field=field, hint=hint) from None


def json_type(value: Any) -> str:
    """What a JSON value is, without telling it."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true or false"
        case str():
            return "text"
        case int() | float():
            return "a number"
        case list():
            return "a list"
        case _:
            return "an object"


def read_priority(text: str) -> int:
    """A priority as a number or as a word."""
    if text in PRIORITIES:
        return PRIORITIES[text]
    if not (text.isascii() and text.isdecimal() and int(text[:9]) <= PRIORITIES["critical"]):
        from timeball.domain.values.field_errors import list_choices, unexpected_value

        raise unexpected_value("--priority", text, f"0 to 100, {list_choices(PRIORITIES)}", field="priority")
    return int(text)


def read_moment(text: str, option: str) -> datetime:
    """An instant as people type it: ISO 8601, on this machine's clock if it has no offset; a span ago, `2h`, or ahead, `+2h`."""
    from timeball.domain.values.wording import parse_duration
    from timeball.env import SystemClock

    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        pass
    try:
        span = parse_duration(text.removeprefix("-").removeprefix("+"))
        return SystemClock().now() + (span if text.startswith("+") else -span)
    except InvalidInput:
        from timeball.domain.values.field_errors import unexpected_value

        expected = "an instant such as 2026-11-16T06:00, a span ago such as 2h, or ahead such as +2h"
        raise unexpected_value(option, text, expected) from None


UntilOption = Annotated[
    str | None,
    typer.Option("--until", help="When it resumes by itself: mon-08:00, 18:30, 2027-01-04T06:00 or in 2h."),
]
_CLOCK = re.compile(r"(?:[01]\d|2[0-3]):[0-5]\d", re.ASCII)
_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


def read_moment_ahead(text: str, option: str) -> datetime:
    """An instant to come, as people type it: `mon-08:00`, `18:30`, ISO 8601, or a span from now: `2h`.

    Without an offset it is on this machine's clock. A day or a time of day means the next one.
    """
    from timeball.domain.values.field_errors import unexpected_value
    from timeball.domain.values.wording import parse_duration
    from timeball.env import SystemClock

    now = SystemClock().now()
    named = _next_named(text.strip().lower(), now)
    if named is not None:
        return named
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        pass
    try:
        return now + parse_duration(text)
    except InvalidInput:
        expected = "mon-08:00, 18:30, an instant such as 2026-11-16T06:00, or a span such as 2h"
        raise unexpected_value(option, text, expected) from None


def _next_named(text: str, now: datetime) -> datetime | None:
    """The next such weekday or time of day on this machine's clock; None if the text names neither."""
    day, _, clock = text.rpartition("-")
    if day and day not in _DAYS:
        return None
    if _CLOCK.fullmatch(clock) is None:
        return None
    at = time.fromisoformat(clock)
    today = now.astimezone().date()
    days = (today + timedelta(days=ahead) for ahead in range(8))
    instants = (
        datetime.combine(date_, at).astimezone(UTC) for date_ in days if not day or _DAYS[date_.weekday()] == day
    )
    return next(instant for instant in instants if instant > now)


def _seconds(text: str, option: str) -> float:
    from timeball.domain.values.wording import parse_duration

    return parse_duration(text, option).total_seconds()


def _utc_text(instant: datetime) -> str:
    return instant.astimezone(UTC).isoformat().replace("+00:00", "Z")
