"""A database that restarts, a network that loses replies or falls silent, a pooler in between."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.support.pace import patience
from tests.support.servers import PgBouncer
from tests.system.cluster import LONG_LEASES, SHORT_LEASES, Cluster, DurableServer, enqueue, eventually
from tests.system.network import Network, NoNetwork, network_to
from tests.system.proxy import SOCKET, Proxy, proxy_to
from timeball import Timeball
from timeball.application.commands import Commands
from timeball.domain.job_fields import JobSpec
from timeball.errors import StoreUnavailable
from timeball.store.db import database
from timeball.store.db.statements import all_statements

pytestmark = pytest.mark.slow


def text_of(name: str) -> str:
    """A statement as it goes over the wire."""
    return all_statements()[name].numbered()


@pytest.fixture
def proxy(cluster: Cluster, servers: Any, short_folder: Path) -> Iterator[Proxy]:
    """A network in front of the cluster's server; `through` is the way to it."""
    with proxy_to(servers.postgres("pg15").host, short_folder / "proxy") as started:
        yield started


def through(proxy: Proxy, cluster: Cluster) -> dict[str, str]:
    """The environment of a node that reaches the database through the proxy. No node dies, unless a test says so."""
    assert cluster.dsn is not None
    database = cluster.dsn.split("?")[0].rsplit("/", 1)[1]
    return LONG_LEASES | {"TIMEBALL_DATABASE_URL": proxy.dsn(database)}


# restarts


async def test_a_restarted_database_finds_its_nodes_again(
    durable_server: DurableServer, make_cluster: Callable[..., Cluster]
) -> None:
    """Fault 18."""
    cluster = make_cluster(durable_server.dsn(durable_server.create_database()), **SHORT_LEASES)
    nodes = await cluster.nodes(schedulers=1, workers=2)
    acknowledged: set[Any] = set()

    for restart in (durable_server.stop, durable_server.stop_at_once, durable_server.kill):
        async with cluster.commands() as commands:
            payload = '{"seconds": 0.02}'
            acknowledged |= set(await commands.jobs.enqueue_many(JobSpec(handler="work"), [payload] * 400))
        wanted = len(acknowledged) - 300
        await eventually(lambda: len(cluster.ledger.runs()) > wanted, "the work has begun")  # noqa: B023
        restart()
        # Long enough for several tries to reach it.
        await asyncio.sleep(0.5)
        durable_server.start()

    await cluster.drained()
    assert {row.id for row in cluster.finished() if row.state == "succeeded"} == acknowledged
    for node in nodes:
        # A service may still be pausing after its last failure.
        await eventually(lambda: node.events("service.recovered") or node.events("node.lost"), "it goes on")  # noqa: B023
        pauses = [float(event["pause"].split()[0]) for event in node.events("service.failed")]
        assert 0 < max(pauses) <= 5_000
        # No traceback is logged if the database just cannot be reached.
        assert not [event for event in node.events("service.failed") if "traceback" in event]
    cluster.check_books()


_FEEDER = """
import sys
from timeball import StoreUnavailable, Timeball

tb = Timeball()
failures = 0
while True:
    try:
        tb.enqueue("work", {"seconds": 0})
    except StoreUnavailable:
        failures += 1
    else:
        if failures >= 3:
            break
        print("sent", flush=True)
"""


