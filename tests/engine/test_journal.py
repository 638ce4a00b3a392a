"""What handlers say is written once, whoever writes it."""

from __future__ import annotations

import asyncio

import pytest

from tests.engine.support import Heard
from tests.engine.test_executor import claim
from tests.factories import table
from timeball.current import RunContext
from timeball.engine.journal import Journal
from timeball.env import Env
from timeball.store.postgres import Store


@pytest.mark.parametrize("fresh_database", ["pg18"], indirect=True)
async def test_a_flush_beside_the_service_takes_nothing_away_that_is_not_written(
    store: Store, env: Env, heard: Heard
) -> None:
    """A worker that leaves flushes while its service may be in the middle of a batch."""
    journal = Journal(env, heard, store.rooms, store.history)
    claimed = claim()
    sink = journal.open_sink(RunContext(claimed, env.clock, journal.open_sink))
    sink.emit_log(env.clock.now(), "info", "hello")
    journal.close_sink(claimed)

    await asyncio.gather(journal.tick(), journal.flush())

    assert [row["message"] for row in await table(store, "log_line")] == ["hello"]
