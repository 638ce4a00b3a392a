"""Every route requires its role; keys, open mode, and callers of host applications."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import httpx
import pytest

from tests.api.conftest import ROLES
from tests.api.test_conventions import check_problem
from tests.support.factories import FAILURE, claim_all, enqueue, found, make_alert, make_job, make_node, record, table
from timeball.api.app import make_api
from timeball.api.auth import KeyAuthenticator, is_loopback
from timeball.application.commands import Commands
from timeball.application.commands.calendars import DaysRequest
from timeball.config.settings import Settings
from timeball.domain.bulk_operation import OperationAction
from timeball.domain.execution import Failed
from timeball.domain.freeze import FreezeScope
from timeball.domain.values.ids import format_id
from timeball.domain.webhook import WebhookEndpoint, WebhookSpec
from timeball.errors import InvalidInput, NotFound
from timeball.runtime import ServerRuntime
from timeball.sdk.embedding import HostIdentity, make_host_authenticator
from timeball.store.store import Store
from timeball.store.types import AuditEntry
from timeball.testing import VirtualClock

MakeKey = Callable[[str], Awaitable[dict[str, str]]]
NEW = {"handler": "h"}
TASK = {"task": {"type": "h"}}

# Method, path, body, the required role, the status for that role.
ROUTES: list[tuple[str, str, Any, str, int]] = [
    ("GET", "/jobs", None, "viewer", 200),
    ("POST", "/jobs", NEW, "editor", 201),
    ("GET", "/jobs/export", None, "viewer", 200),
    ("GET", "/jobs/{job}", None, "viewer", 200),
    ("PUT", "/jobs/{job}", {"priority": 1}, "editor", 200),
    ("PATCH", "/jobs/{job}", {"priority": 1}, "editor", 200),
    ("DELETE", "/jobs/{job}", None, "editor", 204),
    ("POST", "/jobs/{job}/pause", {}, "operator", 200),
    ("POST", "/jobs/{job}/resume", {}, "operator", 200),
    ("POST", "/jobs/{job}/trigger", {}, "operator", 202),
    ("POST", "/jobs/{job}/cancel", {}, "operator", 200),
    ("POST", "/jobs/{job}/retry", {}, "operator", 409),
    ("POST", "/jobs/{job}/duplicate", {"name": "copy"}, "editor", 201),
    ("POST", "/jobs/{job}/backfill", {"from": "2026-01-01", "until": "2026-01-02"}, "editor", 202),
    ("GET", "/jobs/{job}/executions", None, "viewer", 200),
    ("GET", "/jobs/{job}/next", None, "viewer", 200),
    ("GET", "/jobs/{job}/occurrences", None, "viewer", 200),
    ("GET", "/jobs/{job}/calendar.ics", None, "viewer", 200),
    ("GET", "/jobs/{job}/explain", None, "viewer", 200),
    ("GET", "/jobs/{job}/revisions", None, "viewer", 200),
    ("POST", "/jobs/bulk", {"jobs": [NEW, NEW]}, "editor", 201),
    ("POST", "/jobs/bulk/{action}", {"ids": ["x"]}, "operator", 200),
    ("POST", "/jobs/bulk/delete", {"ids": ["x"]}, "editor", 200),
    ("GET", "/executions", None, "viewer", 200),
    ("GET", "/executions/export", None, "viewer", 200),
    ("GET", "/executions/{execution}", None, "viewer", 200),
    ("GET", "/executions/{execution}/logs", None, "viewer", 200),
    ("GET", "/executions/{execution}/explain", None, "viewer", 200),
    ("GET", "/executions/{execution}/attempts", None, "viewer", 200),
    ("POST", "/executions/{execution}/cancel", {}, "operator", 409),
    ("POST", "/executions/{execution}/retry", {}, "operator", 202),
    ("POST", "/executions/bulk", {"action": "cancel", "filter": {"status": ["running"]}}, "operator", 200),
    ("GET", "/dead-letter", None, "viewer", 200),
    ("GET", "/dead-letter/groups", None, "viewer", 200),
    ("POST", "/dead-letter/retry", {"all": True}, "operator", 200),
    ("POST", "/dead-letter/discard", {"all": True}, "operator", 200),
    ("GET", "/queues", None, "viewer", 200),
    ("GET", "/queues/{queue}", None, "viewer", 200),
    ("PATCH", "/queues/{queue}", {"max_running": 3}, "editor", 200),
    ("POST", "/queues/{queue}/pause", {}, "operator", 200),
    ("POST", "/queues/{queue}/resume", {}, "operator", 200),
    ("GET", "/freezes", None, "viewer", 200),
    ("POST", "/freezes", {"queue": "frozen", "until": "2199-01-01T00:00:00Z"}, "operator", 201),
    ("GET", "/freezes/{freeze}", None, "viewer", 200),
    ("DELETE", "/freezes/{freeze}", None, "operator", 204),
    ("GET", "/webhooks", None, "viewer", 200),
    ("POST", "/webhooks", {"url": "https://example.com/hook"}, "editor", 201),
    ("GET", "/webhooks/{webhook}", None, "viewer", 200),
    ("PUT", "/webhooks/{webhook}", {"description": "d"}, "editor", 200),
    ("PATCH", "/webhooks/{webhook}", {"events": ["execution.*"]}, "editor", 200),
    ("POST", "/webhooks/{webhook}/rotate", {}, "editor", 200),
    ("POST", "/webhooks/{webhook}/test", {}, "operator", 202),
    ("GET", "/webhooks/{webhook}/deliveries", None, "viewer", 200),
    ("GET", "/webhooks/deliveries/{delivery}", None, "viewer", 200),
    ("POST", "/webhooks/deliveries/{delivery}/redeliver", {}, "operator", 202),
    ("DELETE", "/webhooks/{webhook}", None, "editor", 204),
    ("GET", "/alerts", None, "viewer", 200),
    ("GET", "/alerts/{alert}", None, "viewer", 200),
    ("POST", "/alerts/{alert}/acknowledge", {}, "operator", 200),
    ("POST", "/alerts/{alert}/unacknowledge", {}, "operator", 200),
    ("GET", "/workers", None, "viewer", 200),
    ("GET", "/schedulers", None, "viewer", 200),
    ("GET", "/workers/{node}", None, "viewer", 200),
    ("POST", "/workers/{node}/drain", {}, "operator", 202),
    ("POST", "/schedules/preview", {"schedule": "0 6 * * *"}, "viewer", 200),
    ("POST", "/schedules/suggest", {}, "viewer", 200),
    ("GET", "/doctor", None, "viewer", 200),
    ("GET", "/attention", None, "viewer", 200),
    ("GET", "/timeline", None, "viewer", 200),
    ("GET", "/forecast", None, "viewer", 200),
    ("GET", "/forecast/collisions", None, "viewer", 200),
    ("GET", "/calendar.ics", None, "viewer", 200),
    ("GET", "/health/live", None, "none", 200),
    ("GET", "/health/ready", None, "none", 200),
    ("GET", "/health", None, "viewer", 200),
    ("GET", "/stats", None, "viewer", 200),
    ("GET", "/metrics", None, "viewer", 200),
    ("GET", "/metrics/executions", None, "viewer", 200),
    ("GET", "/events?wait=0s", None, "viewer", 200),
    ("POST", "/jobs/sync", {"jobs": [NEW | {"name": "declared", "schedule": "manual"}]}, "editor", 200),
    ("POST", "/queues/{queue}/purge", {"confirm": "mail"}, "editor", 200),
    ("GET", "/templates", None, "viewer", 200),
    ("POST", "/templates", {"name": "{unique}", "job": NEW}, "editor", 201),
    ("GET", "/templates/{template}", None, "viewer", 200),
    ("PUT", "/templates/{template}", {"description": "d"}, "editor", 200),
    ("PATCH", "/templates/{template}", {"description": "d"}, "editor", 200),
    ("POST", "/templates/{template}/use", {}, "editor", 201),
    ("DELETE", "/templates/{template}", None, "editor", 204),
    ("GET", "/calendars", None, "viewer", 200),
    ("POST", "/calendars", {"name": "{unique}", "days": ["sat"]}, "editor", 201),
    ("GET", "/calendars/{calendar}", None, "viewer", 200),
    ("PUT", "/calendars/{calendar}", {"description": "d"}, "editor", 200),
    ("PATCH", "/calendars/{calendar}", {"days": ["mon"]}, "editor", 200),
    ("DELETE", "/calendars/{calendar}", None, "editor", 204),
    ("GET", "/groups", None, "viewer", 200),
    ("POST", "/groups", {"group": [{"handler": "test.echo"}]}, "editor", 201),
    ("GET", "/groups/{group}", None, "viewer", 200),
    ("GET", "/groups/{group}/explain", None, "viewer", 200),
    ("POST", "/groups/{group}/cancel", {}, "operator", 200),
    ("GET", "/channels", None, "viewer", 200),
    ("POST", "/channels", {"name": "{unique}", "kind": "email", "settings": {"to": ["a@b.co"]}}, "editor", 201),
    ("GET", "/channels/{channel}", None, "viewer", 200),
    ("PUT", "/channels/{channel}", {"description": "d"}, "editor", 200),
    ("PATCH", "/channels/{channel}", {"description": "d"}, "editor", 200),
    ("POST", "/channels/{channel}/test", {}, "operator", 201),
    ("GET", "/channels/{channel}/deliveries", None, "viewer", 200),
    ("GET", "/channels/{channel}/deliveries/{delivery}", None, "viewer", 200),
    ("DELETE", "/channels/{channel}", None, "editor", 204),
    ("GET", "/alert-routes", None, "viewer", 200),
    ("POST", "/alert-routes", {"name": "{unique}", "channels": ["everyone"]}, "editor", 201),
    ("GET", "/alert-routes/{route}", None, "viewer", 200),
    ("PUT", "/alert-routes/{route}", {"severity": "critical"}, "editor", 200),
    ("PATCH", "/alert-routes/{route}", {"severity": "critical"}, "editor", 200),
    ("DELETE", "/alert-routes/{route}", None, "editor", 204),
    ("GET", "/operations", None, "viewer", 200),
    ("GET", "/operations/{operation}", None, "viewer", 200),
    ("GET", "/operations/{operation}/items", None, "viewer", 200),
    ("POST", "/operations/{operation}/cancel", {}, "operator", 202),
    ("POST", "/operations/{operation}/pause", {}, "operator", 409),
    ("POST", "/operations/{operation}/resume", {}, "operator", 409),
    ("GET", "/handlers", None, "viewer", 200),
    ("GET", "/handlers/{handler}", None, "viewer", 200),
    ("POST", "/handlers/check", {"handlers": [{"name": "test.echo", "payload_schema": {}}]}, "editor", 200),
    ("GET", "/audit", None, "admin", 200),
    ("POST", "/create-job", {"type": "h"}, "editor", 201),
    ("GET", "/job/{execution}", None, "viewer", 200),
    ("POST", "/api/job", TASK, "editor", 201),
    ("GET", "/api/jobs", None, "viewer", 200),
    ("GET", "/api/jobs/export", None, "viewer", 200),
    ("GET", "/api/stats", None, "viewer", 200),
    ("POST", "/api/duplicate/{execution}", {}, "editor", 201),
    ("POST", "/api/retry/{execution}", {}, "operator", 200),
    ("POST", "/api/cancel/{execution}", {}, "operator", 409),
    ("POST", "/api/bulk/cancel", {"ids": []}, "operator", 200),
    ("POST", "/api/bulk/retry", {"ids": []}, "operator", 200),
    ("GET", "/api/templates", None, "viewer", 200),
    ("POST", "/api/templates", TASK, "editor", 201),
    ("DELETE", "/api/templates/{template}", None, "editor", 200),
    ("POST", "/api/templates/{template}/use", {}, "editor", 201),
]


def test_the_table_has_every_route(parts: ServerRuntime) -> None:
    described = {
        (method.upper(), path.removeprefix("/api/v1"), operation["x-role"])
        for path, operations in make_api(parts).openapi()["paths"].items()
        for method, operation in operations.items()
    }

    assert described == {(method, path.partition("?")[0], role) for method, path, _, role, _ in ROUTES}


async def test_security_2_every_route_requires_its_role(
    client: httpx.AsyncClient, store: Store, make_key: MakeKey
) -> None:
    keys = {role: await make_key(role) for role in ROLES}
    keys["none"] = {}
    execution = await enqueue(store, max_retries=0)
    await record(store, [found(claimed, Failed(FAILURE)) for claimed in await claim_all(store)])
    node = await make_node(store)
    commands = Commands(store, store.env)
    await commands.channels.create("everyone", "email", {"to": ["all@example.com"]})

    for method, pattern, body, least, expected in ROUTES:
        for role in ("none", *ROLES):
            job = await make_job(store, interval_seconds=3600)
            template = await commands.templates.create(f"template of {job.id}", {"handler": "h"})
            calendar = await commands.calendars.create(f"calendar of {job.id}", DaysRequest(days=["sat"]))
            operation = await commands.operations.start(OperationAction.CANCEL, [execution])
            freeze = await commands.freezes.add(
                FreezeScope.QUEUE, "frozen", until=store.env.clock.now() + timedelta(days=1)
            )
            group = await commands.groups.begin({"group": [{"handler": "h", "payload": {}}]})
            webhook = await _only_webhook(commands)
            delivery = await commands.webhooks.test(webhook.id)
            alert = await make_alert(store)
            if pattern.endswith("/unacknowledge"):
                await commands.alerts.acknowledge(alert)
            channel = await commands.channels.create(f"channel-{job.id}", "email", {"to": ["a@example.com"]})
            message = await commands.channels.test(channel.name)
            route = await commands.alert_routes.create({"name": f"route-{job.id}", "channels": ["everyone"]})
            path = pattern.format(
                alert=alert,
                job=job.id,
                channel=channel.name,
                route=route.name,
                execution=execution,
                queue="mail",
                node=node,
                handler="test.echo",
                action="pause",
                template=template.id,
                calendar=calendar.calendar.name,
                operation=operation.id,
                group=format_id("grp", group),
                freeze=freeze.id,
                webhook=webhook.id,
                delivery=message if pattern.startswith("/channels") else delivery.id,
            )
            is_named = pattern.endswith(("/duplicate", "/templates", "/calendars", "/channels", "/alert-routes"))
            body_for_it = body | {"name": f"copy-of-{job.id}"} if is_named and body else body
            # The drop-in routes lie beside our own prefix.
            url = f"http://localhost:8080{path}" if path.startswith("/api/") else path
            response = await client.request(method, url, json=body_for_it, headers=keys[role])

            where = f"{method} {pattern} as {role}"
            is_allowed = ["none", *ROLES].index(role) >= ["none", *ROLES].index(least)
            if is_allowed:
                assert response.status_code == expected, f"{where}: {response.text}"
            else:
                code = (401, "unauthenticated") if role == "none" else (403, "forbidden")
                check_problem(response, *code)


async def _only_webhook(commands: Commands) -> WebhookEndpoint:
    """A new webhook; others are deleted, since their number is limited."""
    for other in await commands.webhooks._store.webhooks.all():
        await commands.webhooks.delete(other.id)
    return (await commands.webhooks.create(WebhookSpec(url="https://example.com/"))).webhook


async def test_security_2_keys_are_hashed_expire_and_are_revoked(
    client: httpx.AsyncClient, parts: ServerRuntime, store: Store, clock: VirtualClock
) -> None:
    audit = AuditEntry("test")
    key, token = await parts.keys.create("viewer", "a", timedelta(days=90), audit)
    other, other_token = await parts.keys.create("viewer", "b", None, audit)

    async def status(bearer: str) -> int:
        return (await client.get("/jobs", headers={"Authorization": bearer})).status_code

    stored = str(await table(store, "api_key")) + str(await table(store, "audit"))
    assert token.split("_", 2)[2] not in stored
    assert re.fullmatch(r"tb_[0-9a-f]{12}_.{43}", token)
    assert await status(f"Bearer {token}") == 200
    assert await status(f"bearer {token}") == 200
    for wrong in (f"Bearer {token}x", f"Basic {token}", "Bearer", f"Bearer tb_{key.id}_", token):
        assert await status(wrong) == 401
    assert await status(f"Bearer tb_{key.id}_{other_token.split('_', 2)[2]}") == 401

    await parts.keys.revoke(other.id, audit)
    assert await status(f"Bearer {other_token}") == 401
    clock.advance(timedelta(days=91))
    assert await status(f"Bearer {token}") == 401

    with pytest.raises(NotFound):
        await parts.keys.revoke("nobody", audit)
    with pytest.raises(InvalidInput):
        await parts.keys.create("root", "a", None, audit)


async def test_security_3_another_payload_requires_the_role_editor(
    client: httpx.AsyncClient, store: Store, make_key: MakeKey
) -> None:
    operator, editor = await make_key("operator"), await make_key("editor")
    await make_job(store, name="a", payload={"command": "backup"})
    body = {"payload": {"command": "rm"}}

    check_problem(await client.post("/jobs/a/trigger", json=body, headers=operator), 403, "forbidden")
    assert (await client.post("/jobs/a/trigger", json=body, headers=editor)).status_code == 202
    check_problem(await client.get("/jobs", params={"payload": "back"}, headers=operator), 403, "forbidden")
    check_problem(await client.get("/jobs/export", params={"payload": "back"}, headers=operator), 403, "forbidden")


async def test_the_audit_names_the_key(client: httpx.AsyncClient, store: Store, make_key: MakeKey) -> None:
    operator = await make_key("operator")
    await make_job(store, name="a")

    await client.post("/jobs/a/pause", json={}, headers=operator)

    actors = {row["actor"] for row in await table(store, "audit") if row["action"] == "job.pause"}
    assert len(actors) == 1
    assert actors.pop().endswith(" operator")


# the open mode


async def test_security_1_the_first_key_ends_open_mode_for_good(
    client: httpx.AsyncClient, parts: ServerRuntime
) -> None:
    assert (await client.get("/jobs")).status_code == 200

    key, _ = await parts.keys.create("admin", "a", None, AuditEntry("test"))
    check_problem(await client.get("/jobs"), 401, "unauthenticated")
    await parts.keys.revoke(key.id, AuditEntry("test"))

    response = await client.get("/jobs")
    check_problem(response, 401, "unauthenticated")
    assert response.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com", ""])
async def test_security_1_only_loopback_is_served_without_keys(parts: ServerRuntime, host: str) -> None:
    gate = KeyAuthenticator(parts.keys, host)

    with pytest.raises(InvalidInput, match="without any key"):
        await gate.refuse_to_start_open(host)
    assert not await gate.is_open()

    await parts.keys.create("admin", "a", None, AuditEntry("test"))
    await gate.refuse_to_start_open(host)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
async def test_security_1_loopback_is_open_in_development(parts: ServerRuntime, host: str) -> None:
    gate = KeyAuthenticator(parts.keys, host)

    await gate.refuse_to_start_open(host)

    assert await gate.is_open()


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "[::2]:8080", ""])
async def test_security_2_a_foreign_host_is_refused_in_open_mode(client: httpx.AsyncClient, host: str) -> None:
    check_problem(await client.get("/jobs", headers={"Host": host}), 403, "forbidden_host")


@pytest.mark.parametrize("host", ["localhost", "localhost:1", "127.0.0.1:8080", "[::1]:8080", "LOCALHOST"])
async def test_open_mode_serves_loopback_hosts(client: httpx.AsyncClient, host: str) -> None:
    assert (await client.get("/jobs", headers={"Host": host})).status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://localhost:9999"}, 403),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "http://localhost:8080"}, 201),
        ({"Sec-Fetch-Site": "none"}, 201),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content-Type": "application/json; charset=utf-8"}, 201),
    ],
)
async def test_security_2_another_site_cannot_use_the_open_mode(
    client: httpx.AsyncClient, headers: dict[str, str], status: int
) -> None:
    response = await client.post("/jobs", content=b'{"handler": "h"}', headers=headers)

    assert response.status_code == status
    if status == 403:
        check_problem(response, 403, "cross_site")


async def test_a_request_with_a_key_may_come_from_another_site(client: httpx.AsyncClient, make_key: MakeKey) -> None:
    headers = await make_key("editor") | {"Origin": "https://ours.example", "Host": "timeball.example"}

    assert (await client.post("/jobs", json=NEW, headers=headers)).status_code == 201


def test_loopback_names() -> None:
    assert all(is_loopback(host) for host in ("localhost", "127.0.0.1", "::1", "[::1]", "LocalHost."))
    assert not any(is_loopback(host) for host in ("", "0.0.0.0", "::", "local", "127.0.0.1.nip.io"))


def test_the_default_address_is_loopback() -> None:
    assert is_loopback(Settings().host)


# host applications


@pytest.mark.parametrize(
    ("known", "name"),
    [("editor", "host"), (("ada", "editor"), "host:ada"), (None, None), (("key:1 x", "viewer"), "host:key:1 x")],
)
async def test_the_identity_from_the_host_application_becomes_the_caller(known: HostIdentity, name: str | None) -> None:
    gate = make_host_authenticator(_NoKeys(), lambda _headers: known)

    caller = await gate.identify({"type": "http", "method": "GET", "headers": []})

    assert (None if caller is None else caller.name) == name


class _NoKeys:
    async def any_made(self) -> bool:
        return False
