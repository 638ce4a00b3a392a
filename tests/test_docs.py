"""The pages hang together: every link leads somewhere, every page is listed."""

from __future__ import annotations

import ast
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from bench.performance_page import Column, Table

from bench import brokers_page, performance_page

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file(page: Path) -> None:
    targets = [link.partition("#")[0] for link in LINK.findall(page.read_text(encoding="utf-8")) if "://" not in link]

    missing = [target for target in targets if target and not (page.parent / target).exists()]

    assert missing == []


FOR_MAINTAINERS = [ROOT / "ARCHITECTURE.md", *sorted((DOCS / "internals").glob("*.md"))]
CODE = re.compile(r"`([^`\n]+)`")
A_PATH = re.compile(r"(?:[\w.-]+/)+[\w-]+\.\w+")
A_CLASS = re.compile(r"[A-Z]\w*[a-z]\w*")
A_FUNCTION_OF_THE_SCHEMA = re.compile(r"timeball\.([a-z_]+)")


@pytest.mark.parametrize("page", FOR_MAINTAINERS, ids=lambda page: page.name)
def test_files_and_classes_that_maintainers_are_sent_to_exist(page: Path) -> None:
    sources = ROOT / "src" / "timeball"
    code = "".join(
        file.read_text(encoding="utf-8") for ending in ("py", "sql") for file in sources.rglob(f"*.{ending}")
    )
    words = set(re.findall(r"\w+", code))

    def exists(name: str) -> bool:
        if A_PATH.fullmatch(name):
            return any((folder / name).exists() for folder in (ROOT, sources))
        if function := A_FUNCTION_OF_THE_SCHEMA.fullmatch(name):
            return function[1] in words
        return A_CLASS.fullmatch(name) is None or name in words

    assert [name for name in CODE.findall(page.read_text(encoding="utf-8")) if not exists(name)] == []


def test_the_index_lists_every_page() -> None:
    listed = {(DOCS / link).resolve() for link in LINK.findall((DOCS / "README.md").read_text(encoding="utf-8"))}

    forgotten = {page for page in DOCS.rglob("*.md") if page.name != "README.md"} - listed

    assert forgotten == set()


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 200


def measured(*values: float) -> dict[str, Any]:
    """What the benchmark of brokers writes down, with these values for the statements of a job."""
    subjects = [f"{name}, {number} workers" for number in (2, 16) for name in ("PostgreSQL", "Redis", "RabbitMQ")]
    figures = {figure: "µs" if "µs" in form or " ms" in form else "" for _, figure, form in brokers_page.ROWS}
    measures = [
        {"subject": subject, "figure": figure, "unit": unit, "median": value if figure == "statements" else 1500.0}
        for subject, value in zip(subjects, values, strict=True)
        for figure, unit in figures.items()
    ]
    machine = {"at": "2026-11-16T09:00:00+00:00", "cores": 2, "load_before": 0.1}
    return {"machine": machine, "questions": [{"question": "brokers", "measures": measures}]}


def test_the_figures_of_brokers_are_written_between_the_marks_of_the_page() -> None:
    text = brokers_page.PAGE.read_text(encoding="utf-8")

    once = brokers_page.page(text, measured(6, 4, 4.04, 22, 4, 5))

    assert "| statements of the database, a job | 6.0 | 4.0 | 4.0 | 22.0 | 4.0 | 5.0 |\n" in once
    assert "| CPU of the broker, a job | - | 1.50 ms | 1.50 ms | - | 1.50 ms | 1.50 ms |\n" in once
    assert brokers_page.page(once, measured(6, 4, 4.04, 22, 4, 5)) == once
    assert once.partition("<!--")[0] == text.partition("<!--")[0]
    assert once.rpartition("-->")[2] == text.rpartition("-->")[2]


def test_the_figures_of_brokers_are_those_that_were_measured_last() -> None:
    if not brokers_page.SOURCE.exists():
        pytest.skip("nothing was measured yet: make bench ONLY=brokers")
    text = brokers_page.PAGE.read_text(encoding="utf-8")

    assert brokers_page.page(text, json.loads(brokers_page.SOURCE.read_text(encoding="utf-8"))) == text


@pytest.mark.parametrize("path", performance_page.PAGES, ids=lambda path: path.name)
def test_the_figures_of_performance_are_those_that_were_measured_last(path: Path) -> None:
    text = path.read_text(encoding="utf-8")

    assert "<!-- measured: " in text
    assert performance_page.page(text) == text


def test_every_table_of_performance_is_on_a_page() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in performance_page.PAGES)

    assert {name for name in performance_page.TABLES if f"<!-- measured: {name} -->" not in text} == set()


def test_a_table_has_a_row_for_each_subject_and_a_column_for_each_figure() -> None:
    keys = ("subject", "figure", "median", "unit", "ratio_to_limit")
    figures = [
        ("a", "CPU", 12.34, "µs", None),
        ("a", "buffers", 1234, "", None),
        ("b", "CPU", 0.5, "µs", 0.25),
        ("c", "statements", 3, "/s", None),
    ]
    measures = {
        (subject, figure): dict(zip(keys, (subject, figure, *rest), strict=True)) for subject, figure, *rest in figures
    }
    columns = (
        Column("CPU", ("CPU",)),
        Column("of the limit", ("CPU",), "ratio_to_limit"),
        Column("reads", ("buffers",)),
    )

    by_first_column = performance_page.section(Table(("cost",), columns), [({}, measures)])
    named = performance_page.section(
        Table(("cost",), (Column("rate", ("CPU", "statements")),), ("c",)), [({}, measures)]
    )

    assert by_first_column == (
        "| | CPU | of the limit | reads |\n|---|---|---|---|\n| a | 12.3 µs | - | 1,234 |\n| b | 0.500 µs | 0.25 | - |\n"
    )
    assert named == "| | rate |\n|---|---|\n| c | 3.0/s |\n"


FAULT = re.compile(r"^\| (\d+) \|.*\| ([^|]+) \|$", re.MULTILINE)
FAULTS = FAULT.findall((DOCS / "explanation" / "faults.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("number", "tests"), FAULTS, ids=[number for number, _ in FAULTS])
def test_every_fault_has_tests_that_say_its_number(number: str, tests: str) -> None:
    named = [test.strip("`").split("::") for test in tests.split("<br>")]

    silent = [name for path, name in named if f"Fault {number}." not in _docstring(ROOT / path, name)]

    assert named
    assert silent == []


def test_the_faults_are_numbered_without_gaps() -> None:
    assert [int(number) for number, _ in FAULTS] == list(range(1, len(FAULTS) + 1))


def _docstring(path: Path, name: str) -> str:
    functions = (node for node in ast.walk(_parsed(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return next((ast.get_docstring(function) or "" for function in functions if function.name == name), "")


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))
