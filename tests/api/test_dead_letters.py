"""Groups of dead letters by error, handler and queue; their deaths over time; actions on a whole group."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.api.test_conventions import check_problem
from tests.support.factories import FAILURE, claim_all, enqueue, found, record, seconds, table
from timeball.domain.execution import ErrorInfo, Failed, parse_states
from timeball.domain.search import NO_FINGERPRINT, ExecutionFilter, PageRequest, where
from timeball.store.search.listing import ListingStore
from timeball.store.store import Store
from timeball.testing import VirtualClock

NAMELESS = ErrorInfo(type="KilledError", message="gone")


async def die(store: Store, number: int, error: ErrorInfo = FAILURE, **fields: Any) -> None:
    for _ in range(number):
        await enqueue(store, max_retries=0, **fields)
    claimed = await claim_all(store, handlers=["h", "other"])
    now = store.env.clock.now()
    await record(store, [found(one, Failed(error), started_at=now, finished_at=now) for one in claimed])


@pytest.fixture
async def graves(store: Store, clock: VirtualClock) -> None:
    """Three executions with one error in two queues, and a day later two without a fingerprint."""
    await die(store, 2, queue="mail", handler="h")
    await die(store, 1, queue="crm", handler="h")
    clock.advance(seconds(86_400))
    await die(store, 2, NAMELESS, queue="crm", handler="other")


async def groups(client: httpx.AsyncClient, by: str) -> dict[str, int]:
    listed = (await client.get("/dead-letter/groups", params={"by": by})).json()["data"]
    field = "fingerprint" if by == "error" else by
    return {group[field]: group["executions"] for group in listed}


@pytest.mark.usefixtures("graves")
async def test_dead_letters_are_grouped_by_error_handler_or_queue(client: httpx.AsyncClient) -> None:
    assert await groups(client, "error") == {"abc": 3, NO_FINGERPRINT: 2}
    assert await groups(client, "handler") == {"h": 3, "other": 2}
    assert await groups(client, "queue") == {"crm": 3, "mail": 2}
    check_problem(await client.get("/dead-letter/groups?by=colour"), 422, "invalid_input")


@pytest.mark.usefixtures("graves")
async def test_a_group_shows_its_latest_error_and_its_handlers_and_queues(client: httpx.AsyncClient) -> None:
    crm, mail = (await client.get("/dead-letter/groups?by=queue")).json()["data"]

    assert (crm["error_type"], crm["latest_error"], crm["top_frame"]) == ("KilledError", "gone", None)
    assert (mail["error_type"], mail["latest_error"], mail["top_frame"]) == ("ValueError", "no", "f:1")
    assert (crm["handlers"], mail["handlers"]) == (["h", "other"], ["h"])
    assert (crm["fingerprint"], crm["handler"], crm["queues"]) == (None, None, ["crm"])
    assert crm["latest_id"] in [one["id"] for one in (await client.get("/dead-letter?queue=crm")).json()["data"]]


@pytest.mark.usefixtures("graves")
async def test_deaths_are_counted_over_the_same_span_for_all_groups(
    client: httpx.AsyncClient, clock: VirtualClock
) -> None:
    clock.advance(seconds(86_400))

    abc, nameless = (await client.get("/dead-letter/groups")).json()["data"]

    assert abc["deaths"]["counts"] == [3, *[0] * 23]
    assert nameless["deaths"]["counts"] == [*[0] * 11, 2, *[0] * 12]
    assert abc["deaths"]["since"] == nameless["deaths"]["since"] == abc["first_at"]
    assert abc["deaths"]["until"] == nameless["deaths"]["until"]


async def test_a_death_at_this_instant_is_counted(client: httpx.AsyncClient, store: Store) -> None:
    await die(store, 2, handler="h")

    (group,) = (await client.get("/dead-letter/groups")).json()["data"]

    assert sum(group["deaths"]["counts"]) == 2


@pytest.mark.usefixtures("graves")
@pytest.mark.parametrize(
    ("choice", "done", "left"),
    [
        ({"fingerprint": NO_FINGERPRINT}, 2, {"abc": 3}),
        ({"fingerprint": "abc"}, 3, {NO_FINGERPRINT: 2}),
        ({"handler": "other"}, 2, {"abc": 3}),
        ({"queue": "mail"}, 2, {"abc": 1, NO_FINGERPRINT: 2}),
    ],
)
@pytest.mark.parametrize("idempotency", ["retry", "discard"])
async def test_an_action_on_a_group_affects_all_of_it_and_no_other(
    client: httpx.AsyncClient, store: Store, idempotency: str, choice: dict[str, str], done: int, left: dict[str, int]
) -> None:
    listed = (await client.get("/dead-letter", params=choice)).json()["data"]

    result = (await client.post(f"/dead-letter/{idempotency}", json=choice)).json()

    assert (len(listed), result["done"], result["failed"]) == (done, done, 0)
    assert {item["id"] for item in result["results"]} == {one["id"] for one in listed}
    assert await groups(client, "error") == left
    assert len(await table(store, "ready")) == (done if idempotency == "retry" else 0)


@pytest.mark.parametrize("choice", [{}, {"queue": "mail", "handler": "h"}, {"all": True, "fingerprint": "abc"}])
async def test_dead_letters_are_chosen_in_exactly_one_way(client: httpx.AsyncClient, choice: dict[str, Any]) -> None:
    check_problem(await client.post("/dead-letter/retry", json=choice), 422, "invalid_input")


@pytest.mark.usefixtures("graves")
async def test_executions_without_a_fingerprint_are_found_by_search(client: httpx.AsyncClient) -> None:
    found = (await client.get("/executions", params={"q": f"fingerprint:{NO_FINGERPRINT}"})).json()["data"]

    assert [one["error_type"] for one in found] == ["KilledError"] * 2


async def test_executions_without_a_fingerprint_are_read_by_their_index(store: Store) -> None:
    wanted = ExecutionFilter(where(status=parse_states(["dead"]), fingerprint=NO_FINGERPRINT, settled="no"))

    plan = await ListingStore(store.database).explain_executions(wanted, PageRequest(limit=50))

    assert "fingerprint IS NULL" in plan
    assert "fingerprint_id_idx" in plan
    assert "Seq Scan" not in plan
