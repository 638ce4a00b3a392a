"""What strict type checkers must accept. Never run."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import assert_type

from timeball import (
    AsyncHandlerHandle,
    Call,
    Cancel,
    ExecutionFailed,
    HandlerHandle,
    Job,
    ResultTimeout,
    Retry,
    Run,
    ScheduledJob,
    Snooze,
    SyncHandlerHandle,
    Timeball,
    current,
)
from timeball.domain.execution import Execution
from timeball.testing import DrainResult, Fired, TimeballHarness

tb = Timeball("postgresql:///app", data_dir=".timeball")


@tb.handler
def send(order_id: int, to: str, *, copy: bool = False) -> str:
    if current.attempt > 3:
        raise Cancel("enough")
    return f"{order_id} {to} {copy}"


@tb.handler(queue="mail", retries=5, timeout=timedelta(seconds=30), no_retry=(ValueError, KeyError), tags=["a"])
async def double(n: int) -> int:
    current.progress(0.5, "half")
    return 2 * n


@tb.handler(name="mail.clean", timeout=None, delivery="at_most_once", isolate=True)
def clean() -> Snooze | None:
    if current.cancelled:
        raise Retry(after="5m")
    return Snooze("30s")


@tb.cron("0 9 * * mon-fri", timezone="Europe/Berlin", overlap="queue", misfire="all", starts_at=datetime.now(UTC))
async def report() -> list[str]:
    return []


@tb.every("30s", name="beat", arguments={"n": 1}, jitter=2.5)
@tb.handler(queue="beats")
def beat(n: int) -> float:
    return n / 2


@tb.handler(queue="late")
@tb.every(30)
async def late() -> None: ...


def threads() -> None:
    assert_type(send(1, "x", copy=True), str)
    run = send.enqueue(1, to="x")
    assert_type(run, Run[str])
    assert_type(run.result(timeout="10s"), str)
    assert_type(double.enqueue(1).result(), int)
    assert_type(report.enqueue().result(), list[str])
    assert_type(beat.enqueue(n=2).result(1.5), float)
    assert_type(beat(3), float)
    assert_type(late.options(at="2030-01-01T00:00Z", limit_key="l", max_running=3).enqueue(), Run[None])
    assert_type(send.options(priority=90, delay="10m", key="r-42").enqueue(1, "x").is_new, bool)
    assert_type(send.enqueue_many(send.call(n, to="x") for n in range(3)), list[Run[str]])
    assert_type(tb.enqueue(double, {"n": 1}).result(), int)
    tb.enqueue("elsewhere", {"n": 1}, queue="q").cancel("no")
    tb.jobs.trigger("beat").state()
    clean.options(connection=object()).enqueue()
    assert_type(send.schedule("0 7 * * *", name="n", timezone="UTC", arguments={"order_id": 1}), ScheduledJob)
    assert_type(beat.schedule(every="15m", connection=object()).next_run_at, datetime | None)
    job: Job = late.schedule(at=datetime.now(UTC), name=None, overlap="queue")
    print(job.status, send.schedule_many({"cron": "@daily", "name": f"n-{n}"} for n in range(3))["n-1"] == "create")
    assert_type(tb.jobs.get("n"), Job)
    assert_type([found.name for found in tb.jobs.list("status:paused", sort="name")], list[str | None])
    assert_type(tb.jobs.update("n", "@daily", queue="q", version=2, connection=object()).version, int)
    assert_type(tb.jobs.pause("n", datetime.now(UTC)).status == "paused", bool)
    assert_type(tb.jobs.next("n")[0].at, datetime)
    tb.jobs.delete("n", missing_ok=True)
    tb.schedule("http.webhook", every=timedelta(hours=1), name="ping", arguments={"url": "x"}).warnings.sort()


async def coroutines() -> None:
    assert_type(await double(1), int)
    assert_type(await (await double.aenqueue(1)).aresult(timeout=timedelta(seconds=1)), int)
    assert_type(await (await send.options(queue="q").aenqueue(1, "x")).aresult(), str)
    assert_type(await double.aenqueue_many([double.call(1), double.call(n=2)]), list[Run[int]])
    assert_type(await (await tb.aenqueue(double, {"n": 1})).aresult(), int)
    assert_type(await double.aschedule("@hourly", name="d", queue="q"), ScheduledJob)
    assert_type((await tb.aschedule(double, every=5, name="d")).action == "leave", bool)
    async for found in tb.jobs.alist("name:n-*"):
        assert_type(found, Job)
    assert_type((await tb.jobs.aexplain("n")).headline, str)
    await tb.async_sync_schedules()
    await tb.aclose()


def names() -> None:
    takes_sync: SyncHandlerHandle[..., str] = send
    takes_async: AsyncHandlerHandle[[int], int] = double
    takes_any: list[HandlerHandle[..., object]] = []
    call: Call[[int], int] = double.call(1)
    print(takes_sync.name, takes_async.name, takes_any, call)
    try:
        send.enqueue(1, "x").result()
    except ResultTimeout as error:
        print(error.hint)
    except ExecutionFailed as error:
        print(error.state, error.error)


def use_harness(timeball: TimeballHarness) -> None:
    assert_type(timeball.use(tb, schedules=False), Timeball)
    assert_type(timeball.drain(), DrainResult)
    assert_type(timeball.clock.advance("3d", raise_errors=True), DrainResult)
    assert_type(timeball.assert_enqueued(send, 1, times=2), list[Execution])
    timeball.assert_enqueued(double.call(1))
    timeball.assert_enqueued("http.webhook", url="x")
    assert_type(timeball.last(double), Execution)
    assert_type(timeball.fired("nightly"), list[Fired])
