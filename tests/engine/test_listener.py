"""The listener passes wake-ups on, makes the node look everywhere when it subscribes, and notices a dead connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from tests.engine.support import Heard, until
from timeball.domain.wakeup import Wakeup
from timeball.engine import node as module
from timeball.engine.node import Listener
from timeball.env import Env
from timeball.errors import StoreUnavailable
from timeball.store.store import Store
from timeball.telemetry.events import ListenerChanged
from timeball.testing import VirtualClock


@pytest.fixture
def wakeups() -> list[Wakeup]:
    """What was handed on."""
    return []


@pytest.fixture
async def listener(store: Store, env: Env, heard: Heard, wakeups: list[Wakeup]) -> AsyncIterator[Listener]:
    made = Listener(env, heard, store, wakeups.append)
    yield made
    await made.disconnect()


async def test_after_subscribing_the_node_looks_everywhere(
    listener: Listener, wakeups: list[Wakeup], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was announced before is not announced again; what is announced from now on arrives."""
    subscribed: list[bool] = []
    subscribe = asyncpg.Connection.add_listener

    async def noted(*args: Any) -> None:
        await subscribe(*args)
        subscribed.append(not wakeups)

    monkeypatch.setattr(asyncpg.Connection, "add_listener", noted)

    await listener.tick()

    assert subscribed == [True], "subscribes first, and says so then"
    assert [wakeup.look_everywhere for wakeup in wakeups] == [True]


async def test_a_wakeup_is_handed_on(
    store: Store, clock: VirtualClock, listener: Listener, wakeups: list[Wakeup]
) -> None:
    await listener.tick()
    told = Wakeup()
    told.add_lane("default", 50, clock.now(), 1)

    await store.database.notify(told.encode())

    await until(lambda: len(wakeups) == 2)
    assert wakeups[1].lanes == told.lanes


async def test_a_connection_that_was_cut_in_silence_is_found_out_and_replaced(
    store: Store,
    clock: VirtualClock,
    listener: Listener,
    wakeups: list[Wakeup],
    heard: Heard,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server does not answer and the socket says nothing: only a probe finds out."""
    monkeypatch.setattr(module, "_PROBE_TIMEOUT", 0.05)
    await listener.tick()
    silent = listener._connection

    async def no_answer(_query: str) -> None:
        await asyncio.Event().wait()

    listener._connection = _Silent(silent, no_answer)
    clock.advance("4800ms")
    await listener.tick()
    clock.advance("200ms")
    with pytest.raises(StoreUnavailable):
        await listener.tick()
    await listener.tick()

    assert [event.is_listening for event in heard.of(ListenerChanged)] == [True, False, True]
    assert [wakeup.look_everywhere for wakeup in wakeups] == [True, True], "what was missed meanwhile is looked for"
    silent.terminate()


class _Silent:
    def __init__(self, connection: Any, execute: Any) -> None:
        self.execute = execute
        self.terminate = connection.terminate
