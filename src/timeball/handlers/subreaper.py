"""The process above a command or an isolated child: when that ends, everything it has started ends with it.

A subreaper adopts the processes below it whose own parents have ended, so none of them escapes. The worker holds the other end of its
standard input: a hang-up there means that the worker has lost interest, or has ended.

`shell.command` runs this file as a script of its own, without the package and without site-packages (`main`). The child of an isolated
handler splits off its subreaper by `split` (`engine.runners.child`).
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
from collections.abc import Callable
from typing import Any

# How long an isolated child has to end after SIGTERM.
TERM_GRACE_SECONDS = 1.0
_LIFELINE = 0
_POLL_MILLISECONDS = 10
_KILL_SECONDS = 5.0
_HIGHEST_DESCRIPTOR = 4096
_EX_CANNOT_START = 126
_IS_LINUX = sys.platform == "linux"

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38


# Both.


def _begin() -> socket.socket:
    """Become a subreaper that ends with the worker; returns where its signals arrive."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    alarm = _catch_signals()
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    return alarm


def _catch_signals() -> socket.socket:
    """SIGCHLD and SIGTERM as bytes to be polled for, so that no signal falls between a look and a wait."""
    receiver, sender = socket.socketpair()
    receiver.setblocking(False)
    sender.setblocking(False)
    signal.set_wakeup_fd(sender.detach())
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    return receiver


def _release_output() -> None:
    """Leave the output to the processes below: the pipes must end when they do."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)


class Subreaper:
    """Watches one process; *status* is how it ended, None if it was killed and could not be waited for.

    With *spares_descendants*, the grace after SIGTERM is for everything below, else for the process itself: a child of a command may
    need the grace that its parent does not.
    """

    def __init__(self, child: int, alarm: socket.socket, grace_seconds: float, *, spares_descendants: bool) -> None:
        self.status: int | None = None
        self._child = child
        self._alarm = alarm
        self._grace_seconds = grace_seconds
        self._spares_descendants = spares_descendants
        self._is_late = False
        signal.signal(signal.SIGALRM, self._note_lateness)
        self._poll = select.poll()
        self._poll.register(_LIFELINE, select.POLLHUP | getattr(select, "POLLRDHUP", 0))
        self._poll.register(alarm, select.POLLIN)

    def run(self) -> None:
        """Wait for the end of the process or of the worker's interest, then leave nothing behind."""
        while self.status is None and not self._is_called_off():
            self._reap()
        if self.status is None:
            self._signal_all(signal.SIGTERM)
            self._wait_while(self._is_graced, self._grace_seconds)
        self._signal_all(signal.SIGKILL)
        # Again and again: what is being forked meanwhile is not in the list yet.
        self._wait_while(lambda: self._signal_all(signal.SIGKILL), _KILL_SECONDS)

    def _is_graced(self) -> bool:
        return self._signal_all(0) if self._spares_descendants else self.status is None

    def _is_called_off(self) -> bool:
        """Wait for something to happen; True if it is the worker's hanging up, or its end."""
        happened = dict(self._poll.poll())
        signals = self._alarm.recv(4096) if self._alarm.fileno() in happened else b""
        return _LIFELINE in happened or signal.SIGTERM in signals

    def _reap(self) -> None:
        """Take note of processes that ended: the one that is watched, or one that was adopted."""
        try:
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self._child:
                    self.status = ended[1]
        except ChildProcessError:
            pass

    def _note_lateness(self, *_: object) -> None:
        self._is_late = True

    def _wait_while(self, goes_on: Callable[[], bool], seconds: float) -> None:
        self._is_late = False
        signal.setitimer(signal.ITIMER_REAL, seconds)
        self._reap()
        while goes_on() and not self._is_late:
            select.poll().poll(_POLL_MILLISECONDS)
            self._reap()
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _signal_all(self, number: int) -> bool:
        """Send a signal to everything below; False if there is nothing."""
        if not _IS_LINUX:
            return _send(os.killpg, self._child, number)
        below = _descendants(os.getpid())
        for pid in below:
            _send(os.kill, pid, number)
        return bool(below)


def _descendants(ancestor: int) -> list[int]:
    """All processes below one, those that it has adopted included."""
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


def _prctl(option: int, value: int) -> None:
    if _IS_LINUX:
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


# An isolated child.


def split() -> None:
    """Fork; the child returns from here, and the parent watches it and then ends as it did."""
    alarm = _begin()
    parent = os.getpid()
    child = os.fork()
    if child:
        _release_output()
        subreaper = Subreaper(child, alarm, TERM_GRACE_SECONDS, spares_descendants=False)
        subreaper.run()
        _end_like(subreaper.status)
    signal.set_wakeup_fd(-1)
    alarm.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.setsid()
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


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


# A command.


def main() -> None:
    """Start the command that the worker orders, watch it, and report how it ended."""
    line = socket.socket(fileno=_LIFELINE)
    order = _read_order(line)
    alarm = _begin()
    errors, error = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        _become_command(order, error, parent)
    os.close(error)
    _release_output()
    os.close(int(order["folder"]))
    subreaper = Subreaper(child, alarm, order["grace_seconds"], spares_descendants=True)
    subreaper.run()
    failure = os.read(errors, 4096).decode("utf-8", "replace")
    status = None if subreaper.status is None else os.waitstatus_to_exitcode(subreaper.status)
    report = {"failed": failure} if failure else {"status": status}
    try:
        line.sendall(json.dumps(report).encode())
    except OSError:
        os._exit(1)
    os._exit(0)


def _read_order(line: socket.socket) -> dict[str, Any]:
    (size,) = struct.unpack("!I", _read_exactly(line, 4))
    order: dict[str, Any] = json.loads(_read_exactly(line, size))
    return order


def _read_exactly(line: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = line.recv(size - len(data))
        if not part:
            os._exit(1)
        data += part
    return data


def _become_command(order: dict[str, Any], error_pipe: int, parent: int) -> None:
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        os.umask(0o027)
        for name, limit in order["limits"].items():
            # A second more to the hard limit of CPU time: SIGXCPU says what happened, SIGKILL does not.
            hard = limit + 1 if name == "RLIMIT_CPU" else limit
            resource.setrlimit(getattr(resource, name), (limit, hard))
        _give_up_rights(order["account"])
        # After that, for giving up rights takes it back.
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        os.fchdir(int(order["folder"]))
        os.dup2(os.open(os.devnull, os.O_RDONLY), _LIFELINE)
        os.closerange(3, error_pipe)
        os.closerange(error_pipe + 1, _HIGHEST_DESCRIPTOR)
        os.execve(order["program"], order["arguments"], order["environment"])  # noqa: S606
    except BaseException as error:
        os.write(error_pipe, f"{type(error).__name__}: {error}".encode("utf-8", "replace")[:4000])
        os._exit(_EX_CANNOT_START)


def _give_up_rights(account: list[int] | None) -> None:
    if account is not None:
        uid, gid = account
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    # No program gets rights back by being set-user-id: sudo, su and the like.
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


if __name__ == "__main__":
    main()
