"""From what a handler did to an outcome."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import orjson
import pytest

from tests.engine.runners.support import Attempt
from timeball.current import Cancel, Retry, Snooze, StopReason
from timeball.domain.execution import (
    CancelOutcome,
    ErrorInfo,
    Failed,
    Outcome,
    Released,
    Snoozed,
    Succeeded,
    TimeoutOutcome,
)
from timeball.domain.handler import PayloadMismatch
from timeball.engine.runners.outcome import outcome_of_error, outcome_of_halt, outcome_of_return, settle
from timeball.errors import InvalidInput

BOOM = Failed(ErrorInfo(type="ValueError", message="boom", traceback="here", top_frame="app.py:1 in f"))


def raised(error: BaseException, *no_retry: type[BaseException]) -> Outcome:
    try:
        raise error
    except BaseException as caught:
        return outcome_of_error(caught, no_retry)


def test_a_return_succeeds_with_its_result_as_json() -> None:
    assert outcome_of_return(None) == Succeeded(None)
    assert outcome_of_return({"sent": True}) == Succeeded('{"sent":true}')
    assert outcome_of_return(0) == Succeeded("0")


@pytest.mark.parametrize("result", ["x" * 300_000, object(), {"deep": [object()]}, "\ud800"])
def test_a_result_that_cannot_be_kept_leaves_a_note_and_a_success(result: Any) -> None:
    outcome = outcome_of_return(result)

    assert isinstance(outcome, Succeeded)
    assert outcome.result is not None
    assert orjson.loads(outcome.result)["$timeball"].startswith("the result was dropped: it ")


def test_nul_in_a_result_is_replaced() -> None:
    assert outcome_of_return({"a\0": ["b\0"]}) == Succeeded('{"a\ufffd":["b\ufffd"]}')


@pytest.mark.parametrize(
    ("word", "outcome"),
    [
        (Snooze("30s"), Snoozed(timedelta(seconds=30))),
        (Cancel("the order is gone"), CancelOutcome("the order is gone")),
        (Cancel(), CancelOutcome("cancelled by its handler")),
    ],
)
def test_a_control_word_may_be_raised_or_returned(word: BaseException, outcome: Outcome) -> None:
    assert outcome_of_return(word) == outcome
    assert raised(word) == outcome


def test_retry_fails_with_a_span_of_its_own() -> None:
    outcome = raised(Retry("busy", after="5m"))

    assert isinstance(outcome, Failed)
    assert outcome.retry_after == timedelta(minutes=5)
    assert outcome.is_retryable
    assert (outcome.error.type, outcome.error.message) == ("Retry", "busy")


def test_retry_from_an_error_records_that_error() -> None:
    try:
        try:
            raise ConnectionError("refused")
        except ConnectionError as error:
            raise Retry(after=1) from error
    except Retry as word:
        outcome = outcome_of_error(word)

    assert isinstance(outcome, Failed)
    assert (outcome.error.type, outcome.error.message) == ("ConnectionError", "refused")


def test_control_words_pass_through_what_catches_errors() -> None:
    def careless() -> None:
        try:
            raise Cancel("enough")
        except Exception:
            pytest.fail("caught as an error")

    with pytest.raises(Cancel):
        careless()


def test_a_nonsensical_span_is_an_error_where_it_is_written() -> None:
    with pytest.raises(InvalidInput, match="delay is"):
        Snooze("soon")
    with pytest.raises(InvalidInput, match="after is"):
        Retry(after=-1)


@pytest.mark.parametrize(
    "error", [ValueError("x"), SystemExit(0), KeyboardInterrupt(), asyncio.CancelledError(), MemoryError()]
)
def test_whatever_is_raised_fails_the_attempt(error: BaseException) -> None:
    outcome = raised(error)

    assert isinstance(outcome, Failed)
    assert outcome.is_retryable


def test_errors_that_must_not_be_retried_are_known_by_their_kind() -> None:
    for outcome in (raised(FileNotFoundError("x"), OSError), raised(PayloadMismatch("x"))):
        assert isinstance(outcome, Failed)
        assert not outcome.is_retryable
    assert raised(ValueError("x"), OSError).is_retryable  # type: ignore[union-attr]


def test_a_coroutine_that_was_not_awaited_is_no_success() -> None:
    async def forgotten() -> None: ...

    outcome = outcome_of_return(forgotten())

    assert isinstance(outcome, Failed)
    assert not outcome.is_retryable
    assert "without awaiting it" in outcome.error.message


def halted(why: StopReason, *, noticed: bool) -> Attempt:
    context = Attempt(timeout_ms=1_500)
    context.halt(why, "enough")
    if noticed:
        assert context.notice()
    return context


@pytest.mark.parametrize("outcome", [Succeeded("1"), BOOM, Snoozed(timedelta(1)), CancelOutcome("own")])
def test_once_a_handler_knows_that_it_is_to_stop_the_halt_decides(outcome: Outcome) -> None:
    timed_out = settle(halted(StopReason.TIMEOUT, noticed=True), outcome)

    assert isinstance(timed_out, TimeoutOutcome)
    assert (timed_out.error.type, timed_out.error.message) == ("TimedOut", "ran past its timeout of 1s500ms")
    assert settle(halted(StopReason.CANCEL, noticed=True), outcome) == CancelOutcome("enough")
    assert settle(halted(StopReason.SHUTDOWN, noticed=True), outcome) == Released()


def test_a_timeout_says_where_the_handler_was() -> None:
    timed_out = settle(halted(StopReason.TIMEOUT, noticed=True), BOOM)

    assert isinstance(timed_out, TimeoutOutcome)
    assert (timed_out.error.traceback, timed_out.error.top_frame) == ("here", "app.py:1 in f")


@pytest.mark.parametrize("why", StopReason)
def test_a_success_that_knew_of_no_halt_stays_one(why: StopReason) -> None:
    assert settle(halted(why, noticed=False), Succeeded("1")) == Succeeded("1")


def test_an_unknowing_failure_stays_one_unless_it_was_cancelled() -> None:
    assert settle(halted(StopReason.TIMEOUT, noticed=False), BOOM) is BOOM
    assert settle(halted(StopReason.SHUTDOWN, noticed=False), BOOM) is BOOM
    assert settle(halted(StopReason.CANCEL, noticed=False), BOOM) == CancelOutcome("enough")


def test_the_first_halt_stands() -> None:
    context = halted(StopReason.CANCEL, noticed=False)

    context.halt(StopReason.TIMEOUT, "late")

    assert outcome_of_halt(context) == CancelOutcome("enough")
