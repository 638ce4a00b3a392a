"""The worker's end of one child process: start it, run an attempt in it, hear what it says, end it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass

from timeball.current import RunContext
from timeball.domain.execution import ErrorInfo
from timeball.runners.warden import TERM_GRACE_SECONDS
from timeball.runners.wire import Begun, Broken, Ended, FromChild, Log, Progress, Ready, Run, Setup, Stop, pack, receive

# The warden needs the grace and a moment more; one that takes longer is itself killed.
_END_SECONDS = TERM_GRACE_SECONDS + 5
_READ_BYTES = 64 * 1024
_LONGEST_LINE = 16 * 1024


@dataclass(frozen=True, slots=True)
class Died:
    """The child ended before its handler did."""

    returncode: int
    has_begun: bool


@dataclass(frozen=True, slots=True)
class Unusable:
    """The child could not import the app."""

    error: ErrorInfo


Ending = Ended | Died | Unusable


class ChildProcess:
    """One child, used for one attempt at a time."""

    def __init__(self, process: asyncio.subprocess.Process, connection: socket.socket, outputs: list[Output]) -> None:
        self._process = process
        # A second name of the same socket: shutting it down works whatever waits to be sent through the first.
        self._lifeline = connection.dup()
        self._connection = connection
        self._outputs = outputs
        self._group: int | None = None
        self._is_hung_up = False
        self._is_closed = False
        self.runs = 0

    @classmethod
    async def start(cls, app: str) -> ChildProcess:
        """Start a child; it imports the app while we go on."""
        ours, theirs = socket.socketpair()
        outputs = [Output("info"), Output("warning")]
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-u", "-m", "timeball.runners.warden", app),
                stdin=theirs.fileno(),
                stdout=outputs[0].inlet,
                stderr=outputs[1].inlet,
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            for output in outputs:
                output.close()
            raise
        finally:
            theirs.close()
            for output in outputs:
                output.close_inlet()
        child = cls(process, ours, outputs)
        await child._connect()
        return child

    async def _connect(self) -> None:
        self._reader, self._writer = await asyncio.open_connection(sock=self._connection)
        for output in self._outputs:
            output.open()
        self._writer.write(pack(Setup(path=sys.path)))

    @property
    def is_alive(self) -> bool:
        """Whether it can be given an attempt."""
        return self._process.returncode is None and not self._is_hung_up and not self._reader.at_eof()

    async def perform(self, context: RunContext) -> Ending:
        """Run an attempt; afterwards all it has said is with *context*."""
        self.runs += 1
        for output in self._outputs:
            output.take_line = context.emit_log
        self._writer.write(pack(Run(number=self.runs, claimed=context.claimed)))
        try:
            return await self._hear(context)
        finally:
            for output in self._outputs:
                output.finish()

    async def _hear(self, context: RunContext) -> Ending:
        has_begun = False
        while (message := await self._receive()) is not None:
            match message:
                case Ready(pid=pid):
                    self._group = pid
                case Broken(error=error):
                    return Unusable(error)
                case _ if message.number != self.runs:
                    continue
                case Begun():
                    has_begun = True
                case Log(level=level, message=text):
                    context.emit_log(level, text)
                case Progress(fraction=fraction, note=note):
                    context.report_progress(fraction, note)
                case Ended():
                    return message
        self.hang_up()
        return Died(await self._process.wait(), has_begun)

    async def _receive(self) -> FromChild | None:
        try:
            return await receive(self._reader)
        except ValueError:
            # The handler has written into our socket; nothing that comes from there can be trusted any more.
            return None

    def stop(self, context: RunContext) -> None:
        """Tell the handler that it is to stop."""
        if context.halted is not None and not self._is_hung_up:
            self._writer.write(pack(Stop(number=self.runs, why=context.halted, reason=context.halt_reason)))

    def hang_up(self) -> None:
        """Have the warden end the child and all below it: TERM, a short grace, KILL."""
        if not self._is_hung_up:
            self._is_hung_up = True
            _ignoring_os_errors(lambda: self._lifeline.shutdown(socket.SHUT_WR))

    async def end(self) -> None:
        """Hang up and wait until nothing of it is left. May be called more than once."""
        self.hang_up()
        try:
            async with asyncio.timeout(_END_SECONDS):
                await self._process.wait()
        except TimeoutError:
            self._kill()
        finally:
            self._close()

    def _kill(self) -> None:
        """The warden itself does not answer: without it, the kernel kills the child, and we its group."""
        _ignoring_os_errors(self._process.kill)
        group = self._group
        if group is not None:
            _ignoring_os_errors(lambda: os.killpg(group, signal.SIGKILL))

    def _close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._writer.close()
        self._lifeline.close()
        for output in self._outputs:
            output.close()


class Output:
    """What the child's processes write to stdout or stderr, as log lines of the running attempt."""

    def __init__(self, level: str) -> None:
        self._level = level
        self._outlet, self.inlet = os.pipe()
        os.set_blocking(self._outlet, False)
        self._rest = b""
        self._is_open = False
        # Where lines go just now; what is written between two attempts belongs to nobody.
        self.take_line: Callable[[str, str], None] = _forget

    def open(self) -> None:
        """Read whenever there is something."""
        asyncio.get_running_loop().add_reader(self._outlet, self._read)
        self._is_open = True

    def close_inlet(self) -> None:
        """Leave writing to the child."""
        os.close(self.inlet)

    def close(self) -> None:
        """Read no more."""
        self._stop_reading()
        os.close(self._outlet)

    def finish(self) -> None:
        """Take all that was written until now, the unfinished last line too; later lines are not this attempt's."""
        while self._is_open and self._read():
            pass
        self._emit(self._rest)
        self._rest = b""
        self.take_line = _forget

    def _read(self) -> bool:
        try:
            found = os.read(self._outlet, _READ_BYTES)
        except BlockingIOError:
            return False
        if not found:
            self._stop_reading()
            return False
        *lines, self._rest = (self._rest + found).split(b"\n")
        for line in lines:
            self._emit(line)
        if len(self._rest) > _LONGEST_LINE:
            self._emit(self._rest)
            self._rest = b""
        return True

    def _emit(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace").rstrip("\r")
        if text.strip():
            self.take_line(self._level, text)

    def _stop_reading(self) -> None:
        if self._is_open:
            asyncio.get_running_loop().remove_reader(self._outlet)
            self._is_open = False


def _forget(_level: str, _message: str) -> None:
    return None


def _ignoring_os_errors(act: Callable[[], object]) -> None:
    """Do something to a process that may just have ended."""
    try:
        act()
    except OSError:
        return
