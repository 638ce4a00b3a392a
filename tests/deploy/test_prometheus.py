"""deploy/: every query of the rules and of the dashboard finds numbers, on a real Prometheus that reads a real /metrics."""

from __future__ import annotations

import asyncio
import json
import math
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.api.conftest import checking_commands
from tests.cli.test_advice import parse
from tests.store.test_rollups import fold_all, put_finished, put_skip_range
from tests.support.factories import enqueue, make_node, make_recurring
from tests.support.servers import Servers, ServiceMissing, give_up_on, quickest_place, wait_until
from timeball.api.server import ApiServer
from timeball.config.settings import Settings
from timeball.dashboard.app import make_web_app
from timeball.domain.job import Job
from timeball.domain.node import NodeKind
from timeball.domain.values.ids import ExecutionId, Incarnation
from timeball.env import Env
from timeball.runtime import make_server_runtime
from timeball.store.store import Store
from timeball.telemetry.events import (
    BrokerRecovered,
    LoopBlocked,
    NodeLost,
    OutcomeRefused,
    ProcessRestarted,
    ServiceFailed,
    TelemetryFailed,
    TicketsPublished,
    TicketsUsed,
)
from timeball.telemetry.metrics import ProcessMetrics

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "alerts.yaml"
BOARD = json.loads((ROOT / "deploy" / "grafana" / "timeball.json").read_text())
JOBS = ("nightly-report", "sync-hourly", "warehouse")
# Grafana puts these in.
VARIABLES = {"$__rate_interval": "1m", "$queue": ".*", "$job": ".*"}
_SELECTOR = re.compile(r"timeball_\w+(?:\{[^}]*\})?")


def programs() -> tuple[str, str]:
    """Prometheus and promtool."""
    server, tool = shutil.which("prometheus"), shutil.which("promtool")
    if server is None or tool is None:
        raise ServiceMissing("Prometheus is not installed: apt-get install prometheus")
    return server, tool


