"""How fast does one worker send webhooks? 5,000 to a server on loopback, against a bare aiohttp loop that sends the same."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import aiohttp

from bench.lab import Lab
from bench.system import ROOT, System
from timeball.domain.job_fields import JobSpec

TITLE = "5,000 webhooks to a server on loopback, a hundred at a time"
LIMIT = "a bare aiohttp loop"
_NUMBER = 5_000
# So many at a time, in the worker and in the bare loop: sending is waiting, and a worker that waits has slots to spare.
_TOGETHER = 100
_BODY = {"order": 42, "note": "x" * 200}
_ANSWER = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 11\r\n\r\n{"ok":true}'
_RATE = """
SELECT count(*) / extract(epoch FROM max(finished_at) - min(started_at))
FROM timeball.finished
WHERE started_at >= $1 AND state = 'succeeded'
"""


class _Receiver(asyncio.Protocol):
    """Answers every request with the same few bytes: what is measured is the sender."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        self._rest += data
        while (end := self._rest.find(b"\r\n\r\n")) >= 0:
            head = self._rest[:end].lower()
            size = int(head.partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
            if len(self._rest) < end + 4 + size:
                return
            self._rest = self._rest[end + 4 + size :]
            self._transport.write(_ANSWER)


async def _serve() -> None:
    server = await asyncio.get_running_loop().create_server(_Receiver, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextmanager
def _receiver() -> Iterator[int]:
    """The receiving server in a process of its own; yields its port."""
    process = subprocess.Popen([sys.executable, "-m", "bench.webhooks"], cwd=ROOT, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.terminate()
        process.wait()


async def _bare_rate(url: str) -> float:
    left = iter(range(_NUMBER))

    async def send(session: aiohttp.ClientSession) -> None:
        for _ in left:
            async with session.post(url, json=_BODY) as response:
                assert response.status == 200
                await response.read()

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=_TOGETHER)) as session:
        begun = time.perf_counter()
        await asyncio.gather(*(send(session) for _ in range(_TOGETHER)))
        return _NUMBER / (time.perf_counter() - begun)


async def _worker_rate(bench: System, url: str, port: int) -> float:
    begun = await bench.value("SELECT clock_timestamp()")
    before = await bench.value("SELECT count(*) FROM timeball.finished")
    payload = json.dumps({"url": url, "json": _BODY})
    await bench.parts.commands.jobs.enqueue_many(JobSpec(handler="http.webhook"), [payload] * _NUMBER)
    bench.start("worker", "--slots", str(_TOGETHER), TIMEBALL_WEBHOOK_ALLOW=f"127.0.0.1:{port}")
    await bench.wait_for_finished(before + _NUMBER)
    bench.stop()
    succeeded = await bench.value(
        "SELECT count(*) FROM timeball.finished WHERE started_at >= $1 AND state = 'succeeded'", begun
    )
    if succeeded != _NUMBER:
        raise SystemExit(f"only {succeeded} of {_NUMBER} webhooks succeeded")
    return float(await bench.value(_RATE, begun))


async def ask(lab: Lab) -> None:
    """Interleaved rounds."""
    with _receiver() as port:
        url = f"http://127.0.0.1:{port}/hook"
        async with lab.system() as system:
            variants = {LIMIT: partial(_bare_rate, url), "one worker": partial(_worker_rate, system, url, port)}
            await lab.interleave(variants, "rate", rounds=3)


if __name__ == "__main__":
    asyncio.run(_serve())
