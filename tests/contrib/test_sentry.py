"""What a Sentry server is sent: the real SDK, and a server on loopback that keeps the envelopes."""

from __future__ import annotations

import gzip
import json
import logging
import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import sentry_sdk
from sentry_sdk.integrations.dedupe import DedupeIntegration
from sentry_sdk.integrations.logging import LoggingIntegration

from tests.conftest import FreshDatabase
from tests.contrib import sentry_app as child_app
from tests.sdk.conftest import running_node
from tests.support.pace import patience
from tests.testing.conftest import harness as harness  # a fixture
from timeball import ExecutionFailed, InvalidInput, Settings, Snooze, Timeball, current
from timeball.config.settings import load_settings
from timeball.contrib import sentry
from timeball.contrib.sentry import monitor_config, monitor_slug
from timeball.domain.execution import ExecutionState
from timeball.domain.job_fields import JobSpec
from timeball.testing import TimeballHarness

on_one_server = pytest.mark.parametrize("fresh_database", ["pg15"], indirect=True)


@dataclass
class SentryServer:
    """Keeps the items of the envelopes that it is sent."""

    items: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    dsn: str = ""
    changed: threading.Condition = field(default_factory=threading.Condition)

    def of(self, kind: str) -> list[dict[str, Any]]:
        sentry_sdk.flush(10)
        return [item for name, item in self.items if name == kind]

    def wait_for(self, kind: str) -> bool:
        """Wait until another process has sent one."""
        with self.changed:
            return self.changed.wait_for(lambda: any(name == kind for name, _ in self.items), patience(60))

    def take(self, envelope: bytes) -> None:
        lines = iter(envelope.split(b"\n"))
        json.loads(next(lines))
        for head in lines:
            if head.strip():
                self.items.append((json.loads(head)["type"], json.loads(next(lines))))
        with self.changed:
            self.changed.notify_all()


