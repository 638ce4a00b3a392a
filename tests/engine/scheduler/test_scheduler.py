"""Promoting: in time, at most a window ahead, everything recorded once, whatever was missed, changed or run twice meanwhile."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.engine.support import (
    MORTAL,
    Hands,
    ManualScheduler,
    check_ledger,
    check_promises,
    create,
    ranges,
    settle,
    start_scheduler,
    start_worker,
    states,
)
from tests.support.factories import (
    FAILURE,
    due_row,
    due_rows,
    enqueue,
    found,
    only_row,
    record,
    seconds,
    table,
    tables_of,
)
from tests.support.pace import patience
from timeball.application.commands import Commands
from timeball.config.settings import SchedulerSettings
from timeball.domain.execution import CancelOutcome, DueKind, Failed, Snoozed
from timeball.domain.freeze import Afterwards, FreezeScope
from timeball.domain.job import Job
from timeball.domain.scheduling.civil_time import tzdata_version
from timeball.domain.scheduling.cron import resolve_hash
from timeball.domain.values.ids import JobId, occurrence_id
from timeball.domain.wakeup import Wakeup
from timeball.engine.node import AT_ONCE
from timeball.engine.scheduler.scheduler import Scheduler
from timeball.env import Env
from timeball.errors import StoreUnavailable
from timeball.store.store import Store
from timeball.store.types import PARKED_AT
from timeball.telemetry.events import ExecutionsPromoted, OccurrencesRecorded, OccurrencesSkipped
from timeball.testing import VirtualClock
from timeball.testing.environment import START

WINDOW = seconds(0.5)


@pytest.fixture
def commands(store: Store, env: Env) -> Commands:
    return Commands(store, env)


@pytest.fixture
async def node(store: Store) -> ManualScheduler:
    """A scheduler that owns everything."""
    return await start_scheduler(store)


@pytest.fixture
async def worker(store: Store) -> Hands:
    return await start_worker(store)


def instants(*numbers: float) -> list[datetime]:
    return [START + seconds(number) for number in numbers]


# in time


async def test_an_occurrence_is_promoted_a_window_ahead_and_not_earlier(
    store: Store, clock: VirtualClock, node: ManualScheduler
) -> None:
    job = await create(store, interval_seconds=60)

    await node.run_until(START + seconds(60) - WINDOW - timedelta(microseconds=1))
    assert await states(store, job.id) == {START + seconds(60): "due"}

    await node.run_until(START + seconds(60) - WINDOW)
    assert await states(store, job.id) == {START + seconds(60): "ready", START + seconds(120): "due"}


async def test_lost_wakeups_are_made_up_for_at_once(store: Store, node: ManualScheduler) -> None:
    await node.tick()
    await create(store, interval_seconds=1)
    await node.tick()
    assert node.scheduler._due_heap.first is None, "between two polls only announced rows are read"
    node.scheduler._woken.clear()

    node.scheduler.on_wakeup(Wakeup(look_everywhere=True))
    assert node.scheduler._woken.is_set()
    await node.tick()

    assert node.scheduler._due_heap.first is not None


async def test_a_wakeup_wakes_and_of_two_the_earlier_instant_counts(clock: VirtualClock, node: ManualScheduler) -> None:
    await node.tick()
    for after in (1, 2):
        node.scheduler._woken.clear()
        wakeup = Wakeup()
        wakeup.add_shard(3, clock.now() + seconds(after))
        node.scheduler.on_wakeup(wakeup)
        assert node.scheduler._woken.is_set()

    assert node.scheduler._bounds == {3: clock.now() + seconds(1)}


async def test_a_window_wider_than_the_look_ahead_is_read_in_time(store: Store) -> None:
    node = await start_scheduler(store, promotion_window_ms=5_000, look_ahead_seconds=2)
    job = await create(store, interval_seconds=60)

    await node.run_until(START + seconds(55))

    assert await states(store, job.id) == dict(zip(instants(60, 120), ["ready", "due"], strict=True))


async def test_the_following_occurrence_takes_its_place_with_all_it_must_know(
    store: Store, node: ManualScheduler
) -> None:
    job = await create(store, interval_seconds=60, max_executions=5, queue="mail", priority=7, unique_key="k")

    await node.run_until(START + seconds(60))

    row = await due_row(store, job.id)
    assert row.id == occurrence_id(job.id, START + seconds(120))
    assert (row.kind, row.scheduled_for, row.run_at) == (DueKind.OCCURRENCE, *instants(120, 120))
    assert (row.watermark, row.executions_left, row.version) == (START + seconds(60), 4, 1)
    assert (row.queue, row.priority, row.tzdata) == ("mail", 7, tzdata_version())


async def test_an_interval_is_kept_to_the_microsecond_for_hours(
    store: Store, clock: VirtualClock, node: ManualScheduler, worker: Hands
) -> None:
    clock.advance("1ms")
    clock.advance(timedelta(microseconds=7))
    job = await create(store, interval_seconds=600)

    await node.run_for(3 * 3600, worker.work)

    assert list(await states(store, job.id)) == [clock.now() + seconds(600 * number) for number in range(-17, 2)]
    await check_ledger(store, job, clock.now())


async def test_a_cron_job_fires_on_the_clock_of_its_zone(
    store: Store, clock: VirtualClock, node: ManualScheduler, worker: Hands
) -> None:
    # Berlin, on the night when the clock goes from 02:00 to 03:00.
    clock.advance_to(datetime.fromisoformat("2026-03-28T20:00:00Z"))
    job = await create(store, schedule="30 2 * * *", timezone="Europe/Berlin")

    await node.run_until(datetime.fromisoformat("2026-03-30T00:30:00Z"), worker.work)

    assert [at.isoformat() for at, state in (await states(store, job.id)).items() if state == "succeeded"] == [
        "2026-03-29T01:00:00+00:00",
        "2026-03-30T00:30:00+00:00",
    ]
    await check_ledger(store, job, clock.now())


async def test_h_fires_at_the_minute_that_the_name_decides(
    store: Store, clock: VirtualClock, node: ManualScheduler, worker: Hands
) -> None:
    job = await create(store, name="nightly", schedule="H/30 * * * *")
    minute = int(resolve_hash("H/30 * * * *", "nightly").partition("-")[0])

    await node.run_for(2 * 3600, worker.work)

    assert {at.minute for at in await states(store, job.id)} == {minute, minute + 30}
    await check_ledger(store, job, clock.now())


async def test_a_named_one_off_is_promoted_once(
    store: Store, clock: VirtualClock, node: ManualScheduler, worker: Hands
) -> None:
    job = await create(store, scheduled_at=START + seconds(30))

    await node.run_for(120, worker.work)

    assert await states(store, job.id) == {START + seconds(30): "succeeded"}
    assert await table(store, "due") == []
    await check_promises(store)


async def test_a_delayed_enqueue_is_promoted_under_its_own_id(store: Store, node: ManualScheduler) -> None:
    execution_id = await enqueue(store, after=30)

    await node.run_for(29)
    assert await tables_of(store, execution_id) == ["due"]

    await node.run_for(1)
    assert await tables_of(store, execution_id) == ["ready"]


async def test_jitter_delays_each_run_by_the_same_span_and_leaves_the_instants_alone(
    store: Store, clock: VirtualClock, node: ManualScheduler, worker: Hands
) -> None:
    job = await create(store, interval_seconds=60, jitter_seconds=50)
    claims = []

    async def work() -> None:
        claims.extend(await worker.work())

    await node.run_for(300, work)

    assert seconds(0.5) < job.jitter < seconds(50)
    assert [claimed.scheduled_for for claimed in claims] == instants(60, 120, 180, 240)
    assert {claimed.run_at - claimed.scheduled_for for claimed in claims} == {job.jitter}
    await check_ledger(store, job, clock.now() - seconds(60))


async def test_what_lies_behind_a_full_page_is_read_as_well(store: Store, clock: VirtualClock) -> None:
    node = await start_scheduler(store, page=2)
    jobs = [await create(store, interval_seconds=60) for _ in range(150)]
    clock.advance("60s")

    await node.tick()

    ready = {row["job_id"] for row in await table(store, "ready")}
    assert ready == {job.id for job in jobs}


async def test_a_batch_is_no_larger_than_it_may_be(store: Store, clock: VirtualClock) -> None:
    node = await start_scheduler(store, batch=4)
    for _ in range(10):
        await create(store, interval_seconds=60)
    clock.advance("60s")

    rests = [await node.scheduler.tick() for _ in range(3)]

    assert rests == [AT_ONCE] * 3
    assert [event.runs for event in node.heard.of(ExecutionsPromoted)] == [4, 4, 2]


async def test_a_scheduler_promotes_only_what_is_its_own(store: Store, clock: VirtualClock) -> None:
    one, other = await start_scheduler(store), await start_scheduler(store)
    for node in (one, other, one, other):
        await node.shards.tick()
    for _ in range(40):
        await create(store, interval_seconds=60)
    clock.advance("60s")

    await one.tick()

    shards = {(await due_row(store, row["job_id"])).shard for row in await table(store, "ready")}
    assert shards <= one.shards.epochs.keys()
    await other.tick()
    assert len(await table(store, "ready")) == 40


# wake-ups


async def test_a_wakeup_makes_the_scheduler_read_at_once(
    store: Store, clock: VirtualClock, node: ManualScheduler
) -> None:
    await node.tick()
    job = await create(store, interval_seconds=1)
    clock.advance("600ms")
    await node.tick()
    assert await states(store, job.id) == {START + seconds(1): "due"}

    node.scheduler.on_wakeup(Wakeup(shards={job.shard: START + seconds(1)}))
    await node.tick()

    assert (await states(store, job.id))[START + seconds(1)] == "ready"


async def test_without_a_wakeup_it_is_found_within_a_second(
    store: Store, clock: VirtualClock, node: ManualScheduler
) -> None:
    await node.tick()
    job = await create(store, interval_seconds=1)

    await node.run_for(1)

    assert (await states(store, job.id))[START + seconds(1)] == "ready"


async def test_wakeups_about_foreign_shards_and_the_distant_future_cost_nothing(
    store: Store, env: Env, node: ManualScheduler
) -> None:
    await node.tick()
    del node.shards.epochs[5]
    asked: list[str] = []
    env.fault = asked.append

    node.scheduler.on_wakeup(Wakeup(shards={5: START, 6: START + seconds(60)}))
    await node.tick()

    assert asked == []


# after a silence


async def silent_for(store: Store, span: timedelta, **fields: Any) -> tuple[Job, ManualScheduler]:
    """A job that every minute was left alone for a while, and the scheduler that comes then."""
    clock = store.env.clock
    assert isinstance(clock, VirtualClock)
    job = await create(store, **{"interval_seconds": 60} | fields)
    clock.advance(span)
    return job, await start_scheduler(store)


async def test_latest_runs_the_newest_and_records_the_others(store: Store, clock: VirtualClock, worker: Hands) -> None:
    """Fault 24."""
    job, node = await silent_for(store, seconds(605))

    await node.tick()

    assert await states(store, job.id) == {START + seconds(600): "ready", START + seconds(660): "due"}
    assert await ranges(store, job.id) == [(START + seconds(60), START + seconds(540), 9, "misfire")]
    assert node.heard.of(OccurrencesSkipped) == [OccurrencesSkipped(job.id, 9, "misfire")]
    await check_ledger(store, job, clock.now())


async def test_an_occurrence_that_has_expired_is_one_record(store: Store, clock: VirtualClock) -> None:
    job, node = await silent_for(store, seconds(65), start_within_seconds=5)

    await node.tick()

    assert await states(store, job.id) == {START + seconds(60): "skipped: expired", START + seconds(120): "due"}
    assert node.heard.of(OccurrencesSkipped) == [OccurrencesSkipped(job.id, 1, "expired")]
    await node.run_for(55)
    assert (await states(store, job.id))[START + seconds(120)] == "ready"
    await check_ledger(store, job, clock.now())


async def test_what_follows_an_occurrence_expires_by_its_own_time(store: Store, clock: VirtualClock) -> None:
    """The scheduler holds the next occurrence without reading it."""
    job = await create(store, interval_seconds=60, start_within_seconds=5)
    node = await start_scheduler(store)
    await node.run_for(60)
    clock.advance("65s")

    await node.tick()

    assert (await states(store, job.id))[START + seconds(120)] == "skipped: expired"
    await check_ledger(store, job, clock.now())


async def test_one_missed_occurrence_is_a_skipped_execution(store: Store, clock: VirtualClock) -> None:
    job, node = await silent_for(store, seconds(125))

    await node.tick()

    assert await states(store, job.id) == {
        START + seconds(60): "skipped: misfire",
        START + seconds(120): "ready",
        START + seconds(180): "due",
    }
    assert await ranges(store, job.id) == []
    await check_ledger(store, job, clock.now())


async def test_within_the_grace_nothing_is_missed(store: Store, clock: VirtualClock) -> None:
    job, node = await silent_for(store, seconds(90), misfire="skip")

    await node.tick()

    assert await states(store, job.id) == {START + seconds(60): "ready", START + seconds(120): "due"}


async def test_skip_runs_nothing_that_is_stale(store: Store, clock: VirtualClock) -> None:
    job, node = await silent_for(store, seconds(650), misfire="skip")

    await node.tick()

    assert await states(store, job.id) == {START + seconds(660): "due"}
    assert await ranges(store, job.id) == [(START + seconds(60), START + seconds(600), 10, "misfire")]
    await check_ledger(store, job, clock.now())


async def test_all_catches_up_to_its_cap_ten_a_second(store: Store, clock: VirtualClock) -> None:
    job, node = await silent_for(store, seconds(650), misfire="all", misfire_cap=4, overlap="allow")

    await node.tick()

    ready = sorted((row["run_at"], row["scheduled_for"]) for row in await table(store, "ready"))
    assert [at for _, at in ready] == instants(420, 480, 540, 600)
    assert [run_at for run_at, _ in ready] == [START + seconds(420), *instants(650.1, 650.2, 650.3)]
    assert await ranges(store, job.id) == [(START + seconds(60), START + seconds(360), 6, "capped")]
    await check_ledger(store, job, clock.now())


async def test_what_catches_up_later_waits_for_its_turn(store: Store, clock: VirtualClock) -> None:
    job, node = await silent_for(store, seconds(650), misfire="all", overlap="allow")

    await node.tick()
    assert Counter((await states(store, job.id)).values()) == {"ready": 6, "due": 5}

    await node.run_for(0.4)
    assert Counter((await states(store, job.id)).values()) == {"ready": 10, "due": 1}
    await check_ledger(store, job, clock.now())


async def test_what_is_too_old_is_not_caught_up(store: Store, clock: VirtualClock) -> None:
    job, node = await silent_for(store, seconds(650), misfire="all", misfire_max_age_seconds=200, overlap="allow")

    await node.tick()

    assert list(await states(store, job.id)) == instants(480, 540, 600, 660)
    assert await ranges(store, job.id) == [(START + seconds(60), START + seconds(420), 7, "too_old")]
    await check_ledger(store, job, clock.now())


async def test_ten_years_of_silence_cost_no_more_than_ten_minutes(store: Store, env: Env, clock: VirtualClock) -> None:
    """Fault 24."""
    job, node = await silent_for(store, timedelta(days=3653), interval_seconds=1, misfire_grace_seconds=0)
    statements: list[str] = []
    env.fault = statements.append

    await node.tick()

    written = len([name for name in statements if name.endswith(".before")])
    assert written < 20
    assert list((await states(store, job.id)).values()) == ["ready", "due"]
    ((first, _, number, reason),) = await ranges(store, job.id)
    assert (first, number, reason) == (START + seconds(1), 3653 * 86_400 - 1, "misfire")


async def test_ten_years_of_a_cron_job_are_counted_too(store: Store, clock: VirtualClock) -> None:
    job, node = await silent_for(
        store, timedelta(days=3653), interval_seconds=None, schedule="*/5 * * * *", timezone="America/New_York"
    )

    await node.tick()

    await check_promises(store)
    ((_, _, number, _),) = await ranges(store, job.id)
    assert number > 3650 * 288


async def test_a_recurrence_rule_is_kept_through_downtime_and_edits(
    store: Store, clock: VirtualClock, commands: Commands, node: ManualScheduler, worker: Hands
) -> None:
    rule = "RRULE:FREQ=MINUTELY;INTERVAL=7;BYDAY=MO,TU"
    job = await create(store, schedule=rule, timezone="Europe/Berlin", misfire="skip")
    await node.run_for(1_000, worker.work)
    clock.advance(timedelta(days=9))
    await node.run_for(1_000, worker.work)
    ((first, last, number, reason),) = await ranges(store, job.id)
    assert (number, reason) == (job.rule.count_between(first - timedelta(microseconds=1), last), "misfire")

    await commands.jobs.update(job.id, {"schedule": "RRULE:FREQ=HOURLY;BYMINUTE=3,33"})
    await node.run_for(4_000, worker.work)

    assert list((await states(store, job.id)).values()).count("succeeded") >= 4
    await check_promises(store)


# overlap


async def test_overlap_is_judged_at_the_instant_itself(
    store: Store, clock: VirtualClock, node: ManualScheduler, worker: Hands
) -> None:
    job = await create(store, interval_seconds=60)
    await node.run_for(60)
    running = await worker.claim()

    await node.run_until(START + seconds(119.9))
    assert (await states(store, job.id))[START + seconds(120)] == "due", "nothing is decided before the instant"
    await worker.succeed(running)
    await node.run_until(START + seconds(120))

    assert (await states(store, job.id))[START + seconds(120)] == "ready"


async def test_a_job_that_still_runs_at_the_instant_is_skipped(
    store: Store, clock: VirtualClock, node: ManualScheduler, worker: Hands
) -> None:
    job = await create(store, interval_seconds=60, max_executions=3)
    await node.run_for(60)
    running = await worker.claim()

    await node.run_until(START + seconds(120))

    assert (await states(store, job.id))[START + seconds(120)] == "skipped: overlap"
    assert (await due_row(store, job.id)).executions_left == 2
    await worker.succeed(running)
    await node.run_for(60, worker.work)
    assert (await states(store, job.id))[START + seconds(180)] == "succeeded"
    await check_ledger(store, job, clock.now())


async def test_a_waiting_retry_is_an_overlap_too(
    store: Store, clock: VirtualClock, node: ManualScheduler, worker: Hands
) -> None:
    job = await create(store, interval_seconds=60, initial_backoff_ms=600_000)
    await node.run_for(60)
    (claimed,) = await worker.claim()
    await record(store, [found(claimed, Failed(FAILURE))])

    await node.run_until(START + seconds(120))

    assert (await states(store, job.id))[START + seconds(120)] == "skipped: overlap"


async def test_queued_occurrences_wait_until_the_one_before_has_ended(
    store: Store, clock: VirtualClock, node: ManualScheduler, worker: Hands
) -> None:
    job = await create(store, interval_seconds=60, overlap="queue")
    await node.run_for(60)
    first = await worker.claim()

    await node.run_for(120)
    assert list((await states(store, job.id)).values()) == ["running", "blocked", "blocked", "due"]
    assert await worker.claim() == []

    await worker.succeed(first)
    second = await worker.claim()
    assert [claimed.scheduled_for for claimed in second] == instants(120)
    await worker.succeed(second)
    await worker.succeed(await worker.claim())
    assert list((await states(store, job.id)).values()) == ["succeeded", "succeeded", "succeeded", "due"]
    await check_ledger(store, job, clock.now())


async def test_a_newer_occurrence_asks_the_running_one_to_stop(
    store: Store, clock: VirtualClock, node: ManualScheduler, worker: Hands
) -> None:
    job = await create(store, interval_seconds=60, overlap="cancel_running")
    await node.run_for(60)
    (running,) = await worker.claim()

    await node.run_until(START + seconds(119.9))
    assert await store.executions.stops(worker.incarnation) == {}
    await node.run_until(START + seconds(120))

    assert await store.executions.stops(worker.incarnation) == {running.id: "superseded by the next occurrence"}
    assert await worker.claim() == [], "the new one waits until the old one has stopped"
    await record(store, [found(running, CancelOutcome("superseded by the next occurrence"))])
    assert [claimed.scheduled_for for claimed in await worker.claim()] == instants(120)
    await check_ledger(store, job, clock.now())


async def test_while_an_execution_is_unfinished_only_the_newest_occurrence_waits(
    store: Store, clock: VirtualClock, node: ManualScheduler, worker: Hands
) -> None:
    job = await create(store, interval_seconds=60, overlap="latest")
    await node.run_for(60)
    first = await worker.claim()

    await node.run_for(180)
    assert list((await states(store, job.id)).values()) == [
        "running",
        "skipped: overlap",
        "skipped: overlap",
        "blocked",
        "due",
    ]
    await check_promises(store)

    await worker.succeed(first)
    newest = await worker.claim()
    assert [claimed.scheduled_for for claimed in newest] == instants(240)
    await worker.succeed(newest)
    await node.run_for(60, worker.work)
    assert (await states(store, job.id))[START + seconds(300)] == "succeeded"
    await check_ledger(store, job, clock.now())
    await check_promises(store)


async def test_an_occurrence_that_was_replaced_has_used_up_an_execution(
    store: Store, node: ManualScheduler, worker: Hands
) -> None:
    job = await create(store, interval_seconds=60, overlap="latest", max_executions=3)
    await node.run_for(60)
    first = await worker.claim()

    await node.run_for(180)
    await worker.succeed(first)
    await node.run_for(60, worker.work)

    assert list((await states(store, job.id)).values()) == ["succeeded", "skipped: overlap", "succeeded"]
    await check_promises(store)


async def test_a_retry_is_not_replaced_by_a_newer_occurrence(
    store: Store, node: ManualScheduler, worker: Hands
) -> None:
    """What has begun is finished: a newer occurrence replaces only what no worker has claimed."""
    job = await create(store, interval_seconds=60, overlap="latest", initial_backoff_ms=240_000, max_backoff_ms=240_000)
    await node.run_for(60)
    (first,) = await worker.claim()
    await record(store, [found(first, Failed(FAILURE))])
    await node.run_until(START + seconds(125))
    await worker.claim()

    await node.run_until(START + seconds(310))

    assert list((await states(store, job.id)).values()) == [
        "blocked",
        "running",
        "skipped: overlap",
        "skipped: overlap",
        "blocked",
        "due",
    ]
    await check_promises(store)


async def test_after_a_freeze_only_the_newest_of_what_waited_and_what_came_waits(
    store: Store, clock: VirtualClock, commands: Commands, node: ManualScheduler, worker: Hands
) -> None:
    """The occurrence that the freeze took from the queue falls due at the same moment as the one that it kept from being promoted."""
    job = await create(store, interval_seconds=60, overlap="latest")
    await node.run_for(60)
    until = START + seconds(150)
    await commands.freezes.add(FreezeScope.JOB, None, job.id, until=until, afterwards=Afterwards.LATEST)
    assert await worker.claim() == [], "the freeze has put the first one back"
    await commands.executions.trigger(job.id)

    await node.run_until(START + seconds(140))
    clock.advance_to(until)
    await node.run_for(1)

    assert await states(store, job.id) == dict(
        zip(instants(60, 120, 180), ["skipped: overlap", "blocked", "due"], strict=True)
    )
    await check_promises(store)


async def test_where_overlap_is_allowed_all_run(store: Store, node: ManualScheduler, worker: Hands) -> None:
    job = await create(store, interval_seconds=60, overlap="allow")
    await node.run_for(60)
    await worker.claim()

    await node.run_for(59.5)

    assert list((await states(store, job.id)).values()) == ["running", "ready", "due"]


async def test_what_catches_up_does_not_overlap_with_itself(store: Store, clock: VirtualClock, worker: Hands) -> None:
    """A scheduler that finds several of a job in its window does not promote them all because none of them runs yet."""
    job, node = await silent_for(store, seconds(650), misfire="all", misfire_cap=5, overlap="skip")
    await node.tick()
    await worker.work()

    await twin_of(node).tick()

    assert Counter((await states(store, job.id)).values()) == {"succeeded": 1, "ready": 1, "due": 4}


# limits of a job


async def test_a_job_ends_when_it_has_run_its_times(
    store: Store, clock: VirtualClock, node: ManualScheduler, worker: Hands
) -> None:
    job = await create(store, interval_seconds=60, max_executions=3)

    await node.run_for(600, worker.work)

    assert await states(store, job.id) == dict.fromkeys(instants(60, 120, 180), "succeeded")
    await check_promises(store)


async def test_a_job_ends_at_its_end_which_is_included(store: Store, node: ManualScheduler, worker: Hands) -> None:
    job = await create(store, interval_seconds=60, ends_at=START + seconds(180))

    await node.run_for(600, worker.work)

    assert await states(store, job.id) == dict.fromkeys(instants(60, 120, 180), "succeeded")
    await check_promises(store)


async def test_a_key_that_is_alive_lets_nothing_else_in(
    store: Store, clock: VirtualClock, node: ManualScheduler, worker: Hands
) -> None:
    job = await create(store, interval_seconds=60, unique_key="one", overlap="allow")
    await node.run_for(60)
    running = await worker.claim()

    await node.run_for(60)
    assert (await states(store, job.id))[START + seconds(120)] == "skipped: unique_key"

    await worker.succeed(running)
    await node.run_for(60, worker.work)
    assert (await states(store, job.id))[START + seconds(180)] == "succeeded"
    await check_ledger(store, job, clock.now())


# pauses


async def test_the_scheduler_resumes_a_job_when_its_pause_is_over(
    store: Store, clock: VirtualClock, node: ManualScheduler, worker: Hands, commands: Commands
) -> None:
    job = await create(store, interval_seconds=60)
    await node.run_for(90, worker.work)

    await commands.jobs.pause(job.id, START + seconds(330))
    await node.run_until(START + seconds(329.9), worker.work)
    assert (await store.jobs.find([job.id]))[job.id].is_paused, "not a moment early"
    await node.run_until(START + seconds(420), worker.work)

    assert not (await store.jobs.find([job.id]))[job.id].is_paused
    assert await ranges(store, job.id) == [(START + seconds(120), START + seconds(300), 4, "paused")]
    assert [at for at, state in (await states(store, job.id)).items() if state == "succeeded"] == instants(60, 360, 420)
    await check_ledger(store, job, clock.now())


@pytest.mark.parametrize("longer", [START + seconds(3600), None])
async def test_a_pause_that_was_made_longer_is_not_ended_by_what_was_read_before(
    store: Store, clock: VirtualClock, node: ManualScheduler, commands: Commands, longer: datetime | None
) -> None:
    job = await create(store, interval_seconds=60)
    await commands.jobs.pause(job.id, START + seconds(2))
    await node.tick()

    await commands.jobs.pause(job.id, longer)
    await node.run_for(10)

    assert (await store.jobs.find([job.id]))[job.id].paused_until == longer
    assert (await store.jobs.find([job.id]))[job.id].is_paused
    resumed = [row for row in await table(store, "audit") if row["action"] == "job.resume"]
    assert resumed == []


async def test_a_job_paused_after_it_was_read_is_not_promoted(
    store: Store, clock: VirtualClock, node: ManualScheduler, commands: Commands
) -> None:
    job = await create(store, interval_seconds=60)
    await node.run_for(58)

    await commands.jobs.pause(job.id)
    await node.run_for(30)

    assert await states(store, job.id) == {}
    await check_promises(store)


async def failed_and_paused(
    store: Store, node: ManualScheduler, worker: Hands, commands: Commands, *, pauses_first: bool
) -> JobId:
    """A job with a retry that is due in a second or so, paused before or after the attempt failed."""
    job = await create(store, interval_seconds=60, initial_backoff_ms=2_000, max_backoff_ms=2_000)
    await node.run_for(60)
    (claimed,) = await worker.claim()
    if pauses_first:
        await commands.jobs.pause(job.id)
    await record(store, [found(claimed, Failed(FAILURE), finished_at=claimed.run_at)], chance=0.999)
    if not pauses_first:
        await commands.jobs.pause(job.id)
    return job.id


@pytest.mark.parametrize("pauses_first", [True, False])
async def test_the_retries_of_a_paused_job_wait_until_it_is_resumed(
    store: Store, clock: VirtualClock, node: ManualScheduler, worker: Hands, commands: Commands, pauses_first: bool
) -> None:
    job_id = await failed_and_paused(store, node, worker, commands, pauses_first=pauses_first)

    await node.run_for(30)
    assert (await states(store, job_id))[START + seconds(60)] == "due"

    await commands.jobs.resume(job_id)
    await node.run_for(1)
    assert (await states(store, job_id))[START + seconds(60)] == "ready"


async def test_a_retry_that_was_read_during_a_pause_is_not_parked_after_it(
    store: Store, clock: VirtualClock, node: ManualScheduler, worker: Hands, commands: Commands
) -> None:
    """Else it would wait for a resumption that has been already: for ever."""
    job_id = await failed_and_paused(store, node, worker, commands, pauses_first=True)
    clock.advance("1s")
    await node.tick()

    await commands.jobs.resume(job_id)
    clock.advance("600ms")
    await node.tick()

    assert (await states(store, job_id))[START + seconds(60)] == "ready", "at once, and not with the next poll"
    assert PARKED_AT not in {row["run_at"] for row in await table(store, "due")}


@pytest.mark.parametrize("pauses_first", [True, False])
async def test_a_snoozed_execution_of_a_paused_job_waits_as_well(
    store: Store, node: ManualScheduler, worker: Hands, commands: Commands, pauses_first: bool
) -> None:
    job = await create(store, interval_seconds=60)
    await node.run_for(60)
    (claimed,) = await worker.claim()
    if pauses_first:
        await commands.jobs.pause(job.id)
    await record(store, [found(claimed, Snoozed(seconds(2)), finished_at=claimed.run_at)])
    if not pauses_first:
        await commands.jobs.pause(job.id)

    await node.run_for(30)
    assert (await states(store, job.id))[START + seconds(60)] == "due"

    await commands.jobs.resume(job.id)
    await node.run_for(1)
    assert (await states(store, job.id))[START + seconds(60)] == "ready"


# edits between reading and writing


async def test_an_edit_after_the_reading_wins(
    store: Store, clock: VirtualClock, node: ManualScheduler, worker: Hands, commands: Commands
) -> None:
    job = await create(store, interval_seconds=60)
    await node.run_for(58)

    await commands.jobs.update(job.id, {"interval_seconds": 45})
    await node.run_until(START + seconds(150), worker.work)

    ran = {row["scheduled_for"]: row["version"] for row in await table(store, "finished")}
    # Counted from the anchor of the job, its first occurrence.
    assert ran == {START + seconds(60): 2, START + seconds(105): 2, START + seconds(150): 2}
    await check_promises(store)


async def test_an_edit_between_the_reading_of_the_row_and_of_the_definition(
    store: Store, env: Env, clock: VirtualClock, node: ManualScheduler, worker: Hands, commands: Commands
) -> None:
    """The definition in memory is of another version than the row: neither is used, the new row is read."""
    job = await create(store, interval_seconds=60)
    await node.run_for(57.5)
    await commands.jobs.update(job.id, {"queue": "mail"})
    newer = (await store.jobs.timetables([job.id]))[job.id]
    node.scheduler._timetables[job.id] = newer

    await node.run_for(3)

    (row,) = await table(store, "ready")
    assert (row["version"], row["queue"]) == (2, "mail")
    await check_promises(store)


async def test_a_row_whose_definition_has_changed_is_read_again_at_once(
    store: Store, clock: VirtualClock, node: ManualScheduler, commands: Commands
) -> None:
    """The definition that is read at the last moment is newer than the row: its own occurrence must not wait for the next poll."""
    job = await create(store, interval_seconds=60)
    await node.run_for(59)
    await commands.jobs.update(job.id, {"queue": "mail"})
    # As if none had been read ahead.
    node.scheduler._timetables.clear()
    clock.advance("600ms")

    await node.tick()

    row = await only_row(store, "ready")
    assert (row["version"], row["queue"], row["queued_at"]) == (2, "mail", START + seconds(59.6))
    assert node.heard.of(ExecutionsPromoted) == [ExecutionsPromoted(1, 0, 0)], "nothing was tried by the old definition"
    await check_promises(store)


@pytest.mark.parametrize("is_held", [False, True])
async def test_the_last_occurrence_that_was_called_off_ahead_of_its_time_does_not_come_back(
    store: Store, clock: VirtualClock, node: ManualScheduler, worker: Hands, commands: Commands, is_held: bool
) -> None:
    """Nothing is pending any more that would say how far the records go."""
    job = await create(store, interval_seconds=60, max_executions=1)
    await node.run_until(START + seconds(60) - WINDOW)
    (last,) = [row["id"] for row in await table(store, "ready")]
    if is_held:
        (claimed,) = await worker.claim(holds=1)
        await record(store, [found(claimed, CancelOutcome("not needed"), started_at=None, finished_at=clock.now())])
    else:
        await commands.executions.cancel([last])

    await commands.jobs.update(job.id, {"max_executions": 2})
    await node.run_until(START + seconds(130), meanwhile=worker.work)

    assert list(await states(store, job.id)) == instants(60, 120)
    await check_promises(store)


async def test_a_job_deleted_before_the_instant_of_its_cancelled_last_occurrence_answers_for_that(
    store: Store, node: ManualScheduler, commands: Commands
) -> None:
    job = await create(store, interval_seconds=60, max_executions=1)
    await node.run_until(START + seconds(60) - WINDOW)
    await commands.executions.cancel([row["id"] for row in await table(store, "ready")])

    await commands.jobs.delete(job.id)

    await check_promises(store)


async def test_a_promotion_after_the_edit_was_committed_is_refused(
    store: Store, clock: VirtualClock, node: ManualScheduler, commands: Commands
) -> None:
    """The plan was made from the old row: only the comparison on the row itself can refuse it."""
    job = await create(store, interval_seconds=60)
    await node.run_for(59)
    clock.advance("600ms")
    original = store.executions.promote

    async def edit_then_promote(*arguments: Any) -> Any:
        store.executions.promote = original  # type: ignore[method-assign]
        await commands.jobs.update(job.id, {"queue": "mail"})
        return await original(*arguments)

    store.executions.promote = edit_then_promote  # type: ignore[method-assign]
    await node.tick()

    assert node.heard.of(ExecutionsPromoted)[0] == ExecutionsPromoted(0, 0, 1)
    (row,) = await table(store, "ready")
    assert (row["version"], row["queue"]) == (2, "mail")
    await check_promises(store)


async def test_a_job_deleted_after_the_reading_is_not_promoted(
    store: Store, clock: VirtualClock, node: ManualScheduler, commands: Commands
) -> None:
    job = await create(store, interval_seconds=60)
    await node.run_for(58)

    await commands.jobs.delete(job.id)
    await node.run_for(30)

    assert await states(store, job.id) == {}
    await check_promises(store)


async def test_a_job_that_a_long_transaction_changes_holds_up_no_other(
    store: Store, clock: VirtualClock, node: ManualScheduler, commands: Commands
) -> None:
    """The transaction may be a program's own. Its job waits for its end, and the scheduler looks for it no more often than it polls."""
    changed, other = await create(store, interval_seconds=60), await create(store, interval_seconds=60)
    await node.run_for(58)

    async with store.database.connection() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await commands.jobs.delete(changed.id, connection=connection)
        async with asyncio.timeout(patience(20)):
            await node.run_for(4)
        assert list((await states(store, other.id)).values()) == ["ready", "due"]
        assert list((await states(store, changed.id)).values()) == ["due"]
        refused = [event.refused for event in node.heard.of(ExecutionsPromoted) if event.refused]
        assert len(refused) <= 6, "twice in a poll at most"
        await transaction.rollback()
    await node.run_for(1)

    assert list((await states(store, changed.id)).values()) == ["ready", "due"]
    await check_promises(store)


