"""Commands on a real store, where their rules go beyond a single verb."""

from __future__ import annotations

from datetime import timedelta

from timeball.application.commands import Commands
from timeball.application.commands.requests import Actor
from timeball.domain.job_fields import JobSpec
from timeball.domain.values.ids import JobId
from timeball.store.store import Store


async def _every_minute(store: Store) -> tuple[Commands, JobId]:
    commands = Commands(store, store.env)
    created = await commands.jobs.create(JobSpec(handler="any", name="minutely", interval_seconds=60))
    return commands, created.job_id


async def test_cancelling_the_pending_occurrence_goes_on_with_the_next(store: Store) -> None:
    commands, job_id = await _every_minute(store)
    (pending,) = await store.history.of_job(job_id)

    reached = await commands.executions.cancel([pending.id], Actor("ana", "not today"))

    following, cancelled = await store.history.of_job(job_id)
    assert reached == {pending.id}
    assert (cancelled.id, cancelled.state) == (pending.id, "cancelled")
    assert following.scheduled_for == pending.scheduled_for + timedelta(minutes=1)


async def test_cancelling_again_does_not_reach_the_next_occurrence(store: Store) -> None:
    commands, job_id = await _every_minute(store)
    (pending,) = await store.history.of_job(job_id)
    await commands.executions.cancel([pending.id])

    reached = await commands.executions.cancel([pending.id])

    states = [execution.state for execution in await store.history.of_job(job_id)]
    assert reached == set()
    assert states == ["scheduled", "cancelled"]


async def test_an_occurrence_that_is_no_longer_pending_is_not_skipped_in_the_place_of_another(store: Store) -> None:
    commands, job_id = await _every_minute(store)
    (pending,) = await store.history.of_job(job_id)
    await commands.jobs.skip_next(job_id)

    was_skipped = await commands.executions._skip_if_pending(pending.id, Actor())

    assert not was_skipped
    assert [execution.state for execution in await store.history.of_job(job_id)] == ["scheduled", "cancelled"]
