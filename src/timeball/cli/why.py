"""`timeball why`: one sentence, then every gate."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from timeball.cli.render import Column, Output, Printer, as_document
from timeball.cli.session import Session
from timeball.cli.tree import command, topic
from timeball.cli.words import one_line
from timeball.errors import NotFound

if TYPE_CHECKING:
    from timeball.client import AsyncClient

Document = Mapping[str, Any]
Reference = Annotated[str, typer.Argument(metavar="JOB|EXECUTION", help="A job's name or id, or an execution's id.")]

_SIGNS = {"passed": "✓", "stopped": "✗", "not_asked": "–"}
_STYLES = {"passed": "green", "stopped": "bold red", "not_asked": "dim"}
_COLUMNS = [Column("verdict"), Column("gate", "name"), Column("sentence"), Column("advice"), Column("links")]

commands = topic()


@command(commands, "why", "timeball why nightly", "timeball why RUN")
def show_why(session: Session, reference: Reference) -> None:
    """Say why something does not run: what stands in its way, and what to do about it."""
    found = session.talk(lambda client: _asked(client, reference))
    printer = session.printer
    if printer.output is Output.CSV:
        printer.rows(found["gates"], _COLUMNS)
        return
    if printer.is_for_programs:
        printer.details(found, [])
        return
    printer.styled(one_line(_title(found, printer)), "bold")
    printer.words(found["headline"])
    if not printer.is_terminal and printer.output is None:
        printer.rows(found["gates"], _COLUMNS)
        return
    # What has started or ended has passed them all: thirteen lines would say so thirteen times.
    if any(gate["verdict"] != "not_asked" for gate in found["gates"]):
        for gate in found["gates"]:
            _show_gate(gate, printer)


async def _asked(client: AsyncClient, reference: str) -> Any:
    """An execution's id says what it is; a bare id may be either; anything else is a job."""
    if not _is_a_job(reference):
        with suppress(NotFound):
            return as_document(await client.executions.explain(reference))
    return as_document(await client.jobs.explain(reference))


def _is_a_job(reference: str) -> bool:
    from uuid import UUID

    try:
        UUID(reference)
    except ValueError:
        return not reference.startswith("exe_")
    return False


def _title(found: Document, printer: Printer) -> str:
    parts = [found["job_name"] or found["job_id"], found["execution_id"], found["state"]]
    return " · ".join(part for part in (*parts, f"checked {printer.instant(found['checked_at'])}") if part)


def _show_gate(gate: Document, printer: Printer) -> None:
    verdict = gate["verdict"]
    printer.styled(one_line(f" {_SIGNS[verdict]} {gate['title']:<26} {gate['sentence']}"), _STYLES[verdict])
    if gate["advice"] and verdict == "stopped":
        printer.words(f"     {gate['advice']}")
