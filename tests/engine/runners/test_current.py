"""What a handler can know and do while it runs."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.engine.runners.support import NOON, Attempt
from timeball.current import RUNNING, AttemptContext, LogCapture, OutsideRun, StopReason, current, end_forked_copy
from timeball.domain.execution import Origin


@contextmanager
def running(context: AttemptContext) -> Iterator[None]:
    token = RUNNING.set(context)
    try:
        yield
    finally:
        RUNNING.reset(token)


@pytest.fixture
def capture() -> Iterator[LogCapture]:
    left_over = [handler for handler in logging.getLogger().handlers if isinstance(handler, LogCapture)]
    for handler in left_over:
        handler.remove()
    capture = LogCapture()
    capture.install()
    yield capture
    capture.remove()


def test_a_handler_knows_its_attempt() -> None:
    with running(Attempt("app:send")):
        assert current.execution_id == "exe_" + "0" * 25 + "1"
        assert current.job_id == "job_" + "0" * 25 + "2"
        assert (current.attempt, current.fence) == (3, 7)
        assert current.scheduled_for == NOON
        assert (current.handler, current.queue) == ("app:send", "mail")
        assert (current.origin, current.job_name) == (Origin.SCHEDULE, "nightly")


def test_outside_of_a_run_every_use_says_so() -> None:
    for use in (
        lambda: current.attempt,
        lambda: current.cancelled,
        lambda: current.log("x"),
        lambda: current.progress(1),
    ):
        with pytest.raises(OutsideRun, match="outside of a running handler"):
            use()


def test_a_log_line_carries_its_fields() -> None:
    context = Attempt()

    with running(context):
        current.log("sent", to="a@b.co", pages=3)
        current.log("broken", level="ERROR")
        current.log("odd\0", level="shout")

    assert context.sink.lines == [("info", "sent to='a@b.co' pages=3"), ("error", "broken"), ("info", "odd\ufffd")]


def test_progress_stays_within_its_bounds() -> None:
    context = Attempt()

    with running(context):
        current.progress(0.4, "page 3")
        current.progress(40)
        current.progress(-1)

    assert context.sink.progress == [(0.4, "page 3"), (1.0, None), (0.0, None)]


def test_reading_that_it_is_cancelled_is_noticing_it() -> None:
    context = Attempt()

    with running(context):
        before = (current.cancelled, context.has_noticed)
        context.halt(StopReason.CANCEL, "enough")
        halted = (context.has_noticed, current.cancelled, context.has_noticed)

    assert before == (False, False)
    assert halted == (False, True, True)


def test_a_halt_that_comes_while_the_handler_looks_is_noticed_if_it_is_told() -> None:
    class HaltedBetweenLooks(Attempt):
        @property
        def is_halted(self) -> bool:
            was_halted = super().is_halted
            self.halted = StopReason.SHUTDOWN
            return was_halted

    context = HaltedBetweenLooks()

    for _ in range(2):
        assert context.notice() == context.has_noticed


def test_an_attempt_that_says_nothing_opens_no_sink() -> None:
    opened = []
    quiet = Attempt()
    context = AttemptContext(quiet.claimed, quiet.clock, lambda _: opened.append(1) or quiet.sink)  # type: ignore[func-returns-value]

    with running(context):
        assert current.attempt == 3
        assert not opened
        current.log("one")
        current.log("two")

    assert opened == [1]


def test_log_records_of_a_handler_become_its_lines(capture: LogCapture) -> None:
    context = Attempt()
    log = logging.getLogger("app.mail")

    with running(context):
        log.warning("slow: %d ms", 800)
        try:
            raise ValueError("boom")
        except ValueError:
            log.exception("failed")
        logging.getLogger("timeball.engine").warning("ours")
    log.warning("nobody runs")

    assert context.sink.lines[0] == ("warning", "slow: 800 ms")
    level, message = context.sink.lines[1]
    assert level == "error"
    assert message.startswith("failed\nTraceback")
    assert message.endswith("ValueError: boom")
    assert len(context.sink.lines) == 2


def test_two_workers_of_a_process_write_a_line_once(capture: LogCapture) -> None:
    context = Attempt()
    LogCapture().install()

    with running(context):
        logging.getLogger("app.mail").warning("once")

    assert context.sink.lines == [("warning", "once")]


def test_capturing_keeps_warnings_from_elsewhere_visible(
    capture: LogCapture, capsys: pytest.CaptureFixture[str]
) -> None:
    root = logging.getLogger()
    others = [handler for handler in root.handlers if handler is not capture]
    for handler in others:
        root.removeHandler(handler)
    try:
        logging.getLogger("app").warning("still seen")
    finally:
        for handler in others:
            root.addHandler(handler)

    assert "still seen" in capsys.readouterr().err


def exit_code_of_fork(act: object) -> int:
    assert callable(act)
    child = os.fork()
    if child == 0:
        try:
            act()
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_forked_process_is_told_that_it_may_not_use_timeball() -> None:
    """Fault 12."""
    context = Attempt()

    def use() -> None:
        try:
            current.log("from the copy")
        except OutsideRun as error:
            os._exit(42 if "forked" in str(error) else 1)

    with running(context):
        assert exit_code_of_fork(use) == 42
    assert context.sink.lines == []


def test_a_forked_process_may_go_on_logging(capture: LogCapture) -> None:
    context = Attempt()

    def log() -> None:
        logging.getLogger("app").warning("from the copy")
        os._exit(43)

    with running(context):
        assert exit_code_of_fork(log) == 43
    assert context.sink.lines == []


def test_a_forked_process_that_comes_back_is_ended() -> None:
    """Fault 12."""
    context = Attempt()

    end_forked_copy(context)

    assert exit_code_of_fork(lambda: end_forked_copy(context)) == 70
