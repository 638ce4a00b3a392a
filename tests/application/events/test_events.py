"""Every subscriber gets every event of its filter; a slow subscriber cannot use unbounded memory or wait for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from uuid import UUID

import pytest

from tests.support.factories import FAILURE, claim_all, enqueue, found, make_node, make_recurring, record
from tests.support.pace import patience
from timeball.application.commands import Commands
from timeball.application.commands.requests import Actor
from timeball.application.events import (
    ALL_TOPICS,
    MAX_PENDING_EVENTS,
    MAX_PENDING_TOPICS,
    EventBatch,
    EventHub,
    EventSubscription,
    TopicSubscription,
)
from timeball.domain.change_event import CHANGE_EVENT_TYPES, ChangeEvent, EventFilter
from timeball.domain.execution import Failed
from timeball.domain.values.ids import format_execution_id, format_job_id
from timeball.env import SystemClock
from timeball.errors import StoreUnavailable
from timeball.store.changes import ChangeStream
from timeball.store.store import Store
from timeball.store.types import LogRecord

on_a_database = pytest.mark.parametrize("fresh_database", ["pg18"], indirect=True)
NOW = datetime(2026, 3, 2, tzinfo=UTC)


def event(number: int = 0, what: str = "execution.succeeded", **more: object) -> ChangeEvent:
    return ChangeEvent(id=UUID(int=number), type=what, at=NOW, subject=f"exe_{number}", **more)  # type: ignore[arg-type]


async def heard(listener: EventSubscription, is_enough: Callable[[list[ChangeEvent]], bool]) -> list[ChangeEvent]:
    """Collect events until the condition holds; fails if it never does."""
    told: list[ChangeEvent] = []
    async with asyncio.timeout(patience(30)):
        while not is_enough(told):
            told += (await listener.next(timeout=5)).events
    return told


# through the database


@on_a_database
async def test_starts_and_ends_are_sent(store: Store, live: EventHub) -> None:
    async with live.listen() as listener:
        execution_id = await enqueue(store, queue="mail")
        (claimed,) = await claim_all(store)
        starts = await heard(listener, lambda told: any(one.type == "execution.started" for one in told))
        await record(store, [found(claimed)])
        ends = await heard(listener, lambda told: any(one.type == "execution.succeeded" for one in told))

    (start,) = [one for one in starts if one.type == "execution.started"]
    assert (start.subject, start.queue) == (format_execution_id(execution_id), "mail")
    assert start.data["lateness_ms"] is not None
    (end,) = [one for one in ends if one.subject == start.subject]
    assert (end.type, end.data["duration_ms"]) == ("execution.succeeded", 1000.0)


@on_a_database
async def test_progress_is_sent_as_it_changes(store: Store, live: EventHub) -> None:
    execution_id = await enqueue(store)
    (claimed,) = await claim_all(store)
    await store.executions.report_progress(claimed, 0.1, "known before")
    async with live.listen(EventFilter(types=("execution.progress",))) as listener:
        await store.executions.report_progress(claimed, 0.42, "page 42")
        told = await heard(listener, bool)
        await store.executions.report_progress(claimed, 0.43, None)
        told += await heard(listener, bool)

    assert [one.subject for one in told] == [format_execution_id(execution_id)] * 2
    assert [one.data["progress"] for one in told] == [
        {"fraction": 0.42, "note": "page 42"},
        {"fraction": 0.43, "note": None},
    ]
    assert len({one.id for one in told}) == 2
    assert told[0].data["attempt"] == 1


@on_a_database
async def test_a_subscriber_gets_every_event_from_then_on(
    store: Store, live: EventHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the pump starts slowly and two subscribers start at once."""
    position = ChangeStream.position

    async def slowly(changes: ChangeStream) -> str:
        await asyncio.sleep(0.3)
        return await position(changes)

    monkeypatch.setattr(ChangeStream, "position", slowly)

    async def hear(queue: str) -> list[ChangeEvent]:
        async with live.listen(EventFilter(types=("execution.succeeded",), queue=queue)) as listener:
            await enqueue(store, queue=queue)
            await record(store, [found(claimed) for claimed in await claim_all(store)])
            return await heard(listener, bool)

    told = await asyncio.gather(hear("a"), hear("b"))

    assert [[one.queue for one in some] for some in told] == [["a"], ["b"]]


