"""Groups over HTTP: begin, list, show with their parts, cancel; and what executions tell of their group."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from tests.api.test_conventions import check_problem
from tests.api.test_handler_contracts import GOOD, declared, publish
from tests.support.factories import FAILURE, claim_all, found, record, table
from timeball.application.commands import Commands
from timeball.domain.execution import Failed, Succeeded
from timeball.domain.values.ids import IdempotentRequest, format_execution_id, parse_id
from timeball.store.store import Store

MakeKey = Callable[[str], Awaitable[dict[str, str]]]
READ = {"handler": "read", "payload": {}}
JOIN = {"handler": "join", "payload": {"pages": {"$cause": "results"}}}
TELL = {"handler": "tell", "payload": {"error": {"$cause": "error"}}}
SHELL = {"handler": "shell.command", "payload": {"command": "id"}}


async def begun(client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    response = await client.post("/groups", json=body)
    assert response.status_code == 201, response.text
    document: dict[str, Any] = response.json()
    return document


async def end(store: Store, *outcomes: Any, handler: str = "read") -> None:
    """End the first claimed executions of a handler so."""
    claims = await claim_all(store, handlers=[handler])
    await record(store, [found(claimed, outcome) for claimed, outcome in zip(claims, outcomes, strict=True)])


FAILS = Failed(FAILURE, is_retryable=False)


async def test_a_group_is_begun_listed_and_shown_with_its_parts(client: httpx.AsyncClient, store: Store) -> None:
    response = await client.post(
        "/groups", json={"group": [READ, {**READ, "queue": "scans"}], "then": JOIN, "meta": {"tenant": "acme"}}
    )
    created = response.json()
    (claimed,) = [one for one in await claim_all(store, handlers=["read"]) if one.queue == "scans"]
    await record(store, [found(claimed, Succeeded())])

    shown = (await client.get(f"/groups/{created['id']}")).json()
    listed = (await client.get("/groups")).json()

    assert response.headers["location"] == f"/api/v1/groups/{created['id']}"
    assert (created["state"], created["total"], created["waits_for"], created["meta"]) == (
        "open",
        2,
        2,
        {"tenant": "acme"},
    )
    assert created["created_by"] is not None
    assert (shown["succeeded"], shown["failed"], shown["waits_for"], shown["progress"]) == (1, 0, 1, 0.5)
    states = [(part["number"], part["state"], part["steps"][0]["state"]) for part in shown["parts"]]
    assert states == [(1, "open", "running"), (2, "succeeded", "succeeded")]
    assert shown["parts"][1]["steps"][0]["execution_id"] == format_execution_id(claimed.id)
    assert shown["parts"][0]["steps"][0]["handler"] == "read"
    assert [group["id"] for group in listed["data"]] == [created["id"]]
    assert all(job["meta"] is not None for job in await table(store, "job"))


async def test_what_follows_a_group_tells_which(client: httpx.AsyncClient, store: Store) -> None:
    created = await begun(client, group=[READ, READ], then=JOIN, on_failure=TELL)
    await end(store, Succeeded(), FAILS)

    shown = (await client.get(f"/groups/{created['id']}")).json()
    (follower,) = shown["followed_by"]
    told = (await client.get(f"/executions/{follower}")).json()
    failed = next(part["steps"][0] for part in shown["parts"] if part["state"] == "failed")
    part = (await client.get(f"/executions/{failed['execution_id']}")).json()

    assert (shown["state"], shown["succeeded"], shown["failed"], shown["progress"]) == ("failed", 1, 1, 1.0)
    assert shown["closed_at"] is not None
    assert (told["handler"], told["follows"], told["group"]) == ("tell", created["id"], None)
    assert failed["error"] == f"{FAILURE.type}: {FAILURE.message}"
    assert part["group"]["id"] == created["id"]
    assert shown["parts"][part["group"]["part"] - 1]["steps"][0] == failed


async def test_a_part_may_be_a_chain_or_a_group(client: httpx.AsyncClient, store: Store) -> None:
    chain = {
        "chain": [
            READ,
            {"handler": "scan", "payload": {"page": {"$cause": "result"}}},
            {"handler": "index", "payload": {}},
        ]
    }
    created = await begun(client, group=[chain, {"group": [{"handler": "inner", "payload": {}}] * 3}])
    await end(store, Succeeded())

    shown = (await client.get(f"/groups/{created['id']}")).json()
    first, second = shown["parts"]
    (inner,) = second["steps"]

    assert [(step["handler"], step["state"]) for step in first["steps"]] == [("read", "succeeded"), ("scan", "queued")]
    assert (first["state"], first["steps_left"]) == ("open", 1)
    assert (inner["execution_id"], inner["group"]["total"], inner["group"]["group"]) == (None, 3, created["id"])
    assert [part["steps"][0]["handler"] for part in inner["parts"]] == ["inner"] * 3
    scan = (await client.get(f"/executions/{first['steps'][1]['execution_id']}")).json()
    assert scan["group"] == {"id": created["id"], "part": 1}
    assert scan["follows"] == first["steps"][0]["execution_id"]
    # The list has the outer ones, unless all are asked for.
    assert len((await client.get("/groups")).json()["data"]) == 1
    nested = (await client.get("/groups", params={"nested": "true"})).json()["data"]
    assert {group["id"] for group in nested} == {created["id"], inner["group"]["id"]}


async def test_a_chain_of_its_own_is_a_group_of_one_part(client: httpx.AsyncClient, store: Store) -> None:
    created = await begun(
        client, chain=[READ, {"handler": "scan", "payload": {"page": {"$cause": "result"}}}], on_failure=TELL
    )
    await end(store, FAILS)

    shown = (await client.get(f"/groups/{created['id']}")).json()

    assert (shown["total"], shown["state"], len(shown["parts"][0]["steps"])) == (1, "failed", 1)
    assert [job["handler"] for job in await table(store, "job") if job["follows"] is not None] == ["tell"]


async def test_parts_and_groups_come_in_pages(client: httpx.AsyncClient, store: Store) -> None:
    groups = [await begun(client, group=[READ] * 5) for _ in range(3)]

    pages = []
    cursor = ""
    for _ in range(3):
        page = (await client.get(f"/groups/{groups[0]['id']}?limit=2{cursor}")).json()
        pages.append([part["number"] for part in page["parts"]])
        cursor = f"&cursor={page['next_cursor']}"
    first = (await client.get("/groups?limit=2")).json()
    second = (await client.get("/groups", params={"limit": 2, "cursor": first["next_cursor"]})).json()

    assert pages == [[1, 2], [3, 4], [5]]
    assert (page["has_more"], page["next_cursor"]) == (False, None)
    assert (first["has_more"], second["has_more"]) == (True, False)
    assert sorted(g["id"] for g in (*first["data"], *second["data"])) == sorted(g["id"] for g in groups)
    check_problem(await client.get(f"/groups/{groups[0]['id']}?cursor=x"), 422, "invalid_input")
    check_problem(await client.get("/groups?include=total"), 422, "invalid_input")


async def test_a_state_chooses_groups_and_open_chooses_parts(client: httpx.AsyncClient, store: Store) -> None:
    closed = await begun(client, group=[READ])
    await end(store, Succeeded())
    opened = await begun(client, group=[READ, READ])
    (one, _) = await claim_all(store, handlers=["read"])
    await record(store, [found(one, FAILS)])

    states = {
        state: [group["id"] for group in (await client.get(f"/groups?state={state}")).json()["data"]]
        for state in ("open", "succeeded", "failed")
    }
    parts = (await client.get(f"/groups/{opened['id']}?open=true")).json()["parts"]

    assert states == {"open": [opened["id"]], "succeeded": [closed["id"]], "failed": []}
    assert [part["state"] for part in parts] == ["open"]
    check_problem(await client.get("/groups?state=dead"), 422, "invalid_input")


async def test_a_group_is_cancelled_once(client: httpx.AsyncClient, store: Store) -> None:
    created = await begun(client, group=[READ, READ], then=JOIN, on_failure=TELL)

    cancelled = await client.post(f"/groups/{created['id']}/cancel", json={"reason": "not needed"})
    again = await client.post(f"/groups/{created['id']}/cancel")

    assert (cancelled.status_code, cancelled.json()["cancelled"], cancelled.json()["state"]) == (200, 2, "failed")
    check_problem(again, 409, "conflict")
    assert [job["handler"] for job in await table(store, "job") if job["follows"] is not None] == ["tell"]
    shown = (await client.get(f"/groups/{created['id']}")).json()
    assert {part["steps"][0]["error"] for part in shown["parts"]} == {"not needed"}


async def test_a_group_is_begun_once_under_a_key(client: httpx.AsyncClient, store: Store) -> None:
    headers = {"Idempotency-Key": "book-7"}

    responses = [await client.post("/groups", json={"group": [READ, READ]}, headers=headers) for _ in range(2)]

    assert [response.status_code for response in responses] == [201, 201]
    assert responses[0].json() == responses[1].json()
    assert responses[1].headers["idempotent-replayed"] == "true"
    assert (len(await table(store, "job")), len(await table(store, "execution_group"))) == (2, 1)


async def test_a_group_is_written_once_if_the_first_response_was_lost(store: Store) -> None:
    """The same request writes nothing again, and no second line of the audit."""
    groups, request = Commands(store, store.env).groups, IdempotentRequest(store.env.new_id())

    first = await groups.create({"group": [READ]}, idempotency=request)
    second = await groups.create({"group": [READ]}, idempotency=replace(request, is_repeated=True))

    assert second == first
    audited = [line for line in await table(store, "audit") if line["action"] == "group.create"]
    assert (len(await table(store, "job")), len(audited)) == (1, 1)


async def test_a_new_group_is_audited_with_its_author(
    client: httpx.AsyncClient, store: Store, make_key: MakeKey
) -> None:
    editor = await make_key("editor")
    response = await client.post(
        "/groups", json={"group": [READ, READ, JOIN | {"payload": {}}], "reason": "import"}, headers=editor
    )

    (line,) = [line for line in await table(store, "audit") if line["action"] == "group.create"]

    assert line["subject"] == f"group:{parse_id('grp', response.json()['id'])}"
    assert (line["reason"], "editor" in line["actor"]) == ("import", True)
    assert '"parts": 3' in line["after"] or line["after"]["parts"] == 3
    assert "editor" in response.json()["created_by"]
    assert {job["created_by"] for job in await table(store, "job")} == {response.json()["created_by"]}


async def test_only_an_administrator_puts_a_command_into_a_group(
    client: httpx.AsyncClient, store: Store, make_key: MakeKey
) -> None:
    keys = {role: await make_key(role) for role in ("viewer", "operator", "editor", "admin")}
    nested = [
        {"group": [READ, {"chain": [READ, {"group": [SHELL]}]}]},
        {"group": [READ], "then": SHELL},
        {"group": [READ], "on_failure": {**READ, "on_success": SHELL}},
        {"chain": [READ, SHELL]},
    ]

    refused = [await client.post("/groups", json=body, headers=keys["editor"]) for body in nested]
    allowed = await client.post("/groups", json=nested[0], headers=keys["admin"])
    below = [
        await client.post("/groups", json={"group": [READ]}, headers=keys[role]) for role in ("viewer", "operator")
    ]

    assert [(each.status_code, each.json()["code"]) for each in refused] == [(403, "forbidden")] * 4
    assert (allowed.status_code, [each.status_code for each in below]) == (201, [403, 403])
    cancelled = f"/groups/{allowed.json()['id']}/cancel"
    assert (await client.post(cancelled, headers=keys["viewer"])).status_code == 403
    assert (await client.get(cancelled.removesuffix("/cancel"), headers=keys["viewer"])).status_code == 200
    assert (await client.post(cancelled, headers=keys["operator"])).status_code == 200


async def test_secrets_in_a_group_are_bound(client: httpx.AsyncClient, store: Store, make_key: MakeKey) -> None:
    part = {"handler": "read", "payload": {"key": {"$secret": "K"}}}

    await client.post("/groups", json={"group": [part, READ]}, headers=await make_key("editor"))
    await client.post("/groups", json={"group": [part]}, headers=await make_key("admin"))

    bound = [job["bound_secrets_only"] for job in await table(store, "job") if "$secret" in str(job["payload"])]
    assert sorted(bound) == [False, True]


async def test_a_call_takes_what_its_handler_declares(client: httpx.AsyncClient, store: Store) -> None:
    await publish(store, declared(priority=80, queue="pay"))

    created = await begun(client, group=[GOOD, {**GOOD, "queue": "own"}])
    refused = await client.post("/groups", json={"group": [READ, READ, READ, {**GOOD, "payload": {"x": 1}}]})
    unchecked = await client.post("/groups", json={"group": [{**GOOD, "payload": {"x": 1}}], "unchecked": True})

    assert sorted((job["queue"], job["priority"]) for job in (await table(store, "job"))[:2]) == [
        ("own", 80),
        ("pay", 80),
    ]
    assert created["warnings"] == []
    problem = check_problem(refused, 422, refused.json()["code"])
    assert all(error["pointer"].startswith("/group/3/payload") for error in problem["errors"])
    assert unchecked.status_code == 201


async def test_an_unknown_handler_is_a_warning(client: httpx.AsyncClient) -> None:
    created = await begun(client, group=[READ], then=JOIN)

    assert [("read" in text, "join" in text) for text in sorted(created["warnings"])] == [(False, True), (True, False)]


DEEP: dict[str, Any] = READ
for _ in range(22):
    DEEP = {"group": [DEEP]}


@pytest.mark.parametrize(
    ("body", "pointer", "detail"),
    [
        ({}, "", "group and chain are both given or both missing"),
        ({"group": [READ], "chain": [READ]}, "", "group and chain are both given or both missing"),
        ({"group": []}, "/group", "the group is empty, expected one or more calls"),
        ({"chain": []}, "/chain", "the chain is empty"),
        ({"group": [READ, {"group": []}]}, "/group/1/group", "the group is empty"),
        ({"group": [READ] * 10_001}, "/group", "the group has 10,001 calls, expected at most 10,000"),
        (DEEP, "", "more than 20 deep"),
        ({"group": [READ, 7]}, "/group/1", ""),
        ({"group": [READ, {"payload": {}}]}, "/group/1/handler", "handler is missing"),
        ({"group": [{"handler": ["x"]}]}, "/group/0/handler", ""),
        ({"group": [{**READ, "schedule": "@daily"}]}, "/group/0/schedule", "starts when that run has ended"),
        ({"group": [{**READ, "priority": 101}]}, "/group/0/priority", "priority is 101, expected 0 to 100"),
        ({"group": [READ, {"handler": "h", "payload": {"a": {"$cause": "result"}}}]}, "/group/1/payload/a/$cause", "no run comes before"),
        ({"chain": [READ, {"handler": "h", "payload": {"a": {"$cause": "error"}}}]}, "/chain/1/payload/a/$cause", ""),
        ({"group": [READ], "then": {"handler": "h", "payload": {"a": {"$cause": "result"}}}}, "/then/payload/a/$cause", "results"),
        ({"chain": [READ], "then": READ}, "/then", "then is unknown beside a chain"),
        ({"group": [READ, {"handler": "http.webhook", "payload": {"url": 3}}]}, "/group/1/payload/url", "url"),
        ({"group": [READ], "then": {"chain": [READ, {"handler": "http.webhook", "payload": {}}]}}, "/then/chain/1/payload/url", ""),
        ({"group": [{"handler": "h", "payload": {"a": "x" * 300_000}}]}, "/group/0/payload", "expected at most 262144"),
        ({"group": [READ], "meta": {"a": "x" * 5_000}}, "/meta", "4"),
        ({"group": [READ], "meta": {"password": "••••••"}}, "/meta", ""),
        ({"group": [READ], "queue": "q"}, "/queue", "queue is unknown"),
    ],
)  # fmt: skip
async def test_a_group_that_cannot_be_begun_is_refused_with_a_pointer(
    client: httpx.AsyncClient, store: Store, body: dict[str, Any], pointer: str, detail: str
) -> None:
    response = await client.post("/groups", json=body)

    problem = check_problem(response, 422, response.json().get("code"))
    assert detail in problem["detail"]
    if pointer:
        assert [error["pointer"] for error in problem["errors"]] == [pointer]
    assert await table(store, "execution_group") == []


async def test_a_group_that_does_not_exist_is_not_found(client: httpx.AsyncClient) -> None:
    for path in ("/groups/grp_01JCV3V1KC8M2T4QZ5R7N9X0AB", "/groups/exe_01JCV3V1KC8M2T4QZ5R7N9X0AB", "/groups/x"):
        check_problem(await client.get(path), 404, "not_found")
        check_problem(await client.post(f"{path}/cancel"), 404, "not_found")


async def test_executions_are_searched_by_their_group(client: httpx.AsyncClient, store: Store) -> None:
    chain = {"chain": [READ, {"handler": "scan", "payload": {}}]}
    created = await begun(client, group=[chain, READ])
    await begun(client, group=[READ])
    await client.post("/jobs", json=READ)
    await end(store, *[Succeeded()] * 4)

    inside = (await client.get("/executions", params={"q": f"group:{created['id']}"})).json()["data"]
    outside = (await client.get("/executions", params={"q": f"-group:{created['id']}"})).json()["data"]
    none = (await client.get("/executions", params={"q": "group:other"})).json()["data"]

    assert sorted(run["handler"] for run in inside) == ["read", "read", "scan"]
    assert (len(outside), none) == (2, [])


async def test_a_group_says_for_which_parts_it_waits_and_why(client: httpx.AsyncClient, store: Store) -> None:
    inner = {"group": [{"handler": "inner", "payload": {}}] * 2}
    created = await begun(client, group=[{**READ, "queue": "scans"}, READ, inner])
    path = f"/groups/{created['id']}/explain"
    await client.post("/queues/scans/pause", json={"reason": "scanner"})
    (claimed,) = [one for one in await claim_all(store, handlers=["read"]) if one.queue == "default"]
    await record(store, [found(claimed, Succeeded())])

    explained = (await client.get(path)).json()
    of_the_ended = (await client.get(f"/executions/{format_execution_id(claimed.id)}/explain")).json()

    first, last = explained["waits"]
    names = f"waits for 2 of 3: read ({first['execution_id']}), the group {last['group_id']}"
    assert explained["headline"].startswith(f"OPEN: {names}. read ({first['execution_id']}): NOT STARTED: ")
    assert "scans" in first["headline"]
    assert (first["part"], first["handler"], first["state"], first["stopped_by"]) == (1, "read", "queued", "queue_open")
    assert (last["part"], last["execution_id"]) == (3, None)
    assert last["headline"].startswith("OPEN: waits for 2 of 2: inner (exe_")
    assert of_the_ended["headline"].startswith("ENDED: succeeded at ")
    assert of_the_ended["headline"].endswith(f" Its group {created['id']} {names}.")

    await client.post(f"/groups/{created['id']}/cancel")
    ended = (await client.get(path)).json()
    again = (await client.get(f"/executions/{format_execution_id(claimed.id)}/explain")).json()

    assert (ended["state"], ended["waits"]) == ("failed", [])
    assert "; 2 of 3 parts failed." in ended["headline"]
    assert "Its group" not in again["headline"]


async def test_a_large_group_names_few_parts(client: httpx.AsyncClient) -> None:
    created = await begun(client, group=[READ] * 20)

    explained = (await client.get(f"/groups/{created['id']}/explain")).json()

    assert explained["headline"].startswith("OPEN: waits for 20 of 20: read (exe_")
    assert " and 17 more. read (exe_" in explained["headline"]
    assert len(explained["waits"]) == 10


async def test_the_group_of_the_page_on_what_follows_is_begun(client: httpx.AsyncClient) -> None:
    page = (Path(__file__).parents[2] / "docs/howto/what-follows.md").read_text(encoding="utf-8")
    body = orjson.loads(page.partition("## Groups over HTTP")[2].partition("```json\n")[2].partition("```")[0])

    created = await begun(client, **body)
    wrong = {"group": [READ, READ, {"chain": [READ, {**READ, "payload": {"page": {"$cause": "results"}}}]}]}
    refused = await client.post("/groups", json=wrong)

    assert (created["total"], created["meta"]) == (3, {"tenant": "acme"})
    assert refused.json()["errors"][0]["pointer"] == "/group/2/chain/1/payload/page/$cause"
