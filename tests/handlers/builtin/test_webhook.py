from __future__ import annotations

import asyncio
import gzip
import hashlib
import hmac
import json
import re
import socket
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from tests.engine.runners.support import until
from tests.handlers.builtin.support import (
    RudeServer,
    answer,
    attempt_at,
    check_payload,
    die,
    fail,
    rude_server,
    run,
    succeed,
)
from timeball.current import StopReason
from timeball.domain.execution import CancelOutcome
from timeball.domain.handler import Handler, PayloadMismatch
from timeball.env import SystemClock
from timeball.handlers.binding import typed_handler
from timeball.handlers.builtin.egress import EgressPolicy, parse_egress_rule
from timeball.handlers.builtin.secrets import SecretStore
from timeball.handlers.builtin.webhook import Webhook, WebhookPayload
from timeball.handlers.registry import Registry

Make = Callable[..., Handler]
GUIDE = Path(__file__).parents[3] / "docs" / "howto" / "webhooks.md"


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    opened: list[Webhook] = []

    def webhook(*allowed: str, secrets: dict[str, str] | None = None, **options: Any) -> Handler:
        environment = {f"TIMEBALL_SECRET_{name}": value for name, value in (secrets or {}).items()}
        egress = EgressPolicy(tuple(map(parse_egress_rule, allowed)))
        made = Webhook(egress, SecretStore(environment=environment), SystemClock(), **options)
        opened.append(made)
        return typed_handler("http.webhook", made, WebhookPayload)

    yield webhook
    for made in opened:
        await made.close()


@pytest.fixture
async def server() -> AsyncIterator[RudeServer]:
    async with rude_server() as rude:
        yield rude


@pytest.fixture
def webhook(make: Make, server: RudeServer) -> Handler:
    return make(f"127.0.0.1:{server.port}")


def names(*answers: list[str]) -> Callable[[str, int], Awaitable[list[tuple[socket.AddressFamily, str]]]]:
    """A name server that answers each question differently; the last answer stays."""
    left = list(answers)

    async def resolve(_host: str, _port: int) -> list[tuple[socket.AddressFamily, str]]:
        found = left.pop(0) if len(left) > 1 else left[0]
        return [(socket.AF_INET6 if ":" in address else socket.AF_INET, address) for address in found]

    return resolve


# what it does


async def test_an_address_may_be_a_secret_of_which_errors_tell_the_host_alone(make, server):
    async def echo(request, writer):
        writer.write(answer("400 Bad Request", request.line.encode()))
        await writer.drain()

    url = server.on("/services/T0/canary-4711", echo) + "?key=canary-4712"
    webhook = make(f"127.0.0.1:{server.port}", secrets={"HOOK": url})

    message = await die(webhook, {"url": {"$secret": "HOOK"}})
    closed = await die(make(secrets={"HOOK": url}), {"url": {"$secret": "HOOK"}})

    assert f"POST http://127.0.0.1:{server.port} (the address is the secret HOOK) was answered 400" in message
    assert len(server.requests) == 1
    assert "canary" not in message + closed


@pytest.mark.parametrize(
    "value", ["canary-4711", "ftp://canary-4711", "https://a:canary-4711@x.example", "https://x/" + "a" * 4_000]
)
async def test_a_secret_that_is_no_address_is_refused_without_being_told(make, value):
    message = await die(make(secrets={"HOOK": value}), {"url": {"$secret": "HOOK"}})

    assert message == "secret HOOK is not an address, expected one such as https://example.com/hooks/report"


async def test_an_address_that_is_a_secret_goes_only_to_the_hosts_that_it_is_bound_to(make, server):
    url = server.on("/hook", answer())
    bound = {"HOOK": url, "HOOK_HOSTS": "example.com"}

    message = await die(make(f"127.0.0.1:{server.port}", secrets=bound), {"url": {"$secret": "HOOK"}})

    assert "the secret HOOK is not for the host 127.0.0.1" in message
    assert server.requests == []


