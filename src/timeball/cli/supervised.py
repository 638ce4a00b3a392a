"""A child's end of the conversation with its supervisor (`cli/supervising.py`).

A thread of its own listens, so that the end of the supervisor is noticed whatever the event loop does: then this process leaves as if
it had been told to (SIGTERM), and ends by force should that take too long.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from timeball.cli.exits import FAILED
from timeball.cli.supervising import CHILD
from timeball.telemetry.output import drain_standard_output

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client.metrics_core import Metric

_PUSH_SECONDS = 5.0
# Past the grace: what ends by itself has written down its end by then.
_LAST_SECONDS = 15.0


def take_link() -> Link | None:
    """The link to the supervisor of this process, if it has one; programs that this process starts have none."""
    about = os.environ.pop(CHILD, None)
    return None if about is None else Link(json.loads(about), _take_socket())


def _take_socket() -> socket.socket:
    """Move the socket away from fd 0, where the programs a handler starts would inherit it."""
    connection = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return connection


class Link:
    """What a supervised process hears from its supervisor, and says to it."""

    def __init__(self, about: dict[str, Any], connection: socket.socket) -> None:
        self.name: str = about["name"]
        # How often it has died lately, and how it did the last time.
        self.deaths: int = about["deaths"]
        self.reason: str = about["reason"]
        self._connection = connection
        self._sending = threading.Lock()
        self._going = threading.Event()
        self._on_go: Callable[[], object] = lambda: None
        # What this process counts, as text; and what another one has counted.
        self.count: Callable[[], str] | None = None
        self.counted_elsewhere = ""
        self.grace_seconds = 0.0
        # It has no terminal of its own, and may write to that of its supervisor.
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        connection.settimeout(_PUSH_SECONDS)
        threading.Thread(target=self._listen, name="supervisor", daemon=True).start()

    @property
    def trouble(self) -> str | None:
        """What became of the process that this one stands for."""
        return f"its process was started again: the one before {self.reason}" if self.deaths else None

    def started(self, address: str = "") -> None:
        """Say that this process has come so far that it can be kept alive."""
        self._send({"started": address})

    def wait_to_go(self) -> None:
        """Wait until the others have come as far as they must."""
        self._going.wait()

    async def going(self) -> None:
        """The same on an event loop."""
        loop, going = asyncio.get_running_loop(), asyncio.Event()
        self._on_go = lambda: loop.call_soon_threadsafe(going.set)
        if not self._going.is_set():
            await going.wait()

    def go(self) -> None:
        """Wait no longer."""
        self._going.set()
        self._on_go()

    def _listen(self) -> None:
        received = b""
        while True:
            try:
                data = self._connection.recv(65536)
            except TimeoutError:
                self._push()
                continue
            except OSError:
                data = b""
            if not data:
                self._end_alone()
                return
            *lines, received = (received + data).split(b"\n")
            for line in lines:
                self._hear(json.loads(line))

    def _hear(self, message: dict[str, Any]) -> None:
        if "go" in message:
            self.go()
        elif "metrics" in message:
            self.counted_elsewhere = message["metrics"]

    def _push(self) -> None:
        if self.count is not None:
            self._send({"metrics": self.count()})

    def _send(self, message: dict[str, Any]) -> None:
        with self._sending, suppress(OSError):
            # Otherwise the supervisor has gone, which the thread will notice.
            self._connection.sendall(json.dumps(message).encode() + b"\n")

    def _end_alone(self) -> None:
        """The supervisor is gone: leave, in good order if that can be."""
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(self.grace_seconds + _LAST_SECONDS)
        drain_standard_output()
        os._exit(FAILED)

    def collect(self) -> Iterable[Metric]:
        """What the process on the other side has counted, for Prometheus."""
        from prometheus_client.parser import text_string_to_metric_families

        return text_string_to_metric_families(self.counted_elsewhere)