async def test_a_moved_one_off_is_not_promoted_at_its_old_time(
    store: Store, clock: VirtualClock, node: ManualScheduler, commands: Commands
) -> None:
    execution_id = await enqueue(store, after=3)
    await node.tick()

    await commands.jobs.update(JobId(execution_id), {"scheduled_at": START + seconds(5)})
    await node.run_for(4.4)
    assert await tables_of(store, execution_id) == ["due"]

    await node.run_for(0.6)
    assert await tables_of(store, execution_id) == ["ready"]


# newer time-zone data


async def test_an_occurrence_that_older_time_zone_data_yielded_is_moved(
    store: Store, clock: VirtualClock, node: ManualScheduler
) -> None:
    """Fault 23."""
    job = await create(store, schedule="0 15 * * *", timezone="Europe/Berlin")
    wrong = START + timedelta(hours=3)
    async with store.database.transaction() as connection:
        await connection.execute(
            "UPDATE timeball.due SET tzdata = '2001a', id = $1, run_at = $2, scheduled_for = $2",
            occurrence_id(job.id, wrong),
            wrong,
        )

    await node.tick()

    row = await due_row(store, job.id)
    assert (row.scheduled_for, row.tzdata) == (START + timedelta(hours=2), tzdata_version())
    assert row.id == occurrence_id(job.id, row.scheduled_for)
    assert row.watermark == START
    await check_promises(store)


