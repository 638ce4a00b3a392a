"""Alerts in the store: what evaluations make of them, who is told, and the races between evaluators and people."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from tests.support.factories import OPERATOR, table
from tests.support.servers import VERSIONS
from timeball.domain.alerts import (
    Alert,
    AlertEvaluation,
    AlertEvent,
    AlertFact,
    AlertFilter,
    AlertId,
    AlertMember,
    AlertState,
    AlertTransition,
    Severity,
)
from timeball.domain.values.ids import JobId
from timeball.errors import Conflict, InvalidInput, NotFound
from timeball.store.store import Store
from timeball.testing import VirtualClock

pytestmark = pytest.mark.parametrize("fresh_database", VERSIONS, indirect=True)

EVERY_STATE = frozenset(AlertState)


def make_fact(name: str = "mail", **fields: object) -> AlertFact:
    member = AlertMember(name=name, job_id=JobId(UUID(int=7)), queue="slow", tags=("billing", "eu"))
    values: dict[str, object] = {
        "kind": "no_success",
        "key": f"no_success:{name}",
        "severity": Severity.CRITICAL,
        "sentence": f"{name} has not succeeded for 26 h",
        "advice": "resume it",
        "command": "timeball queues resume slow",
        "target": ("job", "job_1"),
        "why": "its queue is paused",
        "members": (member,),
        "plural": "{} jobs have not succeeded",
    }
    return AlertFact(**values | fields)  # type: ignore[arg-type]


async def evaluate(store: Store, *facts: AlertFact) -> Sequence[AlertTransition]:
    return await store.alerts.reconcile(AlertEvaluation(store.env.clock.now(), facts))


async def only(store: Store) -> Alert:
    (alert,) = await store.alerts.unresolved()
    return alert


async def test_an_alert_is_read_as_it_was_written(store: Store) -> None:
    transitions = await evaluate(store, make_fact())

    assert await store.alerts.unresolved() == [transition.alert for transition in transitions]
    assert await store.alerts.find(transitions[0].alert.id) == transitions[0].alert


async def test_the_latest_evaluation_has_last_seen_every_alert_that_is_not_resolved(
    store: Store, clock: VirtualClock
) -> None:
    await evaluate(store, make_fact())
    row = await table(store, "alert")
    clock.advance(timedelta(minutes=1))
    await evaluate(store, make_fact())

    assert await table(store, "alert") == row
    assert (await only(store)).last_seen_at == clock.now() == await store.alerts.evaluated_at()


async def test_alerts_of_a_new_database_were_never_evaluated(store: Store) -> None:
    assert await store.alerts.evaluated_at() is None


async def test_an_evaluation_that_is_written_twice_opens_one_alert(store: Store) -> None:
    first, second = await evaluate(store, make_fact()), await evaluate(store, make_fact())

    assert [transition.event for transition in first] == [AlertEvent.OPENED]
    assert not second
    assert len(await store.alerts.unresolved()) == 1


async def test_evaluators_at_once_open_one_alert_and_tell_of_it_once(
    open_store: Callable[..., Awaitable[Store]], clock: VirtualClock
) -> None:
    stores = [await open_store() for _ in range(4)]
    announced: list[AlertTransition] = []

    async def announce(_connection: Any, transitions: Sequence[AlertTransition]) -> None:
        announced.extend(transitions)

    evaluation = AlertEvaluation(clock.now(), [make_fact("a"), make_fact("b")])
    await asyncio.gather(*(store.alerts.reconcile(evaluation, announce) for store in stores))

    assert sorted(transition.alert.fact.key for transition in announced) == ["no_success:a", "no_success:b"]
    assert len(await stores[0].alerts.unresolved()) == 2


async def test_an_evaluation_that_comes_late_does_not_open_what_a_newer_one_has_resolved(
    store: Store, clock: VirtualClock
) -> None:
    late = AlertEvaluation(clock.now(), [make_fact()])
    clock.advance(timedelta(seconds=1))
    await evaluate(store)

    assert await store.alerts.reconcile(late) == ()
    assert await store.alerts.unresolved() == []


async def test_an_announcement_that_fails_leaves_nothing_behind(store: Store, clock: VirtualClock) -> None:
    async def announce(_connection: Any, _transitions: Sequence[AlertTransition]) -> None:
        raise RuntimeError("no channel")

    with pytest.raises(RuntimeError, match="no channel"):
        await store.alerts.reconcile(AlertEvaluation(clock.now(), [make_fact()]), announce)

    assert await table(store, "alert") == []
    assert await table(store, "audit") == []
    assert await store.alerts.evaluated_at() is None


async def test_what_an_announcement_writes_is_committed_with_the_alert(store: Store, clock: VirtualClock) -> None:
    async def announce(connection: Any, transitions: Sequence[AlertTransition]) -> None:
        await connection.execute("INSERT INTO timeball.fact VALUES ('told', $1)", transitions[0].alert.fact.key)

    await store.alerts.reconcile(AlertEvaluation(clock.now(), [make_fact()]), announce)

    assert ("told", "no_success:mail") in [tuple(row.values()) for row in await table(store, "fact")]


async def test_an_evaluator_that_dies_before_its_commit_leaves_the_next_one_everything_to_tell(
    store: Store, clock: VirtualClock
) -> None:
    begun = asyncio.Event()

    async def die(_connection: Any, _transitions: Sequence[AlertTransition]) -> None:
        begun.set()
        await asyncio.Event().wait()

    dying = asyncio.create_task(store.alerts.reconcile(AlertEvaluation(clock.now(), [make_fact()]), die))
    await begun.wait()
    dying.cancel()
    await asyncio.gather(dying, return_exceptions=True)

    assert [transition.event for transition in await evaluate(store, make_fact())] == [AlertEvent.OPENED]


async def test_a_fact_that_is_gone_resolves_its_alert(store: Store, clock: VirtualClock) -> None:
    opened = (await evaluate(store, make_fact()))[0].alert
    clock.advance(timedelta(minutes=3))

    transitions = await evaluate(store)

    assert [transition.event for transition in transitions] == [AlertEvent.RESOLVED]
    resolved = await store.alerts.find(opened.id)
    assert resolved is not None
    assert (resolved.state, resolved.resolved_at) == (AlertState.RESOLVED, clock.now())
    assert resolved.last_seen_at == opened.last_seen_at


async def test_a_pending_alert_leaves_no_trace_when_its_fact_is_gone(store: Store, clock: VirtualClock) -> None:
    await evaluate(store, make_fact(lasting=timedelta(minutes=1)))
    assert (await only(store)).state is AlertState.PENDING

    clock.advance(timedelta(seconds=10))
    await evaluate(store)

    assert await table(store, "alert") == []
    assert await table(store, "audit") == []


async def test_opening_and_resolving_are_audited(store: Store, clock: VirtualClock) -> None:
    await evaluate(store, make_fact())
    clock.advance(timedelta(minutes=3))
    await evaluate(store)

    entries = await table(store, "audit")
    assert sorted((entry["action"], entry["actor"]) for entry in entries) == [
        ("alert.opened", "timeball"),
        ("alert.resolved", "timeball"),
    ]


async def test_an_acknowledgement_names_its_author_its_end_and_its_reason(store: Store, clock: VirtualClock) -> None:
    await evaluate(store, make_fact())
    until = clock.now() + timedelta(hours=1)
    announced: list[AlertTransition] = []

    async def announce(_connection: Any, transitions: Sequence[AlertTransition]) -> None:
        announced.extend(transitions)

    alert = await store.alerts.acknowledge((await only(store)).id, until, OPERATOR, announce)

    assert await only(store) == alert
    known = alert.acknowledgement
    assert known is not None
    assert (known.at, known.by, known.until, known.reason) == (clock.now(), OPERATOR.actor, until, OPERATOR.reason)
    assert [transition.event for transition in announced] == [AlertEvent.ACKNOWLEDGED]
    assert await store.alerts.count_open() == {Severity.CRITICAL: 0, Severity.WARNING: 0}


async def test_an_acknowledgement_can_be_taken_back(store: Store) -> None:
    await evaluate(store, make_fact())
    alert = await only(store)
    await store.alerts.acknowledge(alert.id, None, OPERATOR)

    assert (await store.alerts.unacknowledge(alert.id, OPERATOR)).state is AlertState.OPEN
    assert await store.alerts.count_open() == {Severity.CRITICAL: 1, Severity.WARNING: 0}
    with pytest.raises(Conflict, match="is not acknowledged"):
        await store.alerts.unacknowledge(alert.id, OPERATOR)


async def test_only_an_open_alert_can_be_acknowledged(store: Store, clock: VirtualClock) -> None:
    await evaluate(store, make_fact(), make_fact("slow", lasting=timedelta(minutes=9)))
    alerts = {alert.state: alert for alert in await store.alerts.unresolved()}

    with pytest.raises(Conflict, match="is pending"):
        await store.alerts.acknowledge(alerts[AlertState.PENDING].id, None, OPERATOR)
    clock.advance(timedelta(seconds=1))
    await evaluate(store)
    with pytest.raises(Conflict, match="was resolved at"):
        await store.alerts.acknowledge(alerts[AlertState.OPEN].id, None, OPERATOR)
    with pytest.raises(NotFound):
        await store.alerts.acknowledge(AlertId(UUID(int=1)), None, OPERATOR)


async def test_an_acknowledgement_beside_an_evaluation_is_not_lost(
    open_store: Callable[..., Awaitable[Store]], clock: VirtualClock
) -> None:
    store, other = await open_store(), await open_store()
    await evaluate(store, make_fact())
    alert_id = (await only(store)).id

    for round_ in range(20):
        clock.advance(timedelta(seconds=1))
        await asyncio.gather(
            evaluate(other, make_fact(sentence=f"round {round_}")),
            store.alerts.acknowledge(alert_id, None, OPERATOR),
        )
        alert = await only(store)
        assert (alert.state, alert.fact.sentence) == (AlertState.ACKNOWLEDGED, f"round {round_}")
        await store.alerts.unacknowledge(alert_id, OPERATOR)


async def test_pages_have_every_alert_once_the_open_ones_first(store: Store, clock: VirtualClock) -> None:
    for minute in range(7):
        await evaluate(store, make_fact(f"old{minute}", plural=None))
        clock.advance(timedelta(minutes=1))
    await evaluate(store, make_fact("a"), make_fact("b"), make_fact("c"))

    names, cursor = [], None
    while True:
        page = await store.alerts.page(AlertFilter(states=EVERY_STATE), 2, cursor)
        names += [alert.fact.key.partition(":")[2] for alert in page.items]
        cursor = page.next_cursor
        if cursor is None:
            break

    assert sorted(names[:3]) == ["a", "b", "c"]
    assert names[3:] == [f"old{minute}" for minute in reversed(range(7))]


async def test_a_page_has_what_the_filter_selects(store: Store, clock: VirtualClock) -> None:
    await evaluate(store, make_fact("old"))
    clock.advance(timedelta(minutes=1))
    await evaluate(store, make_fact("a"), make_fact("b", severity=Severity.WARNING))

    async def keys(**chosen: Any) -> list[str]:
        return [alert.fact.key for alert in (await store.alerts.page(AlertFilter(**chosen), 50, None)).items]

    assert sorted(await keys()) == ["no_success:a", "no_success:b"]
    assert await keys(severity=Severity.WARNING) == ["no_success:b"]
    assert await keys(states=frozenset({AlertState.RESOLVED})) == ["no_success:old"]
    assert await keys(kind="late", states=EVERY_STATE) == []


@pytest.mark.parametrize(
    "cursor", ["x", "WyJhbGVydCIsIm5vIGRhdGUiLCIwMDAwMDAwMC0wMDAwLTAwMDAtMDAwMC0wMDAwMDAwMDAwMDAiXQ=="]
)
async def test_a_cursor_of_another_list_is_refused(store: Store, cursor: str) -> None:
    with pytest.raises(InvalidInput, match="cursor does not belong to this list"):
        await store.alerts.page(AlertFilter(), 50, cursor)


async def test_resolved_alerts_are_trimmed_and_open_ones_stay(store: Store, clock: VirtualClock) -> None:
    await evaluate(store, make_fact("old"), make_fact("open"))
    clock.advance(timedelta(minutes=1))
    await evaluate(store, make_fact("open"))
    clock.advance(timedelta(days=40))

    assert await store.retention.alerts(clock.now() - timedelta(days=30)) == 1
    assert [row["fact"] for row in await table(store, "alert")] == ["no_success:open"]


async def test_alerts_are_events_of_the_stream(store: Store, clock: VirtualClock) -> None:
    position = await store.changes.position()
    await evaluate(store, make_fact())
    alert = await only(store)
    await store.alerts.acknowledge(alert.id, None, OPERATOR)

    batch = await store.changes.since(position, 100)

    assert sorted(event.type for event in batch.events) == ["alert.acknowledged", "alert.opened"]
    assert {event.subject for event in batch.events} == {f"alr_{str(event.subject)[4:]}" for event in batch.events}
    assert all("alerts" in event.topics and event.subject in event.topics for event in batch.events)
