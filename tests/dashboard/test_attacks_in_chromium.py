"""The attacks of SECURITY.md's table that need a real browser: text that is to run, and pages of another site."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar
from urllib.parse import quote

import httpx
import pytest
from playwright.async_api import Browser

from tests.dashboard.chromium import PATIENCE_MS, window

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]

CANARY = "<img src=x onerror=window.ran=1><script>window.ran=1</script>\"'`{{7*7}}<svg/onload=window.ran=1>"
PAGES = (
    "/",
    "/jobs",
    "/jobs?q={canary}",
    "/jobs/{job}",
    "/jobs/{job}/edit",
    "/executions",
    "/executions/{execution}",
    "/executions?queue={canary}",
    "/dead",
    "/queues",
    "/queues/{canary}",
    "/tags/{canary}",
    "/workers/{canary}",
    "/templates",
    "/calendars",
    "/timeline",
    "/forecast",
    "/audit",
    "/keys",
    "/doctor",
    "/nothing/{canary}",
    "/login?next={canary}",
)


async def test_no_page_runs_what_it_shows(chromium: Browser, timeball_up: str) -> None:
    async with httpx.AsyncClient(base_url=f"{timeball_up}/api/v1", timeout=60) as api:
        texts = {"name": f"job {CANARY}", "queue": CANARY, "tags": [CANARY], "description": CANARY}
        failing = {"handler": "test.echo", "payload": {CANARY: CANARY}, "max_retries": 0} | texts
        job = (await api.post("/jobs", json=failing)).json()
        await api.post("/templates", json={"name": CANARY, "job": {"handler": "test.echo"}})
        await api.post("/calendars", json={"name": CANARY, "description": CANARY, "days": ["sat"]})
        execution = (await api.post(f"/jobs/{job['id']}/trigger", json={"reason": CANARY})).json()
        await api.post(f"/queues/{quote(CANARY, safe='')}/pause", json={"reason": CANARY})
        found = (await api.get("/executions", params={"limit": 1})).json()["data"]
    known = {"canary": quote(CANARY, safe=""), "job": job["id"], "execution": (found or [execution])[0]["id"]}
    shown = 0

    context = await chromium.new_context()
    page = await context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    reports: list[str] = []
    page.on("console", lambda message: reports.append(message.text) if "Content Security" in message.text else None)
    for pattern in PAGES:
        await page.goto(timeball_up + pattern.format(**known), wait_until="domcontentloaded")
        shown += await page.evaluate("document.documentElement.innerHTML.split('onerror=window.ran').length - 1")
        ran = await page.evaluate("window.ran ?? null")
        made = await page.evaluate("document.querySelectorAll('img[onerror], svg[onload]').length")
        links = await page.evaluate("document.querySelectorAll('a[href^=\"javascript:\" i]').length")
        assert (ran, made, links) == (None, 0, 0), pattern
    await context.close()

    assert shown > 10, "the canary was not shown at all, so that nothing was tried"
    assert reports == []


ATTACKS = """<!doctype html><title>elsewhere</title><body>
<iframe name=sink></iframe><iframe src="{target}/"></iframe>
<img src="{target}/api/v1/jobs"><script src="{target}/api/v1/jobs"></script>
<form id=a method=post action="{target}/api/v1/jobs" enctype="text/plain" target=sink>
<input name='{{"handler":"test.echo","name":"driven","x":"' value='"}}'></form>
<form id=b method=post action="{target}/keys" target=sink><input name=role value=admin><input name=name value=driven></form>
<script>
window.read = [];
const body = JSON.stringify({{handler: "test.echo", name: "driven"}});
const tries = [];
for (const path of ["/api/v1/jobs", "/api/v1/metrics", "/", "/parts/nav"]) {{
  for (const mode of ["cors", "no-cors"]) {{
    tries.push(fetch("{target}" + path, {{mode, credentials: "include"}}).then(r => r.text()).then(t => t && window.read.push(t)));
  }}
}}
for (const type of ["application/json", "text/plain"]) {{
  tries.push(fetch("{target}/api/v1/jobs", {{method: "POST", body, headers: {{"Content-Type": type}}}}));
  tries.push(fetch("{target}/api/v1/jobs", {{method: "POST", mode: "no-cors", body}}));
}}
tries.push(fetch("{target}/api/v1/jobs/bulk", {{method: "DELETE"}}));
navigator.sendBeacon("{target}/api/v1/jobs", body);
tries.push(new Promise(over => {{
  const events = new EventSource("{target}/api/v1/events");
  events.onopen = () => {{ window.read.push("opened"); over(); }};
  events.onerror = over;
}}));
tries.push(new Promise(over => {{
  const socket = new WebSocket("{target}".replace("http", "ws") + "/api/v1/events");
  socket.onopen = () => {{ window.read.push("socket"); over(); }};
  socket.onerror = over;
}}));
document.getElementById("a").submit();
document.getElementById("b").submit();
Promise.allSettled(tries).then(() => window.isOver = true);
</script></body>"""


class _Elsewhere(BaseHTTPRequestHandler):
    """Another site."""

    page: ClassVar[bytes] = b""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(self.page)))
        self.end_headers()
        self.wfile.write(self.page)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def elsewhere(timeball_up: str) -> Iterator[str]:
    """A page of another site that attacks Timeball; `localhost` is another site than 127.0.0.1."""
    handler = type("_Attacking", (_Elsewhere,), {"page": ATTACKS.format(target=timeball_up).encode()})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield f"http://localhost:{server.server_port}/"
        server.shutdown()
        serving.join()


async def test_a_page_of_another_site_changes_and_reads_nothing(
    chromium: Browser, timeball_up: str, elsewhere: str
) -> None:
    # A visit before, so that the browser has cookies to bring along.
    async with window(chromium, timeball_up) as page:
        await page.goto(f"{timeball_up}/jobs")
        visited = page.context
        attacking = await visited.new_page()
        await attacking.goto(elsewhere)
        await attacking.wait_for_function("window.isOver", timeout=2 * PATIENCE_MS)
        read = await attacking.evaluate("window.read")
        await attacking.close()

    async with httpx.AsyncClient(base_url=f"{timeball_up}/api/v1", timeout=60) as api, asyncio.timeout(60):
        names = [job["name"] for job in (await api.get("/jobs", params={"q": "driven"})).json()["data"]]
        audit = [row["action"] for row in (await api.get("/audit", params={"limit": 200})).json()["data"]]
    assert read == []
    assert names == []
    assert "key.create" not in audit
