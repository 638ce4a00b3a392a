"""What was measured, as tables: for the terminal, and for a page of the documentation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bench.peers.catalog import Variant
from bench.peers.results import Page
from bench.peers.servers import Servers

Measure = Mapping[str, Any]
HOME = "Timeball"
_MISSING = "-"
_LESS_IS_BETTER = ("ms", "s")
# Nearer than this, the machine decides who is ahead.
_LEVEL = 0.1


def show(measure: Measure) -> str:
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


def rows(page: Page) -> list[list[str]]:
    """A head, then a row for each subject that has a figure; a figure that is missing is a dash."""
    measures = {(measure["subject"], measure["figure"]): measure for measure in page["measures"]}
    figures = figures_of(page)
    subjects = [peer["subject"] for peer in page["peers"]]
    measured = [subject for subject in subjects if any((subject, figure) in measures for figure in figures)]
    body = [[subject, *(_cell(measures.get((subject, figure))) for figure in figures)] for subject in measured]
    return [["", *figures], *body]


def figures_of(page: Page) -> list[str]:
    """What was measured, in the order it was first measured in."""
    return list(dict.fromkeys(measure["figure"] for measure in page["measures"]))


def _cell(measure: Measure | None) -> str:
    return _MISSING if measure is None else show(measure)


def reasons(page: Page) -> list[str]:
    """Why figures are missing, a sentence each; those that share a reason share the sentence."""
    shared: dict[str, list[str]] = {}
    for subject, reason in page["refusals"].items():
        shared.setdefault(reason.splitlines()[0], []).append(subject)
    return [f"{'; '.join(subjects)}: {reason}" for reason, subjects in shared.items()]


def is_more_better(measure: Measure) -> bool:
    return measure["unit"] not in _LESS_IS_BETTER and not measure["figure"].startswith("twice")


def ahead(page: Page, figure: str) -> list[str]:
    """Who has a better figure than Timeball with default settings, the best first; who is level is said to be."""
    measures = {measure["subject"]: measure for measure in page["measures"] if measure["figure"] == figure}
    ours = measures.pop(HOME, None)
    if ours is None:
        return []
    others = [measure for subject, measure in measures.items() if not subject.startswith(HOME)]
    better = [measure for measure in others if _is_better(measure, ours)]
    better.sort(key=lambda measure: measure["median"], reverse=is_more_better(ours))
    return [f"{measure['subject']} ({show(measure)}{_level(measure, ours)})" for measure in better]


def _is_better(measure: Measure, than: Measure) -> bool:
    more, less = (measure, than) if is_more_better(than) else (than, measure)
    return bool(more["median"] > less["median"])


def _level(measure: Measure, ours: Measure) -> str:
    return ", level" if abs(measure["median"] - ours["median"]) <= _LEVEL * ours["median"] else ""


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


def for_terminal(page: Page) -> str:
    """One question: its table, and why something is missing."""
    missing = [f"  - {line}" for line in reasons(page)]
    return "\n".join([f"\n{page['question']}: {page['title']}", in_columns(rows(page)), *missing])


def settings(variants: Iterable[Variant], servers: Servers) -> str:
    """Who takes part, with which settings, on which servers."""
    stores = [f"  {name} {says}" for name, says in servers.describe().items()]
    peers = [
        f"  {variant.subject} {variant.peer.version} on {variant.peer.store}: {variant.says}" for variant in variants
    ]
    return "\n".join(["\nservers", *stores, "settings", *peers])
