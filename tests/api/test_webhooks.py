"""Outgoing webhooks over HTTP: created, changed, rotated, tested and deleted, and their deliveries."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.api.test_conventions import check_problem
from tests.support.factories import make_recurring, only_row, table
from timeball.domain.values.ids import format_job_id
from timeball.domain.webhook import MAX_WEBHOOKS
from timeball.handlers.signatures import new_signing_secret, parse_signing_secret
from timeball.store.store import Store

HOOK = {"url": "https://example.com/hooks/timeball"}


async def create(client: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    response = await client.post("/webhooks", json=HOOK | fields)
    assert response.status_code == 201, response.text
    return response.json()


async def test_a_webhook_is_created_with_its_filter_and_a_secret_that_is_shown_once(
    client: httpx.AsyncClient, store: Store
) -> None:
    job = await make_recurring(store, name="nightly")
    fields = {"events": ["execution.dead", "job.*"], "queue": "mail", "handler": "h", "tag": "vip", "description": "d"}

    response = await client.post("/webhooks", json=HOOK | fields | {"job": "nightly", "format": "cloudevents"})

    created = response.json()
    shown = (await client.get(response.headers["location"].removeprefix("/api/v1"))).json()
    assert len(parse_signing_secret(created.pop("secret"))) == 32
    assert created == shown
    assert shown | fields == shown
    assert (shown["job_id"], shown["format"], shown["state"]) == (format_job_id(job.id), "cloudevents", "active")
    assert response.headers["etag"] == '"1"'
    assert (await client.get("/webhooks")).json() == {"data": [shown]}
    assert "whsec_" not in repr(await table(store, "audit"))


async def test_a_webhook_may_bring_a_secret_of_its_own(client: httpx.AsyncClient, store: Store) -> None:
    secret = new_signing_secret()

    assert (await create(client, secret=secret))["secret"] == secret
    assert (await only_row(store, "webhook"))["secret"] == secret


async def test_a_repetition_under_an_idempotency_key_creates_nothing_and_shows_no_secret(
    client: httpx.AsyncClient, store: Store
) -> None:
    headers = {"Idempotency-Key": "once"}
    first = (await client.post("/webhooks", json=HOOK, headers=headers)).json()

    second = await client.post("/webhooks", json=HOOK, headers=headers)

    assert second.json() == first | {"secret": "••••••"}
    assert second.headers["idempotent-replayed"] == "true"
    assert len(await table(store, "webhook")) == 1
    assert first["secret"] not in repr(await table(store, "idempotency_key"))


@pytest.mark.parametrize(
    ("fields", "pointer", "words"),
    [
        ({"url": "ftp://example.com"}, "/url", "the scheme is ftp, expected https or http"),
        ({"url": "https://user:pw@example.com/"}, "/url", "user name or password"),
        ({"url": "https://169.254.169.254.metadata.google.internal:0/"}, "/url", "port"),
        ({"url": "https://metadata.google.internal/"}, "/url", "metadata service"),
        ({"url": "https://example.com/?token=••••••"}, "/url", "stands for a hidden value"),
        ({"url": ""}, "/url", "url"),
        ({"url": 7}, "/url", "url is 7"),
        ({"events": ["execution.died"]}, "/events", "did you mean execution.dead"),
        ({"events": ["*.dead"]}, "/events", "expected execution.succeeded"),
        ({"queue": "a\nb"}, "/queue", "U+000A"),
        ({"tag": " "}, "/tag", "not all blank"),
        ({"format": "xml"}, "/format", "standard"),
        ({"secret": "whsec_short"}, "/secret", "expected whsec_ and 24 to 64 bytes"),
        ({"secrets": "x"}, "/secrets", "unknown"),
        ({"state": "active"}, "/state", "unknown"),
    ],
)
async def test_a_wrong_webhook_is_refused_with_what_was_expected(
    client: httpx.AsyncClient, store: Store, fields: dict[str, Any], pointer: str, words: str
) -> None:
    response = await client.post("/webhooks", json=HOOK | fields)

    problem = response.json()
    assert response.status_code == 422, response.text
    assert pointer in [error["pointer"] for error in problem["errors"]]
    assert words in str(problem)
    assert await table(store, "webhook") == []


async def test_an_unknown_job_is_not_found(client: httpx.AsyncClient) -> None:
    check_problem(await client.post("/webhooks", json=HOOK | {"job": "nope"}), 404, "not_found")


async def test_there_are_only_so_many_webhooks(client: httpx.AsyncClient) -> None:
    for _ in range(MAX_WEBHOOKS):
        await create(client)

    problem = check_problem(await client.post("/webhooks", json=HOOK), 409, "conflict")

    assert "there are 50 webhooks, expected at most 50" in problem["detail"]


async def test_what_sounds_like_a_secret_in_an_address_is_hidden(client: httpx.AsyncClient, store: Store) -> None:
    created = await create(client, url="https://example.com/hook?token=hunter2&team=a")

    shown = (await client.get(f"/webhooks/{created['id']}")).text

    assert created["url"] == "https://example.com/hook?token=••••••&team=a"
    assert "hunter2" not in shown
    assert "hunter2" not in repr(await table(store, "audit"))
    assert (await only_row(store, "webhook"))["url"] == "https://example.com/hook?token=hunter2&team=a"


async def test_a_webhook_is_changed_field_by_field_if_it_is_as_it_was_read(client: httpx.AsyncClient) -> None:
    created = await create(client, queue="mail", events=["execution.dead"])
    path = f"/webhooks/{created['id']}"

    changed = (await client.patch(path, json={"queue": None, "tag": "vip"}, headers={"If-Match": '"1"'})).json()
    stale = await client.patch(path, json={"queue": "b"}, headers={"If-Match": '"1"'})

    assert (changed["queue"], changed["tag"], changed["events"]) == (None, "vip", ["execution.dead"])
    assert changed["version"] == 2
    check_problem(stale, 412, "precondition_failed")


async def test_a_webhook_is_disabled_and_enabled_with_a_reason(client: httpx.AsyncClient) -> None:
    path = f"/webhooks/{(await create(client))['id']}"

    disabled = (await client.patch(path, json={"state": "disabled", "reason": "it moves"})).json()
    enabled = (await client.patch(path, json={"state": "active"})).json()

    assert (disabled["state"], disabled["disabled_reason"]) == ("disabled", "it moves")
    assert (enabled["state"], enabled["disabled_reason"]) == ("active", None)


async def test_a_secret_is_rotated_and_both_are_kept_for_a_while(client: httpx.AsyncClient, store: Store) -> None:
    created = await create(client)

    rotated = (await client.post(f"/webhooks/{created['id']}/rotate", json={"keep": "2h"})).json()

    row = await only_row(store, "webhook")
    assert rotated["secret"] != created["secret"]
    assert (row["secret"], row["previous_secret"]) == (rotated["secret"], created["secret"])
    assert rotated["rotation_until"] is not None
    at_once = (await client.post(f"/webhooks/{created['id']}/rotate", json={"keep": "0s"})).json()
    row = await only_row(store, "webhook")
    assert (row["secret"], row["previous_secret"], at_once["rotation_until"]) == (at_once["secret"], None, None)


@pytest.mark.parametrize("keep", ["8d", "-1h", "soon"])
async def test_a_rotation_that_lasts_too_long_is_refused(client: httpx.AsyncClient, keep: str) -> None:
    created = await create(client)

    response = await client.post(f"/webhooks/{created['id']}/rotate", json={"keep": keep})

    assert response.status_code == 422, response.text
    assert "keep" in response.json()["detail"]


async def test_a_test_becomes_a_delivery_that_is_read_and_sent_again(client: httpx.AsyncClient, store: Store) -> None:
    created = await create(client)

    test = await client.post(f"/webhooks/{created['id']}/test")
    listed = (await client.get(f"/webhooks/{created['id']}/deliveries")).json()["data"]
    shown = (await client.get(f"/webhooks/deliveries/{test.json()['id']}")).json()
    again = await client.post(f"/webhooks/deliveries/{test.json()['id']}/redeliver")

    assert test.status_code == again.status_code == 202
    assert [one["id"] for one in listed] == [shown["id"]] == [test.json()["id"]]
    assert (shown["type"], shown["state"], shown["body"]["type"]) == ("webhook.test", "pending", "webhook.test")
    assert again.json()["message_id"] == shown["message_id"]
    assert (await only_row(store, "webhook"))["waiting"] == 1


async def test_deliveries_are_listed_page_by_page_and_by_state(client: httpx.AsyncClient, store: Store) -> None:
    created = await create(client)
    ids = [(await client.post(f"/webhooks/{created['id']}/test")).json()["id"] for _ in range(5)]
    async with store.database.transaction() as connection:
        await connection.execute(
            "UPDATE timeball.webhook_delivery SET state = 'failed', next_at = NULL, finished_at = now() WHERE number % 2 = 1"
        )
    path = f"/webhooks/{created['id']}/deliveries"

    first = (await client.get(path, params={"limit": 3})).json()
    second = (await client.get(path, params={"limit": 3, "cursor": first["next_cursor"]})).json()
    failed = (await client.get(path, params={"state": "failed"})).json()

    assert [one["id"] for one in first["data"] + second["data"]] == ids[::-1]
    assert (first["has_more"], second["has_more"]) == (True, False)
    assert {one["state"] for one in failed["data"]} == {"failed"}
    assert len(failed["data"]) in (2, 3)


async def test_what_waits_for_an_earlier_one_or_for_its_webhook_is_not_sent_again(
    client: httpx.AsyncClient, store: Store
) -> None:
    created = await create(client)
    delivery = (await client.post(f"/webhooks/{created['id']}/test")).json()
    again = f"/webhooks/deliveries/{delivery['id']}/redeliver"
    async with store.database.transaction() as connection:
        await connection.execute("UPDATE timeball.webhook_delivery SET next_at = NULL")

    waits = check_problem(await client.post(again), 409, "conflict")
    await client.patch(f"/webhooks/{created['id']}", json={"state": "disabled"})
    disabled = check_problem(await client.post(again), 409, "conflict")

    assert "waits until an earlier one" in waits["detail"]
    assert "the webhook is disabled" in disabled["detail"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/webhooks/whk_01JCV3V1KC8M2T4QZ5R7N9X0AB"),
        ("GET", "/webhooks/nonsense"),
        ("PATCH", "/webhooks/nonsense"),
        ("DELETE", "/webhooks/nonsense"),
        ("POST", "/webhooks/nonsense/rotate"),
        ("POST", "/webhooks/nonsense/test"),
        ("GET", "/webhooks/nonsense/deliveries"),
        ("GET", "/webhooks/deliveries/nonsense"),
        ("GET", "/webhooks/deliveries/dlv_01JCV3V1KC8M2T4QZ5R7N9X0AB"),
        ("POST", "/webhooks/deliveries/nonsense/redeliver"),
    ],
)
async def test_what_is_not_there_is_not_found(client: httpx.AsyncClient, method: str, path: str) -> None:
    body = {} if method in ("PATCH", "POST") else None

    check_problem(await client.request(method, path, json=body), 404, "not_found")


async def test_a_webhook_is_deleted_with_its_deliveries(client: httpx.AsyncClient, store: Store) -> None:
    created = await create(client)
    await client.post(f"/webhooks/{created['id']}/test")

    assert (await client.delete(f"/webhooks/{created['id']}")).status_code == 204
    assert await table(store, "webhook") == await table(store, "webhook_delivery") == []
