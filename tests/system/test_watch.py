"""`timeball watch` as a process of its own, with a role that only reads, beside an installation that dies."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.handlers.builtin.support import RudeServer, answer, rude_server
from tests.system.cluster import SHORT_LEASES, Cluster, DurableServer
from tests.system.conftest import MakeCluster

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "watch.md"
# Facts last for half a minute before they are told.
LASTING_SECONDS = 90


def make_role(cluster: Cluster, server: DurableServer) -> str:
    """The role of the page; returns its URL."""
    for statement in re.findall(r"```sql\n(.*?)```", PAGE.read_text(), re.DOTALL):
        cluster.sql(statement.replace("DATABASE timeball", "DATABASE postgres"))
    return urlsplit(server.dsn())._replace(netloc="timeball_watcher@").geturl()


def told(server: RudeServer, path: str) -> set[tuple[str, str]]:
    """The messages that an address has got: event and kind; each of them once."""
    bodies = [json.loads(request.body) for request in server.requests if request.line.split()[1] == path]
    messages = [(body["type"], body["data"]["alert"]["kind"]) for body in bodies]
    assert len(messages) == len(set(messages)), messages
    return set(messages)


def pings(server: RudeServer, path: str) -> list[bytes]:
    return [request.body for request in server.requests if request.line.split()[1] == path]


@pytest.mark.timeout(600)
async def test_a_watcher_tells_when_every_node_is_dead_and_the_database_too_and_when_they_are_back(
    make_cluster: MakeCluster, durable_server: DurableServer
) -> None:
    cluster = make_cluster(durable_server.dsn(), **SHORT_LEASES)
    nodes = await cluster.nodes(2, 1)
    async with rude_server() as server:
        for path in ("/ops", "/own", "/ping", "/ping/fail"):
            server.on(path, answer())
        async with cluster.commands() as commands:
            await commands.channels.create("ops", "webhook", {"url": server.url("/ops")})
            await commands.alert_routes.create({"name": "all", "channels": ["ops"]})
        watcher = cluster.start(
            *("watch", "--every", "1", "--ping", server.url("/ping"), "--webhook", server.url("/own")),
            TIMEBALL_DATABASE_URL=make_role(cluster, durable_server),
            TIMEBALL_WEBHOOK_ALLOW=f"127.0.0.1:{server.port}",
        )
        await cluster.eventually(lambda: pings(server, "/ping"), "the watcher pings that all is well")
        assert not pings(server, "/ping/fail")

        for node in nodes:
            node.kill()
        await watcher.event("alert.opened", LASTING_SECONDS, kind="schedulers")
        await watcher.event("alert.opened", LASTING_SECONDS, kind="workers")
        dead = {("alert.opened", "schedulers"), ("alert.opened", "workers")}
        for path in ("/ops", "/own"):
            await cluster.eventually(lambda path=path: told(server, path) == dead, "the death of the nodes is told")
        await cluster.eventually(
            lambda: any(b"schedulers: none is alive" in body for body in pings(server, "/ping/fail")), "a bad ping"
        )

        await asyncio.to_thread(durable_server.kill)
        await watcher.event("alert.opened", LASTING_SECONDS, kind="unreachable")
        dead |= {("alert.opened", "unreachable")}
        for path in ("/ops", "/own"):
            await cluster.eventually(lambda path=path: told(server, path) == dead, "the death of the database is told")

        await asyncio.to_thread(durable_server.start)
        await cluster.nodes(1, 1)
        over = dead | {("alert.resolved", kind) for _, kind in dead}
        for path in ("/ops", "/own"):
            await cluster.eventually(lambda path=path: told(server, path) == over, "all is told to be over", 60)
        number = len(pings(server, "/ping"))
        await cluster.eventually(lambda: len(pings(server, "/ping")) > number, "the watcher pings that all is well")

        assert watcher.is_running
        watcher.terminate()
        assert await watcher.exit_code() == 0
        assert watcher.events("watch.stopped")
        assert "Traceback" not in watcher.text


async def test_a_watcher_that_starts_without_a_database_tells_that_and_looks_once_for_cron(
    make_cluster: MakeCluster, tmp_path: Path
) -> None:
    cluster = make_cluster(f"postgresql://timeball@/timeball?host={tmp_path}/none")
    async with rude_server() as server:
        server.on("/ping/fail", answer())
        once = cluster.start("watch", "--once", "--json", "--ping", server.url("/ping"))
        assert await once.exit_code() == 1

    report = json.loads(once.text)
    assert report["status"] == "fail"
    (fact,) = report["facts"]
    assert (fact["kind"], fact["severity"]) == ("unreachable", "critical")
    assert pings(server, "/ping/fail") == [fact["sentence"].encode()]
