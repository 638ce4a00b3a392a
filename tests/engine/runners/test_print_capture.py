"""What handlers print: kept with the run that prints it, and written where it was written before."""

from __future__ import annotations

import asyncio
import contextvars
import io
import logging
import sys
import threading
from collections.abc import Iterator

import pytest

from tests.engine.runners.support import Attempt
from tests.testing.conftest import harness as harness  # a fixture
from timeball import Timeball
from timeball.current import RUNNING, LogCapture
from timeball.domain.execution import MAX_LINE_CHARACTERS, MAX_LOG_BYTES, LogBuffer
from timeball.engine.runners.print_capture import PrintCapture, capture_prints, release_prints
from timeball.testing import TimeballHarness


@pytest.fixture
def prints(capsys: pytest.CaptureFixture[str]) -> Iterator[pytest.CaptureFixture[str]]:
    """What is written in the end. The capture begins in the test itself: pytest replaces the streams between setup and call."""
    yield capsys
    release_prints()


def in_run(context: Attempt, *words: str, file: str = "stdout", end: str = "\n") -> None:
    token = RUNNING.set(context)
    try:
        for word in words:
            print(word, file=getattr(sys, file), end=end)
    finally:
        RUNNING.reset(token)


def test_what_a_handler_prints_is_kept_and_written(prints: pytest.CaptureFixture[str]) -> None:
    capture_prints()
    context = Attempt()

    in_run(context, "hello", "two\nlines", "  ")
    in_run(context, "to stderr", file="stderr")
    print("outside")

    assert context.sink.lines == [("print", word) for word in ("hello", "two", "lines", "to stderr")]
    written = prints.readouterr()
    assert (written.out, written.err) == ("hello\ntwo\nlines\n  \noutside\n", "to stderr\n")


def test_a_line_is_kept_once_it_is_complete_or_the_attempt_has_ended(prints: pytest.CaptureFixture[str]) -> None:
    capture_prints()
    context = Attempt()

    in_run(context, "one ", "line", end="")
    in_run(context, "of another stream", file="stderr")
    assert context.sink.lines == [("print", "of another stream")]
    assert context.has_spoken
    in_run(context, "\rpage 1", "\rpage 2", end="")
    context.end_print()
    context.end_print()

    assert context.sink.lines[1:] == [("print", "page 2")]


def test_what_never_ends_a_line_is_bounded(prints: pytest.CaptureFixture[str]) -> None:
    capture_prints()
    context = Attempt()

    in_run(context, *["x" * 1_000] * 50, end="")

    assert [len(line) > 15_900 for _, line in context.sink.lines] == [True, True]
    assert all(len(rest) <= MAX_LINE_CHARACTERS for rest in context._printed.values())


async def test_attempts_side_by_side_print_their_own_lines_and_other_threads_none(
    prints: pytest.CaptureFixture[str],
) -> None:
    capture_prints()
    contexts = [Attempt() for _ in range(5)]

    async def coroutine(number: int) -> None:
        RUNNING.set(contexts[number])
        for _ in range(20):
            print(f"line of {number}")
            await asyncio.sleep(0)

    def plain() -> None:
        RUNNING.set(contexts[3])
        thread = threading.Thread(target=lambda: print("of a stranger"))
        thread.start()
        thread.join()
        print("line of 3")

    worker = threading.Thread(target=contextvars.copy_context().run, args=(plain,))
    worker.start()
    await asyncio.gather(*(asyncio.create_task(coroutine(number)) for number in range(3)))
    await asyncio.to_thread(worker.join)

    assert [context.sink.lines for context in contexts] == [
        *([("print", f"line of {number}")] * 20 for number in range(3)),
        [("print", "line of 3")],
        [],
    ]
    assert "of a stranger\n" in prints.readouterr().out


def test_a_record_that_goes_to_a_stream_is_kept_once_with_its_level(prints: pytest.CaptureFixture[str]) -> None:
    capture_prints()
    log, capture, context = logging.getLogger("app.of.prints"), LogCapture(), Attempt()
    to_stderr = logging.StreamHandler(sys.stderr)
    log.addHandler(to_stderr)
    capture.install()
    token = RUNNING.set(context)
    try:
        log.warning("slow")
    finally:
        RUNNING.reset(token)
        capture.remove()
        log.removeHandler(to_stderr)

    assert context.sink.lines == [("warning", "slow")]
    assert prints.readouterr().err == "slow\n"


def test_a_flood_of_prints_is_cut_as_a_flood_of_lines_is(prints: pytest.CaptureFixture[str]) -> None:
    capture_prints()
    buffer = LogBuffer()
    context = Attempt()
    context.sink.emit_log = buffer.add  # type: ignore[method-assign]

    in_run(context, *(f"{number:>1000}" for number in range(5_000)))

    kept = buffer.close()
    assert sum(len(line.message) for line in kept) <= MAX_LOG_BYTES
    assert any("left out" in line.message for line in kept)


def test_a_captured_stream_is_the_stream_in_everything_else() -> None:
    inner = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    stream = PrintCapture(inner, "stdout")

    stream.writelines(["a\n", "b\n"])
    stream.flush()

    assert (stream.encoding, stream.buffer.getvalue(), stream.isatty()) == ("utf-8", b"a\nb\n", False)


def test_a_second_capture_changes_nothing(prints: pytest.CaptureFixture[str]) -> None:
    capture_prints()
    before = sys.stdout

    capture_prints()

    assert sys.stdout is before


@pytest.mark.parametrize("fresh_database", ["pg15"], indirect=True)
def test_the_log_of_a_run_has_what_a_coroutine_and_a_thread_have_printed(
    harness: TimeballHarness, prints: pytest.CaptureFixture[str]
) -> None:
    capture_prints()
    tb = Timeball(database_url="postgresql://nobody@nowhere.invalid/none")

    @tb.handler
    def plain() -> None:
        print("from a thread", end="")

    @tb.handler
    async def coroutine() -> None:
        print("from a coroutine")

    harness.use(tb)
    plain.enqueue()
    coroutine.enqueue()
    harness.drain()

    assert harness.log(harness.last(plain)) == ["from a thread"]
    assert harness.log(harness.last(coroutine)) == ["from a coroutine"]