async def test_a_request_is_sent_and_its_answer_kept(webhook, server):
    url = server.on("/hook", answer("201 Created", b'{"id": 7}', "Content-Type: application/json", "Set-Cookie: a=b"))

    result = await succeed(webhook, {"url": url, "json": {"n": 1}, "headers": {"X-Shop": "7"}})

    assert result == {
        "status": 201,
        "headers": {"content-type": "application/json", "content-length": "9"},
        "body": '{"id": 7}',
        "truncated": False,
    }
    (request,) = server.requests
    assert request.line == "POST /hook HTTP/1.1"
    assert request.body == b'{"n":1}'
    assert request.headers["content-type"] == "application/json"
    assert request.headers["x-shop"] == "7"


async def test_the_idempotency_key_is_the_execution_id(webhook, server):
    url = server.on("/", answer())

    await succeed(webhook, {"url": url, "method": "GET"})
    await succeed(webhook, {"url": url, "method": "GET"})

    keys = [request.headers["idempotency-key"] for request in server.requests]
    assert keys == ["exe_00000000000000000000000001"] * 2


async def test_a_request_carries_the_trace_of_its_execution_unless_the_payload_has_one(webhook, server):
    parent = f"00-{'ab' * 16}-{'cd' * 8}-01"
    payload = {"url": server.on("/", answer()), "method": "GET"}
    own = payload | {"headers": {"Traceparent": "00-mine"}}
    meta = json.dumps({"$trace": {"traceparent": parent, "tracestate": "a=b"}, "tenant": "acme"})

    await succeed(webhook, payload, attempt_at(webhook, payload, meta=meta))
    await succeed(webhook, own, attempt_at(webhook, own, meta=meta))
    await succeed(webhook, payload, attempt_at(webhook, payload, meta='{"tenant": "acme"}'))

    traced = [
        {name: value for name, value in request.headers.items() if name.startswith("trace")}
        for request in server.requests
    ]
    assert traced == [{"traceparent": parent, "tracestate": "a=b"}, {"traceparent": "00-mine"}, {}]


async def test_a_request_tells_its_occurrence(webhook, server):
    payload = {"url": server.on("/", answer()), "method": "GET"}
    instant = datetime(2026, 11, 3, 1, 30, 0, 250_000, tzinfo=timezone(timedelta(hours=1)))

    await succeed(webhook, payload, attempt_at(webhook, payload, scheduled_for=instant, origin="backfill"))

    headers = server.requests[0].headers
    assert {name: value for name, value in headers.items() if name.startswith("timeball-")} == {
        "timeball-scheduled-for": "2026-11-03T00:30:00.250000Z",
        "timeball-job": "nightly",
        "timeball-execution": "exe_00000000000000000000000001",
        "timeball-attempt": "3",
        "timeball-fence": "7",
        "timeball-origin": "backfill",
    }


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("Größe: 100%, é", "Gr%C3%B6%C3%9Fe:%20100%25,%20%C3%A9"),
        ("a\r\nEvil: yes", "a%0D%0AEvil:%20yes"),
        ("\x85\u2028日", "%C2%85%E2%80%A8%E6%97%A5"),
        (None, "job_00000000000000000000000002"),
    ],
)
async def test_any_name_of_a_job_is_one_header_that_leads_back_to_it(webhook, server, name, sent):
    payload = {"url": server.on("/", answer())}

    await succeed(webhook, payload, attempt_at(webhook, payload, job_name=name))

    headers = server.requests[0].headers
    assert headers["timeball-job"] == sent
    assert name is None or unquote(sent) == name
    assert "evil" not in headers


async def test_connections_are_used_again(webhook, server):
    url = server.on("/", answer(body=b"ok"))

    for _ in range(20):
        await succeed(webhook, {"url": url, "body": "x"})

    assert server.connections == 1


