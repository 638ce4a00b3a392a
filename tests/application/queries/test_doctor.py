"""The doctor and the list of what needs attention, over a real store."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.application.queries.support import ran
from tests.engine.support import create, start_scheduler
from tests.support.factories import (
    FAILURE,
    HANDLER,
    claim_all,
    enqueue,
    found,
    make_node,
    make_owner,
    make_recurring,
    record,
)
from timeball.application.commands import Commands
from timeball.application.commands.requests import Actor
from timeball.application.queries import Queries
from timeball.domain.alerts import AlertFact, Severity
from timeball.domain.execution import Failed
from timeball.domain.explain.diagnosis import Diagnosis, DiagnosisStatus
from timeball.domain.node import Lease, NodeKind
from timeball.domain.values.ids import format_execution_id
from timeball.store.store import Store
from timeball.testing import VirtualClock

LONG = Lease(span=timedelta(hours=9), interval=timedelta(hours=1))


def bad(lines: list[Diagnosis]) -> dict[str, str]:
    return {line.code: line.detail for line in lines if line.status is not DiagnosisStatus.OK}


async def test_an_empty_installation_needs_schedulers_workers_and_keys(store: Store, queries: Queries) -> None:
    complaints = bad(await queries.doctor.diagnose())

    assert {"schedulers", "workers", "access"} <= set(complaints)
    assert complaints["workers"] == "none is alive, 0 waiting"
    # The test's servers do without fsync, and their history begins on another day than the test's clock.
    assert set(complaints) <= {"schedulers", "workers", "access", "durability", "partitions"}


async def test_the_doctor_reports_faults_of_a_real_store(store: Store, queries: Queries, commands: Commands) -> None:
    await make_owner(store)
    await make_node(store, slots=2, handlers=(HANDLER,), queues=("default", "mail"))
    for _ in range(3):
        await enqueue(store, queue="reports")
    await enqueue(store, queue="mail")
    await commands.queues.pause("mail", Actor("ana"))
    # A job that waits for its next occurrence and has one waiting besides is one job.
    old = await make_recurring(store, handler="app.old:sync")
    await commands.executions.trigger(old.id)
    await enqueue(store, max_retries=0)
    await record(
        store, [found(claimed, Failed(FAILURE)) for claimed in await claim_all(store) if claimed.queue == "default"]
    )

    complaints = bad(await queries.doctor.diagnose())

    assert complaints["queue_paused"].endswith("1 waiting")
    assert complaints["handler_unknown"] == "used by 1 job, known to no worker of its queue"
    assert complaints["dead_letters"].startswith("1 execution is dead")
    assert "schedulers" not in complaints


async def test_attention_begins_with_the_most_severe_item_and_its_reason(
    store: Store, queries: Queries, clock: VirtualClock
) -> None:
    await make_node(store, NodeKind.SCHEDULER, lease=LONG)
    worker = await make_node(store, slots=1, handlers=(HANDLER,), queues=("default",), lease=LONG, name="web-1")
    running = await enqueue(store)
    await claim_all(store, worker=worker)
    await store.nodes.renew(worker, busy=1)
    late = await enqueue(store)
    await enqueue(store, queue="reports")
    clock.advance("14m")

    concerns = await attention(queries)

    assert [concern.severity for concern in concerns] == sorted(
        (concern.severity for concern in concerns), key=list(Severity).index
    )
    unserved = only(concerns, "queue_unserved")
    assert unserved.sentence == "queue reports: 1 waiting, no worker serves it"
    assert unserved.target == ("queue", "reports")
    waits = only(concerns, "late")
    assert waits.sentence == f"{HANDLER} ({format_execution_id(late)}) in queue default is 14 min late"
    assert waits.why is not None
    assert waits.why.startswith(f"NOT STARTED: the one slot of web-1 is taken: {format_execution_id(running)}")
    assert not {"access", "durability", "clock"} & {concern.kind for concern in concerns}


async def test_an_execution_far_beyond_its_typical_duration_needs_attention(
    store: Store, queries: Queries, clock: VirtualClock
) -> None:
    worker = await make_node(store, slots=4, handlers=(HANDLER,), lease=LONG)
    for number in range(5):
        await ran(store, clock.now() - timedelta(hours=number + 1), 120)
    running = await enqueue(store)
    await claim_all(store, worker=worker)
    clock.advance("5m")
    assert [concern.kind for concern in await attention(queries) if concern.kind == "overrunning"] == []

    clock.advance("2m")
    concern = only(await attention(queries), "overrunning")

    assert concern.target == ("execution", format_execution_id(running))
    assert "has run for 7 min, it usually takes 2 min" in concern.sentence


async def attention(queries: Queries) -> list[AlertFact]:
    return [item.fact for item in await queries.alerts.attention()]


def only(concerns: list[AlertFact], code: str) -> AlertFact:
    (found_one,) = [concern for concern in concerns if concern.kind == code]
    return found_one


async def missed(store: Store, *names: str) -> None:
    """Jobs of every five seconds of which each missed five, because nothing was alive for 55 seconds."""
    node = await start_scheduler(store)
    for name in names:
        await create(store, name=name, interval_seconds=5)
    node.clock.advance_to(node.clock.now() + timedelta(seconds=57))
    await node.tick()
    await store.rollups.fold()


async def concerns(queries: Queries) -> list[AlertFact]:
    return [item for item in await attention(queries) if item.kind == "missed"]


async def test_a_job_that_missed_occurrences_needs_attention_for_a_day(
    store: Store, queries: Queries, clock: VirtualClock
) -> None:
    await missed(store, "a beat")

    (item,) = await concerns(queries)
    clock.advance("23h")
    still = await concerns(queries)
    clock.advance("2h")
    later = await concerns(queries)

    assert item.sentence == "a beat: 5 missed, misfire, in the last 24 hours"
    assert item.command == "timeball ledger 'a beat' --since 24h --verdict skipped"
    assert item.target is not None
    assert item.target[0] == "ledger"
    assert still == [item]
    assert later == []


@pytest.mark.parametrize("number", [5, 6])
async def test_more_than_five_jobs_that_missed_occurrences_are_one_line(
    store: Store, queries: Queries, number: int
) -> None:
    await missed(store, *(f"job {n}" for n in range(number)))

    items = await concerns(queries)

    assert len(items) == (5 if number == 5 else 1)
    if number == 6:
        assert items[0].sentence.startswith("6 jobs have missed occurrences in the last 24 hours: job ")
        assert items[0].sentence.endswith(" and 1 more")


async def test_what_was_skipped_on_purpose_needs_no_attention(
    store: Store, queries: Queries, commands: Commands, clock: VirtualClock
) -> None:
    job = await make_recurring(store, every=5)
    await commands.jobs.pause(job.id, None, Actor("ana"))
    clock.advance("1m")
    await commands.jobs.resume(job.id, Actor("ana"))
    await store.rollups.fold()

    assert await concerns(queries) == []


async def test_a_deleted_job_that_missed_occurrences_needs_no_attention(
    store: Store, queries: Queries, commands: Commands
) -> None:
    await missed(store, "gone")
    await commands.jobs.delete((await queries.jobs.find("gone")).id, Actor("ana"))

    assert await concerns(queries) == []
