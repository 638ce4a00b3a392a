"""Why, at any instant: what became of an occurrence, the chain that led to it by name, and what will bind one that lies ahead."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from tests.application.queries.support import ran
from tests.engine.support import IMMORTAL, Hands, ManualScheduler, create, start_scheduler
from tests.support.factories import HANDLER, found, make_node, record, seconds
from timeball.api.models.system import instant_document
from timeball.application.commands import Commands
from timeball.application.commands.calendars import DaysRequest
from timeball.application.commands.requests import Actor
from timeball.application.queries import Queries
from timeball.domain.execution import ErrorInfo, Failed
from timeball.domain.explain.causes import Cause
from timeball.domain.explain.instants import InstantExplanation
from timeball.domain.freeze import Afterwards, FreezeScope
from timeball.domain.job import Job
from timeball.domain.policies import Verdict
from timeball.domain.values.ids import format_execution_id, occurrence_id
from timeball.errors import InvalidInput, NotFound
from timeball.store.store import Store
from timeball.testing import VirtualClock
from timeball.testing.environment import START

ANA = Actor("ana")


@pytest.fixture
async def node(store: Store) -> ManualScheduler:
    return await start_scheduler(store)


@pytest.fixture
async def worker(store: Store) -> Hands:
    return Hands(store, await make_node(store, name="web-1", handlers=(HANDLER,), slots=4, lease=IMMORTAL))


def minutes(number: float) -> timedelta:
    return timedelta(minutes=number)


def execution_at(job: Job, at: datetime) -> str:
    return format_execution_id(occurrence_id(job.id, at))


def told(explanation: InstantExplanation) -> list[tuple[int, str]]:
    """The kinds of the chain with their depths."""
    return [(cause.depth, cause.kind.value) for cause in explanation.causes]


def cause(explanation: InstantExplanation, kind: str) -> Cause:
    return next(one for one in explanation.causes if one.kind == kind)


async def why(queries: Queries, job: Job, at: datetime) -> InstantExplanation:
    return await queries.instants.of_job(str(job.id), at)


# skipped


async def test_an_overlap_names_the_execution_that_held_it_and_the_person_who_paused_its_queue(
    store: Store, queries: Queries, commands: Commands, node: ManualScheduler, worker: Hands
) -> None:
    job = await create(store, name="digest", interval_seconds=1800, queue="mail", overlap="skip")
    # The queue is paused from 20 to 55 minutes; the occurrence of 30 minutes waits for it, and that of 60 is skipped.
    await node.run_until(START + minutes(20), worker.work)
    await commands.queues.pause("mail", Actor("ana", "mail server moves"))
    await node.run_until(START + minutes(55), worker.work)
    await commands.queues.resume("mail", ANA)
    await node.run_until(START + minutes(56))
    claims = await worker.claim()
    await node.run_until(START + minutes(71))
    await worker.succeed(claims)

    explanation = await why(queries, job, START + minutes(60))

    holder = execution_at(job, START + minutes(30))
    assert explanation.line is not None
    assert (explanation.line.verdict, explanation.line.reason) == (Verdict.SKIPPED, "overlap")
    assert explanation.headline == (
        f"SKIPPED at 13:00:00 UTC: overlap; {holder} held it for 41 min (from 12:30:00 UTC to 13:11:00 UTC), "
        "because queue «mail» was paused by ana from 12:20:00 UTC to 12:55:00 UTC: mail server moves."
    )
    assert told(explanation)[:2] == [(0, "held_by"), (1, "queue_paused")]
    assert cause(explanation, "held_by").ids == (holder,)
    pause = cause(explanation, "queue_paused")
    assert (pause.actor, pause.since, pause.until) == ("ana", START + minutes(20), START + minutes(55))


async def test_an_overlap_with_an_execution_that_ran_long_says_how_long_it_ran_and_where(
    store: Store, queries: Queries, node: ManualScheduler, worker: Hands
) -> None:
    job = await create(store, interval_seconds=600, overlap="skip")
    await node.run_until(START + minutes(10))
    claims = await worker.claim()
    await node.run_until(START + minutes(25))

    still = await why(queries, job, START + minutes(20))
    await record(
        store, [found(claimed, started_at=claimed.run_at, finished_at=START + minutes(25)) for claimed in claims]
    )
    after = await why(queries, job, START + minutes(20))

    assert told(still) == told(after) == [(0, "held_by"), (1, "ran_long")]
    assert "has held it for 15 min, and still does" in still.headline
    assert "held it for 15 min (from 12:10:00 UTC to 12:25:00 UTC)" in after.headline
    assert cause(after, "ran_long").sentence.startswith("it ran for 15 min")


async def test_an_execution_that_ended_before_the_overlap_did_not_hold_it(
    store: Store, queries: Queries, commands: Commands, node: ManualScheduler, worker: Hands
) -> None:
    job = await create(store, interval_seconds=1200, overlap="skip")
    await node.run_until(START + minutes(20))
    (holder,) = await worker.claim()
    # A later execution, by hand, is over before the occurrence that is skipped.
    await node.run_until(START + minutes(25))
    await commands.executions.trigger(job.id, None, ANA)
    await node.run_until(START + minutes(26), worker.work)
    await node.run_until(START + minutes(45))
    await record(store, [found(holder, started_at=holder.run_at, finished_at=START + minutes(45))])

    explanation = await why(queries, job, START + minutes(40))

    assert cause(explanation, "held_by").ids == (format_execution_id(holder.id),)


async def test_a_misfire_says_from_when_to_when_no_scheduler_recorded_anything(
    store: Store, queries: Queries, node: ManualScheduler, worker: Hands
) -> None:
    job = await create(store, interval_seconds=5)
    await node.run_until(START + seconds(12), worker.work)
    node.clock.advance_to(START + seconds(67))
    await node.run_until(START + seconds(72), worker.work)

    explanation = await why(queries, job, START + seconds(20))

    assert told(explanation) == [(0, "policy"), (1, "no_scheduler")]
    silence = cause(explanation, "no_scheduler")
    assert silence.since is not None
    assert START + seconds(5) <= silence.since <= START + seconds(10)
    assert silence.until == START + seconds(67)
    assert explanation.headline.startswith(
        "SKIPPED at 12:00:20 UTC, with all 5 occurrences from 12:00:15 UTC to 12:00:35 UTC: misfire; "
        "it was too late, and the misfire policy does not run it, because no scheduler recorded"
    )


async def test_an_instant_between_two_occurrences_of_a_skipped_range_has_none_of_its_own(
    store: Store, queries: Queries, node: ManualScheduler, worker: Hands
) -> None:
    job = await create(store, interval_seconds=5)
    await node.run_until(START + seconds(12), worker.work)
    node.clock.advance_to(START + seconds(67))
    await node.run_until(START + seconds(72), worker.work)

    explanation = await why(queries, job, START + seconds(22))

    assert explanation.line is None
    assert explanation.before is not None
    assert explanation.after is not None
    assert (explanation.before.at, explanation.before.reason) == (START + seconds(20), "misfire")
    assert (explanation.after.at, explanation.after.reason) == (START + seconds(25), "misfire")


async def test_a_pause_names_the_person_and_the_reason_while_it_lasts_and_afterwards(
    store: Store, queries: Queries, commands: Commands, node: ManualScheduler, worker: Hands
) -> None:
    job = await create(store, interval_seconds=600)
    await node.run_until(START + minutes(15), worker.work)
    await commands.jobs.pause(job.id, None, Actor("ana", "audit week"))
    await node.run_until(START + minutes(17), worker.work)
    # Another change of the job, which did not pause it.
    await commands.jobs.update(job.id, {"priority": 60}, Actor("bob"))
    await node.run_until(START + minutes(35), worker.work)

    during = await why(queries, job, START + minutes(20))
    ahead = await why(queries, job, START + minutes(50))
    await commands.jobs.resume(job.id, ANA)
    after = await why(queries, job, START + minutes(20))

    assert told(during) == told(after) == [(0, "job_paused")]
    assert "the job was paused by ana at 12:15:00 UTC: audit week" in during.headline
    assert "the job was paused by ana at 12:15:00 UTC until 12:35:00 UTC: audit week" in after.headline
    assert (cause(after, "job_paused").actor, cause(after, "job_paused").until) == ("ana", START + minutes(35))
    assert ahead.present is not None
    assert ahead.present.stopped_by is not None
    assert ahead.present.stopped_by.name == "enabled"


async def test_a_freeze_is_named_with_its_author(
    store: Store, queries: Queries, commands: Commands, node: ManualScheduler, worker: Hands
) -> None:
    job = await create(store, interval_seconds=600, queue="billing")
    await node.run_until(START + minutes(15), worker.work)
    freeze = await commands.freezes.add(
        FreezeScope.QUEUE,
        "billing",
        until=START + minutes(35),
        afterwards=Afterwards.SKIP,
        actor=Actor("ana", "release"),
    )
    ahead = await why(queries, job, START + minutes(30))
    await node.run_until(START + minutes(45), worker.work)

    explanation = await why(queries, job, START + minutes(30))

    assert ahead.present is not None
    assert ahead.present.stopped_by is not None
    assert ahead.present.stopped_by.name == "not_frozen"
    assert "EXPECTED at 12:30:00 UTC, but queue billing is frozen until 12:35:00 UTC by ana: release" in ahead.headline
    assert told(explanation) == [(0, "frozen")]
    assert explanation.headline == (
        "SKIPPED at 12:30:00 UTC, with all 2 occurrences from 12:20:00 UTC to 12:30:00 UTC: freeze; queue billing was frozen by ana "
        "from 12:15:00 UTC to 12:35:00 UTC: release; afterwards: `skip`."
    )
    assert cause(explanation, "frozen").ids[0].startswith("frz_")
    assert freeze is not None


async def test_an_expired_occurrence_says_since_when_it_waited_and_for_what(
    store: Store, queries: Queries, commands: Commands, node: ManualScheduler, worker: Hands
) -> None:
    job = await create(store, interval_seconds=600, queue="mail", start_within_seconds=60)
    await commands.queues.pause("mail", ANA)
    await node.run_until(START + minutes(15), worker.work)
    await store.executions.expire_waiting(100)

    explanation = await why(queries, job, START + minutes(10))

    assert explanation.line is not None
    assert explanation.line.reason == "expired"
    assert told(explanation)[:2] == [(0, "expired"), (1, "queue_paused")]
    assert "it had not begun by 12:11:00 UTC, when it expired" in explanation.headline
    assert "because queue «mail» has been paused by ana since 12:00:00 UTC" in explanation.headline


async def test_a_cancelled_occurrence_names_the_person_who_cancelled_it(
    store: Store, queries: Queries, commands: Commands, node: ManualScheduler, worker: Hands
) -> None:
    job = await create(store, interval_seconds=600)
    await commands.jobs.skip_next(job.id, Actor("ana", "not today"))
    await node.run_until(START + minutes(25), worker.work)

    explanation = await why(queries, job, START + minutes(10))

    assert explanation.line is not None
    assert explanation.line.reason == "cancelled"
    assert "this occurrence was cancelled by ana at 12:00:00 UTC: not today" in explanation.headline


async def test_a_deleted_job_says_who_deleted_it(
    store: Store, queries: Queries, commands: Commands, node: ManualScheduler, worker: Hands
) -> None:
    job = await create(store, interval_seconds=600)
    await node.run_until(START + minutes(15), worker.work)
    node.clock.advance_to(START + minutes(25))
    await commands.jobs.delete(job.id, Actor("ana", "not needed"))

    explanation = await why(queries, job, START + minutes(20))

    assert explanation.line is not None
    assert explanation.line.reason == "deleted"
    assert "the job was deleted by ana at 12:25:00 UTC: not needed" in explanation.headline


async def test_an_edit_names_its_author(
    store: Store, queries: Queries, commands: Commands, node: ManualScheduler, worker: Hands
) -> None:
    job = await create(store, interval_seconds=600)
    await node.run_until(START + minutes(15), worker.work)
    node.clock.advance_to(START + minutes(25))
    await commands.jobs.update(job.id, {"interval_seconds": 3600}, Actor("ana", "less often"))

    explanation = await why(queries, job, START + minutes(20))

    assert explanation.line is not None
    assert explanation.line.reason == "edited"
    assert "the schedule was changed by ana at 12:25:00 UTC: less often" in explanation.headline


# ran


async def test_an_execution_that_ran_on_time_says_when_and_where(
    store: Store, queries: Queries, node: ManualScheduler, worker: Hands
) -> None:
    job = await create(store, interval_seconds=600)
    await node.run_until(START + minutes(10), worker.work)

    explanation = await why(queries, job, START + minutes(10))

    assert told(explanation) == [(0, "started"), (0, "ended")]
    assert explanation.headline.startswith(
        "RAN for 12:10:00 UTC: it started at 12:10:00 UTC, on time on web-1; it ended"
    )


async def test_an_execution_that_ran_late_says_who_paused_its_queue(
    store: Store, queries: Queries, commands: Commands, node: ManualScheduler, worker: Hands
) -> None:
    job = await create(store, interval_seconds=3600, queue="mail")
    await node.run_until(START + minutes(50), worker.work)
    await commands.queues.pause("mail", ANA)
    await node.run_until(START + minutes(85), worker.work)
    await commands.queues.resume("mail", ANA)
    await node.run_until(START + minutes(86), worker.work)

    explanation = await why(queries, job, START + minutes(60))

    assert told(explanation) == [(0, "started"), (1, "queue_paused"), (0, "ended")]
    assert "25 min late" in explanation.headline
    assert "because queue «mail» was paused by ana from 12:50:00 UTC to 13:25:00 UTC" in explanation.headline


async def test_an_execution_that_waited_for_a_place_names_the_limit(
    store: Store, queries: Queries, commands: Commands, node: ManualScheduler, worker: Hands
) -> None:
    await commands.queues.limit("mail", 1, ANA)
    job = await create(store, interval_seconds=600, queue="mail")
    await node.run_until(START + minutes(12))
    await commands.queues.limit("mail", None, ANA)
    await worker.work()

    explanation = await why(queries, job, START + minutes(10))

    assert told(explanation) == [(0, "started"), (1, "queue_limited"), (0, "ended")]
    assert "it waited 2 min for a place in queue «mail», which ana had limited to 1 at once" in explanation.headline


async def test_an_execution_that_waited_for_the_one_before_it_names_that_one(
    store: Store, queries: Queries, node: ManualScheduler, worker: Hands
) -> None:
    job = await create(store, interval_seconds=600, overlap="queue")
    await node.run_until(START + minutes(10))
    first = await worker.claim()
    await node.run_until(START + minutes(25))
    await record(store, [found(one, started_at=one.run_at, finished_at=START + minutes(25)) for one in first])
    await store.executions.unblock_after_commit([f"job:{job.id}"])
    await node.run_until(START + minutes(25), worker.work)

    explanation = await why(queries, job, START + minutes(20))

    assert told(explanation) == [(0, "started"), (1, "held_by"), (0, "ended")]
    assert cause(explanation, "held_by").ids == (execution_at(job, START + minutes(10)),)


async def test_an_execution_that_was_promoted_late_says_that_no_scheduler_was_there(
    store: Store, queries: Queries, commands: Commands, node: ManualScheduler, worker: Hands
) -> None:
    job = await create(store, interval_seconds=3600, queue="mail")
    # The pause of the queue is over before the execution is in it.
    await commands.queues.pause("mail", ANA)
    node.clock.advance_to(START + minutes(65))
    await commands.queues.resume("mail", ANA)
    node.clock.advance_to(START + minutes(75))
    await node.run_until(START + minutes(75), worker.work)

    explanation = await why(queries, job, START + minutes(60))

    assert told(explanation) == [(0, "started"), (1, "no_scheduler"), (0, "ended")]
    silence = cause(explanation, "no_scheduler")
    assert (silence.since, silence.until) == (START + minutes(60), START + minutes(75))


async def test_a_chain_tells_nothing_of_a_payload(
    store: Store, queries: Queries, node: ManualScheduler, worker: Hands
) -> None:
    job = await create(store, interval_seconds=600, payload={"password": "open sesame"})
    await node.run_until(START + minutes(10), worker.work)

    for number in (10, 12, 20):
        explanation = await why(queries, job, START + minutes(number))
        assert "sesame" not in str(instant_document(explanation))


async def test_attempts_are_told_with_their_errors_and_workers(
    store: Store, queries: Queries, node: ManualScheduler, worker: Hands
) -> None:
    job = await create(store, interval_seconds=3600, max_retries=1)
    await node.run_until(START + minutes(60))
    (claimed,) = await worker.claim()
    await record(store, [found(claimed, Failed(ErrorInfo(type="ConnectionError", message="smtp is down")))])
    await node.run_until(START + minutes(90), worker.work)

    explanation = await why(queries, job, START + minutes(60))

    assert told(explanation) == [(0, "started"), (0, "attempt"), (0, "ended")]
    assert "on web-1: ConnectionError: smtp is down" in cause(explanation, "attempt").sentence
    assert "after 2 attempts" in cause(explanation, "ended").sentence


# nothing due


async def test_an_instant_that_the_schedule_does_not_name_has_its_neighbours_and_the_version_of_then(
    store: Store, queries: Queries, commands: Commands, node: ManualScheduler, worker: Hands
) -> None:
    job = await create(store, interval_seconds=600)
    await node.run_until(START + minutes(15), worker.work)
    await commands.jobs.update(job.id, {"interval_seconds": 300}, ANA)
    await node.run_until(START + minutes(35), worker.work)

    first, second = await why(queries, job, START + minutes(12)), await why(queries, job, START + minutes(22))
    ahead = await why(queries, job, START + minutes(62))

    assert (first.version, second.version) == (1, 2)
    assert first.headline.startswith("NOTHING WAS DUE at 12:12:00 UTC: version 1 of the job names no occurrence")
    assert second.headline.endswith("; the one before, at 12:20:00 UTC, ran; the next one, at 12:25:00 UTC, ran.")
    assert ahead.headline.startswith("NOTHING IS DUE at")
    assert ahead.after is not None
    assert ahead.after.verdict is Verdict.EXPECTED


async def test_an_instant_before_the_creation_names_the_creation(store: Store, queries: Queries) -> None:
    job = await create(store, interval_seconds=600)

    explanation = await why(queries, job, START - minutes(10))

    assert explanation.headline.startswith("NOTHING WAS DUE at 11:50:00 UTC: the job was created at 12:00:00 UTC by ")


async def test_a_gap_and_a_repeat_of_the_clock_are_explained(store: Store, queries: Queries) -> None:
    job = await create(store, schedule="30 2 * * *", timezone="Europe/Berlin", on_gap="skip")

    # The clock of Berlin jumps from 02:00 to 03:00 on 29 March 2026, and shows 02:30 twice on 25 October.
    gap = await queries.instants.of_job(str(job.id), "2026-03-29T02:30")
    repeat = await queries.instants.of_job(str(job.id), "2026-10-25T02:30")

    assert gap.line is not None
    assert (gap.line.verdict, gap.line.reason) == (Verdict.EXPECTED, "clock_gap")
    assert gap.headline.startswith("WILL BE SKIPPED at")
    assert any("went forward from 02:00 to 03:00" in one.sentence for one in gap.causes)
    assert "on_gap is `skip`" in cause(gap, "clock_change").sentence
    assert repeat.line is not None
    assert "showed 02:30 twice, this is the first time" in cause(repeat, "clock_change").sentence


async def test_a_day_that_a_calendar_leaves_out_names_the_calendar(
    store: Store, queries: Queries, commands: Commands, node: ManualScheduler, worker: Hands
) -> None:
    await commands.calendars.create("closed", DaysRequest(days=("2026-03-04",)))
    job = await create(store, schedule="0 9 * * *", skip_on=("closed",))

    explanation = await queries.instants.of_job(str(job.id), "2026-03-04T09:00")

    node.clock.advance_to(START + timedelta(days=3))
    after = await queries.instants.of_job(str(job.id), "2026-03-04T09:00")
    between = await queries.instants.of_job(str(job.id), "2026-03-04T09:01")

    assert explanation.line is not None
    assert (explanation.line.verdict, explanation.line.reason) == (Verdict.EXPECTED, "calendar")
    assert explanation.headline.startswith("WILL BE SKIPPED at 04 Mar 09:00:00 UTC: calendar; ")
    assert "because the schedule leaves Wednesday 04 March out by the calendar «closed»" in explanation.headline
    assert cause(explanation, "calendar").ids == ("calendar:closed",)
    assert after.headline.startswith("SKIPPED at 04 Mar 09:00:00 UTC: calendar; ")
    assert between.headline.startswith("NOTHING WAS DUE at")


async def test_an_occurrence_that_a_calendar_moved_says_from_where(
    store: Store, queries: Queries, commands: Commands, node: ManualScheduler, worker: Hands
) -> None:
    await commands.calendars.create("closed", DaysRequest(days=("2026-03-04",)))
    job = await create(store, schedule="0 9 4 * *", skip_on=("closed",), shift="next")

    explanation = await queries.instants.of_job(str(job.id), "2026-03-05T09:00")

    assert explanation.line is not None
    assert explanation.line.verdict is Verdict.EXPECTED
    assert cause(explanation, "calendar").sentence == "a calendar moved it here from Wednesday 04 March 09:00"
    origin = await queries.instants.of_job(str(job.id), "2026-03-04T09:00")
    assert origin.line is None
    moves = "the calendar «closed» moves Wednesday 04 March to the next day that is allowed"
    assert cause(origin, "calendar").sentence == moves


# what lies ahead


async def test_an_expected_occurrence_with_open_gates_says_that_nothing_is_in_its_way(
    store: Store, queries: Queries, node: ManualScheduler, worker: Hands
) -> None:
    job = await create(store, interval_seconds=600)

    explanation = await why(queries, job, START + minutes(30))

    assert explanation.headline == "EXPECTED at 12:30:00 UTC: nothing that is known now is in its way."
    assert explanation.causes == []


async def test_an_expected_occurrence_names_the_missing_worker(
    store: Store, queries: Queries, node: ManualScheduler
) -> None:
    job = await create(store, interval_seconds=600, queue="mail")
    nothing_alive = await why(queries, job, START + minutes(30))
    await make_node(store, handlers=("other.handler",), lease=IMMORTAL)
    unknown = await why(queries, job, START + minutes(30))

    assert [gate.name for gate in nothing_alive.present.gates if gate.is_stopped] == ["worker_for_queue"]  # type: ignore[union-attr]
    assert [gate.name for gate in unknown.present.gates if gate.is_stopped] == ["worker_for_handler"]  # type: ignore[union-attr]


async def test_a_pause_of_the_queue_binds_only_what_is_due_before_its_end(
    store: Store, queries: Queries, commands: Commands, node: ManualScheduler, worker: Hands
) -> None:
    job = await create(store, interval_seconds=600, queue="mail")
    await commands.queues.pause("mail", ANA, until=START + minutes(25))

    bound, free = await why(queries, job, START + minutes(20)), await why(queries, job, START + minutes(30))

    assert "but queue «mail» has been paused since" in bound.headline
    assert free.causes == []


async def test_a_limit_binds_an_occurrence_that_is_due_before_the_usual_end_of_what_runs(
    store: Store, queries: Queries, commands: Commands, node: ManualScheduler, worker: Hands
) -> None:
    long = await create(store, name="long", queue="mail", interval_seconds=3_600, overlap="allow")
    for number in range(5):
        await ran(store, START - minutes(300 - 40 * number), 1_800, long.id, queue="mail")
    while (await store.rollups.fold()).has_more:
        pass
    job = await create(store, name="short", interval_seconds=600, queue="mail")
    await commands.executions.trigger(long.id)
    await worker.claim()
    await commands.queues.limit("mail", 1, ANA)

    bound, free = await why(queries, job, START + minutes(10)), await why(queries, job, START + minutes(50))

    assert "EXPECTED at 12:10:00 UTC, but queue «mail» allows 1 at once and its one place is taken" in bound.headline
    assert free.causes == []


async def test_a_limit_of_a_key_binds_what_is_due_before_the_usual_end_of_its_holder(
    store: Store, queries: Queries, commands: Commands, node: ManualScheduler, worker: Hands
) -> None:
    long = await create(store, name="long", interval_seconds=3_600, overlap="allow", limit_key="disk", max_running=1)
    for number in range(5):
        await ran(store, START - minutes(300 - 40 * number), 1_800, long.id)
    while (await store.rollups.fold()).has_more:
        pass
    job = await create(store, name="short", interval_seconds=600, limit_key="disk", max_running=1)
    await commands.executions.trigger(long.id)
    await worker.claim()

    bound, free = await why(queries, job, START + minutes(10)), await why(queries, job, START + minutes(50))

    assert "EXPECTED at 12:10:00 UTC, but the key «disk» allows 1 at once and its one place is taken" in bound.headline
    assert free.causes == []


async def test_an_occurrence_that_a_freeze_holds_is_explained_by_it(
    store: Store, queries: Queries, commands: Commands, node: ManualScheduler, worker: Hands
) -> None:
    job = await create(store, interval_seconds=600)
    await commands.freezes.add(FreezeScope.JOB, job_id=job.id, until=START + minutes(30), actor=ANA)
    await node.run_until(START + minutes(22))

    held = [await why(queries, job, START + minutes(number)) for number in (10, 20)]

    for explanation in held:
        assert explanation.line is not None
        assert (explanation.line.verdict, explanation.line.reason) == (Verdict.WAITING, "freeze")
        assert explanation.headline.startswith("NOT STARTED: ")
        assert explanation.present is not None
        assert explanation.present.stopped_by is not None
        assert explanation.present.stopped_by.name == "not_frozen"


async def test_an_overdue_occurrence_is_explained_by_its_gates(
    store: Store, queries: Queries, clock: VirtualClock
) -> None:
    job = await create(store, interval_seconds=600)
    clock.advance("12m")

    explanation = await why(queries, job, START + minutes(10))

    assert explanation.line is not None
    assert explanation.line.verdict is Verdict.WAITING
    assert explanation.headline.startswith("NOT STARTED: ")
    assert any("no scheduler is alive" in one.sentence for one in explanation.causes)


# input


@pytest.mark.parametrize("text", ["yesterday", "2026-13-01T00:00", "", "1066-10-14T09:00"])
async def test_a_bad_instant_is_refused_with_what_was_expected(store: Store, queries: Queries, text: str) -> None:
    job = await create(store, interval_seconds=600)

    with pytest.raises(InvalidInput, match=r"at is .*expected"):
        await queries.instants.of_job(str(job.id), text)


async def test_an_unknown_job_is_not_found(queries: Queries) -> None:
    with pytest.raises(NotFound):
        await queries.instants.of_job("no-such-job", START)


async def test_a_time_without_an_offset_is_on_the_clock_of_the_job(store: Store, queries: Queries) -> None:
    job = await create(store, schedule="30 2 * * *", timezone="Asia/Tokyo")

    explanation = await queries.instants.of_job(str(job.id), "2026-03-04T02:30")

    assert explanation.at == datetime.fromisoformat("2026-03-03T17:30:00+00:00")
    assert "(02:30 in Asia/Tokyo)" in explanation.headline
