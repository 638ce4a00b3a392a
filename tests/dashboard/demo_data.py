"""A Timeball that looks as if it had been used for a day: for browser tests, screenshots, and to look at.

`python -m tests.dashboard.demo_data [PORT [DSN]]` serves one until it is stopped, on a database of its own or on the empty one given.
"""

from __future__ import annotations

import asyncio
import platform
import random
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice
from typing import Any
from uuid import UUID

from tests.support.servers import running_servers
from timeball.api.server import ApiServer
from timeball.application.commands.requests import Actor
from timeball.config.settings import Settings, WorkerSettings
from timeball.current import current
from timeball.dashboard.app import make_web_app
from timeball.domain.execution import Origin
from timeball.domain.job import Job
from timeball.domain.job_fields import JobSpec
from timeball.domain.node import Lease, Node, NodeKind
from timeball.domain.values.ids import Incarnation, occurrence_id
from timeball.handlers.registry import Registry, make_handler
from timeball.runtime import Runtime, make_server_runtime, make_supervisor, open_runtime

_PAST = timedelta(hours=30)
_RUN = (
    "id job_id state origin version queue priority handler scheduled_for queued_at started_at finished_at attempts lost fence "
    "worker tzdata error_type error reason fingerprint"
)
_TRY = (
    "execution_id fence number worker started_at finished_at outcome error_type error traceback top_frame fingerprint"
)


@dataclass(frozen=True)
class Habit:
    """How the runs of a job usually go: seconds, and which share of them fails how."""

    spec: JobSpec
    seconds: float
    fails: float = 0.0
    error: tuple[str, str, str] = ("", "", "")
    tries: int = 1


_REFUSED = ("SMTPRecipientsRefused", "550 5.1.1 no such user", "app/mail.py:88 in deliver")
_TIMEOUT = ("ConnectTimeout", "crm.example.com did not answer within 10 s", "app/crm.py:14 in fetch_page")
_DISK = ("OSError", "[Errno 28] No space left on device", "app/reports.py:51 in write_pdf")


def _job(name: str, handler: str, **fields: Any) -> JobSpec:
    return JobSpec(name=name, handler=handler, **fields)


_USUAL = (
    Habit(
        _job("ping-partners", "app.net:ping", interval_seconds=30, tags=("partners",), payload={"timeout_s": 5}),
        0.18,
        0.01,
        _TIMEOUT,
    ),
    Habit(
        _job(
            "send-receipts",
            "app.mail:send_receipts",
            schedule="*/2 * * * *",
            queue="mail",
            priority=75,
            max_retries=4,
            description="Sends the receipts of the last two minutes.",
            payload={"batch": 200, "smtp_password": "hunter2"},
        ),
        1.4,
        0.04,
        _REFUSED,
        5,
    ),
    Habit(
        _job(
            "sync-crm",
            "app.crm:sync",
            schedule="*/10 * * * *",
            queue="crm",
            timezone="Europe/Berlin",
            payload={"account": "acme"},
        ),
        96,
        0.05,
        _TIMEOUT,
        3,
    ),
    Habit(
        _job(
            "nightly-etl",
            "app.etl:run",
            schedule="0 3 * * *",
            queue="batch",
            timezone="Europe/Berlin",
            tags=("finance",),
        ),
        1_860,
    ),
    Habit(
        _job(
            "reindex",
            "app.search:reindex",
            schedule="0 3 * * *",
            queue="batch",
            timezone="Europe/Berlin",
            tags=("search",),
        ),
        540,
    ),
    Habit(
        _job(
            "invoices",
            "app.billing:invoices",
            schedule="0 3 * * *",
            queue="batch",
            timezone="Europe/Berlin",
            priority=100,
            tags=("finance",),
        ),
        420,
        0.1,
        _DISK,
        2,
    ),
    Habit(_job("backup-media", "app.backup:media", schedule="15 */6 * * *", queue="batch"), 1_100),
    Habit(_job("warm-cache", "app.cache:warm", schedule="*/15 8-20 * * mon-fri", timezone="Europe/Berlin"), 41),
    Habit(
        _job(
            "morning-report",
            "app.reports:morning",
            schedule="30 2 * * *",
            timezone="Europe/Berlin",
            queue="reports",
            tags=("finance",),
        ),
        75,
    ),
    Habit(_job("check-certificates", "app.net:certificates", schedule="5 * * * *"), 8.5),
    Habit(_job("rotate-logs", "app.ops:rotate", interval_seconds=3_600), 3.1),
)
_LONG = (
    Habit(
        _job("train-ranker", "app.search:train", schedule="30 1 * * *", queue="batch", timezone="Europe/Berlin"), 9_800
    ),
    Habit(_job("thumbnails", "app.media:thumbnails", schedule="*/20 7-19 * * mon-fri"), 1_640),
    Habit(_job("stock-levels", "app.stock:levels", schedule="*/15 6-21 * * *", timezone="Europe/Berlin"), 720),
)
HABITS = (*_USUAL, *_LONG)
FAILING = _job(
    "import-prices", "app.prices:load", interval_seconds=300, max_retries=1, queue="crm", payload={"feed": "eu"}
)
RETRIED = _job("push-orders", "app.orders:push", interval_seconds=240, max_retries=6, initial_backoff_ms=60_000)