async def test_a_request_is_signed_by_standard_webhooks_with_old_and_new_secret(make, server):
    keys = [bytes(range(24)), bytes(range(32))]
    secrets = {f"KEY_{number}": "whsec_" + b64encode(key).decode() for number, key in enumerate(keys)}
    webhook = make(f"127.0.0.1:{server.port}", secrets=secrets)
    url = server.on("/", answer())

    await succeed(
        webhook, {"url": url, "body": "hello", "signing_secret": [{"$secret": "KEY_0"}, {"$secret": "KEY_1"}]}
    )

    headers = server.requests[0].headers
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.hello".encode()
    expected = [b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode() for key in keys]
    assert headers["webhook-signature"].split(" ") == [f"v1,{text}" for text in expected]
    assert headers["webhook-id"] == headers["idempotency-key"]
    assert abs(int(headers["webhook-timestamp"]) - datetime.now(UTC).timestamp()) < 60


async def test_what_a_signed_request_tells_is_signed_with_its_body_by_old_and_new_secret(make, server):
    keys = [bytes(range(24)), bytes(range(32))]
    secrets = {f"KEY_{number}": "whsec_" + b64encode(key).decode() for number, key in enumerate(keys)}
    webhook = make(f"127.0.0.1:{server.port}", secrets=secrets)
    url = server.on("/", answer())

    await succeed(
        webhook, {"url": url, "body": "hello", "signing_secret": [{"$secret": "KEY_0"}, {"$secret": "KEY_1"}]}
    )

    headers = server.requests[0].headers
    lines = (
        "timeball-attempt:3\ntimeball-execution:exe_00000000000000000000000001\ntimeball-fence:7\ntimeball-job:nightly\n"
        "timeball-origin:schedule\ntimeball-scheduled-for:2024-05-01T12:00:00Z\n"
        f"webhook-id:exe_00000000000000000000000001\nwebhook-timestamp:{headers['webhook-timestamp']}\n\nhello"
    )
    derived = [hmac.new(key, b"timeball-signature", hashlib.sha256).digest() for key in keys]
    expected = [b64encode(hmac.new(key, lines.encode(), hashlib.sha256).digest()).decode() for key in derived]
    assert headers["timeball-signature"].split(" ") == [f"v1,{text}" for text in expected]


async def test_the_check_that_the_guide_gives_to_receivers_accepts_what_was_sent_and_nothing_else(make, server):
    (block,) = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    exec(compile(block, str(GUIDE), "exec"), names)
    is_signed, secret = names["is_signed"], "whsec_" + b64encode(bytes(24)).decode()
    webhook = make(f"127.0.0.1:{server.port}", secrets={"ALL": secret}, signing_secrets=["ALL"])

    await succeed(webhook, {"url": server.on("/", answer()), "body": "hello"})

    headers = server.requests[0].headers
    assert is_signed(secret, headers, b"hello")
    assert not is_signed(secret, headers, b"hello!")
    assert not is_signed("whsec_" + b64encode(bytes(range(24))).decode(), headers, b"hello")
    for name in names["SIGNED"]:
        assert not is_signed(secret, headers | {name: headers[name] + "0"}, b"hello"), name
    assert not is_signed(secret, headers | {"timeball-signature": headers["webhook-signature"]}, b"hello")


async def test_an_unsigned_request_has_no_signature_of_its_headers(webhook, server):
    await succeed(webhook, {"url": server.on("/", answer())})

    assert not {"webhook-signature", "timeball-signature"} & server.requests[0].headers.keys()


async def test_all_webhooks_are_signed_when_the_administrator_says_so(make, server):
    secrets = {"ALL": "whsec_" + b64encode(bytes(24)).decode()}
    webhook = make(f"127.0.0.1:{server.port}", secrets=secrets, signing_secrets=["ALL"])

    await succeed(webhook, {"url": server.on("/", answer())})

    assert server.requests[0].headers["webhook-signature"].startswith("v1,")


async def test_a_weak_signing_secret_is_refused(make, server):
    webhook = make(f"127.0.0.1:{server.port}", secrets={"WEAK": "hunter2-hunter2"})

    said = await die(webhook, {"url": server.on("/", answer()), "signing_secret": {"$secret": "WEAK"}})

    assert "WEAK is not a signing secret" in said
    assert "hunter2" not in said
    assert not server.requests


# what is tried again


