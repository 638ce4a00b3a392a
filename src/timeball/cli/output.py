"""How commands print: tables for people, plain lines for pipes, JSON and CSV for programs."""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import IO, TYPE_CHECKING, Any

from timeball.cli.formatting import (
    Document,
    as_document,
    encodable_json,
    format_duration,
    format_instant,
    format_value,
    parse_instant,
    printable,
    single_line,
    spreadsheet_safe,
    to_json,
)

if TYPE_CHECKING:
    from rich.console import Console


# A cell of a table is folded, but not if it is shorter than this.
_MIN_FOLD_WIDTH = 16


class OutputFormat(StrEnum):
    """How rows are printed."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"
    CSV = "csv"


class TimeStyle(StrEnum):
    """How instants are written."""

    RELATIVE = "relative"
    LOCAL = "local"
    UTC = "utc"


class ColumnKind(StrEnum):
    """What a column holds, where that changes how it looks."""

    TEXT = "text"
    NUMBER = "number"
    INSTANT = "instant"
    MILLISECONDS = "milliseconds"
    STATE = "state"


@dataclass(frozen=True)
class Column:
    """A column: its title, where its value is found in a document (the title, if nothing is said), and its kind."""

    title: str
    find: str | Callable[[Any], Any] | None = None
    kind: ColumnKind = ColumnKind.TEXT

    @property
    def is_whole(self) -> bool:
        """Whether a cell is one word, which no terminal may break: an id is there to be copied."""
        return self.title == "id" or self.kind is not ColumnKind.TEXT

    def value(self, document: Document) -> Any:
        """The value of this column in a document; a path has dots: `last_execution.state`."""
        if callable(self.find):
            return self.find(document)
        found: Any = document
        for step in (self.find or self.title.replace(" ", "_")).split("."):
            found = found.get(step) if isinstance(found, Mapping) else None
        return found


# Colour never stands alone: the word says the same.
STATE_STYLES = {
    "active": "green",
    "succeeded": "green",
    "ok": "green",
    "running": "cyan",
    "queued": "blue",
    "scheduled": "blue",
    "retrying": "yellow",
    "paused": "yellow",
    "warn": "yellow",
    "skipped": "dim",
    "finished": "dim",
    "cancelled": "dim",
    "dead": "bold red",
    "fail": "bold red",
}


class Printer:
    """Writes what a command found, in the way that was asked for."""

    def __init__(
        self,
        output: OutputFormat | None = None,
        times: TimeStyle | None = None,
        *,
        out: IO[str] | None = None,
        err: IO[str] | None = None,
        now: Callable[[], datetime] | None = None,
    ) -> None:
        self._out = out or sys.stdout
        self._err = err or sys.stderr
        self.is_terminal = self._out.isatty()
        self.output = output
        self._times = times or (TimeStyle.RELATIVE if self.is_terminal else TimeStyle.UTC)
        self._now = now or _system_now

    @property
    def is_for_programs(self) -> bool:
        """Whether documents are wanted, not words."""
        return self.output in (OutputFormat.JSON, OutputFormat.JSONL, OutputFormat.CSV)

    def refuse_csv(self, command: str) -> None:
        """For a command whose documents are no rows."""
        if self.output is OutputFormat.CSV:
            from timeball.errors import InvalidInput

            raise InvalidInput(
                f"{command} has no rows for CSV", field="output", hint=f"timeball {command} -o jsonl has all"
            )

    # data, to stdout

    def rows(self, documents: Iterable[Any], columns: Sequence[Column], *, empty: str = "nothing there") -> None:
        """A list: as a table, as plain lines, or as the documents themselves."""
        plain = [as_document(item) for item in documents]
        match self.output:
            case OutputFormat.JSON:
                self.json(plain)
            case OutputFormat.JSONL:
                for document in plain:
                    self.json_line(document)
            case OutputFormat.CSV:
                self._csv(plain, columns)
            case _ if not plain:
                self.say(empty)
            case OutputFormat.TABLE:
                self._table(plain, columns)
            case None if self.is_terminal:
                self._table(plain, columns)
            case None:
                for document in plain:
                    self.line("\t".join(single_line(self.cell(document, column)) for column in columns))

    def details(self, document: Any, columns: Sequence[Column]) -> None:
        """One thing, a line for each field that has a value; for programs, the document itself."""
        plain = as_document(document)
        match self.output:
            case OutputFormat.JSON:
                self.json(plain)
            case OutputFormat.JSONL:
                self.json_line(plain)
            case OutputFormat.CSV:
                self._csv([plain], columns)
            case _:
                self._fields(plain, columns)

    def json(self, value: Any) -> None:
        """JSON, indented."""
        import orjson

        text = orjson.dumps(value, default=str, option=orjson.OPT_INDENT_2 | orjson.OPT_UTC_Z).decode()
        self.line(encodable_json(text, self._out))

    def json_line(self, value: Any) -> None:
        """JSON on a line."""
        self.line(encodable_json(to_json(value), self._out))

    def line(self, text: str) -> None:
        """A line of data: as it is for a pipe, harmless on a terminal."""
        self.screen((printable(text) if self.is_terminal else text) + "\n")

    def words(self, text: str) -> None:
        """A line for people, in a pipe too: it stays one line and moves no cursor, whatever names and reasons it tells of."""
        self.screen(single_line(text) + "\n")

    def screen(self, text: str) -> None:
        """Exactly this, with whatever commands to the terminal it holds."""
        self._out.write(text)
        self._out.flush()

    def styled(self, text: str, style: str) -> None:
        """Something for people, coloured on a terminal that likes colours; harmless in a pipe too."""
        if not self.is_terminal:
            self.screen(printable(text) + "\n")
            return
        self._console(self._out).print(printable(text), style=style, markup=False, highlight=False, soft_wrap=True)

    # talk, to stderr

    def warn(self, document: Any) -> None:
        """What an answer warns of, beside the data."""
        for warning in getattr(document, "warnings", ()):
            self.say(f"warning: {warning}")

    def say(self, text: str) -> None:
        """Something for people, beside the data."""
        self._err.write(printable(text) + "\n")
        self._err.flush()

    @contextmanager
    def progress(self, label: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
        """A bar on stderr while something long is done; gives a function that is told how many more are done.

        Without a terminal there is no bar, and the end is said in one line.
        """
        if not self._err.isatty():
            yield from self._counted(label)
            return
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self._console(self._err), transient=False) as bar:
            task = bar.add_task(label, total=total)
            yield lambda more: bar.advance(task, more)

    def _counted(self, label: str) -> Iterator[Callable[[int], None]]:
        done = [0]

        def advance(more: int) -> None:
            done[0] += more

        yield advance
        self.say(f"{label}: {done[0]} done")

    def confirm(self, question: str, *, yes: bool) -> None:
        """Ask before something that cannot be undone; `--yes` answers, and without a terminal only that does."""
        if not yes and self.ask(f"{question} [y/N]", "--yes").lower() not in ("y", "yes"):
            from timeball.cli.errors import Declined

            raise Declined("nothing was done")

    def ask(self, question: str, option: str) -> str:
        """What somebody answers; without a terminal nobody can, and *option* would have."""
        if not sys.stdin.isatty():
            from timeball.errors import InvalidInput

            raise InvalidInput(
                f"{question} Nobody is here to answer", hint=f"give {option} to do it without being asked"
            )
        self._err.write(printable(f"{question} "))
        self._err.flush()
        return sys.stdin.readline().strip()

    # cells

    def cell(self, document: Document, column: Column) -> str:
        """A value as people read it."""
        value = column.value(document)
        match column.kind:
            case ColumnKind.INSTANT:
                return self.instant(value)
            case ColumnKind.MILLISECONDS:
                return "" if value is None else format_duration(value) if self.is_terminal else f"{value:g}"
            case _:
                return format_value(value)

    def instant(self, value: Any) -> str:
        """An instant in the style that was asked for."""
        moment = parse_instant(value)
        return "" if moment is None else format_instant(moment, self._times.value, self._now())

    # ways to print

    def _table(self, documents: Sequence[Document], columns: Sequence[Column]) -> None:
        from rich.table import Table
        from rich.text import Text

        console = self._console(self._out)
        if self._least_width(documents, columns) > console.width:
            self._cards(documents, columns)
            return
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
        for column in columns:
            is_number = column.kind in (ColumnKind.NUMBER, ColumnKind.MILLISECONDS)
            table.add_column(
                column.title.upper(),
                justify="right" if is_number else "left",
                overflow="fold",
                no_wrap=column.is_whole,
                min_width=self._width(column, documents) if column.is_whole else None,
            )
        for document in documents:
            cells = (single_line(self.cell(document, column)) for column in columns)
            table.add_row(
                *(Text(cell, style=_style(cell, column)) for cell, column in zip(cells, columns, strict=True))
            )
        console.print(table)

    def _cards(self, documents: Sequence[Document], columns: Sequence[Column]) -> None:
        """For a terminal that is too narrow for a table: a row on two lines, what it is and what else is known."""
        for document in documents:
            cells = [(column, single_line(self.cell(document, column))) for column in columns]
            head = [(column, cell) for column, cell in cells[:2] if cell]
            self.styled("  ".join(cell for _, cell in head), next((_style(cell, c) for c, cell in reversed(head)), ""))
            if more := [f"{column.title} {cell}" for column, cell in cells[2:] if cell]:
                self.line("    " + " · ".join(more))

    def _least_width(self, documents: Sequence[Document], columns: Sequence[Column]) -> int:
        """How wide a terminal has to be for a table in which no word is broken."""
        widths = (
            self._width(column, documents) if column.is_whole else min(self._width(column, documents), _MIN_FOLD_WIDTH)
            for column in columns
        )
        titles = (len(column.title) for column in columns)
        return sum(map(max, widths, titles)) + 2 * (len(columns) - 1)

    def _width(self, column: Column, documents: Sequence[Document]) -> int:
        return max(len(self.cell(document, column)) for document in documents)

    def _fields(self, document: Document, columns: Sequence[Column]) -> None:
        shown = [(column, self.cell(document, column)) for column in columns]
        known = [(column, cell) for column, cell in shown if cell]
        if not self.is_terminal and self.output is None:
            for column, cell in known:
                self.line(f"{column.title}\t{single_line(cell)}")
            return
        width = max((len(column.title) for column, _ in known), default=0)
        for column, cell in known:
            first, *more = cell.splitlines() or [""]
            style = _style(cell, column)
            self.styled(
                "\n".join([f"{column.title:<{width}}  {first}", *(" " * (width + 2) + each for each in more)]), style
            )

    def _csv(self, documents: Sequence[Document], columns: Sequence[Column]) -> None:
        writer = csv.writer(self._out, lineterminator="\n")
        writer.writerow(column.title.replace(" ", "_") for column in columns)
        for document in documents:
            writer.writerow(spreadsheet_safe(format_value(column.value(document))) for column in columns)
        self._out.flush()

    def _console(self, file: IO[str]) -> Console:
        from rich.console import Console

        # A pipe that was asked for a table gets it whole: nothing is folded to eighty columns.
        width = None if file.isatty() else 10_000
        return Console(file=file, width=width, no_color="NO_COLOR" in os.environ, highlight=False, soft_wrap=False)


def _style(cell: str, column: Column) -> str:
    return STATE_STYLES.get(cell, "") if column.kind is ColumnKind.STATE else ""


def _system_now() -> datetime:
    from timeball.clock import SystemClock

    return SystemClock().now().astimezone(UTC)