async def test_an_outage_is_told_in_our_own_words_only(
    durable_server: DurableServer, make_cluster: Callable[..., Cluster]
) -> None:
    """The driver has tracebacks of its own to offer, which no collector of JSON lines can read."""
    dsn = durable_server.dsn(durable_server.create_database())
    cluster = make_cluster(dsn, **SHORT_LEASES)
    nodes = await cluster.nodes(schedulers=1, workers=1)
    feeder = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _FEEDER),
        env=os.environ | {"TIMEBALL_DATABASE_URL": dsn},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert feeder.stdout is not None
    assert await feeder.stdout.readline() == b"sent\n"

    durable_server.stop_at_once()
    for node in nodes:
        await eventually(
            lambda: any(event["failures"] >= 8 for event in node.events("service.failed")),  # noqa: B023
            "it has tried again and again",
            60,
        )
    durable_server.start()
    for node in nodes:
        await eventually(lambda: node.events("service.recovered") or node.events("node.lost"), "it goes on")  # noqa: B023
    _, told = await asyncio.wait_for(feeder.communicate(), 60)

    assert (feeder.returncode, told.decode()) == (0, "")
    for node in nodes:
        lines = node.log.read_text().splitlines()
        assert [line for line in lines if not line.startswith("{")] == []


# replies that are lost after the commit


async def test_an_enqueue_whose_reply_is_lost_enqueues_once(cluster: Cluster, proxy: Proxy) -> None:
    async with cluster.commands(through(proxy, cluster)["TIMEBALL_DATABASE_URL"]) as commands:
        cut = proxy.lose_reply(text_of("enqueue_one"))
        execution = await enqueue(commands, "work", {"label": "a"})
        cut_too = proxy.lose_reply(text_of("create_jobs"))
        named = await commands.jobs.create(JobSpec(name="named", handler="work", interval_seconds=3600))

    assert cut.happened.is_set()
    assert cut_too.happened.is_set()
    assert cluster.sql("SELECT id FROM timeball.ready") == [(execution,)]
    assert cluster.sql("SELECT id FROM timeball.job WHERE name = 'named'") == [(named.job_id,)]
    assert cluster.sql("SELECT id FROM timeball.due") == [(named.execution_id,)]


def test_an_enqueue_of_a_thread_whose_reply_is_lost_enqueues_once(cluster: Cluster, proxy: Proxy) -> None:
    """A thread that sends one after the other does so by itself; what it cannot know, the portal looks up."""
    with Timeball(database_url=through(proxy, cluster)["TIMEBALL_DATABASE_URL"]) as tb:

        @tb.handler(name="work")
        def work(n: int) -> None: ...

        for number in range(20):
            work.enqueue(number)
        cut = proxy.lose_reply(text_of("enqueue_one"))
        runs = [work.enqueue(number) for number in range(20, 40)]

    assert cut.happened.is_set()
    assert len({run.id for run in runs}) == 20
    assert cluster.sql("SELECT (payload ->> 'n')::int FROM timeball.job ORDER BY 1") == [(n,) for n in range(40)]


@pytest.mark.parametrize("rows_at_once", [100, 30])
async def test_a_bulk_enqueue_whose_reply_is_lost_is_all_there_or_not_at_all(
    cluster: Cluster, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, rows_at_once: int
) -> None:
    """In one statement, or in some within a transaction."""
    monkeypatch.setattr("timeball.store.enqueue._BULK_SLICE", rows_at_once)
    async with cluster.commands(through(proxy, cluster)["TIMEBALL_DATABASE_URL"]) as commands:
        cut = proxy.lose_reply(text_of("enqueue_alike") if rows_at_once == 100 else "COMMIT;")
        try:
            given = await commands.jobs.enqueue_many(JobSpec(handler="work"), ["{}"] * 100)
        except StoreUnavailable:
            given = None

    assert cut.happened.is_set()
    assert cluster.value("SELECT count(*) FROM timeball.ready") == 100
    assert cluster.value("SELECT count(*) FROM timeball.job") == 100
    assert given is None or len(given) == 100