@pytest.mark.parametrize("status", ["400 Bad Request", "401 Unauthorized", "404 Not Found", "410 Gone", "422 No"])
async def test_a_request_that_is_rejected_is_not_tried_again(webhook, server, status):
    said = await die(webhook, {"url": server.on("/x", answer(status, b"no such order"))})

    assert said == f"POST http://127.0.0.1:{server.port}/x was answered {status}: no such order"


@pytest.mark.parametrize("status", ["500 Oops", "502 Bad Gateway", "503 Later", "429 Slow down"])
async def test_a_server_in_trouble_is_tried_again(webhook, server, status):
    outcome = await fail(webhook, {"url": server.on("/", answer(status))})

    assert outcome.is_retryable
    assert outcome.retry_after is None
    assert status in outcome.error.message


async def test_retry_after_is_heeded_as_seconds_and_as_an_instant_up_to_a_day(webhook, server):
    later = datetime.now(UTC) + timedelta(seconds=100)
    stamp = later.strftime("%a, %d %b %Y %H:%M:%S GMT")
    for path, text in {"/a": "7", "/b": stamp, "/c": "999999999", "/d": "soon", "/e": "-5"}.items():
        server.on(path, answer("429 Slow down", b"", f"Retry-After: {text}"))

    waits = [(await fail(webhook, {"url": server.url(path)})).retry_after for path in server.paths]

    assert waits[0] == timedelta(seconds=7)
    assert timedelta(seconds=90) < waits[1] <= timedelta(seconds=100)
    assert waits[2:] == [timedelta(days=1), None, None]


async def test_a_refused_connection_is_tried_again(make):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]

        outcome = await fail(make(f"127.0.0.1:{port}"), {"url": f"http://127.0.0.1:{port}/"})

    assert outcome.is_retryable
    assert outcome.error.type.endswith("WebhookFailed")


async def test_a_name_that_cannot_be_resolved_is_tried_again(make):
    async def unknown_host(_host: str, _port: int) -> list[tuple[socket.AddressFamily, str]]:
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    outcome = await fail(make(resolve=unknown_host), {"url": "https://example.com/"})

    assert outcome.is_retryable


# servers without manners


async def test_a_slow_server_is_given_up_after_the_timeout(webhook, server):
    async def dawdle(_request, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        while True:
            writer.write(b".")
            await writer.drain()
            await asyncio.sleep(0.01)

    outcome = await fail(webhook, {"url": server.on("/", dawdle), "timeout": 150})

    assert outcome.is_retryable
    assert "within 150 ms" in outcome.error.message


async def test_a_huge_answer_is_cut_at_64_kib_and_not_read_to_its_end(webhook, server):
    sent = 0

    async def flood(_request, writer):
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")
            await writer.drain()
            sent += 65536

    result = await succeed(webhook, {"url": server.on("/", flood)})

    assert result["truncated"] is True
    assert len(result["body"]) == 64 * 1024
    assert sent < 64 * 1024 * 1024


async def test_a_compressed_bomb_is_not_inflated(webhook, server):
    bomb = gzip.compress(b"0" * 50_000_000)
    url = server.on("/", answer("200 OK", bomb, "Content-Encoding: gzip"))

    result = await succeed(webhook, {"url": url})

    assert server.requests[0].headers["accept-encoding"] == "identity"
    assert len(result["body"].encode()) <= 64 * 1024


async def test_an_answer_that_is_cut_off_is_tried_again(webhook, server):
    async def cut(_request, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
        await writer.drain()
        writer.close()

    outcome = await fail(webhook, {"url": server.on("/", cut)})

    assert outcome.is_retryable


@pytest.mark.parametrize(
    "noise", [b"SSH-2.0-OpenSSH_9.6\r\n", b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n", b"\0" * 100]
)
async def test_an_answer_that_is_no_http_is_tried_again(webhook, server, noise):
    async def babble(_request, writer):
        writer.write(noise)
        await writer.drain()
        writer.close()

    assert (await fail(webhook, {"url": server.on("/", babble)})).is_retryable


async def test_an_answer_of_any_bytes_can_be_stored(webhook, server):
    url = server.on("/", answer("200 OK", bytes(range(256)), "Content-Type: text/plain; charset=klingon"))

    result = await succeed(webhook, {"url": url})

    assert "\0" not in result["body"]


async def test_a_request_is_cut_off_when_its_execution_is_cancelled(webhook, server):
    async def never(_request, _writer):
        await asyncio.Event().wait()

    payload = {"url": server.on("/", never)}
    attempt = attempt_at(webhook, payload)
    running = asyncio.ensure_future(run(webhook, payload, attempt))
    await until(lambda: bool(server.requests), "the server is asked")

    attempt.halt(StopReason.CANCEL, "no longer wanted")

    assert await running == CancelOutcome("no longer wanted")


# where it does not go


async def test_webhooks_do_not_reach_loopback_by_default(make, server):
    said = await die(make(), {"url": server.on("/", answer())})

    assert "127.0.0.1, which is not public" in said
    assert not server.connections


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "[::1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[64:ff9b::127.0.0.1]", "[2002:7f00:1::]"),
        *(
            "0",
            "127.1",
            "2130706433",
            "0x7f000001",
            "0177.0.0.1",
            "127.0.0.1.",
            "１２７.0.0.1",
            "①②⑦.⓪.⓪.①",
            "127。0。0。1",
        ),
    ],
)
async def test_no_spelling_of_loopback_is_reached(make, server, host):
    server.on("/", answer(body=b"the secrets of the house"))

    await die(make(), {"url": f"http://{host}:{server.port}/", "method": "GET"})

    assert not server.connections


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
async def test_redirects_are_refused_and_not_followed(webhook, server, code):
    inner = server.on("/inner", answer(body=b"the secrets of the house"))
    url = server.on("/", answer(f"{code} Elsewhere", b"", f"Location: {inner}"))

    said = await die(webhook, {"url": url, "method": "GET"})

    assert "redirects are not followed" in said
    assert [request.line.split()[1] for request in server.requests] == ["/"]


