"""`timeball forecast`: the demand of the next days as a map of hours, and what collides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from timeball.cli.render import Column, Kind, Output, as_document
from timeball.cli.session import Session
from timeball.cli.tree import command, topic

if TYPE_CHECKING:
    from timeball.client import AsyncClient

Document = Mapping[str, Any]

# Each asks the server to look ahead once more.
_MOST_SPREAD = 5
_LEVELS = "▁▂▃▄▅▆▇█"
_COLUMNS = [
    Column("date"),
    Column("hour", kind=Kind.NUMBER),
    Column("busy", kind=Kind.NUMBER),
    Column("starts", kind=Kind.NUMBER),
    Column("note"),
]
_SUGGESTION_COLUMNS = [
    Column("job"),
    Column("schedule_before"),
    Column("schedule_after"),
    Column("peak_before", kind=Kind.NUMBER),
    Column("peak_after", kind=Kind.NUMBER),
]

Days = Annotated[int, typer.Option("--days", min=1, max=31, help="For how many days, today included.")]
Queue = Annotated[str | None, typer.Option("--queue", help="Only of this queue.")]
Measure = Annotated[Literal["busy", "starts"], typer.Option("--measure", help="busy (slots) or starts.")]
Spread = Annotated[bool, typer.Option("--spread", help="Also say which jobs to move so that fewer collide.")]
Zone = Annotated[str, typer.Option("--tz", help="Whose days and hours: an IANA time zone.")]

commands = topic()


@command(
    commands,
    "forecast",
    "timeball forecast",
    "timeball forecast --queue mail --tz Europe/Berlin",
    "timeball forecast --spread",
)
def show_forecast(
    session: Session,
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
        for one in collisions[: _MOST_SPREAD if spread else 0]:
            found = await client.schedules.suggest(queues=one["queues"], at=one["start"], days=days, timezone=tz)
            one["spread"] = as_document(found)
        return forecast, collisions

    found, collisions = session.talk(ask)
    forecast = as_document(found)
    printer = session.printer
    if printer.output in (Output.JSON, Output.JSONL):
        printer.details({**forecast, "collisions": collisions}, [])
    elif printer.output is Output.CSV or (not printer.is_terminal and printer.output is None):
        printer.rows(*((_suggestions(collisions), _SUGGESTION_COLUMNS) if spread else (_hours(forecast), _COLUMNS)))
    else:
        for line in drawn(forecast, collisions):
            printer.words(line)


def _hours(forecast: Document) -> Iterable[Document]:
    return [hour | {"date": day["date"]} for day in forecast["days"] for hour in day["hours"]]


def _suggestions(collisions: Iterable[Document]) -> Iterable[Document]:
    found = [suggestion for one in collisions for suggestion in one.get("spread", {}).get("suggestions", ())]
    return [one | {"job": one["job"]["label"]} for one in found]


def drawn(forecast: Document, collisions: Iterable[Document]) -> Iterable[str]:
    """The map, what collides, and how good it was."""
    yield f" next {len(forecast['days'])} days   {_measure_words(forecast)}   zone {forecast['timezone']}"
    yield "        " + " ".join(f"{hour:02}" for hour in range(24))
    for day in forecast["days"]:
        cells = " ".join(f"{_cell(hour, _full(forecast))} " for hour in day["hours"])
        yield f" {date.fromisoformat(day['date']):%a %d} {cells}  {_day_words(day)}".rstrip()
    for number, one in enumerate(collisions, start=1):
        yield f" {number:>2}  {one['sentence']}"
        yield from _spread_words(one.get("spread"))
    yield from _remarks(forecast)


def _spread_words(spread: Document | None) -> Iterable[str]:
    if spread is not None:
        yield from (f"       {one['sentence']}" for one in spread["suggestions"])
        yield from (f"       {one['label']} stays: {one['why']}" for one in spread["left_out"])
        yield f"     → {spread['sentence']}"


def _measure_words(forecast: Document) -> str:
    return f"busy of {forecast['slots']} slots" if forecast["measure"] == "busy" else "starts"


def _full(forecast: Document) -> float:
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


def _day_words(day: Document) -> str:
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
