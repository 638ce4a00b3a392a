"""`timeball next`, `plan`, `apply` and `forecast`: when jobs run."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from datetime import date
from typing import TYPE_CHECKING, Annotated, Any, Literal
from zoneinfo import ZoneInfo

import typer

from timeball.cli.formatting import as_document, encodable_json
from timeball.cli.output import Column, ColumnKind, OutputFormat
from timeball.cli.session import CliSession
from timeball.cli.tree import AsJson, Reason, Yes, command, command_without_session, ungrouped_commands
from timeball.clock import SystemClock
from timeball.domain.scheduling.civil_time import parse_instant
from timeball.domain.scheduling.schedule import Occurrence, parse_schedule

if TYPE_CHECKING:
    from timeball.client import AsyncClient

commands = ungrouped_commands()


@command_without_session(
    commands, "next", 'timeball next "30 2 * * *" --tz Europe/Berlin', 'timeball next "0 9 * * mon-fri" -n 3 --json'
)
def next_times(
    schedule: Annotated[str, typer.Argument(help='A cron expression, such as "30 2 * * *".')],
    tz: Annotated[str, typer.Option("--tz", help="An IANA time zone.")] = "UTC",
    count: Annotated[int, typer.Option("-n", "--count", min=1, max=1000, help="How many.")] = 10,
    on_gap: Annotated[str, typer.Option(help="When the clock skips the time: next_valid or skip.")] = "next_valid",
    on_repeat: Annotated[str, typer.Option(help="When it happens twice: first, second or both.")] = "first",
    after: Annotated[str | None, typer.Option(help="From this instant on (ISO 8601); none means now.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show when a schedule would fire, with the clock changes marked. Needs no server."""

    show_next(schedule, tz, count, on_gap=on_gap, on_repeat=on_repeat, after=after, as_json=as_json)


# When would it fire?


def show_next(
    schedule: str, timezone: str, count: int, *, on_gap: str, on_repeat: str, after: str | None, as_json: bool
) -> None:
    """Print the next times of a cron expression, local and UTC, and what clock changes do to them."""
    now = SystemClock().now()
    rule = parse_schedule(schedule=schedule, timezone=timezone, on_gap=on_gap, on_repeat=on_repeat, now=now)
    start = now if after is None else parse_instant(after, timezone, "--after")
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
                orjson.dumps(
                    [_occurrence_document(item, timezone) for item in found], option=orjson.OPT_INDENT_2
                ).decode(),
                sys.stdout,
            )
        )
        return
    typer.echo(rule.describe())
    for item in found:
        typer.echo(_occurrence_line(item, timezone))


def _occurrence_line(occurrence: Occurrence, timezone: str) -> str:
    local = occurrence.at.astimezone(ZoneInfo(timezone))
    note = (
        ""
        if occurrence.note is None
        else f"  {occurrence.note.kind.value.replace('_', ' ')} ({occurrence.note.wall:%H:%M:%S})"
    )
    return f"{local:%a %d %b %Y %H:%M:%S %Z}  {occurrence.at:%Y-%m-%dT%H:%M:%SZ}{note}"


def _occurrence_document(occurrence: Occurrence, timezone: str) -> dict[str, object]:
    return {
        "at": occurrence.at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "local": occurrence.at.astimezone(ZoneInfo(timezone)).isoformat(),
        "is_due": occurrence.is_due,
        "note": None if occurrence.note is None else occurrence.note.kind.value,
    }


# `timeball plan` and `timeball apply`: what the schedules declared in a program would change, and doing it.

Program = Annotated[
    str, typer.Argument(metavar="APP", help="Where your schedules are: module:attribute, such as app:tb.")
]
Prune = Annotated[
    bool, typer.Option("--prune", help="Also delete what this program declared once and declares no more.")
]

_STEP_COLUMNS = [
    Column("action", kind=ColumnKind.STATE),
    Column("name"),
    Column("changes", lambda step: "; ".join(f"{name}: {_change_text(one)}" for name, one in step["changes"].items())),
    Column("next before", lambda step: step["next_before"][:1], ColumnKind.TEXT),
    Column("next after", lambda step: step["next_after"][:1], ColumnKind.TEXT),
]


@command(commands, "plan", "timeball plan app:tb", "timeball plan app:tb --prune --json")
def plan(session: CliSession, program: Program, prune: Prune = False) -> None:
    """Show what the schedules declared in a program would change, with fire times before and after; changes nothing."""
    show_plan(session, _sync(session, program, prune=prune, dry_run=True))


