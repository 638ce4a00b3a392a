"""Bulk operations: results item by item, resumed after the death of a process."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.api.test_conventions import check_problem
from tests.support.factories import FAILURE, claim_all, enqueue, found, make_job, record, seconds, table
from timeball.api.server import OperationLoop
from timeball.application.commands import Commands
from timeball.application.commands.requests import Actor
from timeball.domain.bulk_operation import OperationAction, OperationItem, OperationState, OperationSubject
from timeball.domain.execution import Failed
from timeball.domain.values.ids import ExecutionId
from timeball.store.store import Store
from timeball.testing import VirtualClock

OPERATOR = Actor("somebody", "a bad release")


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let six items be too many to run within a request."""
    monkeypatch.setattr("timeball.api.resources.operations.MAX_INLINE", 5)
    monkeypatch.setattr("timeball.application.commands.bulk._BATCH", 4)


@pytest.fixture
def commands(store: Store) -> Commands:
    return Commands(store, store.env)


@pytest.fixture
def loop(commands: Commands, store: Store) -> OperationLoop:
    return OperationLoop(commands, store.env.new_id())


async def make_dead(store: Store, number: int) -> list[ExecutionId]:
    ids = [await enqueue(store, max_retries=0) for _ in range(number)]
    await record(store, [found(claimed, Failed(FAILURE)) for claimed in await claim_all(store)])
    return ids


async def retries_of(store: Store) -> list[Any]:
    return [row for row in await table(store, "ready") if row["retry_of"] is not None]


async def test_many_items_become_an_operation_in_the_background(
    client: httpx.AsyncClient, store: Store, loop: OperationLoop
) -> None:
    ids = await make_dead(store, 6)
    alive = await enqueue(store)

    begun = await client.post(
        "/executions/bulk", json={"action": "retry", "ids": [str(one) for one in (*ids, alive)], "reason": "again"}
    )
    location = begun.headers["location"].removeprefix("/api/v1")
    before = (await client.get(location)).json()
    assert await loop.round()
    after = (await client.get(location)).json()

    assert begun.status_code == 202
    assert (before["state"], before["total"], before["progress"]) == ("pending", 7, 0)
    assert (after["state"], after["done"], after["failed"], after["progress"]) == ("succeeded", 6, 1, 1)
    assert not await loop.round()
    items = (await client.get(f"{location}/items", params={"limit": 4})).json()
    more = (await client.get(f"{location}/items", params={"cursor": items["next_cursor"]})).json()
    results = items["data"] + more["data"]
    assert [item["number"] for item in results] == list(range(1, 8))
    assert {item["execution_id"] for item in results[:6]} == {
        (await client.get(f"/executions/{row['id']}")).json()["id"] for row in await retries_of(store)
    }
    (failed,) = (await client.get(f"{location}/items", params={"status": "failed"})).json()["data"]
    assert "expected a finished one" in failed["error"]
    assert [one["id"] for one in (await client.get("/operations")).json()["data"]] == [after["id"]]


async def test_security_14_a_small_operation_has_one_audit_record(client: httpx.AsyncClient, store: Store) -> None:
    ids = await make_dead(store, 3)

    done = await client.post("/dead-letter/retry", json={"all": True, "reason": "mended"})

    assert (done.status_code, done.json()["done"]) == (200, 3)
    assert {item["status"] for item in done.json()["results"]} == {"done"}
    assert len(await retries_of(store)) == 3
    assert (await client.get("/dead-letter")).json()["data"] == []
    notes = [(row["action"], row["subject"], row["reason"]) for row in await table(store, "audit")]
    assert notes == [("execution.retry", "3 executions", "mended")]
    assert (await client.post("/dead-letter/discard", json={"ids": [str(ids[0])]})).json()["failed"] == 1
    assert (await client.post("/dead-letter/discard", json={"all": True})).json()["done"] == 0


