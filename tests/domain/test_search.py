"""The search language: terms that are accepted, and terms that are refused with a hint."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timeball.domain.search import EXECUTION_FIELDS, JOB_FIELDS, SearchRelation, SearchTerm, parse_query
from timeball.errors import InvalidInput


def one(text: str) -> SearchTerm:
    (term,) = parse_query(text, EXECUTION_FIELDS)
    return term


@pytest.mark.parametrize(
    ("text", "term"),
    [
        ("status:dead", SearchTerm("status", SearchRelation.IS, ("dead",))),
        ("status:failed,running", SearchTerm("status", SearchRelation.IS, ("dead", "running"))),
        ("queue:mail", SearchTerm("queue", SearchRelation.IS, ("mail",))),
        ("handler:app.mail.*", SearchTerm("handler", SearchRelation.LIKE, ("app.mail.*",))),
        ("handler:app.mail:send", SearchTerm("handler", SearchRelation.IS, ("app.mail:send",))),
        ("-tag:test", SearchTerm("tag", SearchRelation.IS, ("test",), is_negated=True)),
        ("payload.user.id:42", SearchTerm("payload", SearchRelation.IS, ("42",), ("user", "id"))),
        ("late:>30s", SearchTerm("late", SearchRelation.MORE, (timedelta(seconds=30),))),
        ("late:30s", SearchTerm("late", SearchRelation.MORE, (timedelta(seconds=30),))),
        ("took:<5m", SearchTerm("took", SearchRelation.LESS, (timedelta(minutes=5),))),
        ("attempts:>2", SearchTerm("attempts", SearchRelation.MORE, (2,))),
        ("priority:75", SearchTerm("priority", SearchRelation.IS, (75,))),
        ("after:-2h", SearchTerm("after", SearchRelation.IS, (timedelta(hours=-2),))),
        ("before:2026-11-16", SearchTerm("before", SearchRelation.IS, (datetime(2026, 11, 16, tzinfo=UTC),))),
        ("origin:retry", SearchTerm("origin", SearchRelation.IS, ("retry",))),
        ("receipt", SearchTerm("", SearchRelation.LIKE, ("receipt",))),
        ('"daily report"', SearchTerm("", SearchRelation.LIKE, ("daily report",))),
        ('"a:b"', SearchTerm("", SearchRelation.LIKE, ("a:b",))),
        ('queue:"two words"', SearchTerm("queue", SearchRelation.IS, ("two words",))),
        ('queue:"a,b*"', SearchTerm("queue", SearchRelation.IS, ("a,b*",))),
        ('-error:"no route"', SearchTerm("error", SearchRelation.IS, ("no route",), is_negated=True)),
    ],
)
def test_a_term_states_one_condition(text: str, term: SearchTerm) -> None:
    assert one(text) == term


def test_a_search_may_have_several_terms() -> None:
    terms = parse_query("  status:dead   queue:mail -tag:test receipt ", EXECUTION_FIELDS)

    assert [term.field for term in terms] == ["status", "queue", "tag", ""]


def test_an_empty_search_asks_for_nothing() -> None:
    assert parse_query("   ", EXECUTION_FIELDS) == ()


def test_jobs_have_search_fields_of_their_own() -> None:
    (status, kind) = parse_query("status:paused kind:cron", JOB_FIELDS)

    assert (status.values, kind.values) == (("paused",), ("cron",))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("stauts:dead", "did you mean status"),
        ("app.mail:send", "quotes"),
        ("status:gone", 'status is "gone", expected scheduled, queued'),
        ("payload:42", "payload.key"),
        ("queue.name:mail", "queue"),
        ("attempts:many", "whole number"),
        ("late:>soon", "span"),
        ("after:whenever", "after"),
        ("queue:", "nothing"),
        ("queue:a,,b", "nothing"),
        ('"half', "does not end"),
        ("origin:heaven", 'origin is "heaven", expected schedule, '),
        ("a" * 1001, "longer"),
        ("nul\0", "NUL"),
        ("x " * 31, "at most 30"),
    ],
)
def test_an_invalid_search_is_refused_with_help(text: str, says: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_query(text, EXECUTION_FIELDS)

    assert says in f"{caught.value} {caught.value.hint}"


@given(st.text(max_size=80))
def test_any_search_is_parsed_or_refused(text: str) -> None:
    try:
        terms = parse_query(text, EXECUTION_FIELDS)
    except InvalidInput:
        return
    assert all(term.values for term in terms)