@command(commands, "apply", "timeball apply app:tb --yes")
def apply(session: CliSession, program: Program, prune: Prune = False, yes: Yes = False, reason: Reason = None) -> None:
    """Make the schedules declared in a program jobs, or bring those of the same names up to date."""
    if not yes:
        planned = _sync(session, program, prune=prune, dry_run=True)
        show_plan(session, planned)
        session.printer.confirm(f"{summary(planned)}. Do it?", yes=yes)
    show_plan(session, _sync(session, program, prune=prune, dry_run=False, reason=reason))


def _sync(session: CliSession, reference: str, *, prune: bool, dry_run: bool, reason: str | None = None) -> Any:
    from timeball.sdk.app_loader import load_app

    declared = load_app(reference)
    groups: dict[str, list[dict[str, Any]]] = {}
    for origin, spec in declared.declarations():
        groups.setdefault(origin, []).append(_job_document(spec))

    async def sync(client: Any) -> list[Any]:
        return [
            await client.jobs.sync(jobs, origin, prune=prune, dry_run=dry_run, reason=reason)
            for origin, jobs in groups.items()
        ]

    return session.talk(sync, declared.settings)


def _job_document(spec: Any) -> dict[str, Any]:
    """A declared job as the API takes it: what is as it always is need not be said.

    What its handler declares is said in any case, and nothing is checked again: the program knows better than what was deployed last.
    """
    import orjson

    from timeball.domain.handler_contract import OPTION_FIELDS
    from timeball.domain.job import SPEC_FIELDS, JobSpec

    usual = JobSpec(handler=spec.handler)
    named = {name: getattr(spec, name) for name in (*SPEC_FIELDS, "handler", "payload")}
    always = {"handler", *OPTION_FIELDS}
    said = {name: value for name, value in named.items() if name in always or value != getattr(usual, name)}
    said["unchecked"] = True
    document: dict[str, Any] = orjson.loads(orjson.dumps(said, default=_json_default, option=orjson.OPT_UTC_Z))
    return document


def _json_default(value: Any) -> Any:
    return list(value) if isinstance(value, tuple | frozenset | set) else str(value)


def show_plan(session: CliSession, results: list[Any]) -> None:
    """What is done to each job, or would be."""
    steps = [step for result in results for step in result.jobs]
    session.printer.rows(steps, _STEP_COLUMNS, empty="no jobs are declared")
    for result in results:
        session.printer.warn(result)
    session.printer.say(summary(results))


def summary(results: list[Any]) -> str:
    """How many are created, changed, deleted and left."""
    would = "would be " if any(result.dry_run for result in results) else ""
    number = {
        name: sum(getattr(result, name) for result in results) for name in ("created", "changed", "deleted", "left")
    }
    return f"{number['created']} {would}created, {number['changed']} changed, {number['deleted']} deleted, {number['left']} left"


def _change_text(change: Any) -> str:
    return f"{change['before']} -> {change['after']}"


# `timeball forecast`: the demand of the next days as a map of hours, and what collides.

Document = Mapping[str, Any]


# Each asks the server to look ahead once more.
_MAX_SUGGESTED = 5
_LEVELS = "▁▂▃▄▅▆▇█"
_HOUR_COLUMNS = [
    Column("date"),
    Column("hour", kind=ColumnKind.NUMBER),
    Column("busy", kind=ColumnKind.NUMBER),
    Column("starts", kind=ColumnKind.NUMBER),
    Column("note"),
]
_SUGGESTION_COLUMNS = [
    Column("job"),
    Column("schedule_before"),
    Column("schedule_after"),
    Column("peak_before", kind=ColumnKind.NUMBER),
    Column("peak_after", kind=ColumnKind.NUMBER),
]

Days = Annotated[int, typer.Option("--days", min=1, max=31, help="For how many days, today included.")]
Queue = Annotated[str | None, typer.Option("--queue", help="Only of this queue.")]
Measure = Annotated[Literal["busy", "starts"], typer.Option("--measure", help="busy (slots) or starts.")]
Spread = Annotated[bool, typer.Option("--spread", help="Also say which jobs to move so that fewer collide.")]
Zone = Annotated[str, typer.Option("--tz", help="Whose days and hours: an IANA time zone.")]


