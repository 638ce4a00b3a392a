"""A watcher over a real database and real addresses, with a clock that the test moves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import FreshDatabase
from tests.engine.support import Heard, create, start_scheduler, start_worker
from tests.handlers.builtin.support import Request, RudeServer, answer, rude_server
from tests.handlers.builtin.test_alert_delivery import turn
from tests.support.pace import patience
from timeball.application.commands import Commands
from timeball.application.commands.requests import Actor
from timeball.config.life_signs import is_alive
from timeball.config.settings import Settings
from timeball.domain.alerts import AlertEvaluation, AlertFact, Severity
from timeball.domain.watch import Observation
from timeball.engine.watcher import Watcher, WatchReport, failure_address
from timeball.env import Env
from timeball.errors import StoreUnavailable
from timeball.runtime import open_watcher
from timeball.store.store import Store
from timeball.telemetry.events import AlertDelivered, AlertNotDelivered, AlertOpened, AlertResolved, PingFailed
from timeball.testing import VirtualClock

OK, BUSY, GONE = answer(), answer("503 Service Unavailable", b"not now"), answer("404 Not Found")
EVERY = timedelta(seconds=30)


class World:
    """A watcher, the addresses that it reaches, and an installation without nodes."""

    def __init__(self, watcher: Watcher, clock: VirtualClock, heard: Heard, server: RudeServer) -> None:
        self.watcher, self.clock, self.heard, self.server = watcher, clock, heard, server
        self.reports: list[WatchReport] = []

    async def look(self, times: int = 1, span: timedelta = EVERY) -> None:
        """Let time pass, look, and send what is due, so many times."""
        for _ in range(times):
            self.clock.advance(span)
            async with asyncio.timeout(patience(60)):
                await self.watcher.tick()
                await asyncio.gather(*self.watcher._sending)

    def told(self, path: str = "/alerts") -> list[tuple[str, str]]:
        """What an address was told: event and kind of each message."""
        bodies = [json.loads(request.body) for request in self.at(path)]
        return [(body["type"], body["data"]["alert"]["kind"]) for body in bodies]

    def at(self, path: str) -> list[Request]:
        return [request for request in self.server.requests if request.line.split()[1] == path]

    def look_by(self, look: Callable[[], Any]) -> None:
        """Let the watcher read by this function."""
        self.watcher._observer.look = look  # type: ignore[method-assign]


Open = Callable[..., Any]


@pytest.fixture
def open_world(
    fresh_database: FreshDatabase, store: Store, clock: VirtualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Open:
    # Life signs are of this test alone.
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    @asynccontextmanager
    async def opened(*, is_allowed: bool = True, env: Env | None = None, **watch: Any) -> AsyncIterator[World]:
        async with rude_server() as server:
            for path in ("/alerts", "/own", "/ping", "/ping/fail"):
                server.on(path, OK)
            watch = {name: server.url(value) if name.endswith("_url") else value for name, value in watch.items()}
            settings = Settings(
                database_url=fresh_database.dsn,
                data_dir=tmp_path,
                webhook_allow=(f"127.0.0.1:{server.port}",) if is_allowed else (),
                watch=watch,
            )
            heard = Heard()
            async with open_watcher(settings, heard, env=env or Env(clock)) as watcher:
                yield World(watcher, clock, heard, server)

    return opened


@pytest.fixture
def commands(store: Store) -> Commands:
    return Commands(store, store.env)


async def channel(commands: Commands, url: str | dict[str, str], name: str = "ops", **route: Any) -> None:
    actor = route.pop("actor", Actor("ada"))
    await commands.channels.create(name, "webhook", {"url": url}, actor=actor)
    await commands.alert_routes.create({"name": f"to-{name}", "channels": [name], **route})


async def test_a_dead_installation_is_told_once_and_told_to_be_over(
    open_world: Open, store: Store, commands: Commands
) -> None:
    async with open_world() as world:
        await channel(commands, world.server.url("/alerts"))
        await world.look(4)
        told = world.told()
        await start_scheduler(store)
        await start_worker(store)
        await world.look(2)

        # A warning and a critical fact, in no order: each message goes its own way.
        assert sorted(told) == [("alert.opened", "schedulers"), ("alert.opened", "workers")]
        assert sorted(world.told()[2:]) == [("alert.resolved", "schedulers"), ("alert.resolved", "workers")]
        assert len(world.heard.of(AlertOpened)) == len(world.heard.of(AlertResolved)) == 2
        assert len(world.heard.of(AlertDelivered)) == 4


async def test_what_lives_is_not_told(open_world: Open, store: Store, commands: Commands) -> None:
    async with open_world(ping_url="/ping") as world:
        await channel(commands, world.server.url("/alerts"))
        await start_scheduler(store)
        await start_worker(store)
        await world.look(1)
        await commands.alerts.reconcile(AlertEvaluation(world.clock.now(), []))
        await world.look(2)

        assert world.told() == []
        assert [request.body for request in world.at("/ping")] == [b"all is well"] * 3
        assert not world.at("/ping/fail")


async def test_rows_that_nobody_promotes_are_told_though_a_scheduler_lives(
    open_world: Open, store: Store, commands: Commands
) -> None:
    async with open_world() as world:
        await channel(commands, world.server.url("/alerts"))
        # It has its lease, and does nothing.
        await start_scheduler(store)
        await start_worker(store)
        await create(store, interval_seconds=60)
        await world.look(9)

        assert sorted(world.told()) == [("alert.opened", "alerts"), ("alert.opened", "overdue")]
        sentences = {event.kind: event.sentence for event in world.heard.of(AlertOpened)}
        assert sentences["overdue"].startswith("schedule: the oldest entry should have been promoted")
        assert sentences["alerts"].startswith("alerts: never evaluated: no alert opens")


async def test_messages_that_no_worker_sends_are_told(open_world: Open, store: Store, commands: Commands) -> None:
    async with open_world() as world:
        await channel(commands, world.server.url("/alerts"))
        await start_scheduler(store)
        await start_worker(store)
        await commands.alerts.reconcile(AlertEvaluation(world.clock.now(), [DEAD_LETTERS]))
        for _ in range(7):
            await world.look(1)
            await commands.alerts.reconcile(AlertEvaluation(world.clock.now(), [DEAD_LETTERS]))

        assert world.told() == [("alert.opened", "alerts")]
        (opened,) = world.heard.of(AlertOpened)
        assert opened.sentence.startswith("alerts: 1 message waits to be sent, the oldest for")


DEAD_LETTERS = AlertFact(
    kind="dead_letters", key="dead_letters", severity=Severity.WARNING, sentence="dead letters: 1 execution is dead"
)


async def test_a_database_out_of_reach_is_told_to_the_channels_that_were_read_before(
    open_world: Open, store: Store, commands: Commands
) -> None:
    async with open_world(ping_url="/ping") as world:
        await channel(commands, world.server.url("/alerts"))
        await start_scheduler(store)
        await start_worker(store)
        await world.look()
        observer = world.watcher._observer.look

        async def refused() -> Observation:
            raise StoreUnavailable("PostgreSQL cannot be reached: db:5432: Connection refused postgresql://u:pw1234@db")

        world.look_by(refused)
        await world.look(3)
        told, failed = world.told(), [request.body for request in world.at("/ping/fail")]
        world.look_by(observer)
        await commands.alerts.reconcile(AlertEvaluation(world.clock.now(), []))
        await world.look(2)

        assert told == [("alert.opened", "unreachable")]
        # In the look before that it was new, and neither good nor bad.
        assert len(failed) == 2
        assert failed[0].startswith(b"database: PostgreSQL cannot be reached: db:5432")
        assert b"pw1234" not in failed[0]
        assert ("alert.resolved", "unreachable") in world.told()
        assert len(world.at("/ping")) == 3


async def test_a_database_that_does_not_answer_is_told_as_one_that_is_gone(open_world: Open) -> None:
    async with open_world(webhook_url="/own", answer_seconds=0.01) as world:
        world.look_by(asyncio.Event().wait)
        await world.look(2)

        assert world.told("/own") == [("alert.opened", "unreachable")]
        assert "no answer within 0.01 s" in world.heard.of(AlertOpened)[0].sentence


async def test_a_message_is_tried_again_with_the_same_id(open_world: Open, commands: Commands) -> None:
    async with open_world() as world:
        world.server.on("/alerts", turn(BUSY, BUSY, OK))
        await channel(commands, world.server.url("/alerts"), severity="critical")
        await world.look(4)

        requests = world.at("/alerts")
        assert len(requests) == 3
        assert len({request.headers["idempotency-key"] for request in requests}) == 1
        assert [event.retry_after for event in world.heard.of(AlertNotDelivered)] == [
            timedelta(seconds=5),
            timedelta(seconds=10),
        ]
        assert len(world.heard.of(AlertDelivered)) == 1


async def test_what_a_channel_refuses_is_given_up_and_the_others_are_told(open_world: Open, commands: Commands) -> None:
    async with open_world() as world:
        await channel(commands, world.server.on("/gone", GONE), "first", severity="critical")
        await channel(commands, world.server.url("/alerts"), "second", severity="critical")
        await world.look(5)

        assert len(world.at("/gone")) == 1
        assert world.told() == [("alert.opened", "schedulers")]
        (failure,) = world.heard.of(AlertNotDelivered)
        assert (failure.channel, failure.retry_after) == ("first", None)


async def test_an_alert_is_told_again_as_its_route_says_until_it_is_acknowledged(
    open_world: Open, store: Store, commands: Commands
) -> None:
    async with open_world() as world:
        await channel(commands, world.server.url("/alerts"), severity="critical", repeat_every_seconds=600)
        await world.look(2)
        await world.look(45)
        before = world.told()
        # A person finds the alert in the installation: another scheduler has written it and died.
        sentence = world.heard.of(AlertOpened)[0].sentence
        fact = AlertFact(kind="schedulers", key="schedulers", severity=Severity.CRITICAL, sentence=sentence)
        (known,) = await commands.alerts.reconcile(AlertEvaluation(world.clock.now(), [fact]))
        await commands.alerts.acknowledge(known.alert.id, actor=Actor("bo"))
        await world.look(60)

        assert [event for event, _ in before] == ["alert.opened", "alert.reminder", "alert.reminder"]
        assert world.told() == before


async def test_a_channel_of_an_editor_uses_bound_secrets_alone_here_too(
    open_world: Open, store: Store, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_world() as world:
        monkeypatch.setenv("TIMEBALL_SECRET_HOOK", world.server.url("/alerts"))
        await channel(
            commands,
            {"$secret": "HOOK"},
            severity="critical",
            actor=Actor("ed", is_administrator=False),
        )
        await world.look(2)
        refused = world.heard.of(AlertNotDelivered)
        told = world.told()
        monkeypatch.setenv("TIMEBALL_SECRET_HOOK_HOSTS", "127.0.0.1")
        await start_scheduler(store)
        await world.look(2)
        (incarnation,) = [node.incarnation for node in await store.nodes.list()]
        await store.nodes.remove(incarnation)
        await world.look(2)

        assert [event.retry_after for event in refused] == [None]
        assert "bound to no hosts" in refused[0].error
        assert not told
        assert world.told() == [("alert.opened", "schedulers")]


async def test_addresses_of_the_watcher_itself_may_be_private_and_those_of_channels_may_not(
    open_world: Open, commands: Commands
) -> None:
    async with open_world(is_allowed=False, webhook_url="/own", ping_url="/ping?create=1") as world:
        await channel(commands, world.server.url("/alerts"), severity="critical")
        world.server.on("/ping/fail", OK)
        await world.look(2)

        assert sorted(world.told("/own")) == [("alert.opened", "schedulers"), ("alert.opened", "workers")]
        assert not world.told("/alerts")
        assert "not public" in world.heard.of(AlertNotDelivered)[0].error
        assert len(world.at("/ping/fail?create=1")) == 1


async def test_only_the_named_channels_are_used_and_one_without_a_route_gets_everything(
    open_world: Open, commands: Commands
) -> None:
    async with open_world(channels=("spare",)) as world:
        await channel(commands, world.server.url("/alerts"))
        await commands.channels.create("spare", "webhook", {"url": world.server.url("/own")}, actor=Actor("ada"))
        await world.look(3)

        assert not world.told("/alerts")
        assert sorted(world.told("/own")) == [("alert.opened", "schedulers"), ("alert.opened", "workers")]


async def test_a_ping_that_fails_is_reported_and_ends_nothing(open_world: Open) -> None:
    async with open_world(ping_url="/ping") as world:
        world.server.on("/ping/fail", GONE)
        await world.look(4)

        failures = world.heard.of(PingFailed)
        assert len(failures) == 3
        assert all("404" in failure.error for failure in failures)
        # The address is a secret.
        assert all("/ping" not in failure.error for failure in failures)


async def test_a_watcher_that_looks_once_pings_at_once_and_tells_no_channel(
    open_world: Open, commands: Commands
) -> None:
    async with open_world(ping_url="/ping") as world:
        await channel(commands, world.server.url("/alerts"))

        report = await world.watcher.look_once()

        assert {fact.kind for fact in report.facts} == {"schedulers", "workers"}
        assert len(world.at("/ping/fail")) == 1
        assert not world.told()


async def test_a_watcher_shows_that_it_lives_and_stops_in_the_middle_of_a_look(open_world: Open) -> None:
    async with open_world(env=Env()) as world:
        looking = asyncio.Event()

        async def hang() -> Observation:
            looking.set()
            await asyncio.Event().wait()
            raise AssertionError

        world.look_by(hang)
        running = asyncio.ensure_future(world.watcher.run())
        async with asyncio.timeout(patience(60)):
            await looking.wait()
            lived = is_alive("watch")
            world.watcher.stop()
            await running

        assert lived
        assert not is_alive("watch")


def test_a_bad_ping_goes_to_the_path_with_fail_behind_it() -> None:
    assert failure_address("https://hc-ping.com/uuid") == "https://hc-ping.com/uuid/fail"
    assert failure_address("https://hc-ping.com/key/slug/?create=1") == "https://hc-ping.com/key/slug/fail?create=1"
