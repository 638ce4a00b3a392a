"""Metrics over HTTP: from rollups, and for Prometheus."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from tests.api.conftest import checking_commands
from tests.support.factories import (
    FAILURE,
    claim_all,
    enqueue,
    found,
    make_node,
    make_owner,
    make_recurring,
    promote_due,
    record,
    seconds,
)
from timeball.config.settings import Settings
from timeball.domain.execution import Failed
from timeball.domain.node import BrokerState, BrokerStatus
from timeball.domain.rollup import COUNTED_FIELDS
from timeball.domain.trace import TRACE_KEY, with_trace
from timeball.domain.values.ids import ExecutionId, Incarnation, format_execution_id
from timeball.runtime import ServerRuntime, make_server_runtime
from timeball.store.store import Store
from timeball.telemetry.events import (
    ClockStepped,
    ExecutionsExpired,
    ExecutionsPromoted,
    ExecutionsRescued,
    ListenerChanged,
    LoopBlocked,
    NodeLost,
    OccurrencesRecorded,
    OutcomeRefused,
    RetriesHeldBack,
    ServiceFailed,
    ShardsChanged,
)
from timeball.telemetry.metrics import ProcessMetrics
from timeball.testing import VirtualClock

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"


@pytest.fixture
def counted() -> ProcessMetrics:
    """The counters of the nodes in the same process."""
    return ProcessMetrics()


@pytest.fixture
def parts(store: Store, counted: ProcessMetrics) -> ServerRuntime:
    settings = Settings()
    return make_server_runtime(settings, store, checking_commands(settings, store), counted)


async def history(store: Store, clock: VirtualClock) -> None:
    """Four succeeded executions, two dead ones, one that waits."""
    for number in range(6):
        await enqueue(store, queue="mail" if number < 2 else "default", max_retries=0)
    for number, claimed in enumerate(await claim_all(store)):
        await record(store, [found(claimed, Failed(FAILURE) if number < 2 else None)])
    await store.rollups.fold()
    await enqueue(store)


async def test_stats_count_executions_by_outcome(client: httpx.AsyncClient, store: Store, clock: VirtualClock) -> None:
    await history(store, clock)
    clock.advance("30s")

    stats = (await client.get("/stats")).json()
    mail = (await client.get("/stats", params={"queue": "mail"})).json()

    assert stats["waiting"]["queued"] == 1
    total = stats["total"]
    assert (total["starts"], total["succeeded"], total["dead"], total["failed"]) == (6, 4, 2, 2)
    assert total["duration_seconds"]["p50"] == pytest.approx(1, rel=0.03)
    assert total["lateness_seconds"]["p99"] == pytest.approx(1, rel=0.03)
    assert [row["handler"] for row in stats["by_handler"]] == ["tests:noop"]
    assert sum(mail["total"][state] for state in ("succeeded", "dead")) == 2


async def test_stats_of_one_job(client: httpx.AsyncClient, store: Store, clock: VirtualClock) -> None:
    owner = await make_owner(store)
    await make_recurring(store, name="nightly")
    clock.advance("61s")
    await enqueue(store)
    await promote_due(store, owner)
    await record(store, [found(claimed) for claimed in await claim_all(store)])
    await store.rollups.fold()

    assert (await client.get("/stats", params={"job": "nightly"})).json()["total"]["succeeded"] == 1
    assert (await client.get("/stats")).json()["total"]["succeeded"] == 2
    assert (await client.get("/stats", params={"job": "nobody"})).status_code == 404


@pytest.mark.parametrize(("hours", "step", "points"), [(1, 60, 60), (24, 60, 1440), (48, 600, 288), (240, 3600, 240)])
async def test_the_series_has_every_step_and_zeros_where_nothing_happened(
    client: httpx.AsyncClient, store: Store, clock: VirtualClock, hours: int, step: int, points: int
) -> None:
    await history(store, clock)
    clock.advance("5s")

    series = (await client.get("/metrics/executions", params={"hours": hours})).json()

    assert (series["step_seconds"], len(series["points"])) == (step, points)
    assert sum(point["starts"] for point in series["points"]) == 6
    assert series["points"][-1]["succeeded"] == 4, "the step that has begun is the last one"
    nothing = {"at": series["since"], "occurrences": {"ran": 0, "skipped": {}}} | dict.fromkeys(COUNTED_FIELDS, 0)
    assert series["points"][0] == nothing | {
        name: {"p50": None, "p95": None, "p99": None} for name in ("duration_seconds", "lateness_seconds")
    }


async def test_metrics_of_the_present(client: httpx.AsyncClient, store: Store, clock: VirtualClock) -> None:
    await history(store, clock)
    await make_node(store, slots=20)
    await enqueue(store, after=3600)
    clock.advance("7s")

    metrics = (await client.get("/metrics")).json()

    now = metrics["now"]
    assert now == {
        "scheduled": 1, "retrying": 0, "queued": 1, "running": 0, "late": 1, "overdue": 0, "dead": 2, "oldest_seconds": 7.0,
    }  # fmt: skip
    assert metrics["last_hour"]["failure_share"] == pytest.approx(2 / 6)
    assert [(queue["name"], queue["depth"]) for queue in metrics["queues"]] == [("default", 1)]
    assert metrics["nodes"]["slots"] == 20


async def test_a_due_execution_that_is_not_promoted_is_overdue(
    client: httpx.AsyncClient, store: Store, clock: VirtualClock
) -> None:
    await make_recurring(store)
    clock.advance("65s")

    assert (await client.get("/metrics")).json()["now"]["overdue"] == 1


# Prometheus


@pytest.fixture
def scrape(client: httpx.AsyncClient) -> Callable[[], Awaitable[dict[tuple[str, ...], float]]]:
    """The samples by name and label values, as Prometheus parses them; labels in the order of their names."""

    async def read() -> dict[tuple[str, ...], float]:
        answer = await client.get("http://localhost:8080/metrics")
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        return {
            (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(answer.text)
            for sample in family.samples
        }

    return read


async def test_prometheus_reads_counters_gauges_and_histograms(
    scrape: Callable[[], Awaitable[dict[tuple[str, ...], float]]], store: Store, clock: VirtualClock
) -> None:
    await history(store, clock)
    await make_node(store, slots=20)
    clock.advance("7s")

    told = await scrape()

    assert (
        sum(
            told.get(("timeball_executions_total", "tests:noop", "succeeded", queue), 0)
            for queue in ("mail", "default")
        )
        == 4
    )
    assert (
        sum(told["timeball_unsuccessful_tries_total", "tests:noop", "failed", queue] for queue in ("mail", "default"))
        == 2
    )
    assert told["timeball_queue_depth", "default"] == 1
    assert told["timeball_queue_oldest_age_seconds", "default"] == 7
    assert told["timeball_worker_slots", "free"] == 20
    assert told["timeball_renewal_age_seconds", "worker"] == 7
    assert told[("timeball_dead",)] == 2
    lateness = "timeball_start_lateness_seconds"
    assert told[f"{lateness}_bucket", "tests:noop", "0.5", "default"] == 0
    assert (
        told[f"{lateness}_bucket", "tests:noop", "2.5", "default"]
        == told[f"{lateness}_count", "tests:noop", "default"]
        == 4
    )
    assert told[f"{lateness}_sum", "tests:noop", "default"] == pytest.approx(4)


async def test_what_a_handler_expects_raises_no_alarm(
    scrape: Callable[[], Awaitable[dict[tuple[str, ...], float]]], client: httpx.AsyncClient, store: Store
) -> None:
    """The rules of docs/howto/monitor.md look at the outcome `dead`, the page Live at the share of failures."""
    await enqueue(store, max_retries=1)
    for _ in range(2):
        await record(store, [found(claimed, Failed(FAILURE, is_expected=True)) for claimed in await claim_all(store)])
        await promote_due(store, await make_owner(store))
        store.env.clock.advance("1h")  # type: ignore[attr-defined]
        await promote_due(store, await make_owner(store))
    await store.rollups.fold()

    told = await scrape()

    outcomes = {name[2]: value for name, value in told.items() if name[0] == "timeball_executions_total" and value}
    tries = {name[2]: value for name, value in told.items() if name[0] == "timeball_unsuccessful_tries_total" and value}
    assert (outcomes, tries) == ({"expected": 1}, {"expected": 2})
    total = (await client.get("/stats")).json()["total"]
    assert (total["expected"], total["expected_tries"], total["dead"], total["failed"]) == (1, 2, 0, 0)
    assert told[("timeball_dead",)] == 0
    assert (await client.get("/metrics")).json()["last_hour"]["failure_share"] in (0, None)


async def test_counters_only_grow_when_history_is_deleted(
    scrape: Callable[[], Awaitable[dict[tuple[str, ...], float]]], store: Store, clock: VirtualClock
) -> None:
    await history(store, clock)
    before = await scrape()
    clock.advance("500d")
    await store.rollups.trim()

    after = await scrape()

    counters = {
        name: value for name, value in before.items() if name[0].endswith(("_total", "_bucket", "_count", "_sum"))
    }
    assert all(after[name] == value for name, value in counters.items())


async def test_metrics_of_this_process_are_exposed(
    scrape: Callable[[], Awaitable[dict[tuple[str, ...], float]]], counted: ProcessMetrics, store: Store
) -> None:
    some = store.env.new_id()
    for event in (
        OutcomeRefused(ExecutionId(some), "h", 1),
        ExecutionsRescued(lost=2, timed_out=1),
        ExecutionsExpired(6),
        ExecutionsPromoted(5, 0, 1),
        ServiceFailed("claimer", "no", seconds(1)),
        OccurrencesRecorded(7, (0.3, 0.7)),
        RetriesHeldBack("h", 4),
        ClockStepped(seconds(-3600)),
        LoopBlocked(timedelta(seconds=1.5), None),
        NodeLost(Incarnation(some), "worker", "lease"),
        ListenerChanged(is_listening=True),
        ShardsChanged(4, 0, 64),
    ):
        counted.emit(event)

    told = await scrape()

    assert told[("timeball_stale_outcomes_total",)] == 1
    assert told["timeball_attempts_rescued_total", "lost"] == 2
    assert told[("timeball_executions_expired_total",)] == 6
    assert told[("timeball_executions_promoted_total",)] == 5
    assert told["timeball_service_failures_total", "claimer"] == 1
    assert told[("timeball_occurrences_recorded_total",)] == 7
    assert told["timeball_record_lateness_seconds_bucket", "0.5"] == 1
    assert told["timeball_record_lateness_seconds_bucket", "1.0"] == 2
    assert told[("timeball_retries_held_back_total",)] == 4
    assert told[("timeball_clock_steps_total",)] == 1
    assert told[("timeball_loop_blocked_seconds_total",)] == 1.5
    assert told["timeball_nodes_lost_total", "worker"] == 1
    assert (told[("timeball_listening",)], told[("timeball_shards_owned",)]) == (1, 64)


async def run_of(store: Store, clock: VirtualClock, outcome: Failed | None = None) -> None:
    """What recurring jobs owe runs now, and ends after a second."""
    clock.advance("61s")
    await promote_due(store, await make_owner(store))
    await record(store, [found(claimed, outcome) for claimed in await claim_all(store)])
    await store.rollups.fold()


async def test_recurring_jobs_with_a_name_have_metrics_of_their_latest_runs(
    scrape: Callable[[], Awaitable[dict[tuple[str, ...], float]]], store: Store, clock: VirtualClock
) -> None:
    for name in ("nightly", "hourly"):
        await make_recurring(store, name=name, max_retries=0)
    await make_recurring(store, name=None, max_retries=0)
    assert not [name for name in await scrape() if name[0].startswith("timeball_job_")], "nothing has run yet"
    await run_of(store, clock)
    succeeded_at = (await scrape())["timeball_job_last_success_timestamp_seconds", "nightly"]
    await run_of(store, clock, Failed(FAILURE))
    await run_of(store, clock, Failed(FAILURE))

    told = await scrape()

    for name in ("nightly", "hourly", "(other)"):
        assert told["timeball_job_last_success_timestamp_seconds", name] == succeeded_at
        assert told["timeball_job_failures_in_a_row", name] == 2
        assert told["timeball_job_last_duration_seconds", name] == pytest.approx(1, abs=0.1)
        assert told["timeball_job_lateness_seconds", name] >= 1
    assert clock.now().timestamp() - succeeded_at == pytest.approx(121, abs=3)


async def test_a_setting_says_how_many_jobs_have_a_name(
    scrape: Callable[[], Awaitable[dict[tuple[str, ...], float]]],
    parts: ServerRuntime,
    store: Store,
    clock: VirtualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for number in range(4):
        await make_recurring(store, name=f"job-{number}")
        clock.advance("1s")
    await run_of(store, clock)
    monkeypatch.setattr(parts.queries.metrics, "_named_jobs", 2)

    names = [{name[1] for name in await scrape() if name[0] == "timeball_job_failures_in_a_row"} for _ in range(2)]

    assert names == [{"job-0", "job-1", "(other)"}] * 2
    assert Settings.model_fields["api"].default.metrics_jobs == 200


async def test_an_error_that_a_handler_expects_is_no_failure_in_a_row(
    scrape: Callable[[], Awaitable[dict[tuple[str, ...], float]]], store: Store, clock: VirtualClock
) -> None:
    await make_recurring(store, name="look-up", max_retries=0)
    await run_of(store, clock, Failed(FAILURE))
    await run_of(store, clock, Failed(FAILURE, is_expected=True))

    assert (await scrape())["timeball_job_failures_in_a_row", "look-up"] == 0


async def test_no_label_names_an_execution(client: httpx.AsyncClient, store: Store, clock: VirtualClock) -> None:
    await history(store, clock)
    await make_recurring(store, name="nightly")
    await run_of(store, clock)

    text = (await client.get("http://localhost:8080/metrics")).text

    families = list(text_string_to_metric_families(text))
    labels = {label for family in families for sample in family.samples for label in sample.labels}
    assert labels <= {
        "queue",
        "handler",
        "outcome",
        "state",
        "kind",
        "table",
        "service",
        "reason",
        "le",
        "broker",
        "verdict",
        "job_name",
    }
    # Prometheus gives every series a label `job`, and renames one that is there already.
    assert "job" not in labels


async def test_metrics_doctor_and_health_say_that_a_broker_is_down(client: httpx.AsyncClient, store: Store) -> None:
    await make_node(store, broker="redis")
    ill = await make_node(store, broker="redis")
    await store.nodes.renew(ill, busy=0, broker=BrokerStatus(BrokerState.DOWN, "connection refused"))

    metrics = (await client.get("http://localhost:8080/metrics")).text
    doctor = {line["code"]: line for line in (await client.get("/doctor")).json()["lines"]}
    health = {check["name"]: check for check in (await client.get("/health")).json()["checks"]}

    assert 'timeball_broker_nodes{broker="redis",state="down"} 1.0' in metrics
    assert 'timeball_broker_nodes{broker="redis",state="works"} 1.0' in metrics
    assert doctor["broker"]["status"] == health["broker"]["status"] == "warn"
    assert "1 of 2 nodes cannot use Redis (connection refused)" in doctor["broker"]["found"]


async def test_the_reference_names_every_metric_and_no_other(client: httpx.AsyncClient, parts: ServerRuntime) -> None:
    text = (await client.get("http://localhost:8080/metrics")).text
    told = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    described = {
        line.split("`")[1].partition("{")[0]
        for line in REFERENCE.read_text().splitlines()
        if line.startswith("| `timeball_")
    }

    # Every counter has a `_created` sample.
    assert {name for name in told if not name.endswith("_created")} == described


@pytest.mark.parametrize(
    "accept", ["application/openmetrics-text", "application/openmetrics-text;version=x\ty,*/*;q=0.1"]
)
async def test_open_metrics_are_sent_if_accepted(
    client: httpx.AsyncClient, store: Store, clock: VirtualClock, accept: str
) -> None:
    await history(store, clock)

    answer = await client.get("http://localhost:8080/metrics", headers={"Accept": accept})

    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0; charset=utf-8")
    families = {family.name for family in openmetrics_families(answer.text)}
    assert {"timeball_executions", "timeball_start_lateness_seconds"} <= families


async def test_open_metrics_have_the_latest_execution_of_each_bucket_and_outcome_as_exemplar(
    client: httpx.AsyncClient, store: Store, clock: VirtualClock
) -> None:
    """Prometheus asks for OpenMetrics by itself, and keeps exemplars if it is told to."""
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    first = await enqueue(store)
    await record(store, [found(claimed) for claimed in await claim_all(store)])
    clock.advance("1s")
    second = await enqueue(store, meta=with_trace(None, {"traceparent": f"00-{trace}-00f067aa0ba902b7-01"}))
    await record(store, [found(claimed) for claimed in await claim_all(store)])
    dead = await enqueue(store, max_retries=0, meta={TRACE_KEY: {"traceparent": "not a trace"}})
    await record(store, [found(claimed, Failed(FAILURE)) for claimed in await claim_all(store)])
    await store.rollups.fold()

    openmetrics = await client.get("http://localhost:8080/metrics", headers={"Accept": "application/openmetrics-text"})
    plain = await client.get("http://localhost:8080/metrics")

    samples = [sample for family in openmetrics_families(openmetrics.text) for sample in family.samples]
    exemplars = {
        (sample.name, sample.labels.get("outcome") or sample.labels.get("le")): sample.exemplar
        for sample in samples
        if sample.exemplar is not None
    }
    ended = exemplars["timeball_executions_total", "succeeded"]
    assert ended.labels == {"execution_id": format_execution_id(second), "trace_id": trace}
    assert exemplars["timeball_executions_total", "dead"].labels == {"execution_id": format_execution_id(dead)}
    late = {key: exemplar for key, exemplar in exemplars.items() if key[0] == "timeball_start_lateness_seconds_bucket"}
    assert [exemplar.labels["execution_id"] for exemplar in late.values()] == [format_execution_id(second)]
    for (_, bound), exemplar in late.items():
        assert exemplar.value <= float(str(bound))
    assert format_execution_id(first) not in openmetrics.text
    assert "execution_id" not in plain.text, "the older format has no place for them"


async def test_an_exemplar_waits_until_its_execution_is_counted(client: httpx.AsyncClient, store: Store) -> None:
    await enqueue(store)
    await record(store, [found(claimed) for claimed in await claim_all(store)])
    await store.rollups.fold()
    await enqueue(store, max_retries=0)
    await record(store, [found(claimed, Failed(FAILURE)) for claimed in await claim_all(store)])

    text = (await client.get("http://localhost:8080/metrics", headers={"Accept": "application/openmetrics-text"})).text

    told = [sample for family in openmetrics_families(text) for sample in family.samples if sample.exemplar]
    assert {sample.labels["outcome"] for sample in told if sample.name == "timeball_executions_total"} == {"succeeded"}


async def test_prometheus_needs_a_key_like_every_reader(
    client: httpx.AsyncClient, make_key: Callable[[str], Awaitable[dict[str, str]]]
) -> None:
    key = await make_key("viewer")

    assert (await client.get("http://localhost:8080/metrics")).status_code == 401
    assert (await client.get("http://localhost:8080/metrics", headers=key)).status_code == 200