@pytest.mark.parametrize(("statement", "number"), [("claim_by_id", 1), ("claim", 2)])
async def test_a_claim_whose_reply_is_lost_is_read_back_and_run_once(
    cluster: Cluster, commands: Commands, proxy: Proxy, statement: str, number: int
) -> None:
    """What is announced alone is claimed by its name, two together by their lane: by a worker at rest.

    A sweep may come before the hint, so there may have to be more than one try.
    """
    (worker,) = await cluster.nodes(0, 1, **through(proxy, cluster))
    cut = proxy.lose_reply(text_of(statement), containing=b"marked")

    ends = []
    async with asyncio.timeout(patience(60)):
        while not cut.happened.is_set():
            created = await commands.jobs.enqueue_many(JobSpec(handler="work"), ['{"label": "marked"}'] * number)
            ends += [await cluster.ends(id_) for id_ in created]

    for ended in ends:
        assert (ended["state"], ended["attempts"], ended["lost"], ended["fence"]) == ("succeeded", 1, 0, 1)
    assert len(cluster.ledger.runs("marked")) == len(ends)
    assert len(worker.events("node.started")) == 1
    cluster.check_books()


async def test_an_outcome_whose_reply_is_lost_counts_once_and_is_not_called_stale(
    cluster: Cluster, commands: Commands, proxy: Proxy
) -> None:
    (worker,) = await cluster.nodes(0, 1, **through(proxy, cluster))
    succeeded_cut = proxy.lose_reply(text_of("finish_succeeded"))
    failed_cut = proxy.lose_reply(text_of("record_transitions"))

    succeeded = await cluster.ends(await enqueue(commands, "work", {"label": "a"}))
    failed = await cluster.ends(await enqueue(commands, "work", {"label": "b", "failures": 9}, max_retries=0))

    await worker.event("service.recovered", service="recorder")
    assert succeeded_cut.happened.is_set()
    assert failed_cut.happened.is_set()
    assert [(row["state"], row["attempts"], row["fence"]) for row in (succeeded, failed)] == [
        ("succeeded", 1, 1),
        ("dead", 1, 1),
    ]
    assert not worker.events("stale_outcome")
    assert len(cluster.ledger.runs()) == 2
    cluster.check_books()


async def test_a_promotion_whose_reply_is_lost_leaves_no_gap_and_no_double(
    cluster: Cluster, commands: Commands, proxy: Proxy
) -> None:
    await cluster.nodes(1, 0, **through(proxy, cluster))
    await cluster.nodes(0, 1, **LONG_LEASES)
    cuts = [proxy.lose_reply(text_of("promote")) for _ in range(2)]

    job = await commands.jobs.create(JobSpec(name="a", handler="work", interval_seconds=1, overlap="allow"))
    await eventually(lambda: all(cut.happened.is_set() for cut in cuts), "two replies are lost")
    await cluster.begins("", len(cluster.ledger.runs()) + 2)
    await commands.jobs.pause(job.job_id)

    await cluster.drained()
    instants = sorted(run.scheduled_for for run in cluster.ledger.runs())
    assert {after - before for before, after in pairwise(instants)} == {timedelta(seconds=1)}
    cluster.check_books()


async def test_every_reply_may_be_lost_once(cluster: Cluster, commands: Commands, proxy: Proxy) -> None:
    """Fault 15."""
    await cluster.nodes(1, 2, **through(proxy, cluster))
    proxy.lose_first_replies()

    await commands.jobs.create(
        JobSpec(name="allow", handler="work", interval_seconds=1, max_executions=6, overlap="allow")
    )
    await commands.jobs.create(
        JobSpec(name="queue", handler="work", interval_seconds=1, max_executions=6, overlap="queue")
    )
    limited = await commands.jobs.create(JobSpec(name="limited", handler="work", max_running=2, schedule="manual"))
    await commands.queues.limit("narrow", 3)
    for number in range(20):
        await enqueue(commands, "work", {"label": "some", "failures": number % 3}, initial_backoff_ms=20)
        await enqueue(commands, "work", {"label": "some"}, queue="narrow")
        await commands.executions.trigger(limited.job_id)
    endless = await enqueue(commands, "wait", {"gate": "never"})
    await cluster.begins("never")
    await commands.executions.cancel([endless])  # type: ignore[list-item]

    await cluster.drained()
    seen = {name for name in all_statements() if text_of(name) in proxy.statements}
    assert {"claim", "finish_succeeded", "record_transitions", "promote", "unblock", "renew_lease", "stops"} <= seen
    # No node died: so nothing was lost, and nothing was run twice.
    assert cluster.sql("SELECT id FROM timeball.finished WHERE lost > 0") == []
    claims = [(run.execution, run.attempt) for run in cluster.ledger.runs()]
    assert len(claims) == len(set(claims))
    cluster.check_books()


