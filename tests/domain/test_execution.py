"""The log of an attempt within its cap."""

from __future__ import annotations

from datetime import UTC, datetime
from threading import Thread

from hypothesis import given
from hypothesis import strategies as st

from timeball.domain.execution import MAX_LINE_CHARACTERS, BufferedLogLine, LogBuffer
from timeball.domain.values.text import shorten_text

NOW = datetime(2024, 5, 1, tzinfo=UTC)


def filled(messages: list[str], cap: int) -> LogBuffer:
    buffer = LogBuffer(cap)
    for message in messages:
        buffer.add(NOW, "info", message)
    return buffer


def test_a_short_log_is_kept_whole_and_in_order() -> None:
    buffer = filled(["first", "second"], cap=10_000)

    assert [line.message for line in buffer.close()] == ["first", "second"]


def test_a_long_log_keeps_its_head_and_its_tail_and_says_what_is_missing() -> None:
    buffer = filled([f"line {number:05}" for number in range(10_000)], cap=2_000)

    messages = [line.message for line in buffer.close()]

    assert messages[0] == "line 00000"
    assert messages[-1] == "line 09999"
    gap = next(index for index, message in enumerate(messages) if message.startswith("…"))
    dropped = int(messages[gap].split()[1])
    assert dropped + len(messages) - 1 == 10_000
    assert messages[gap] == f"… {dropped} lines ({dropped * 10} bytes) left out …"


def test_the_head_can_be_taken_while_the_attempt_runs() -> None:
    buffer = filled(["first"], cap=10_000)

    early = buffer.drain()
    buffer.add(NOW, "error", "second")

    assert early == [BufferedLogLine(NOW, "info", "first")]
    assert buffer.close() == [BufferedLogLine(NOW, "error", "second")]


def test_a_line_of_a_gigabyte_loses_its_middle() -> None:
    buffer = filled(["a" + "x" * 10**6 + "z"], cap=10**6)

    (line,) = buffer.close()

    assert line.message.startswith("ax")
    assert line.message.endswith("xz")
    assert len(line.message) < MAX_LINE_CHARACTERS + 100


def test_lines_may_come_from_many_threads() -> None:
    buffer = LogBuffer(10**6)

    def write() -> None:
        for _ in range(500):
            buffer.add(NOW, "info", "x")

    threads = [Thread(target=write) for _ in range(8)]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(buffer.close()) == 4_000


@given(st.lists(st.text(max_size=200), max_size=100), st.integers(min_value=200, max_value=2_000))
def test_no_log_is_larger_than_its_cap_and_none_loses_its_last_line_that_fits(messages: list[str], cap: int) -> None:
    lines = filled(messages, cap).close()

    kept = [line.message for line in lines if not line.message.startswith("… ")]
    assert sum(len(message.encode("utf-8", "replace")) for message in kept) <= cap
    assert len(kept) <= len(messages)
    if messages and len(messages[-1].encode("utf-8", "replace")) + 32 <= cap // 2:
        assert lines[-1].message == messages[-1]


@given(st.text(max_size=500), st.integers(min_value=100, max_value=200))
def test_shortened_text_keeps_both_ends(text: str, longest: int) -> None:
    short = shorten_text(text, longest)

    assert len(short) <= longest
    assert shorten_text(short, longest) == short
    assert short == text or (text.startswith(short[: longest // 3]) and text.endswith(short[-(longest // 6) :]))
