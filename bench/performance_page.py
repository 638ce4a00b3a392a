"""`python -m bench.performance_page`: writes what was measured last into the page about performance, between its marks.

A mark names a question (`<!-- measured: anatomy -->`), and between it and the next one stand the tables of `results/<question>.json`.
The page says what follows from the figures in words; whoever measures anew reads it once more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from bench.report import RESULTS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "explanation" / "performance.md"
_MARKED = re.compile(r"(<!-- measured: (\w+) -->\n)(.*?)(<!-- end of measured -->\n)", re.DOTALL)

Rows = Sequence[tuple[str, Mapping[str, str]]]


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(PAGE.read_text()))
    print(f"wrote {PAGE.relative_to(Path.cwd()) if PAGE.is_relative_to(Path.cwd()) else PAGE}")


def page(text: str) -> str:
    """The text with the tables of each question between its marks; of one that was never asked here, they stay as they are."""
    return _MARKED.sub(lambda found: f"{found[1]}{_measured(found[2]) or found[3]}{found[4]}", text)


def _measured(question: str) -> str | None:
    source = RESULTS / f"{question}.json"
    return section(json.loads(source.read_text())) if source.exists() else None


def section(document: Mapping[str, Any]) -> str:
    """When and where it was measured, and a table for all subjects that have the same figures."""
    machine, (question,) = document["machine"], document["questions"]
    measured_on = (
        f"Measured on {machine['at'][:10]}: {machine['cores']} cores, a load of {machine['load_before']:.1f}.\n"
    )
    subjects = [
        (subject, {one["figure"]: _shown(one) for one in measures})
        for subject, measures in groupby(question["measures"], key=lambda one: one["subject"])
    ]
    tables: dict[tuple[str, ...], list[tuple[str, Mapping[str, str]]]] = {}
    for subject, values in subjects:
        tables.setdefault(tuple(values), []).append((subject, values))
    return "\n".join([measured_on, *("\n".join(_table(rows)) + "\n" for rows in tables.values())])


def _table(rows: Rows) -> Iterator[str]:
    figures = list(rows[0][1])
    yield "| | " + " | ".join(figures) + " |"
    yield "|---" * (len(figures) + 1) + "|"
    for subject, values in rows:
        yield f"| {subject} | " + " | ".join(values[figure] for figure in figures) + " |"


def _shown(measure: Mapping[str, Any]) -> str:
    value, unit = float(measure["median"]), measure["unit"]
    digits = 0 if value >= 100 or value < 0.0005 else 1 if value >= 1 else 3
    blank = "" if unit in ("", "/s") else " "
    return f"{value:,.{digits}f}{blank}{unit}"


if __name__ == "__main__":
    main()
