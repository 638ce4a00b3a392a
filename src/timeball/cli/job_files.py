"""Files of jobs: JSON lines and CSV as `jobs export` writes them, or one JSON document."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer

from timeball.cli.fields import FIELDS_OF_A_JOB
from timeball.cli.job_options import kind_of, read_file, read_value
from timeball.domain.instants import shown
from timeball.errors import InvalidInput

JobsFile = Annotated[
    Path,
    typer.Argument(metavar="FILE", help="JSON lines or CSV, as `jobs export` writes them, or a JSON list; - is stdin."),
]
_SUCH_AS = 'such as [{"name": "a", "handler": "test.echo"}]; timeball jobs export writes such files'
_SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json"}


def file_format(given: str | None, file: Path | None) -> Any:
    """The format of a file: what was said, or else what its name says."""
    if given is None:
        return "csv" if file is None else _SUFFIXES.get(file.suffix, "csv")
    if given not in ("csv", "jsonl", "json"):
        raise InvalidInput(f"the format is {given!r}, expected csv, jsonl or json", field="format")
    return given


def read_jobs(file: Path, kind: str) -> tuple[list[dict[str, Any]], int]:
    """The jobs of a file as the API takes them, and how many of them were paused where they come from.

    What an export tells beside the fields of a job is left out.
    """
    from timeball.api.schemas.jobs import JobOut

    told = set(JobOut.model_fields) - set(FIELDS_OF_A_JOB)
    jobs: list[dict[str, Any]] = []
    paused = 0
    for place, row in _rows(_text(file), kind, file):
        if not isinstance(row, dict):
            raise InvalidInput(
                f"{place} of {file} is {kind_of(row)}, expected a job: a JSON object", field="file", hint=_SUCH_AS
            )
        paused += row.get("status") == "paused"
        # An unknown field is sent as well, so that the API refuses it: it may be a misspelt one.
        jobs.append({name: value for name, value in row.items() if name not in told})
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
            yield from ((f"job {number}", job) for number, job in enumerate(_listed(jobs, document, file), start=1))
        case _:
            lines = enumerate(text.splitlines(), start=1)
            yield from (
                (f"line {number}", _json(line, f"line {number} of {file}")) for number, line in lines if line.strip()
            )


def _check_heading(names: Sequence[str], file: Path) -> None:
    """A file of another kind is read as CSV without a complaint, and would have no jobs, or jobs of no name."""
    if names and not {"name", "handler"} & set(names):
        found = shown(", ".join(names))
        raise InvalidInput(
            f"the first line of {file} is {found!r}, expected the names of columns, name and handler among them",
            field="file",
            hint="for JSON, call the file .json or .jsonl, or add --format; timeball jobs export writes such files",
        )


def _listed(jobs: Any, document: Any, file: Path) -> list[Any]:
    if not isinstance(jobs, list):
        found = f"an object whose jobs are {kind_of(jobs)}" if isinstance(document, dict) else kind_of(document)
        raise InvalidInput(f"{file} is {found}, expected a list of jobs", field="file", hint=_SUCH_AS)
    return jobs


def _json(text: str, where: str) -> Any:
    import orjson

    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"{where} is no JSON: {error}", field="file", hint=_SUCH_AS) from None


def _text(file: Path) -> str:
    text = sys.stdin.read() if str(file) == "-" else read_file(file, "file")
    return text.removeprefix("\ufeff")


def _from_csv(row: Mapping[str, str | None]) -> dict[str, Any]:
    """Cells are text: numbers and payloads are read as JSON, an empty cell is nothing."""
    return {name: _value_of_cell(name, text) for name, text in row.items() if text and name}


def _value_of_cell(name: str, text: str) -> Any:
    from timeball.api.export import text_of_cell

    plain = text_of_cell(text)
    if name in _text_fields():
        return plain
    value = read_value(plain)
    if name == "tags" and not isinstance(value, list):
        return [tag.strip() for tag in plain.split(",")]
    return value


@cache
def _text_fields() -> frozenset[str]:
    """The fields of a job that are text, so that a name of 2026 stays a name."""
    from timeball.api.schemas.jobs import JobIn

    properties: dict[str, Any] = JobIn.model_json_schema()["properties"]
    return frozenset(
        name
        for name, schema in properties.items()
        if any(choice.get("type") == "string" for choice in schema.get("anyOf", [schema]))
    )
