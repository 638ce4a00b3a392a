"""`timeball ledger`: what became of the occurrences of a job, for people and for programs."""

from __future__ import annotations

import asyncio
import csv
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from random import Random

import psycopg
import pytest

from tests.cli.conftest import Cli
from tests.conftest import FreshDatabase
from tests.engine.support import create, start_scheduler, start_worker
from timeball.env import Env, SystemClock
from timeball.store.store import Store
from timeball.testing import VirtualClock


async def _silence(dsn: str) -> None:
    """A job of every five seconds, an hour ago: it ran twice, then nothing was alive for 55 s, then it ran on for a while."""
    start = SystemClock().now().replace(microsecond=0) - timedelta(hours=1)
    store = Store(dsn, Env(VirtualClock(start), Random(1)))
    await store.open(migrates=False)
    node, worker = await start_scheduler(store), await start_worker(store)
    await create(store, name="beat", interval_seconds=5, ends_at=start + timedelta(seconds=70))
    await node.run_until(start + timedelta(seconds=12), worker.work)
    node.clock.advance_to(start + timedelta(seconds=67))
    await node.run_until(start + timedelta(seconds=72), worker.work)
    await store.close()


@pytest.fixture
def silence(fresh_database: FreshDatabase) -> None:
    with ThreadPoolExecutor(1) as aside:
        aside.submit(lambda: asyncio.run(_silence(fresh_database.dsn))).result()


def test_the_ledger_tells_what_was_missed_in_the_order_of_time(cli: Cli, silence: None) -> None:
    lines = cli("ledger", "beat").lines

    assert [(line[2], line[3], line[4]) for line in lines] == [
        ("1", "ran", ""),
        ("1", "ran", ""),
        ("5", "skipped", "misfire"),
        *[("1", "ran", "")] * 7,
    ]
    assert [line[0] for line in lines] == sorted(line[0] for line in lines)
    assert all(line[6].startswith("exe_") for line in lines if line[3] == "ran")


def test_the_ledger_tells_what_was_filled_in(cli: Cli, silence: None, fresh_database: FreshDatabase) -> None:
    with psycopg.connect(fresh_database.dsn) as connection:
        connection.execute("UPDATE timeball.skip_range SET filled = 2")
        connection.execute(
            "UPDATE timeball.finished SET origin = 'backfill' WHERE id = (SELECT min(id::text)::uuid FROM timeball.finished)"
        )

    lines = cli("ledger", "beat").lines

    assert [(line[4], line[8]) for line in lines[:3]] == [("backfill", ""), ("", ""), ("misfire", "2")]


def test_the_ledger_is_filtered_and_printed_for_programs(cli: Cli, silence: None) -> None:
    (missed,) = cli("ledger", "beat", "--verdict", "skipped", "--reason", "misfire", "-o", "json").json
    table = list(csv.DictReader(cli("ledger", "beat", "--reason", "misfire", "-o", "csv").out.splitlines()))

    assert (missed["count"], missed["reason"], missed["scheduled_for"]) == (5, "misfire", None)
    assert missed["from"] < missed["until"]
    assert [(row["count"], row["verdict"], row["reason"]) for row in table] == [("5", "skipped", "misfire")]
    assert cli("ledger", "beat", "--verdict", "running").err.strip() == "nothing was due in this time"


def test_a_limit_keeps_the_latest_and_says_so(cli: Cli, silence: None) -> None:
    everything = cli("ledger", "beat", "-o", "json").json

    some = cli("ledger", "beat", "--limit", "3", "-o", "json")

    assert some.json == everything[-3:]
    assert "the latest 3" in some.err


def test_the_ledger_shows_what_is_expected_if_asked_for(cli: Cli) -> None:
    cli("jobs", "create", "hourly", "test.echo", "--every", "1h")

    past = cli("ledger", "hourly", "-o", "json").json
    ahead = cli("ledger", "hourly", "--until", "+24h", "-o", "json").json

    assert past == []
    assert {entry["verdict"] for entry in ahead} == {"expected"}
    assert len(ahead) in (23, 24)


@pytest.mark.parametrize(
    ("afterwards", "reasons"),
    [
        ("skip", {"freeze of queue billing: release"}),
        ("latest", {"freeze of queue billing: release", "runs after freeze of queue billing: release"}),
    ],
)
def test_the_ledger_shows_what_a_freeze_will_skip(cli: Cli, afterwards: str, reasons: set[str]) -> None:
    cli("jobs", "create", "hourly", "test.echo", "--every", "1h", "--queue", "billing")
    freeze = ("--queue", "billing", "--until", "5h", "--reason", "release", "--afterwards", afterwards)
    cli("freeze", *freeze)

    lines = cli("ledger", "hourly", "--until", "+24h").lines

    assert {line[3] for line in lines} == {"expected"}
    assert {line[4] for line in lines[:5]} == reasons
    assert {line[4] for line in lines[5:]} == {""}


def test_a_wrong_word_is_refused(cli: Cli, silence: None) -> None:
    done = cli("ledger", "beat", "--verdict", "missed")

    assert done.code != 0
    assert 'verdict is "missed", expected ran, running, waiting, skipped or expected' in done.err
