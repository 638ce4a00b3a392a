"""Fault 15 for requests of people: the reply to a COMMIT is lost, and the request is still done once, audited once, and answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.conftest import FreshDatabase
from tests.support.factories import OPERATOR, claim_all, enqueue, found, make_node, record, table
from tests.system.proxy import Proxy, proxy_to
from timeball.application.commands import Commands
from timeball.application.commands.requests import Actor
from timeball.domain.bulk_operation import OperationAction
from timeball.domain.execution import CancelOutcome
from timeball.domain.job_fields import JobSpec
from timeball.domain.values.ids import ExecutionId, JobId
from timeball.env import Env
from timeball.errors import StoreUnavailable
from timeball.store.access import ApiKeyStore
from timeball.store.db.statements import all_statements
from timeball.store.search.listing import ListingStore
from timeball.store.store import Store
from timeball.testing import VirtualClock

pytestmark = pytest.mark.parametrize("fresh_database", ["pg15"], indirect=True)

SPEC = JobSpec(name="minutely", handler="any", interval_seconds=60)
ANA = Actor("ana")


@pytest.fixture
def proxy(fresh_database: FreshDatabase, short_folder: Path) -> Iterator[Proxy]:
    with proxy_to(fresh_database.server.host, short_folder / "proxy") as started:
        yield started


@dataclass(frozen=True)
class Front:
    """A store that uses the proxy; the fixtures wrote to the database without it."""

    store: Store
    commands: Commands
    clock: VirtualClock
    job_id: JobId
    ended: ExecutionId


@pytest.fixture
async def front(
    proxy: Proxy, fresh_database: FreshDatabase, store: Store, env: Env, clock: VirtualClock
) -> AsyncIterator[Front]:
    """A job that runs every minute, an execution that waits, and one that has finished."""
    created = await Commands(store, env).jobs.create(SPEC)
    ended = await enqueue(store)
    (claimed,) = await claim_all(store)
    await record(store, [found(claimed, CancelOutcome("enough"))])
    await enqueue(store, queue="waiting")
    through = Store(proxy.dsn(fresh_database.name), env)
    await through.open(migrates=False)
    yield Front(through, Commands(through, env), clock, created.job_id, ended)
    await through.close()


async def executions_made(store: Store) -> list[Any]:
    rows = [*await table(store, "ready"), *await table(store, "due")]
    return sorted(row["id"] for row in rows if row["origin"] not in ("enqueue", "schedule"))


# Requests that create executions: they return the ids, and there are no other executions.


async def trigger(front: Front) -> list[ExecutionId]:
    return [await front.commands.executions.trigger(front.job_id, {"a": 1}, ANA)]


async def retry(front: Front) -> list[ExecutionId]:
    return [await front.commands.executions.retry(front.ended, None, ANA)]


async def retry_unaudited(front: Front) -> list[ExecutionId]:
    new_id = ExecutionId(front.store.env.new_id())
    return [await front.commands.executions.retry_with_id(new_id, front.ended, actor=ANA, is_audited=False)]


MAKING = pytest.mark.parametrize(
    ("make", "notes"),
    [
        pytest.param(trigger, 1, id="trigger"),
        pytest.param(retry, 1, id="retry"),
        pytest.param(retry_unaudited, 0, id="retry by an operation"),
    ],
)
Make = Callable[[Front], Awaitable[list[ExecutionId]]]


@MAKING
async def test_a_committed_write_is_not_repeated(
    front: Front, proxy: Proxy, store: Store, make: Make, notes: int
) -> None:
    """Fault 15."""
    cut = proxy.lose_reply("COMMIT;")

    made = await make(front)

    assert cut.happened.is_set()
    assert await executions_made(store) == sorted(made)
    assert len([row for row in await table(store, "audit") if row["actor"] == "ana"]) == notes


@MAKING
async def test_an_uncommitted_write_is_repeated(
    front: Front, store: Store, make: Make, notes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, commits = "_Transaction__commit", []
    commit = getattr(asyncpg.transaction.Transaction, name)

    async def cut_once(transaction: Any) -> None:
        commits.append(transaction)
        if len(commits) == 1:
            raise ConnectionResetError
        await commit(transaction)

    monkeypatch.setattr(asyncpg.transaction.Transaction, name, cut_once)

    made = await make(front)

    assert len(commits) == 2
    assert await executions_made(store) == sorted(made)
    assert len([row for row in await table(store, "audit") if row["actor"] == "ana"]) == notes


@pytest.mark.parametrize("is_claimed", [False, True])
async def test_a_commit_that_arrives_after_the_look_up_is_the_only_one(
    front: Front, store: Store, monkeypatch: pytest.MonkeyPatch, is_claimed: bool
) -> None:
    """The look-up finds nothing, and then the first transaction commits. Its executions may even be running by then."""
    first = await store.database.connect()
    transaction = first.transaction()
    repeat, tries = front.store.database.repeat, []

    async def late_the_first_time(work: Any, **others: Any) -> Any:
        tries.append(work)
        if len(tries) == 1:
            await transaction.start()
            await work(first)
            raise StoreUnavailable("no answer")
        if is_claimed:
            await transaction.commit()
            await claim_all(store)
            return await repeat(work, **others)
        result, _ = await asyncio.gather(repeat(work, **others), commit_when_it_is_waited_for())
        return result

    async def commit_when_it_is_waited_for() -> None:
        while not await first.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):
            await asyncio.sleep(0.01)
        await transaction.commit()

    monkeypatch.setattr(front.store.database, "repeat", late_the_first_time)

    made = await front.commands.executions.trigger(front.job_id)

    await first.close()
    assert len(tries) == 2
    rows = [*await table(store, "ready"), *await table(store, "running")]
    assert [row["id"] for row in rows if row["origin"] == "trigger"] == [made]
    assert [row["action"] for row in await table(store, "audit")] == ["job.create", "job.trigger"]


# Requests that change something: no error if it was done, and one audit row.


async def drain(front: Front, store: Store) -> None:
    await front.commands.nodes.drain(await make_node(store), ANA)


async def change_template(front: Front, store: Store) -> None:
    template = await Commands(store, store.env).templates.create("t", {"handler": "any"})
    await front.commands.templates.update(template.id, {"name": "u"}, ANA, expected_version=1)


async def delete_template(front: Front, store: Store) -> None:
    template = await Commands(store, store.env).templates.create("t", {"handler": "any"})
    await front.commands.templates.delete(template.id, ANA)


async def revoke_key(front: Front, store: Store) -> None:
    key, _ = await ApiKeyStore(store.database).create("viewer", "k", None, OPERATOR)
    await ApiKeyStore(front.store.database).revoke(key.id, ANA.entry)


async def make_key(front: Front, store: Store) -> None:
    _, token = await ApiKeyStore(front.store.database).create("viewer", "k", None, ANA.entry)
    assert await ApiKeyStore(store.database).recognise(token)


async def cancel_waiting(front: Front, store: Store) -> None:
    (row,) = await table(store, "ready")
    assert await front.commands.executions.cancel([row["id"]], ANA) == {row["id"]}


async def purge(front: Front, store: Store) -> None:
    assert await front.commands.queues.purge("waiting", ANA) == 1


async def settle(front: Front, store: Store) -> None:
    async with store.database.connection() as connection:
        await connection.execute("UPDATE timeball.finished SET state = 'dead'")
    listing = ListingStore(front.store.database)
    assert await listing.settle([front.ended], "discarded", ANA.entry) == {front.ended}


async def cancel_operation(front: Front, store: Store) -> None:
    begun = await Commands(store, store.env).operations.start(OperationAction.CANCEL, [front.ended])
    assert (await front.commands.operations.cancel(begun.id, ANA)).cancel_requested


BY_HAND = JobSpec(name="b", handler="h", schedule="manual")
CHANGES: dict[str, Callable[[Front, Store], Awaitable[Any]]] = {
    "job.update": lambda front, _: front.commands.jobs.update(front.job_id, {"priority": 7}, ANA, expected_version=1),
    "job.pause": lambda front, _: front.commands.jobs.pause(front.job_id, actor=ANA),
    "job.skip_next": lambda front, _: front.commands.jobs.skip_next(front.job_id, ANA),
    "job.delete": lambda front, _: front.commands.jobs.delete(front.job_id, ANA),
    "job.create": lambda front, _: front.commands.jobs.sync([BY_HAND], "here", actor=ANA),
    "execution.cancel": cancel_waiting,
    "execution.retry": lambda front, _: front.commands.operations.start(OperationAction.RETRY, [front.ended], ANA),
    "operation.cancel": cancel_operation,
    "dead_letter.discarded": settle,
    "queue.pause": lambda front, _: front.commands.queues.pause("q", ANA),
    "queue.limit": lambda front, _: front.commands.queues.limit("q", 3, ANA),
    "queue.purge": purge,
    "node.drain": drain,
    "template.create": lambda front, _: front.commands.templates.create("t", {"handler": "any"}, actor=ANA),
    "template.update": change_template,
    "template.delete": delete_template,
    "key.create": make_key,
    "key.revoke": revoke_key,
}


@pytest.mark.parametrize("action", CHANGES)
async def test_a_committed_change_is_returned_and_audited_once(
    front: Front, proxy: Proxy, store: Store, action: str
) -> None:
    """Fault 15."""
    cut = proxy.lose_reply("COMMIT;")

    await CHANGES[action](front, store)

    assert cut.happened.is_set()
    assert [row["action"] for row in await table(store, "audit") if row["actor"] == "ana"] == [action]


async def test_an_occurrence_alone_is_skipped(front: Front, proxy: Proxy, store: Store) -> None:
    proxy.lose_reply("COMMIT;")

    await front.commands.jobs.skip_next(front.job_id)

    states = [execution.state for execution in await store.history.of_job(front.job_id)]
    assert states == ["scheduled", "cancelled"]


@pytest.mark.parametrize("rows_at_once", [100, 30])
@pytest.mark.parametrize("after", [None, timedelta(hours=1)])
@pytest.mark.parametrize("actor", [Actor(), ANA])
async def test_a_committed_bulk_enqueue_is_returned(
    front: Front,
    proxy: Proxy,
    store: Store,
    clock: VirtualClock,
    monkeypatch: pytest.MonkeyPatch,
    rows_at_once: int,
    after: timedelta | None,
    actor: Actor,
) -> None:
    monkeypatch.setattr("timeball.store.enqueue._BULK_SLICE", rows_at_once)
    is_one_statement = rows_at_once == 100 and after is None and actor == Actor()
    cut = proxy.lose_reply(all_statements()["enqueue_alike"].numbered() if is_one_statement else "COMMIT;")
    spec = JobSpec(handler="work", queue="bulk", scheduled_at=None if after is None else clock.now() + after)

    made = await front.commands.jobs.enqueue_many(spec, ["{}"] * 100, actor)

    assert cut.happened.is_set()
    state_table = await table(store, "ready" if after is None else "due")
    assert sorted(row["id"] for row in state_table if row["queue"] == "bulk") == sorted(made)


# A write without a commit was not done, and fails at once.


async def test_a_bulk_enqueue_that_was_cut_off_before_its_commit_is_not_repeated(
    front: Front, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any) -> None:
        raise StoreUnavailable("away")

    monkeypatch.setattr("timeball.store.jobs.audit_columns", away)

    with pytest.raises(StoreUnavailable):
        await front.commands.jobs.pause(front.job_id)

    assert (await store.jobs.find([front.job_id]))[front.job_id].paused_at is None


async def test_a_failing_unblock_does_not_undo_a_commit(
    front: Front, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    created = await Commands(store, store.env).jobs.create(
        JobSpec(name="limited", handler="any", max_running=1, schedule="manual")
    )

    async def away(*_: Any) -> None:
        raise StoreUnavailable("away")

    monkeypatch.setattr(front.store.executions, "unblock", away)

    made = await front.commands.executions.trigger(created.job_id)

    assert [row["id"] for row in await table(store, "blocked")] == [made]
