"""What a gate answers: `passed`, `stopped` or `not_asked`, in one sentence; and the words that several gates share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from shlex import quote

from timeball.domain.facts import Rival
from timeball.domain.ids import show_execution


class Verdict(StrEnum):
    """What a gate says."""

    PASSED = "passed"
    STOPPED = "stopped"
    NOT_ASKED = "not_asked"


@dataclass(frozen=True, slots=True)
class Finding:
    """The answer of one gate: one sentence, what to do next if somebody can do something, and the ids of what is in the way.

    The advice holds the command too, if there is one to type.
    """

    verdict: Verdict
    sentence: str
    advice: str | None = None
    links: tuple[str, ...] = ()
    command: str | None = None


def passed(sentence: str) -> Finding:
    """The gate is open."""
    return Finding(Verdict.PASSED, sentence)


def not_asked(sentence: str) -> Finding:
    """The gate does not stand in this way, or not yet."""
    return Finding(Verdict.NOT_ASKED, sentence)


def stopped(
    sentence: str, words: str | None = None, links: tuple[str, ...] = (), command: str | None = None
) -> Finding:
    """The gate is closed; *words* and *command* are what to do about it."""
    advice = ": ".join(part for part in (words, command) if part) or None
    return Finding(Verdict.STOPPED, sentence, advice, links, command)


def ids_of(rivals: Sequence[Rival]) -> tuple[str, ...]:
    """What to link to: those that stand in the way."""
    return tuple(show_execution(rival.id) for rival in rivals)


def trigger_job(name: str) -> str:
    """The command that runs a job now."""
    return f"timeball jobs trigger {quote(name)}"
