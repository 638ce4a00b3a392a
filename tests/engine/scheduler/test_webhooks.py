"""Outgoing webhooks against real addresses: what is recorded, in which order it is sent, and what happens when one of both sides fails."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook as Verifier

from tests.engine.support import Heard, settle, until
from tests.handlers.builtin.support import Request, RudeServer, answer, rude_server
from tests.support.factories import FAILURE, HANDLER, claim_all, enqueue, found, make_recurring, record, table
from tests.support.pace import patience
from timeball.application.commands import Commands
from timeball.application.commands.requests import Actor
from timeball.domain.alerts import AlertEvaluation, AlertFact, AlertId, AlertTransition, Severity, format_alert_id
from timeball.domain.change_event import EventFilter
from timeball.domain.execution import CancelOutcome, Failed
from timeball.domain.values.ids import ExecutionId, format_execution_id, format_id
from timeball.domain.webhook import (
    RETRY_PAUSES,
    WEBHOOK_EVENT_TYPES,
    DeliveryState,
    OutgoingMessage,
    SentMessage,
    WebhookAnswer,
    WebhookDelivery,
    WebhookEndpoint,
    WebhookFormat,
    WebhookId,
    WebhookSpec,
    WebhookState,
)
from timeball.engine.scheduler.webhooks import WebhookRecorder, WebhookSender
from timeball.env import Env, SystemClock
from timeball.handlers.builtin.egress import EgressPolicy, parse_egress_rule
from timeball.handlers.builtin.secrets import SecretStore
from timeball.handlers.builtin.webhook import Webhook
from timeball.handlers.signatures import new_signing_secret
from timeball.store.store import Store
from timeball.store.types import AuditEntry
from timeball.telemetry.events import WebhookDisabled
from timeball.testing import VirtualClock

ADA = AuditEntry("ada")
GUIDE = Path(__file__).parents[3] / "docs" / "howto" / "webhooks-out.md"
HANDLERS = (HANDLER, "app.mail")
OK, BROKEN, GONE = answer("204 No Content"), answer("503 Later", b"try later"), answer("410 Gone")


class Killed(BaseException):
    """The process is gone."""


@dataclass
class Outbox:
    """The two services of a housekeeper, ticked by hand, and an address that they may reach."""

    store: Store
    clock: VirtualClock
    server: RudeServer
    heard: Heard = field(default_factory=Heard)
    handler: Webhook = field(init=False)

    def __post_init__(self) -> None:
        allowed = parse_egress_rule(f"127.0.0.1:{self.server.port}")
        policy = EgressPolicy((allowed,), ports=(self.server.port,), allows_http=True)
        self.handler = Webhook(policy, SecretStore(environment={}), SystemClock())
        self.begin()

    def begin(self) -> None:
        """A node begins: nothing is in memory yet."""
        self.recorder = WebhookRecorder(self.store.env, self.heard, self.store, lambda: True)
        # With a real clock: receivers refuse messages of another year.
        self.sender = WebhookSender(Env(), self.heard, self.store, self.handler.post, self.recorder)
        self.recorder.notice(has_webhooks=True)

    async def add(self, path: str = "/", secret: str | None = None, **spec: Any) -> WebhookEndpoint:
        events = EventFilter(**{name: spec.pop(name) for name in list(spec) if name in EventFilter.__slots__})
        return await self.store.webhooks.add(
            WebhookId(self.store.env.new_id()),
            WebhookSpec(url=self.server.url(path), filter=events, **spec),
            secret or new_signing_secret(),
            "ada",
            ADA,
        )

    async def record(self) -> None:
        await settle(self.recorder)

    async def send(self) -> None:
        """Send what is due, until nothing more is."""
        while True:
            await self.sender.tick()
            if not self.sender.on_their_way and not self.sender._sent:
                return
            await until(lambda: self.sender._sent or not self.sender.on_their_way)

    async def deliver(self) -> None:
        await self.record()
        await self.send()

    async def deliveries(self, webhook: WebhookEndpoint) -> list[WebhookDelivery]:
        """The first of them first."""
        page = await self.store.webhooks.deliveries(webhook.id, None, 200, None)
        return list(reversed(page.items))

    @property
    def types(self) -> list[str]:
        return [json.loads(request.body)["type"] for request in self.server.requests]

    @property
    def subjects(self) -> list[str]:
        return [json.loads(request.body)["data"]["subject"] for request in self.server.requests]


@pytest.fixture
async def outbox(store: Store, clock: VirtualClock) -> AsyncIterator[Outbox]:
    async with rude_server() as server:
        server.on("/", OK)
        made = Outbox(store, clock, server)
        yield made
        await made.handler.close()


async def succeed(store: Store, **fields: Any) -> ExecutionId:
    execution_id = await enqueue(store, **fields)
    await record(store, [found(claimed) for claimed in await claim_all(store, handlers=HANDLERS)])
    return execution_id


async def fail(store: Store, **fields: Any) -> ExecutionId:
    execution_id = await enqueue(store, **fields)
    await record(store, [found(claimed, Failed(FAILURE)) for claimed in await claim_all(store, handlers=HANDLERS)])
    return execution_id


async def state_of(outbox: Outbox, webhook: WebhookEndpoint) -> WebhookEndpoint:
    current = await outbox.store.webhooks.find(webhook.id)
    assert current is not None
    return current


def flaky(server: RudeServer, path: str, *answers: bytes) -> None:
    """Each request gets the next answer; the last one repeats."""
    left = list(answers)

    async def reply(_request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(left.pop(0) if len(left) > 1 else left[0])
        await writer.drain()

    server.on(path, reply)


# what is sent


async def test_an_event_reaches_a_webhook_as_a_thin_message_that_the_public_library_accepts(
    outbox: Outbox, store: Store
) -> None:
    secret = new_signing_secret()
    await outbox.add(secret=secret)
    execution_id = await fail(store, max_retries=0, queue="mail", payload='{"to": "someone"}')

    await outbox.deliver()

    (request,) = outbox.server.requests
    body = Verifier(secret).verify(request.body, request.headers)
    (finished,) = await table(store, "finished")
    assert request.line == "POST / HTTP/1.1"
    assert request.headers["content-type"] == "application/json"
    assert body["type"] == "execution.dead"
    assert body["data"] | {"worker": None} == {
        "subject": format_execution_id(execution_id),
        "job_id": format_id("job", finished["job_id"]),
        "queue": "mail",
        "handler": finished["handler"],
        "attempt": 1,
        "duration_ms": body["data"]["duration_ms"],
        "error_type": FAILURE.type,
        "reason": "failed 1 times, max_retries is 0",
        "scheduled_for": body["data"]["scheduled_for"],
        "worker": None,
    }
    assert "someone" not in request.body.decode()


async def test_a_webhook_may_choose_cloud_events(outbox: Outbox, store: Store) -> None:
    await outbox.add(format=WebhookFormat.CLOUDEVENTS, types=("execution.succeeded",))
    execution_id = await succeed(store)

    await outbox.deliver()

    (request,) = outbox.server.requests
    body = json.loads(request.body)
    assert request.headers["content-type"] == "application/cloudevents+json"
    assert (body["specversion"], body["type"], body["subject"]) == (
        "1.0",
        "timeball.execution.succeeded",
        format_execution_id(execution_id),
    )
    assert body["id"] == request.headers["webhook-id"]


async def test_every_type_is_sent_when_it_happens_and_nothing_else(outbox: Outbox, store: Store) -> None:
    webhook = await outbox.add()
    commands = Commands(store, store.env)
    await succeed(store)
    await fail(store)
    await fail(store, max_retries=0)
    waiting = await enqueue(store, after=60)
    await commands.executions.cancel([waiting])
    job = await make_recurring(store)
    await commands.jobs.pause(job.id)
    await commands.executions.trigger(job.id)
    await commands.queues.pause("mail")
    late = await enqueue(store)
    await record(store, [found(one, CancelOutcome("stop")) for one in await claim_all(store) if one.id == late])
    async with store.database.transaction() as connection:
        await connection.execute(
            "UPDATE timeball.finished SET state = 'skipped', reason = 'expired' WHERE id = $1", late
        )
    await life_of_an_alert(commands, store)

    await outbox.deliver()

    changed = [
        json.loads(one.body)["data"]["action"] for one in await outbox.deliveries(webhook) if ".changed" in one.type
    ]
    assert set(outbox.types) == set(WEBHOOK_EVENT_TYPES)
    assert sorted(changed) == ["job.pause", "queue.pause"]
    assert Counter(outbox.types)["execution.retrying"] == 1
    assert all(one.state is DeliveryState.DELIVERED for one in await outbox.deliveries(webhook))


async def life_of_an_alert(commands: Commands, store: Store) -> AlertId:
    """An alert opens, is acknowledged and asked again, becomes worse, and is resolved."""
    warning = AlertFact(kind="late", key="late:mail", severity=Severity.WARNING, sentence="queue mail is late")
    critical = replace(warning, severity=Severity.CRITICAL)
    clock = store.env.clock
    assert isinstance(clock, VirtualClock)
    (opened,) = await see(commands, store, warning)
    for step in (
        lambda: commands.alerts.acknowledge(opened.alert.id, actor=Actor("bo")),
        lambda: commands.alerts.unacknowledge(opened.alert.id),
        lambda: see(commands, store, critical),
        lambda: see(commands, store),
    ):
        clock.advance(timedelta(seconds=1))
        await step()
    return opened.alert.id


async def see(commands: Commands, store: Store, *facts: AlertFact) -> Sequence[AlertTransition]:
    return await commands.alerts.reconcile(AlertEvaluation(store.env.clock.now(), facts))


async def test_the_life_of_an_alert_is_sent_in_its_order(outbox: Outbox, store: Store) -> None:
    webhook = await outbox.add(types=("alert.*",), format=WebhookFormat.STANDARD)
    await succeed(store)
    alert = await life_of_an_alert(Commands(store, store.env), store)

    await outbox.deliver()

    bodies = [json.loads(request.body) for request in outbox.server.requests]
    assert [(body["type"], body["data"]["severity"]) for body in bodies] == [
        ("alert.opened", "warning"),
        ("alert.acknowledged", "warning"),
        ("alert.unacknowledged", "warning"),
        ("alert.severity_changed", "critical"),
        ("alert.resolved", "critical"),
    ]
    assert {(body["data"]["subject"], body["data"]["kind"]) for body in bodies} == {(format_alert_id(alert), "late")}
    # Nothing of what it says: that may name errors.
    assert all("sentence" not in body["data"] for body in bodies)
    assert all(one.state is DeliveryState.DELIVERED for one in await outbox.deliveries(webhook))


async def test_a_webhook_does_not_tell_of_itself(outbox: Outbox) -> None:
    webhook = await outbox.add(types=("*",))
    await outbox.store.webhooks.change(webhook.id, lambda one: _with_url(one, outbox.server.url("/")), ADA)
    await outbox.deliver()
    await outbox.deliver()

    assert outbox.server.requests == []


def _with_url(webhook: WebhookEndpoint, url: str) -> WebhookEndpoint:
    return replace(webhook, spec=replace(webhook.spec, url=url, description="changed"))


@pytest.mark.parametrize(
    ("chosen", "fields"),
    [
        ({"queue": "mail"}, {"queue": "mail"}),
        ({"handler": "app.mail"}, {"handler": "app.mail"}),
        ({"tag": "vip"}, {"tags": ("vip", "b")}),
        ({"types": ("execution.dead",), "queue": "mail"}, {"queue": "mail", "max_retries": 0}),
        ({"types": ("execution.*",), "tag": "vip"}, {"tags": ("vip",)}),
    ],
)
async def test_a_webhook_gets_what_passes_its_filter(
    outbox: Outbox, store: Store, chosen: dict[str, Any], fields: dict[str, Any]
) -> None:
    await outbox.add(**chosen)
    await succeed(store)
    wanted = await fail(store, **{"max_retries": 0} | fields)
    await fail(store, max_retries=0, tags=("other",), queue="other")

    await outbox.deliver()

    assert outbox.subjects == [format_execution_id(wanted)]


async def test_a_webhook_gets_what_happens_after_it_was_created(outbox: Outbox, store: Store) -> None:
    await outbox.add("/", types=("execution.*",))
    await succeed(store)
    outbox.server.on("/second", OK)
    second = await outbox.add("/second", types=("execution.*",))
    later = await succeed(store)

    await outbox.deliver()

    assert [one.subject for one in await outbox.deliveries(second)] == [format_execution_id(later)]
    assert len(outbox.server.requests) == 3


async def test_the_check_that_the_guide_gives_to_receivers_accepts_a_message_once_and_nothing_else(
    outbox: Outbox, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    exec(compile(block, str(GUIDE), "exec"), names)
    receive, secret = names["receive"], new_signing_secret()
    await outbox.add(secret=secret)
    execution_id = await succeed(store)

    await outbox.deliver()

    (request,) = outbox.server.requests
    assert receive(secret, request.headers, request.body + b" ") == 400
    assert receive(new_signing_secret(), request.headers, request.body) == 400
    assert [receive(secret, request.headers, request.body) for _ in range(2)] == [204, 204]
    assert capsys.readouterr().out == f"execution.succeeded {format_execution_id(execution_id)}\n"


def test_the_guide_lists_every_type_with_what_it_says():
    page = GUIDE.read_text("utf-8")

    assert [name for name, words in WEBHOOK_EVENT_TYPES.items() if f"| `{name}` | {words} |" not in page] == []


# failing addresses


async def test_an_address_is_tried_for_three_days_and_each_try_has_the_same_id_and_body(
    outbox: Outbox, store: Store, clock: VirtualClock
) -> None:
    flaky(outbox.server, "/", BROKEN)
    webhook = await outbox.add()
    await succeed(store)
    began = clock.now()
    await outbox.deliver()

    for pause in RETRY_PAUSES:
        clock.advance(pause * 1.11)
        await outbox.send()

    (delivery,) = await outbox.deliveries(webhook)
    requests = outbox.server.requests
    assert len(requests) == len(RETRY_PAUSES) + 1
    assert len({(request.headers["webhook-id"], request.body) for request in requests}) == 1
    assert (delivery.state, delivery.attempts) == (DeliveryState.FAILED, 10)
    assert [(one.status, one.error) for one in delivery.tries] == [(503, "try later")] * 10
    assert clock.now() - began > timedelta(days=3)
    assert (await state_of(outbox, webhook)).state is WebhookState.DISABLED
    assert [event.webhook_id for event in outbox.heard.of(WebhookDisabled)] == [webhook.id]


async def test_an_address_that_took_other_messages_is_not_disabled_by_one_that_it_never_takes(
    outbox: Outbox, store: Store, clock: VirtualClock
) -> None:
    refused: set[str] = set()

    async def reply(request: Request, writer: asyncio.StreamWriter) -> None:
        subject = json.loads(request.body)["data"]["subject"]
        refused.add(subject) if not refused else None
        writer.write(BROKEN if subject in refused else OK)

    outbox.server.on("/", reply)
    webhook = await outbox.add()
    await succeed(store)
    await outbox.deliver()
    await succeed(store)
    await outbox.deliver()

    for pause in RETRY_PAUSES:
        clock.advance(pause * 1.11)
        await outbox.send()

    states = [one.state for one in await outbox.deliveries(webhook)]
    current = await state_of(outbox, webhook)
    assert states == [DeliveryState.FAILED, DeliveryState.DELIVERED]
    assert (current.state, current.waiting) == (WebhookState.ACTIVE, 0)


@pytest.mark.parametrize("status", ["301 Moved", "304 Not Modified", "400 Bad", "404 Not Found", "500 Oops"])
async def test_only_2xx_is_a_success(outbox: Outbox, store: Store, clock: VirtualClock, status: str) -> None:
    flaky(outbox.server, "/", answer(status, b"", "Location: /elsewhere"), OK)
    webhook = await outbox.add()
    await succeed(store)

    await outbox.deliver()
    (failed,) = await outbox.deliveries(webhook)
    clock.advance("6s")
    await outbox.send()

    (delivered,) = await outbox.deliveries(webhook)
    assert (failed.state, failed.tries[0].status) == (DeliveryState.PENDING, int(status[:3]))
    assert (delivered.state, delivered.attempts) == (DeliveryState.DELIVERED, 2)


async def test_retry_after_puts_the_next_try_off(outbox: Outbox, store: Store, clock: VirtualClock) -> None:
    flaky(outbox.server, "/", answer("429 Slow down", b"", "Retry-After: 600"))
    webhook = await outbox.add()
    await succeed(store)

    await outbox.deliver()

    (delivery,) = await outbox.deliveries(webhook)
    assert delivery.next_at == clock.now() + timedelta(minutes=10)


async def test_410_disables_a_webhook_and_holds_back_what_waits_until_it_is_enabled(
    outbox: Outbox, store: Store
) -> None:
    flaky(outbox.server, "/", GONE, OK)
    webhook = await outbox.add(types=("execution.*",))
    subject = await fail(store)
    await outbox.record()
    async with store.database.transaction() as connection:
        await connection.execute("UPDATE timeball.webhook_delivery SET next_at = NULL WHERE false")
    # A second event of the same subject, which waits for the first.
    await _die(store, subject)
    await outbox.deliver()

    disabled = await state_of(outbox, webhook)
    await succeed(store)
    await outbox.deliver()
    held = await outbox.deliveries(webhook)
    await Commands(store, store.env).webhooks.update(webhook.id, {"state": "active"})
    await outbox.deliver()

    assert (disabled.state, disabled.disabled_reason) == (WebhookState.DISABLED, "the address answered 410 Gone")
    assert [(one.type, one.state, one.next_at) for one in held] == [
        ("execution.retrying", DeliveryState.FAILED, None),
        ("execution.dead", DeliveryState.PENDING, None),
    ]
    assert outbox.types == ["execution.retrying", "execution.dead"]
    assert (await state_of(outbox, webhook)).waiting == 0
    (entry,) = [row for row in await table(store, "audit") if row["action"] == "webhook.disable"]
    assert (entry["actor"], entry["reason"]) == ("timeball", "the address answered 410 Gone")


async def _die(store: Store, execution_id: ExecutionId) -> None:
    """The next attempt of an execution that waits for its retry is its last."""
    async with store.database.transaction() as connection:
        await connection.execute(
            "WITH gone AS (DELETE FROM timeball.due WHERE id = $1 RETURNING *) "
            "INSERT INTO timeball.ready (id, job_id, origin, version, queue, priority, handler, scheduled_for, run_at, queued_at, "
            "attempts, lost, fence) SELECT id, job_id, origin, version, queue, priority, handler, scheduled_for, now(), now(), "
            "attempts, lost, fence FROM gone",
            execution_id,
        )
        await connection.execute(
            "UPDATE timeball.ready SET run_at = $1 WHERE id = $2", store.env.clock.now(), execution_id
        )
    claims = [one for one in await claim_all(store) if one.id == execution_id]
    await record(store, [found(one, Failed(FAILURE, is_retryable=False)) for one in claims])


# order


async def test_events_of_one_subject_are_sent_in_order_while_others_pass(
    outbox: Outbox, store: Store, clock: VirtualClock
) -> None:
    broken = True

    async def reply(request: Request, writer: asyncio.StreamWriter) -> None:
        is_first = json.loads(request.body)["type"] == "execution.retrying"
        writer.write(BROKEN if is_first and broken else OK)

    outbox.server.on("/", reply)
    await outbox.add(types=("execution.*",))
    subject = await fail(store)
    await _die(store, subject)
    other = await succeed(store)

    await outbox.deliver()
    held_up = list(zip(outbox.types, outbox.subjects, strict=True))
    broken = False
    clock.advance("6s")
    await outbox.send()

    ours, others = format_execution_id(subject), format_execution_id(other)
    assert sorted(held_up) == [("execution.retrying", ours), ("execution.succeeded", others)]
    assert list(zip(outbox.types, outbox.subjects, strict=True))[2:] == [
        ("execution.retrying", ours),
        ("execution.dead", ours),
    ]


async def test_an_event_waits_for_one_that_was_recorded_before(outbox: Outbox, store: Store) -> None:
    flaky(outbox.server, "/", BROKEN)
    webhook = await outbox.add(types=("execution.*",))
    subject = await fail(store)
    await outbox.deliver()
    await _die(store, subject)
    await outbox.deliver()

    first, second = await outbox.deliveries(webhook)
    assert outbox.types == ["execution.retrying"]
    assert (first.attempts, second.attempts, second.next_at) == (1, 0, None)


async def test_an_event_that_is_given_up_does_not_hold_up_the_next_of_its_subject(
    outbox: Outbox, store: Store, clock: VirtualClock
) -> None:
    async def reply(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(BROKEN if json.loads(request.body)["type"] == "execution.retrying" else OK)

    outbox.server.on("/", reply)
    webhook = await outbox.add(types=("execution.*",))
    subject = await fail(store)
    await _die(store, subject)
    await outbox.deliver()
    await succeed(store)
    await outbox.deliver()

    for pause in RETRY_PAUSES:
        clock.advance(pause * 1.11)
        await outbox.send()

    states = [
        (one.type, one.state) for one in await outbox.deliveries(webhook) if one.subject == format_execution_id(subject)
    ]
    assert states == [("execution.retrying", DeliveryState.FAILED), ("execution.dead", DeliveryState.DELIVERED)]


async def test_a_slow_address_holds_up_no_other_webhook(outbox: Outbox, store: Store) -> None:
    may_answer = asyncio.Event()

    async def reply(_request: Request, writer: asyncio.StreamWriter) -> None:
        await may_answer.wait()
        writer.write(OK)

    outbox.server.on("/slow", reply)
    slow, quick = await outbox.add("/slow"), await outbox.add("/")
    for _ in range(30):
        await succeed(store)
    await outbox.record()

    async def quick_ones_are_through() -> bool:
        await outbox.sender.tick()
        return (await state_of(outbox, quick)).waiting == 0

    async with asyncio.timeout(60):
        while not await quick_ones_are_through():
            await asyncio.sleep(0.01)
    waiting = (await state_of(outbox, slow)).waiting
    at_once = Counter(request.line.split()[1] for request in outbox.server.requests)["/slow"]
    may_answer.set()
    await outbox.send()

    assert (waiting, at_once) == (30, 8)
    assert (await state_of(outbox, slow)).waiting == 0


# crashes


def kill_at(env: Env, point: str) -> None:
    def fault(reached: str) -> None:
        if reached == point:
            env.fault = lambda _point: None
            raise Killed

    env.fault = fault


async def test_a_recorder_that_is_killed_before_its_commit_neither_loses_nor_doubles_an_event(
    outbox: Outbox, store: Store, env: Env
) -> None:
    webhook = await outbox.add()
    subjects = {format_execution_id(await succeed(store)) for _ in range(5)}
    kill_at(env, "webhooks.before_commit")
    with pytest.raises(Killed):
        await outbox.record()
    killed = await outbox.deliveries(webhook)

    outbox.begin()
    await outbox.deliver()

    assert killed == []
    assert Counter(outbox.subjects) == Counter(subjects)
    assert len(outbox.server.requests) == 5


async def test_a_sender_that_is_killed_after_sending_sends_again_with_the_same_id(
    outbox: Outbox, store: Store, env: Env, clock: VirtualClock
) -> None:
    webhook = await outbox.add()
    await succeed(store)
    await outbox.record()
    kill_at(env, "webhooks.attempts_recorded")
    with pytest.raises(Killed):
        await outbox.send()

    outbox.begin()
    await outbox.send()
    too_early = len(outbox.server.requests)
    clock.advance("31s")
    await outbox.send()

    (delivery,) = await outbox.deliveries(webhook)
    assert (too_early, len(outbox.server.requests)) == (1, 2)
    assert len({request.headers["webhook-id"] for request in outbox.server.requests}) == 1
    assert (delivery.state, delivery.attempts) == (DeliveryState.DELIVERED, 2)


async def test_what_a_sender_reports_that_was_given_up_changes_nothing(
    outbox: Outbox, store: Store, clock: VirtualClock
) -> None:
    webhook = await outbox.add()
    await succeed(store)
    await outbox.record()
    (early,) = await store.webhooks.claim(8, {})
    clock.advance("31s")
    (late,) = await store.webhooks.claim(8, {})

    await store.webhooks.record_attempts([sent(early, 500)])
    (still,) = await outbox.deliveries(webhook)
    await store.webhooks.record_attempts([sent(late, 200)])

    (delivery,) = await outbox.deliveries(webhook)
    assert (still.state, still.tries) == (DeliveryState.PENDING, ())
    assert (delivery.state, [one.status for one in delivery.tries]) == (DeliveryState.DELIVERED, [200])


def sent(message: OutgoingMessage, status: int) -> SentMessage:
    return SentMessage(message, WebhookAnswer(status=status), timedelta(milliseconds=7))


async def test_two_recorders_at_once_record_each_event_once(outbox: Outbox, store: Store) -> None:
    webhook = await outbox.add()
    for _ in range(20):
        await succeed(store)

    await asyncio.gather(*(store.webhooks.record_changes() for _ in range(5)))

    assert len(await outbox.deliveries(webhook)) == 20


async def test_a_delivery_that_ends_while_its_successor_is_recorded_releases_it(
    outbox: Outbox, store: Store, env: Env
) -> None:
    webhook = await outbox.add(types=("execution.*",))
    subject = await fail(store)
    await outbox.record()
    (message,) = await store.webhooks.claim(8, {})
    await _die(store, subject)
    ended, may_commit = asyncio.Event(), asyncio.Event()

    async def end() -> None:
        """As the sender does, up to its commit."""
        async with store.database.transaction() as connection:
            await store.database.fetch("lock_webhooks", connection, ids=[webhook.id])
            await connection.execute(
                "UPDATE timeball.webhook_delivery SET state = 'delivered', next_at = NULL, finished_at = now() WHERE id = $1",
                message.delivery_id,
            )
            await store.database.fetch(
                "release_webhook_deliveries",
                connection,
                webhook_ids=[webhook.id],
                subjects=[format_execution_id(subject)],
            )
            ended.set()
            await may_commit.wait()

    ending = asyncio.create_task(end())
    await ended.wait()
    recording = asyncio.create_task(store.webhooks.record_changes())
    await _is_blocked(store)
    may_commit.set()
    await asyncio.gather(ending, recording)

    second = (await outbox.deliveries(webhook))[-1]
    assert (second.type, second.next_at is not None) == ("execution.dead", True)


async def _is_blocked(store: Store) -> None:
    """Wait until a statement waits for a lock."""
    async with asyncio.timeout(patience(30)):
        while not await _blocked(store):
            await asyncio.sleep(0.01)


async def _blocked(store: Store) -> bool:
    async with store.database.connection() as connection:
        return bool(await connection.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"))


# much, and long ago


async def test_ten_thousand_events_are_all_delivered_once(outbox: Outbox, store: Store) -> None:
    webhook = await outbox.add()
    async with store.database.transaction() as connection:
        await connection.execute(
            "INSERT INTO timeball.finished (id, job_id, state, origin, version, queue, priority, handler, scheduled_for, finished_at, "
            "attempts, lost, fence) SELECT gen_random_uuid(), gen_random_uuid(), 'dead', 'manual', 1, 'q', 50, 'h', $1, $1, 1, 0, 1 "
            "FROM generate_series(1, 10000)",
            store.env.clock.now(),
        )

    await outbox.deliver()

    assert len(outbox.server.requests) == 10_000
    assert len({request.headers["webhook-id"] for request in outbox.server.requests}) == 10_000
    assert (await state_of(outbox, webhook)).waiting == 0


async def test_a_recorder_that_is_far_behind_reads_page_by_page_and_misses_nothing(
    outbox: Outbox, store: Store
) -> None:
    webhook = await outbox.add(types=("execution.*",))
    subjects = [format_execution_id(await succeed(store)) for _ in range(30)]
    async with store.database.connection() as connection:
        for _ in range(450):
            await connection.execute("SELECT pg_current_xact_id()")
    subjects += [format_execution_id(await succeed(store)) for _ in range(30)]

    first = await store.webhooks.record_changes()
    await outbox.record()

    assert first.has_more
    assert sorted(one.subject for one in await outbox.deliveries(webhook)) == sorted(subjects)


async def test_a_webhook_is_told_that_events_were_deleted_before_it_got_them(
    outbox: Outbox, store: Store, clock: VirtualClock
) -> None:
    webhook = await outbox.add(types=("execution.dead",))
    await outbox.record()
    seen_at = clock.now()
    clock.advance("40d")
    floor = (clock.now() - timedelta(days=10)).isoformat()
    await store.database.fetch("set_fact", key="history_from", value=floor)

    await outbox.record()
    await outbox.record()

    (missed,) = await outbox.deliveries(webhook)
    data = json.loads(missed.body)["data"]
    assert missed.type == "events.missed"
    assert data["since"].startswith(seen_at.isoformat()[:19])


async def test_a_webhook_of_a_restored_database_is_told_and_gets_what_happens_from_then_on(
    outbox: Outbox, store: Store
) -> None:
    webhook = await outbox.add(types=("execution.*",))
    async with store.database.transaction() as connection:
        far = "pg_current_xact_id()::text::bigint + 100000"
        snapshot = f"format('%1$s:%1$s:', {far})::pg_snapshot"
        await connection.execute(f"UPDATE timeball.webhook_position SET seen = {snapshot}")
        await connection.execute(f"UPDATE timeball.webhook SET since = {snapshot}")
    await outbox.record()
    execution_id = await succeed(store)

    await outbox.record()

    first, second = await outbox.deliveries(webhook)
    assert (first.type, json.loads(first.body)["data"]["reason"]) == ("events.missed", "the database was restored")
    assert second.subject == format_execution_id(execution_id)


async def test_a_webhook_with_too_many_deliveries_that_wait_is_disabled(
    outbox: Outbox, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("timeball.store.webhooks.MAX_WAITING", 3)
    webhook = await outbox.add()
    for _ in range(4):
        await succeed(store)

    await outbox.record()

    current = await state_of(outbox, webhook)
    assert (current.state, current.waiting) == (WebhookState.DISABLED, 4)
    assert current.disabled_reason == "more than 3 deliveries wait"


async def test_old_deliveries_are_deleted_and_those_that_are_tried_are_not(
    outbox: Outbox, store: Store, clock: VirtualClock
) -> None:
    flaky(outbox.server, "/broken", BROKEN)
    done, tried = await outbox.add("/"), await outbox.add("/broken")
    await succeed(store)
    await outbox.deliver()
    clock.advance("8d")

    await outbox.record()

    assert (await outbox.deliveries(done), len(await outbox.deliveries(tried))) == ([], 1)


# no webhook


async def test_without_a_webhook_nothing_is_asked(
    store: Store, env: Env, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    run = store.database._run

    async def spy(connection: Any, name: str, given: Any) -> Any:
        asked.append(name)
        return await run(connection, name, given)

    monkeypatch.setattr(store.database, "_run", spy)
    heard = Heard()
    recorder = WebhookRecorder(env, heard, store, lambda: True)
    sender = WebhookSender(env, heard, store, _never, recorder)

    for _ in range(100):
        await recorder.tick()
        await sender.tick()
        clock.advance("1s")

    assert asked == []
    assert not (await store.housekeeping_work()).has_webhooks
    assert asked == ["housekeeping_work"]
    (position,) = await table(store, "webhook_position")
    assert position["seen"] is None


async def _never(_url: str, _headers: Mapping[str, str], _body: bytes, _timeout: timedelta) -> WebhookAnswer:
    raise AssertionError("nothing is sent")


async def test_changes_are_read_no_more_when_the_last_webhook_is_gone(outbox: Outbox, store: Store) -> None:
    webhook = await outbox.add()
    await outbox.record()
    await store.webhooks.delete(webhook.id, lambda _: None, ADA)

    await outbox.record()

    (position,) = await table(store, "webhook_position")
    assert position["seen"] is None
    assert not outbox.recorder.may_send


async def test_a_scheduler_that_does_not_keep_house_sends_nothing(outbox: Outbox, store: Store) -> None:
    await outbox.add()
    await succeed(store)
    other = WebhookRecorder(store.env, Heard(), store, lambda: False)
    other.notice(has_webhooks=True)
    sender = WebhookSender(store.env, Heard(), store, _never, other)

    await other.tick()
    await sender.tick()

    assert await table(store, "webhook_delivery") == []


# by hand


async def test_a_delivery_that_is_sent_again_has_the_id_of_the_first_time(outbox: Outbox, store: Store) -> None:
    webhook = await outbox.add()
    await succeed(store)
    await outbox.deliver()
    (delivery,) = await outbox.deliveries(webhook)

    await store.webhooks.redeliver(delivery.id, ADA)
    await outbox.send()

    first, second = outbox.server.requests
    assert first.headers["webhook-id"] == second.headers["webhook-id"] == format_id("evt", delivery.event_id)
    assert first.body == second.body
    assert (await state_of(outbox, webhook)).waiting == 0


async def test_a_disabled_webhook_can_be_tested_and_a_failed_test_is_not_repeated(
    outbox: Outbox, store: Store, clock: VirtualClock
) -> None:
    flaky(outbox.server, "/", GONE, BROKEN)
    webhook = await outbox.add()
    await succeed(store)
    await outbox.deliver()

    await store.webhooks.add_trial(webhook.id, ADA)
    await outbox.send()
    clock.advance("1d")
    await outbox.send()

    test = (await outbox.deliveries(webhook))[-1]
    assert outbox.types == ["execution.succeeded", "webhook.test"]
    assert (test.type, test.state, test.attempts) == ("webhook.test", DeliveryState.FAILED, 1)


async def test_a_rotated_secret_signs_beside_the_old_one_for_a_while(
    outbox: Outbox, store: Store, clock: VirtualClock
) -> None:
    old, new = new_signing_secret(), new_signing_secret()
    webhook = await outbox.add(secret=old)
    await store.webhooks.rotate(webhook.id, new, timedelta(hours=24), lambda _: None, ADA)
    await succeed(store)
    await outbox.deliver()
    clock.advance("25h")
    await succeed(store)
    await outbox.deliver()

    during, after = outbox.server.requests
    for secret in (old, new):
        Verifier(secret).verify(during.body, during.headers)
    Verifier(new).verify(after.body, after.headers)
    assert [len(one.headers["webhook-signature"].split()) for one in (during, after)] == [2, 1]


async def test_secrets_are_in_no_other_table_than_their_own(outbox: Outbox, store: Store) -> None:
    secret, second = new_signing_secret(), new_signing_secret()
    webhook = await outbox.add(secret=secret)
    await store.webhooks.rotate(webhook.id, second, timedelta(hours=24), lambda _: None, ADA)
    await succeed(store)
    await outbox.deliver()

    rows = [*await table(store, "audit"), *await table(store, "webhook_delivery")]
    text = repr([{name: str(value) for name, value in row.items()} for row in rows]) + repr(outbox.heard)
    assert "webhook.rotate" in text
    assert "whsec_" not in text
    assert "whsec_" not in repr(await state_of(outbox, webhook))


async def test_an_address_that_may_not_be_reached_is_not_reached(outbox: Outbox, store: Store) -> None:
    webhook = await outbox.store.webhooks.add(
        WebhookId(store.env.new_id()),
        WebhookSpec(url="http://127.0.0.1:1/?token=hunter2"),
        new_signing_secret(),
        "ada",
        ADA,
    )
    await succeed(store)

    await outbox.deliver()

    (delivery,) = await outbox.deliveries(webhook)
    (attempt,) = delivery.tries
    assert attempt.status is None
    assert "127.0.0.1, which is not public" in (attempt.error or "")
    assert "hunter2" not in (attempt.error or "")
    assert outbox.server.connections == 0
