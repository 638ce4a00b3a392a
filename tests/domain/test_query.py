"""The search language: what is understood, and what is refused with a word of help."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timeball.domain.query import EXECUTION_FIELDS, JOB_FIELDS, Relation, Term, parse_query
from timeball.errors import InvalidInput


def one(text: str) -> Term:
    (term,) = parse_query(text, EXECUTION_FIELDS)
    return term


@pytest.mark.parametrize(
    ("text", "term"),
    [
        ("status:dead", Term("status", Relation.IS, ("dead",))),
        ("status:failed,running", Term("status", Relation.IS, ("dead", "running"))),
        ("queue:mail", Term("queue", Relation.IS, ("mail",))),
        ("handler:app.mail.*", Term("handler", Relation.LIKE, ("app.mail.*",))),
        ("handler:app.mail:send", Term("handler", Relation.IS, ("app.mail:send",))),
        ("-tag:test", Term("tag", Relation.IS, ("test",), is_negated=True)),
        ("payload.user.id:42", Term("payload", Relation.IS, ("42",), ("user", "id"))),
        ("late:>30s", Term("late", Relation.MORE, (timedelta(seconds=30),))),
        ("late:30s", Term("late", Relation.MORE, (timedelta(seconds=30),))),
        ("took:<5m", Term("took", Relation.LESS, (timedelta(minutes=5),))),
        ("attempts:>2", Term("attempts", Relation.MORE, (2,))),
        ("priority:75", Term("priority", Relation.IS, (75,))),
        ("after:-2h", Term("after", Relation.IS, (timedelta(hours=-2),))),
        ("before:2026-11-16", Term("before", Relation.IS, (datetime(2026, 11, 16, tzinfo=UTC),))),
        ("origin:retry", Term("origin", Relation.IS, ("retry",))),
        ("receipt", Term("", Relation.LIKE, ("receipt",))),
        ('"daily report"', Term("", Relation.LIKE, ("daily report",))),
        ('"a:b"', Term("", Relation.LIKE, ("a:b",))),
        ('queue:"two words"', Term("queue", Relation.IS, ("two words",))),
        ('queue:"a,b*"', Term("queue", Relation.IS, ("a,b*",))),
        ('-error:"no route"', Term("error", Relation.IS, ("no route",), is_negated=True)),
    ],
)
def test_a_term_says_what_must_hold(text: str, term: Term) -> None:
    assert one(text) == term


def test_terms_stand_beside_one_another() -> None:
    terms = parse_query("  status:dead   queue:mail -tag:test receipt ", EXECUTION_FIELDS)

    assert [term.field for term in terms] == ["status", "queue", "tag", ""]


def test_an_empty_search_asks_for_nothing() -> None:
    assert parse_query("   ", EXECUTION_FIELDS) == ()


def test_jobs_are_searched_by_their_own_words() -> None:
    (status, kind) = parse_query("status:paused kind:cron", JOB_FIELDS)

    assert (status.values, kind.values) == (("paused",), ("cron",))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("stauts:dead", "did you mean status"),
        ("app.mail:send", "quotes"),
        ("status:gone", "expected one of"),
        ("payload:42", "payload.key"),
        ("queue.name:mail", "queue"),
        ("attempts:many", "whole number"),
        ("late:>soon", "span"),
        ("after:whenever", "after"),
        ("queue:", "nothing"),
        ("queue:a,,b", "nothing"),
        ('"half', "does not end"),
        ("origin:heaven", "expected one of"),
        ("a" * 1001, "longer"),
        ("nul\0", "NUL"),
        ("x " * 31, "at most 30"),
    ],
)
def test_what_does_not_fit_is_refused_with_help(text: str, says: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_query(text, EXECUTION_FIELDS)

    assert says in f"{caught.value} {caught.value.hint}"


@given(st.text(max_size=80))
def test_whatever_is_typed_is_understood_or_refused(text: str) -> None:
    try:
        terms = parse_query(text, EXECUTION_FIELDS)
    except InvalidInput:
        return
    assert all(term.values for term in terms)