# silence


async def test_a_listener_cut_off_in_silence_is_slower_and_heals_itself(
    cluster: Cluster, commands: Commands, proxy: Proxy
) -> None:
    """Fault 16."""
    (worker,) = await cluster.nodes(0, 1, **through(proxy, cluster))
    await worker.event("listener.changed", is_listening=True)

    assert proxy.silence(lambda link: any("LISTEN" in text for text in link.statements)) == 1
    # Found by the sweep, which comes every second.
    for _ in range(3):
        execution = await enqueue(commands, "work")
        assert (await cluster.ends(execution))["state"] == "succeeded"
    await worker.event("listener.changed", is_listening=False)
    await worker.event("listener.changed", is_listening=True, count=2)

    # And then by the hint, which comes at once: nothing else tells a worker the name of what it claims.
    claimed_by_name = proxy.lose_reply(text_of("claim_by_id"), containing=b"marked")
    async with asyncio.timeout(patience(60)):
        while not claimed_by_name.happened.is_set():
            await cluster.ends(await enqueue(commands, "work", {"label": "marked"}))
    cluster.check_books()


async def test_a_worker_cut_off_lets_go_before_others_take_over(
    cluster: Cluster, commands: Commands, proxy: Proxy
) -> None:
    """Fault 14."""
    (cut_off,) = await cluster.nodes(0, 1, **through(proxy, cluster) | SHORT_LEASES)
    execution = await enqueue(commands, "wait", {"gate": "a"})
    await cluster.begins("a")

    proxy.silence_all()
    await cluster.nodes(1, 1, **LONG_LEASES)
    _, second = await cluster.begins("a", 2)
    first = cluster.ledger.runs("a")[0]
    cluster.open_gate("a")
    accepted = await cluster.ends(execution)
    proxy.heal()
    await cut_off.event("node.started", count=2)

    # By its own clock it knew that its lease was over: there never were two of them.
    assert first.was_cut
    assert first.ended is not None
    assert first.ended < second.began
    assert (accepted["state"], accepted["fence"], accepted["lost"]) == ("succeeded", second.fence, 1)
    assert cluster.row(execution) == accepted
    cluster.check_books()


# A statement is waited for, and a silent transaction borne, for longer than a test would like to.
ANSWER = {"TIMEBALL_DATABASE_ANSWER_SECONDS": "3"}
IMPATIENT = """
from timeball.store.db import database
database._SESSION_SETTINGS["idle_in_transaction_session_timeout"] = "3s"
"""


async def test_connections_that_died_in_silence_do_not_stop_a_worker_for_good(
    cluster: Cluster, commands: Commands, proxy: Proxy
) -> None:
    (worker,) = await cluster.nodes(0, 1, patch=IMPATIENT, **through(proxy, cluster), **ANSWER)
    before = await enqueue(commands, "work", {"label": "before"})
    await cluster.ends(before)

    # As a firewall does that has forgotten them: nothing comes through any more, new connections are fine.
    assert proxy.silence() > 0
    after = await enqueue(commands, "work", {"label": "after"})

    assert (await cluster.ends(after, 60))["state"] == "succeeded"
    assert worker.is_running
    cluster.check_books()


@pytest.fixture
def network(servers: Any) -> Iterator[Network]:
    """A real network in front of the cluster's server."""
    try:
        with network_to(f"{servers.postgres('pg15').host}/{SOCKET}") as made:
            yield made
    except NoNetwork as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize("leases", [{}, SHORT_LEASES], ids=["usual leases", "short leases"])
