"""Settings -> Store, Commands, Supervisor: the only file that knows which concrete parts go together."""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, assert_never
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from timeball.broker.interface import Broker
from timeball.broker.opening import make_broker
from timeball.broker.postgres import PostgresBroker
from timeball.commands import Commands
from timeball.domain.events import Emit, ignore
from timeball.domain.handler import Handler, RunStyle
from timeball.domain.ids import Incarnation
from timeball.domain.node import Node, NodeKind
from timeball.domain.text import clean
from timeball.engine.life import Life
from timeball.engine.supervisor import MakeLife, Supervisor
from timeball.env import Env
from timeball.handlers.box import Box
from timeball.handlers.catalogue import Catalogue, contract_of
from timeball.handlers.installed import installed_handlers
from timeball.handlers.registry import Registry
from timeball.handlers.schemas import takes
from timeball.settings import Settings
from timeball.store.database import Patience
from timeball.store.postgres import Store
from timeball.version import __version__

if TYPE_CHECKING:
    from timeball.insights import Insights
    from timeball.live import Live
    from timeball.runners.interface import Runner
    from timeball.store.idempotency import Requests
    from timeball.store.keys import Keys
    from timeball.store.listing import Listing
    from timeball.store.sessions import Sessions
    from timeball.telemetry.metrics import Counts

# Where drivers look for a server's socket when a URL names no host.
_SOCKET_FOLDERS = "/run/postgresql,/var/run/postgresql,/tmp"


@dataclass(frozen=True, slots=True)
class Parts:
    """What an open process has."""

    settings: Settings
    env: Env
    store: Store
    commands: Commands
    box: Box
    broker: Broker
    catalogue: Catalogue


def catalogue_of(box: Box) -> Catalogue:
    """What can be scheduled, as this process knows it."""
    return Catalogue(box, [handler.name for handler in box.handlers])


def built_in_handlers(parts: Parts) -> tuple[Handler, ...]:
    """What comes in the box, and what installed packages bring along."""
    return (*parts.box.handlers, *installed_handlers())


@asynccontextmanager
async def reached(settings: Settings) -> AsyncIterator[str]:
    """The URL of the database of the settings; the embedded server runs for as long as it is used."""
    if settings.database_url is not None:
        yield settings.database_url
        return
    from timeball.store.embedded import EmbeddedServer

    server = EmbeddedServer(settings.data_dir)
    url = await asyncio.to_thread(server.start)
    try:
        yield url
    finally:
        await asyncio.to_thread(server.leave)


@asynccontextmanager
async def opened(settings: Settings, env: Env | None = None) -> AsyncIterator[Parts]:
    """An open store, on the database of the settings or on the embedded one, for as long as it is used."""
    env = env or Env()
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(reached(settings))
        store = Store(
            url,
            env,
            pool_size=settings.database_pool,
            behind_pgbouncer=settings.behind_pgbouncer,
            patience=Patience(
                swift_seconds=settings.database_answer_seconds, silence_seconds=settings.database_silence_seconds
            ),
            hoist_window=settings.scheduler.hoist_window,
        )
        await store.open(migrates=settings.migrate, shards=settings.shards)
        stack.push_async_callback(store.close)
        box = Box(settings, env.clock, settings.data_dir, store.history, server_uid(url), store.history)
        stack.push_async_callback(box.close)
        broker = await _make_broker(settings, store)
        stack.push_async_callback(broker.close)
        catalogue = catalogue_of(box)
        yield Parts(settings, env, store, Commands(store, env, catalogue), box, broker, catalogue)


def server_uid(url: str) -> int | None:
    """The account that runs the database's server, if it is reached by a socket of this machine: the socket is that account's."""
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    named = query.get("host") or unquote(parts.netloc.rpartition("@")[2].partition(":")[0])
    for host in (named or os.environ.get("PGHOST") or _SOCKET_FOLDERS).split(","):
        if host.startswith("/"):
            with suppress(OSError):
                return os.stat(
                    f"{host}/.s.PGSQL.{query.get('port') or _port(parts) or os.environ.get('PGPORT') or 5432}"
                ).st_uid
    return None


def _port(parts: SplitResult) -> int | None:
    try:
        return parts.port
    except ValueError:  # several hosts, each with its own
        return None


async def _make_broker(settings: Settings, store: Store) -> Broker:
    url = settings.broker_url
    if url is None:
        return PostgresBroker()
    return make_broker(url.get_secret_value(), await store.tickets.namespace(), store.env.clock)


@dataclass(frozen=True, slots=True)
class FrontParts:
    """What the fronts for programs and people are made of."""

    settings: Settings
    env: Env
    commands: Commands
    insights: Insights
    live: Live
    process: Counts
    emit: Emit
    keys: Keys
    sessions: Sessions
    requests: Requests
    dead_letters: Listing
    catalogue: Catalogue


