"""`python -m bench.brokers_page`: writes the figures of `results/brokers.json` into the page about brokers, between its marks.

The page draws conclusions from the figures: read it again after a new measurement.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.report import RESULTS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "explanation" / "brokers.md"
SOURCE = RESULTS / "brokers.json"
_MARKED = re.compile(r"(<!-- measured: brokers -->\n).*?(<!-- end of measured -->\n)", re.DOTALL)

Figures = Mapping[tuple[str, str], float]

# What a row is called, the figure it shows, and how a value of it is written.
ROWS = (
    ("statements of the database, a job", "statements", "{:.1f}"),
    ("CPU of the database, a job", "CPU of database", "{:.2f} ms"),
    ("CPU of all nodes, a job", "CPU of nodes", "{:.2f} ms"),
    ("CPU of the broker, a job", "CPU of broker", "{:.2f} ms"),
    ("enqueued until started, median", "enqueue to start, median", "{:.1f} ms"),
    ("a backlog of 5,000, jobs a second", "backlog", "{:,.0f}"),
    ("of it, CPU of the database, a job", "CPU of database in a backlog", "{:.3f} ms"),
    ("of it, CPU of all nodes, a job", "CPU of nodes in a backlog", "{:.3f} ms"),
    ("of it, CPU of the broker, a job", "CPU of broker in a backlog", "{:.3f} ms"),
    ("statements while idle, a second", "statements while idle", "{:.1f}"),
    ("CPU of the database while idle", "CPU of database while idle", "{:.1f} % of a core"),
    ("CPU of all nodes while idle", "CPU of nodes while idle", "{:.1f} % of a core"),
)


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(PAGE.read_text(), json.loads(SOURCE.read_text())))
    print(f"wrote {PAGE.relative_to(Path.cwd()) if PAGE.is_relative_to(Path.cwd()) else PAGE}")


def page(text: str, document: Mapping[str, Any]) -> str:
    """The text with the figures of a run between its marks."""
    written, number = _MARKED.subn(lambda found: f"{found[1]}{section(document)}{found[2]}", text)
    if number != 1:
        raise SystemExit(f"the page has {number} pairs of marks for the figures of brokers, expected 1")
    return written


def section(document: Mapping[str, Any]) -> str:
    """When and where it was measured, and the table."""
    (question,) = (found for found in document["questions"] if found["question"] == "brokers")
    machine = document["machine"]
    figures = {(one["subject"], one["figure"]): _value(one) for one in question["measures"]}
    subjects = list(dict.fromkeys(subject for subject, _ in figures))
    lines = [
        f"Measured on {machine['at'][:10]}: {machine['cores']} cores, which were busy with {machine['load_before']:.1f} before.",
        "",
        "| | " + " | ".join(subject.removesuffix(" workers") for subject in subjects) + " |",
        "|---" * (len(subjects) + 1) + "|",
        *(_row(row, subjects, figures) for row in ROWS),
    ]
    return "\n".join(lines) + "\n"


def _value(measure: Mapping[str, Any]) -> float:
    """Times of the processor in milliseconds: a job takes some, or parts of one."""
    return float(measure["median"]) / (1000 if measure["unit"] == "µs" else 1)


def _row(row: tuple[str, str, str], subjects: list[str], figures: Figures) -> str:
    label, figure, form = row
    cells = ["-" if _has_none(subject, figure) else form.format(figures[subject, figure]) for subject in subjects]
    return f"| {label} | " + " | ".join(cells) + " |"


def _has_none(subject: str, figure: str) -> bool:
    return subject.startswith("PostgreSQL") and figure.startswith("CPU of broker")


if __name__ == "__main__":
    main()
