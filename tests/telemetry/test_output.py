"""Standard output and standard error that never block and never fail: a full disk, a closed pipe, a reader that has stopped."""

from __future__ import annotations

import fcntl
import io
import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from timeball.telemetry.output import QueuedOutput, queue_standard_output, queued

PATIENCE_SECONDS = 30


class Pipe:
    """A pipe whose reader reads when it is told to."""

    def __init__(self) -> None:
        self.outlet, self.inlet = os.pipe()
        # The smallest there is: one page.
        fcntl.fcntl(self.inlet, fcntl.F_SETPIPE_SZ, 4096)

    def read_until(self, end: bytes) -> bytes:
        read = b""
        while not read.endswith(end):
            read += os.read(self.outlet, 65536)
        return read

    def close(self) -> None:
        for descriptor in (self.outlet, self.inlet):
            try:
                os.close(descriptor)
            except OSError:
                continue


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.close()


class Losses:
    """What an output says it has lost."""

    def __init__(self, output: QueuedOutput) -> None:
        self.lines = 0
        self.recoveries: list[tuple[int, str]] = []
        self.happened = threading.Event()
        self.recovered = threading.Event()
        output.report_losses(self._recovered, self._lost)

    def _lost(self, lines: int) -> None:
        self.lines += lines
        self.happened.set()

    def _recovered(self, lines: int, reason: str) -> None:
        self.recoveries.append((lines, reason))
        self.recovered.set()


def test_lines_come_out_whole_and_in_their_order(pipe: Pipe) -> None:
    output = QueuedOutput(pipe.inlet, "test")
    written = [f"line {number}\n".encode() for number in range(3_000)]

    reading = threading.Thread(target=lambda: read.append(pipe.read_until(written[-1])))
    read: list[bytes] = []
    reading.start()
    for line in written:
        output.write(line[:3])
        output.write(line[3:])
    reading.join(PATIENCE_SECONDS)

    assert read == [b"".join(written)]
    assert output.drain(PATIENCE_SECONDS)


def test_a_stopped_reader_blocks_no_writer_and_is_reported_when_it_reads_on(pipe: Pipe) -> None:
    output = QueuedOutput(pipe.inlet, "test", limit=20_000)
    losses = Losses(output)

    for number in range(1_000):
        output.write(f"{number:049d}\n".encode())
    # Everything was taken, though nothing reads: what does not fit is counted at once.
    assert 500 <= losses.lines <= 1_000 - 400
    lost = losses.lines
    kept = pipe.read_until(f"{1_000 - lost - 1:049d}\n".encode())

    assert losses.recovered.wait(PATIENCE_SECONDS)
    assert kept.count(b"\n") == 1_000 - lost
    assert losses.recoveries == [(lost, "what reads it is too slow, or has stopped reading")]


def test_a_full_disk_costs_the_lines_and_nothing_else() -> None:
    descriptor = os.open("/dev/full", os.O_WRONLY)
    output = QueuedOutput(descriptor, "test")
    losses = Losses(output)

    output.write(b"one\ntwo\n")
    assert losses.happened.wait(PATIENCE_SECONDS)
    assert losses.lines == 2
    # The disk has space again.
    outlet, inlet = os.pipe()
    os.dup2(inlet, descriptor)
    output.write(b"three\n")

    assert losses.recovered.wait(PATIENCE_SECONDS)
    assert losses.recoveries == [(2, "No space left on device")]
    assert os.read(outlet, 100) == b"three\n"
    for each in (descriptor, outlet, inlet):
        os.close(each)


def test_a_closed_pipe_costs_the_lines_and_nothing_else(pipe: Pipe) -> None:
    os.close(pipe.outlet)
    output = QueuedOutput(pipe.inlet, "test")
    losses = Losses(output)

    for _ in range(3):
        losses.happened.clear()
        output.write(b"a line\n")
        assert losses.happened.wait(PATIENCE_SECONDS)

    assert losses.lines == 3
    assert losses.recoveries == []
    assert output.drain(PATIENCE_SECONDS)


def test_the_end_of_a_process_waits_for_its_last_words_but_not_for_ever(pipe: Pipe) -> None:
    output = QueuedOutput(pipe.inlet, "test")
    output.write(b"x" * 60_000 + b"\n")

    assert not output.drain(0.05)
    output.write(b"too late\n")

    assert pipe.read_until(b"\n") == b"x" * 60_000 + b"\n"
    # Also, the thread is done with the pipe before another file gets the number of its descriptor.
    assert output.drain(PATIENCE_SECONDS)
    os.set_blocking(pipe.outlet, False)
    with pytest.raises(BlockingIOError):
        os.read(pipe.outlet, 100)


def test_a_forked_copy_writes_by_itself(pipe: Pipe) -> None:
    output = QueuedOutput(pipe.inlet, "test")
    output.write(b"parent\n")
    assert output.drain(PATIENCE_SECONDS)
    output._pid = os.getpid()
    output._changed.acquire()

    copy = os.fork()
    if copy == 0:
        output.write(b"copy\n")
        output.flush()
        os._exit(0)
    output._changed.release()

    assert os.waitpid(copy, 0)[1] == 0
    assert pipe.read_until(b"copy\n") == b"parent\ncopy\n"


def test_what_is_no_file_of_the_system_stays_as_it_is() -> None:
    stream = io.StringIO()

    assert queued(stream, "test") == (stream, None)


def test_what_has_a_queue_gets_no_second_one(monkeypatch: pytest.MonkeyPatch, pipe: Pipe) -> None:
    with open(pipe.inlet, "w", closefd=False) as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        monkeypatch.setattr(sys, "stderr", io.StringIO())
        (first,) = queue_standard_output()
        assert queue_standard_output() == [first]
        print("hello", flush=True)

    assert pipe.read_until(b"hello\n") == b"hello\n"


PROGRAM = """
import os, subprocess, sys
from timeball.telemetry.output import queue_standard_output
queue_standard_output()
print("first")
sys.stdout.buffer.write(b"second\\n")
sys.stderr.write("no end of line")
sys.stdout.flush()
subprocess.run([sys.executable, "-c", "print('third')"], stdout=sys.stdout)
print("last")
"""


def test_a_program_is_none_the_wiser() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)

    assert (done.returncode, done.stderr) == (0, "no end of line")
    assert sorted(done.stdout.split()) == ["first", "last", "second", "third"]


@pytest.mark.parametrize("target", ["closed", "full"])
def test_a_program_ends_as_ever_though_nothing_can_be_written(target: str) -> None:
    if target == "full":
        descriptor = os.open("/dev/full", os.O_WRONLY)
    else:
        outlet, descriptor = os.pipe()
        os.close(outlet)
    program = "from timeball.telemetry.output import queue_standard_output\nqueue_standard_output()\nprint('a' * 9000)\nraise SystemExit(7)"

    done = subprocess.run([sys.executable, "-c", program], stdout=descriptor, stderr=subprocess.PIPE, timeout=60)

    os.close(descriptor)
    assert (done.returncode, done.stderr) == (7, b"")
