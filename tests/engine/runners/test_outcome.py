"""From what a handler did to an outcome."""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta
from typing import Any

import orjson
import pytest

from tests.engine.runners.support import Attempt
from timeball.current import Cancel, Retry, Snooze, StopReason, TimedOut
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
from timeball.domain.handler import HandlerOptions, PayloadMismatch
from timeball.engine.runners.outcome import judge_timeout, outcome_of_error, outcome_of_halt, outcome_of_return, settle
from timeball.errors import InvalidInput
from timeball.handlers.registry import make_handler

BOOM = Failed(ErrorInfo(type="ValueError", message="boom", traceback="here", top_frame="app.py:1 in f"))


def raised(error: BaseException, context: Attempt | None = None, **options: Any) -> Outcome:
    handler = make_handler(lambda: None, name="h", options=HandlerOptions(**options))
    try:
        raise error
    except BaseException as caught:
        return outcome_of_error(caught, handler, context or Attempt())


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
        outcome = outcome_of_error(word, None, Attempt())

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
    for outcome in (raised(FileNotFoundError("x"), no_retry=(OSError,)), raised(PayloadMismatch("x"))):
        assert isinstance(outcome, Failed)
        assert not outcome.is_retryable
    assert raised(ValueError("x"), no_retry=(OSError,)).is_retryable  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("error", "is_retryable"),
    [
        (OSError("x"), True),
        (ConnectionError("x"), True),
        (FileNotFoundError("x"), False),
        (ValueError("x"), False),
    ],
)
def test_only_the_errors_of_retry_on_are_retried_save_those_of_no_retry(error: Exception, is_retryable: bool) -> None:
    outcome = raised(error, retry_on=(OSError,), no_retry=(FileNotFoundError,))

    assert isinstance(outcome, Failed)
    assert outcome.is_retryable is is_retryable


def test_a_handler_that_asks_for_a_retry_gets_it_whatever_it_retries_on() -> None:
    assert raised(Retry("busy"), retry_on=(OSError,)).is_retryable  # type: ignore[union-attr]


def test_a_payload_that_does_not_fit_is_not_retried_even_if_retry_on_names_every_error() -> None:
    assert not raised(PayloadMismatch("x"), retry_on=(Exception,)).is_retryable  # type: ignore[union-attr]


def test_an_expected_error_is_marked() -> None:
    marks = [raised(error, expected=(LookupError,)).is_expected for error in (KeyError(1), ValueError())]  # type: ignore[union-attr]

    assert marks == [True, False]


def test_the_pause_may_follow_from_the_failures_so_far_and_the_error() -> None:
    """The third claim, of which one was lost with its worker: the second failure."""
    context = Attempt(attempt=3, lost=1)

    outcome = raised(ValueError("20"), context, backoff=lambda failures, error: f"{failures * int(str(error))}s")

    assert outcome.retry_after == timedelta(seconds=40)  # type: ignore[union-attr]


def test_the_pause_of_an_error_that_is_not_retried_is_not_asked_for() -> None:
    asked: list[int] = []

    raised(ValueError("x"), no_retry=(ValueError,), backoff=lambda failures, _: asked.append(failures))

    assert asked == []


@pytest.mark.parametrize(
    ("pause", "problem"),
    [
        (lambda _failures, _error: 1 / 0, "ZeroDivisionError"),
        (lambda _failures, _error: None, "InvalidInput"),
        (lambda _failures, _error: -5, "InvalidInput"),
        (lambda _failures, _error: sys.exit(1), "SystemExit"),
    ],
)
def test_a_backoff_that_fails_is_told_in_the_log_and_the_usual_pause_follows(pause: Any, problem: str) -> None:
    context = Attempt()

    outcome = raised(ValueError("x"), context, backoff=pause)

    assert isinstance(outcome, Failed)
    assert (outcome.error.type, outcome.is_retryable, outcome.retry_after) == ("ValueError", True, None)
    ((level, line),) = context.sink.lines
    assert level == "warning"
    assert line.startswith("the usual pause follows: backoff failed with ")
    assert problem in line


TIMEOUT = TimeoutOutcome(BOOM.error)


@pytest.mark.parametrize(
    ("options", "is_retryable", "is_expected"),
    [
        ({}, True, False),
        ({"retry_on": (OSError,)}, False, False),
        ({"retry_on": (OSError, TimedOut)}, True, False),
        ({"no_retry": (TimedOut,)}, False, False),
        ({"expected": (TimedOut,)}, True, True),
    ],
)
def test_a_timeout_is_judged_as_the_error_that_is_raised_in_the_code(
    options: dict[str, Any], is_retryable: bool, is_expected: bool
) -> None:
    outcome = judge_timeout(TIMEOUT, HandlerOptions(**options))

    assert (outcome.is_retryable, outcome.is_expected) == (is_retryable, is_expected)


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
