"""Log lines of handlers are written once, by the service or by the last flush."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tests.engine.support import Heard, until
from tests.engine.worker.test_executor import claim
from tests.support.factories import table
from tests.testing.conftest import harness as harness  # a fixture
from timeball import Timeball, current
from timeball.current import AttemptContext
from timeball.engine.worker.recorder import LogWriter
from timeball.env import Env
from timeball.store.store import Store
from timeball.testing import TimeballHarness
from timeball.testing.nodes import ManualNodes


@pytest.mark.parametrize("fresh_database", ["pg18"], indirect=True)
async def test_a_flush_beside_the_service_takes_nothing_away_that_is_not_written(
    store: Store, env: Env, heard: Heard
) -> None:
    """A worker that leaves flushes while its service may be in the middle of a batch."""
    log_writer = LogWriter(env, heard, store.executions, store.history)
    claimed = claim()
    sink = log_writer.open_sink(AttemptContext(claimed, env.clock, log_writer.open_sink))
    sink.emit_log(env.clock.now(), "info", "hello")
    log_writer.close_sink(claimed)

    await asyncio.gather(log_writer.tick(), log_writer.flush())

    assert [row["message"] for row in await table(store, "log_line")] == ["hello"]


@pytest.mark.parametrize("fresh_database", ["pg15"], indirect=True)
def test_what_an_attempt_has_left_behind_and_speaks_after_its_end_opens_no_log(harness: TimeballHarness) -> None:
    """Nothing would ever close it."""
    tb = Timeball(database_url="postgresql://nobody@nowhere.invalid/none")
    left: list[asyncio.Task[None]] = []
    ended = threading.Event()

    async def speak_later() -> None:
        await until(ended.is_set)
        current.log("too late")
        current.progress(0.5)

    @tb.handler(name="app:leave")
    async def leave() -> None:
        left.append(asyncio.create_task(speak_later()))

    async def speak(nodes: ManualNodes) -> int:
        ended.set()
        await left[0]
        return len(nodes._worker.log_writer._open)

    harness.use(tb)
    leave.enqueue()
    harness.drain()

    assert harness.call(speak) == 0
    assert harness.log(harness.last(leave)) == []