async def test_a_name_that_leads_to_a_private_address_is_refused(make, server):
    webhook = make(resolve=names(["127.0.0.1"]))

    said = await die(webhook, {"url": f"https://innocent.example:8443/{server.port}"})

    assert "innocent.example:8443 leads to 127.0.0.1" in said


async def test_dns_rebinding_between_check_and_connection_is_stopped(make, server):
    """The first answer of the name server is harmless, the second is ours: there must be no second question."""
    asked = 0

    async def resolve(_host: str, _port: int) -> list[tuple[socket.AddressFamily, str]]:
        nonlocal asked
        asked += 1
        return [(socket.AF_INET, "192.0.2.1" if asked == 1 else "127.0.0.1")]

    # 192.0.2.1 never answers; it is allowed here, and 127.0.0.1 is not.
    webhook = make(f"192.0.2.1:{server.port}", resolve=resolve)
    server.on("/", answer())

    outcome = await fail(webhook, {"url": server.url("/", "rebind.example"), "timeout": 300})

    assert outcome.is_retryable
    assert asked == 1
    assert not server.connections


async def test_dns_rebinding_at_the_next_attempt_is_stopped(make):
    async with rude_server() as server, rude_server("127.0.0.2") as inner:
        webhook = make(f"127.0.0.1:{server.port}", resolve=names(["127.0.0.1"], ["127.0.0.2"]))
        server.on("/", answer("200 OK", b"", "Connection: close"))
        url = server.url("/", "rebind.example")
        await succeed(webhook, {"url": url})

        said = await die(webhook, {"url": url})

        assert "leads to 127.0.0.2" in said
        assert not inner.connections


async def test_one_private_address_among_public_ones_is_enough_to_refuse(make):
    said = await die(make(resolve=names(["93.184.216.34", "::ffff:10.0.0.7"])), {"url": "https://mixed.example/"})

    assert "10.0.0.7" in said


async def test_the_connection_goes_to_the_checked_address_under_the_name_of_the_url(make, server):
    webhook = make(f"127.0.0.1:{server.port}", resolve=names(["127.0.0.1"]))
    server.on("/", answer())

    await succeed(webhook, {"url": server.url("/", "shop.example")})

    assert server.requests[0].headers["host"] == f"shop.example:{server.port}"


