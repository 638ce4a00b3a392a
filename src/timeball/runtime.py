"""The parts of an open process; the one module that knows which concrete classes go together."""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, assert_never
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from timeball.application.commands import Commands
from timeball.brokers.base import Broker, PostgresBroker, make_broker
from timeball.config.life_signs import LifeSign
from timeball.config.settings import Settings
from timeball.domain.handler import Handler, Isolate, RunStyle
from timeball.domain.node import Node, NodeKind
from timeball.domain.values.ids import Incarnation
from timeball.domain.values.text import clean_text
from timeball.engine.node import BaseNode
from timeball.engine.supervisor import NodeFactory, Supervisor
from timeball.env import Env
from timeball.errors import StoreUnavailable
from timeball.handlers.builtin.egress import endpoint_rule
from timeball.handlers.catalogue import BuiltinHandlers, HandlerCatalogue, contract_of, installed_handlers
from timeball.handlers.payloads import accepts_payload
from timeball.handlers.registry import Registry
from timeball.store.db.database import DatabaseTimeouts
from timeball.store.db.url import DatabaseUrl
from timeball.store.store import Store
from timeball.telemetry.events import Emit, TimeoutsNotEnforced, ignore
from timeball.version import __version__

if TYPE_CHECKING:
    from timeball.application.events import EventHub
    from timeball.application.queries import Queries
    from timeball.domain.alert_routes import AlertDeliveryId
    from timeball.domain.alerts import AlertTransition
    from timeball.domain.watch import Observation
    from timeball.engine.watcher import Watcher, WatchReport
    from timeball.engine.worker.attempts import Runner
    from timeball.store.access import ApiKeyStore, IdempotencyKeyStore, SessionStore
    from timeball.store.search.listing import ListingStore
    from timeball.telemetry.metrics import MetricsSource

# No channel can have this name.
_OWN_WEBHOOK = "watch:webhook"
# Where drivers look for a server's socket when a URL names no host.
_SOCKET_FOLDERS = "/run/postgresql,/var/run/postgresql,/tmp"


@dataclass(frozen=True, slots=True)
class Runtime:
    """The parts of an open process."""

    settings: Settings
    env: Env
    store: Store
    commands: Commands
    box: BuiltinHandlers
    broker: Broker
    catalogue: HandlerCatalogue


def make_catalogue(box: BuiltinHandlers) -> HandlerCatalogue:
    """The handlers that can be scheduled, as far as this process knows them."""
    return HandlerCatalogue(box, [handler.name for handler in box.handlers])


def built_in_handlers(parts: Runtime) -> tuple[Handler, ...]:
    """The built-in handlers, and those of installed packages."""
    return (*parts.box.handlers, *installed_handlers())


@asynccontextmanager
async def open_database(settings: Settings) -> AsyncIterator[str]:
    """The URL of the database of the settings; the embedded server runs for as long as it is used."""
    if settings.database_url is not None:
        yield settings.database_url
        return
    from timeball.store.embedded.server import EmbeddedServer

    server = EmbeddedServer(settings.data_dir)
    url = await asyncio.to_thread(server.start)
    try:
        yield url
    finally:
        await asyncio.to_thread(server.leave)


@asynccontextmanager
async def open_runtime(settings: Settings, env: Env | None = None) -> AsyncIterator[Runtime]:
    """An open store, on the database of the settings or on the embedded one, for as long as it is used."""
    env = env or Env()
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(open_database(settings))
        store = _make_store(url, settings, env, settings.database_pool)
        await store.open(migrates=settings.migrate, shards=settings.shards)
        stack.push_async_callback(store.close)
        box = BuiltinHandlers(
            settings,
            env.clock,
            settings.data_dir,
            store.history,
            server_uid(url),
            store.history,
            lambda: store.alert_deliveries,
        )
        stack.push_async_callback(box.close)
        broker = await _make_broker(settings, store)
        stack.push_async_callback(broker.close)
        catalogue = make_catalogue(box)
        yield Runtime(settings, env, store, Commands(store, env, catalogue), box, broker, catalogue)


