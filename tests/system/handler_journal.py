"""What the handlers wrote down themselves, and how it must agree with what the database says."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from timeball.domain.values.ids import parse_id

Line = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One call of a handler: seconds are those of the machine's monotonic clock, which all its processes share."""

    execution: UUID
    fence: int
    attempt: int
    handler: str
    label: str
    pid: int
    scheduled_for: datetime
    began_at: datetime
    began: float
    ended: float | None
    was_cut: bool


class Ledger:
    """Reads the file that the handlers append to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.touch()

    def lines(self) -> list[Line]:
        text = self._path.read_text()
        # The last line may be half written: it belongs to the next reading.
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def runs(self, label: str | None = None, execution: UUID | None = None) -> list[Run]:
        """Every run that was begun, in the order of their beginnings; a claim that was begun twice is there twice."""
        begun: list[Line] = []
        ends: dict[tuple[str, int, int], Line] = {}
        for line in self.lines():
            if line["what"] == "begin":
                begun.append(line)
            elif line["what"] in ("end", "cut"):
                ends[line["execution"], line["fence"], line["pid"]] = line
        runs = [_run(line, ends.get((line["execution"], line["fence"], line["pid"]))) for line in begun]
        return [
            run
            for run in sorted(runs, key=lambda run: run.began)
            if label in (None, run.label) and execution in (None, run.execution)
        ]


def _run(begin: Line, end: Line | None) -> Run:
    return Run(
        execution=parse_id("exe", begin["execution"]),
        fence=begin["fence"],
        attempt=begin["attempt"],
        handler=begin["handler"],
        label=begin.get("label", ""),
        pid=begin["pid"],
        scheduled_for=datetime.fromtimestamp(begin["scheduled_for"], UTC),
        began_at=datetime.fromtimestamp(begin["at"], UTC),
        began=begin["monotonic"],
        ended=None if end is None else end["monotonic"],
        was_cut=end is not None and end["what"] == "cut",
    )


def most_together(runs: Iterable[Run]) -> int:
    """How many of the runs there were at the same time, at most; one that never ended is left out."""
    steps: list[tuple[float, int]] = []
    for run in runs:
        if run.ended is not None:
            steps += [(run.began, 1), (run.ended, -1)]
    together = most = 0
    for _, step in sorted(steps):
        together += step
        most = max(most, together)
    return most


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """An execution's row in the history."""

    id: UUID
    state: str
    scheduled_for: datetime
    fence: int
    attempts: int
    lost: int


def problems(runs: Iterable[Run], finished: Iterable[Finished], *, was_frozen: bool) -> list[str]:
    """Where the books do not agree. *was_frozen*: a node slept through its own death, and may have acted once more then."""
    found: list[str] = []
    by_execution: dict[UUID, list[Run]] = defaultdict(list)
    for run in runs:
        by_execution[run.execution].append(run)
        if run.began_at < run.scheduled_for:
            early = run.scheduled_for - run.began_at
            found.append(f"{run.execution} began {early} early")
    for execution, tries in by_execution.items():
        fences = [run.fence for run in tries]
        if len(set(fences)) < len(fences):
            found.append(f"{execution} was begun twice under one fence: {fences}")
        if sorted(fences) != fences and not was_frozen:
            found.append(f"{execution} was begun in the order of fences {fences}")
    found += _outcome_problems(by_execution, finished)
    return found


def _outcome_problems(runs: dict[UUID, list[Run]], finished: Iterable[Finished]) -> list[str]:
    found: list[str] = []
    seen: set[UUID] = set()
    for row in finished:
        tries = {run.fence: run for run in runs.get(row.id, [])}
        if row.id in seen:
            found.append(f"{row.id} ended twice")
        seen.add(row.id)
        if row.state == "succeeded":
            accepted = tries.get(row.fence)
            if accepted is None or accepted.ended is None or accepted.was_cut:
                found.append(f"{row.id} succeeded under fence {row.fence}, but no such run came to its end: {tries}")
        if tries and max(tries) > row.fence:
            found.append(f"{row.id} ended under fence {row.fence}, but was begun under {max(tries)}")
    return found


def every(seconds: int, anchor: datetime, after: datetime, until: datetime) -> set[datetime]:
    """The instants of a rhythm in (after, until], by arithmetic of our own."""
    first = max(0, (after - anchor) // timedelta(seconds=seconds) + 1)
    last = (until - anchor) // timedelta(seconds=seconds)
    return {anchor + timedelta(seconds=seconds * number) for number in range(first, last + 1)}