async def test_an_action_on_many_jobs_runs_in_the_background(
    client: httpx.AsyncClient, store: Store, loop: OperationLoop
) -> None:
    for number in range(7):
        await make_job(store, name=f"report-{number}", interval_seconds=60, tags=("report",))
    await make_job(store, name="other", interval_seconds=60)
    wish = {"filter": {"tag": "report"}, "reason": "holidays"}

    dry = (await client.post("/jobs/bulk/pause", json=wish | {"dry_run": True})).json()
    refused = await client.post("/jobs/bulk/pause", json=wish | {"expected_count": 6})
    begun = await client.post("/jobs/bulk/pause", json=wish | {"expected_count": 7})
    location = begun.headers["location"].removeprefix("/api/v1")
    assert await loop.round()

    assert (dry["done"], len(dry["results"]), dry["results"][0]["id"][:4]) == (7, 5, "job_")
    check_problem(refused, 409, "conflict")
    assert begun.status_code == 202
    over = (await client.get(location)).json()
    assert (over["action"], over["subject"], over["state"], over["done"]) == ("pause", "job", "succeeded", 7)
    paused = (await client.get("/jobs?status=paused")).json()["data"]
    assert {job["name"] for job in paused} == {f"report-{number}" for number in range(7)}
    assert {item["id"] for item in (await client.get(f"{location}/items")).json()["data"]} == {
        job["id"] for job in paused
    }
    # Each change is in the history of its job, with actor and reason.
    (change,) = (await client.get("/jobs/report-3/revisions")).json()["data"][:1]
    assert (change["action"], change["reason"]) == ("job.pause", "holidays")


@pytest.mark.parametrize(
    ("action", "ended", "expected"),
    [
        ("resume", False, None),
        ("trigger", False, None),
        ("cancel", False, None),
        ("retry", False, "no execution of the job has finished"),
        ("retry", True, None),
        ("delete", False, None),
    ],
)
async def test_each_action_is_applied_to_every_job_or_refused_with_a_reason(
    client: httpx.AsyncClient, store: Store, action: str, ended: bool, expected: str | None
) -> None:
    for name in ("a", "b"):
        await make_job(store, name=name, max_retries=0)
    if action == "cancel" or ended:
        await client.post("/jobs/bulk/trigger", json={"ids": ["a", "b"]})
    if ended:
        await record(store, [found(claimed, Failed(FAILURE)) for claimed in await claim_all(store)])

    done = (await client.post(f"/jobs/bulk/{action}", json={"ids": ["b", "nobody", "a"]})).json()

    assert [item["id"] for item in done["results"]] == ["b", "nobody", "a"]
    assert [item["error"] for item in done["results"]] == [expected, "there is no job nobody", expected]
    touched = [item["execution_id"] for item in done["results"] if item["execution_id"]]
    if action in ("trigger", "retry", "cancel") and expected is None:
        states = {(await client.get(f"/executions/{one}")).json()["state"] for one in touched}
        assert (len(set(touched)), states) == (2, {"cancelled" if action == "cancel" else "queued"})
    if action == "delete":
        assert (await client.get("/jobs")).json()["data"] == []


async def test_a_trigger_of_a_dead_process_is_not_repeated(
    store: Store, commands: Commands, loop: OperationLoop, clock: VirtualClock
) -> None:
    ids = [(await make_job(store, name=name)).id for name in ("a", "b")]
    dead_holder = store.env.new_id()
    operation = await commands.operations.start(
        OperationAction.TRIGGER, ids, OPERATOR, subject=OperationSubject.JOB, holder=dead_holder
    )
    first, _ = await store.operations.left(operation.id, 2)
    await commands.operations.apply_to_job(operation, first, OPERATOR)

    clock.advance(seconds(31))
    assert await loop.round()

    over = await store.operations.find(operation.id)
    assert over is not None
    assert (over.state, over.done, over.failed) == (OperationState.SUCCEEDED, 2, 0)
    assert sorted(row["job_id"] for row in await table(store, "ready")) == sorted(ids)


async def test_a_filter_for_named_jobs_leaves_out_unnamed_ones(client: httpx.AsyncClient, store: Store) -> None:
    await make_job(store, name="named")
    await enqueue(store)

    found = [
        (await client.post("/jobs/bulk/pause", json={"filter": wish, "dry_run": True})).json()["done"]
        for wish in ({"named": True}, {})
    ]

    assert found == [1, 2]


