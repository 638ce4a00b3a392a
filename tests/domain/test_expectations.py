"""What can be expected of a job or a queue, and what is said of those that are not as expected."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from timeball import Expect
from timeball.domain.alerts import AlertFact, Severity
from timeball.domain.expectations import (
    ExpectingQueue,
    JobRecord,
    Obstacle,
    check_expect,
    check_expecting,
    expecting_job,
    job_facts,
    queue_facts,
)
from timeball.domain.job_fields import JobSpec
from timeball.domain.values.ids import ExecutionId, JobId, format_execution_id
from timeball.errors import InvalidInput

NOON = datetime(2026, 11, 19, 12, tzinfo=UTC)
LATE = ExecutionId(UUID(int=5))
HELD = Obstacle("its queue mail is paused by ana since 02:00:00 UTC", "timeball queues resume mail")


def test_an_expectation_is_kept_as_json_with_spans_as_text() -> None:
    expect = Expect(start_within="1m", finish_within=timedelta(hours=2), succeed_every=93_600, max_dead=0)

    assert check_expect(expect) == {
        "start_within": "1m",
        "finish_within": "2h",
        "succeed_every": "1d2h",
        "max_dead": 0,
        "severity": "critical",
    }


def test_a_span_that_is_text_stays_as_it_was_written() -> None:
    assert check_expect({"succeed_every": "26 H", "severity": "warning"}) == {
        "succeed_every": "26h",
        "severity": "warning",
    }


@pytest.mark.parametrize(
    ("value", "pointer", "words"),
    [
        ("26h", "/expect", 'expect is "26h", expected an object such as'),
        ({}, "/expect", "expect says nothing, expected at least one of start_within"),
        (Expect(), "/expect", "expect says nothing"),
        ({"severity": "warning"}, "/expect", "expect says nothing"),
        ({"start_within": "soon"}, "/expect/start_within", 'start_within is "soon", expected a span like'),
        ({"succeed_every": "10ms"}, "/expect/succeed_every", "expected a span of 1s or more"),
        ({"finish_within": True}, "/expect/finish_within", "expected a span"),
        ({"max_dead": -1}, "/expect/max_dead", "max_dead is -1, expected a whole number from 0 to 1,000"),
        ({"max_failures_in_a_row": "3"}, "/expect/max_failures_in_a_row", "expected a whole number"),
        ({"max_dead": True}, "/expect/max_dead", "expected a whole number"),
        ({"max_dead": 1, "severity": "high"}, "/expect/severity", 'severity is "high", expected critical or warning'),
        ({"suceed_every": "1h"}, "/expect/suceed_every", "suceed_every is unknown: did you mean succeed_every?"),
    ],
)
def test_what_cannot_be_expected_is_refused_with_the_place(value: Any, pointer: str, words: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        check_expect(value)

    assert words in str(refusal.value)
    assert [error["pointer"] for error in refusal.value.errors] == [pointer]


def test_nothing_can_be_expected_of_a_one_off() -> None:
    expect = {"succeed_every": "1h"}

    with pytest.raises(InvalidInput, match="the job is a one-off, which runs once"):
        check_expecting(JobSpec(handler="h", expect=expect), {"expect"})
    check_expecting(JobSpec(handler="h", expect=expect, schedule="manual"), {"expect"})
    # What a handler expects of its schedules does not concern it.
    check_expecting(JobSpec(handler="h", expect=expect), set())


def facts_of(expect: dict[str, Any], obstacle: Obstacle | None = None, **record: Any) -> list[AlertFact]:
    job = expecting_job(
        check_expect(expect),
        id=JobId(UUID(int=7)),
        name="nightly",
        handler="app:nightly",
        queue="mail",
        tags=("billing",),
        created_at=NOON - timedelta(days=3),
    )
    return job_facts(job, JobRecord(**record), obstacle, NOON)


def ago(**span: float) -> datetime:
    return NOON - timedelta(**span)


def test_a_job_that_has_not_succeeded_in_time_is_a_fact_that_names_what_holds_it() -> None:
    assert facts_of({"succeed_every": "26h"}, last_success_at=ago(hours=25, minutes=59)) == []

    (fact,) = facts_of({"succeed_every": "26h"}, HELD, last_success_at=ago(hours=26))

    assert fact.sentence == (
        "nightly has not succeeded for 1 d 2 h, expected every 26 h (last success 18 Nov 10:00:00 UTC): "
        "its queue mail is paused by ana since 02:00:00 UTC"
    )
    assert fact.command == "timeball queues resume mail"
    assert (fact.kind, fact.severity) == ("no_success", Severity.CRITICAL)
    assert (fact.job_ids, fact.queues, fact.tags) == ({JobId(UUID(int=7))}, {"mail"}, {"billing"})


def test_a_job_that_never_succeeded_is_expected_to_since_it_was_made() -> None:
    (fact,) = facts_of({"succeed_every": "26h"})

    assert "has not succeeded for 3 d, expected every 26 h (it never has)" in fact.sentence
    assert facts_of({"succeed_every": "4d"}) == []


def test_an_occurrence_that_has_not_begun_in_time_is_a_fact() -> None:
    assert facts_of({"start_within": "1m"}, not_begun=(LATE, ago(seconds=59))) == []

    (fact,) = facts_of({"start_within": "1m"}, not_begun=(LATE, ago(minutes=5)))

    name = format_execution_id(LATE)
    assert fact.sentence == f"nightly has not begun 5 min after its time, expected within 1 min ({name})"
    assert fact.command == "timeball why nightly"


def test_an_occurrence_that_was_skipped_for_want_of_a_beginning_is_a_fact() -> None:
    (fact,) = facts_of({"start_within": "1m"}, missed=(ago(hours=9), "misfire"))

    assert fact.sentence == "nightly did not begin at 03:00:00 UTC, expected within 1 min: it was skipped (misfire)"
    assert facts_of({"start_within": "10h"}, missed=(ago(hours=9), "misfire")) == []


def test_an_execution_that_has_not_ended_in_time_is_a_fact() -> None:
    assert facts_of({"finish_within": "2h"}, not_ended=(LATE, ago(minutes=119))) == []

    (fact,) = facts_of({"finish_within": "2h"}, not_ended=(LATE, ago(hours=3)))

    assert fact.sentence.startswith("nightly has not ended 3 h after its time, expected within 2 h")


def test_more_failures_in_a_row_than_expected_are_a_fact() -> None:
    assert facts_of({"max_failures_in_a_row": 2}, failures_in_a_row=2) == []

    (fact,) = facts_of({"max_failures_in_a_row": 2}, failures_in_a_row=3)

    assert fact.sentence == "the last 3 executions of nightly ended dead, expected at most 2 in a row"


def test_more_dead_executions_than_expected_are_a_fact() -> None:
    assert facts_of({"max_dead": 0}, dead=0) == []

    (fact,) = facts_of({"max_dead": 0, "severity": "warning"}, dead=1)

    assert fact.sentence == "nightly has 1 dead execution that is not settled, expected at most 0"
    assert fact.severity is Severity.WARNING
    assert "1,000 or more dead executions" in facts_of({"max_dead": 3}, dead=1_001)[0].sentence


def test_what_is_not_expected_is_no_fact() -> None:
    record = {"failures_in_a_row": 9, "dead": 9, "not_begun": (LATE, ago(days=1)), "not_ended": (LATE, ago(days=1))}

    assert facts_of({"succeed_every": "4d"}, **record) == []


QUEUE = ExpectingQueue(name="mail", max_oldest_wait=None, must_be_served=False, oldest_at=None, is_served=True)


def test_a_queue_that_waits_for_too_long_is_a_fact() -> None:
    queue = replace(QUEUE, max_oldest_wait=timedelta(minutes=5), oldest_at=ago(minutes=6))

    (fact,) = queue_facts(queue, Obstacle("it is paused by ana since 02:00:00 UTC"), NOON)

    assert fact.sentence == (
        "queue mail: its oldest execution has waited for 6 min, expected at most 5 min: it is paused by ana since 02:00:00 UTC"
    )
    assert queue_facts(replace(queue, oldest_at=ago(minutes=4)), None, NOON) == []
    assert queue_facts(replace(queue, oldest_at=None), None, NOON) == []


def test_a_queue_that_must_be_served_and_is_not_is_a_fact_even_if_nothing_waits() -> None:
    queue = replace(QUEUE, must_be_served=True)

    assert queue_facts(queue, None, NOON) == []
    (fact,) = queue_facts(replace(queue, is_served=False), None, NOON)

    assert (fact.key, fact.severity) == ("queue_unserved:mail", Severity.CRITICAL)