async def backdate_data(store: Store) -> None:
    """As if the pending occurrences were written with older time-zone data that say the same."""
    async with store.database.transaction() as connection:
        await connection.execute("UPDATE timeball.due SET tzdata = '2001a'")


async def test_what_others_compute_by_older_data_is_looked_for_once_a_minute(
    store: Store, clock: VirtualClock, node: ManualScheduler
) -> None:
    """A process with older data may change a job at any time."""
    job = await create(store, schedule="0 15 * * *")
    await node.tick()
    await backdate_data(store)

    clock.advance("59s")
    await node.tick()
    assert (await due_row(store, job.id)).tzdata == "2001a"

    clock.advance("1s")
    await node.tick()
    assert (await due_row(store, job.id)).tzdata == tzdata_version()


async def test_what_older_data_yielded_is_computed_again_before_it_is_promoted(
    store: Store, clock: VirtualClock, node: ManualScheduler
) -> None:
    await create(store, schedule="* * * * *")
    await node.tick()
    await backdate_data(store)

    await node.run_for(59.8)

    (row,) = await table(store, "ready")
    assert (row["scheduled_for"], row["tzdata"]) == (START + seconds(60), tzdata_version())


async def test_what_comes_with_a_shard_is_looked_at_before_it_is_promoted(
    store: Store, clock: VirtualClock, node: ManualScheduler
) -> None:
    """Even if it was ours before: who had it meanwhile may have older data."""
    job = await create(store, schedule="0 15 * * *")
    await node.tick()
    await backdate_data(store)

    node.shards.epochs = {shard: epoch + 2 for shard, epoch in node.shards.epochs.items()}
    clock.advance("1s")
    await node.tick()

    assert (await due_row(store, job.id)).tzdata == tzdata_version()