def _make_store(url: str, settings: Settings, env: Env, pool_size: int) -> Store:
    return Store(
        url,
        env,
        pool_size=pool_size,
        behind_pgbouncer=settings.behind_pgbouncer,
        patience=DatabaseTimeouts(
            fast_seconds=settings.database_answer_seconds, silence_seconds=settings.database_silence_seconds
        ),
        promotion_window=settings.scheduler.promotion_window,
    )


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
class ServerRuntime:
    """The parts of API and dashboard."""

    settings: Settings
    env: Env
    commands: Commands
    queries: Queries
    live: EventHub
    process: MetricsSource
    emit: Emit
    keys: ApiKeyStore
    sessions: SessionStore
    requests: IdempotencyKeyStore
    dead_letters: ListingStore
    catalogue: HandlerCatalogue


def make_queries(settings: Settings, store: Store) -> Queries:
    """Every read over an open store."""
    # Imported here: a worker alone has no use for these modules, and no memory for them.
    from timeball.application.queries import Queries
    from timeball.store.search.listing import ListingStore

    return Queries(store, ListingStore(store.database), settings)


def make_alert_evaluation(parts: Runtime) -> Callable[[], Awaitable[Sequence[AlertTransition]]]:
    """What a scheduler does to evaluate alerts: it reads what is so now, and writes what that means for the alerts."""
    made: list[Queries] = []

    async def evaluate() -> Sequence[AlertTransition]:
        if not made:
            # On first use: the other nodes of a process, and a scheduler that does no housekeeping, do without these modules.
            made.append(make_queries(parts.settings, parts.store))
        return await parts.commands.alerts.reconcile(await made[0].alerts.evaluate())

    return evaluate


class _DatabaseObserver:
    """Reads the database of the settings for a watcher, which neither starts nor changes it."""

    def __init__(self, settings: Settings, env: Env) -> None:
        self._settings = settings
        self._env = env
        self._store: Store | None = None
        self._queries: Queries | None = None

    async def look(self) -> Observation:
        if self._queries is None:
            self._store = _make_store(await self._url(), self._settings, self._env, pool_size=2)
            await self._store.open(migrates=False)
            self._queries = make_queries(self._settings, self._store)
        return await self._queries.alerts.look()

    async def _url(self) -> str:
        if self._settings.database_url is not None:
            return self._settings.database_url
        from timeball.store.embedded.server import find_running_server

        url = await asyncio.to_thread(find_running_server, self._settings.data_dir)
        if url is None:
            raise StoreUnavailable(f"the embedded PostgreSQL in {self._settings.data_dir} does not run")
        return url

    async def close(self) -> None:
        store, self._store, self._queries = self._store, None, None
        if store is not None:
            await store.database.close()


@asynccontextmanager
async def open_watcher(
    settings: Settings,
    emit: Emit,
    on_look: Callable[[WatchReport], None] = lambda _report: None,
    env: Env | None = None,
) -> AsyncIterator[Watcher]:
    """A watcher over the database of the settings, which need not be there."""
    from timeball.domain.channels import AlertChannel, ChannelKind
    from timeball.domain.watch import WatchedAlerts
    from timeball.engine.watcher import Outbox, Pinger, Watcher

    env, watch = env or Env(), settings.watch
    own: list[AlertChannel] = []
    if watch.webhook_url is not None:
        url = watch.webhook_url.get_secret_value()
        own.append(AlertChannel(name=_OWN_WEBHOOK, kind=ChannelKind.WEBHOOK, settings={"url": url}))
    outbox = Outbox(env, own, watch.channels)
    async with AsyncExitStack() as stack:
        observer = _DatabaseObserver(settings, env)
        stack.push_async_callback(observer.close)
        uid = None if settings.database_url is None else server_uid(settings.database_url)

        def open_handlers(allowed: Settings) -> BuiltinHandlers:
            handlers = BuiltinHandlers(
                allowed, env.clock, settings.data_dir, database_uid=uid, deliveries=lambda: outbox
            )
            stack.push_async_callback(handlers.close)
            return handlers

        for_channels, for_own_addresses = open_handlers(settings), open_handlers(_with_own_addresses_open(settings))

        async def send(delivery_id: AlertDeliveryId, channel: str, attempt: int) -> None:
            handlers = for_own_addresses if channel == _OWN_WEBHOOK else for_channels
            await handlers.deliver_alert(delivery_id, attempt, env)

        yield Watcher(
            env,
            emit,
            observer,
            WatchedAlerts(_name_of_database(settings)),
            outbox,
            send,
            Pinger(None if watch.ping_url is None else watch.ping_url.get_secret_value(), for_own_addresses.post),
            interval=timedelta(seconds=watch.every_seconds),
            answer_within=timedelta(seconds=watch.answer_seconds),
            on_look=on_look,
        )