async def test_packets_of_all_connections_vanish_and_work_goes_on_by_new_ones(
    cluster: Cluster, commands: Commands, network: Network, leases: dict[str, str]
) -> None:
    """Fault 41. Again and again, with the usual settings: nothing comes through any more, neither data nor an end."""
    assert cluster.dsn is not None
    name = cluster.dsn.split("?")[0].rsplit("/", 1)[1]
    cluster.inside = network.inside
    cluster.environment = {key: value for key, value in cluster.environment.items() if key not in SHORT_LEASES} | leases
    nodes = await cluster.nodes(1, 1, TIMEBALL_DATABASE_URL=network.dsn(name))
    each = await commands.jobs.create(
        JobSpec(name="each", handler="work", interval_seconds=1, payload={"label": "each"})
    )
    await cluster.begins("each", 2)

    for number in range(3):
        held = await enqueue(commands, "wait", {"gate": f"gate-{number}"})
        await cluster.begins(f"gate-{number}")
        # Under way: claims, renewals, promotions, and the outcome of what ends just now.
        cluster.open_gate(f"gate-{number}")
        assert network.forget_connections(nodes[0].pid) > 0
        begun = len(cluster.ledger.runs("each"))
        after = await enqueue(commands, "work", {"label": f"after-{number}"})

        # Two minutes it once took: a minute for each of two statements.
        assert (await cluster.ends(after, 60))["state"] == "succeeded"
        assert (await cluster.ends(held, 60))["state"] == "succeeded"
        await cluster.begins("each", begun + 2, 60)

    if not leases:
        assert [len(node.events("node.lost")) for node in nodes] == [0, 0], (
            "a lease was renewed by a new connection in time"
        )
    await commands.jobs.pause(each.job_id)
    await cluster.drained()
    cluster.check_books()


async def test_what_a_claim_brings_in_long_after_it_was_given_up_is_run_all_the_same(
    cluster: Cluster, commands: Commands, proxy: Proxy
) -> None:
    (worker,) = await cluster.nodes(0, 1, patch=IMPATIENT, **through(proxy, cluster), **ANSWER)
    proxy.hold_back(text_of("claim"))
    # Two at a time: one alone would be claimed by its name.
    for first in await commands.jobs.enqueue_many(JobSpec(handler="work"), ['{"label": "first"}'] * 2):
        await cluster.ends(first)

    # The network delivers the claim that its sender has given up, and read back in vain, when there is something to claim.
    worker.freeze()
    late = await enqueue(commands, "work", {"label": "late"})
    proxy.heal()
    await eventually(lambda: cluster.state(late) == "running", "the late claim is executed")
    worker.thaw()

    assert (await cluster.ends(late, 30))["state"] == "succeeded"
    cluster.check_books()


async def test_a_worker_told_to_leave_leaves_even_if_nobody_answers(
    cluster: Cluster, commands: Commands, proxy: Proxy
) -> None:
    (worker,) = await cluster.nodes(0, 1, **through(proxy, cluster), TIMEBALL_WORKER__GRACE_SECONDS="6")
    await enqueue(commands, "wait", {"gate": "never"})
    await cluster.begins("never")

    proxy.silence_all()
    worker.terminate()

    assert await worker.exit_code(25) == 0