def front_parts(
    settings: Settings,
    store: Store,
    commands: Commands,
    process: Counts | None = None,
    emit: Emit = ignore,
) -> FrontParts:
    """What a front needs, over an open store; *process* is what the nodes beside it count."""
    # A worker alone answers no questions, and has no memory for them.
    from timeball.insights import Insights
    from timeball.live import Live
    from timeball.store.idempotency import Requests
    from timeball.store.keys import Keys
    from timeball.store.listing import Listing
    from timeball.store.sessions import Sessions
    from timeball.telemetry.emitting import Emitter
    from timeball.telemetry.metrics import FrontMetrics, ProcessMetrics, Together

    listing = Listing(store.database, store.jobs)
    counted = FrontMetrics()
    return FrontParts(
        settings=settings,
        env=store.env,
        commands=commands,
        insights=Insights(store, listing, settings),
        live=Live(store.env, store),
        process=Together(process or ProcessMetrics(), counted),
        emit=Emitter(emit, counted.emit),
        keys=Keys(store.database, store.jobs),
        sessions=Sessions(store.database, store.jobs),
        requests=Requests(store.database),
        dead_letters=listing,
        # Nothing of this box is opened: it only tells what there is.
        catalogue=catalogue_of(Box(settings, store.env.clock, settings.data_dir, store.history)),
    )


def make_supervisor(
    parts: Parts,
    emit: Emit,
    *,
    registry: Registry | None = None,
    app_reference: str | None = None,
    with_scheduler: bool = False,
    with_worker: bool = False,
    trouble: str | None = None,
) -> Supervisor:
    """The nodes this process is to run; *trouble* is what became of the process that they ran in before."""
    if with_worker:
        from timeball.runners.log_capture import LogCapture

        LogCapture().install()
    nodes = _Nodes(parts, emit, registry or Registry(), app_reference, trouble)
    return Supervisor(
        parts.env,
        emit,
        workers=[nodes.worker_maker()] if with_worker else [],
        schedulers=[nodes.scheduler_maker()] if with_scheduler else [],
    )


class _Nodes:
    """Who makes the lives of this process's nodes; the code of a kind is imported with its maker, before anything runs."""

    def __init__(
        self, parts: Parts, emit: Emit, registry: Registry, app_reference: str | None, trouble: str | None
    ) -> None:
        self._parts = parts
        self._emit = emit
        self._handlers = registry.merge(built_in_handlers(parts))
        self._app_reference = app_reference
        self._trouble = trouble

    def scheduler_maker(self) -> MakeLife:
        from timeball.engine.scheduler_life import SchedulerLife

        parts, settings = self._parts, self._parts.settings

        def make() -> Life:
            node = self._node(NodeKind.SCHEDULER)
            return SchedulerLife(
                parts.env, self._emit, parts.store, node, settings.scheduler, settings.housekeeping, parts.broker
            )

        return make

    def worker_maker(self) -> MakeLife:
        from timeball.engine.worker_life import WorkerLife

        parts, settings = self._parts, self._parts.settings.worker
        self._handlers.prepare()
        contracts = [contract_of(handler) for handler in self._handlers]
        fingerprints = {contract.name: contract.fingerprint for contract in contracts}
        published: list[bool] = []

        async def publish() -> None:
            # A process that begins another life has not been deployed again.
            await parts.store.handlers.publish(contracts, is_start=not published)
            published.append(True)

        def make() -> Life:
            node = replace(self._node(NodeKind.WORKER), fingerprints=tuple(fingerprints.values()))
            life = WorkerLife(
                parts.env, self._emit, parts.store, node, settings, self._handlers, self._runners(), parts.broker
            )
            life.publish = publish
            life.watch_contracts(fingerprints, takes)
            return life

        return make

    def _runners(self) -> Mapping[RunStyle, Runner]:
        return {style: self._runner(style) for style in {handler.style for handler in self._handlers}}

    def _runner(self, style: RunStyle) -> Runner:
        match style:
            case RunStyle.COROUTINE:
                from timeball.runners.coroutine import CoroutineRunner

                return CoroutineRunner()
            case RunStyle.THREAD:
                from timeball.runners.thread import ThreadRunner

                return ThreadRunner(self._parts.settings.worker.slots)
            case RunStyle.PROCESS:
                from timeball.runners.process import ProcessRunner

                return ProcessRunner(self._app_reference or "")
            case _:
                assert_never(style)

    def _node(self, kind: NodeKind) -> Node:
        settings = self._parts.settings
        is_worker = kind is NodeKind.WORKER
        return Node(
            incarnation=Incarnation(self._parts.env.new_id()),
            kind=kind,
            name=clean(f"{platform.node()}/{os.getpid()}"),
            lease=settings.worker.lease if is_worker else settings.scheduler.lease,
            slots=settings.worker.slots if is_worker else 0,
            queues=(settings.worker.queues or None) if is_worker else None,
            handlers=self._handlers.names() if is_worker else (),
            version=__version__,
            broker=self._parts.broker.kind,
            trouble=self._trouble,
        )