@on_a_database
async def test_a_subscription_fails_while_the_database_is_away(store: Store, live: EventHub) -> None:
    """The subscriber would rely on a complete stream; a later one succeeds once the database is back."""

    def cut(point: str) -> None:
        raise StoreUnavailable("away")

    store.env.fault = cut
    with pytest.raises(StoreUnavailable):
        async with live.listen():
            raise AssertionError("let in")
    store.env.fault = lambda _: None

    async with live.listen(EventFilter(types=("execution.succeeded",))) as listener:
        await enqueue(store)
        await record(store, [found(claimed) for claimed in await claim_all(store)])
        assert len(await heard(listener, bool)) == 1


@on_a_database
async def test_a_start_that_no_poll_saw_is_sent_with_its_end(store: Store, live: EventHub) -> None:
    async with live.listen(EventFilter(types=("execution.*", "attempt.*"))) as listener:
        await enqueue(store, max_retries=0)
        await record(store, [found(claimed, Failed(FAILURE)) for claimed in await claim_all(store)])
        told = await heard(listener, lambda told: len(told) >= 3)

    assert [one.type for one in told] == ["execution.started", "attempt.failed", "execution.dead"]
    assert told[1].data["error_type"] == "ValueError"
    assert {one.type for one in told} <= set(CHANGE_EVENT_TYPES)


@on_a_database
async def test_operator_actions_and_node_changes_are_sent(store: Store, live: EventHub) -> None:
    job = await make_recurring(store)
    async with live.listen() as listener:
        await Commands(store, store.env).jobs.pause(job.id, actor=Actor("somebody", "a test"))
        incarnation = await make_node(store)
        told = await heard(listener, lambda told: {"job.pause", "worker.started"} <= {one.type for one in told})
        await store.nodes.remove(incarnation)
        told += await heard(listener, lambda told: "worker.gone" in {one.type for one in told})

    (pause,) = [one for one in told if one.type == "job.pause"]
    assert (pause.subject, pause.job_id, pause.data) == (format_job_id(job.id), job.id, {"reason": "a test"})


@on_a_database
async def test_a_position_is_taken_up_by_another_process(store: Store, live: EventHub) -> None:
    position = (await live.since(None, EventFilter())).position
    await enqueue(store)
    await record(store, [found(claimed) for claimed in await claim_all(store)])

    missed = await EventHub(store.env, store).since(position, EventFilter(types=("execution.succeeded",)))

    assert [one.type for one in missed.events] == ["execution.succeeded"]
    assert missed.is_complete
    again = await live.since(missed.position, EventFilter())
    assert again.events == []


@on_a_database
async def test_a_late_commit_is_sent(store: Store, live: EventHub) -> None:
    """The transaction is older than the position from which a reader continues."""
    async with store.database.transaction() as slow:
        await slow.execute(
            "INSERT INTO timeball.audit (id, at, actor, action, subject) VALUES (gen_random_uuid(), now(), 'a', 'job.delete', 'job:x')"
        )
        await enqueue(store)
        await record(store, [found(claimed) for claimed in await claim_all(store)])
        position = (await live.since(None, EventFilter())).position

    missed = await live.since(position, EventFilter())

    assert [one.type for one in missed.events] == ["job.delete"]


@on_a_database
async def test_a_position_of_another_database_is_not_whole(live: EventHub) -> None:
    missed = await live.since("4000000000000:4000000000000:", EventFilter())

    assert not missed.is_complete
    assert (await live.since(missed.position, EventFilter())).is_complete


@on_a_database
async def test_a_database_outage_loses_no_event(store: Store, live: EventHub) -> None:
    def cut(point: str) -> None:
        if point == "changes.before":
            raise StoreUnavailable("away")

    async with live.listen(EventFilter(types=("execution.succeeded",))) as listener:
        store.env.fault = cut
        await enqueue(store)
        await record(store, [found(claimed) for claimed in await claim_all(store)])
        await listener.next(timeout=1)
        store.env.fault = lambda _: None
        told = await heard(listener, bool)

    assert len(told) == 1


