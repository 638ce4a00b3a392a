"""When would it fire?"""

from __future__ import annotations

import sys
from zoneinfo import ZoneInfo

import typer

from timeball.cli.render import encodable_json
from timeball.clock import SystemClock
from timeball.domain.civil_time import read_moment
from timeball.domain.schedule import Occurrence, parse_schedule


def show_next(
    schedule: str, timezone: str, count: int, *, on_gap: str, on_repeat: str, after: str | None, as_json: bool
) -> None:
    """Print the next times of a cron expression, local and UTC, and what clock changes do to them."""
    now = SystemClock().now()
    rule = parse_schedule(schedule=schedule, timezone=timezone, on_gap=on_gap, on_repeat=on_repeat, now=now)
    start = now if after is None else read_moment(after, timezone, "--after")
    found: list[Occurrence] = []
    due = 0
    for occurrence in rule.occurrences(start, with_skipped=True):
        found.append(occurrence)
        due += occurrence.is_due
        if due == count:
            break
    if as_json:
        import orjson

        typer.echo(
            encodable_json(
                orjson.dumps([_document(item, timezone) for item in found], option=orjson.OPT_INDENT_2).decode(),
                sys.stdout,
            )
        )
        return
    typer.echo(rule.describe())
    for item in found:
        typer.echo(_line(item, timezone))


def _line(occurrence: Occurrence, timezone: str) -> str:
    local = occurrence.at.astimezone(ZoneInfo(timezone))
    note = (
        ""
        if occurrence.note is None
        else f"  {occurrence.note.kind.value.replace('_', ' ')} ({occurrence.note.wall:%H:%M:%S})"
    )
    return f"{local:%a %d %b %Y %H:%M:%S %Z}  {occurrence.at:%Y-%m-%dT%H:%M:%SZ}{note}"


def _document(occurrence: Occurrence, timezone: str) -> dict[str, object]:
    return {
        "at": occurrence.at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "local": occurrence.at.astimezone(ZoneInfo(timezone)).isoformat(),
        "is_due": occurrence.is_due,
        "note": None if occurrence.note is None else occurrence.note.kind.value,
    }
