"""The API behind its socket."""

from __future__ import annotations

from typing import Any

import fastapi.routing
import httpx
import pytest

from timeball.api.app import make_api
from timeball.api.server import ApiServer
from timeball.client.in_process import InProcessTransport
from timeball.config.settings import Settings
from timeball.runtime import ServerRuntime, make_server_runtime
from timeball.store.store import Store


async def test_all_routes_are_built_before_the_first_request(
    store: Store, parts: ServerRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_api(parts)
    server = ApiServer(make_server_runtime(Settings(port=0), store, parts.commands), app)
    await server.open()
    built: list[Any] = []
    original = fastapi.routing.get_dependant

    def counted(**arguments: Any) -> Any:
        built.append(arguments["path"])
        return original(**arguments)

    monkeypatch.setattr("fastapi.routing.get_dependant", counted)
    async with httpx.AsyncClient(transport=InProcessTransport(app), base_url="http://localhost") as client:
        for path in ("/api/v1/jobs", "/api/v1/queues", "/api/v1/operations", "/api/v1/nothing"):
            await client.get(path)

    assert built == []
