"""The process above a child process: ends everything the handler started when the child ends."""

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Callable

from timeball.clock import SystemClock

TERM_GRACE_SECONDS = 1.0
_KILL_SECONDS = 5.0
_POLL_MILLISECONDS = 10
_LIFELINE = 0

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_IS_LINUX = sys.platform == "linux"


def main(app: str) -> None:
    """Split into supervisor and child; only the child comes back from that."""
    _split()
    # Imported here: the supervisor has no use for what the child needs.
    from timeball.engine.runners.child import main as serve

    serve(app)


def _split() -> None:
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    alarm = _catch_signals()
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    supervisor = os.getpid()
    child = os.fork()
    if child:
        SupervisorProcess(child, alarm).watch()
    _become_child(alarm, supervisor)


def _become_child(alarm: socket.socket, supervisor: int) -> None:
    signal.set_wakeup_fd(-1)
    alarm.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.setsid()
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != supervisor:
        os._exit(1)


def _catch_signals() -> socket.socket:
    """SIGCHLD and SIGTERM as bytes to be polled for, so that no signal falls between a look and a wait."""
    receiver, sender = socket.socketpair()
    receiver.setblocking(False)
    sender.setblocking(False)
    signal.set_wakeup_fd(sender.detach())
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    return receiver


class SupervisorProcess:
    """Watches one child, then ends as it did."""

    def __init__(self, child: int, alarm: socket.socket) -> None:
        self._child = child
        self._alarm = alarm
        self._status: int | None = None
        self._clock = SystemClock()
        self._poll = select.poll()
        self._poll.register(_LIFELINE, select.POLLHUP | getattr(select, "POLLRDHUP", 0))
        self._poll.register(alarm, select.POLLIN)

    def watch(self) -> None:
        """Wait for the end of the child or of the worker's interest; never returns."""
        _silence_output()
        while self._status is None and not self._is_called_off():
            self._reap()
        if self._status is None:
            self._ask_to_end()
        self._kill_all()
        _end_like(self._status)

    def _is_called_off(self) -> bool:
        """Wait for something to happen; True if it is the worker's hanging up, or its end."""
        happened = dict(self._poll.poll())
        signals = self._alarm.recv(4096) if self._alarm.fileno() in happened else b""
        return _LIFELINE in happened or signal.SIGTERM in signals

    def _reap(self) -> None:
        """Take note of processes that ended: the child, or one that was adopted."""
        try:
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self._child:
                    self._status = ended[1]
        except ChildProcessError:
            pass

    def _ask_to_end(self) -> None:
        self._signal_all(signal.SIGTERM)
        self._wait_while(lambda: self._status is None, TERM_GRACE_SECONDS)

    def _kill_all(self) -> None:
        self._signal_all(signal.SIGKILL)
        # Again and again: what is being forked meanwhile is not in the list yet.
        self._wait_while(lambda: self._signal_all(signal.SIGKILL), _KILL_SECONDS)

    def _wait_while(self, goes_on: Callable[[], bool], seconds: float) -> None:
        until = self._clock.monotonic() + seconds
        while goes_on() and self._clock.monotonic() < until:
            select.poll().poll(_POLL_MILLISECONDS)
            self._reap()

    def _signal_all(self, number: int) -> bool:
        """Send a signal to everything below; False if there is nothing."""
        if not _IS_LINUX:
            return _send(os.killpg, self._child, number)
        below = descendants(os.getpid())
        for pid in below:
            _send(os.kill, pid, number)
        return bool(below)


def descendants(ancestor: int) -> list[int]:
    """All processes below one, those without a parent of their own included if it adopts them."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (parent := _parent_of(name)) is not None:
            children.setdefault(parent, []).append(int(name))
    descendants: list[int] = []
    to_visit = [ancestor]
    while to_visit:
        below = children.get(to_visit.pop(), [])
        descendants += below
        to_visit += below
    return descendants


def _parent_of(pid: str) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            # The name of the program stands in brackets and may contain anything, brackets too.
            return int(file.read().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return None


def _send(send: Callable[[int, int], None], target: int, number: int) -> bool:
    try:
        send(target, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _silence_output() -> None:
    """Leave the child's output to the child: the pipe must end when it does."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)


def _end_like(status: int | None) -> None:
    if status is None:
        os._exit(1)
    if not os.WIFSIGNALED(status):
        os._exit(os.WEXITSTATUS(status))
    number = os.WTERMSIG(status)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)


def _prctl(option: int, value: int) -> None:
    if _IS_LINUX:
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    main(sys.argv[1])
