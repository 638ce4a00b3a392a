"""Every verb against a real API: blocking over a socket, and awaited."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from timeball import AsyncClient, Client, Conflict, InvalidInput, NotFound, ScheduleError


def test_the_life_of_jobs(running_api: str) -> None:
    with Client(running_api) as timeball:
        nightly = timeball.jobs.create("test.echo", "nightly", schedule="30 2 * * *", timezone="Europe/Berlin")
        assert (nightly.kind, nightly.status) == ("cron", "active")
        assert len(timeball.jobs.next("nightly", 3).next) == 3

        with pytest.raises(Conflict) as taken:
            timeball.jobs.create("test.echo", "nightly")
        assert taken.value.status == 409

        changed = timeball.jobs.update("nightly", nightly.version, priority=90, tags=["a"])
        assert (changed.priority, changed.tags) == (90, ["a"])
        with pytest.raises(Conflict) as stale:
            timeball.jobs.update("nightly", nightly.version, priority=10)
        assert stale.value.status == 412

        until = datetime.now(UTC) + timedelta(days=1)
        assert timeball.jobs.pause("nightly", until, "holiday").paused_until == until
        assert timeball.jobs.resume("nightly").status == "active"
        assert timeball.jobs.duplicate("nightly", name="nightly-2", queue="slow").queue == "slow"
        assert [job.name for job in timeball.jobs.iterate(limit=1, sort="name")] == ["nightly", "nightly-2"]
        assert timeball.jobs.list(search="2").data[0].name == "nightly-2"
        assert timeball.jobs.backfill("nightly", until - timedelta(days=4), until - timedelta(days=1)).count == 3
        assert b"nightly-2" in b"".join(timeball.jobs.export("jsonl"))

        timeball.jobs.delete("nightly-2")
        with pytest.raises(NotFound) as gone:
            timeball.jobs.get("nightly-2")
        assert gone.value.code == "not_found"


def test_bad_input_says_where(running_api: str) -> None:
    with Client(running_api) as timeball:
        with pytest.raises(ScheduleError, match="hour is 25") as cron:
            timeball.jobs.create("test.echo", "x", schedule="0 25 * * *")
        assert cron.value.errors[0]["pointer"] == "/schedule"
        assert cron.value.field == "schedule"

        with pytest.raises(InvalidInput) as bulk:
            timeball.jobs.create_many([{"handler": "h", "name": "a"}, {"handler": "h", "priorty": 1}])
        assert bulk.value.errors[0]["pointer"] == "/jobs/1/priorty"


async def test_the_life_of_executions(running_api: str) -> None:
    async with AsyncClient(running_api) as timeball:
        made = await timeball.jobs.create_many([{"handler": "test.echo", "payload": {"n": n}} for n in range(3)])
        assert made.created == 3
        one, two, three = [item.execution_id or "" for item in made.results]

        details = await timeball.executions.get(one)
        assert (details.state, details.payload) == ("queued", {"n": 0})
        assert (await timeball.executions.cancel(one, "not needed")).state == "cancelled"
        retried = await timeball.executions.retry(one)
        assert retried.retry_of == one
        assert (await timeball.executions.logs(one)).data == []

        would = await timeball.executions.bulk("cancel", ids=[two, three], dry_run=True)
        assert [item.status for item in would.results] == ["would_be_done"] * 2
        done = await timeball.executions.bulk("cancel", ids=[two, three], expected_count=2)
        assert done.done == 2

        ended = [run.id async for run in timeball.executions.iterate(status=["cancelled"], limit=2)]
        assert set(ended) == {one, two, three}
        assert (await timeball.dead_letters.list()).data == []
        assert await timeball.dead_letters.groups() == []
        assert (await timeball.dead_letters.retry(all_of_them=True)).done == 0


async def test_machinery(running_api: str) -> None:
    async with AsyncClient(running_api) as timeball:
        assert (await timeball.queues.pause("mail", "down")).is_paused
        assert not (await timeball.queues.resume("mail")).is_paused
        assert (await timeball.queues.limit("mail", 3)).max_running == 3
        assert (await timeball.queues.limit("mail", None)).max_running is None
        assert await timeball.workers.list() == await timeball.workers.schedulers() == []
        with pytest.raises(NotFound):
            await timeball.workers.drain("wrk_00000000000000000000000001")

        fire_times = await timeball.schedules.preview(schedule="30 2 * * *", after="2027-03-27T12:00", count=2)
        assert fire_times.next[0].at == datetime(2027, 3, 28, 2, 30, tzinfo=UTC)
        # No worker is alive, which the answer tells by its status too.
        assert (await timeball.system.health()).status in ("warn", "fail")
        assert (await timeball.system.stats(hours=1)).hours == 1
        actions = [record.action async for record in timeball.system.iterate_audit(limit=2)]
        assert actions.count("queue.limit") == 2


def test_help_tells_something() -> None:
    with Client("http://nowhere") as timeball:
        assert "Create a job" in (timeball.jobs.create.__doc__ or "")
        assert timeball.jobs.create.__name__ == "create"
