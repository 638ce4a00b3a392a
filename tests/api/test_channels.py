"""Channels, their deliveries and the routes of alerts over HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import httpx
import pytest

from tests.support.factories import table
from timeball.domain.alerts import AlertEvaluation, AlertFact, Severity
from timeball.domain.values.ids import format_execution_id
from timeball.runtime import ServerRuntime
from timeball.store.store import Store
from timeball.testing import VirtualClock

CANARY = "S3cret-canary-4711"
MAIL: dict[str, Any] = {"kind": "email", "settings": {"to": ["ops@example.com"]}}


async def make(client: httpx.AsyncClient, name: str = "ops", **fields: Any) -> dict[str, Any]:
    answer = await client.post("/channels", json={"name": name} | MAIL | fields)
    assert answer.status_code == 201, answer.text
    return answer.json()


async def make_route(client: httpx.AsyncClient, name: str = "all", **fields: Any) -> dict[str, Any]:
    answer = await client.post("/alert-routes", json={"name": name, "channels": ["ops"]} | fields)
    assert answer.status_code == 201, answer.text
    return answer.json()


async def test_a_channel_is_created_read_changed_and_deleted(client: httpx.AsyncClient) -> None:
    made = await make(client, description="who is on call")
    read = await client.get("/channels/ops")
    listed = (await client.get("/channels")).json()["data"]
    match = {"If-Match": read.headers["ETag"]}
    new = {"settings": {"to": ["a@example.com", "b@example.com"]}}
    changed = await client.patch("/channels/ops", json=new, headers=match)
    stale = await client.patch("/channels/ops", json=new, headers=match)
    described = await client.put("/channels/ops", json={"description": None})
    gone = await client.delete("/channels/ops")

    assert made == read.json()
    assert listed == [read.json()]
    assert (made["kind"], made["settings"], made["secrets"]) == ("email", MAIL["settings"], [])
    assert (made["routes"], made["latest_delivery"], made["version"]) == ([], None, 1)
    assert (changed.json()["settings"], changed.headers["ETag"]) == (new["settings"], '"2"')
    assert stale.status_code == 412
    assert (described.json()["description"], described.json()["settings"]) == (None, new["settings"])
    assert (gone.status_code, (await client.get("/channels/ops")).status_code) == (204, 404)


async def test_a_taken_name_is_refused(client: httpx.AsyncClient) -> None:
    await make(client)
    await make_route(client)

    for path, body in (("/channels", {"name": "ops"} | MAIL), ("/alert-routes", {"name": "all", "channels": ["ops"]})):
        assert (await client.post(path, json=body)).status_code == 409


@pytest.mark.parametrize(
    ("kind", "settings", "pointer", "words"),
    [
        ("slack", {"url": f"https://hooks.slack.com/{CANARY}"}, "/settings/url", "expected the name of a secret"),
        ("pagerduty", {"routing_key": CANARY}, "/settings/routing_key", "expected the name of a secret"),
        ("email", {"to": ["nobody"]}, "/settings/to/0", "is not a mail address, expected someone@example.com"),
        ("email", {"to": ["a@example.com\nBcc: x@example.com"]}, "/settings/to/0", "line break"),
        ("webhook", {"url": "ftp://example.com"}, "/settings/url", "the scheme is ftp, expected https or http"),
        ("webhook", {"url": "https://example.com", "headers": {"Host": "a"}}, "/settings/headers", "cannot be chosen"),
        ("webhook", {"url": "https://example.com", "headers": {"X": "a\r\nb"}}, "/settings/headers/X", "line break"),
        ("webhook", {"url": "https://example.com", "headers": {"Cookie": CANARY}}, "/settings/headers/Cookie", "plain"),
        ("command", {"command": "page.sh", "env": {"lower": "x"}}, "/settings/env/lower", "expected text that matches"),
    ],
)
async def test_settings_that_do_not_fit_are_refused_with_what_was_expected(
    client: httpx.AsyncClient, store: Store, kind: str, settings: dict[str, Any], pointer: str, words: str
) -> None:
    await make(client, "there", **{"kind": "slack", "settings": {"url": {"$secret": "S"}}} if kind == "slack" else {})

    refused = await client.post("/channels", json={"name": "ops", "kind": kind, "settings": settings})

    assert refused.status_code == 422
    (error,) = [one for one in refused.json()["errors"] if one["pointer"] == pointer]
    assert words in error["detail"]
    assert CANARY not in refused.text
    assert [row["name"] for row in await table(store, "channel")] == ["there"]


async def test_an_edit_is_checked_as_a_new_channel_is(client: httpx.AsyncClient) -> None:
    await make(client)

    refused = await client.patch("/channels/ops", json={"settings": {"to": ["nobody"]}})
    other_kind = await client.patch("/channels/ops", json={"kind": "slack"})

    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/settings/to/0")
    assert other_kind.status_code == 422


async def test_only_administrators_write_channels_that_run_a_command(
    client: httpx.AsyncClient, make_key: Callable[[str], Awaitable[dict[str, str]]]
) -> None:
    admin, editor, operator = [await make_key(role) for role in ("admin", "editor", "operator")]
    body = {"name": "page", "kind": "command", "settings": {"command": "page.sh"}}

    refused = await client.post("/channels", json=body, headers=editor)
    made = await client.post("/channels", json=body, headers=admin)
    changed = await client.patch("/channels/page", json={"description": "x"}, headers=editor)
    deleted = await client.delete("/channels/page", headers=editor)
    tested = await client.post("/channels/page/test", headers=operator)

    assert [one.status_code for one in (refused, made, changed, deleted, tested)] == [403, 201, 403, 403, 201]
    assert "only an administrator" in refused.json()["detail"]


async def test_a_channel_says_whether_its_secrets_must_be_bound(
    client: httpx.AsyncClient, make_key: Callable[[str], Awaitable[dict[str, str]]]
) -> None:
    admin, editor = [await make_key(role) for role in ("admin", "editor")]
    body = {"kind": "slack", "settings": {"url": {"$secret": "SLACK_URL"}}}

    by_editor = await client.post("/channels", json=body | {"name": "a"}, headers=editor)
    by_admin = await client.post("/channels", json=body | {"name": "b"}, headers=admin)
    plain = await client.post("/channels", json=MAIL | {"name": "c"}, headers=editor)

    assert [one.json()["bound_secrets_only"] for one in (by_editor, by_admin, plain)] == [True, False, False]
    assert by_admin.json()["secrets"] == ["SLACK_URL"]


async def test_a_channel_that_a_route_leads_to_is_not_deleted(client: httpx.AsyncClient) -> None:
    await make(client)
    await make_route(client)

    refused = await client.delete("/channels/ops")
    await client.delete("/alert-routes/all")
    deleted = await client.delete("/channels/ops")

    assert refused.status_code == 409
    assert "is used by the alert routes all" in refused.json()["detail"]
    assert deleted.status_code == 204


async def test_a_route_is_created_read_changed_and_deleted(client: httpx.AsyncClient) -> None:
    await make(client)
    night = {"from": "22:00", "until": "07:00", "timezone": "Europe/Berlin"}
    made = await make_route(
        client, severity="critical", queues=["mail"], tags=["eu"], jobs=["nightly"], quiet_hours=[night]
    )
    read = await client.get("/alert-routes/all")
    match = {"If-Match": read.headers["ETag"]}
    changed = await client.patch("/alert-routes/all", json={"repeat_every_seconds": 3600}, headers=match)
    stale = await client.patch("/alert-routes/all", json={"severity": "warning"}, headers=match)
    cleared = await client.put("/alert-routes/all", json={"quiet_hours": [], "repeat_every_seconds": None})
    gone = await client.delete("/alert-routes/all")

    week = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
    assert made == read.json()
    assert made["quiet_hours"] == [night | {"days": week}]
    assert (made["severity"], made["queues"], made["tags"], made["jobs"]) == ("critical", ["mail"], ["eu"], ["nightly"])
    assert (changed.json()["repeat_every_seconds"], changed.json()["quiet_hours"]) == (3600, made["quiet_hours"])
    assert stale.status_code == 412
    assert (cleared.json()["quiet_hours"], cleared.json()["repeat_every_seconds"]) == ([], None)
    assert cleared.json()["queues"] == ["mail"]
    assert (gone.status_code, (await client.get("/alert-routes")).json()) == (204, {"data": []})


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"channels": ["nowhere"]}, "channels names nowhere, expected the names of channels that exist"),
        ({"channels": []}, "channels"),
        ({"quiet_hours": [{"from": "22", "until": "7"}]}, "quiet_hours/0/from"),
        ({"quiet_hours": [{"from": "00:00", "until": "00:00"}]}, "cover the whole week"),
        ({"repeat_every_seconds": 5}, "repeat_every_seconds"),
        ({"severity": "fatal"}, "severity"),
    ],
)
async def test_a_route_that_does_not_fit_is_refused(
    client: httpx.AsyncClient, fields: dict[str, Any], words: str
) -> None:
    await make(client)

    refused = await client.post("/alert-routes", json={"name": "all", "channels": ["ops"]} | fields)

    assert refused.status_code == 422
    assert words in refused.text


async def test_a_test_and_alerts_are_listed_with_where_they_are(
    client: httpx.AsyncClient, parts: ServerRuntime, clock: VirtualClock
) -> None:
    await make(client)
    await make_route(client)
    tested = await client.post("/channels/ops/test")
    fact = AlertFact(kind="late", key="late:1", severity=Severity.WARNING, sentence="nightly is late")
    (transition,) = await parts.commands.alerts.reconcile(AlertEvaluation(clock.now(), [fact]))
    clock.advance(timedelta(seconds=1))

    page = await client.get("/channels/ops/deliveries", params={"limit": 1})
    rest = await client.get("/channels/ops/deliveries", params={"cursor": page.json()["next_cursor"]})
    opened, test = page.json()["data"][0], rest.json()["data"][0]
    one = await client.get(f"/channels/ops/deliveries/{opened['id']}")
    elsewhere = await client.get("/channels/ops/deliveries/ald_00000000000000000000000000")

    assert tested.status_code == 201
    assert test == tested.json()
    assert (test["event"], test["alert"], test["state"]) == ("test", None, "waiting")
    assert (opened["event"], opened["sentence"], opened["state"]) == ("opened", "nightly is late", "waiting")
    assert opened["execution"] == format_execution_id((await parts.queries.channels.delivery("ops", opened["id"])).id)
    assert (one.json(), elsewhere.status_code) == (opened, 404)
    assert (await client.get("/channels/ops")).json()["latest_delivery"] == opened
    execution = (await client.get(f"/executions/{opened['execution']}")).json()
    assert (execution["handler"], execution["queue"], execution["state"]) == (
        "alert.deliver",
        "timeball.alerts",
        "queued",
    )
    assert transition.alert.fact == fact


@pytest.mark.parametrize("cursor", ["x", "WyJhbGVydF9kZWxpdmVyeSIsICJ4IiwgIngiXQ"])
async def test_a_cursor_of_another_list_is_refused(client: httpx.AsyncClient, cursor: str) -> None:
    await make(client)

    assert (await client.get("/channels/ops/deliveries", params={"cursor": cursor})).status_code == 422
