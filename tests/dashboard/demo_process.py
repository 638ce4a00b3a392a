"""A furnished Timeball in a process of its own, for tests in a browser."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx
import pytest

from tests.dashboard.chromium import find_chromium
from tests.support.broker_servers import free_port
from tests.support.servers import PostgresServer, Servers, ServiceMissing, give_up_on, wait_until

# Every page of the dashboard that needs no id.
PAGES = (
    "/", "/timeline", "/timeline?view=table", "/timeline?rows=queues", "/forecast", "/forecast?measure=starts", "/jobs", "/jobs/new",
    "/executions", "/dead", "/queues", "/queues/one?name=crm", "/workers", "/workers/app-2%2F412", "/tags/finance", "/handlers",
    "/handlers/one?name=http.webhook", "/templates", "/calendars", "/freezes", "/freezes/new?queue=mail", "/groups",
    "/alerts", "/alerts?state=resolved",
    "/channels", "/channels/new", "/alert-routes/new",
    "/webhooks", "/keys", "/audit", "/operations", "/settings", "/attempts", "/doctor", "/about", "/login",
)  # fmt: skip


@contextmanager
def running_lively(dsn: str) -> Iterator[str]:
    """Runs one on an empty database; gives its address."""
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.dashboard.demo_data", str(port), dsn], stdout=subprocess.DEVNULL
    )

    def answers() -> bool:
        assert process.poll() is None, "the lively Timeball has ended"
        try:
            return httpx.get(f"{address}/api/v1/executions?status=dead").is_success
        except httpx.TransportError:
            return False

    try:
        wait_until(answers, "the lively Timeball answers", 180)
        yield address
    finally:
        process.terminate()
        process.wait(60)


@pytest.fixture(scope="session")
def lively(servers: Servers, template_of: Callable[[PostgresServer], str]) -> Iterator[str]:
    """The address of a furnished Timeball."""
    try:
        find_chromium()
        server = servers.postgres("pg15")
    except ServiceMissing as error:
        give_up_on(error)
        raise
    name = server.create_database(template_of(server))
    with running_lively(server.dsn(name)) as address:
        yield address
    server.drop_database(name)