async def test_a_bulk_cancel_has_one_audit_record(client: httpx.AsyncClient, store: Store) -> None:
    ids = [await enqueue(store) for _ in range(2)]

    done = (await client.post("/jobs/bulk/cancel", json={"ids": [*map(str, ids), "nobody"]})).json()

    assert [item["status"] for item in done["results"]] == ["done", "done", "failed"]
    assert [row["action"] for row in await table(store, "audit")] == ["execution.cancel"]


async def test_a_dry_run_counts_and_an_unexpected_count_is_refused(client: httpx.AsyncClient, store: Store) -> None:
    await make_dead(store, 6)
    wish = {"action": "retry", "filter": {"status": ["dead"]}}

    dry = (await client.post("/executions/bulk", json=wish | {"dry_run": True})).json()

    assert (dry["done"], len(dry["results"]), dry["has_more"]) == (6, 5, True)
    check_problem(await client.post("/executions/bulk", json=wish | {"expected_count": 5}), 409, "conflict")
    assert await table(store, "operation") == []
    assert await retries_of(store) == []


async def test_an_operation_of_a_dead_process_is_resumed_without_repeating_items(
    store: Store, commands: Commands, loop: OperationLoop, clock: VirtualClock
) -> None:
    ids = await make_dead(store, 6)
    dead_holder = store.env.new_id()
    operation = await commands.operations.start(OperationAction.RETRY, ids, OPERATOR, holder=dead_holder)
    # The process carried out two items, recorded one of them, and died.
    first, second = await store.operations.left(operation.id, 2)
    for item in (first, second):
        await commands.operations.retry_once(item, OPERATOR)
    await store.operations.record(operation, dead_holder, [OperationItem(**{**_fields(first), "status": "done"})])
    assert not await loop.round()

    clock.advance(seconds(31))
    assert await loop.round()

    over = await store.operations.find(operation.id)
    assert over is not None
    assert (over.state, over.done, over.failed) == (OperationState.SUCCEEDED, 6, 0)
    assert sorted(str(row["retry_of"]) for row in await retries_of(store)) == sorted(map(str, ids))
    # The dead process wakes up: its lease has expired.
    assert await store.operations.record(operation, dead_holder, [second]) is None


def _fields(item: OperationItem) -> dict[str, Any]:
    return {"number": item.number, "execution_id": item.execution_id, "result_id": item.result_id}


async def test_an_operation_can_be_cancelled(
    client: httpx.AsyncClient, store: Store, commands: Commands, loop: OperationLoop
) -> None:
    ids = await make_dead(store, 6)
    operation = await commands.operations.start(OperationAction.RETRY, ids, OPERATOR)

    asked = await client.post(f"/operations/{operation.id}/cancel", json={"reason": "enough"})
    await loop.round()

    assert (asked.status_code, asked.json()["cancel_requested"]) == (202, True)
    shown = (await client.get(f"/operations/{operation.id}")).json()
    assert (shown["state"], shown["done"], shown["finished_at"] is not None) == ("cancelled", 0, True)
    check_problem(await client.post(f"/operations/{operation.id}/cancel"), 409, "conflict")
    assert await retries_of(store) == []


async def test_an_operation_with_an_unexpected_error_ends_as_failed(
    store: Store, commands: Commands, loop: OperationLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = await make_dead(store, 6)
    operation = await commands.operations.start(OperationAction.RETRY, ids, OPERATOR)

    async def surprise(*_: object) -> None:
        raise ZeroDivisionError("surprise")

    monkeypatch.setattr(commands.operations, "retry_once", surprise)
    with pytest.raises(ZeroDivisionError):
        await loop.round()

    over = await store.operations.find(operation.id)
    assert over is not None
    assert (over.state, over.error) == (OperationState.FAILED, "ZeroDivisionError('surprise')")


async def test_finished_operations_are_forgotten_after_a_week(
    store: Store, commands: Commands, loop: OperationLoop, clock: VirtualClock
) -> None:
    old = await commands.operations.start(OperationAction.CANCEL, [await enqueue(store)], OPERATOR)
    await loop.round()

    clock.advance(seconds(8 * 86_400))
    young = await commands.operations.start(OperationAction.CANCEL, [await enqueue(store)], OPERATOR)

    assert await store.operations.find(old.id) is None
    assert await store.operations.find(young.id) is not None
    assert len(await table(store, "operation_item")) == 1
