"""What was measured, as tables: for the terminal, and for a page of the documentation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Document = Mapping[str, Any]
_MISSING = "-"


def show(measure: Mapping[str, Any]) -> str:
    """A median as people like to read it: three digits are plenty on a machine that swings by 40 %."""
    unit = measure["unit"]
    space = "" if unit in ("", "/s") else " "
    return f"{_number(measure['median'])}{space}{unit}"


def _number(value: float) -> str:
    if value != value:  # not a number
        return _MISSING
    if abs(value) >= 100 or value == round(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def rows(question: Mapping[str, Any], subjects: Iterable[str]) -> list[list[str]]:
    """A head, then a row for each subject that has a figure; a figure that is missing is a dash."""
    measures = {(measure["subject"], measure["figure"]): measure for measure in question["measures"]}
    figures = list(dict.fromkeys(figure for _, figure in measures))
    measured = [subject for subject in subjects if any((subject, figure) in measures for figure in figures)]
    body = [[subject, *(_cell(measures.get((subject, figure))) for figure in figures)] for subject in measured]
    return [["", *figures], *body]


def _cell(measure: Mapping[str, Any] | None) -> str:
    return _MISSING if measure is None else show(measure)


def subjects_of(document: Document) -> list[str]:
    return [peer["subject"] for peer in document["peers"]]


def reasons(document: Document, question: str) -> list[str]:
    """Why figures are missing, a sentence each; those that share a reason share the sentence."""
    shared: dict[str, list[str]] = {}
    for subject, reason in document["refusals"].get(question, {}).items():
        shared.setdefault(reason.splitlines()[0], []).append(subject)
    return [f"{'; '.join(subjects)}: {reason}" for reason, subjects in shared.items()]


def in_columns(table: Sequence[Sequence[str]]) -> str:
    """For a terminal."""
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    return "\n".join(
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table
    )


def in_markdown(table: Sequence[Sequence[str]]) -> str:
    """For a page."""
    head, *body = table
    return "\n".join(["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *body)])


def for_terminal(document: Document, question: Mapping[str, Any]) -> str:
    """One question: its table, and why something is missing."""
    missing = [f"  - {line}" for line in reasons(document, question["question"])]
    table = in_columns(rows(question, subjects_of(document)))
    return "\n".join([f"\n{question['question']}: {question['title']}", table, *missing])


def settings(document: Document) -> str:
    """Who took part, with which settings, on which servers."""
    servers = [f"  {name} {says}" for name, says in document["servers"].items()]
    peers = [
        f"  {peer['subject']} {peer['version']} on {peer['store']}: {peer['settings']}" for peer in document["peers"]
    ]
    return "\n".join(["\nservers", *servers, "settings", *peers])