@pytest.mark.parametrize("fields", [{"schedule": "0 15 * * *"}, {"interval_seconds": 3600}])
async def test_an_occurrence_on_which_newer_data_agree_stays(
    store: Store, clock: VirtualClock, node: ManualScheduler, fields: dict[str, Any]
) -> None:
    job = await create(store, jitter_seconds=30, **fields)
    before = await due_row(store, job.id)
    async with store.database.transaction() as connection:
        await connection.execute("UPDATE timeball.due SET tzdata = '2001a'")

    await node.tick()

    assert await due_row(store, job.id) == before


async def test_occurrences_of_newer_zone_data_are_left_to_nodes_that_have_them(
    store: Store, node: ManualScheduler
) -> None:
    job = await create(store, schedule="0 15 * * *", timezone="Europe/Berlin")
    async with store.database.transaction() as connection:
        await connection.execute("UPDATE timeball.due SET tzdata = '2999z'")

    await node.tick()

    assert (await due_row(store, job.id)).tzdata == "2999z"


# several at once


def twin_of(node: ManualScheduler) -> ManualScheduler:
    """Another scheduler that believes to be the same one: a process that was copied, or that slept."""
    store = node.store
    scheduler = Scheduler(
        store.env, node.heard, store.executions, store.jobs, store.freezes, node.shards, SchedulerSettings()
    )
    return replace(node, scheduler=scheduler)