def _with_own_addresses_open(settings: Settings) -> Settings:
    """Settings by which the addresses of the watcher itself may be called, wherever they lead; those of channels may not."""
    opened = [
        endpoint_rule(url.get_secret_value())
        for url in (settings.watch.ping_url, settings.watch.webhook_url)
        if url is not None
    ]
    return settings.model_copy(update={"webhook_allow": (*settings.webhook_allow, *opened)})


def _name_of_database(settings: Settings) -> str:
    """Which database it is, without user and password."""
    if settings.database_url is None:
        return str(settings.data_dir.resolve())
    url = DatabaseUrl.parse(settings.database_url)
    hosts = ",".join(f"{host.name}:{host.port}" for host in url.hosts())
    return f"{hosts}/{url.database or ''}"


def make_server_runtime(
    settings: Settings,
    store: Store,
    commands: Commands,
    process: MetricsSource | None = None,
    emit: Emit = ignore,
) -> ServerRuntime:
    """The parts of API and dashboard over an open store; *process* has the counters of the nodes beside them."""
    # Imported here: a worker alone has no use for these modules, and no memory for them.
    from timeball.application.events import EventHub
    from timeball.store.access import ApiKeyStore, IdempotencyKeyStore, SessionStore
    from timeball.store.search.listing import ListingStore
    from timeball.telemetry.emitter import Emitter
    from timeball.telemetry.metrics import CombinedMetrics, ProcessMetrics, ServerMetrics

    counted = ServerMetrics()
    return ServerRuntime(
        settings=settings,
        env=store.env,
        commands=commands,
        queries=make_queries(settings, store),
        live=EventHub(store.env, store),
        process=CombinedMetrics(process or ProcessMetrics(), counted),
        emit=Emitter(emit, counted.emit),
        keys=ApiKeyStore(store.database),
        sessions=SessionStore(store.database),
        requests=IdempotencyKeyStore(store.database),
        dead_letters=ListingStore(store.database),
        # Nothing of it is opened: the catalogue only lists what there is.
        catalogue=make_catalogue(BuiltinHandlers(settings, store.env.clock, settings.data_dir, store.history)),
    )


def make_supervisor(
    parts: Runtime,
    emit: Emit,
    *,
    registry: Registry | None = None,
    app_reference: str | None = None,
    with_scheduler: bool = False,
    with_worker: bool = False,
    trouble: str | None = None,
) -> Supervisor:
    """The nodes that this process runs; *trouble* says how the process ended that ran them before."""
    if with_worker:
        from timeball.current import LogCapture
        from timeball.engine.runners.print_capture import capture_prints

        LogCapture().install()
        capture_prints()
    nodes = _NodeFactory(parts, emit, registry or Registry(), app_reference, trouble)
    return Supervisor(
        parts.env,
        emit,
        workers=[nodes.worker_factory()] if with_worker else [],
        schedulers=[nodes.scheduler_factory()] if with_scheduler else [],
    )


