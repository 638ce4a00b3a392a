"""Alerts on a real store: each fact opens one alert and resolves by itself, whoever evaluates and whatever dies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.application.queries.support import ran
from tests.conftest import FreshDatabase
from tests.engine.support import (
    IMMORTAL,
    Hands,
    Heard,
    ManualScheduler,
    create,
    evaluation,
    start_scheduler,
    start_worker,
)
from tests.support.factories import (
    FAILURE,
    HANDLER,
    claim_all,
    enqueue,
    found,
    make_node,
    put_row,
    record,
    table,
)
from timeball.application.commands import Commands
from timeball.application.commands.requests import Actor
from timeball.application.queries import Queries
from timeball.config.settings import HousekeepingSettings, Settings
from timeball.domain.alerts import DELIVERY_HANDLER, DELIVERY_QUEUE, Alert, AlertState, AlertTransition
from timeball.domain.execution import Failed
from timeball.domain.freeze import FreezeScope
from timeball.domain.job import Job
from timeball.engine.scheduler.housekeeping import AlertEvaluator
from timeball.env import Env
from timeball.runtime import make_queries
from timeball.store.store import Store
from timeball.telemetry.events import AlertOpened, AlertResolved, ServiceFailed
from timeball.testing import VirtualClock

pytestmark = pytest.mark.parametrize("fresh_database", ["pg18"], indirect=True)

ANA = Actor("ana", "release")
HOUR = timedelta(hours=1)


@pytest.fixture
def announced() -> list[AlertTransition]:
    """What was announced, transition by transition."""
    return []


@pytest.fixture
def commands(store: Store, env: Env, announced: list[AlertTransition]) -> Commands:
    async def announce(_connection: Any, transitions: Sequence[AlertTransition]) -> None:
        announced.extend(transitions)

    return Commands(store, env, announce=announce)


@pytest.fixture
def queries(store: Store) -> Queries:
    return make_queries(Settings(), store)


@pytest.fixture
def evaluate(store: Store, commands: Commands) -> Callable[[], Awaitable[Sequence[AlertTransition]]]:
    return evaluation(store, commands)


@pytest.fixture
async def node(store: Store) -> ManualScheduler:
    return await start_scheduler(store)


@pytest.fixture
async def worker(store: Store) -> Hands:
    return await start_worker(store)


async def alerts_of(store: Store, *kinds: str) -> list[Alert]:
    return [alert for alert in await store.alerts.unresolved() if alert.fact.kind in kinds]


async def only(store: Store, kind: str) -> Alert:
    (alert,) = await alerts_of(store, kind)
    return alert


def events_of(transitions: Sequence[AlertTransition], kind: str) -> list[str]:
    return [transition.event.value for transition in transitions if transition.alert.fact.kind == kind]


async def test_a_nightly_job_whose_queue_is_paused_alerts_with_the_pause_and_resolves_after_the_resume(
    store: Store,
    clock: VirtualClock,
    commands: Commands,
    node: ManualScheduler,
    worker: Hands,
    evaluate: Callable[[], Awaitable[Sequence[AlertTransition]]],
    announced: list[AlertTransition],
) -> None:
    job = await create(store, name="nightly", schedule="0 2 * * *", queue="batch", expect={"succeed_every": "26h"})

    async def turn() -> None:
        await worker.work()

    # A night as it should be.
    await node.run_for(30 * 3_600, turn)
    last = max(row["finished_at"] for row in await table(store, "finished") if row["job_id"] == job.id)
    await evaluate()
    assert await alerts_of(store, "no_success") == []

    # The queue is paused; the next night nothing runs.
    paused_at = clock.now()
    await commands.queues.pause("batch", ANA)
    await node.run_until(last + timedelta(hours=26) - timedelta(seconds=1), turn)
    await evaluate()
    assert await alerts_of(store, "no_success") == []

    await node.run_until(last + timedelta(hours=26), turn)
    await evaluate()
    await evaluate()
    alert = await only(store, "no_success")
    assert "nightly has not succeeded for 1 d 2 h, expected every 26 h" in alert.fact.sentence
    assert f"its queue batch is paused by ana since {paused_at:%d %b %H:%M:%S} UTC (release)" in alert.fact.sentence
    assert alert.fact.command == "timeball queues resume batch"
    assert events_of(announced, "no_success") == ["opened"]

    # A person knows.
    await commands.alerts.acknowledge(alert.id, until=clock.now() + 2 * HOUR, actor=Actor("bo", "on it"))
    clock.advance(HOUR)
    await evaluate()
    assert (await only(store, "no_success")).state is AlertState.ACKNOWLEDGED

    # The queue goes on, the job succeeds, and the alert is resolved by that.
    await commands.queues.resume("batch", ANA)
    await evaluate()
    assert (await only(store, "no_success")).state is AlertState.ACKNOWLEDGED
    await node.run_for(60, turn)
    await evaluate()
    assert await alerts_of(store, "no_success") == []
    assert events_of(announced, "no_success") == ["opened", "acknowledged", "resolved"]
    resolved = await store.alerts.find(alert.id)
    assert resolved is not None
    assert resolved.acknowledgement is not None
    assert resolved.acknowledgement.by == "bo"


async def test_an_acknowledgement_whose_time_is_over_asks_again(
    store: Store, clock: VirtualClock, commands: Commands, evaluate: Any, announced: list[AlertTransition]
) -> None:
    await create(store, expect={"succeed_every": "1h"})
    clock.advance(HOUR)
    await evaluate()
    alert = await only(store, "no_success")
    await commands.alerts.acknowledge(alert.id, until=clock.now() + HOUR, actor=ANA)

    clock.advance(HOUR)
    await evaluate()

    assert (await only(store, "no_success")).state is AlertState.OPEN
    assert events_of(announced, "no_success") == ["opened", "acknowledged", "unacknowledged"]


async def test_a_paused_job_that_must_succeed_alerts_and_names_the_pause_and_its_author(
    store: Store, clock: VirtualClock, commands: Commands, evaluate: Any
) -> None:
    job = await create(store, name="beat", interval_seconds=60, expect={"succeed_every": "1h"})
    await commands.jobs.pause(job.id, None, ANA)
    clock.advance(HOUR)

    await evaluate()

    alert = await only(store, "no_success")
    assert "(it never has): it is paused by ana since" in alert.fact.sentence
    assert "(release)" in alert.fact.sentence
    assert alert.fact.command == "timeball jobs resume beat"


async def test_a_frozen_job_that_must_succeed_alerts_and_names_the_freeze(
    store: Store, clock: VirtualClock, commands: Commands, evaluate: Any
) -> None:
    job = await create(store, name="beat", interval_seconds=60, expect={"succeed_every": "1h"}, tags=("billing",))
    await commands.freezes.add(FreezeScope.TAG, "billing", until=clock.now() + 9 * HOUR, actor=ANA)
    clock.advance(HOUR)

    await evaluate()

    alert = await only(store, "no_success")
    assert "it is frozen (tag billing) by ana since" in alert.fact.sentence
    assert alert.fact.job_ids == {job.id}
    assert alert.fact.tags == {"billing"}


async def test_a_job_succeeds_in_time_however_many_executions_die_after_its_success(
    store: Store, clock: VirtualClock, evaluate: Any
) -> None:
    job = await create(store, expect={"succeed_every": "26h"})
    now = clock.now()
    await ran(store, now + timedelta(hours=20), 1, job.id)
    for minute in range(40):
        await ran(store, now + timedelta(hours=21, minutes=minute), 1, job.id, state="dead")
    clock.advance(timedelta(hours=30))
    while (await store.rollups.fold()).has_more:
        pass

    await evaluate()
    assert await alerts_of(store, "no_success") == []

    clock.advance(timedelta(hours=18))
    await evaluate()
    assert "not succeeded" in (await only(store, "no_success")).fact.sentence


async def test_an_occurrence_that_does_not_begin_in_time_alerts_until_it_does(
    store: Store, clock: VirtualClock, node: ManualScheduler, worker: Hands, evaluate: Any
) -> None:
    await create(store, name="beat", schedule="0 * * * *", expect={"start_within": "1m"})
    await node.run_for(3_600)
    clock.advance(timedelta(seconds=59))
    await evaluate()
    assert await alerts_of(store, "not_started") == []

    clock.advance(timedelta(seconds=1))
    await evaluate()
    assert (await only(store, "not_started")).fact.sentence.startswith("beat has not begun 1 min after its time")

    await worker.work()
    await evaluate()
    assert await alerts_of(store, "not_started") == []


async def test_an_occurrence_that_no_scheduler_has_promoted_has_not_begun(
    store: Store, clock: VirtualClock, evaluate: Any
) -> None:
    await create(store, name="beat", interval_seconds=60, expect={"start_within": "1m"})
    clock.advance(timedelta(minutes=3))

    await evaluate()

    assert "beat has not begun 2 min after its time" in (await only(store, "not_started")).fact.sentence


async def test_an_occurrence_that_was_missed_alerts_until_a_later_one_begins(
    store: Store, clock: VirtualClock, node: ManualScheduler, worker: Hands, evaluate: Any
) -> None:
    await create(store, name="beat", schedule="0 * * * *", misfire="skip", expect={"start_within": "1m"})
    clock.advance(timedelta(hours=1, minutes=30))
    await node.tick()
    await evaluate()
    assert "it was skipped (misfire)" in (await only(store, "not_started")).fact.sentence

    await node.run_for(1_801)
    await worker.work()
    await evaluate()
    assert await alerts_of(store, "not_started") == []


async def test_a_paused_job_owes_no_beginning(
    store: Store, clock: VirtualClock, commands: Commands, node: ManualScheduler, evaluate: Any
) -> None:
    job = await create(store, interval_seconds=60, expect={"start_within": "1m", "finish_within": "2m"})
    await commands.jobs.pause(job.id, None, ANA)
    await node.run_for(600)

    await evaluate()

    assert await alerts_of(store, "not_started", "not_finished") == []


async def test_an_execution_that_does_not_end_in_time_alerts_until_it_does(
    store: Store, clock: VirtualClock, node: ManualScheduler, worker: Hands, evaluate: Any
) -> None:
    await create(store, name="beat", schedule="0 * * * *", expect={"finish_within": "10m", "start_within": "1m"})
    await node.run_for(3_600)
    claims = await worker.claim()
    clock.advance(timedelta(minutes=10))
    await evaluate()
    assert "beat has not ended 10 min after its time" in (await only(store, "not_finished")).fact.sentence
    assert await alerts_of(store, "not_started") == []

    await worker.succeed(claims)
    await evaluate()
    assert await alerts_of(store, "not_finished") == []


async def dies(store: Store, job: Job, number: int, first: datetime, state: str = "dead") -> None:
    for minute in range(number):
        await ran(store, first + timedelta(minutes=minute), 1, job.id, state=state)


async def test_failures_in_a_row_alert_until_one_succeeds(store: Store, clock: VirtualClock, evaluate: Any) -> None:
    job = await create(store, expect={"max_failures_in_a_row": 2})
    start = clock.now()
    await dies(store, job, 2, start)
    await evaluate()
    assert await alerts_of(store, "failing") == []

    await dies(store, job, 2, start + timedelta(minutes=2))
    await evaluate()
    assert (await only(store, "failing")).fact.sentence.startswith("the last 4 executions of")

    await dies(store, job, 1, start + timedelta(minutes=9), "succeeded")
    await evaluate()
    assert await alerts_of(store, "failing") == []


async def test_an_expected_error_is_no_failure(store: Store, clock: VirtualClock, evaluate: Any) -> None:
    job = await create(store, expect={"max_failures_in_a_row": 0, "max_dead": 0})
    execution_id = await ran(store, clock.now(), 1, job.id, state="dead")
    await put_row(store, "settled", execution_id=execution_id, how="expected", settled_at=clock.now())

    await evaluate()

    assert await alerts_of(store, "failing", "too_many_dead") == []


async def test_dead_executions_alert_until_they_are_settled(store: Store, clock: VirtualClock, evaluate: Any) -> None:
    job = await create(store, expect={"max_dead": 1})
    await dies(store, job, 2, clock.now())
    await evaluate()
    assert "has 2 dead executions that are not settled" in (await only(store, "too_many_dead")).fact.sentence

    dead = [row["id"] for row in await table(store, "finished")]
    await put_row(store, "settled", execution_id=dead[0], how="discarded", settled_at=clock.now())
    await evaluate()
    assert await alerts_of(store, "too_many_dead") == []


async def test_a_queue_that_waits_too_long_alerts_and_names_its_pause(
    store: Store, clock: VirtualClock, commands: Commands, worker: Hands, evaluate: Any
) -> None:
    await commands.queues.expect("mail", max_oldest_wait="5m")
    await enqueue(store, queue="mail")
    await commands.queues.pause("mail", ANA)
    clock.advance(timedelta(minutes=5))

    await evaluate()
    alert = await only(store, "queue_wait")
    assert alert.fact.sentence.startswith(
        "queue mail: its oldest execution has waited for 5 min, expected at most 5 min: it is paused by ana"
    )

    await commands.queues.resume("mail", ANA)
    await worker.work()
    await evaluate()
    assert await alerts_of(store, "queue_wait") == []


async def test_a_queue_that_must_be_served_alerts_without_a_worker_once_it_has_lasted(
    store: Store, clock: VirtualClock, commands: Commands, evaluate: Any
) -> None:
    await make_node(store, queues=("default",), handlers=(HANDLER,), lease=IMMORTAL)
    await commands.queues.expect("mail", must_be_served=True)
    await evaluate()
    assert (await only(store, "queue_unserved")).state is AlertState.PENDING

    clock.advance(timedelta(seconds=30))
    await evaluate()
    assert (await only(store, "queue_unserved")).state is AlertState.OPEN

    await make_node(store, queues=("mail",), handlers=(HANDLER,), lease=IMMORTAL)
    await evaluate()
    assert await alerts_of(store, "queue_unserved") == []


async def test_a_queue_of_which_nothing_is_expected_any_more_alerts_no_more(
    store: Store, clock: VirtualClock, commands: Commands, evaluate: Any
) -> None:
    await commands.queues.expect("mail", max_oldest_wait="5m")
    await enqueue(store, queue="mail")
    clock.advance(timedelta(minutes=5))
    await evaluate()
    await only(store, "queue_wait")

    await commands.queues.expect("mail", max_oldest_wait=None)
    await evaluate()

    assert await alerts_of(store, "queue_wait") == []


async def test_many_queues_without_a_worker_are_one_alert(store: Store, clock: VirtualClock, evaluate: Any) -> None:
    await make_node(store, queues=("default",), handlers=(HANDLER,), lease=IMMORTAL)
    for number in range(40):
        await enqueue(store, queue=f"q{number:02}")
    await evaluate()
    clock.advance(timedelta(seconds=30))
    await evaluate()

    alert = await only(store, "queue_unserved")

    assert alert.fact.sentence == "40 queues have no worker: q00, q01, q02, q03, q04 and 35 more"
    assert len(alert.fact.queues) == 40


async def test_what_the_doctor_finds_is_what_needs_attention_and_what_alerts(
    store: Store, clock: VirtualClock, queries: Queries, evaluate: Any
) -> None:
    await start_worker(store)
    await enqueue(store, queue="mail", max_retries=0)
    await record(store, [found(claimed, Failed(FAILURE)) for claimed in await claim_all(store)])
    await enqueue(store, queue="mail")
    await create(store, name="beat", expect={"succeed_every": "1m"})
    clock.advance(timedelta(minutes=5))
    await evaluate()
    clock.advance(timedelta(minutes=5))
    await evaluate()

    attention = await queries.alerts.attention()
    alerts = await store.alerts.unresolved()
    lines = await queries.doctor.diagnose()

    assert {item.fact.kind for item in attention} >= {"dead_letters", "no_success", "schedulers", "late"}
    assert {item.fact.key for item in attention} == {alert.fact.key for alert in alerts}
    assert all(item.alert is not None and item.alert.state is AlertState.OPEN for item in attention)
    assert {item.fact.kind for item in attention} <= {line.code for line in lines if line.status != "ok"}


async def test_the_deliveries_of_alerts_are_no_facts(store: Store, clock: VirtualClock, queries: Queries) -> None:
    await start_worker(store)
    delivery = {"queue": DELIVERY_QUEUE, "handler": DELIVERY_HANDLER}
    await ran(store, clock.now(), 1, state="dead", **delivery)
    await enqueue(store, **delivery)
    clock.advance(timedelta(hours=1))

    facts = (await queries.alerts.evaluate()).facts

    assert not {fact.kind for fact in facts} & {"dead_letters", "late", "queue_unserved", "handler_unknown"}
    assert all(DELIVERY_QUEUE not in fact.queues for fact in facts)


async def many_dead(store: Store, job: Job, number: int) -> None:
    async with store.database.transaction() as connection:
        await connection.execute(
            """
            INSERT INTO timeball.finished (id, job_id, state, origin, version, queue, priority, handler, scheduled_for, started_at,
                                           finished_at, attempts, lost, fence)
            SELECT timeball.follow_up_id($1, number::text, at), $1, 'dead', 'schedule', 1, 'default', 50, 'h', at, at, at, 1, 0, 1
            FROM (
                SELECT number, $2::timestamptz + number * interval '6 milliseconds' AS at
                FROM generate_series(1, $3) AS number
            ) AS numbered
            """,
            job.id,
            store.env.clock.now(),
            number,
        )


async def test_a_storm_of_dead_executions_is_one_alert_and_costs_no_more_than_a_few(
    store: Store, clock: VirtualClock, evaluate: Any, announced: list[AlertTransition]
) -> None:
    job = await create(
        store, expect={"max_failures_in_a_row": 2, "max_dead": 2, "succeed_every": "1h", "start_within": "1m"}
    )
    await many_dead(store, job, 10_000)
    clock.advance(timedelta(minutes=1))
    await evaluate()

    async def rows_read() -> int:
        async with store.database.connection() as connection:
            await connection.execute("SELECT pg_stat_force_next_flush()")
            return await connection.fetchval(
                "SELECT sum(idx_tup_fetch + seq_tup_read) FROM pg_stat_user_tables"
                " WHERE relname LIKE 'finished%' AND schemaname = 'timeball'"
            )

    before = await rows_read()
    for _ in range(5):
        clock.advance(timedelta(seconds=10))
        await evaluate()
    each = (await rows_read() - before) / 5

    for kind in ("dead_letters", "failing", "too_many_dead"):
        assert events_of(announced, kind) == ["opened"], kind
    # The dead are counted up to a limit, by an index alone; of the job the latest few are read.
    assert each <= 12_000


async def test_an_evaluation_beside_others_changes_nothing_twice(
    store: Store,
    open_store: Callable[..., Awaitable[Store]],
    clock: VirtualClock,
    announced: list[AlertTransition],
    commands: Commands,
) -> None:
    await create(store, expect={"succeed_every": "1m"})
    clock.advance(timedelta(minutes=2))
    evaluators = [evaluation(await open_store(), Commands(await open_store(), store.env)) for _ in range(3)]

    transitions = await asyncio.gather(*(evaluate() for evaluate in evaluators), evaluation(store, commands)())

    opened = [one.alert.id for some in transitions for one in some if one.alert.fact.kind == "no_success"]
    assert len(opened) == 1
    assert [alert.id for alert in await alerts_of(store, "no_success")] == opened


async def test_an_evaluator_that_dies_between_reading_and_writing_leaves_the_next_one_all(
    store: Store, clock: VirtualClock, queries: Queries, evaluate: Any
) -> None:
    await create(store, expect={"succeed_every": "1m"})
    clock.advance(timedelta(minutes=2))
    await queries.alerts.evaluate()

    assert events_of(await evaluate(), "no_success") == ["opened"]


async def test_an_evaluation_only_reads(
    fresh_database: FreshDatabase, store: Store, clock: VirtualClock, env: Env
) -> None:
    await create(store, expect={"succeed_every": "1m", "start_within": "1m", "max_dead": 1})
    await enqueue(store)
    clock.advance(timedelta(minutes=2))
    reader = Store(
        f"{fresh_database.dsn}{'&' if '?' in fresh_database.dsn else '?'}options=-c%20default_transaction_read_only%3Don",
        env,
    )
    await reader.open(migrates=False)

    facts = (await make_queries(Settings(), reader).alerts.evaluate()).facts
    await reader.close()

    assert "no_success" in {fact.kind for fact in facts}


# the service


def make_service(store: Store, heard: Heard, evaluate: Any, *, is_housekeeper: bool = True) -> AlertEvaluator:
    return AlertEvaluator(store.env, heard, evaluate, HousekeepingSettings(), lambda: is_housekeeper)


async def test_the_evaluator_evaluates_every_ten_seconds_and_tells_of_what_opens_and_resolves(
    store: Store, clock: VirtualClock, evaluate: Any
) -> None:
    heard = Heard()
    service = make_service(store, heard, evaluate)
    job = await create(store, expect={"succeed_every": "5s"})
    assert await service.tick() == timedelta(seconds=10)
    clock.advance(timedelta(seconds=9))
    await service.tick()
    assert await alerts_of(store, "no_success") == []

    clock.advance(timedelta(seconds=1))
    await service.tick()
    assert "no_success" in {event.kind for event in heard.of(AlertOpened)}

    clock.advance(timedelta(seconds=10))
    await ran(store, clock.now() - timedelta(seconds=1), 1, job.id)
    await service.tick()
    assert [event.kind for event in heard.of(AlertResolved)].count("no_success") == 1


async def test_only_the_housekeeper_evaluates(store: Store, evaluate: Any) -> None:
    await make_service(store, Heard(), evaluate, is_housekeeper=False).tick()

    assert await store.alerts.evaluated_at() is None


async def test_an_evaluation_that_fails_is_an_event_and_the_next_round_tries_again(
    store: Store, clock: VirtualClock, evaluate: Any
) -> None:
    heard = Heard()
    broken = [RuntimeError("no index")]

    async def failing() -> Sequence[AlertTransition]:
        if broken:
            raise broken.pop()
        service.stop()
        return await evaluate()

    service = make_service(store, heard, failing)
    running = asyncio.create_task(service.run())
    while not running.done():
        clock.advance(timedelta(seconds=1))
        await asyncio.sleep(0.001)
    await running

    assert [(event.service, event.error) for event in heard.of(ServiceFailed)] == [
        ("alertevaluator", "RuntimeError: no index")
    ]
    assert await store.alerts.evaluated_at() is not None
