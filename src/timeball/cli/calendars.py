"""`timeball calendars`: named sets of days that jobs skip, or run on alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from timeball.cli.job_options import read_file
from timeball.cli.output import Column, ColumnKind
from timeball.cli.session import CliSession, take
from timeball.cli.tree import Limit, Yes, command, command_group, list_command

if TYPE_CHECKING:
    from timeball.client import AsyncClient

calendars = command_group(
    "calendars",
    "Calendars: days that jobs skip, or run on alone.",
    ["timeball calendars", "timeball calendars create closing 12-24 2027-01-04"],
)

CalendarRef = Annotated[str, typer.Argument(metavar="CALENDAR", help="A calendar's name.")]
NewName = Annotated[str, typer.Argument(metavar="NAME", help="The name of the calendar.")]
Description = Annotated[str | None, typer.Option("--description", help="What it is for.")]
_DAYS = "A day (2026-12-25), a range (2026-12-24..2027-01-01), a day of every year (12-25) or of the week (sat)."

_COLUMNS = [
    Column("name"),
    Column("source", "source.kind"),
    Column("next days", "next_days"),
    Column("jobs"),
    Column("version"),
    Column("description"),
    Column("updated", "updated_at", ColumnKind.INSTANT),
]
_DETAILS = [
    Column("name"),
    Column("description"),
    Column("source"),
    Column("days"),
    Column("next days", "next_days"),
    Column("version"),
    Column("used by", "job_names"),
    Column("created", "created_at", ColumnKind.INSTANT),
    Column("updated", "updated_at", ColumnKind.INSTANT),
]


@list_command(calendars, "timeball calendars list")
def list_calendars(session: CliSession, limit: Limit = 50) -> None:
    """List the calendars."""

    async def read(client: AsyncClient) -> list[Any]:
        return await take(client.calendars.iterate(limit=min(limit, 200)), limit)

    session.printer.rows(session.talk(read), _COLUMNS, empty="no calendars yet")


@command(calendars, "show", "timeball calendars show holidays", "timeball calendars show holidays --version 1")
def show_calendar(
    session: CliSession,
    calendar: CalendarRef,
    version: Annotated[
        int | None, typer.Option("--version", min=1, help="An earlier version, as a job cites it.")
    ] = None,
) -> None:
    """Show one calendar."""
    session.printer.details(session.talk(lambda client: client.calendars.get(calendar, version)), _DETAILS)


@command(
    calendars,
    "create",
    "timeball calendars create weekend sat sun",
    "timeball calendars create by-holidays --country DE --subdivision BY",
)
def create_calendar(
    session: CliSession,
    name: NewName,
    days: Annotated[list[str] | None, typer.Argument(metavar="[DAY]...", help=_DAYS)] = None,
    country: Annotated[
        str | None, typer.Option("--country", help="The public holidays of a country, such as DE.")
    ] = None,
    subdivision: Annotated[str | None, typer.Option("--subdivision", help="A part of the country, such as BY.")] = None,
    description: Description = None,
) -> None:
    """Create a calendar from days, or from the holidays of a country."""
    _written(
        session,
        session.talk(
            lambda client: client.calendars.create(
                name, days or None, country=country, subdivision=subdivision, description=description
            )
        ),
    )


@command(calendars, "import", "timeball calendars import closed days.ics")
def import_calendar(
    session: CliSession,
    name: NewName,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An iCalendar file.")],
    description: Description = None,
) -> None:
    """Create a calendar from the all-day events of an iCalendar file, or replace the days of one that is there."""
    text = read_file(file, "ics")

    async def write(client: AsyncClient) -> Any:
        from timeball.errors import Conflict

        try:
            return await client.calendars.create(name, ics=text, description=description)
        except Conflict:
            # It is there already.
            pass
        changes: dict[str, Any] = {"ics": text} | ({} if description is None else {"description": description})
        return await client.calendars.update(name, **changes)

    _written(session, session.talk(write))


@command(
    calendars,
    "edit",
    "timeball calendars edit holidays --add 2027-05-14 --remove 12-26",
    'timeball calendars edit holidays --description "the office is closed"',
)
def edit_calendar(
    session: CliSession,
    calendar: CalendarRef,
    add: Annotated[list[str] | None, typer.Option("--add", help=f"{_DAYS} Repeat for more.")] = None,
    remove: Annotated[list[str] | None, typer.Option("--remove", help="An entry to take out; repeat for more.")] = None,
    country: Annotated[
        str | None, typer.Option("--country", help="Replace all days by the holidays of a country.")
    ] = None,
    subdivision: Annotated[str | None, typer.Option("--subdivision", help="A part of the country.")] = None,
    description: Description = None,
) -> None:
    """Change a calendar. Jobs that use it follow: each gets a new version."""

    async def change(client: AsyncClient) -> Any:
        current = await client.calendars.get(calendar)
        changes: dict[str, Any] = {} if description is None else {"description": description}
        if country is not None:
            changes |= {"country": country, "subdivision": subdivision}
        if add or remove:
            changes["days"] = _edited(current.days, add or [], remove or [])
        return await client.calendars.update(calendar, current.version, **changes)

    _written(session, session.talk(change))


@command(calendars, "delete", "timeball calendars delete holidays --yes")
def delete_calendar(session: CliSession, calendar: CalendarRef, yes: Yes = False) -> None:
    """Delete a calendar that no job uses."""
    session.printer.confirm(f"Delete the calendar {calendar}?", yes=yes)
    session.talk(lambda client: client.calendars.delete(calendar))
    session.printer.say(f"{calendar} is deleted")


def _edited(days: list[str], add: list[str], remove: list[str]) -> list[str]:
    from timeball.errors import InvalidInput

    for entry in remove:
        if entry not in days:
            raise InvalidInput(
                f"the calendar has no entry {entry!r}", field="days", hint="timeball calendars show lists them"
            )
    return [*(entry for entry in days if entry not in remove), *add]


def _written(session: CliSession, calendar: Any) -> None:
    session.printer.details(calendar, _DETAILS)
    session.printer.warn(calendar)
    if not calendar.followed:
        session.printer.say("its other jobs follow within a minute")