class _NodeFactory:
    """Makes the nodes of this process. The code of a kind is imported together with its factory, before anything runs."""

    def __init__(
        self, parts: Runtime, emit: Emit, registry: Registry, app_reference: str | None, trouble: str | None
    ) -> None:
        self._parts = parts
        self._emit = emit
        self._handlers = self._declared = registry.merge(built_in_handlers(parts))
        if parts.settings.worker.isolate:
            isolated = [replace(handler, style=RunStyle.PROCESS) for handler in registry]
            self._handlers = Registry(isolated, registry.process_hooks).merge(built_in_handlers(parts))
        self._app_reference = app_reference
        self._trouble = trouble

    def scheduler_factory(self) -> NodeFactory:
        from timeball.engine.scheduler.node import SchedulerNode

        parts, settings = self._parts, self._parts.settings

        def make() -> BaseNode:
            node = self._node(NodeKind.SCHEDULER)
            return SchedulerNode(
                parts.env,
                self._emit,
                parts.store,
                node,
                settings.scheduler,
                settings.housekeeping,
                parts.commands.operations.work,
                parts.box.post,
                make_alert_evaluation(parts),
                parts.broker,
                LifeSign(node.kind),
            )

        return make

    def worker_factory(self) -> NodeFactory:
        from timeball.engine.worker.admission import WorkerContracts
        from timeball.engine.worker.node import WorkerNode

        parts, settings = self._parts, self._parts.settings.worker
        self._handlers.prepare()
        careless = [handler.name for handler in self._handlers if handler.ignores_timeouts]
        if careless:
            self._emit(TimeoutsNotEnforced(", ".join(careless)))
        # As declared: workers that isolate and workers that do not have the same contracts.
        published = [contract_of(handler) for handler in self._declared]
        contracts = WorkerContracts(parts.store.handlers, published, accepts_payload)

        def make() -> BaseNode:
            return WorkerNode(
                parts.env,
                self._emit,
                parts.store,
                replace(self._node(NodeKind.WORKER), fingerprints=tuple(contracts.fingerprints.values())),
                settings,
                self._handlers,
                self._runners(),
                parts.broker,
                contracts,
                LifeSign(NodeKind.WORKER),
            )

        return make

    def _runners(self) -> Mapping[RunStyle, Runner]:
        return {style: self._runner(style) for style in {handler.style for handler in self._handlers}}

    def _runner(self, style: RunStyle) -> Runner:
        match style:
            case RunStyle.COROUTINE:
                from timeball.engine.runners.in_process import CoroutineRunner

                return CoroutineRunner()
            case RunStyle.THREAD:
                from timeball.engine.runners.in_process import ThreadRunner
                from timeball.engine.worker.attempts import most_attempts

                return ThreadRunner(most_attempts(self._parts.settings.worker.slots))
            case RunStyle.PROCESS:
                from timeball.engine.runners.process import ProcessRunner
                from timeball.engine.worker.recorder import foresee_failure

                foresee = partial(foresee_failure, self._parts.env, self._parts.store.executions)
                worker = self._parts.settings.worker
                isolate = Isolate(runs_per_child=worker.runs_per_child, max_memory=worker.max_memory)
                return ProcessRunner(self._app_reference or "", isolate=isolate, foresee=foresee)
            case _:
                assert_never(style)

    def _node(self, kind: NodeKind) -> Node:
        settings = self._parts.settings
        is_worker = kind is NodeKind.WORKER
        return Node(
            incarnation=Incarnation(self._parts.env.new_id()),
            kind=kind,
            name=clean_text(f"{platform.node()}/{os.getpid()}"),
            lease=settings.worker.lease if is_worker else settings.scheduler.lease,
            slots=settings.worker.slots if is_worker else 0,
            queues=(settings.worker.queues or None) if is_worker else None,
            handlers=self._handlers.names() if is_worker else (),
            version=__version__,
            broker=self._parts.broker.kind,
            trouble=self._trouble,
        )