async def test_what_is_recorded_late_is_told_by_its_exact_instant(
    store: Store, clock: VirtualClock, node: ManualScheduler
) -> None:
    """Ahead of its instant is not late; a retry and a manual run have no instant that could be missed."""
    await create(store, interval_seconds=60)
    await enqueue(store, after=59)
    await node.run_until(START + seconds(60))
    assert node.heard.of(OccurrencesRecorded) == [OccurrencesRecorded(1, ())]

    clock.advance("63s")
    await node.tick()

    assert node.heard.of(OccurrencesRecorded)[1:] == [OccurrencesRecorded(1, (3.0,))]


async def test_two_schedulers_with_the_same_shards_cannot_record_anything_twice(
    store: Store, clock: VirtualClock, node: ManualScheduler, worker: Hands
) -> None:
    """Fault 1."""
    twin = twin_of(node)
    jobs = [await create(store, interval_seconds=number % 7 + 1, overlap="allow") for number in range(20)]

    for _ in range(40):
        clock.advance("700ms")
        await twin.tick()
        await node.tick()
        node, twin = twin, node
        await worker.work()

    for job in jobs:
        await check_ledger(store, job, clock.now() - seconds(8))
    assert sum(event.refused for event in node.heard.of(ExecutionsPromoted)) > 0, "they did get into each other's way"


