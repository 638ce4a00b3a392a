"""The rows of a time line: what belongs to which, which of them are shown, and their marks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from typing import NamedTuple

from timeball.domain.foresight import GUESS, Fires, even_edges
from timeball.domain.ids import JobId, show_execution
from timeball.domain.marks import Mark, MarkKind, Row
from timeball.domain.node import NodeStatus
from timeball.store.durations import NO_DURATIONS, Durations
from timeball.store.outlook import Named, Run


@dataclass(slots=True)
class Seen:
    """Everything that was read for one view."""

    past: Sequence[Run] = ()
    cut_before: datetime | None = None
    running: list[Run] = field(default_factory=list)
    one_offs: list[Run] = field(default_factory=list)
    fires: list[Fires] = field(default_factory=list)
    names: dict[JobId, Named] = field(default_factory=dict)
    durations: Durations = NO_DURATIONS
    durations_at: datetime | None = None
    workers: list[NodeStatus] = field(default_factory=list)
    left_out: int = 0

    def usual(self, run: Run) -> timedelta | None:
        """How long a run should take, if that is known."""
        known = self.durations.of(run.job_id, run.handler)
        return None if known is None else known.median


class RowName(NamedTuple):
    """What a row is called; rows stand in this order."""

    label: str
    key: str
    kind: str


@dataclass(slots=True)
class RowParts:
    """What belongs to one row."""

    name: RowName
    past: list[Run] = field(default_factory=list)
    running: list[Run] = field(default_factory=list)
    one_offs: list[Run] = field(default_factory=list)
    fires: list[Fires] = field(default_factory=list)
    cut_before: datetime | None = None


def sorted_parts(
    seen: Seen, name_of: Callable[[Run], RowName], name_of_line: Callable[[Fires], RowName]
) -> list[RowParts]:
    """Everything that was read, by the row it belongs to, in the order of the rows."""
    found: dict[RowName, RowParts] = {}

    def parts(name: RowName) -> RowParts:
        known = found.get(name)
        if known is None:
            known = found[name] = RowParts(name, cut_before=seen.cut_before)
        return known

    for run in seen.past:
        parts(name_of(run)).past.append(run)
    for run in seen.running:
        parts(name_of(run)).running.append(run)
    for run in seen.one_offs:
        parts(name_of(run)).one_offs.append(run)
    for fires in seen.fires:
        parts(name_of_line(fires)).fires.append(fires)
    return [found[name] for name in sorted(found)]


def drawn_row(parts: RowParts, seen: Seen, start: datetime, end: datetime, now: datetime) -> Row:
    """A row with its marks; *start* and *end* are those of the view."""
    marks = [_past_mark(run) for run in parts.past]
    for run in parts.running:
        marks += _running_marks(run, seen, now)
    marks += [_one_off_mark(run, seen) for run in parts.one_offs]
    marks += _predicted_marks(parts.fires, max(start, now), end)
    name = parts.name
    return Row(key=name.key, label=name.label, kind=name.kind, marks=marks, cut_before=parts.cut_before)


def _past_mark(run: Run) -> Mark:
    return Mark(
        kind=MarkKind.PAST,
        start=run.started_at,
        end=run.finished_at or run.started_at,
        states={run.state or "": 1},
        execution_id=show_execution(run.id),
    )


def _running_marks(run: Run, seen: Seen, now: datetime) -> Iterable[Mark]:
    """What it has done, and what it usually still has to do."""
    shown = show_execution(run.id)
    yield Mark(kind=MarkKind.RUNNING, start=run.started_at, end=now, states={"running": 1}, execution_id=shown)
    usual = seen.usual(run)
    if usual is not None and run.started_at + usual > now:
        yield Mark(kind=MarkKind.PREDICTED, start=now, end=run.started_at + usual, execution_id=shown)


def _one_off_mark(run: Run, seen: Seen) -> Mark:
    usual = seen.usual(run)
    return Mark(
        kind=MarkKind.PREDICTED,
        start=run.started_at,
        end=run.started_at + (usual or GUESS),
        execution_id=show_execution(run.id),
        is_guess=usual is None,
    )


def _predicted_marks(group: Sequence[Fires], start: datetime, end: datetime) -> Iterable[Mark]:
    for fires in group:
        line = fires.line
        for at in fires.at:
            shown = (
                show_execution(line.execution_id) if line.execution_id and at == line.pending + line.jitter else None
            )
            yield Mark(
                kind=MarkKind.PREDICTED,
                start=at,
                end=at + line.duration,
                execution_id=shown,
                is_guess=line.is_guess,
            )
    yield from _counted_marks([fires for fires in group if fires.counts], start, end)


def _counted_marks(dense: Sequence[Fires], start: datetime, end: datetime) -> Iterable[Mark]:
    """Lines that were only counted, all of a row together: a queue may have thousands of them."""
    if not dense:
        return
    totals = [sum(counts) for counts in zip(*(fires.counts for fires in dense), strict=True)]
    is_guess = any(fires.line.is_guess for fires in dense)
    edges = even_edges(start, end, len(totals))
    for (low, high), count in zip(pairwise(edges), totals, strict=True):
        if count:
            yield Mark(kind=MarkKind.PREDICTED, start=low, end=high, count=count, is_guess=is_guess)