@command(
    commands,
    "forecast",
    "timeball forecast",
    "timeball forecast --queue mail --tz Europe/Berlin",
    "timeball forecast --spread",
)
def show_forecast(
    session: CliSession,
    days: Days = 7,
    queue: Queue = None,
    measure: Measure = "busy",
    tz: Zone = "UTC",
    spread: Spread = False,
) -> None:
    """Show how many slots each hour of the next days needs, which jobs collide, and how good yesterday's forecast was."""

    async def ask(client: AsyncClient) -> tuple[Any, Any]:
        forecast = await client.time.forecast(days=days, queue=queue, measure=measure, timezone=tz)
        colliding = await client.time.collisions(days=days, queue=queue, timezone=tz)
        collisions = [dict(as_document(one)) for one in colliding]
        for one in collisions[: _MAX_SUGGESTED if spread else 0]:
            found = await client.schedules.suggest(queues=one["queues"], at=one["start"], days=days, timezone=tz)
            one["spread"] = as_document(found)
        return forecast, collisions

    found, collisions = session.talk(ask)
    forecast = as_document(found)
    printer = session.printer
    if printer.output in (OutputFormat.JSON, OutputFormat.JSONL):
        printer.details({**forecast, "collisions": collisions}, [])
    elif printer.output is OutputFormat.CSV or (not printer.is_terminal and printer.output is None):
        printer.rows(
            *((_suggestions(collisions), _SUGGESTION_COLUMNS) if spread else (_hours(forecast), _HOUR_COLUMNS))
        )
    else:
        for line in forecast_lines(forecast, collisions):
            printer.words(line)


def _hours(forecast: Document) -> Iterable[Document]:
    return [hour | {"date": day["date"]} for day in forecast["days"] for hour in day["hours"]]


def _suggestions(collisions: Iterable[Document]) -> Iterable[Document]:
    found = [suggestion for one in collisions for suggestion in one.get("spread", {}).get("suggestions", ())]
    return [one | {"job": one["job"]["label"]} for one in found]


def forecast_lines(forecast: Document, collisions: Iterable[Document]) -> Iterable[str]:
    """The map, what collides, and how good it was."""
    yield f" next {len(forecast['days'])} days   {_measure_text(forecast)}   zone {forecast['timezone']}"
    yield "        " + " ".join(f"{hour:02}" for hour in range(24))
    for day in forecast["days"]:
        cells = " ".join(f"{_cell(hour, _cell_maximum(forecast))} " for hour in day["hours"])
        yield f" {date.fromisoformat(day['date']):%a %d} {cells}  {_day_text(day)}".rstrip()
    for number, one in enumerate(collisions, start=1):
        yield f" {number:>2}  {one['sentence']}"
        yield from _spread_lines(one.get("spread"))
    yield from _remarks(forecast)


def _spread_lines(spread: Document | None) -> Iterable[str]:
    if spread is not None:
        yield from (f"       {one['sentence']}" for one in spread["suggestions"])
        yield from (f"       {one['label']} stays: {one['why']}" for one in spread["left_out"])
        yield f"     → {spread['sentence']}"


def _measure_text(forecast: Document) -> str:
    return f"busy of {forecast['slots']} slots" if forecast["measure"] == "busy" else "starts"


def _cell_maximum(forecast: Document) -> float:
    """What a full cell stands for: all slots, or the most starts of an hour."""
    if forecast["measure"] == "busy" and forecast["slots"]:
        return float(forecast["slots"])
    return max((hour["value"] or 0 for day in forecast["days"] for hour in day["hours"]), default=0) or 1


def _cell(hour: Document, full: float) -> str:
    match hour["note"]:
        case "gap":
            return "╳"
        case "past":
            return " "
    value = hour["value"] or 0
    if not value:
        return "·"
    return _LEVELS[min(int(value / full * len(_LEVELS)), len(_LEVELS) - 1)]


def _day_text(day: Document) -> str:
    notes = [f"{hour['hour']:02}:00 does not exist (clock change)" for hour in day["hours"] if hour["note"] == "gap"]
    notes += [f"{hour['hour']:02}:00 comes twice (clock change)" for hour in day["hours"] if hour["note"] == "repeat"]
    return "   ".join(([day["peak"]["sentence"]] if day["peak"] else []) + notes)


def _remarks(forecast: Document) -> Iterable[str]:
    if forecast["without_history"]:
        yield f" without history, so guessed at: {', '.join(forecast['without_history'][:10])}"
    if forecast["left_out"]:
        yield f" {forecast['left_out']} jobs were too many to foresee"
    past = forecast["hindsight"]
    peaks = f"predicted {past['predicted_peak']:g} at peak, measured {past['measured_peak']:g}"
    yield f" How good was this?  yesterday {peaks}"
