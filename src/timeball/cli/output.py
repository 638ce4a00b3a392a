"""How commands print: tables for people, plain lines for pipes, JSON and CSV for programs.

Control characters in a name or a log never reach a terminal.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


Document = Mapping[str, Any]

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
    """What a column holds, if that changes how it is printed."""

    TEXT = "text"
    NUMBER = "number"
    INSTANT = "instant"
    MILLISECONDS = "milliseconds"
    STATE = "state"


@dataclass(frozen=True)
class Column:
    """A column of a table.

    *source* is the path of the value in a document, such as `last_execution.state`, or a function of the document; without it, the
    title is the path.
    """

    title: str
    source: str | Callable[[Any], Any] | None = None
    kind: ColumnKind = ColumnKind.TEXT

    @property
    def is_unbreakable(self) -> bool:
        """Whether a cell is one word that a terminal must not break, such as an id, which is there to be copied."""
        return self.title == "id" or self.kind is not ColumnKind.TEXT

    def value(self, document: Document) -> Any:
        """The value of this column in a document; None if the document has no such field."""
        if callable(self.source):
            return self.source(document)
        value: Any = document
        for step in (self.source or self.title.replace(" ", "_")).split("."):
            value = value.get(step) if isinstance(value, Mapping) else None
        return value


# Colour is never the only sign: the word says the same.
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
    "open": "bold red",
    "acknowledged": "yellow",
    "pending": "dim",
    "resolved": "green",
}


class Printer:
    """Writes the output of a command in the format that was asked for."""

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
        """Whether the output is JSON or CSV."""
        return self.output in (OutputFormat.JSON, OutputFormat.JSONL, OutputFormat.CSV)

    def refuse_csv(self, command: str) -> None:
        """Refuse `-o csv` for a command that has no rows."""
        if self.output is OutputFormat.CSV:
            from timeball.errors import InvalidInput

            raise InvalidInput(
                f"{command} cannot be printed as CSV", field="output", hint=f"use: timeball {command} -o jsonl"
            )

    # data goes to stdout

    def rows(self, documents: Iterable[Any], columns: Sequence[Column], *, empty: str = "nothing found") -> None:
        """Print a list: as a table, as plain lines, or as the documents themselves."""
        rows = [as_document(item) for item in documents]
        match self.output:
            case OutputFormat.JSON:
                self.json(rows)
            case OutputFormat.JSONL:
                for document in rows:
                    self.json_line(document)
            case OutputFormat.CSV:
                self._csv(rows, columns)
            case _ if not rows:
                self.say(empty)
            case OutputFormat.TABLE:
                self._table(rows, columns)
            case None if self.is_terminal:
                self._table(rows, columns)
            case None:
                for document in rows:
                    self.line("\t".join(single_line(self.cell(document, column)) for column in columns))

    def details(self, document: Any, columns: Sequence[Column]) -> None:
        """Print one document: a line for each field that has a value; for programs, the document itself."""
        document = as_document(document)
        match self.output:
            case OutputFormat.JSON:
                self.json(document)
            case OutputFormat.JSONL:
                self.json_line(document)
            case OutputFormat.CSV:
                self._csv([document], columns)
            case _:
                self._fields(document, columns)

    def json(self, value: Any) -> None:
        """Print indented JSON."""
        import orjson

        text = orjson.dumps(value, default=str, option=orjson.OPT_INDENT_2 | orjson.OPT_UTC_Z).decode()
        self.line(encodable_json(text, self._out))

    def json_line(self, value: Any) -> None:
        """Print JSON on one line."""
        self.line(encodable_json(to_json(value), self._out))

    def line(self, text: str) -> None:
        """Print a line of data: unchanged to a pipe, without control characters to a terminal."""
        self.screen((printable(text) if self.is_terminal else text) + "\n")

    def words(self, text: str) -> None:
        """Print a line for people. It stays one line without control characters, in a pipe too, whatever names it contains."""
        self.screen(single_line(text) + "\n")

    def screen(self, text: str) -> None:
        """Print the text as it is, terminal commands included."""
        self._out.write(text)
        self._out.flush()

    def styled(self, text: str, style: str) -> None:
        """Print a text for people, coloured if the terminal has colours; without control characters in a pipe too."""
        if not self.is_terminal:
            self.screen(printable(text) + "\n")
            return
        self._console(self._out).print(printable(text), style=style, markup=False, highlight=False, soft_wrap=True)

    # messages go to stderr

    def warn(self, document: Any) -> None:
        """Print the warnings of a response."""
        for warning in as_document(document).get("warnings") or ():
            self.say(f"warning: {warning}")

    def say(self, text: str) -> None:
        """Print a message for people."""
        self._err.write(printable(text) + "\n")
        self._err.flush()

    @contextmanager
    def progress(self, label: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
        """Show a progress bar; yields a function to call with the number of items that are done since the last call.

        Without a terminal there is no bar, only one line at the end.
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
        """Ask before something that cannot be undone. `--yes` answers; without a terminal nothing else does."""
        if not yes and self.ask(f"{question} [y/N]", "--yes").lower() not in ("y", "yes"):
            from timeball.cli.errors import Declined

            raise Declined("cancelled, nothing was changed")

    def ask(self, question: str, option: str) -> str:
        """The answer to a question; InvalidInput without a terminal, where *option* is needed instead."""
        if not sys.stdin.isatty():
            from timeball.errors import InvalidInput

            raise InvalidInput(
                f"cannot ask without a terminal: {question}",
                hint=f"give {option} to do it without being asked",
            )
        self._err.write(printable(f"{question} "))
        self._err.flush()
        return sys.stdin.readline().strip()

    # values

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
        instant = parse_instant(value)
        return "" if instant is None else format_instant(instant, self._times.value, self._now())

    # formats

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
                no_wrap=column.is_unbreakable,
                min_width=self._width(column, documents) if column.is_unbreakable else None,
            )
        for document in documents:
            cells = (single_line(self.cell(document, column)) for column in columns)
            table.add_row(
                *(Text(cell, style=_style(cell, column)) for cell, column in zip(cells, columns, strict=True))
            )
        console.print(table)

    def _cards(self, documents: Sequence[Document], columns: Sequence[Column]) -> None:
        """Print each row on two lines, for a terminal that is too narrow for a table."""
        for document in documents:
            cells = [(column, single_line(self.cell(document, column))) for column in columns]
            head = [(column, cell) for column, cell in cells[:2] if cell]
            self.styled("  ".join(cell for _, cell in head), next((_style(cell, c) for c, cell in reversed(head)), ""))
            if rest := [f"{column.title} {cell}" for column, cell in cells[2:] if cell]:
                self.line("    " + " · ".join(rest))

    def _least_width(self, documents: Sequence[Document], columns: Sequence[Column]) -> int:
        """The terminal width that a table needs without breaking words."""
        widths = (
            self._width(column, documents)
            if column.is_unbreakable
            else min(self._width(column, documents), _MIN_FOLD_WIDTH)
            for column in columns
        )
        titles = (len(column.title) for column in columns)
        return sum(map(max, widths, titles)) + 2 * (len(columns) - 1)

    def _width(self, column: Column, documents: Sequence[Document]) -> int:
        return max(len(self.cell(document, column)) for document in documents)

    def _fields(self, document: Document, columns: Sequence[Column]) -> None:
        cells = [(column, self.cell(document, column)) for column in columns]
        filled = [(column, cell) for column, cell in cells if cell]
        if not self.is_terminal and self.output is None:
            for column, cell in filled:
                self.line(f"{column.title}\t{single_line(cell)}")
            return
        width = max((len(column.title) for column, _ in filled), default=0)
        for column, cell in filled:
            first, *rest = cell.splitlines() or [""]
            lines = [f"{column.title:<{width}}  {first}", *(" " * (width + 2) + line for line in rest)]
            self.styled("\n".join(lines), _style(cell, column))

    def _csv(self, documents: Sequence[Document], columns: Sequence[Column]) -> None:
        import csv

        writer = csv.writer(self._out, lineterminator="\n")
        writer.writerow(column.title.replace(" ", "_") for column in columns)
        for document in documents:
            writer.writerow(spreadsheet_safe(format_value(column.value(document))) for column in columns)
        self._out.flush()

    def _console(self, file: IO[str]) -> Console:
        from rich.console import Console

        # A table in a pipe is as wide as it is: nothing is folded to eighty columns.
        width = None if file.isatty() else 10_000
        return Console(file=file, width=width, no_color="NO_COLOR" in os.environ, highlight=False, soft_wrap=False)


