"""What was measured: figures of subjects, several values each, and their medians."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Any


@dataclass(frozen=True, slots=True)
class Unit:
    """How a figure is written, and whether more of it is better."""

    text: str
    digits: int = 0
    is_more_better: bool = True

    def show(self, value: float) -> str:
        return f"{value:,.{self.digits}f}{self.text}"


RATE = Unit("/s")
MILLISECONDS = Unit(" ms", 2, is_more_better=False)
SECONDS = Unit(" s", 1, is_more_better=False)
MICROSECONDS = Unit(" µs", 1, is_more_better=False)
MEGABYTES = Unit(" MB", 1, is_more_better=False)
PERCENT = Unit(" %", 2, is_more_better=False)
NUMBER = Unit("", 0)
RATIO = Unit("", 2)


@dataclass(slots=True)
class Measure:
    """All values of one figure of one subject."""

    subject: str
    figure: str
    unit: Unit
    values: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return median(self.values)

    @property
    def spread(self) -> str:
        """From the least to the most, if there was more than one."""
        if len(self.values) == 1:
            return ""
        return f"{self.unit.show(min(self.values))} to {self.unit.show(max(self.values))}"


class Notebook:
    """The measures of one question."""

    def __init__(self, question: str, title: str, limit: str | None, targets: dict[tuple[str, str], str]) -> None:
        self.question = question
        self.title = title
        self.limit = limit
        self.targets = targets
        self._measures: dict[tuple[str, str], Measure] = {}

    def note(self, subject: str, figure: str, value: float, unit: Unit = RATE) -> None:
        """Write down one value."""
        measure = self._measures.setdefault((subject, figure), Measure(subject, figure, unit))
        measure.values.append(value)

    def __iter__(self) -> Iterator[Measure]:
        return iter(self._measures.values())

    def median(self, subject: str, figure: str) -> float:
        """The median of what was written down."""
        return self._measures[subject, figure].median

    def ratio_to_limit(self, measure: Measure) -> float | None:
        """How a measure compares with the same figure of the limit; None if it has none, or is the limit."""
        if self.limit is None or measure.subject == self.limit:
            return None
        limit = self._measures.get((self.limit, measure.figure))
        return measure.median / limit.median if limit is not None and limit.median else None

    def as_json(self) -> dict[str, Any]:
        """Everything, for a file."""
        return {
            "question": self.question,
            "title": self.title,
            "limit": self.limit,
            "measures": [
                {
                    "subject": measure.subject,
                    "figure": measure.figure,
                    "unit": measure.unit.text.strip(),
                    "median": measure.median,
                    "values": measure.values,
                    "ratio_to_limit": self.ratio_to_limit(measure),
                    "target": self.targets.get((measure.subject, measure.figure)),
                }
                for measure in self
            ],
        }
