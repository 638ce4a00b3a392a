"""What `verify` found, promise by promise: for people, and for programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from timeball.domain.ids import show_execution, show_job
from timeball.domain.instants import shown, stamp

# How many of the rows that break a promise are shown.
LISTED = 20
_LONGEST_TEXT = 200
_HIDDEN = frozenset({"why", "total", "is_warning", "actor"})


@dataclass(frozen=True, slots=True)
class Violation:
    """One row that breaks a promise, and why; its columns as people read them."""

    why: str
    row: Mapping[str, str]

    def __str__(self) -> str:
        return f"{self.why}: {', '.join(f'{column} {value}' for column, value in self.row.items())}"

    def as_dict(self) -> dict[str, str]:
        return {"why": self.why, **self.row}


@dataclass(slots=True, kw_only=True)
class Check:
    """One promise: how many things were looked at, and the first of the rows that break it."""

    code: str
    title: str
    unit: str
    checked: int = 0
    not_checkable: int = 0
    violations: list[Violation] = field(default_factory=list)
    total_violations: int = 0
    warnings: list[Violation] = field(default_factory=list)
    total_warnings: int = 0

    @property
    def holds(self) -> bool:
        return self.total_violations == 0

    def note(self, violation: Violation, *, is_warning: bool) -> None:
        """Count a row, and keep it if it is one of the first."""
        if is_warning:
            self.total_warnings += 1
            kept = self.warnings
        else:
            self.total_violations += 1
            kept = self.violations
        if len(kept) < LISTED:
            kept.append(violation)

    def absorb(self, other: Check) -> None:
        """Add what another check found about the same promise."""
        self.checked += other.checked
        self.not_checkable += other.not_checkable
        self.violations = [*self.violations, *other.violations][:LISTED]
        self.total_violations += other.total_violations
        self.warnings = [*self.warnings, *other.warnings][:LISTED]
        self.total_warnings += other.total_warnings

    def as_dict(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "title": self.title,
            "holds": self.holds,
            "checked": self.checked,
            "unit": self.unit,
            "not_checkable": self.not_checkable,
            "total_violations": self.total_violations,
            "violations": [violation.as_dict() for violation in self.violations],
            "total_warnings": self.total_warnings,
            "warnings": [warning.as_dict() for warning in self.warnings],
        }

    def lines(self) -> Iterator[str]:
        verdict = "holds" if self.holds else f"BROKEN by {self.total_violations:,}"
        unsure = f", {self.not_checkable:,} not checkable with these time-zone data" if self.not_checkable else ""
        yield f"{self.code:<8} {self.title}: {verdict} ({self.checked:,} {self.unit}{unsure})"
        yield from _listing("! ", self.violations, self.total_violations)
        yield from _listing("warning: ", self.warnings, self.total_warnings)


@dataclass(frozen=True, slots=True)
class Report:
    """What `verify` found, promise by promise."""

    checked_at: datetime
    checks: Sequence[Check]

    @property
    def holds(self) -> bool:
        """Whether every promise holds; warnings do not break one."""
        return all(check.holds for check in self.checks)

    def check(self, code: str) -> Check:
        """The check of one promise."""
        return next(check for check in self.checks if check.code == code)

    def as_dict(self) -> dict[str, Any]:
        """The report for programs, ready for JSON."""
        return {
            "holds": self.holds,
            "checked_at": stamp(self.checked_at),
            "checks": [check.as_dict() for check in self.checks],
        }

    def lines(self) -> Iterator[str]:
        """The report for people: what was checked, the rows that break a promise, and at the end the verdict."""
        for check in self.checks:
            yield from check.lines()
        yield self._verdict()

    def _verdict(self) -> str:
        warnings = sum(check.total_warnings for check in self.checks)
        aside = f"; {warnings:,} warnings" if warnings else ""
        broken = [check for check in self.checks if not check.holds]
        if not broken:
            return f"Every promise holds, as of {stamp(self.checked_at)}{aside}."
        rows = sum(check.total_violations for check in broken)
        names = ", ".join(check.code for check in broken)
        return f"Promises are broken, as of {stamp(self.checked_at)}: {names}, by {rows:,} in all{aside}."


def violation_from(row: Mapping[str, Any]) -> Violation:
    """A row that breaks a promise, as people read it."""
    columns = {name: _text(name, value) for name, value in row.items() if name not in _HIDDEN and value is not None}
    return Violation(row["why"], columns)


def _text(column: str, value: Any) -> str:
    match value:
        case UUID() if column == "job_id":
            return show_job(value)
        case UUID() if column.endswith("execution_id"):
            return show_execution(value)
        case datetime():
            return stamp(value)
        case _:
            return shown(str(value), _LONGEST_TEXT)


def _listing(mark: str, violations: Sequence[Violation], total: int) -> Iterator[str]:
    for violation in violations:
        yield f"    {mark}{violation}"
    if total > len(violations):
        yield f"    {mark}and {total - len(violations):,} more"
