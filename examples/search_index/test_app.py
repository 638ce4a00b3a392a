"""`pytest` in this folder."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import app as search
import httpx
import pytest


@pytest.fixture
async def client(timeball: Any) -> AsyncIterator[httpx.AsyncClient]:
    timeball.use(search.tb)
    search.texts.clear()
    search.index.clear()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(search.app), base_url="http://search") as client:
        yield client


async def test_a_document_is_indexed_once_when_it_has_been_left_alone(client: httpx.AsyncClient, timeball: Any) -> None:
    for text in ("tea", "tea and", "tea and biscuits"):
        assert (await client.put("/documents/menu", json={"text": text})).status_code == 202
        await timeball.clock.aadvance("1s")
    assert (await client.get("/documents/menu/progress")).json()["state"] == "scheduled"
    assert (await client.get("/search", params={"word": "tea"})).json() == []

    await timeball.clock.aadvance("1s")

    assert (await client.get("/search", params={"word": "biscuits"})).json() == ["menu"]
    assert len(await timeball.aexecutions(search.index_document)) == 1


async def test_the_page_shows_how_far_it_is(client: httpx.AsyncClient, timeball: Any) -> None:
    await client.put("/documents/menu", json={"text": "tea and biscuits"})
    await timeball.clock.aadvance("2s")

    assert (await client.get("/documents/menu/progress")).json()["state"] == "succeeded"
    assert (await client.get("/documents/nothing/progress")).status_code == 404
