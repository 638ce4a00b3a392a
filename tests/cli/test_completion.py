"""Shells complete nouns, verbs and options."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


def completions(typed: str) -> set[str]:
    """What bash is offered behind these words, by the program that it would ask."""
    words = typed.split(" ")
    asked = {"_TIMEBALL_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(len(words) - 1)}
    found = subprocess.run(
        [sys.executable, "-c", "from timeball.cli.app import app; app(prog_name='timeball')"],
        env=os.environ | asked,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return set(found.stdout.split())


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("timeball ", {"up", "run", "next", "why", "jobs", "runs", "dead", "queues", "workers", "templates", "keys"}),
        ("timeball jobs ", {"show", "create", "edit", "pause", "resume", "trigger", "duplicate", "delete", "sync"}),
        ("timeball runs --st", {"--status"}),
    ],
)
def test_words_are_offered(typed: str, offered: set[str]) -> None:
    assert offered <= completions(typed)


def test_what_does_not_fit_is_not_offered() -> None:
    assert completions("timeball jobs dup") == {"duplicate"}
