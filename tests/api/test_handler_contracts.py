"""The contract of a handler holds for every job, however the job is written."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from tests.conftest import FreshDatabase
from tests.support.factories import make_node
from timeball import Client, Timeball
from timeball.domain.handler import Handler
from timeball.errors import InvalidInput
from timeball.handlers.catalogue import contract_of
from timeball.handlers.registry import make_handler
from timeball.sdk.options import handler_options
from timeball.store.store import Store

DECLARED: dict[str, Any] = {
    "queue": "pay",
    "priority": 80,
    "retries": 0,
    "max_lost": 2,
    "timeout": "7s",
    "backoff": "2s",
    "max_backoff": "9s",
    "delivery": "at_most_once",
    "max_running": 1,
    "tags": ["money"],
}
INHERITED = {
    "queue": "pay",
    "priority": 80,
    "max_retries": 0,
    "max_lost": 2,
    "timeout_ms": 7_000,
    "initial_backoff_ms": 2_000,
    "max_backoff_ms": 9_000,
    "delivery": "at_most_once",
    "max_running": 1,
    "limit_key": "app:charge",
    "tags": ["money"],
}
GOOD = {"handler": "app:charge", "payload": {"order": 7}}
BAD: dict[str, Any] = {"handler": "app:charge", "payload": {"ordr": "abc"}}
MISSING = {"/payload/ordr", "/payload/order"}


def charge(order: int, note: str | None = None) -> None:
    """Charge an order.

    Twice is once too often.
    """


def declared(function: Callable[..., Any] = charge, **options: Any) -> Handler:
    return make_handler(function, name="app:charge", options=handler_options(options))


async def publish(store: Store, handler: Handler, *, is_alive: bool = False) -> str:
    """Start a worker with this handler; returns the fingerprint of its contract."""
    contract = contract_of(handler)
    await store.handlers.publish([contract], is_start=True)
    if is_alive:
        await make_node(
            store, name=f"host/{contract.fingerprint}", handlers=(handler.name,), fingerprints=(contract.fingerprint,)
        )
    return contract.fingerprint


@pytest.fixture(autouse=True)
async def published(store: Store) -> str:
    return await publish(store, declared(**DECLARED))


def inherited(document: dict[str, Any]) -> dict[str, Any]:
    return {name: document[name] for name in INHERITED}


async def job(client: httpx.AsyncClient, reference: str) -> dict[str, Any]:
    found = await client.get(f"/jobs/{reference}")
    assert found.status_code == 200, found.text
    return dict(found.json())


async def test_declared_options_hold_however_a_job_is_created(client: httpx.AsyncClient) -> None:
    posted = await client.post("/jobs", json=GOOD)
    named = await client.post("/jobs", json=GOOD | {"name": "a", "schedule": "0 6 * * *"})
    await client.post("/templates", json={"name": "t", "job": GOOD})
    used = await client.post("/templates/t/use", json={"name": "b"})
    await client.post("/jobs/sync", json={"jobs": [GOOD | {"name": "c", "schedule": "manual"}]})
    alike = await client.post("/jobs/bulk", json={"jobs": [GOOD, GOOD]})
    each = await client.post("/jobs/bulk", json={"jobs": [GOOD, GOOD | {"name": "d"}], "mode": "per_item"})
    all_of_them = await client.post("/jobs/bulk", json={"jobs": [GOOD | {"name": "e"}, GOOD]})

    bulk = [item["job_id"] for made in (alike, each, all_of_them) for item in made.json()["results"]]
    for document in (posted.json(), named.json(), used.json(), await job(client, "c")):
        assert inherited(document) == INHERITED
    assert [inherited(await job(client, one)) for one in bulk] == [INHERITED] * 6
    assert posted.json()["warnings"] == alike.json()["warnings"] == []


async def test_given_options_win_and_at_most_once_must_be_loosened_explicitly(client: httpx.AsyncClient) -> None:
    told = {"queue": "default", "max_retries": 3, "delivery": "at_least_once", "tags": [], "timeout_ms": None}
    posted = await client.post("/jobs", json=GOOD | told | {"max_running": None})
    other = await client.post("/jobs", json={"handler": "test.echo", "name": "x", "payload": {"order": 1}})

    document = posted.json()
    assert {name: document[name] for name in told} == told
    assert (document["max_running"], document["limit_key"], document["priority"]) == (None, None, 80)
    assert other.json()["delivery"] == "at_least_once"
    changed = await client.patch("/jobs/x", json={"handler": "app:charge"})
    assert (changed.json()["delivery"], changed.json()["queue"]) == ("at_most_once", "default")
    loosened = await client.patch("/jobs/x", json={"delivery": "at_least_once"})
    assert loosened.json()["delivery"] == "at_least_once"
    copied = await client.post("/jobs/x/duplicate", json={"name": "y"})
    assert copied.json()["delivery"] == "at_least_once"


async def test_a_declared_limit_fits_a_job_with_serial_runs(client: httpx.AsyncClient, store: Store) -> None:
    await publish(store, declared(max_running=4))

    made = await client.post("/jobs", json=GOOD | {"name": "a", "schedule": "0 6 * * *", "overlap": "queue"})

    assert (made.status_code, made.json()["max_running"]) == (201, None)


async def test_a_declared_limit_can_be_removed_from_a_job(client: httpx.AsyncClient) -> None:
    await client.post("/jobs", json=GOOD | {"name": "a"})
    await client.post("/jobs", json=GOOD | {"name": "b", "limit_key": "own", "max_running": 2})

    freed = await client.patch("/jobs/a", json={"max_running": None})
    own = await client.patch("/jobs/b", json={"max_running": None})

    assert (freed.json()["max_running"], freed.json()["limit_key"]) == (None, None), freed.text
    assert own.status_code == 422


def pointers(response: httpx.Response) -> set[str]:
    assert (response.status_code, response.json()["code"]) == (422, "payload_mismatch"), response.text
    return {error["pointer"] for error in response.json()["errors"]}


async def test_a_payload_is_checked_however_it_is_written(client: httpx.AsyncClient) -> None:
    await client.post("/jobs", json=GOOD | {"name": "a"})
    await client.post("/jobs", json={"handler": "other", "name": "b", "payload": BAD["payload"]})
    await client.post("/templates", json={"name": "t", "job": GOOD})
    run = (await client.post("/jobs/a/trigger", json={})).json()
    await client.post(f"/executions/{run['id']}/cancel", json={})

    at_top = [
        await client.post("/jobs", json=BAD),
        await client.patch("/jobs/a", json={"payload": BAD["payload"]}),
        await client.patch("/jobs/b", json={"handler": "app:charge"}),
        await client.post("/jobs/a/duplicate", json={"payload": BAD["payload"]}),
        await client.post("/jobs/a/trigger", json={"payload": BAD["payload"]}),
        await client.post(f"/executions/{run['id']}/retry", json={"payload": BAD["payload"]}),
        await client.post("/jobs/a/retry", json={"payload": BAD["payload"]}),
        await client.post("/templates/t/use", json={"payload": BAD["payload"]}),
    ]
    within = {
        "/job": await client.post("/templates", json={"name": "u", "job": BAD}),
        "/job/": await client.patch("/templates/t", json={"job": BAD}),
        "/jobs/1": await client.post("/jobs/bulk", json={"jobs": [GOOD, BAD]}),
        "/jobs/1/": await client.post("/jobs/bulk", json={"jobs": [GOOD, BAD | {"priority": 3}]}),
        "/jobs/0": await client.post("/jobs/sync", json={"jobs": [BAD | {"name": "z"}]}),
    }
    per_item = await client.post("/jobs/bulk", json={"jobs": [GOOD, BAD], "mode": "per_item"})

    assert [pointers(one) for one in at_top] == [MISSING] * len(at_top)
    for place, response in within.items():
        assert pointers(response) == {place.rstrip("/") + pointer for pointer in MISSING}
    assert [item["status"] for item in per_item.json()["results"]] == ["created", "failed"]
    assert "ordr is unknown: did you mean order?" in per_item.json()["results"][1]["error"]


async def test_unchecked_accepts_a_payload_that_the_schema_refuses(client: httpx.AsyncClient) -> None:
    await client.post("/jobs", json=GOOD | {"name": "a"})
    unchecked = {"payload": BAD["payload"], "unchecked": True}

    made = [
        await client.post("/jobs", json=BAD | {"unchecked": True}),
        await client.post("/jobs/a/trigger", json=unchecked),
        await client.patch("/jobs/a", json=unchecked),
        await client.post("/templates", json={"name": "t", "job": BAD | {"unchecked": True}}),
        await client.post("/templates/t/use", json={"unchecked": True}),
        await client.post("/jobs/bulk", json={"jobs": [BAD | {"unchecked": True}] * 2}),
        await client.post("/jobs/sync", json={"jobs": [BAD | {"name": "z", "unchecked": True, "schedule": "manual"}]}),
    ]

    assert [one.status_code for one in made] == [201, 202, 200, 201, 201, 201, 200], [one.text for one in made]
    assert inherited(made[0].json()) == INHERITED
    assert "unchecked" not in (await client.get("/templates/t")).json()["job"]


@pytest.mark.parametrize("payload", [{"order": "7"}, {"order": 7.0, "note": None}, {"order": True}], ids=str)
async def test_a_payload_that_a_worker_converts_is_accepted(client: httpx.AsyncClient, payload: dict[str, Any]) -> None:
    charge_by = declared().binder.check
    charge_by(httpx.Request("POST", "http://x", json=payload).content.decode())

    assert (await client.post("/jobs", json=GOOD | {"payload": payload})).status_code == 201


@pytest.mark.parametrize(
    "payload",
    [
        {"order": {"$now": "attempt"}},
        {"order": {"$now": "fence"}, "note": {"$text": "no. {attempt}"}},
        {"order": 7, "note": {"$now": "scheduled_for"}},
        {"order": 7, "note": {"$now": "previous_scheduled_for"}},
        {"order": {"$literal": 7}},
    ],
    ids=str,
)
async def test_a_reference_is_accepted_where_its_value_fits(client: httpx.AsyncClient, payload: dict[str, Any]) -> None:
    response = await client.post("/jobs", json=GOOD | {"payload": payload})

    assert response.status_code == 201, response.text


@pytest.mark.parametrize(
    ("payload", "detail"),
    [
        ({"order": {"$now": "scheduled_for"}}, "expected a whole number"),
        ({"order": {"$now": "scheduled_date"}}, "expected a whole number"),
        ({"order": {"$now": "execution_id"}}, "expected a whole number"),
        ({"order": {"$text": "order {attempt}"}}, "expected a whole number"),
        ({"order": {"$now": "previous_scheduled_for"}}, "expected a whole number"),
        ({"order": 7, "note": {"$now": "attempt"}}, "note: it is not valid"),
    ],
    ids=str,
)
async def test_a_reference_is_refused_where_its_value_does_not_fit(
    client: httpx.AsyncClient, payload: dict[str, Any], detail: str
) -> None:
    response = await client.post("/jobs", json=GOOD | {"payload": payload})

    assert response.status_code == 422
    (error,) = response.json()["errors"]
    assert error["pointer"] == f"/payload/{'note' if 'note' in payload else 'order'}"
    assert detail in error["detail"]


async def test_a_reference_that_is_null_at_first_is_refused_where_null_does_not_fit(
    client: httpx.AsyncClient, store: Store
) -> None:
    def since(order: str) -> None: ...

    await publish(store, declared(since))

    response = await client.post("/jobs", json=GOOD | {"payload": {"order": {"$now": "previous_scheduled_for"}}})

    assert response.status_code == 422
    assert "null at the first occurrence" in response.json()["hint"]


async def test_a_payload_may_fit_the_contract_of_any_live_worker(client: httpx.AsyncClient, store: Store) -> None:
    def with_currency(order: int, currency: str) -> None: ...

    await publish(store, declared(), is_alive=True)
    await publish(store, declared(with_currency))

    assert (await client.post("/jobs", json=GOOD)).status_code == 201
    assert (await client.post("/jobs", json=GOOD | {"payload": {"order": 1, "currency": "CHF"}})).status_code == 201
    assert pointers(await client.post("/jobs", json=GOOD | {"payload": {}})) == {"/payload/order", "/payload/currency"}


async def test_an_unpublished_handler_is_accepted_with_a_warning(client: httpx.AsyncClient) -> None:
    stranger = {"handler": "app:chrage", "payload": {}}
    made = [
        await client.post("/jobs", json=stranger | {"name": "a"}),
        await client.post("/jobs/bulk", json={"jobs": [stranger, stranger]}),
        await client.post("/jobs/sync", json={"jobs": [stranger | {"name": "b", "schedule": "manual"}]}),
        await client.post("/templates", json={"name": "t", "job": stranger}),
        await client.post("/templates/t/use", json={}),
        await client.patch("/jobs/a", json={"handler": "app:chrage"}),
    ]

    words = "no worker provides the handler app:chrage; its executions wait until one does. Did you mean app:charge?"
    assert [one.json()["warnings"] for one in made] == [[words]] * len(made)
    assert (await client.post("/jobs", json={"handler": "test.echo"})).json()["warnings"] == []


async def test_a_handler_shows_its_published_contracts(client: httpx.AsyncClient, store: Store, published: str) -> None:
    newest = await publish(store, declared(queue="later"), is_alive=True)

    shown = (await client.get("/handlers/app:charge")).json()

    assert shown["description"] == "Charge an order."
    assert shown["doc"].endswith("Twice is once too often.")
    assert shown["options"] == {"queue": "later"}
    assert shown["payload_schema"]["required"] == ["order"]
    assert (shown["run_style"], shown["workers"], shown["example"]) == (
        "thread",
        1,
        {"order": 1},
    )
    assert [(one["fingerprint"], one["is_newest"], one["workers"]) for one in shown["versions"]] == [
        (newest, True, [f"host/{newest}"]),
        (published, False, []),
    ]


async def test_handlers_are_listed_by_name_page_by_page(client: httpx.AsyncClient, store: Store) -> None:
    await store.handlers.publish(
        [contract_of(make_handler(charge, name=f"m:{n:03}")) for n in range(30)], is_start=True
    )

    names: list[str] = []
    cursor: str | None = None
    while True:
        page = (await client.get("/handlers", params={"limit": 7} | ({"cursor": cursor} if cursor else {}))).json()
        assert len(page["data"]) <= 7
        names += [one["name"] for one in page["data"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break

    assert names == sorted(set(names))
    assert {"app:charge", "http.webhook", *(f"m:{n:03}" for n in range(30))} <= set(names)


async def test_publishing_the_newest_contract_again_writes_nothing(store: Store, published: str) -> None:
    async def places() -> list[Any]:
        async with store.database.connection() as connection:
            return list(await connection.fetch("SELECT ctid::text, started_at FROM timeball.handler"))

    before = await places()
    assert await publish(store, declared(**DECLARED)) == published
    assert await places() == before


async def test_the_contract_of_the_process_that_started_last_is_the_newest(store: Store, published: str) -> None:
    async def newest() -> str:
        return (await store.handlers.versions(["app:charge"]))["app:charge"][0].fingerprint

    other = await publish(store, declared())
    assert await newest() == other
    await store.handlers.publish([contract_of(declared(**DECLARED))], is_start=False)
    assert await newest() == other
    await publish(store, declared(**DECLARED))
    assert await newest() == published


async def test_stored_payloads_are_checked_against_other_schemas(client: httpx.AsyncClient) -> None:
    def with_currency(order: int, currency: str) -> None: ...

    fits = {"order": 1, "currency": "CHF"}
    await client.post("/jobs", json=GOOD | {"name": "old", "schedule": "0 6 * * *"})
    await client.post("/jobs", json=GOOD | {"name": "new", "payload": fits, "unchecked": True})
    one_off = (await client.post("/jobs", json=GOOD)).json()["execution_id"]
    own = (await client.post("/jobs/new/trigger", json={"payload": {"order": 3}})).json()["id"]
    await client.post("/templates", json={"name": "t", "job": GOOD})
    await client.post("/jobs", json={"handler": "other", "name": "stranger", "payload": {}})
    schema = contract_of(declared(with_currency)).schema

    found = await checked(client, [{"name": "app:charge", "payload_schema": schema}])

    assert sorted((one["kind"], one["name"] or one["id"]) for one in found) == sorted(
        [("job", "old"), ("template", "t"), ("execution", one_off), ("execution", "new")]
    )
    assert found[0]["errors"] == [{"pointer": "/payload/currency", "detail": "currency is missing"}]
    assert {one["id"] for one in found if one["kind"] == "execution"} == {one_off, own}


async def checked(client: httpx.AsyncClient, handlers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        answer = await client.post("/handlers/check", json={"handlers": handlers, "cursor": cursor})
        assert answer.status_code == 200, answer.text
        found += answer.json()["misfits"]
        cursor = answer.json()["next_cursor"]
        if cursor is None:
            return found


async def test_explain_names_the_required_version_and_the_versions_of_workers(
    client: httpx.AsyncClient, store: Store
) -> None:
    def with_currency(order: int, currency: str = "EUR") -> None: ...

    old = await publish(store, declared(), is_alive=True)
    new = await publish(store, declared(with_currency))
    made = (await client.post("/jobs", json=GOOD | {"payload": {"order": 1, "currency": "CHF"}})).json()

    why = (await client.get(f"/executions/{made['execution_id']}/explain")).json()

    gate = next(one for one in why["gates"] if one["name"] == "worker_for_handler")
    assert gate["verdict"] == "stopped"
    assert gate["sentence"] == (
        f"this payload needs version {new[:8]} of app:charge: no live worker has it; host/{old} has {old[:8]}"
    )
    assert gate["advice"].endswith("timeball handlers show app:charge")


async def test_a_waiting_execution_is_checked_with_the_payload_of_its_job_version(
    client: httpx.AsyncClient, store: Store
) -> None:
    """An edit of the job changes neither the queued execution nor its explanation."""

    def with_currency(order: int, currency: str) -> None: ...

    old = await publish(store, declared(), is_alive=True)
    new = await publish(store, declared(with_currency))
    await client.post("/jobs", json=GOOD | {"name": "edited", "schedule": "manual"})
    before = (await client.post("/jobs/edited/trigger")).json()["id"]
    fits = {"payload": {"order": 1, "currency": "CHF"}, "unchecked": True}
    changed = await client.patch("/jobs/edited", json=fits)
    assert changed.status_code == 200, changed.text
    after = (await client.post("/jobs/edited/trigger")).json()["id"]
    newest = contract_of(declared(with_currency))

    found = await checked(client, [{"name": newest.name, "payload_schema": newest.schema}])
    whys = [(await client.get(f"/executions/{one}/explain")).json() for one in (before, after)]

    gates = [next(one for one in why["gates"] if one["name"] == "worker_for_handler") for why in whys]
    assert gates[0]["verdict"] == "passed"
    assert gates[1]["sentence"].startswith(f"this payload needs version {new[:8]} of app:charge")
    assert old[:8] in gates[1]["sentence"]
    assert [(one["kind"], one["id"], one["name"]) for one in found] == [("execution", before, "edited")]


PROGRAM = """
from timeball import Timeball

