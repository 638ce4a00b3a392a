"""`timeball next`, `plan`, `apply` and `forecast`: when jobs run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date
from typing import TYPE_CHECKING, Annotated, Any, Literal
from zoneinfo import ZoneInfo

import typer

from timeball.cli.output import Column, ColumnKind, Document, OutputFormat, as_document
from timeball.cli.session import CliSession
from timeball.cli.tree import Reason, Yes, command, ungrouped_commands
from timeball.cli.views import show_fire_times, show_plan, summarise_plan
from timeball.domain.policies import OnGap, OnRepeat, Shift
from timeball.domain.scheduling.civil_time import parse_instant
from timeball.domain.scheduling.rrule import is_rrule
from timeball.domain.scheduling.schedule import Occurrence, parse_schedule
from timeball.env import SystemClock
from timeball.errors import InvalidInput

if TYPE_CHECKING:
    from timeball.client import AsyncClient

commands = ungrouped_commands()


@command(
    commands,
    "next",
    'timeball next "30 2 * * *" --tz Europe/Berlin',
    'timeball next "0 9 * * mon-fri" -n 3 --json',
    'timeball next "RRULE:FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=9" --tz Europe/Berlin',
    'timeball next "H H * * *" --name nightly',
    "timeball next nightly",
    'timeball next "0 9 15 * *" --skip-on holidays --shift next',
)
def next_times(
    session: CliSession,
    schedule: Annotated[
        str,
        typer.Argument(
            metavar="SCHEDULE|JOB", help='A cron expression, such as "30 2 * * *", an RRULE, or a job\'s name or id.'
        ),
    ],
    tz: Annotated[str | None, typer.Option("--tz", help="An IANA time zone. Default: UTC.")] = None,
    count: Annotated[int, typer.Option("-n", "--count", min=1, max=1000, help="How many to show.")] = 10,
    on_gap: Annotated[
        str | None,
        typer.Option(help=f"If a clock change skips the time: {', '.join(OnGap)}. Default: {OnGap.NEXT_VALID}."),
    ] = None,
    on_repeat: Annotated[
        str | None,
        typer.Option(help=f"If a clock change repeats the time: {', '.join(OnRepeat)}. Default: {OnRepeat.FIRST}."),
    ] = None,
    after: Annotated[str | None, typer.Option(help="From this instant on (ISO 8601). Default: now.")] = None,
    name: Annotated[
        str | None, typer.Option(help="The name of the job, from which H in the schedule is derived.")
    ] = None,
    skip_on: Annotated[
        list[str] | None, typer.Option("--skip-on", help="A calendar whose days are left out; repeat for more.")
    ] = None,
    only_on: Annotated[
        list[str] | None, typer.Option("--only-on", help="A calendar on whose days alone it fires; repeat for more.")
    ] = None,
    shift: Annotated[str | None, typer.Option(help=f"Where a day of --skip-on goes: {', '.join(Shift)}.")] = None,
) -> None:
    """Show when a schedule or a job fires, with clock changes, calendars and freezes marked.

    A cron expression needs no server, unless it names calendars.
    """
    options: dict[str, Any] = {
        "timezone": tz,
        "on_gap": on_gap,
        "on_repeat": on_repeat,
        "name": name,
        "skip_on": skip_on,
        "only_on": only_on,
        "shift": shift,
        "since": after,
    }
    given = {option: value for option, value in options.items() if value}
    if not _is_expression(schedule):
        if given:
            raise InvalidInput(
                f"{schedule} is a job, which has its own schedule; expected no option beside it but --count",
                field=next(iter(given)),
            )
        show_fire_times(session, session.talk(lambda client: client.jobs.next(schedule, count)))
    elif skip_on or only_on or shift:
        show_fire_times(
            session, session.talk(lambda client: client.schedules.preview(schedule=schedule, count=count, **given))
        )
    else:
        _show_times_of_cron(session, schedule, count, given)


# The fewest fields of a cron expression.
_FIELDS = 5


def _is_expression(text: str) -> bool:
    """Whether a text is meant as a cron expression or a recurrence rule, even a wrong one; the name of a job may have blanks, too."""
    if is_rrule(text):
        return True
    fields = text.split()
    return text.startswith("@") or "*" in text or len(fields) >= _FIELDS or (len(fields) > 1 and fields[0].isdigit())


def _show_times_of_cron(session: CliSession, schedule: str, count: int, options: Mapping[str, Any]) -> None:
    now = SystemClock().now()
    after, tz = options.get("since"), options.get("timezone", "UTC")
    rule = parse_schedule(
        schedule=schedule, now=now, **{option: value for option, value in options.items() if option != "since"}
    )
    start = now if after is None else parse_instant(after, tz, "--after")
    occurrences: list[Occurrence] = []
    due = 0
    for occurrence in rule.occurrences(start, with_skipped=True):
        occurrences.append(occurrence)
        due += occurrence.is_due
        if due == count:
            break
    if session.printer.is_for_programs:
        session.printer.rows([_occurrence_document(occurrence, tz) for occurrence in occurrences], _OCCURRENCE_COLUMNS)
        return
    typer.echo(rule.describe())
    for occurrence in occurrences:
        typer.echo(_occurrence_line(occurrence, tz))


_OCCURRENCE_COLUMNS = [Column("at"), Column("local"), Column("is_due"), Column("note")]


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


Program = Annotated[
    str, typer.Argument(metavar="APP", help="The program with your schedules: module:attribute, such as app:tb.")
]
Prune = Annotated[
    bool, typer.Option("--prune", help="Also delete jobs that this program declared before and declares no more.")
]


@command(commands, "plan", "timeball plan app:tb", "timeball plan app:tb --prune --json")
def plan(session: CliSession, program: Program, prune: Prune = False) -> None:
    """Show what `timeball apply` would change. Shows fire times before and after; changes nothing."""
    show_plan(session, _sync(session, program, prune=prune, dry_run=True))


@command(commands, "apply", "timeball apply app:tb --yes")
def apply(session: CliSession, program: Program, prune: Prune = False, yes: Yes = False, reason: Reason = None) -> None:
    """Create or update jobs from the schedules of a program."""
    if not yes:
        results = _sync(session, program, prune=prune, dry_run=True)
        show_plan(session, results)
        session.printer.confirm(f"{summarise_plan(results)}. Continue?", yes=yes)
    show_plan(session, _sync(session, program, prune=prune, dry_run=False, reason=reason))


def _sync(session: CliSession, reference: str, *, prune: bool, dry_run: bool, reason: str | None = None) -> Any:
    from timeball.sdk.app_loader import load_app

    program = load_app(reference)
    groups: dict[str, list[dict[str, Any]]] = {}
    for origin, spec in program.declarations():
        groups.setdefault(origin, []).append(_job_document(spec))

    async def sync(client: Any) -> list[Any]:
        return [
            await client.jobs.sync(jobs, origin, prune=prune, dry_run=dry_run, reason=reason)
            for origin, jobs in groups.items()
        ]

    return session.talk(sync, program.settings)


def _job_document(spec: Any) -> dict[str, Any]:
    """A declared job as the API takes it, without the fields that have their defaults.

    The options of its handler are always included, and the API checks nothing again: the program is newer than what is deployed.
    """
    import orjson

    from timeball.domain.job_fields import OPTION_FIELDS, SPEC_FIELDS, JobSpec

    defaults = JobSpec(handler=spec.handler)
    values = {name: getattr(spec, name) for name in SPEC_FIELDS}
    always = {"handler", *OPTION_FIELDS}
    fields = {name: value for name, value in values.items() if name in always or value != getattr(defaults, name)}
    fields["unchecked"] = True
    document: dict[str, Any] = orjson.loads(orjson.dumps(fields, default=_json_default, option=orjson.OPT_UTC_Z))
    return document


def _json_default(value: Any) -> Any:
    return list(value) if isinstance(value, tuple | frozenset | set) else str(value)


# Each suggestion is a forecast of its own on the server.
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

Days = Annotated[int, typer.Option("--days", min=1, max=31, help="How many days, today included.")]
Queue = Annotated[str | None, typer.Option("--queue", help="Only this queue.")]
Measure = Annotated[Literal["busy", "starts"], typer.Option("--measure", help="What to show: busy slots, or starts.")]
Spread = Annotated[bool, typer.Option("--spread", help="Also suggest which jobs to move so that fewer collide.")]
Zone = Annotated[str, typer.Option("--tz", help="The IANA time zone of days and hours.")]


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
    """Show how many slots each hour of the next days needs. Also which jobs collide, and how good yesterday's forecast was."""

    async def read(client: AsyncClient) -> tuple[Document, list[dict[str, Any]]]:
        forecast = await client.time.forecast(days=days, queue=queue, measure=measure, timezone=tz)
        collisions = [
            dict(as_document(collision))
            for collision in await client.time.collisions(days=days, queue=queue, timezone=tz)
        ]
        for collision in collisions[: _MAX_SUGGESTED if spread else 0]:
            collision["spread"] = as_document(
                await client.schedules.suggest(
                    queues=collision["queues"], at=collision["start"], days=days, timezone=tz
                )
            )
        return as_document(forecast), collisions

    forecast, collisions = session.talk(read)
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
    suggestions = [
        suggestion for collision in collisions for suggestion in collision.get("spread", {}).get("suggestions", ())
    ]
    return [suggestion | {"job": suggestion["job"]["label"]} for suggestion in suggestions]