async def test_proxy_variables_are_ignored(make, server, monkeypatch):
    async with rude_server() as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")

        await succeed(make(f"127.0.0.1:{server.port}"), {"url": server.on("/", answer())})

        assert not proxy.connections


async def test_cookies_are_not_kept_between_webhooks(webhook, server):
    url = server.on("/", answer("200 OK", b"", "Set-Cookie: session=abc; Path=/"))

    await succeed(webhook, {"url": url})
    await succeed(webhook, {"url": url})

    assert "cookie" not in server.requests[1].headers


# what is refused before anything is sent


@pytest.mark.parametrize(
    ("payload", "where"),
    [
        ({}, "payload/url"),
        ({"url": "https://example.com", "uid": 0}, "payload/uid"),
        ({"url": "ftp://example.com"}, "payload/url"),
        ({"url": "https://user:pw@example.com"}, "payload/url"),
        ({"url": "https://example.com", "method": "CONNECT"}, "payload/method"),
        ({"url": "https://example.com", "method": "GET / HTTP/1.1\r\nX: y"}, "payload/method"),
        ({"url": "https://example.com", "headers": {"X": "a\r\nEvil: yes"}}, "payload/headers/X"),
        ({"url": "https://example.com", "headers": {"X": "a\0b"}}, "payload/headers/X"),
        ({"url": "https://example.com", "headers": {"X\r\nEvil": "yes"}}, "payload/headers/X\\r\\nEvil"),
        ({"url": "https://example.com", "headers": {"Host": "internal"}}, "payload/headers"),
        ({"url": "https://example.com", "headers": {"transfer-encoding": "chunked"}}, "payload/headers"),
        ({"url": "https://example.com", "headers": {"Webhook-Id": "forged"}}, "payload/headers"),
        ({"url": "https://example.com", "headers": {"Proxy-Authorization": "x"}}, "payload/headers"),
        ({"url": "https://example.com", "headers": {"TIMEBALL-fence": "99"}}, "payload/headers"),
        ({"url": "https://example.com", "headers": {"timeball-signature": "v1,x"}}, "payload/headers"),
        ({"url": "https://example.com", "headers": {"a": "1", "A": "2"}}, "payload/headers"),
        ({"url": "https://example.com", "body": "a", "json": {}}, "payload"),
        ({"url": "https://example.com", "timeout": 0}, "payload/timeout"),
        ({"url": "https://example.com", "headers": {"X": {"$secret": "../../etc/passwd"}}}, "payload/headers/X"),
        ({"url": "https://example.com", "json": {"a": [{"$secret": "../../etc/passwd"}]}}, "payload/json"),
    ],
)
def test_a_payload_that_could_never_be_sent_is_refused_when_the_job_is_created(payload, where):
    handlers = Registry(
        [typed_handler("http.webhook", Webhook(EgressPolicy(), SecretStore(), SystemClock()), WebhookPayload)]
    )

    with pytest.raises(PayloadMismatch) as caught:
        check_payload(handlers, "http.webhook", json.dumps(payload))

    assert caught.value.field == where


async def test_a_line_break_in_a_url_does_not_become_a_second_request(webhook, server):
    for tail in ("x\r\nEvil: yes\r\n\r\nGET /inner", "x%0d%0aEvil:%20yes", "x HTTP/1.1\nEvil: yes"):
        server.paths.clear()
        server.on("/", answer())
        url = server.url(f"/?{tail}")

        await succeed(webhook, {"url": url, "method": "GET"})

    assert len(server.requests) == 3
    assert all("evil" not in request.headers for request in server.requests)


async def test_a_secret_with_a_line_break_does_not_become_a_second_header(make, server):
    webhook = make(f"127.0.0.1:{server.port}", secrets={"TOKEN": "abc\r\nEvil: yes"})

    said = await die(webhook, {"url": server.on("/", answer()), "headers": {"X": {"$secret": "TOKEN"}}})

    assert "line break" in said
    assert "Evil" not in said
    assert not server.requests


# secrets


