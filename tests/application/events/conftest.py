"""The change stream on one kind of server: the statements behind it are tested on all of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from timeball.application.events import EventHub
from timeball.env import Env, SystemClock
from timeball.store.store import Store


@pytest.fixture
async def store(open_store: Callable[..., Awaitable[Store]]) -> Store:
    """In real time: listeners wait."""
    return await open_store(Env(SystemClock()))


@pytest.fixture
async def live(store: Store) -> AsyncIterator[EventHub]:
    made = EventHub(store.env, store)
    yield made
    made.close()