class LivingTimeball:
    """An API behind a socket, over a database in which something of everything has happened and goes on happening."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._counted = ProcessMetrics()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def start(self) -> str:
        """Begin to serve; returns the address."""
        self._thread.start()
        self._call(self._open())
        return self._server.address

    def go_on(self) -> None:
        """Let a little more happen."""
        self._call(self._happen())

    def stop(self) -> None:
        """End it all."""
        self._server.stop()
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()

    def _call(self, what: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(60)

    async def _open(self) -> None:
        settings = Settings(port=0)
        self._store = Store(self._dsn, Env())
        await self._store.open(migrates=False)
        parts = make_server_runtime(settings, self._store, checking_commands(settings, self._store), self._counted)
        self._server = ApiServer(parts, make_web_app(parts))
        await self._server.open()
        self._serving = asyncio.ensure_future(self._server.run())
        self._jobs = [await make_recurring(self._store, 3600, name=name, queue="reports") for name in JOBS]
        for kind in NodeKind:
            await make_node(self._store, kind, slots=4)
        await enqueue(self._store, queue="mail")
        await self._happen()

    async def _close(self) -> None:
        await self._serving
        await self._store.close()

    async def _happen(self) -> None:
        now, some = self._store.env.clock.now(), self._store.env.new_id()
        async with self._store.database.transaction() as connection:
            for job in self._jobs:
                await put_finished(connection, self._store, now, **self._run_of(job))
                for later in (1, 2, 3):
                    ended_at = now + timedelta(milliseconds=later)
                    await put_finished(connection, self._store, ended_at, **self._run_of(job) | {"state": "dead"})
                await put_skip_range(connection, self._store, job.id, now, first_at=now - timedelta(days=1))
            for number in range(4):
                run_id = self._store.env.new_id()
                state = "dead" if number == 0 else "succeeded"
                await put_finished(connection, self._store, now, id=run_id, job_id=run_id, queue="mail", state=state)
        await fold_all(self._store)
        for event in (
            ServiceFailed("claimer", "no", timedelta(seconds=1)),
            LoopBlocked(timedelta(seconds=1.5), None),
            NodeLost(Incarnation(some), "worker", "lease"),
            OutcomeRefused(ExecutionId(some), "h", 1),
            ProcessRestarted("api", "killed", 1),
            TelemetryFailed("started", "no", 1),
            BrokerRecovered("redis"),
            TicketsPublished(5, 1),
            TicketsUsed(4, 3),
        ):
            self._counted.emit(event)
        self._counted.count_lost_lines("stdout", 3)

    def _run_of(self, job: Job) -> dict[str, Any]:
        own = {"id": self._store.env.new_id(), "job_id": job.id, "queue": job.queue}
        return {**own, "handler": job.handler, "origin": "schedule"}


class PrometheusServer:
    """A Prometheus of our own, in a folder of its own, that reads one address every second and evaluates the rules."""

    def __init__(self, program: str, folder: Path, address: str) -> None:
        self._log = folder / "log"
        scrape = {"job_name": "timeball", "static_configs": [{"targets": [address.removeprefix("http://")]}]}
        settings = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(RULES)],
            "scrape_configs": [scrape],
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(settings))
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                [
                    program,
                    f"--config.file={folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={folder / 'data'}",
                    "--web.listen-address=127.0.0.1:0",
                    "--enable-feature=exemplar-storage",
                ],
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        wait_until(lambda: self._listens() or self._process.poll() is not None, "Prometheus listens")
        assert self._process.poll() is None, self._log.read_text()
        self._client = httpx.Client(base_url=f"http://127.0.0.1:{self._port()}/api/v1", timeout=60)

    def stop(self) -> None:
        self._client.close()
        self._process.terminate()
        self._process.wait(30)

    def get(self, path: str, **params: Any) -> Any:
        """The data of an answer; what Prometheus says is wrong fails the test."""
        answer = self._client.get(path, params=params).json()
        assert answer["status"] == "success", (params, answer)
        return answer["data"]

    def query(self, expression: str) -> list[Any]:
        """The series of an expression at this moment."""
        result: list[Any] = self.get("/query", query=expression)["result"]
        return result

    def wait_for_scrapes(self, count: int) -> None:
        """Wait until so many scrapes have succeeded."""
        wait_until(lambda: self._scrapes() >= count, f"Prometheus has read {count} times")

    def _scrapes(self) -> float:
        try:
            series = self.query("sum_over_time(up[10m])")
        except httpx.TransportError:
            return 0
        return float(series[0]["value"][1]) if series else 0

    def _listens(self) -> bool:
        return bool(self._ports())

    def _port(self) -> str:
        return self._ports()[0]

    def _ports(self) -> list[str]:
        return re.findall(r'msg="Listening on" address=127\.0\.0\.1:(\d+)', self._log.read_text())


@pytest.fixture(scope="module")
def prometheus(servers: Servers, template_of: Any) -> Iterator[PrometheusServer]:
    """A Prometheus that has read a living Timeball several times."""
    try:
        program, _ = programs()
        server = servers.postgres("pg15")
    except ServiceMissing as error:
        give_up_on(error)
        raise
    name = server.create_database(template_of(server))
    folder = Path(tempfile.mkdtemp(prefix="timeball-prometheus-", dir=quickest_place()))
    timeball = LivingTimeball(server.dsn(name))
    reader = PrometheusServer(program, folder, timeball.start())
    try:
        for scrapes in (2, 4):
            reader.wait_for_scrapes(scrapes)
            timeball.go_on()
        reader.wait_for_scrapes(6)
        yield reader
    finally:
        reader.stop()
        timeball.stop()
        server.drop_database(name)
        shutil.rmtree(folder, ignore_errors=True)


def alerting_rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    return [panel for panel in BOARD["panels"] if panel["type"] != "row"]


def filled_in(expression: str) -> str:
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    return expression


# the rules


def test_promtool_finds_no_fault_in_the_rules() -> None:
    result = subprocess.run([_promtool(), "check", "rules", RULES], capture_output=True, text=True, check=False)

    assert result.returncode == 0, result.stdout + result.stderr
    assert "SUCCESS" in result.stdout


def test_the_rules_alert_when_they_should_and_not_before(tmp_path: Path) -> None:
    for file in (RULES, Path(__file__).with_name("alerts_test.yaml")):
        shutil.copy(file, tmp_path)

    command = [_promtool(), "test", "rules", "alerts_test.yaml"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert result.returncode == 0, result.stdout + result.stderr


def _promtool() -> str:
    try:
        return programs()[1]
    except ServiceMissing as error:
        give_up_on(error)
        raise


@pytest.mark.parametrize(
    "rule", alerting_rules(), ids=lambda rule: f"{rule['alert']}-{rule['labels'].get('rhythm', '')}"
)
def test_each_number_that_a_rule_looks_at_exists(prometheus: PrometheusServer, rule: dict[str, Any]) -> None:
    selectors = _SELECTOR.findall(rule["expr"])

    assert selectors
    for selector in selectors:
        assert prometheus.query(f"count({selector})"), f"{rule['alert']} looks at {selector}, and nothing has that name"
    prometheus.query(rule["expr"])


def test_prometheus_evaluates_the_rules_without_an_error(prometheus: PrometheusServer) -> None:
    rules = [rule for group in prometheus.get("/rules")["groups"] for rule in group["rules"]]

    assert len(rules) == len(alerting_rules())
    wait_until(lambda: all(rule["health"] == "ok" for rule in _rules(prometheus)), "all rules have been evaluated")
    firing = {rule["name"] for rule in _rules(prometheus) if rule["state"] == "firing"}
    assert {"TimeballJobKeepsFailing", "TimeballLinesLost", "TimeballOccurrencesMissed"} <= firing
    assert "TimeballNoWorker" not in firing


def _rules(prometheus: PrometheusServer) -> list[dict[str, Any]]:
    return [rule for group in prometheus.get("/rules")["groups"] for rule in group["rules"]]


@pytest.mark.parametrize(
    "rule", alerting_rules(), ids=lambda rule: f"{rule['alert']}-{rule['labels'].get('rhythm', '')}"
)
def test_a_rule_says_how_urgent_it_is_what_is_wrong_and_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert rule["annotations"]["summary"].endswith((".", "ago."))
    assert len(rule["annotations"]["runbook"]) > 60


def test_what_a_runbook_tells_to_type_can_be_typed() -> None:
    runbooks = "\n".join(rule["annotations"]["runbook"] for rule in alerting_rules())
    commands = re.findall(r"`(timeball [^`]+)`", re.sub(r"\{\{.*?\}\}", "7", runbooks))

    assert len(commands) > 15
    for command in commands:
        parse(command)


# the dashboard


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: panel["title"])
def test_each_query_of_the_dashboard_finds_numbers(prometheus: PrometheusServer, panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        series = prometheus.query(filled_in(target["expr"]))

        assert series, target["expr"]
        assert not all(math.isnan(float(one["value"][1])) for one in series), target["expr"]


def test_its_variables_find_queues_and_jobs(prometheus: PrometheusServer) -> None:
    found: dict[str, set[str]] = {}
    for variable in BOARD["templating"]["list"]:
        if variable["type"] == "query":
            metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"]).groups()  # type: ignore[union-attr]
            found[variable["name"]] = set(prometheus.get(f"/label/{label}/values", **{"match[]": metric}))

    assert found["queue"] == {"mail", "reports"}
    assert found["job"] == set(JOBS)


def test_prometheus_keeps_the_exemplars(prometheus: PrometheusServer) -> None:
    told = prometheus.get(
        "/query_exemplars",
        query="timeball_start_lateness_seconds_bucket",
        start=time.time() - 3600,
        end=time.time() + 60,
    )

    ids = [exemplar["labels"]["execution_id"] for series in told for exemplar in series["exemplars"]]
    assert ids
    assert all(id_.startswith("exe_") for id_ in ids)


def test_every_panel_says_what_it_shows_and_in_which_unit() -> None:
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(ids) == len(set(ids))
    for panel in panels():
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["fieldConfig"]["defaults"]["thresholds"]["steps"], panel["title"]
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == "${datasource}", panel["title"]


def test_no_panel_lies_over_another() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells


def test_the_dashboard_uses_each_of_its_variables_and_no_other() -> None:
    text = json.dumps(BOARD["panels"])
    used = set(re.findall(r"\$\{?([a-z_]+)\}?", text)) - {"__rate_interval"}

    assert used == {variable["name"] for variable in BOARD["templating"]["list"]}


def _expressions() -> Sequence[str]:
    return [rule["expr"] for rule in alerting_rules()] + [
        target["expr"] for panel in panels() for target in panel["targets"]
    ]


def test_what_the_reference_does_not_name_is_not_asked_for() -> None:
    reference = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    named = set(re.findall(r"^\| `(timeball_\w+)", reference, re.MULTILINE))
    asked = {name.partition("{")[0] for expression in _expressions() for name in _SELECTOR.findall(expression)}

    assert {re.sub(r"_(bucket|sum|count|created)$", "", name) for name in asked} - named - {
        "timeball_process_restarts"
    } == set()
