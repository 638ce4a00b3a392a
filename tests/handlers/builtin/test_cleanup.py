from __future__ import annotations

from datetime import timedelta

import pytest

from tests.handlers.builtin.support import attempt_at, die, succeed
from timeball.clock import SystemClock
from timeball.handlers.box import Box
from timeball.handlers.cleanup import Cleanup, CleanupPayload
from timeball.handlers.registry import Registry
from timeball.handlers.typed import typed_handler
from timeball.settings import HandlerSettings

pytestmark = pytest.mark.parametrize("fresh_database", ["pg18"], indirect=True)


async def test_old_days_are_deleted_with_progress_and_young_ones_kept(store):
    today = (await store.history.moment()).date()
    for age in (40, 31, 30, 29):
        await store.history.add_day(today - timedelta(days=age))
    handler = typed_handler("system.cleanup", Cleanup(store.history), CleanupPayload)
    attempt = attempt_at(handler, {"older_than_days": 30})

    result = await succeed(handler, None, attempt)

    days = await store.history.days()
    assert result == {"days": 2, "executions": 0}
    assert [age for age in (40, 31, 30, 29) if today - timedelta(days=age) in days] == [30, 29]
    assert [fraction for fraction, _ in attempt.sink.progress] == [0, 0.5, 1]
    assert len(attempt.sink.lines) == 2


async def test_the_history_of_today_cannot_be_deleted(store):
    handler = typed_handler("system.cleanup", Cleanup(store.history), CleanupPayload)

    for days in (0, -1, None, "all"):
        await die(handler, {"older_than_days": days})


async def test_it_is_in_the_box_of_a_process_with_a_history(store, tmp_path):
    box = Box(HandlerSettings(), SystemClock(), tmp_path, store.history)

    assert "system.cleanup" in Registry(box.handlers)