async def _work(seconds: float = 0.2, lines: tuple[str, ...] = ()) -> dict[str, Any]:
    for line in lines:
        current.log(line)
    current.progress(0.3, "page 3 of 10")
    await asyncio.sleep(seconds)
    return {"done": True}


def handlers() -> Registry:
    """What the workers of this Timeball know: names as a real program has them."""
    made = Registry()
    for habit in HABITS:
        seconds = min(habit.seconds, 240)

        async def run(seconds: float = seconds, **_payload: Any) -> dict[str, Any]:
            return await _work(seconds, ("begins", "asks for page 1", "page 1 has 250 rows", "asks for page 2"))

        made.add(make_handler(run, name=habit.spec.handler))

    async def fail(**_payload: Any) -> None:
        current.log("asks for the feed", level="info")
        current.log("the feed is empty", level="error")
        raise ValueError("price feed eu: expected at least 1 row, found 0")

    async def refuse(**_payload: Any) -> None:
        current.log("POST /orders -> 503", level="warning")
        raise ConnectionError("orders.example.com answered 503 Service Unavailable")

    made.add(make_handler(_as_if_in(fail, "app/prices.py", 21), name=FAILING.handler))
    made.add(make_handler(_as_if_in(refuse, "app/orders.py", 54), name=RETRIED.handler))
    return made


def _as_if_in(function: Any, file: str, line: int) -> Any:
    """The same function, as if it stood in the program that this pretends to be: its errors say where they were raised."""
    function.__code__ = function.__code__.replace(co_filename=file, co_firstlineno=line)
    return function


