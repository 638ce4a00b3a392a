"""Every method against a real API, synchronous and asynchronous."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import FreshDatabase
from tests.sdk.conftest import running_node
from timeball import AsyncClient, Client, Conflict, InvalidInput, NotFound, ScheduleError, Timeball
from timeball.client.types import BulkResult, CallParams, Operation
from timeball.config.settings import load_settings
from timeball.errors import ResultTimeout


def test_methods_of_jobs(running_api: str) -> None:
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
        # From noon to noon on days without a clock change: each has one night.
        noon = datetime(2026, 6, 1, 12, tzinfo=UTC)
        preview = timeball.jobs.preview_backfill("nightly", noon, noon + timedelta(days=3), by="present")
        assert (preview.would_run, preview.counts[0].reason) == (3, "not_scheduled")
        backfill = timeball.jobs.backfill("nightly", noon, noon + timedelta(days=3), by="present", order="desc")
        assert timeball.operations.pause(backfill.id).state == "paused"
        assert timeball.operations.resume(backfill.id).action == "backfill"
        assert b"nightly-2" in b"".join(timeball.jobs.export("jsonl"))

        timeball.jobs.delete("nightly-2")
        with pytest.raises(NotFound) as gone:
            timeball.jobs.get("nightly-2")
        assert gone.value.code == "not_found"


def test_methods_of_channels_and_alert_routes(running_api: str) -> None:
    with Client(running_api) as timeball:
        ops = timeball.channels.create("ops", "slack", {"url": {"$secret": "SLACK_URL"}}, description="all")
        assert (ops.secrets, ops.version) == (["SLACK_URL"], 1)
        changed = timeball.channels.update("ops", 1, settings={"url": {"$secret": "OTHER"}})
        assert timeball.channels.get("ops").settings == changed.settings == {"url": {"$secret": "OTHER"}}
        assert (
            [one.name for one in timeball.channels.iterate()]
            == ["ops"]
            == [one.name for one in timeball.channels.list().data]
        )
        with pytest.raises(InvalidInput, match="expected the name of a secret"):
            timeball.channels.create("b", "slack", {"url": "https://hooks.slack.com/x"})

        route = timeball.alert_routes.create("all", ["ops"], severity="critical", repeat_every_seconds=3600)
        assert (route.channels, route.severity) == (["ops"], "critical")
        assert timeball.alert_routes.update("all", 1, queues=["mail"]).queues == ["mail"]
        assert timeball.alert_routes.get("all") == timeball.alert_routes.list()[0]

        test = timeball.channels.test("ops")
        assert timeball.channels.delivery("ops", test.id) == test
        assert [one.id for one in timeball.channels.iterate_deliveries("ops")] == [test.id]
        assert timeball.channels.deliveries("ops").data[0].state == "waiting"
        with pytest.raises(ResultTimeout):  # no worker runs
            timeball.channels.wait_for_delivery("ops", test.id, timeout=0.05)

        timeball.alert_routes.delete("all")
        timeball.channels.delete("ops")
        with pytest.raises(NotFound):
            timeball.channels.get("ops")


def test_the_program_of_the_page_on_backfills_runs(running_api: str) -> None:
    names: dict[str, Any] = {}
    page = (Path(__file__).parents[2] / "docs/howto/backfill.md").read_text(encoding="utf-8")
    exec(page.partition("```python\n")[2].partition("```")[0], names)

    with Client(running_api) as timeball:
        timeball.jobs.create("test.echo", "nightly", schedule="0 3 * * *")

        assert names["fill_in"](timeball, datetime.now(UTC) - timedelta(days=7)) == "succeeded"


def test_invalid_input_points_to_the_field(running_api: str) -> None:
    with Client(running_api) as timeball:
        with pytest.raises(ScheduleError, match="hour is 25") as cron:
            timeball.jobs.create("test.echo", "x", schedule="0 25 * * *")
        assert cron.value.errors[0]["pointer"] == "/schedule"
        assert cron.value.field == "schedule"

        with pytest.raises(InvalidInput) as bulk:
            timeball.jobs.create_many([{"handler": "h", "name": "a"}, {"handler": "h", "priorty": 1}])
        assert bulk.value.errors[0]["pointer"] == "/jobs/1/priorty"


async def test_methods_of_executions(running_api: str) -> None:
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
        assert isinstance(would, BulkResult)
        assert [item.status for item in would.results] == ["would_be_done"] * 2
        done = await timeball.executions.bulk("cancel", ids=[two, three], expected_count=2)
        assert done.done == 2

        ended = [run.id async for run in timeball.executions.iterate(status=["cancelled"], limit=2)]
        assert set(ended) == {one, two, three}
        assert (await timeball.dead_letters.list()).data == []
        assert await timeball.dead_letters.groups() == []
        assert (await timeball.dead_letters.retry(all_of_them=True)).done == 0


def test_a_run_can_be_waited_for(running_api: str, fresh_database: FreshDatabase) -> None:
    settings = load_settings(database_url=fresh_database.dsn, migrate=False)
    with Client(running_api) as timeball:
        timeball.jobs.create("test.echo", "by-hand", payload={"n": 1})

        waiting = timeball.jobs.trigger("by-hand", wait="10ms")
        with running_node(Timeball(settings=settings), settings):
            first = timeball.jobs.trigger("by-hand", {"n": 2}, wait="60s")
            again = timeball.executions.retry(first.id, wait="60s")
            last = timeball.jobs.retry("by-hand", {"n": 3}, wait="60s")

        assert (waiting.state, waiting.result) == ("queued", None)
        assert [(run.state, run.payload["n"]) for run in (first, again, last)] == [
            ("succeeded", 2),
            ("succeeded", 2),
            ("succeeded", 3),
        ]
        assert again.retry_of == first.id
        with pytest.raises(InvalidInput, match="expected at most 60s"):
            timeball.jobs.trigger("by-hand", wait="61s")
        with pytest.raises(InvalidInput, match="expected a span like"):
            timeball.jobs.trigger("by-hand", wait="soon")


async def test_attempts_logs_and_explanation_of_an_execution(running_api: str) -> None:
    async with AsyncClient(running_api) as timeball:
        await timeball.jobs.create("app.crm:sync", "nightly", schedule="0 3 * * *")
        await timeball.jobs.update("nightly", priority=90)
        made = await timeball.jobs.create("app.crm:sync", payload={"n": 1})
        run = made.execution_id or ""

        assert [change.action async for change in timeball.jobs.iterate_revisions("nightly", limit=1)] == [
            "job.update",
            "job.create",
        ]
        assert (await timeball.jobs.explain("nightly")).stopped_by == "run_time"
        (due,) = (await timeball.jobs.next("nightly", 1)).next
        then = await timeball.jobs.explain("nightly", at=due.at)
        assert (then.at, then.verdict, then.stopped_by) == (due.at, "expected", "worker_for_queue")
        assert (await timeball.executions.explain(run)).headline.startswith("NOT STARTED: no worker is alive")
        assert await timeball.executions.attempts(run) == []
        assert [one.id for one in (await timeball.executions.list(q="payload.n:1", include="total")).data] == [run]
        assert (await timeball.jobs.list(q="name:night*", include="total")).total == 1
        with pytest.raises(ResultTimeout, match="it goes on"):
            await timeball.executions.wait(run, timeout=0.01)
        await timeball.executions.cancel(run)
        assert (await timeball.executions.wait(run)).state == "cancelled"


def test_methods_of_time(running_api: str) -> None:
    with Client(running_api) as timeball:
        timeball.jobs.create("app.crm:sync", "nightly", schedule="0 3 * * *", queue="crm")
        tomorrow = datetime.now(UTC) + timedelta(days=1)

        line = timeball.time.timeline(start=tomorrow, end=tomorrow + timedelta(days=2), queue="crm")
        assert [(row.label, len(row.marks)) for row in line.rows] == [("nightly", 2)]
        assert sum(hour.starts or 0 for day in timeball.time.forecast(days=3).days for hour in day.hours) in (2, 3)
        assert timeball.time.collisions(queue="crm") == []
        for file in (timeball.time.calendar(days=2, queue="crm"), timeball.jobs.calendar("nightly", days=2)):
            assert file.startswith(b"BEGIN:VCALENDAR\r\n")
            assert b"\r\nSUMMARY:nightly\r\n" in file
        assert timeball.schedules.suggest(queues=["crm"], at=tomorrow).sentence == "nothing collides there"
        timeball.jobs.update("nightly", reason="an experiment", priority=60)
        assert timeball.system.audit().data[0].reason == "an experiment"


def test_methods_of_the_system(running_api: str) -> None:
    with Client(running_api) as timeball:
        assert timeball.system.doctor().status == "fail"
        assert "schedulers" in {concern.code for concern in timeball.system.attention()}
        assert timeball.system.metrics().nodes.workers == 0
        assert timeball.system.series(hours=1, queue="mail").step_seconds == 60
        assert "test.echo" in {handler.name for handler in timeball.handlers.list().data}
        assert timeball.handlers.get("test.delay").example is not None


def test_a_large_bulk_is_an_operation_to_wait_for(running_api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timeball.api.resources.operations.MAX_INLINE", 2)
    with Client(running_api) as timeball:
        made = timeball.jobs.create_many([{"handler": "test.echo"} for _ in range(4)])
        ids = [item.execution_id or "" for item in made.results]

        few = timeball.executions.bulk("cancel", ids=ids[:1])
        begun = timeball.executions.bulk("cancel", ids=ids, reason="too many")
        assert isinstance(few, BulkResult)
        assert isinstance(begun, Operation)
        ended = timeball.operations.wait(begun.id, timeout=60)

        assert (ended.state, ended.done, ended.failed, ended.reason) == ("succeeded", 3, 1, "too many")
        assert [item.id for item in timeball.operations.iterate_items(begun.id, status="failed")] == ids[:1]
        assert [item.id for item in timeball.operations.items(begun.id, limit=2).data] == ids[:2]
        assert begun.id in [one.id for one in timeball.operations.iterate()]
        assert timeball.operations.get(begun.id) == ended
        with pytest.raises(Conflict):
            timeball.operations.cancel(begun.id)


async def test_methods_of_queues_workers_and_handlers(running_api: str) -> None:
    async with AsyncClient(running_api) as timeball:
        assert (await timeball.queues.pause("mail", "down")).is_paused
        assert not (await timeball.queues.resume("mail")).is_paused
        assert (await timeball.queues.limit("mail", 3)).max_running == 3
        assert (await timeball.queues.limit("mail", None)).max_running is None
        assert await timeball.workers.list() == await timeball.workers.schedulers() == []
        with pytest.raises(NotFound):
            await timeball.workers.drain("wrk_00000000000000000000000001")

        fire_times = await timeball.schedules.preview(schedule="30 2 * * *", since="2027-03-27T12:00", count=2)
        assert fire_times.next[0].at == datetime(2027, 3, 28, 2, 30, tzinfo=UTC)
        # No worker is alive, so the status of the response is 503.
        assert (await timeball.system.health()).status in ("warn", "fail")
        assert (await timeball.system.stats(hours=1)).hours == 1
        actions = [record.action async for record in timeball.system.iterate_audit(limit=2)]
        assert actions.count("queue.limit") == 2


def test_methods_have_docstrings() -> None:
    with Client("http://nowhere") as timeball:
        assert "Create a job" in (timeball.jobs.create.__doc__ or "")
        assert timeball.jobs.create.__name__ == "create"


def test_methods_of_groups(running_api: str) -> None:
    with Client(running_api) as timeball:
        join: CallParams = {"handler": "join", "payload": {"pages": {"$cause": "results"}}}
        created = timeball.groups.create(
            [{"handler": "read", "payload": {"page": page}} for page in range(3)], then=join
        )
        chain = timeball.groups.create(chain=[{"handler": "read"}, {"handler": "scan"}], meta={"tenant": "acme"})

        assert (created.state, created.total, len(created.warnings)) == ("open", 3, 2)
        assert [group.id for group in timeball.groups.iterate(limit=1, state="open")] == [chain.id, created.id]
        details = timeball.groups.get(created.id, limit=2)
        assert ([part.steps[0].handler for part in details.parts], details.has_more) == (["read", "read"], True)
        assert [
            part.number for part in timeball.groups.get(created.id, cursor=details.next_cursor, only_open=True).parts
        ] == [3]
        assert "waits for 3 of 3" in timeball.groups.explain(created.id).headline
        cancelled = timeball.groups.cancel(created.id, "not needed")
        assert (cancelled.state, cancelled.cancelled) == ("failed", 3)
        with pytest.raises(Conflict):
            timeball.groups.cancel(created.id)
        with pytest.raises(InvalidInput, match="empty"):
            timeball.groups.create([])


async def test_methods_of_groups_are_there_for_coroutines(running_api: str) -> None:
    async with AsyncClient(running_api) as timeball:
        created = await timeball.groups.create([{"handler": "read"}])

        assert [group.id async for group in timeball.groups.iterate()] == [created.id]
        assert (await timeball.groups.get(created.id)).waits_for == 1


def test_the_program_of_the_page_on_what_follows_begins_a_group(
    running_api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: dict[str, Any] = {}
    section = (Path(__file__).parents[2] / "docs/howto/what-follows.md").read_text(encoding="utf-8")
    exec(section.partition("## Groups over HTTP")[2].partition("```python\n")[2].partition("```")[0], names)
    monkeypatch.setenv("TIMEBALL_URL", running_api)

    assert names["read_book"](20).startswith("OPEN: waits for 20 of 20: pages.read (exe_")


async def test_methods_of_webhooks(running_api: str) -> None:
    async with AsyncClient(running_api) as timeball:
        created = await timeball.webhooks.create("https://example.com/hook", ["execution.dead"], queue="mail")
        assert created.secret.startswith("whsec_")
        assert (await timeball.webhooks.update(created.id, created.version, events=["execution.*"])).events == [
            "execution.*"
        ]
        with pytest.raises(Conflict):
            await timeball.webhooks.update(created.id, created.version, events=[])
        rotated = await timeball.webhooks.rotate(created.id, "1h")
        assert rotated.rotation_until is not None

        delivery = await timeball.webhooks.test(created.id)
        assert (await timeball.webhooks.delivery(delivery.id)).body["type"] == "webhook.test"
        assert [one.id async for one in timeball.webhooks.iterate_deliveries(created.id, limit=1)] == [delivery.id]
        assert (await timeball.webhooks.deliveries(created.id, state="failed")).data == []
        assert (await timeball.webhooks.redeliver(delivery.id)).message_id == delivery.message_id

        await timeball.webhooks.delete(created.id)
        assert await timeball.webhooks.list() == []