async def test_what_another_has_promoted_meanwhile_is_refused_by_the_row_alone(
    store: Store, clock: VirtualClock, node: ManualScheduler
) -> None:
    twin = twin_of(node)
    job = await create(store, interval_seconds=60)
    clock.advance("58s")
    await node.tick()
    await twin.tick()
    clock.advance("2s")
    await settle(node.scheduler)
    node.heard.clear()

    await settle(twin.scheduler)

    assert [(event.runs, event.refused) for event in twin.heard.of(ExecutionsPromoted)] == [(0, 1)]
    assert await states(store, job.id) == {START + seconds(60): "ready", START + seconds(120): "due"}


async def test_a_frozen_scheduler_changes_nothing_after_it_was_taken_over_from(
    store: Store, clock: VirtualClock, worker: Hands
) -> None:
    """Fault 3."""
    frozen = await start_scheduler(store, lease_seconds=10, lease=MORTAL)
    job = await create(store, interval_seconds=32, misfire="skip")
    clock.advance("31s")
    await frozen.tick()
    heir = await start_scheduler(store)
    assert len(heir.shards.epochs) == store.shards
    clock.advance("1s")

    # It still has the row in its heap, and no other scheduler has touched it: only the shard's owner and epoch can refuse.
    await frozen.scheduler.tick()
    assert frozen.heard.of(ExecutionsPromoted) == [ExecutionsPromoted(0, 0, 1)]
    assert await states(store, job.id) == {START + seconds(32): "due"}

    await heir.tick()
    await frozen.scheduler.tick()
    assert await states(store, job.id) == {START + seconds(32): "ready", START + seconds(64): "due"}
    assert sum(event.runs for event in frozen.heard.of(ExecutionsPromoted)) == 0


