"""The results of the comparison: a file with a page for each question, which a later run may ask anew.

A question has its own time, size, versions and settings, so that a run that was cut can go on with the questions that are left.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.peers.catalog import QUESTIONS
from bench.report import RESULTS

_QUIET_LOAD = 0.5  # of each core

Page = Mapping[str, Any]
Document = Mapping[str, Any]


def path_of(size: str, is_everybody: bool) -> Path:
    """Where a run is kept; what asks few peers, or few jobs of them, does not overwrite what asked all."""
    parts = ["peers", *([size] if size == "short" else []), *([] if is_everybody else ["some"])]
    return RESULTS / f"{'-'.join(parts)}.json"


def keep(path: Path, page: Page) -> None:
    """Put the page of a question into the file, instead of an older one; the others stay as they are."""
    pages = {known["question"]: known for known in read(path)["questions"]} | {page["question"]: page}
    document = {"questions": [pages[question] for question in QUESTIONS if question in pages]}
    path.parent.mkdir(exist_ok=True)
    # In one step: a run that is cut while it writes does not take the earlier pages with it.
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    draft.replace(path)


def read(path: Path) -> dict[str, Any]:
    """What is there by now."""
    if not path.exists():
        return {"questions": []}
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document


def is_quiet(machine: Mapping[str, Any]) -> bool:
    """Whether a machine was idle before the measurement."""
    return bool(machine["load_before"] < _QUIET_LOAD * machine["cores"])


def left(document: Document) -> list[str]:
    """The questions that have not been asked."""
    asked = {page["question"] for page in document["questions"]}
    return [question for question in QUESTIONS if question not in asked]
