"""Which secrets a payload may name: those bound to hosts, or all of them if an administrator has written it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from tests.support.factories import claim_all, found
from timeball.application.commands import Commands
from timeball.domain.execution import ClaimedExecution
from timeball.domain.job_fields import JobSpec
from timeball.store.store import Store

MakeKey = Callable[[str], Awaitable[dict[str, str]]]
NAMED = {"url": "https://example.com", "headers": {"Authorization": {"$secret": "TOKEN"}}}
WEBHOOK: dict[str, Any] = {"handler": "http.webhook", "payload": NAMED}
MANUAL = WEBHOOK | {"schedule": "manual"}


class House:
    """A client with keys of two roles, and a worker that claims everything."""

    def __init__(self, client: httpx.AsyncClient, store: Store, admin: dict[str, str], editor: dict[str, str]) -> None:
        self.client, self.store, self.admin, self.editor = client, store, admin, editor

    async def ask(self, method: str, path: str, key: dict[str, str], body: Any = None) -> Any:
        response = await self.client.request(method, path, json=body, headers=key)
        assert response.is_success, response.text
        return response.json() if response.content else None

    async def claim(self) -> ClaimedExecution:
        (claimed,) = await claim_all(self.store, handlers=["http.webhook"])
        return claimed

    async def may_use(self, *, is_bound: bool = False) -> bool:
        """Whether the ready execution may use its secret, bound to hosts or not."""
        return await self.store.history.use_secrets(await self.claim(), ["TOKEN"], is_bound=is_bound)


@pytest.fixture
async def house(client: httpx.AsyncClient, store: Store, make_key: MakeKey) -> House:
    return House(client, store, await make_key("admin"), await make_key("editor"))


@pytest.mark.parametrize(
    ("role", "is_bound", "expected"),
    [("editor", False, False), ("editor", True, True), ("admin", False, True), ("admin", True, True)],
)
async def test_an_unbound_secret_needs_a_payload_written_by_an_administrator(
    house: House, role: str, is_bound: bool, expected: bool
) -> None:
    await house.ask("POST", "/jobs", getattr(house, role), WEBHOOK)

    assert await house.may_use(is_bound=is_bound) is expected


async def test_a_program_with_access_to_the_database_is_an_administrator(house: House) -> None:
    commands = Commands(house.store, house.store.env)
    prepared = commands.jobs.prepared_job(JobSpec(handler="http.webhook"))
    assert prepared is not None
    await commands.jobs.enqueue(prepared, ['{"url": "https://example.com", "body": {"$secret": "TOKEN"}}'])

    assert await house.may_use()


@pytest.mark.parametrize("way", ["bulk", "bulk later", "one of each", "named", "template", "copy", "sync"])
async def test_an_editor_gets_no_unbound_secret_however_the_job_is_written(house: House, way: str, clock: Any) -> None:
    editor = house.editor
    match way:
        case "bulk":
            await house.ask("POST", "/jobs/bulk", editor, {"jobs": [WEBHOOK]})
        case "bulk later":
            at = clock.now().isoformat()
            await house.ask("POST", "/jobs/bulk", editor, {"jobs": [WEBHOOK | {"scheduled_at": at}]})
        case "one of each":
            await house.ask("POST", "/jobs/bulk", editor, {"jobs": [WEBHOOK], "mode": "per_item"})
        case "named":
            await house.ask("POST", "/jobs", editor, MANUAL | {"name": "a"})
        case "template":
            await house.ask("POST", "/templates", house.admin, {"name": "t", "job": MANUAL})
            await house.ask("POST", "/templates/t/use", editor, {"name": "a"})
        case "copy":
            await house.ask("POST", "/jobs", house.admin, MANUAL | {"name": "b"})
            await house.ask("POST", "/jobs/b/duplicate", editor, {"name": "a"})
        case "sync":
            await house.ask("POST", "/jobs/sync", editor, {"jobs": [MANUAL | {"name": "a"}]})
    if way in ("named", "template", "copy", "sync"):
        await house.ask("POST", "/jobs/a/trigger", house.admin)

    assert not await house.may_use()


async def test_the_last_author_of_handler_or_payload_decides(house: House) -> None:
    await house.ask("POST", "/jobs", house.admin, MANUAL | {"name": "a"})
    await house.ask("PATCH", "/jobs/a", house.editor, {"priority": 9})
    await house.ask("POST", "/jobs/a/trigger", house.editor)
    assert await house.may_use()

    await house.ask("PATCH", "/jobs/a", house.editor, {"payload": NAMED | {"url": "https://elsewhere.example"}})
    await house.ask("POST", "/jobs/a/trigger", house.admin)
    assert not await house.may_use()

    await house.ask("PATCH", "/jobs/a", house.admin, {"payload": NAMED})
    await house.ask("POST", "/jobs/a/trigger", house.editor)
    assert await house.may_use()


async def test_the_author_of_the_running_version_decides(house: House) -> None:
    await house.ask("POST", "/jobs", house.editor, MANUAL | {"name": "a"})
    await house.ask("POST", "/jobs/a/trigger", house.editor)
    await house.ask("PATCH", "/jobs/a", house.admin, {"payload": NAMED})
    assert not await house.may_use()

    await house.ask("POST", "/jobs/a/trigger", house.admin)
    await house.ask("PATCH", "/jobs/a", house.editor, {"payload": NAMED})
    assert await house.may_use()


async def test_the_author_of_an_overriding_payload_decides_for_retries_too(house: House) -> None:
    await house.ask("POST", "/jobs", house.admin, MANUAL | {"name": "a"})
    run = await house.ask("POST", "/jobs/a/trigger", house.editor, {"payload": NAMED | {"url": "https://e.example"}})
    claimed = await house.claim()
    assert not await house.store.history.use_secrets(claimed, ["TOKEN"], is_bound=False)
    await house.store.executions.finish_succeeded([found(claimed)])

    await house.ask("POST", f"/executions/{run['id']}/retry", house.admin)
    assert not await house.may_use()

    await house.ask("POST", f"/executions/{run['id']}/retry", house.admin, {"payload": NAMED})
    assert await house.may_use()


async def test_a_worker_without_the_claim_gets_no_secret(house: House) -> None:
    await house.ask("POST", "/jobs", house.admin, WEBHOOK)
    claimed = await house.claim()
    await house.store.executions.finish_succeeded([found(claimed)])

    assert not await house.store.history.use_secrets(claimed, ["TOKEN"], is_bound=True)


async def test_security_10_the_first_use_of_a_secret_is_audited(house: House) -> None:
    """Once for each secret and job; for one-offs once for each author, or every webhook would fill the audit."""
    await house.ask("POST", "/jobs", house.admin, MANUAL | {"name": "a"})
    for _ in range(2):
        await house.ask("POST", "/jobs/a/trigger", house.admin)
        assert await house.store.history.use_secrets(await house.claim(), ["OTHER", "TOKEN"], is_bound=False)
    for _ in range(2):
        one_off = await house.ask("POST", "/jobs", house.editor, WEBHOOK)
        claimed = await house.claim()
        assert await house.store.history.use_secrets(claimed, ["TOKEN"], is_bound=True)
    await house.ask("POST", "/jobs", house.editor, WEBHOOK)
    assert not await house.store.history.use_secrets(await house.claim(), ["MINE"], is_bound=False)

    rows = (await house.ask("GET", "/audit", house.admin))["data"]
    uses = [row for row in rows if row["action"] == "secret.use"]

    named = await house.store.jobs.find_by_name("a")
    assert named is not None
    of_job = sorted(row["after"]["name"] for row in uses if row["subject"] == f"job:{named.id}")
    (of_editor,) = [row["after"] for row in uses if row["subject"] != f"job:{named.id}"]
    assert of_job == ["OTHER", "TOKEN"]
    assert of_editor["name"] == "TOKEN"
    assert of_editor["created_by"] == one_off["created_by"]
    assert of_editor["used_by"] == f"one-offs of {one_off['created_by']} by http.webhook"