@pytest.fixture
def server() -> Iterator[SentryServer]:
    kept = SentryServer()

    class Endpoint(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            kept.take(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_args: object) -> None:
            return

    http = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    kept.dsn = f"http://key@127.0.0.1:{http.server_port}/1"
    yield kept
    http.shutdown()
    http.server_close()


def init(dsn: str | None) -> None:
    # The other integrations would patch asyncpg and threads for all tests that this process still runs.
    sentry_sdk.init(
        dsn=dsn,
        default_integrations=False,
        integrations=[LoggingIntegration(), DedupeIntegration()],
        keep_alive=False,
        release="test",
        shutdown_timeout=0,
    )


@pytest.fixture(autouse=True)
def _unplugged() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.setLevel(logging.INFO)
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, logger in list(logging.root.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger) and ":" in name:
            logger.handlers.clear()
    sentry_sdk.get_client().close(timeout=0)
    init(None)


@pytest.fixture
def settings(fresh_database: FreshDatabase) -> Settings:
    return load_settings(database_url=fresh_database.dsn, migrate=False)


@pytest.fixture
def tb_of_settings(settings: Settings) -> Iterator[Timeball]:
    with Timeball(settings=settings) as program:
        yield program


@pytest.fixture
def tb() -> Timeball:
    return Timeball(database_url="postgresql://nobody@nowhere.invalid/none")


# errors


@on_one_server
@pytest.mark.parametrize("is_async", [False, True])
def test_the_last_failed_attempt_is_one_event_with_what_is_known_of_the_run(
    harness: TimeballHarness, tb: Timeball, server: SentryServer, is_async: bool
) -> None:
    init(server.dsn)
    sentry.instrument(tb)

    def fail(order: int) -> None:
        sentry_sdk.set_tag("order", str(order))
        raise LookupError(f"no order {order}")

    async def afail(order: int) -> None:
        fail(order)

    handle = tb.handler(name="app:fail", retries=1, backoff="1s", queue="mail")(afail if is_async else fail)
    harness.use(tb)
    run = handle.options(meta={"tenant": "acme", "password": "hunter2"}).enqueue(7)  # type: ignore[arg-type]
    harness.drain()
    assert server.of("event") == []
    harness.clock.advance("1m")

    (event,) = server.of("event")
    assert (event["level"], event["logger"], event["transaction"]) == ("error", "app:fail", "app:fail")
    tags = event["tags"]
    assert {name: tags[name] for name in ("timeball.handler", "timeball.queue", "timeball.attempt", "order")} == {
        "timeball.handler": "app:fail",
        "timeball.queue": "mail",
        "timeball.attempt": "2",
        "order": "7",
    }
    assert tags["timeball.execution"] == run.id
    context = event["contexts"]["timeball"]
    assert (context["execution"], context["job"], context["origin"]) == (run.id, run.job_id, "enqueue")
    assert context["meta"]["tenant"] == "acme"
    assert "hunter2" not in json.dumps(event["contexts"])
    (exception,) = event["exception"]["values"]
    assert (exception["type"], exception["value"]) == ("LookupError", "no order 7")
    functions = [frame["function"] for frame in exception["stacktrace"]["frames"]]
    assert functions == (["afail", "fail"] if is_async else ["fail"])


@on_one_server
def test_runs_share_no_scope_and_an_expected_error_is_no_event(
    harness: TimeballHarness, tb: Timeball, server: SentryServer
) -> None:
    init(server.dsn)
    sentry.instrument(tb)

    @tb.handler(name="app:fail", retries=0, expected=KeyError)
    def fail(word: str) -> None:
        sentry_sdk.set_tag(word, "yes")
        raise KeyError(word) if word == "expected" else ValueError(word)

    harness.use(tb)
    for word in ("one", "two", "expected"):
        fail.enqueue(word)
    harness.drain()

    events = server.of("event")
    assert sorted(
        {"one", "two", "expected"} & set(event["tags"]) == {word}
        for event in events
        for word in ["one", "two"]
        if word in event["tags"]
    ) == [True, True]
    assert len(events) == 2


@on_one_server
def test_without_a_dsn_runs_are_as_they_were(harness: TimeballHarness, tb: Timeball) -> None:
    sentry.instrument(tb)

    @tb.handler(retries=0)
    def fail() -> None:
        raise ValueError

    @tb.handler
    def work() -> int:
        return 1

    harness.use(tb)
    fail.enqueue()
    run = work.enqueue()

    assert harness.drain() == (1, 1, 0)
    assert run.result() == 1


@on_one_server
def test_a_server_that_cannot_be_reached_harms_no_run(harness: TimeballHarness, tb: Timeball) -> None:
    init("http://key@127.0.0.1:9/1")
    sentry.instrument(tb)

    @tb.cron("0 * * * *", name="hourly", retries=0)
    def fail() -> None:
        raise ValueError

    harness.use(tb)
    harness.clock.advance("3h")

    assert [run.state for run in harness.executions(fail)].count(ExecutionState.DEAD) == 3


@on_one_server
def test_a_client_that_raises_harms_no_run(
    harness: TimeballHarness, tb: Timeball, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_args: object, **_options: object) -> None:
        raise RuntimeError("broken client")

    monkeypatch.setattr(sentry_sdk, "isolation_scope", broken)
    monkeypatch.setattr(sentry, "capture_checkin", broken)
    sentry.instrument(tb)

    @tb.cron("0 * * * *", name="hourly")
    def work() -> int:
        return 1

    harness.use(tb)

    assert harness.clock.advance("2h").succeeded == 2


@on_one_server
@pytest.mark.skipif(sys.platform != "linux", reason="children need Linux")
def test_the_error_of_an_isolated_child_is_one_event_that_the_child_sends(
    settings: Settings, tb_of_settings: Timeball, server: SentryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SENTRY_APP_DSN", server.dsn)
    with running_node(child_app.tb, settings, "tests.contrib.sentry_app:tb"):
        run = tb_of_settings.enqueue("app:fail_in_child", retries=1, backoff="1ms")
        with pytest.raises(ExecutionFailed, match="attempt 2"):
            run.result(timeout=patience(60))
        assert server.wait_for("event")

    (event,) = server.of("event")
    assert event["exception"]["values"][0]["value"] == "attempt 2"
    assert (event["tags"]["timeball.execution"], event["tags"]["timeball.attempt"]) == (run.id, "2")
    assert event["tags"]["pid"] != str(os.getpid())


# check-ins


@on_one_server
def test_a_scheduled_job_checks_in_once_for_each_occurrence_however_often_it_is_tried(
    harness: TimeballHarness, tb: Timeball, server: SentryServer
) -> None:
    init(server.dsn)
    sentry.instrument(tb)

    @tb.cron("0 9 * * *", timezone="Europe/Berlin", name="Nightly Report", retries=1, backoff="1s", timeout="10m")
    def report() -> None:
        if current.attempt == 1:
            raise ValueError("at first")

    harness.use(tb)
    harness.clock.advance("25h")

    checks = server.of("check_in")
    assert [check["status"] for check in checks] == ["in_progress", "ok"]
    assert {check["check_in_id"] for check in checks} == {harness.last(report).id.hex}
    assert {check["monitor_slug"] for check in checks} == {"nightly-report"}
    assert checks[0]["monitor_config"] == {
        "schedule": {"type": "crontab", "value": "0 9 * * *"},
        "timezone": "Europe/Berlin",
        "max_runtime": 20,
    }
    assert checks[1]["duration"] >= 0


@on_one_server
def test_an_occurrence_that_ends_dead_is_an_error_and_one_that_snoozes_is_in_progress(
    harness: TimeballHarness, tb: Timeball, server: SentryServer
) -> None:
    init(server.dsn)
    sentry.instrument(tb)

    @tb.every("1h", name="fails", retries=0)
    def fail() -> None:
        raise ValueError

    @tb.every("1h", name="snoozes")
    def snooze() -> Snooze:
        return Snooze("3h")

    harness.use(tb)
    harness.clock.advance("70m")
    fail.enqueue()
    harness.drain()

    checks = server.of("check_in")
    by_job = {slug: [c["status"] for c in checks if c["monitor_slug"] == slug] for slug in ("fails", "snoozes")}
    assert by_job == {"fails": ["in_progress", "error"], "snoozes": ["in_progress"]}


@on_one_server
def test_check_ins_can_be_left_out(harness: TimeballHarness, tb: Timeball, server: SentryServer) -> None:
    init(server.dsn)
    sentry.instrument(tb, crons=False)

    @tb.every("1h", name="hourly")
    def work() -> None: ...

    harness.use(tb)
    harness.clock.advance("2h")

    assert server.of("check_in") == []
    with pytest.raises(InvalidInput, match="crons is 'no', expected True or False"):
        sentry.instrument(tb, crons="no")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("nightly", "nightly"),
        ("Nightly  Report!", "nightly-report"),
        ("a_b-c", "a_b-c"),
        ("x" * 60, "x" * 41 + "-" + "3bd7ba3c"),
        ("日報", "job-"),
    ],
)
def test_a_slug_is_what_sentry_accepts(name: str, slug: str) -> None:
    made = monitor_slug(name)

    assert made.startswith(slug[:42])
    assert len(made) <= 50
    assert set(made) <= set("abcdefghijklmnopqrstuvwxyz0123456789_-")


@pytest.mark.parametrize(
    ("fields", "schedule"),
    [
        ({"schedule": "*/5 9-17 * * mon-fri"}, {"type": "crontab", "value": "*/5 9-17 * * mon-fri"}),
        ({"schedule": "@daily"}, {"type": "crontab", "value": "@daily"}),
        ({"interval_seconds": 5_400}, {"type": "interval", "value": 90, "unit": "minute"}),
        ({"interval_seconds": 172_800}, {"type": "interval", "value": 2, "unit": "day"}),
        ({"interval_seconds": 30}, None),
        ({"schedule": "H 2 * * *"}, None),
        ({"schedule": "0 0 L * *"}, None),
        ({"schedule": "*/10 * * * * *"}, None),
        ({"schedule": "RRULE:FREQ=MONTHLY;BYDAY=-1FR"}, None),
        ({"schedule": "0 9 * * *", "skip_on": ("holidays",)}, None),
        ({"after": "nightly"}, None),
    ],
)
def test_a_schedule_that_sentry_has_no_words_for_is_left_out(fields: dict[str, Any], schedule: Any) -> None:
    config = monitor_config(JobSpec(handler="h", payload={}, **fields))

    assert (None if config is None else config["schedule"]) == schedule
    assert monitor_config(None) is None