async def test_a_client_that_falls_silent_in_the_middle_of_a_change_does_not_stop_the_schedule(
    cluster: Cluster, commands: Commands, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(database._SESSION_SETTINGS, "idle_in_transaction_session_timeout", "3s")
    await cluster.nodes(1, 1, **LONG_LEASES)
    fields = {"handler": "work", "interval_seconds": 1, "overlap": "allow"}
    paused = await commands.jobs.create(JobSpec(name="paused", payload={"label": "paused"}, **fields))  # type: ignore[arg-type]
    await commands.jobs.create(JobSpec(name="other", payload={"label": "other"}, **fields))  # type: ignore[arg-type]
    await cluster.begins("other", 2)

    async with cluster.commands(through(proxy, cluster)["TIMEBALL_DATABASE_URL"]) as frozen:
        # It has removed the occurrence and not committed: a scheduler that promotes it has to wait.
        proxy.fall_silent_at(text_of("take_occurrences"))
        change = asyncio.ensure_future(frozen.jobs.pause(paused.job_id))
        await eventually(lambda: proxy.silencing is None, "the change is under way")
        begun = len(cluster.ledger.runs("other"))

        await cluster.begins("other", begun + 3, seconds=40)
        await cluster.begins("paused", len(cluster.ledger.runs("paused")) + 3, seconds=40)
        change.cancel()
        proxy.heal()
    cluster.verify()


async def test_a_worker_that_falls_silent_while_it_counts_a_limit_does_not_stop_the_queue(
    cluster: Cluster, commands: Commands, proxy: Proxy
) -> None:
    await cluster.nodes(1, 1, **LONG_LEASES)
    await commands.queues.limit("narrow", 1)
    await cluster.nodes(0, 1, patch=IMPATIENT, **through(proxy, cluster), **ANSWER)
    proxy.fall_silent_at(text_of("lock_queue"))

    async def enqueue_some() -> None:
        while proxy.silencing is not None:
            await enqueue(commands, "work", {"label": "some"}, queue="narrow")
            await asyncio.sleep(0.05)

    await asyncio.wait_for(enqueue_some(), 30)
    last = await enqueue(commands, "work", {"label": "last"}, queue="narrow")

    assert (await cluster.ends(last, 60))["state"] == "succeeded"


# PgBouncer


async def test_a_whole_life_behind_pgbouncer_in_transaction_mode(
    pgbouncer: PgBouncer, make_cluster: Callable[..., Cluster]
) -> None:
    """Fault 17."""
    name = pgbouncer.server.create_database()
    cluster = make_cluster(pgbouncer.dsn(name), **LONG_LEASES, TIMEBALL_BEHIND_PGBOUNCER="true")
    try:
        # Two migrate the empty database at once.
        nodes = await cluster.nodes(schedulers=2, workers=2)
        async with cluster.commands() as commands:
            await commands.jobs.create(JobSpec(name="a", handler="work", interval_seconds=1, max_executions=3))
            await commands.jobs.create(
                JobSpec(name="b", handler="work", interval_seconds=1, max_executions=3, max_running=1)
            )
            many = await commands.jobs.enqueue_many(JobSpec(handler="work"), ['{"label": "many"}'] * 200)
            retried = await enqueue(commands, "work", {"failures": 2}, initial_backoff_ms=20)
            endless = await enqueue(commands, "wait", {"gate": "never"})
            await cluster.begins("never")
            await commands.executions.cancel([endless])  # type: ignore[list-item]
            await cluster.drained()

        assert {run.execution for run in cluster.ledger.runs("many")} == set(many)
        assert cluster.row(retried)["attempts"] == 3
        assert cluster.row(endless)["state"] == "cancelled"
        # On a busy machine a run may still be under way when the next is due, which is then skipped, and does not count.
        scheduled = cluster.sql("SELECT state, reason FROM timeball.finished WHERE origin = 'schedule'")
        assert [state for state, _ in scheduled].count("succeeded") == 6
        assert {row for row in scheduled if row[0] != "succeeded"} <= {("skipped", "overlap")}
        assert not [event for node in nodes for event in node.events("service.failed")]
        cluster.check_books()
        for node in nodes:
            node.terminate()
        assert [await node.exit_code() for node in nodes] == [0] * 4
    finally:
        cluster.end()
        pgbouncer.server.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
        pgbouncer.server.drop_database(name)
