"""`timeball doctor`: whether everything is in order, and what to type if not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from timeball.cli.render import Column, Kind, Printer, as_document
from timeball.cli.session import Session
from timeball.cli.tree import command, topic
from timeball.cli.words import one_line
from timeball.errors import SettingsError, StoreError, TimeballError

_SIGNS = {"ok": "✓", "warn": "!", "fail": "✗"}
_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}
_COLUMNS = [
    Column("status", kind=Kind.STATE),
    Column("code"),
    Column("subject"),
    Column("found"),
    Column("advice"),
]

OnlyBad = Annotated[bool, typer.Option("--problems", help="Only lines that are not ok.")]

commands = topic()


@command(commands, "doctor", "timeball doctor", "timeball doctor --problems")
def show_doctor(session: Session, problems: OnlyBad = False) -> None:
    """Look at everything, and say what to type. Exit code 1 if something fails."""
    found = _looked(session)
    lines = [line for line in found["lines"] if not (problems and line["status"] == "ok")]
    printer = session.printer
    if printer.is_for_programs or (not printer.is_terminal and printer.output is None):
        printer.rows(lines, _COLUMNS, empty="everything is in order")
    else:
        _show_lines(lines, printer)
    raise typer.Exit(1 if found["status"] == "fail" else 0)


def _looked(session: Session) -> Any:
    """What the doctor says; if nobody could even look, why not."""
    try:
        return as_document(session.talk(lambda client: client.system.doctor()))
    except SettingsError as error:
        return _hopeless("settings", "settings", error, "change the variables named, or timeball.toml")
    except StoreError as error:
        return _hopeless("unreachable", "database", error, "timeball check says which database is meant")


def _hopeless(code: str, subject: str, error: TimeballError, advice: str) -> dict[str, Any]:
    found = " ".join(str(error).split())
    line = {"code": code, "status": "fail", "subject": subject, "found": found, "advice": advice}
    return {"status": "fail", "lines": [line | {"command": None, "target": None}]}


def _show_lines(lines: list[Mapping[str, Any]], printer: Printer) -> None:
    width = max((len(line["subject"]) for line in lines), default=0)
    for line in lines:
        printer.styled(
            one_line(f"  {_SIGNS[line['status']]} {line['subject']:<{width}}  {line['found']}"),
            _STYLES[line["status"]],
        )
        if line["advice"]:
            printer.words(f"      {line['advice']}")
    if not lines:
        printer.say("everything is in order")