async def test_secrets_are_sent_and_never_kept_not_even_when_the_server_echoes_them(make, server):
    canary = "canary-8d3f/+7 a1"
    webhook = make(f"127.0.0.1:{server.port}", secrets={"CANARY": canary})
    payload = {
        "headers": {"Authorization": {"$secret": "CANARY"}},
        "json": {"deep": [{"token": {"$secret": "CANARY"}}]},
    }

    def echo(status: str) -> Any:
        async def reply(request, writer):
            said = request.headers["authorization"].encode() + request.body + b64encode(canary.encode())
            writer.write(answer(status, said, *(f"{name}: {canary}" for name in ("ETag", "Location"))))

        return reply

    told = {"/ok": "200 OK", "/no": f"400 {canary}", "/busy": "500 Busy", "/moved": f"302 {canary}"}
    for path, status in told.items():
        attempt = attempt_at(webhook, payload | {"url": server.on(path, echo(status))})
        outcome = await run(webhook, None, attempt)

        stored = repr(outcome) + repr(attempt.sink.lines)
        assert "[secret]" in stored
        assert "canary" not in stored
        assert b64encode(canary.encode()).decode().rstrip("=") not in stored

    assert server.requests[0].headers["authorization"] == canary
    assert json.loads(server.requests[0].body) == {"deep": [{"token": canary}]}


async def test_redaction_runs_before_truncation(make, server):
    """An answer full of secrets, cut anywhere: not even the beginning of one is kept."""
    canary = "S3cr3t-canary-0123456789"
    webhook = make(f"127.0.0.1:{server.port}", secrets={"CANARY": canary})
    payload = {"headers": {"X": {"$secret": "CANARY"}}}
    for shift in range(len(canary)):
        body = b"." * shift + canary.encode() * 6_000
        url = server.on(f"/{shift}", answer("200 OK", body))

        result = await succeed(webhook, payload | {"url": url})

        assert result["truncated"] is True
        assert set(result["body"]) <= set("[secret].")


async def test_a_secret_this_worker_does_not_have_is_named_and_not_tried_again(webhook, server):
    said = await die(webhook, {"url": server.on("/", answer()), "headers": {"X": {"$secret": "NOWHERE"}}})

    assert "no secret NOWHERE" in said
    assert not server.requests


async def test_the_query_of_a_url_is_not_told_in_errors(webhook, server):
    said = await die(webhook, {"url": server.on("/x", answer("404 Not Found")) + "?token=canary"})

    assert "canary" not in said


# secrets and hosts


async def test_a_secret_does_not_go_to_a_host_that_it_is_not_bound_to(make, server):
    """However it is named: by a header, within the body, or to sign with."""
    handler = make(f"127.0.0.1:{server.port}", secrets={"CANARY": "S3cret", "CANARY_HOSTS": "api.example.com"})
    url = server.on("/x", lambda _request, _writer: None)
    secret = {"$secret": "CANARY"}

    for named in ({"headers": {"A": secret}}, {"json": {"a": [secret]}}, {"body": secret}, {"signing_secret": secret}):
        error = await die(handler, {"url": url} | named)
        assert "the secret CANARY is not for the host 127.0.0.1, it is bound to the hosts api.example.com" in error

    assert server.requests == []


async def test_a_secret_goes_to_a_host_that_it_is_bound_to(make, server):
    async def take(_request, writer):
        writer.write(answer("200 OK"))

    handler = make(f"127.0.0.1:{server.port}", secrets={"CANARY": "S3cret", "CANARY_HOSTS": "a.example,127.0.0.1"})

    await succeed(handler, {"url": server.on("/x", take), "headers": {"A": {"$secret": "CANARY"}}})

    assert server.requests[0].headers["a"] == "S3cret"


async def test_a_secret_is_not_for_a_queue_that_it_is_not_bound_to(make, server):
    handler = make(f"127.0.0.1:{server.port}", secrets={"CANARY": "S3cret", "CANARY_QUEUES": "billing"})

    error = await die(handler, {"url": server.on("/x", lambda *_: None), "headers": {"A": {"$secret": "CANARY"}}})

    assert "the secret CANARY is not for the queue mail" in error
    assert server.requests == []