def forecast_lines(forecast: Document, collisions: Iterable[Document]) -> Iterable[str]:
    """The forecast as text: a map of the hours, the collisions, and how good yesterday's forecast was."""
    yield f" next {len(forecast['days'])} days   {_measure_text(forecast)}   zone {forecast['timezone']}"
    yield "        " + " ".join(f"{hour:02}" for hour in range(24))
    for day in forecast["days"]:
        cells = " ".join(f"{_cell(hour, _cell_maximum(forecast))} " for hour in day["hours"])
        yield f" {date.fromisoformat(day['date']):%a %d} {cells}  {_day_text(day)}".rstrip()
    for number, collision in enumerate(collisions, start=1):
        yield f" {number:>2}  {collision['sentence']}"
        yield from _spread_lines(collision.get("spread"))
    yield from _remarks(forecast)


def _spread_lines(spread: Document | None) -> Iterable[str]:
    if spread is not None:
        yield from (f"       {suggestion['sentence']}" for suggestion in spread["suggestions"])
        yield from (f"       {job['label']} stays: {job['why']}" for job in spread["left_out"])
        yield f"     → {spread['sentence']}"


def _measure_text(forecast: Document) -> str:
    return f"busy of {forecast['slots']} slots" if forecast["measure"] == "busy" else "starts"