tb = Timeball()

@tb.handler(name="app:charge")
def charge(order: int, currency: str) -> None: ...
"""


@pytest.mark.parametrize("by", ["server", "database"])
def test_check_against_lists_payloads_that_new_code_refuses(
    by: str, running_api: str, fresh_database: FreshDatabase, tmp_path: Path
) -> None:
    (tmp_path / "newer.py").write_text(PROGRAM)
    url = running_api if by == "server" else fresh_database.dsn
    command = [sys.executable, "-m", "timeball", "check", "newer:tb", "--against", url]

    def checked() -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)

    with Client(running_api) as timeball:
        timeball.jobs.create("app:charge", "fits", payload={"order": 1, "currency": "CHF"}, unchecked=True)
        good = checked()
        made = timeball.jobs.create("app:charge", "daily", payload={"order": 1})
        bad = checked()

    assert (good.returncode, good.stdout) == (0, ""), good.stderr
    assert "checked 1 payloads of 1 handlers: 0 do not fit" in good.stderr
    assert (bad.returncode, bad.stdout) == (1, f"job {made.id} (daily), app:charge: currency is missing\n"), bad.stderr


def test_enqueueing_a_remote_handler_takes_its_published_options(
    running_api: str, fresh_database: FreshDatabase
) -> None:
    with Timeball(database_url=fresh_database.dsn) as tb, Client(running_api) as timeball:
        tb._enqueue_client.background_loop.call(
            lambda desk: desk.parts.store.handlers.publish([contract_of(declared(**DECLARED))], is_start=True)
        )

        runs = [tb.enqueue("app:charge", {"order": 1}), tb.enqueue("app:charge", {"order": 1}, queue="mine", retries=9)]

        first, second = (timeball.jobs.get(run.job_id) for run in runs)
    assert inherited(first.model_dump()) == INHERITED
    assert (second.queue, second.max_retries, second.delivery) == ("mine", 9, "at_most_once")


def test_enqueueing_a_remote_handler_checks_payloads_by_its_contract(
    running_api: str, fresh_database: FreshDatabase
) -> None:
    with Timeball(database_url=fresh_database.dsn) as tb:
        with pytest.raises(InvalidInput) as first:
            tb.enqueue("app:charge", BAD["payload"])
        with pytest.raises(InvalidInput) as second:
            asyncio.run(tb.aenqueue("app:charge", BAD["payload"]))
        with pytest.raises(InvalidInput), psycopg.connect(fresh_database.dsn) as connection:
            tb.enqueue("app:charge", BAD["payload"], connection=connection)
        taken = [tb.enqueue("app:charge", BAD["payload"], unchecked=True), tb.enqueue("app:stranger", BAD["payload"])]

    with Client(running_api) as timeball:
        found = {one.id for one in timeball.executions.list().data}
    assert {error["pointer"] for error in first.value.errors} == MISSING
    assert str(second.value) == str(first.value)
    assert found == {run.id for run in taken}
