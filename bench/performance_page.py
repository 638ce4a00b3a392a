"""`python -m bench.performance_page`: writes the latest figures into the pages about speed, between their marks.

A mark names a table (`<!-- measured: drain -->`).
Its figures come from `results/<question>.json` or, where that is newer, from `results/all.json`.
A table whose question has no result stays as it is. The words around a table are written by hand: read them again after a new measurement.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from bench.report import RESULTS

_DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGES = (_DOCS / "explanation" / "performance.md", _DOCS / "internals" / "speed.md")
_MARKED = re.compile(r"(<!-- measured: (\w+) -->\n)(.*?)(<!-- end of measured -->\n)", re.DOTALL)

Measures = Mapping[tuple[str, str], Mapping[str, Any]]
Result = tuple[Mapping[str, Any], Measures]


@dataclass(frozen=True)
class Column:
    """A heading, and the figure below it: the first of *figures* that a row has; *field* is `median` or `ratio_to_limit`."""

    heading: str
    figures: tuple[str, ...]
    field: str = "median"


@dataclass(frozen=True)
class Table:
    """The rows are subjects of questions; without *rows*, all subjects that have the figure of the first column."""

    questions: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: tuple[str, ...] = ()


def _columns(*figures: str) -> tuple[Column, ...]:
    return tuple(Column(figure, (figure,)) for figure in figures)


TABLES = {
    "drain": Table(("drain",), (*_columns("rate"), Column("of the limit", ("rate",), "ratio_to_limit"))),
    "enqueue": Table(("enqueue",), _columns("one by one", "a hundred at a time", "in bulk")),
    "latency": Table(("latency",), _columns("p50", "p99")),
    "lateness": Table(("lateness",), _columns("p50 late", "p99 late", "worst", "early")),
    "recurring": Table(("recurring",), _columns("p50 late", "p99 late", "worst", "recorded once")),
    "growth": Table(
        ("growth_jobs", "growth_schedules", "growth_nodes"),
        (
            Column("CPU, node or client", ("CPU, worker", "CPU, scheduler", "CPU, client")),
            *_columns("CPU, database", "buffers", "commits"),
        ),
        (
            "created, 0 waiting",
            "created, 10,000,000 waiting",
            "drained, 0 waiting",
            "drained, 10,000,000 waiting",
            "drained, 10,000,000 in the history",
            "drained, 16 workers",
            "1,000 ahead",
            "1,000,000 ahead",
            "100,000 together",
        ),
    ),
    "http": Table(
        ("http",),
        _columns("executions", "dead executions", "jobs", "jobs by name", "active jobs", "dead letters"),
        ("HTTP, few executions", "HTTP, 1,000,000 executions"),
    ),
    "costly_requests": Table(("costly_requests",), _columns("p50 late", "p99 late", "worst", "requests answered")),
    "memory": Table(("footprint",), _columns("memory", "CPU", "more for 100,000 schedules")),
    "anatomy": Table(("anatomy",), _columns("CPU, client", "CPU, database", "commits", "buffers", "WAL")),
}


def main() -> None:
    """Write the pages."""
    for path in PAGES:
        path.write_text(page(path.read_text(encoding="utf-8")), encoding="utf-8")
        print(f"wrote {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")


def page(text: str) -> str:
    """The text with the latest figures in each of its tables."""
    return _MARKED.sub(lambda match: f"{match[1]}{_written(match[2]) or match[3]}{match[4]}", text)


def _written(name: str) -> str | None:
    if name == "occasions":
        return occasions(sorted({question for table in TABLES.values() for question in table.questions}))
    results = [latest(question) for question in TABLES[name].questions]
    return section(TABLES[name], results) if all(results) else None


def occasions(questions: Sequence[str]) -> str:
    """When and on which machines the questions were measured, a sentence for each machine."""
    by_occasion: dict[str, list[str]] = {}
    for question in questions:
        if result := latest(question):
            machine = result[0]
            occasion = f"on {machine['at'][:10]}, {machine['cores']} cores, Python {machine['python']}"
            by_occasion.setdefault(occasion, []).append(question)
    if len(by_occasion) == 1:
        return f"Measured {next(iter(by_occasion))}.\n"
    return "".join(f"Measured {occasion}: {', '.join(questions)}.\n" for occasion, questions in by_occasion.items())


@cache
def latest(question: str) -> Result | None:
    """The machine and the measures of a question by (subject, figure), from the newest file that has it."""
    files = [path for path in (RESULTS / f"{question}.json", RESULTS / "all.json") if path.exists()]
    documents = [json.loads(path.read_text(encoding="utf-8")) for path in files]
    results = [
        (document["machine"], {(measure["subject"], measure["figure"]): measure for measure in part["measures"]})
        for document in documents
        for part in document["questions"]
        if part["question"] == question
    ]
    return max(results, key=lambda result: result[0]["at"], default=None)


def section(table: Table, results: Sequence[Result | None]) -> str:
    """The table."""
    measures = {key: measure for result in results if result for key, measure in result[1].items()}
    return "".join(f"{line}\n" for line in _lines(table, measures))


def _lines(table: Table, measures: Measures) -> Iterator[str]:
    subjects = table.rows or dict.fromkeys(
        subject for subject, figure in measures if figure in table.columns[0].figures
    )
    yield "| | " + " | ".join(column.heading for column in table.columns) + " |"
    yield "|---" * (len(table.columns) + 1) + "|"
    for subject in subjects:
        yield f"| {subject} | " + " | ".join(_cell(subject, column, measures) for column in table.columns) + " |"


def _cell(subject: str, column: Column, measures: Measures) -> str:
    measure = next((measures[subject, figure] for figure in column.figures if (subject, figure) in measures), None)
    if measure is None or measure[column.field] is None:
        return "-"
    return f"{measure[column.field]:.2f}" if column.field == "ratio_to_limit" else _shown(measure)


def _shown(measure: Mapping[str, Any]) -> str:
    value, unit = float(measure["median"]), measure["unit"]
    digits = 0 if value >= 100 or value < 0.0005 else 1 if value >= 1 else 3
    blank = "" if unit in ("", "/s") else " "
    return f"{value:,.{digits}f}{blank}{unit}"


if __name__ == "__main__":
    main()
