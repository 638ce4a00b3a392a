"""One suite for every broker that carries tickets: what is published arrives, once, in order; and what happens when not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count
from uuid import UUID

import pytest

from tests.brokers.support import BrokerServer, trying
from tests.support.pace import patience
from timeball.brokers.base import Broker, Inbox, Ticket
from timeball.domain.values.ids import ExecutionId
from timeball.errors import BrokerUnavailable

SOON = timedelta(seconds=10)
AT_ONCE = timedelta(milliseconds=200)

_numbers = count(1)


def ticket(seconds_ago: float = 0, queue: str = "default") -> Ticket:
    # By the clock of this moment, not of the import: to RabbitMQ everything that is twenty minutes late is equally urgent.
    return Ticket(ExecutionId(UUID(int=next(_numbers))), queue, datetime.now(UTC) - timedelta(seconds=seconds_ago))


async def receive_all(broker: Broker, inbox: str, number: int) -> list[Ticket]:
    """Receive so many, in as many rounds as it takes."""
    found: list[Ticket] = []
    async with asyncio.timeout(patience(30)):
        while len(found) < number:
            found += await broker.receive(inbox, number - len(found), SOON)
    return found


async def test_what_is_published_is_received_as_it_was(broker: Broker) -> None:
    published = [ticket(queue="mail"), ticket(queue="größer als alle")]

    await broker.publish("a", published)

    assert set(await receive_all(broker, "a", 2)) == set(published)


async def test_the_most_urgent_comes_first(broker: Broker) -> None:
    # RabbitMQ knows levels of two minutes each: these are further apart.
    by_urgency = [ticket(seconds_ago=1_150 - 150 * place) for place in range(7)]

    await broker.publish("a", [by_urgency[place] for place in (3, 0, 6, 1, 5, 2, 4)])

    assert await receive_all(broker, "a", 7) == by_urgency


async def test_an_urgent_one_overtakes_those_that_wait_already(broker: Broker) -> None:
    slow = [ticket() for _ in range(5)]
    await broker.publish("a", slow)
    urgent = ticket(seconds_ago=1_200)

    await broker.publish("a", [urgent])

    assert (await receive_all(broker, "a", 6))[0] == urgent


async def test_no_more_tickets_are_taken_than_the_limit(broker: Broker) -> None:
    await broker.publish("a", [ticket() for _ in range(5)])

    first = await broker.receive("a", 2, SOON)
    rest = await receive_all(broker, "a", 5 - len(first))

    assert 1 <= len(first) <= 2
    assert len({found.id for found in first + rest}) == 5


async def test_a_waiting_receiver_gets_a_ticket_when_it_is_published(broker: Broker) -> None:
    waiting = asyncio.ensure_future(broker.receive("a", 5, SOON))
    await asyncio.sleep(0.05)
    published = ticket()

    await broker.publish("a", [published])

    assert await waiting == [published]


async def test_nothing_comes_where_nothing_was_published(broker: Broker) -> None:
    await broker.publish("a", [ticket()])

    assert await broker.receive("b", 5, AT_ONCE) == []


async def test_each_ticket_goes_to_one_of_many(broker: Broker, another: Callable[[], Broker]) -> None:
    published = [ticket() for _ in range(60)]
    others = [broker, another(), another()]
    found: list[Ticket] = []

    async def work(worker: Broker) -> None:
        while len(found) < len(published):
            found.extend(await worker.receive("a", 3, AT_ONCE))

    await broker.publish("a", published)
    async with asyncio.timeout(patience(60)):
        await asyncio.gather(*map(work, others))

    assert sorted(found) == sorted(published)


async def test_two_systems_on_one_server_do_not_meet(broker: Broker, another: Callable[..., Broker]) -> None:
    await broker.publish("a", [ticket()])

    assert await another(namespace="another system").receive("a", 5, AT_ONCE) == []


async def test_a_worker_without_slots_keeps_no_tickets_from_others(
    broker: Broker, another: Callable[[], Broker]
) -> None:
    """RabbitMQ delivers ahead: what the first has not taken goes back for the second."""
    published = [ticket() for _ in range(10)]
    await broker.publish("a", published)
    mine = await broker.receive("a", 3, SOON)
    await broker.publish("a", [])

    others = await receive_all(another(), "a", 10 - len(mine))

    assert sorted(mine + others) == sorted(published)


async def test_a_large_batch_is_published_at_once(broker: Broker) -> None:
    published = [ticket(seconds_ago=place) for place in range(1_200)]

    await broker.publish("a", published)

    assert {found.id for found in await receive_all(broker, "a", 1_200)} == {found.id for found in published}


async def test_what_is_no_ticket_is_passed_over(broker: Broker, broker_server: BrokerServer) -> None:
    await broker.publish("a", [])
    await broker_server.put_rubbish("a")
    published = ticket()

    await broker.publish("a", [published])

    assert await receive_all(broker, "a", 1) == [published]


async def test_a_cut_connection_is_told_and_healed(broker: Broker, broker_server: BrokerServer) -> None:
    before, after = ticket(), ticket()
    await broker.publish("a", [before])
    # Who has received something is connected, and need not be cut again and again: RabbitMQ's program for it takes seconds to start.
    assert await receive_all(broker, "a", 1) == [before]
    waiting = asyncio.ensure_future(broker.receive("a", 5, 60 * SOON))
    await broker_server.cut_connections()

    async with asyncio.timeout(patience(30)):
        with pytest.raises(BrokerUnavailable):
            await waiting
    await trying("publish", broker, "a", [after])
    # Whatever was cut and not used since tells it now.
    while not (received := await trying("receive", broker, "a", 1, SOON)):
        pass
    assert received == [after]


async def test_a_server_that_is_not_there_is_said_without_its_password(unreachable: Broker) -> None:
    for verb in (unreachable.publish("a", [ticket()]), unreachable.receive("a", 1, AT_ONCE), unreachable.check()):
        with pytest.raises(BrokerUnavailable) as told:
            await verb
        assert "canary" not in str(told.value)


async def test_a_healthy_server_passes_the_check(broker: Broker) -> None:
    await broker.check()


# inboxes


def test_workers_that_can_stand_in_for_each_other_share_an_inbox() -> None:
    assert Inbox.of(["b", "a"], ["y", "x"]).name == Inbox.of(("a", "b"), {"x", "y"}).name


@pytest.mark.parametrize(
    "other",
    [
        Inbox.of(None, ["x", "y"]),
        Inbox.of(["a"], ["x", "y"]),
        Inbox.of(["a", "b"], ["x"]),
        Inbox.of(["a", "b", "x"], ["y"]),
        Inbox.of(["ab"], ["x", "y"]),
    ],
)
def test_others_have_another(other: Inbox) -> None:
    assert Inbox.of(["a", "b"], ["x", "y"]).name != other.name


def test_an_inbox_takes_what_its_workers_can_run() -> None:
    some, all_queues = Inbox.of(["a"], ["x"]), Inbox.of(None, ["x"])

    assert some.takes("a", "x")
    assert not some.takes("b", "x")
    assert not some.takes("a", "y")
    assert all_queues.takes("b", "x")
