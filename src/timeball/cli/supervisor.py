"""Several processes as one: `timeball up` (nodes, API) and `timeball worker --processes N`.

The process that was started supervises: it starts the others, passes signals on, starts again what dies, and does nothing else.
Each child has one end of a socket as its standard input:

- the child says that it has started; the supervisor says `go`. Nodes have opened the database before the API looks at it, and run
  nothing before the API has its address: a mistake is told once, by one of them, and ends all with its exit code.
- what the nodes have counted goes to the API, which shows it under `/metrics`.
- the end of the socket is the end of the supervisor: a child that is left alone ends in good order (`cli/nodes.py`).

A child that dies is started again, after a pause that doubles with every death; too many deaths within a few minutes end everything,
with the reason. A child that ends with 0 has been drained, and is not started again.
Children have process groups of their own, or Ctrl-C in a terminal would reach them twice, and twice means "at once".
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from timeball.cli.errors import FAILED, OK
from timeball.telemetry.output import queue_standard_output

# What tells a child which of the processes it is; it has no prefix of a setting, and the child takes it out of its environment.
CHILD = "_TIMEBALL_CHILD"

_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 30.0
_MAX_DEATHS = 10
_DEATH_WINDOW_SECONDS = 300.0
# How long a child may take to leave once it was told a second time to hurry.
_KILL_AFTER_SECONDS = 10.0
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """A process to keep running."""

    name: str
    arguments: Sequence[str]
    # Parts are stopped stage by stage: the API answers as long as the nodes run.
    stage: int = 0
    # The part that has to have started before this one is told to go.
    waits_for: str | None = None
    # Whether it may end by itself, as drained nodes do.
    may_exit: bool = True


def up_children(arguments: Sequence[str], reference: str | None) -> list[ChildSpec]:
    """The processes of `timeball up`."""
    api = ["api", *([] if reference is None else [reference])]
    return [
        ChildSpec("nodes", arguments, waits_for="api"),
        ChildSpec("api", api, stage=1, waits_for="nodes", may_exit=False),
    ]


def worker_children(arguments: Sequence[str], number: int) -> list[ChildSpec]:
    """So many workers, each started with the same arguments."""
    alone = _without_processes(arguments)
    return [ChildSpec(f"worker-{index}", alone) for index in range(1, number + 1)]


class ProcessSupervisor:
    """Runs parts until told to stop, until all have left, or until one cannot be kept alive."""

    def __init__(self, specs: Sequence[ChildSpec]) -> None:
        self._children = {spec.name: _ChildProcess(spec) for spec in specs}
        self._selector = selectors.DefaultSelector()
        self._signals: socket.socket = _catch_signals()
        self._selector.register(self._signals, selectors.EVENT_READ)
        self._stop_requests = 0
        self._is_stopping = False
        self._kill_at: float | None = None
        self._code = OK

    def run(self) -> int:
        """Run them; the exit code."""
        # Its last words are not to hold up the end of it.
        queue_standard_output()
        for child in self._children.values():
            self._start(child)
        while any(child.is_wanted or child.is_running for child in self._children.values()):
            for key, _ in self._selector.select(self._seconds_to_wait()):
                if key.fileobj is self._signals:
                    self._on_signals(self._signals.recv(4096))
                else:
                    self._on_messages(key.data)
            self._check_children()
        return self._code

    # starting

    def _start(self, child: _ChildProcess) -> None:
        child.start()
        assert child.socket is not None
        self._selector.register(child.socket, selectors.EVENT_READ, child)
        self._release_waiting()

    def _release_waiting(self) -> None:
        """Tell the parts to go whose awaited part has started."""
        for child in self._children.values():
            awaited = None if child.spec.waits_for is None else self._children[child.spec.waits_for]
            if awaited is None or awaited.has_ever_started:
                child.go()

    def _on_messages(self, child: _ChildProcess) -> None:
        for message in child.receive():
            if "started" in message:
                child.has_ever_started = True
                child.address = message["started"] or child.address
                self._release_waiting()
            elif "metrics" in message:
                for other in self._children.values():
                    if other.spec.stage > child.spec.stage:
                        other.send(message)

    # looking after

    def _check_children(self) -> None:
        for child in self._children.values():
            code = child.ended()
            if code is not None:
                if child.socket is not None:
                    self._on_messages(child)
                    self._selector.unregister(child.socket)
                child.forget()
                self._on_ended(child, code)
            elif child.start_at is not None and time.monotonic() >= child.start_at:
                self._start(child)
        self._stop_stages()
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._kill_all()

    def _on_ended(self, child: _ChildProcess, code: int) -> None:
        if self._is_stopping:
            child.is_wanted = False
            self._keep_exit_code(code, was_asked=True)
        elif code == OK and child.spec.may_exit:
            child.is_wanted = False
        elif not child.has_ever_started:
            # What is wrong with it was told by itself, unless a signal ended it.
            if code < 0:
                _say(f"timeball: the process of the {child.spec.name} {describe_exit(code)} while it started")
            self._end_all(code)
        else:
            self._schedule_restart(child, code)

    def _schedule_restart(self, child: _ChildProcess, code: int) -> None:
        now = time.monotonic()
        child.deaths = [*(death for death in child.deaths if now - death < _DEATH_WINDOW_SECONDS), now]
        child.reason = describe_exit(code)
        if len(child.deaths) >= _MAX_DEATHS:
            _say(
                f"timeball: the process of the {child.spec.name} ended {len(child.deaths)} times within {_DEATH_WINDOW_SECONDS:g} s",
                f"  the last time it {child.reason}; it is not started again, and everything is stopped",
                "  its last words stand above; what ran in it then is shown by: timeball runs --status running",
            )
            self._end_all(FAILED)
            return
        child.start_at = now + min(_FIRST_PAUSE * 2 ** (len(child.deaths) - 1), _LONGEST_PAUSE)

    def _seconds_to_wait(self) -> float | None:
        moments = [child.start_at for child in self._children.values() if child.start_at is not None]
        moments += [] if self._kill_at is None else [self._kill_at]
        return max(min(moments) - time.monotonic(), 0) if moments else None

    # stopping

    def _on_signals(self, numbers: bytes) -> None:
        for number in numbers:
            if number in _STOP_SIGNALS:
                self._stop_requests += 1
                self._stop(number)

    def _stop(self, number: int) -> None:
        self._is_stopping = True
        if self._stop_requests == 2:
            self._kill_at = time.monotonic() + _KILL_AFTER_SECONDS
        elif self._stop_requests > 2:
            self._kill_all()
        for child in self._children.values():
            child.start_at = None
            if not child.is_running:
                child.is_wanted = False
            elif child.is_signalled:
                child.send_signal(signal.SIGTERM)
        if not any(child.has_ever_started for child in self._children.values()):
            self._code = 128 + number
        self._stop_stages()

    def _end_all(self, code: int) -> None:
        self._is_stopping = True
        self._keep_exit_code(code, was_asked=False)
        for child in self._children.values():
            child.start_at = None
            child.is_wanted = child.is_running
        self._stop_stages()

    def _stop_stages(self) -> None:
        """Tell the first stage that still runs to leave; the next follows when it is gone. Twice told, all leave together."""
        left = [child for child in self._children.values() if child.is_wanted or child.is_running]
        if not self._is_stopping and not any(child.spec.stage == 0 for child in left):
            self._is_stopping = True
        if not self._is_stopping or not left:
            return
        stage = min(child.spec.stage for child in left)
        for child in left:
            if not child.is_signalled and (child.spec.stage == stage or self._stop_requests > 1):
                child.send_signal(signal.SIGTERM)
                child.is_signalled = True

    def _kill_all(self) -> None:
        self._kill_at = None
        for child in self._children.values():
            child.send_signal(signal.SIGKILL)

    def _keep_exit_code(self, code: int, *, was_asked: bool) -> None:
        # One that has not come so far as to heed the signal ends by it.
        is_quiet = was_asked and code == -signal.SIGTERM
        if not is_quiet and not self._code:
            self._code = code if code >= 0 else 128 - code


class _ChildProcess:
    """One part, through all its processes."""

    def __init__(self, spec: ChildSpec) -> None:
        self.spec = spec
        self.socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._received = b""
        self._unsent = b""
        self._may_go = False
        self.is_wanted = True
        self.is_signalled = False
        self.has_ever_started = False
        self.start_at: float | None = None
        self.deaths: list[float] = []
        self.reason = ""
        # Where the API listens: one that was started again listens there too.
        self.address = ""

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def start(self) -> None:
        self.start_at = None
        self._may_go = False
        ours, theirs = socket.socketpair()
        about = {"name": self.spec.name, "deaths": len(self.deaths), "reason": self.reason}
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "timeball", *self._arguments()],
                stdin=theirs.fileno(),
                env=os.environ | {CHILD: json.dumps(about)},
                process_group=0,
            )
        finally:
            theirs.close()
        ours.setblocking(False)
        self.socket = ours

    def _arguments(self) -> list[str]:
        port = self.address.rpartition(":")[2]
        return [*self.spec.arguments, *(["--port", port] if port else [])]

    def go(self) -> None:
        if self.is_running and not self._may_go:
            self._may_go = True
            self.send({"go": True})

    def send(self, message: dict[str, Any]) -> None:
        """Tell a child something; one that does not listen misses it, and never gets half of it."""
        if not self._unsent:
            self._unsent = json.dumps(message).encode() + b"\n"
        if self.socket is not None:
            try:
                self._unsent = self._unsent[self.socket.send(self._unsent) :]
            except OSError:
                return

    def receive(self) -> list[dict[str, Any]]:
        """What the child has said."""
        assert self.socket is not None
        try:
            while data := self.socket.recv(65536):
                self._received += data
        except OSError:
            pass
        *lines, self._received = self._received.split(b"\n")
        return [message for line in lines if (message := _message_of(line)) is not None]

    def ended(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def forget(self) -> None:
        self._process = None
        self._received = self._unsent = b""
        if self.socket is not None:
            self.socket.close()
            self.socket = None

    def send_signal(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)


def _message_of(line: bytes) -> dict[str, Any] | None:
    try:
        message = json.loads(line)
    except ValueError:
        return None
    return message if isinstance(message, dict) else None


def _catch_signals() -> socket.socket:
    """Signals as bytes to be selected for, so that none falls between a look and a wait."""
    receiver, sender = socket.socketpair()
    receiver.setblocking(False)
    sender.setblocking(False)
    for number in (*_STOP_SIGNALS, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(sender.detach(), warn_on_full_buffer=False)
    return receiver


def describe_exit(code: int) -> str:
    """How a process ended, in words."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def _say(*lines: str) -> None:
    sys.stderr.write("".join(f"{line}\n" for line in lines))


def _without_processes(arguments: Sequence[str]) -> list[str]:
    kept: list[str] = []
    skips_next = False
    for argument in arguments:
        if skips_next:
            skips_next = False
        elif argument == "--processes":
            skips_next = True
        elif not argument.startswith("--processes="):
            kept.append(argument)
    return kept
