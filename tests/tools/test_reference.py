"""The docs are true: generated pages are up to date, every problem has its section, every snippet is a job that is taken."""

from __future__ import annotations

import ast
import importlib
import json
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from tools.reference import generated_pages

import timeball
from timeball.api import errors
from timeball.config.settings import HandlerSettings
from timeball.domain.job import define_job
from timeball.domain.job_fields import JobSpec
from timeball.domain.values.ids import JobId
from timeball.env import SystemClock
from timeball.errors import TimeballError
from timeball.handlers.catalogue import BuiltinHandlers, HandlerCatalogue
from timeball.testing.environment import START

DOCS = Path(__file__).parents[2] / "docs"
SOURCE = Path(timeball.__file__).parent


@pytest.mark.parametrize(("file", "text"), generated_pages(), ids=lambda given: getattr(given, "name", ""))
def test_a_generated_page_is_up_to_date(file: Path, text: str) -> None:
    assert file.read_text(encoding="utf-8") == text, "run `make reference` and commit what it writes"


# problems


def codes_of_errors() -> set[str]:
    """The codes of all error classes there are; importing everything makes them known."""
    for module in pkgutil.walk_packages([str(SOURCE)], "timeball."):
        if "__main__" not in module.name and "subreaper" not in module.name:
            importlib.import_module(module.name)
    found: set[str] = set()
    classes = [TimeballError]
    while classes:
        kind = classes.pop()
        found.add(kind.code)
        classes += kind.__subclasses__()
    return {code for code in found if re.fullmatch("[a-z_]+", code)}


def codes_of_responses() -> Iterator[str]:
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "HttpProblem":
                code = node.args[1]
                assert isinstance(code, ast.Constant), f"{path}:{node.lineno} has a code that cannot be read here"
                yield str(code.value)


def test_every_problem_has_a_section() -> None:
    text = (DOCS / "reference" / "problems.md").read_text(encoding="utf-8")
    sections = set(re.findall(r"(?m)^### ([a-z_]+)$", text))

    codes = (
        codes_of_errors() | set(codes_of_responses()) | set(errors._CODES.values()) | {"http_error", "internal_error"}
    )

    assert codes - sections == set(), "these codes have no section in docs/reference/problems.md"
    assert sections - codes == set(), "these sections describe codes that are not used"


# snippets


def jobs_in(path: Path) -> list[dict[str, Any]]:
    blocks = re.findall(r"(?s)```json\n(.*?)```", path.read_text(encoding="utf-8"))
    return [job for job in map(json.loads, blocks) if "handler" in job]


@pytest.mark.parametrize("name", ["webhooks", "commands", "mail", "payload-references"])
def test_the_jobs_of_the_how_to_pages_are_taken(name: str, tmp_path: Path) -> None:
    box = BuiltinHandlers(HandlerSettings(), SystemClock(), tmp_path)
    catalogue = HandlerCatalogue(box.known, ())

    jobs = jobs_in(DOCS / "howto" / f"{name}.md")

    assert jobs
    for fields in jobs:
        job = define_job(JobSpec(**fields), JobId(UUID(int=1)), START, 64)
        check = catalogue.checker(job.handler)
        assert check is not None
        check(job.payload)
