"""Log lines of handlers are written once, by the service or by the last flush."""

from __future__ import annotations

import asyncio

import pytest

from tests.engine.support import Heard
from tests.engine.worker.test_executor import claim
from tests.support.factories import table
from timeball.current import AttemptContext
from timeball.engine.worker.recorder import LogWriter
from timeball.env import Env
from timeball.store.store import Store


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
