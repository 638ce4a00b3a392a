"""Texts from outside are parsed in time linear in their length."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import pytest

from timeball.config.servers import server_url_problem
from timeball.dashboard.pages.navigation import split_last_term
from timeball.domain.scheduling.cron import parse_cron
from timeball.domain.search import EXECUTION_FIELDS, parse_query
from timeball.domain.template import placeholders
from timeball.domain.values.json_text import _depth, _has_more_values
from timeball.domain.values.redaction import is_secret, redact
from timeball.domain.values.text import clean_text
from timeball.domain.values.wording import parse_duration
from timeball.errors import TimeballError
from timeball.handlers.builtin.email import _check_line

# Sixteen times the text may take sixteen times as long, and four times that for a busy machine; a square would be 256.
_LONGER, _ALLOWED = 16, 64
# Below this, a clock tells nothing.
_LEAST_SECONDS = 0.002


def seconds_of(work: Callable[[str], Any], text: str) -> float:
    """The least processor time of some tries: other load makes a try longer, never shorter."""
    tries: list[float] = []
    for _ in range(3):
        before = time.thread_time()
        with contextlib.suppress(TimeballError, ValueError):
            work(text)
        tries.append(time.thread_time() - before)
    return max(min(tries), _LEAST_SECONDS)


@pytest.mark.parametrize(
    ("work", "pattern"),
    [
        (redact, "?"),
        (redact, "&"),
        (redact, "?a"),
        (redact, "?a=b&"),
        (redact, "://a:"),
        (redact, "://a:b"),
        (redact, ":"),
        (redact, "@"),
        (is_secret, "auth"),
        (is_secret, "author"),
        (is_secret, "authors-"),
        (is_secret, "api"),
        (is_secret, "pas"),
        (parse_duration, " "),
        (parse_duration, "1"),
        (parse_duration, "1d "),
        (split_last_term, "a"),
        (split_last_term, "a "),
        (split_last_term, '"a'),
        (split_last_term, '" "'),
        (split_last_term, "-"),
        (lambda text: parse_query(text, EXECUTION_FIELDS), '"a'),
        (lambda text: parse_query(text, EXECUTION_FIELDS), "a:"),
        (lambda text: parse_query(text, EXECUTION_FIELDS), "-a "),
        (parse_cron, "1,"),
        (parse_cron, "* "),
        (parse_cron, "1-"),
        (clean_text, "\x00"),
        (clean_text, "\ud800"),
        (_check_line, "=?a"),
        (_check_line, "?="),
        (lambda text: server_url_problem(text, ("postgresql",), "postgresql://host"), "a"),
        (lambda text: server_url_problem(text, ("postgresql",), "postgresql://host"), "["),
        (lambda text: server_url_problem(text, ("postgresql",), "postgresql://host"), "://"),
        (lambda text: list(placeholders(text)), "{{ a"),
        (lambda text: list(placeholders(text)), "{{"),
        (lambda text: _depth(text.encode()), "["),
        (lambda text: _depth(text.encode()), '"\\"'),
        (lambda text: _has_more_values(text.encode(), 10), '",'),
        (lambda text: _has_more_values(text.encode(), 10), '"\\'),
    ],
)
def test_work_grows_with_the_length_of_a_text(work: Callable[[str], Any], pattern: str) -> None:
    short = "://" + pattern * (16_000 // len(pattern)) + " x"
    long = "://" + pattern * (_LONGER * 16_000 // len(pattern)) + " x"

    assert seconds_of(work, long) <= _ALLOWED * seconds_of(work, short)


@pytest.mark.parametrize("blanks", [10, 90])
def test_blanks_in_a_duration_cause_no_backtracking(blanks: int) -> None:
    assert seconds_of(parse_duration, "1d" + " " * blanks + "x") <= 10 * _LEAST_SECONDS
    assert parse_duration("1d" + " " * blanks + "2h").total_seconds() == 26 * 3600


@pytest.mark.parametrize("pattern", ["?", "&", "?a", "?a&", "://a:", "=", "?="])
def test_texts_of_equal_length_cost_about_the_same(pattern: str) -> None:
    plain, odd = "://" + "a" * 256_000, "://" + pattern * (256_000 // len(pattern))

    assert seconds_of(redact, odd) <= 16 * seconds_of(redact, plain)
