"""Files that commands read and write: job files, exports, and a job in the editor."""

from __future__ import annotations

import csv
import io
import os
import shlex
import subprocess
import sys
import tempfile
from codecs import getincrementaldecoder
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from timeball.cli.job_options import json_type, read_file, read_value
from timeball.cli.output import printable
from timeball.cli.session import CliSession
from timeball.domain.job_fields import SPEC_FIELDS, Labels
from timeball.domain.values.field_errors import unexpected_value
from timeball.errors import InvalidInput, quote_text

if TYPE_CHECKING:
    from timeball.client import AsyncClient


ToFile = Annotated[Path | None, typer.Option("--to", help="A file to write; none means stdout.")]
FileFormat = Annotated[
    str | None, typer.Option("--format", help="csv, jsonl or json; by itself what the file's name says.")
]
Bom = Annotated[bool, typer.Option("--bom", help="Begin a CSV with a byte order mark, which Excel needs for UTF-8.")]


def write_download(session: CliSession, to: Path | None, ask: Callable[[AsyncClient], AsyncIterator[bytes]]) -> None:
    async def write(client: AsyncClient) -> None:
        with _open_sink(to) as file, session.printer.progress("bytes exported") as advance:
            async for chunk in ask(client):
                file.write(chunk)
                advance(len(chunk))
            file.flush()

    session.talk(write)


@contextmanager
def _open_sink(to: Path | None) -> Iterator[IO[bytes] | _TextSink]:
    if to is None:
        raw = None if sys.stdout.isatty() else getattr(sys.stdout, "buffer", None)
        yield raw or _TextSink(sys.stdout)
        return
    try:
        file = to.open("wb")
    except OSError as error:
        raise InvalidInput(
            f"--to is {to}, which cannot be written: {error.strerror}",
            field="to",
            hint="name a file in a folder that is there and that you may write to",
        ) from None
    with file:
        yield file


class _TextSink:
    """A text stream that takes bytes: a terminal, which gets no control characters, or what has taken the place of stdout."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        # A chunk may end within a character.
        self._decoder = getincrementaldecoder("utf-8")("replace")

    def write(self, chunk: bytes) -> None:
        text = self._decoder.decode(chunk)
        self._stream.write(printable(text) if self._stream.isatty() else text)

    def flush(self) -> None:
        self._stream.flush()


# Files of jobs: JSON lines and CSV as `jobs export` writes them, or one JSON document.

JobsFile = Annotated[
    Path,
    typer.Argument(metavar="FILE", help="JSON lines or CSV, as `jobs export` writes them, or a JSON list; - is stdin."),
]
_EXAMPLE = (
    'such as [{"name": "a", "handler": "test.echo", "schedule": "@daily"}]; timeball jobs export writes such files'
)
_SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json"}


def file_format(given: str | None, file: Path | None) -> Any:
    """The format of a file: what was said, or else what its name says."""
    if given is None:
        return "csv" if file is None else _SUFFIXES.get(file.suffix, "csv")
    if given not in ("csv", "jsonl", "json"):
        raise unexpected_value("the format", given, "csv, jsonl or json", field="format")
    return given


def read_jobs(file: Path, kind: str) -> tuple[list[dict[str, Any]], int]:
    """The jobs of a file as the API takes them, and how many of them were paused where they come from.

    What an export tells beside the fields of a job is left out.
    """
    from timeball.api.models.jobs import JobOut

    read_only = set(JobOut.model_fields) - SPEC_FIELDS.keys()
    jobs: list[dict[str, Any]] = []
    paused = 0
    for place, row in _rows(_text(file), kind, file):
        if not isinstance(row, dict):
            raise InvalidInput(
                f"{place} of {file} is {json_type(row)}, expected a job: a JSON object", field="file", hint=_EXAMPLE
            )
        paused += row.get("status") == "paused"
        # An unknown field is sent as well, so that the API refuses it: it may be a misspelt one.
        jobs.append({name: value for name, value in row.items() if name not in read_only})
    return jobs, paused


def _rows(text: str, kind: str, file: Path) -> Iterator[tuple[str, Any]]:
    match kind:
        case "csv":
            rows = csv.DictReader(io.StringIO(text, newline=""))
            _check_heading(rows.fieldnames or (), file)
            yield from ((f"row {number}", _from_csv(row)) for number, row in enumerate(rows, start=1))
        case "json":
            document = _json(text, str(file))
            jobs = document.get("jobs") if isinstance(document, dict) else document
            yield from ((f"job {number}", job) for number, job in enumerate(_job_list(jobs, document, file), start=1))
        case _:
            lines = enumerate(text.splitlines(), start=1)
            yield from (
                (f"line {number}", _json(line, f"line {number} of {file}")) for number, line in lines if line.strip()
            )


def _check_heading(names: Sequence[str], file: Path) -> None:
    """A file of another kind is read as CSV without a complaint, and would have no jobs, or jobs of no name."""
    if names and not {"name", "handler"} & set(names):
        found = quote_text(", ".join(names))
        raise InvalidInput(
            f"the first line of {file} is {found!r}, expected the names of columns, name and handler among them",
            field="file",
            hint="for JSON, call the file .json or .jsonl, or add --format; timeball jobs export writes such files",
        )


def _job_list(jobs: Any, document: Any, file: Path) -> list[Any]:
    if not isinstance(jobs, list):
        found = f"an object whose jobs are {json_type(jobs)}" if isinstance(document, dict) else json_type(document)
        raise InvalidInput(f"{file} is {found}, expected a list of jobs", field="file", hint=_EXAMPLE)
    return jobs


def _json(text: str, where: str) -> Any:
    from timeball.domain.values.json_text import parse_json

    return parse_json(text, where, field="file", hint=_EXAMPLE)


def _text(file: Path) -> str:
    text = sys.stdin.read() if str(file) == "-" else read_file(file, "file")
    return text.removeprefix("\ufeff")


def _from_csv(row: Mapping[str, str | None]) -> dict[str, Any]:
    """Cells are text: numbers and payloads are read as JSON, an empty cell is nothing."""
    return {name: _value_of_cell(name, text) for name, text in row.items() if text and name}


def _value_of_cell(name: str, text: str) -> Any:
    from timeball.api.responses import text_of_cell

    plain = text_of_cell(text)
    line = SPEC_FIELDS.get(name)
    if line is not None and line.is_text:
        return plain
    value = read_value(plain)
    if line is not None and isinstance(line.rule, Labels) and not isinstance(value, list):
        return [label.strip() for label in plain.split(",")]
    return value


# A job in an editor.


def edited_fields(document: dict[str, Any]) -> dict[str, Any]:
    """The fields that a user changes in an editor."""
    import orjson

    from timeball.domain.values.json_text import parse_json

    shown = {name: document[name] for name in SPEC_FIELDS if name in document}
    text = _edit_text(orjson.dumps(shown, option=orjson.OPT_INDENT_2).decode() + "\n")
    changed = parse_json(text, "the edited text", hint="nothing was changed")
    if not isinstance(changed, dict):
        raise InvalidInput("the edited text is not a JSON object", hint="nothing was changed")
    return {name: value for name, value in changed.items() if name not in shown or shown[name] != value}


def _edit_text(text: str) -> str:
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    if not editor:
        raise InvalidInput(
            "nothing to change is given, and no editor is named", hint="give options, or set EDITOR; see --help"
        )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "job.json"
        file.write_text(text, encoding="utf-8")
        if subprocess.run([*shlex.split(editor), str(file)], check=False).returncode != 0:
            raise InvalidInput(f"{editor} ended with an error", hint="nothing was changed")
        return file.read_text(encoding="utf-8")