def _style(cell: str, column: Column) -> str:
    return STATE_STYLES.get(cell, "") if column.kind is ColumnKind.STATE else ""


def _system_now() -> datetime:
    from timeball.env import SystemClock

    return SystemClock().now().astimezone(UTC)


def as_document(item: Any) -> Document:
    """A model or a mapping as a JSON object."""
    if isinstance(item, Mapping):
        return item
    document: Document = item.model_dump(mode="json", by_alias=True)
    return document


def to_json(value: Any) -> str:
    """JSON on one line."""
    import orjson

    return orjson.dumps(value, default=str, option=orjson.OPT_UTC_Z).decode()


def encodable_json(text: str, stream: object) -> str:
    """JSON with the characters escaped that the encoding of *stream* lacks."""
    try:
        text.encode(getattr(stream, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return "".join(char if char.isascii() else _escape(char) for char in text)
    return text


def _escape(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))


def spreadsheet_safe(cell: str) -> str:
    """A CSV cell that no spreadsheet takes for a formula."""
    from timeball.domain.values.wording import FORMULA_BEGINNINGS

    return f"'{cell}" if cell.startswith(FORMULA_BEGINNINGS) and not _is_number(cell) else cell


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


_UNITS = (
    ("d", timedelta(days=1)),
    ("h", timedelta(hours=1)),
    ("m", timedelta(minutes=1)),
    ("s", timedelta(seconds=1)),
)
_RELATIVE_LIMIT = timedelta(days=30)


def parse_instant(value: Any) -> datetime | None:
    """An instant of a document, which has it as RFC 3339 text or as a datetime."""
    if value is None or isinstance(value, datetime):
        return value
    return datetime.fromisoformat(str(value))


def format_instant(instant: datetime, style: str, now: datetime) -> str:
    """An instant in the style `relative`, `local` or `utc`; more than 30 days away, relative is a date."""
    if style == "relative" and abs(instant - now) < _RELATIVE_LIMIT:
        return format_relative(instant - now)
    if style == "utc":
        return instant.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S") + _fraction(instant) + "Z"
    return instant.astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def format_relative(distance: timedelta) -> str:
    """`in 5m`, `12s ago`, `now`."""
    words = _two_units(abs(distance))
    if words is None:
        return "now"
    return f"in {words}" if distance > timedelta(0) else f"{words} ago"


def format_duration(milliseconds: float) -> str:
    """A duration as people read it: `4 ms`, `1.3 s`, `2m 5s`."""
    if abs(milliseconds) < 1_000:
        return f"{milliseconds:.0f} ms" if abs(milliseconds) >= 10 else f"{milliseconds:.1f} ms"
    if abs(milliseconds) < 60_000:
        return f"{milliseconds / 1_000:.1f} s"
    words = _two_units(timedelta(milliseconds=abs(milliseconds))) or "0s"
    return f"-{words}" if milliseconds < 0 else words


def format_value(value: Any) -> str:
    """Any value of a document as text: null is empty, lists have commas, objects are JSON."""
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case str():
            return value
        case float():
            return f"{value:g}"
        case Mapping():
            return to_json(value)
        case Sequence():
            return ",".join(format_value(item) for item in value)
        case _:
            return str(value)


def printable(text: str) -> str:
    """A text of several lines without control characters, which a hostile name or log may contain."""
    return text if text.isprintable() else "\n".join(single_line(line) for line in text.split("\n"))


def single_line(cell: str) -> str:
    """The same on one line."""
    return "".join(char if char.isprintable() else " " if char in "\n\t\r" else "\ufffd" for char in cell)


def _fraction(instant: datetime) -> str:
    return f".{instant.microsecond // 1000:03d}" if instant.microsecond else ""


def _two_units(span: timedelta) -> str | None:
    parts: list[str] = []
    for unit, size in _UNITS:
        number, span = divmod(span, size)
        if number:
            parts.append(f"{number}{unit}")
        elif parts:
            break
        if len(parts) == 2:
            break
    return " ".join(parts) or None
