"""A worker puts the values of references into a payload just before it calls the handler."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.conftest import FreshDatabase
from tests.engine.support import ManualRunner, make_executor, until
from tests.engine.worker.test_executor import claim
from timeball import InvalidInput, Timeball, current
from timeball.domain.execution import Failed, FinishedAttempt, Outcome, Snoozed, Succeeded
from timeball.domain.job_fields import JobSpec
from timeball.domain.payload_references import CauseRecord, VersionSchedule
from timeball.domain.values.ids import JobId, format_execution_id
from timeball.engine.runners.outcome import outcome_of_return
from timeball.env import Env
from timeball.errors import StoreUnavailable
from timeball.testing import TimeballHarness
from timeball.testing.environment import START


@pytest.fixture
def harness(fresh_database: FreshDatabase) -> Iterator[TimeballHarness]:
    opened = TimeballHarness(fresh_database.dsn)
    yield opened
    opened.close()


@pytest.fixture
def tb() -> Timeball:
    return Timeball(database_url="postgresql://nobody@nowhere.invalid/none")


@pytest.fixture
def calls() -> list[dict[str, Any]]:
    """What the handler was called with."""
    return []


def create(harness: TimeballHarness, **fields: Any) -> JobId:
    return harness.call(lambda nodes: nodes.commands.jobs.create(JobSpec(**fields))).job_id


def test_each_occurrence_is_called_with_its_own_values(
    harness: TimeballHarness, tb: Timeball, calls: list[dict[str, Any]]
) -> None:
    @tb.handler(name="report")
    async def report(day: str, since: str | None, at: str, key: str) -> None:
        calls.append({"day": day, "since": since, "at": at, "is_own": key == current.execution_id})

    harness.use(tb)
    payload = {
        "day": {"$text": "{scheduled_date}.csv"},
        "since": {"$now": "previous_scheduled_for"},
        "at": {"$now": "scheduled_for"},
        "key": {"$now": "execution_id"},
    }
    create(harness, handler="report", payload=payload, interval_seconds=86_400, timezone="Asia/Tokyo")

    harness.clock.advance("2d", raise_errors=True)

    first, second = START + timedelta(days=1), START + timedelta(days=2)
    tokyo = timedelta(hours=9)
    assert calls == [
        {"day": f"{first + tokyo:%Y-%m-%d}.csv", "since": None, "at": f"{first:%Y-%m-%dT%H:%M:%S}Z", "is_own": True},
        {
            "day": f"{second + tokyo:%Y-%m-%d}.csv",
            "since": f"{first:%Y-%m-%dT%H:%M:%S}Z",
            "at": f"{second:%Y-%m-%dT%H:%M:%S}Z",
            "is_own": True,
        },
    ]


def test_a_retry_is_called_with_its_own_attempt_and_fence_and_with_the_same_instant(
    harness: TimeballHarness, tb: Timeball, calls: list[dict[str, Any]]
) -> None:
    @tb.handler(name="flaky", retries=2, backoff="1h")
    def flaky(attempt: int, fence: int, at: str) -> None:
        calls.append({"attempt": attempt, "fence": fence, "at": at})
        assert (attempt, fence) == (current.attempt, current.fence)
        if attempt < 3:
            raise OSError("not yet")

    harness.use(tb)
    flaky.enqueue({"$now": "attempt"}, {"$now": "fence"}, at={"$now": "scheduled_for"})  # type: ignore[arg-type]

    harness.drain()
    harness.clock.advance("12h")

    instant = f"{START:%Y-%m-%dT%H:%M:%S}Z"
    assert calls == [{"attempt": number, "fence": number, "at": instant} for number in (1, 2, 3)]


def test_the_schedule_is_that_of_the_version_that_the_execution_cites(
    harness: TimeballHarness, tb: Timeball, calls: list[dict[str, Any]]
) -> None:
    @tb.handler(name="report")
    def report(since: str | None, day: str) -> None:
        calls.append({"since": since, "day": day})
        raise OSError("not yet")

    harness.use(tb)
    payload = {"since": {"$now": "previous_scheduled_for"}, "day": {"$now": "scheduled_date"}}
    # The minute of H comes from the name of the job.
    nightly = {"name": "report", "schedule": "H 0 * * *", "timezone": "Pacific/Kiritimati"}
    two_days_ms = 2 * 86_400_000
    job_id = create(
        harness,
        handler="report",
        payload=payload,
        max_retries=1,
        initial_backoff_ms=two_days_ms,
        max_backoff_ms=two_days_ms,
        **nightly,
    )
    harness.clock.advance("1d")
    harness.call(lambda nodes: nodes.commands.jobs.update(job_id, {"schedule": "0 0 1 1 *", "timezone": "UTC"}))
    harness.clock.advance("6d")

    first, again = calls
    assert first["since"] is not None
    assert again == first, "the retry belongs to the version before the edit"


def test_an_enqueue_with_a_wrong_reference_is_refused(harness: TimeballHarness, tb: Timeball) -> None:
    @tb.handler
    def send(to: str) -> None: ...

    harness.use(tb)

    for enqueue in (send.enqueue, lambda to: send.enqueue_many([send.call(to)])):
        with pytest.raises(InvalidInput, match="names tomorrow, expected scheduled_for"):
            enqueue({"$now": "tomorrow"})  # type: ignore[operator]
    assert harness.executions() == []


def test_a_payload_is_stored_as_it_was_written(harness: TimeballHarness, tb: Timeball) -> None:
    @tb.handler
    def send(to: str) -> str:
        return to

    harness.use(tb)
    written = {"$text": "{execution_id}@example.com"}
    run = send.enqueue(written)  # type: ignore[arg-type]
    harness.drain(raise_errors=True)

    assert run.result() == f"{run.id}@example.com"
    assert harness.call(lambda nodes: nodes.records.executions())[0].payload == {"to": written}


# the executor by itself


class PayloadRunner(ManualRunner):
    """Returns the payload that a handler would be called with."""

    async def run(self, _handler: Any, context: Any) -> Outcome:
        return outcome_of_return(context.payload)


PAYLOAD = '{"day": {"$now": "scheduled_date"}}'


async def test_an_execution_whose_schedule_cannot_be_read_waits_without_a_failed_attempt(env: Env) -> None:
    async def unreachable(_job_id: JobId, _version: int) -> VersionSchedule:
        raise StoreUnavailable("the database is away")

    findings: list[FinishedAttempt] = []
    executor = make_executor(env, PayloadRunner(), hand_over=findings.append, read_schedule=unreachable)
    executor.accept([claim(payload=PAYLOAD)])
    await until(lambda: findings)

    assert findings[0].outcome == Snoozed(
        timedelta(seconds=1), "what its payload refers to could not be read: the database is away"
    )


async def test_a_wrong_reference_that_came_past_the_checks_is_not_tried_again(env: Env) -> None:
    findings: list[FinishedAttempt] = []
    executor = make_executor(env, PayloadRunner(), hand_over=findings.append)
    executor.accept([claim(payload='{"a": {"$now": "tomorrow"}}')])
    await until(lambda: findings)

    outcome = findings[0].outcome
    assert isinstance(outcome, Failed)
    assert not outcome.is_retryable
    assert "names tomorrow, expected scheduled_for" in outcome.error.message


async def test_only_references_to_the_schedule_read_it(env: Env) -> None:
    findings: list[FinishedAttempt] = []
    executor = make_executor(env, PayloadRunner(), hand_over=findings.append)
    claimed = claim(payload='{"a": {"$text": "{execution_id} {attempt} {fence}"}}', attempt=4, fence=9)
    executor.accept([claimed])
    await until(lambda: findings)

    assert findings[0].outcome == Succeeded(f'"{{\\"a\\":\\"{format_execution_id(claimed.id)} 4 9\\"}}"')
    assert findings[0].claimed is claimed, "what is recorded is the payload as it was written"


def test_a_call_refers_to_the_run_before_it(
    harness: TimeballHarness, tb: Timeball, calls: list[dict[str, Any]]
) -> None:
    @tb.handler(name="first")
    async def first() -> dict[str, int]:
        return {"n": 3}

    @tb.handler(name="second")
    async def second(given: dict[str, int], of: str) -> None:
        calls.append({"given": given, "of": of})

    harness.use(tb)
    payload = {"given": {"$cause": "result"}, "of": {"$cause": "execution_id"}}
    cause = create(harness, handler="first", on_success={"handler": "second", "payload": payload})

    harness.drain(raise_errors=True)

    assert calls == [{"given": {"n": 3}, "of": format_execution_id(cause)}]


async def test_a_result_that_is_gone_ends_the_attempt_and_one_that_cannot_be_read_waits(env: Env) -> None:
    findings: list[FinishedAttempt] = []
    record = CauseRecord(id=claim().id, state=None, result=None, error=None)
    answers: list[CauseRecord | Exception] = [
        record,
        replace(record, state="succeeded", result='{"$timeball": "the result has 9 MB"}'),
        StoreUnavailable("gone"),
    ]

    async def read_cause(_job_id: JobId) -> CauseRecord:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    executor = make_executor(env, ManualRunner(), hand_over=findings.append, read_cause=read_cause)
    executor.accept([claim(number=n)._replace(payload='{"a": {"$cause": "result"}}') for n in (1, 2, 3)])
    await until(lambda: len(findings) == 3)

    gone, dropped, unread = (finding.outcome for finding in sorted(findings, key=lambda each: each.claimed.id.int))
    assert isinstance(gone, Failed)
    assert "its retention has passed" in gone.error.message
    assert not gone.is_retryable
    assert isinstance(dropped, Failed)
    assert "is not there: the result has 9 MB" in dropped.error.message
    assert isinstance(unread, Snoozed)
    executor.abandon()