@on_a_database
async def test_an_unreadable_change_is_a_gap_and_does_not_end_the_stream(
    store: Store, live: EventHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with live.listen() as listener:
        with monkeypatch.context() as patched:
            patched.setattr(ChangeStream, "since", lambda *_: 1 / 0)
            async with asyncio.timeout(patience(30)):
                while not (await listener.next(timeout=5)).is_gap:
                    pass
        await enqueue(store)
        (claimed,) = await claim_all(store)
        await record(store, [found(claimed)])

        await heard(listener, lambda told: any(one.type == "execution.succeeded" for one in told))


@on_a_database
async def test_nothing_is_read_without_subscribers(store: Store, live: EventHub) -> None:
    async with live.listen():
        await asyncio.sleep(0.1)

    asked: list[str] = []
    store.env.fault = asked.append
    await asyncio.sleep(0.7)
    assert asked == []


@on_a_database
async def test_the_log_of_an_execution_is_followed_to_its_end(store: Store, live: EventHub) -> None:
    execution_id = await enqueue(store)
    (claimed,) = await claim_all(store)

    async def say(number: int) -> None:
        await store.history.write_log(
            [LogRecord(execution_id, 1, number, store.env.clock.now(), "info", f"line {number}")]
        )

    await say(1)
    lines = []
    async with asyncio.timeout(patience(30)):
        async for some in live.tail_log(execution_id):
            lines += [line.message for line in some]
            if lines == ["line 1"]:
                await say(2)
                await record(store, [found(claimed)])

    assert lines == ["line 1", "line 2"]


# slow ones, and the end


async def test_a_slow_subscriber_loses_the_oldest_events_and_gets_a_gap() -> None:
    listener = EventSubscription(EventFilter())
    for number in range(10 * MAX_PENDING_EVENTS):
        listener.tell([event(number)], f"{number}")

    news = await listener.next(timeout=0)

    assert len(news.events) == MAX_PENDING_EVENTS
    assert (news.is_gap, news.position) == (True, str(10 * MAX_PENDING_EVENTS - 1))
    assert news.events[-1].subject == f"exe_{10 * MAX_PENDING_EVENTS - 1}"
    listener.tell([event()], "next")
    assert not (await listener.next(timeout=0)).is_gap, "a gap is told once"


async def test_a_gap_is_sent_to_every_subscriber() -> None:
    listener, topics = EventSubscription(EventFilter(queue="other")), TopicSubscription(SystemClock(), ["jobs"])

    listener.tell([], "1", is_gap=True)
    topics.tell([], "1", is_gap=True)

    assert await listener.next(timeout=0) == EventBatch([], "1", is_gap=True)
    assert await topics.next(timeout=0) == {ALL_TOPICS}


@on_a_database
async def test_every_subscription_ends_when_the_hub_closes(live: EventHub) -> None:
    async with live.listen() as listener, live.watch() as topics:
        waiting = asyncio.gather(listener.next(timeout=600), topics.next(timeout=600))
        await asyncio.sleep(0.05)

        live.close()

        async with asyncio.timeout(patience(60)):
            news, changed = await waiting
    assert news.is_over
    assert changed == frozenset()
    async with live.listen() as late:
        assert (await late.next(timeout=600)).is_over


# topics


async def test_topics_are_a_set_and_sent_a_few_times_a_second() -> None:
    clock = SystemClock()
    topics = TopicSubscription(clock)
    for number in range(50):
        topics.tell([event(number % 2, queue="mail")], "1")
    before = clock.monotonic()
    assert await topics.next(timeout=60) == {"executions", "queues", "queue:mail", "exe_0", "exe_1"}

    topics.tell([event(2, "execution.dead")], "2")
    assert await topics.next(timeout=60) == {"executions", "dead", "exe_2"}

    assert clock.monotonic() - before >= 0.2, "not more often than four times a second"


async def test_only_subscribed_topics_are_sent() -> None:
    topics = TopicSubscription(SystemClock(), ["workers", "exe_7"])
    topics.tell([event(number) for number in range(10)], "1")

    assert await topics.next(timeout=0) == {"exe_7"}
    assert await topics.next(timeout=0) == frozenset()


async def test_too_many_topics_become_everything() -> None:
    topics = TopicSubscription(SystemClock())
    topics.tell([event(number) for number in range(10 * MAX_PENDING_TOPICS)], "1")

    assert await topics.next(timeout=0) == {ALL_TOPICS}


def test_an_event_filter_selects_by_type_queue_and_job() -> None:
    mail = event(1, queue="mail")

    assert EventFilter(types=("execution.*",)).matches(mail)
    assert EventFilter(types=("attempt.*", "execution.succeeded"), queue="mail").matches(mail)
    assert not EventFilter(types=("attempt.*",)).matches(mail)
    assert not EventFilter(queue="other").matches(mail)
    assert not EventFilter(job_id=UUID(int=1)).matches(mail)  # type: ignore[arg-type]