async def test_the_epoch_alone_refuses_an_owner_of_an_earlier_time(
    store: Store, clock: VirtualClock, node: ManualScheduler
) -> None:
    job = await create(store, interval_seconds=60)
    clock.advance("58s")
    await node.tick()
    async with store.database.transaction() as connection:
        await connection.execute("UPDATE timeball.shard SET epoch = epoch + 1")
    clock.advance("2s")

    await node.scheduler.tick()

    assert node.heard.of(ExecutionsPromoted) == [ExecutionsPromoted(0, 0, 1)]
    assert await states(store, job.id) == {START + seconds(60): "due"}


async def test_the_owner_alone_refuses_a_scheduler_that_released_the_shard(
    store: Store, clock: VirtualClock, node: ManualScheduler
) -> None:
    """No other scheduler has taken it since, so its epoch is still the same."""
    job = await create(store, interval_seconds=60)
    clock.advance("58s")
    await node.tick()
    await store.nodes.release_shards(node.incarnation, [job.shard])
    clock.advance("2s")

    await node.scheduler.tick()

    assert node.heard.of(ExecutionsPromoted) == [ExecutionsPromoted(0, 0, 1)]
    assert await states(store, job.id) == {START + seconds(60): "due"}


# faults


class Fault:
    """Breaks the connection at one point, once."""

    def __init__(self, point: str) -> None:
        self.point: str | None = point

    def __call__(self, point: str) -> None:
        if point == self.point:
            self.point = None
            raise StoreUnavailable("the connection was cut")


