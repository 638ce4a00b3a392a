from __future__ import annotations

import json
from datetime import timedelta

import pytest

from tests.handlers.builtin.support import attempt_at, die, succeed
from tests.support.factories import FAILURE, claim_all, enqueue, found, record
from timeball.config.settings import HandlerSettings
from timeball.domain.execution import ExecutionState, Failed
from timeball.domain.handler import PayloadMismatch
from timeball.env import SystemClock
from timeball.handlers.binding import typed_handler
from timeball.handlers.builtin.system import Cleanup, CleanupPayload
from timeball.handlers.catalogue import BuiltinHandlers
from timeball.handlers.registry import Registry
from timeball.store.verify.proof import verify

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


async def test_what_has_not_ended_cannot_be_deleted(store):
    handler = typed_handler("system.cleanup", Cleanup(store.history), CleanupPayload)

    for statuses in (["running"], ["pending"], ["nonsense"], [], "succeeded"):
        with pytest.raises(PayloadMismatch, match="statuses"):
            handler.binder.check(json.dumps({"older_than_days": 1, "statuses": statuses}))
    assert handler.binder.check('{"older_than_days": 1, "statuses": ["failed"]}').states == (ExecutionState.DEAD,)


async def test_only_what_ended_in_the_named_states_is_deleted(store, clock):
    day = clock.now().date()
    await store.history.add_day(day)
    kept, gone = await enqueue(store), await enqueue(store)
    claims = {claim.id: claim for claim in await claim_all(store)}
    await record(store, [found(claims[gone]), found(claims[kept], Failed(FAILURE, is_retryable=False))])
    clock.advance("40d")
    handler = typed_handler("system.cleanup", Cleanup(store.history), CleanupPayload)

    result = await succeed(handler, None, attempt_at(handler, {"older_than_days": 30, "statuses": ["completed"]}))

    assert result == {"days": 1, "executions": 1}
    assert await store.history.find(gone) is None
    assert (await store.history.find(kept)).state is ExecutionState.DEAD
    assert set(await store.jobs.find([gone, kept])) == {kept}
    assert day in await store.history.days()
    assert (await verify(store.database)).holds


async def test_it_is_in_the_box_of_a_process_with_a_history(store, tmp_path):
    box = BuiltinHandlers(HandlerSettings(), SystemClock(), tmp_path, store.history)

    assert "system.cleanup" in Registry(box.handlers)