def _cell_maximum(forecast: Document) -> float:
    """The value of a full cell: all slots, or the most starts of an hour."""
    if forecast["measure"] == "busy" and forecast["slots"]:
        return float(forecast["slots"])
    return max((hour["value"] or 0 for day in forecast["days"] for hour in day["hours"]), default=0) or 1


def _cell(hour: Document, maximum: float) -> str:
    match hour["note"]:
        case "gap":
            return "╳"
        case "past":
            return " "
    value = hour["value"] or 0
    if not value:
        return "·"
    return _LEVELS[min(int(value / maximum * len(_LEVELS)), len(_LEVELS) - 1)]


def _day_text(day: Document) -> str:
    notes = [f"{hour['hour']:02}:00 does not exist (clock change)" for hour in day["hours"] if hour["note"] == "gap"]
    notes += [f"{hour['hour']:02}:00 comes twice (clock change)" for hour in day["hours"] if hour["note"] == "repeat"]
    return "   ".join(([day["peak"]["sentence"]] if day["peak"] else []) + notes)


def _remarks(forecast: Document) -> Iterable[str]:
    if forecast["without_history"]:
        yield f" estimated, because they have no history: {', '.join(forecast['without_history'][:10])}"
    if forecast["left_out"]:
        yield f" {forecast['left_out']} jobs are left out: there are too many"
    past = forecast["hindsight"]
    peaks = f"predicted {past['predicted_peak']:g} at peak, measured {past['measured_peak']:g}"
    yield f" Forecast accuracy  yesterday {peaks}"