@pytest.mark.parametrize(
    "point",
    [
        "promote.before",
        "promote.after_commit",
        "look_ahead.before",
        "due_rows.before",
        "busy_jobs.before",
        "timetables.before",
    ],
)
async def test_a_cut_connection_loses_nothing_and_doubles_nothing(
    store: Store, env: Env, clock: VirtualClock, node: ManualScheduler, worker: Hands, point: str
) -> None:
    """Fault 15."""
    job = await create(store, interval_seconds=5)
    await node.run_for(3.2)
    # As if none had been read ahead.
    node.scheduler._timetables.clear()
    fault = env.fault = Fault(point)

    for _ in range(40):
        clock.advance("500ms")
        try:
            await node.tick()
        except StoreUnavailable:
            continue
        await worker.work()

    assert fault.point is None, "the fault was met"
    assert list((await states(store, job.id)).values()) == [*["succeeded"] * 4, "due"]
    await check_ledger(store, job, clock.now())


async def test_a_resumption_that_was_cut_off_is_made_up_for(
    store: Store, env: Env, clock: VirtualClock, node: ManualScheduler, commands: Commands
) -> None:
    job = await create(store, interval_seconds=60)
    await commands.jobs.pause(job.id, START + seconds(10))
    await node.run_for(9)
    original = store.jobs.change

    async def cut(*arguments: Any) -> Any:
        store.jobs.change = original  # type: ignore[method-assign]
        raise StoreUnavailable("the connection was cut")

    store.jobs.change = cut  # type: ignore[method-assign]
    clock.advance("1s")
    with pytest.raises(StoreUnavailable):
        await node.tick()
    await node.run_for(1)

    assert not (await store.jobs.find([job.id]))[job.id].is_paused


async def test_a_scheduler_that_lost_its_shards_forgets_their_rows(
    store: Store, clock: VirtualClock, node: ManualScheduler
) -> None:
    await create(store, interval_seconds=60)
    clock.advance("58s")
    await node.tick()

    node.shards.epochs.clear()
    clock.advance("2s")
    await node.tick()

    assert node.heard.of(ExecutionsPromoted) == []
    assert len(await due_rows(store)) == 1


# crowds


async def test_the_definitions_of_a_crowd_are_read_before_its_time_comes(
    store: Store, env: Env, clock: VirtualClock, node: ManualScheduler
) -> None:
    for _ in range(3):
        await create(store, interval_seconds=60)
    asked: list[str] = []
    env.fault = asked.append

    await node.run_for(58)
    assert "timetables.before" in asked, "they are within the look-ahead, and not yet within the promotion window"
    asked.clear()
    await node.run_for(2)

    assert len(await table(store, "ready")) == 3
    assert "timetables.before" not in asked
