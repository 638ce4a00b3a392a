"""Several processes that start, run and stop together: `timeball up` and `timeball worker --processes N`.

`ProcessSupervisor` runs in the process that was started. It starts children, passes signals on, restarts a child that dies, and does
nothing else. Each child is a `timeball` command, and its standard input is a socket to the supervisor. `SupervisorLink` is the
child's end of that socket. Both sides send JSON, one message to a line:

- `started`: the child is ready. `go`: the child that this one waits for is ready too. So the nodes open the database before the API
  needs it, and run nothing before the API has its port: a mistake is reported once, by one child, and ends all with its exit code.
- `metrics`: what the nodes count. The supervisor passes it on to the API, which shows it under `/metrics`.
- The end of the stream means that the supervisor is gone: the child then stops as if it had received SIGTERM.

A child that dies is restarted after a pause, which doubles with every death. Too many deaths within a few minutes stop everything,
with the reason. A child that exits with 0 has been drained, and is not restarted. One that exits with `TO_BE_REPLACED` has drained
because it had grown too large: another takes its place, and that is no death.
Children have process groups of their own. Otherwise Ctrl-C in a terminal would reach them twice, and twice means "at once".
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from timeball.cli.errors import FAILED, OK, TO_BE_REPLACED
from timeball.telemetry.output import drain_standard_output, queue_standard_output

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client.metrics_core import Metric

Message = dict[str, Any]

# Says which child a process is. It does not have the prefix of settings, and the child removes it from its environment.
CHILD_VARIABLE = "_TIMEBALL_CHILD"

_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 30.0
_MAX_DEATHS = 10
_DEATH_WINDOW_SECONDS = 300.0
# How long the children may take to leave after the second signal.
_KILL_AFTER_SECONDS = 10.0
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """A process to keep running."""

    name: str
    arguments: Sequence[str]
    # Children are stopped stage by stage: the API answers as long as the nodes run.
    stage: int = 0
    # The child that has to be ready before this one may go.
    waits_for: str | None = None
    # Whether it may exit by itself, as drained nodes do.
    may_exit: bool = True


def up_children(arguments: Sequence[str], reference: str | None) -> list[ChildSpec]:
    """The processes of `timeball up`."""
    api = ["api", *([] if reference is None else [reference])]
    return [
        ChildSpec("nodes", arguments, waits_for="api"),
        ChildSpec("api", api, stage=1, waits_for="nodes", may_exit=False),
    ]


def worker_children(arguments: Sequence[str], number: int) -> list[ChildSpec]:
    """The processes of `timeball worker --processes N`: each has the same arguments, without that option."""
    alone = _without_processes(arguments)
    return [ChildSpec(f"worker-{index}", alone) for index in range(1, number + 1)]


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


class ProcessSupervisor:
    """Runs children until it is told to stop, until all have exited, or until one dies too often."""

    def __init__(self, specs: Sequence[ChildSpec]) -> None:
        self._children = {spec.name: _Child(spec) for spec in specs}
        self._selector = selectors.DefaultSelector()
        self._signals: socket.socket = _catch_signals()
        self._selector.register(self._signals, selectors.EVENT_READ)
        self._stop_requests = 0
        self._is_stopping = False
        self._kill_at: float | None = None
        self._code = OK

    def run(self) -> int:
        """Run the children; returns the exit code."""
        # A terminal that does not read must not hold up the exit.
        queue_standard_output()
        for child in self._children.values():
            self._start(child)
        while any(child.should_run or child.is_running for child in self._children.values()):
            for key, _ in self._selector.select(self._seconds_to_wait()):
                if key.fileobj is self._signals:
                    self._on_signals(self._signals.recv(4096))
                else:
                    self._on_messages(key.data)
            self._check_children()
        return self._code

    # starting

    def _start(self, child: _Child) -> None:
        child.start()
        assert child.socket is not None
        self._selector.register(child.socket, selectors.EVENT_READ, child)
        self._release_children()

    def _release_children(self) -> None:
        """Say `go` to every child whose awaited child is ready."""
        for child in self._children.values():
            awaited = None if child.spec.waits_for is None else self._children[child.spec.waits_for]
            if awaited is None or awaited.has_ever_started:
                child.release()

    def _on_messages(self, child: _Child) -> None:
        for message in child.receive():
            if "started" in message:
                child.has_ever_started = True
                child.address = message["started"] or child.address
                self._release_children()
            elif "metrics" in message:
                for other in self._children.values():
                    if other.spec.stage > child.spec.stage:
                        other.send(message)

    # restarting

    def _check_children(self) -> None:
        for child in self._children.values():
            code = child.exit_code()
            if code is not None:
                if child.socket is not None:
                    self._on_messages(child)
                    self._selector.unregister(child.socket)
                child.forget_process()
                self._on_exit(child, code)
            elif child.start_at is not None and time.monotonic() >= child.start_at:
                self._start(child)
        self._stop_stages()
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._kill_all()

    def _on_exit(self, child: _Child, code: int) -> None:
        if self._is_stopping:
            child.should_run = False
            self._keep_exit_code(code, was_asked=True)
        elif code == OK and child.spec.may_exit:
            child.should_run = False
        elif code == TO_BE_REPLACED and child.has_ever_started:
            child.start_at = time.monotonic() + _FIRST_PAUSE
        elif not child.has_ever_started:
            # The child has reported what is wrong, unless a signal ended it.
            if code < 0:
                _say(f"timeball: the {child.spec.name} process {describe_exit(code)} while it started")
            self._stop_all(code)
        else:
            self._schedule_restart(child, code)

    def _schedule_restart(self, child: _Child, code: int) -> None:
        now = time.monotonic()
        child.deaths = [*(death for death in child.deaths if now - death < _DEATH_WINDOW_SECONDS), now]
        child.reason = describe_exit(code)
        if len(child.deaths) >= _MAX_DEATHS:
            _say(
                f"timeball: the {child.spec.name} process died {len(child.deaths)} times within {_DEATH_WINDOW_SECONDS:g} s",
                f"  the last time it {child.reason}; it is not restarted, and everything stops",
                "  its last log lines are above; what it was running: timeball runs --status running",
            )
            self._stop_all(FAILED)
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
                self._on_stop_signal(number)

    def _on_stop_signal(self, number: int) -> None:
        self._is_stopping = True
        if self._stop_requests == 2:
            self._kill_at = time.monotonic() + _KILL_AFTER_SECONDS
        elif self._stop_requests > 2:
            self._kill_all()
        for child in self._children.values():
            child.start_at = None
            if not child.is_running:
                child.should_run = False
            elif child.is_signalled:
                child.send_signal(signal.SIGTERM)
        if not any(child.has_ever_started for child in self._children.values()):
            self._code = 128 + number
        self._stop_stages()

    def _stop_all(self, code: int) -> None:
        self._is_stopping = True
        self._keep_exit_code(code, was_asked=False)
        for child in self._children.values():
            child.start_at = None
            child.should_run = child.is_running
        self._stop_stages()

    def _stop_stages(self) -> None:
        """Stop the lowest stage that still runs; the next follows when it is gone. After a second signal all stop together."""
        left = [child for child in self._children.values() if child.should_run or child.is_running]
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
        # A child that does not handle SIGTERM yet dies of it.
        is_expected = was_asked and code == -signal.SIGTERM
        if not is_expected and not self._code:
            self._code = code if code >= 0 else 128 - code


class _Child:
    """The supervisor's view of one child, over all its restarts."""

    def __init__(self, spec: ChildSpec) -> None:
        self.spec = spec
        self.socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._received = b""
        self._unsent = b""
        self._is_released = False
        self.should_run = True
        self.is_signalled = False
        self.has_ever_started = False
        self.start_at: float | None = None
        self.deaths: list[float] = []
        self.reason = ""
        # Where the API listens: a restarted one listens there too.
        self.address = ""

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def start(self) -> None:
        self.start_at = None
        self._is_released = False
        ours, theirs = socket.socketpair()
        identity = {"name": self.spec.name, "deaths": len(self.deaths), "reason": self.reason}
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "timeball", *self._arguments()],
                stdin=theirs.fileno(),
                env=os.environ | {CHILD_VARIABLE: json.dumps(identity)},
                process_group=0,
            )
        finally:
            theirs.close()
        ours.setblocking(False)
        self.socket = ours

    def _arguments(self) -> list[str]:
        port = self.address.rpartition(":")[2]
        return [*self.spec.arguments, *(["--port", port] if port else [])]

    def release(self) -> None:
        if self.is_running and not self._is_released:
            self._is_released = True
            self.send({"go": True})

    def send(self, message: Message) -> None:
        """Send a message; a child that does not read misses it, and never gets half of it."""
        if not self._unsent:
            self._unsent = _encode(message)
        if self.socket is not None:
            try:
                self._unsent = self._unsent[self.socket.send(self._unsent) :]
            except OSError:
                return

    def receive(self) -> list[Message]:
        """The messages that have arrived."""
        assert self.socket is not None
        try:
            while data := self.socket.recv(65536):
                self._received += data
        except OSError:
            pass
        *lines, self._received = self._received.split(b"\n")
        return [message for line in lines if (message := _decode(line)) is not None]

    def exit_code(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def forget_process(self) -> None:
        self._process = None
        self._received = self._unsent = b""
        if self.socket is not None:
            self.socket.close()
            self.socket = None

    def send_signal(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)


def _catch_signals() -> socket.socket:
    """Receive signals as bytes of a socket, so that none is missed between a check and a wait."""
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


def _encode(message: Message) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _decode(line: bytes) -> Message | None:
    try:
        message = json.loads(line)
    except ValueError:
        return None
    return message if isinstance(message, dict) else None


# How often a child sends its metrics.
_METRICS_SECONDS = 5.0
# Past the worker's grace period: by then a child that can stop has recorded what it ran.
_ORPHAN_EXIT_SECONDS = 15.0


def is_supervised() -> bool:
    """Whether a supervisor has started this process, and `connect_to_supervisor` has not been called yet."""
    return CHILD_VARIABLE in os.environ


def connect_to_supervisor() -> SupervisorLink | None:
    """The link to the supervisor of this process, if it has one; programs that this process starts have none."""
    identity = os.environ.pop(CHILD_VARIABLE, None)
    return None if identity is None else SupervisorLink(json.loads(identity), _detach_socket())


def _detach_socket() -> socket.socket:
    """Move the socket away from fd 0, where the programs that a handler starts would inherit it."""
    connection = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    return connection


class SupervisorLink:
    """The child's end of the socket.

    A thread reads it, so that the end of the supervisor is noticed whatever the event loop does: this process then sends itself
    SIGTERM, and exits by force if that takes too long.
    """

    def __init__(self, identity: Message, connection: socket.socket) -> None:
        self.name: str = identity["name"]
        # How often this child has died lately, and how it ended the last time.
        self.deaths: int = identity["deaths"]
        self.reason: str = identity["reason"]
        self._connection = connection
        self._sending = threading.Lock()
        self._released = threading.Event()
        self._on_release: Callable[[], object] = lambda: None
        # Writes the metrics of this process; and the metrics of the nodes, as they arrived last.
        self.write_metrics: Callable[[], str] | None = None
        self.received_metrics = ""
        self.grace_seconds = 0.0
        # A child is not in the foreground of its terminal, and may write there all the same.
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        connection.settimeout(_METRICS_SECONDS)
        threading.Thread(target=self._listen, name="supervisor", daemon=True).start()

    @property
    def trouble(self) -> str | None:
        """How the process before this one ended, if this one is a restart."""
        return f"its process was restarted: the one before {self.reason}" if self.deaths else None

    def report_started(self, address: str = "") -> None:
        """Say that this process is ready: from now on, the supervisor restarts it if it dies."""
        self._send({"started": address})

    def wait(self) -> None:
        """Wait until the child that this one waits for is ready."""
        self._released.wait()

    async def wait_async(self) -> None:
        """The same on an event loop."""
        import asyncio

        loop, released = asyncio.get_running_loop(), asyncio.Event()
        self._on_release = lambda: loop.call_soon_threadsafe(released.set)
        if not self._released.is_set():
            await released.wait()

    def release(self) -> None:
        """End the wait."""
        self._released.set()
        self._on_release()

    def collect(self) -> Iterable[Metric]:
        """The metrics of the nodes, for Prometheus."""
        from prometheus_client.parser import text_string_to_metric_families

        return text_string_to_metric_families(self.received_metrics)

    def _listen(self) -> None:
        received = b""
        while True:
            try:
                data = self._connection.recv(65536)
            except TimeoutError:
                self._send_metrics()
                continue
            except OSError:
                data = b""
            if not data:
                self._exit_orphaned()
                return
            *lines, received = (received + data).split(b"\n")
            for line in lines:
                self._on_message(json.loads(line))

    def _on_message(self, message: Message) -> None:
        if "go" in message:
            self.release()
        elif "metrics" in message:
            self.received_metrics = message["metrics"]

    def _send_metrics(self) -> None:
        if self.write_metrics is not None:
            self._send({"metrics": self.write_metrics()})

    def _send(self, message: Message) -> None:
        # An error means that the supervisor is gone, which the thread notices.
        with self._sending, suppress(OSError):
            self._connection.sendall(_encode(message))

    def _exit_orphaned(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(self.grace_seconds + _ORPHAN_EXIT_SECONDS)
        drain_standard_output()
        os._exit(FAILED)
