"""`tail`, `top`, and what follows an execution: what people read, and what pipes get."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.cli.sample_data import make_world
from tests.cli.test_terminal import on_a_terminal
from tests.conftest import FreshDatabase
from tests.support.factories import FAILURE, claim_all, enqueue, found, make_job, make_node, record
from timeball.application.commands import Commands
from timeball.application.commands.requests import Actor
from timeball.cli.monitor import event_line
from timeball.cli.views import LATE_LOG_SECONDS
from timeball.domain.execution import Failed
from timeball.domain.values.ids import ExecutionId, format_execution_id, parse_id
from timeball.env import Env
from timeball.store.store import Store
from timeball.store.types import LogRecord


def runs_again_and_again(dsn: str, is_over: threading.Event) -> None:
    """Something to see, until the test has seen enough."""

    async def run() -> None:
        store = Store(dsn, Env())
        await store.open(migrates=False)
        while not is_over.is_set():
            await enqueue(store, queue="mail", max_retries=0)
            await record(store, [found(claimed, Failed(FAILURE)) for claimed in await claim_all(store)])
            await asyncio.sleep(0.2)
        await store.close()

    asyncio.run(run())


def test_tail_follows_what_happens(cli: Cli, fresh_database: FreshDatabase) -> None:
    is_over = threading.Event()
    work = threading.Thread(target=runs_again_and_again, args=(fresh_database.dsn, is_over))
    work.start()
    try:
        done = cli(
            "tail", "--queue", "mail", "--types", "execution.dead", "--for", "120s", "--limit", "2", "-o", "jsonl"
        )
    finally:
        is_over.set()
        work.join()

    events = [json.loads(line) for line in done.out.splitlines()]
    assert done.code == 0, done.err
    assert len(events) == 2
    assert {(event["type"], event["queue"]) for event in events} == {("execution.dead", "mail")}


def test_a_line_of_tail_says_what_when_and_how_late() -> None:
    event = {
        "type": "execution.started",
        "at": "2026-11-16T10:41:20.004Z",
        "subject": "exe_1",
        "queue": "default",
        "handler": "app.mail:send",
        "data": {"lateness_ms": 4.0, "attempt": 1},
    }
    died = event | {"type": "execution.dead", "data": {"duration_ms": 1300, "error_type": "ConnectError"}}

    assert event_line(event).split() == [
        "10:41:20.004",
        "●",
        "started",
        "+4.0",
        "ms",
        "exe_1",
        "app.mail:send",
        "default",
    ]
    assert event_line(died).split()[-4:] == ["exe_1", "app.mail:send", "default", "ConnectError"]
    assert event_line(event).index("exe_1") == event_line(died).index("exe_1")


HOSTILE = "x\x1b]0;owned\x07\x9b2J\u202e\n00:00:00.000 ✓ succeeded"


def test_a_line_of_tail_stays_one_line_and_moves_no_cursor() -> None:
    event = {
        "type": "queue.pause",
        "at": "2026-11-16T10:41:20.004Z",
        "subject": f"queue:{HOSTILE}",
        "queue": HOSTILE,
        "handler": HOSTILE,
        "data": {"reason": HOSTILE},
    }

    assert event_line(event).isprintable()


def test_tail_top_and_why_are_harmless_in_a_pipe(cli: Cli, fresh_database: FreshDatabase) -> None:
    """What is said of a pause, and how a worker is called, are the words of others."""

    async def prepare() -> None:
        store = Store(fresh_database.dsn, Env())
        await store.open(migrates=False)
        await make_node(store, name=HOSTILE)
        job = await make_job(store, name="nightly", interval_seconds=3600)
        commands = Commands(store, store.env)
        await commands.jobs.pause(job.id, actor=Actor("ana", HOSTILE))
        await store.close()

    asyncio.run(prepare())

    for words in (("top",), ("why", "nightly"), ("doctor",)):
        done = cli(*words)
        assert all(line.isprintable() for line in done.out.replace("\t", " ").splitlines()), done.out
        assert "✓ succeeded" not in [line.strip() for line in done.out.splitlines()]
    assert "owned" in cli("top").out
    assert "owned" in cli("why", "nightly").out
    # Programs get what there is.
    assert cli("top", "--json").json["workers"][0]["name"] == HOSTILE


def test_an_export_on_a_terminal_moves_no_cursor(cli: Cli, fresh_database: FreshDatabase, tmp_path: Path) -> None:
    async def prepare() -> None:
        store = Store(fresh_database.dsn, Env())
        await store.open(migrates=False)
        await make_job(store, name="nightly", interval_seconds=3600, description=HOSTILE)
        await store.close()

    asyncio.run(prepare())

    _, seen = on_a_terminal("jobs", "export", folder=tmp_path)
    piped = cli("jobs", "export").out

    assert "owned" in seen
    assert [part for part in ("\x1b]0;", "\x07", "\x9b", "\u202e") if part in seen] == []
    assert HOSTILE in piped


def test_top_prints_one_frame_for_a_pipe(cli: Cli) -> None:
    done = cli("top")

    assert done.code == 0, done.err
    assert "running 0   queued 0" in done.out
    assert "\x1b" not in done.out
    assert {"QUEUE", "WORKER", "LONGEST"} <= {line.split()[0] for line in done.out.splitlines() if line}


def test_top_gives_programs_its_documents(cli: Cli) -> None:
    found = cli("top", "--once", "--json").json

    assert found["metrics"]["now"]["dead"] == 0
    assert (found["workers"], found["longest_running"]) == ([], [])


@pytest.mark.parametrize("command", ["top", "tail"])
def test_what_has_no_rows_is_no_csv(cli: Cli, command: str) -> None:
    done = cli(command, "-o", "csv")

    assert done.code == 2
    assert done.err.splitlines()[-1].strip() == f"use: timeball {command} -o jsonl"


@pytest.mark.parametrize("words", [("watch",), ("logs", "--follow")])
def test_what_is_written_a_moment_after_the_end_is_shown(
    cli: Cli, fresh_database: FreshDatabase, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    run = make_world(fresh_database.dsn).succeeded
    sleep = asyncio.sleep

    async def write_meanwhile(seconds: float, *rest: object) -> None:
        if seconds == LATE_LOG_SECONDS:
            store = Store(fresh_database.dsn, Env())
            await store.open(migrates=False)
            await store.history.write_log(
                [LogRecord(ExecutionId(parse_id("exe", run)), 1, 1, store.env.clock.now(), "info", "that is all")]
            )
            await store.close()
            seconds = 0
        await sleep(seconds, *rest)

    monkeypatch.setattr(asyncio, "sleep", write_meanwhile)

    done = cli("runs", words[0], run, *words[1:])

    assert done.code == 0, done.err
    assert "that is all" in done.out + done.err


def test_progress_is_shown_where_runs_are(cli: Cli, fresh_database: FreshDatabase) -> None:
    async def prepare() -> str:
        store = Store(fresh_database.dsn, Env())
        await store.open(migrates=False)
        execution_id = await enqueue(store)
        (claimed,) = await claim_all(store)
        await store.executions.report_progress(claimed, 0.42, "page 42")
        await store.close()
        return format_execution_id(execution_id)

    shown = asyncio.run(prepare())

    assert "42%, page 42" in cli("runs", "show", shown).out
    assert "42%, page 42" in cli("top", "--once").out
    told = {"progress": {"fraction": 0.42, "note": "page 42"}}
    event = {
        "type": "execution.progress",
        "at": "2026-03-02T12:00:00.000Z",
        "subject": shown,
        "handler": "a",
        "queue": "q",
    }
    assert event_line(event | {"data": told}).endswith("q  42%, page 42")