@dataclass
class History:
    """The past of some jobs, invented: the same in every run but for when it is."""

    now: datetime
    workers: list[UUID]
    chance: random.Random = field(default_factory=lambda: random.Random(1833))
    runs: list[tuple[Any, ...]] = field(default_factory=list)
    tries: list[tuple[Any, ...]] = field(default_factory=list)

    def invent(self, job: Job, habit: Habit) -> None:
        """One run for each occurrence of the past."""
        for at in self._instants(job, habit):
            self._run(job, habit, at)

    def _instants(self, job: Job, habit: Habit) -> list[datetime]:
        step = habit.spec.interval_seconds
        if step is None:
            return [occurrence.at for occurrence in islice(job.rule.occurrences(self.now - _PAST, self.now), 20_000)]
        # An interval counts from when its job was made, which is now: so its past is counted backwards.
        first = job.rule.next_after(self.now)
        assert first is not None
        return [first - timedelta(seconds=step) * number for number in range(1, int(_PAST.total_seconds() // step))]

    def _run(self, job: Job, habit: Habit, at: datetime) -> None:
        chance = self.chance
        late = 0.001 + abs(chance.gauss(0, 0.004)) + (chance.random() < 0.02) * chance.uniform(0.05, 2.2)
        started = at + timedelta(seconds=late)
        ended = started + timedelta(seconds=habit.seconds * chance.lognormvariate(0, 0.18))
        if ended >= self.now:
            return
        dies = chance.random() < habit.fails
        stumbles = not dies and chance.random() < habit.fails
        worker = chance.choice(self.workers)
        id_ = occurrence_id(job.id, at)
        error_type, error, frame = habit.error if dies or stumbles else (None, None, None)
        fingerprint = f"{error_type}-{frame}".lower()[:40] if error_type else None
        number = habit.tries if dies else 1 + stumbles
        for count in range(1, number + (0 if not dies else 1)):
            trace = f'Traceback (most recent call last):\n  File "app/run.py", line 12, in main\n{error_type}: {error}'
            self.tries.append(
                (id_, count, count, worker, started, ended, "failed", error_type, error, trace, frame, fingerprint)
            )
        self.runs.append(
            (id_, job.id, "dead" if dies else "succeeded", Origin.SCHEDULE.value, 1, job.queue, job.priority, job.handler, at, at,
             started, ended, number, 0, number, worker, "2026a", *((error_type, error, None, fingerprint) if dies else (None,) * 4))
        )  # fmt: skip


async def furnish(parts: Runtime) -> None:
    """Fill an empty database: jobs, their past, queues with pauses and limits, workers elsewhere."""
    workers = [
        await _elsewhere(parts, name, queues)
        for name, queues in (("app-2/412", ("default", "reports")), ("batch-1/97", ("batch",)))
    ]
    # A day ago: what is made now has no past.
    await _jobs(parts, workers)
    actor = Actor("ana", "warehouse is moving")
    await parts.commands.queues.pause("labels", actor)
    await parts.commands.queues.limit("crm", 2, Actor("ana", "their API allows two"))
    for number in range(14):
        await parts.commands.jobs.create(
            JobSpec(handler="app.labels:print", queue="labels", payload={"order": 4_000 + number})
        )
    for number in range(61):
        await parts.commands.jobs.create(
            JobSpec(handler="app.reports:customer", queue="exports", payload={"customer": 70_000 + number})
        )
    hook = {"handler": "http.webhook", "payload": {"url": "https://shop.example.com/{{path}}", "method": "POST"}}
    await parts.commands.templates.create("call-shop", hook, "Calls the shop; say which path.", Actor("ana"))
    greeting = {"handler": "app.mail:campaign", "queue": "mail", "payload": {"to": "{{customer}}"}, "priority": 75}
    await parts.commands.templates.create("greet-customer", greeting, "A first mail to a new customer.", Actor("ana"))
    soon = parts.env.clock.now() + timedelta(minutes=48)
    await parts.commands.jobs.create(
        _job("campaign", "app.mail:campaign", scheduled_at=soon, queue="mail", priority=90)
    )
    old = await parts.commands.jobs.create(
        _job("weekly-digest", "app.mail:digest", schedule="0 9 * * mon", queue="mail", timezone="Europe/Berlin")
    )
    await parts.commands.jobs.pause(old.job_id, None, Actor("ana", "wording under review"))


async def _jobs(parts: Runtime, workers: list[UUID]) -> None:
    history = History(parts.env.clock.now(), workers)
    for habit in HABITS:
        made = await parts.commands.jobs.create(habit.spec, actor=Actor("ana"))
        history.invent((await parts.store.jobs.find([made.job_id]))[made.job_id], habit)
    for spec in (FAILING, RETRIED):
        await parts.commands.jobs.create(spec, actor=Actor("ana"))
    connection = await parts.store.database.connect()
    try:
        copy = {"schema_name": "timeball"}
        await connection.copy_records_to_table("finished", records=history.runs, columns=_RUN.split(), **copy)
        await connection.copy_records_to_table("attempt", records=history.tries, columns=_TRY.split(), **copy)
        # They look as old as their past is.
        older = "UPDATE timeball.job SET created_at = created_at - $1::interval, created_by = 'ana'"
        await connection.execute(older, timedelta(days=3))
    finally:
        await connection.close()


async def _stir(parts: Runtime) -> None:
    """Trigger some jobs once a worker can take them, so that they do not start late."""
    async with asyncio.timeout(120):
        while not any(FAILING.handler in node.handlers for node in await parts.store.nodes.list()):
            await asyncio.sleep(0.1)
    for name in ("sync-crm", "warm-cache", FAILING.name, RETRIED.name):
        job = await parts.store.jobs.find_by_name(str(name))
        assert job is not None
        await parts.commands.executions.trigger(job.id, actor=Actor("ana"))


async def _elsewhere(parts: Runtime, name: str, queues: tuple[str, ...] | None) -> UUID:
    """Register a worker without a process; it claims nothing."""
    incarnation = Incarnation(parts.env.new_id())
    lease = Lease(span=timedelta(hours=3), interval=timedelta(seconds=5))
    known = tuple(habit.spec.handler for habit in HABITS if queues is None or habit.spec.queue in queues)
    node = Node(
        incarnation=incarnation, kind=NodeKind.WORKER, name=name, lease=lease, slots=2, queues=queues, handlers=known, version="0.1.0"
    )  # fmt: skip
    await parts.store.nodes.register(node)
    return incarnation


@asynccontextmanager
async def serving(
    dsn: str, *, is_furnished: bool = True, prefix: str = "", with_nodes: bool = True, port: int = 0
) -> AsyncIterator[tuple[str, Runtime]]:
    """API, dashboard, a scheduler and a worker on a database, for as long as they are used."""
    settings = Settings(
        database_url=dsn,
        port=port,
        url_prefix=prefix,
        worker=WorkerSettings(slots=4, queues=("default", "mail", "crm")),
    )
    async with open_runtime(settings) as parts:
        if is_furnished:
            await furnish(parts)
        # Pictures are taken of its settings: they show a database as people have one, and not where this one lies.
        shown = settings.model_copy(update={"database_url": "postgresql://timeball:timeball@db.example.com/timeball"})
        front = make_server_runtime(shown, parts.store, parts.commands)
        server = ApiServer(front, make_web_app(front))
        await server.open()
        answering = asyncio.ensure_future(server.run())
        supervisor = make_supervisor(
            parts, lambda _event: None, registry=handlers(), with_scheduler=with_nodes, with_worker=with_nodes
        )
        working = asyncio.ensure_future(supervisor.run())
        try:
            if is_furnished and with_nodes:
                await _stir(parts)
            yield server.address + prefix, parts
        finally:
            supervisor.stop()
            supervisor.stop()
            server.stop()
            await asyncio.gather(answering, working)


def main() -> None:
    """Serve until stopped."""
    platform.node = lambda: "app-1"
    port, dsn = int(sys.argv[1]) if sys.argv[1:] else 0, sys.argv[2] if sys.argv[2:] else None
    with suppress(KeyboardInterrupt):
        if dsn is not None:
            asyncio.run(_serve(port, dsn))
            return
        with running_servers() as servers:
            server = servers.postgres("pg15")
            asyncio.run(_serve(port, server.dsn(server.create_database())))


async def _serve(port: int, dsn: str) -> None:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    async with serving(dsn, port=port) as (address, _):
        print(f"{address}  {dsn}", flush=True)
        await stopped.wait()


if __name__ == "__main__":
    main()
