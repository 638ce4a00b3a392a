"""Alerts on their way to channels: real servers on loopback, the real scheduler and worker, and a clock that the test moves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import FreshDatabase
from tests.engine.support import create
from tests.handlers.builtin.support import Reply, Request, RudeServer, answer, rude_server
from tests.handlers.builtin.test_email import PostOffice, running
from tests.handlers.builtin.test_worker import all_rows
from tests.support.factories import claim_all, table
from tests.support.pace import patience
from timeball.application.commands.requests import Actor
from timeball.config.settings import load_settings
from timeball.domain.alert_messages import SendOrder
from timeball.domain.alert_routes import TURN, SendLater
from timeball.domain.alerts import AlertEvaluation, AlertFact, AlertMember, AlertTransition, Severity, format_alert_id
from timeball.domain.job import Job
from timeball.domain.job_fields import JobSpec
from timeball.domain.values.ids import ExecutionId
from timeball.handlers.registry import Registry
from timeball.runtime import Runtime, make_queries
from timeball.store.alert_deliveries import AlertDelivery
from timeball.testing.environment import START, HarnessEnv
from timeball.testing.nodes import ManualNodes, harness_settings, open_nodes

pytestmark = pytest.mark.parametrize("fresh_database", ["pg18"], indirect=True)

CANARY = "S3cret-canary-4711"
SIGNING = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
EDITOR = Actor("ed", is_administrator=False)
FACT = AlertFact(
    kind="no_success",
    key="no_success:nightly",
    severity=Severity.CRITICAL,
    sentence="nightly has not succeeded for 26 h",
    advice="resume the queue mail",
    command="timeball queues resume mail",
    why="the queue mail is paused by ada",
    members=(AlertMember(name="nightly", queue="mail", tags=("billing",)),),
)
REAL_TIME = timedelta(seconds=60)


class World:
    """An installation with one scheduler and one worker, a web server beside it, and a clock."""

    def __init__(self, parts: Runtime, nodes: ManualNodes, env: HarnessEnv, server: RudeServer) -> None:
        self.parts, self.nodes, self.env, self.server = parts, nodes, env, server
        self.commands, self.store = parts.commands, parts.store

    async def channel(self, kind: str, settings: dict[str, Any], name: str = "ops", **route: Any) -> None:
        """A channel, and a route that leads everything to it."""
        actor = route.pop("actor", Actor("ada"))
        await self.commands.channels.create(name, kind, settings, actor=actor)
        await self.commands.alert_routes.create({"name": f"to-{name}", "channels": [name], **route})

    async def see(self, *facts: AlertFact) -> Sequence[AlertTransition]:
        """Evaluate alerts: these are the facts of now."""
        return await self.commands.alerts.reconcile(AlertEvaluation(self.env.clock.now(), facts))

    async def run(self, span: timedelta = timedelta(0)) -> None:
        """Let time pass, and everything run that falls due."""
        await self.nodes.advance_to(self.env.clock.now() + span, REAL_TIME)

    async def deliveries(self, channel: str = "ops") -> list[AlertDelivery]:
        """All deliveries, the first one first."""
        return [*(await self.store.alert_deliveries.page(channel, 200, None)).items][::-1]

    async def states(self, channel: str = "ops") -> list[tuple[str, str]]:
        return [(one.event.value, one.state.value) for one in await self.deliveries(channel)]

    def bodies(self) -> list[Any]:
        return [json.loads(request.body) for request in self.server.requests]


Open = Callable[..., Any]


@pytest.fixture
async def open_world(fresh_database: FreshDatabase, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Open:
    monkeypatch.setenv("TIMEBALL_SECRET_CANARY", CANARY)
    monkeypatch.setenv("TIMEBALL_SECRET_SIGNING", SIGNING)

    @asynccontextmanager
    async def opened(**handlers: Any) -> AsyncIterator[World]:
        async with rude_server() as server:
            base = load_settings(
                webhook_allow=(f"127.0.0.1:{server.port}",),
                data_dir=tmp_path,
                files_root=tmp_path / "files",
                public_url="https://timeball.example.com/",
                **handlers,
            )
            settings, env = harness_settings(base, fresh_database.dsn), HarnessEnv(START)
            async with open_nodes(settings, env, Registry(), lambda _line: None) as nodes:
                yield World(nodes._parts, nodes, env, server)

    return opened


@pytest.fixture
async def world(open_world: Open) -> AsyncIterator[World]:
    async with open_world() as made:
        yield made


def turn(*replies: bytes) -> Reply:
    """A path that gives one answer after the other; the last one stays."""
    left = list(replies)

    async def say(_request: Request, writer: Any) -> None:
        writer.write(left.pop(0) if len(left) > 1 else left[0])
        await writer.drain()

    return say


OK, BUSY = answer(), answer("503 Service Unavailable", b"not now")


# each kind of channel


async def test_a_webhook_gets_the_alert_as_json_signed_and_again_when_it_is_resolved(world: World) -> None:
    url = world.server.on("/alerts", OK)
    secret = {"$secret": "SIGNING"}
    await world.channel("webhook", {"url": url, "signing_secret": secret, "headers": {"X-Team": "ops"}})
    (transition,) = await world.see(FACT)
    await world.run()
    await world.see()
    await world.run()

    opened, resolved = world.bodies()
    assert (opened["type"], resolved["type"]) == ("alert.opened", "alert.resolved")
    alert = opened["data"]["alert"]
    assert alert["id"] == format_alert_id(transition.alert.id) == resolved["data"]["alert"]["id"]
    assert (alert["severity"], alert["state"], alert["sentence"]) == ("critical", "open", FACT.sentence)
    assert (alert["queues"], alert["tags"]) == (["mail"], ["billing"])
    assert opened["data"]["link"] == f"https://timeball.example.com/alerts/{alert['id']}"
    assert resolved["data"]["alert"]["state"] == "resolved"
    headers = world.server.requests[0].headers
    assert (headers["x-team"], headers["webhook-id"]) == ("ops", opened["data"]["delivery"])
    assert headers["webhook-signature"].startswith("v1,")
    assert await world.states() == [("opened", "sent"), ("resolved", "sent")]


async def test_slack_gets_blocks_in_which_no_text_can_mention_anyone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIMEBALL_SECRET_SLACK", world.server.on("/services/T0/B0/canary4711", answer(body=b"ok")))
    await world.channel("slack", {"url": {"$secret": "SLACK"}})
    await world.see(
        AlertFact(**{name: getattr(FACT, name) for name in ("kind", "key", "severity")}, sentence="<!channel> & co")
    )
    await world.run()

    (body,) = world.bodies()
    # As https://api.slack.com/reference/block-kit/blocks has it.
    assert set(body) == {"text", "blocks"}
    header, section, context, actions = body["blocks"]
    assert header["type"] == "header"
    assert header["text"]["type"] == "plain_text"
    assert len(header["text"]["text"]) <= 150
    assert section == {"type": "section", "text": {"type": "mrkdwn", "text": "&lt;!channel&gt; &amp; co"}}
    assert context["type"] == "context"
    assert actions["elements"][0]["type"] == "button"
    assert actions["elements"][0]["url"].startswith("https://timeball.example.com/alerts/alr_")
    assert "<" not in body["text"]
    assert await world.states() == [("opened", "sent")]


async def test_pagerduty_gets_trigger_acknowledge_and_resolve_of_one_incident(world: World) -> None:
    url = world.server.on("/v2/enqueue", answer("202 Accepted", b'{"status": "success"}'))
    await world.channel("pagerduty", {"routing_key": {"$secret": "CANARY"}, "url": url})
    (transition,) = await world.see(FACT)
    await world.run()
    await world.commands.alerts.acknowledge(transition.alert.id, actor=Actor("ada"))
    await world.run()
    await world.see()
    await world.run()

    events = world.bodies()
    # As https://developer.pagerduty.com/docs/send-alert-event has it.
    assert [event["event_action"] for event in events] == ["trigger", "acknowledge", "resolve"]
    assert {event["routing_key"] for event in events} == {CANARY}
    assert {event["dedup_key"] for event in events} == {format_alert_id(transition.alert.id)}
    payload = events[0]["payload"]
    assert payload["summary"] == "Critical: nightly has not succeeded for 26 h"
    assert (payload["severity"], payload["source"], payload["component"]) == ("critical", "timeball", "mail")
    assert datetime.fromisoformat(payload["timestamp"]) == START
    assert payload["custom_details"]["why"] == FACT.why
    assert [set(event) for event in events[1:]] == [{"routing_key", "event_action", "dedup_key"}] * 2


async def test_a_mail_is_sent_with_the_alert_in_its_subject_and_text(open_world: Open) -> None:
    office = PostOffice()
    with running(office) as port:
        async with open_world(smtp_url=f"smtp://127.0.0.1:{port}", smtp_from="timeball@example.com") as world:
            await world.channel("email", {"to": ["ops@example.com"], "cc": ["Boss <boss@example.com>"]})
            await world.see(FACT)
            await world.run()

            letter = office.letter()
            assert letter["Subject"] == "Critical: nightly has not succeeded for 26 h"
            assert office.envelopes[0].rcpt_tos == ["ops@example.com", "boss@example.com"]
            text = letter.get_content()
            for words in (FACT.why, FACT.advice, FACT.command, "https://timeball.example.com/alerts/alr_"):
                assert words in text
            assert await world.states() == [("opened", "sent")]


async def test_a_subject_of_a_mail_holds_no_line_break_and_no_encoded_word(open_world: Open) -> None:
    office = PostOffice()
    with running(office) as port:
        async with open_world(smtp_url=f"smtp://127.0.0.1:{port}", smtp_from="timeball@example.com") as world:
            await world.channel("email", {"to": ["ops@example.com"]})
            sentence = "it\r\nBcc: eve@example.com =?utf-8?q?x?="
            await world.see(AlertFact(kind="k", key="k:1", severity=Severity.WARNING, sentence=sentence))
            await world.run()

            assert office.letter()["Bcc"] is None
            assert await world.states() == [("opened", "sent")]


async def test_a_command_finds_the_alert_in_its_variables(open_world: Open, tmp_path: Path) -> None:
    script = tmp_path / "page.sh"
    script.write_text('#!/bin/sh\necho "$1 $TIMEBALL_ALERT_EVENT $TIMEBALL_ALERT_SEVERITY: $TIMEBALL_ALERT_SENTENCE"\n')
    script.chmod(0o755)
    tmp_path.chmod(0o755)
    async with open_world(shell_enabled=True, shell_programs=("/bin/sh",)) as world:
        await world.channel("command", {"command": "sh", "args": ["-c", script.read_text(), "sh", "now"]})
        await world.see(FACT)
        await world.run()

        (delivery,) = await world.deliveries()
        lines = await world.nodes.lines(ExecutionId(delivery.id))
        assert "now opened critical: nightly has not succeeded for 26 h" in lines
        assert delivery.state == "sent"


@pytest.mark.parametrize(
    ("kind", "settings", "words"),
    [
        ("email", {"to": ["ops@example.com"]}, "this worker has no mail server"),
        ("command", {"command": "sh"}, "this worker runs no commands"),
    ],
)
async def test_a_worker_that_cannot_send_leaves_a_delivery_to_another_one(
    world: World, kind: str, settings: dict[str, Any], words: str
) -> None:
    await world.channel(kind, settings)
    await world.see(FACT)
    await world.run()

    (delivery,) = await world.deliveries()
    assert (delivery.state, delivery.attempts) == ("retrying", 1)
    assert words in (delivery.error or "")


# retries, deaths, and what is told only once


async def test_a_server_that_fails_twice_gets_the_same_message_until_it_takes_it(world: World) -> None:
    url = world.server.on("/alerts", turn(BUSY, BUSY, OK))
    await world.channel("webhook", {"url": url})
    await world.see(FACT)
    await world.run()
    (waiting,) = await world.deliveries()
    await world.run(timedelta(minutes=1))

    (delivery,) = await world.deliveries()
    assert (waiting.state, waiting.attempts) == ("retrying", 1)
    assert "503" in (waiting.error or "")
    assert waiting.next_at is not None
    assert (delivery.state, delivery.attempts, delivery.error) == ("sent", 3, None)
    assert len({request.headers["idempotency-key"] for request in world.server.requests}) == 1
    assert len({body["data"]["delivery"] for body in world.bodies()}) == 1


async def test_a_channel_that_is_down_for_hours_gets_a_dead_delivery_and_no_alert_about_it(world: World) -> None:
    url = world.server.on("/alerts", BUSY)
    await world.channel("webhook", {"url": url})
    await world.see(FACT)
    await world.run(timedelta(hours=2))
    (waiting,) = await world.deliveries()
    await world.run(timedelta(hours=10))

    (delivery,) = await world.deliveries()
    assert waiting.state == "retrying"
    assert (delivery.state, delivery.attempts) == ("failed", 15)
    assert "503" in (delivery.error or "")
    execution = await world.store.history.find(ExecutionId(delivery.id))
    assert execution is not None
    assert execution.state == "dead"
    assert await table(world.store, "alert_delivery") != []
    assert len(await world.store.alerts.unresolved()) == 1


async def test_an_alert_that_is_resolved_before_its_opening_was_heard_is_not_told(world: World) -> None:
    url = world.server.on("/alerts", turn(BUSY, OK))
    await world.channel("webhook", {"url": url})
    await world.see(FACT)
    await world.run()
    await world.see()
    await world.run(timedelta(hours=1))

    assert len(world.server.requests) == 1
    assert await world.states() == [("opened", "left_out"), ("resolved", "left_out")]
    notes = [one.note for one in await world.deliveries()]
    assert notes[1] == "the channel never heard of the alert"


async def test_the_end_is_told_if_the_opening_may_have_arrived(world: World) -> None:
    async def vanish(_request: Request, writer: Any) -> None:
        writer.close()

    url = world.server.on("/alerts", vanish)
    await world.channel("webhook", {"url": url})
    await world.see(FACT)
    await world.run()
    world.server.on("/alerts", OK)
    await world.see()
    await world.run(timedelta(hours=1))

    assert [body["type"] for body in world.bodies()] == ["alert.opened", "alert.resolved"]
    assert await world.states() == [("opened", "left_out"), ("resolved", "sent")]


async def test_an_opening_that_is_retried_does_not_come_after_the_end(world: World) -> None:
    url = world.server.on("/alerts", turn(OK, BUSY, OK))
    await world.channel("webhook", {"url": url}, repeat_every_seconds=60)
    await world.see(FACT)
    await world.run(timedelta(seconds=61))  # the reminder fails
    await world.see()
    await world.run(timedelta(hours=1))

    assert [body["type"] for body in world.bodies()] == ["alert.opened", "alert.reminder", "alert.resolved"]
    assert [state for state in await world.states() if state[1] != "left_out"] == [
        ("opened", "sent"),
        ("resolved", "sent"),
    ]


async def test_a_worker_that_dies_after_the_message_sends_it_again_under_the_same_id(world: World) -> None:
    url = world.server.on("/alerts", OK)
    await world.channel("webhook", {"url": url})
    await world.see(FACT)
    log = world.store.alert_deliveries
    note_sent = log.note_sent

    async def die(_delivery_id: Any) -> None:
        raise ConnectionError("the worker is dead")

    log.note_sent = die  # type: ignore[method-assign]
    await world.run()
    log.note_sent = note_sent  # type: ignore[method-assign]
    await world.run(timedelta(minutes=1))

    first, second = world.server.requests
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"]
    assert json.loads(first.body)["data"] == json.loads(second.body)["data"]
    assert await world.states() == [("opened", "sent")]


async def test_what_was_sent_is_not_sent_again_when_its_execution_is_run_again(world: World) -> None:
    url = world.server.on("/alerts", OK)
    await world.channel("webhook", {"url": url})
    await world.see(FACT)
    await world.run()
    (delivery,) = await world.deliveries()
    await world.commands.executions.retry(ExecutionId(delivery.id))
    await world.run()

    assert len(world.server.requests) == 1
    assert await world.states() == [("opened", "sent")]


# quiet hours, repetitions, acknowledgements


NIGHT = {"from": "22:00", "until": "07:00", "timezone": "Europe/Berlin"}


async def test_quiet_hours_hold_an_alert_back_and_send_it_afterwards_if_it_is_still_open(world: World) -> None:
    url = world.server.on("/alerts", OK)
    await world.channel("webhook", {"url": url}, quiet_hours=[NIGHT])
    await world.run(timedelta(hours=11))  # 23:00 UTC is midnight in Berlin
    await world.see(FACT)
    other = AlertFact(kind="dead", key="dead:x", severity=Severity.WARNING, sentence="x is dead")
    await world.see(FACT, other)
    await world.run(timedelta(hours=1))
    at_night = len(world.server.requests)
    (first, _) = await world.deliveries()
    await world.see(FACT)  # the other is gone before the morning
    await world.run(timedelta(hours=8))

    assert at_night == 0
    assert (first.state, first.next_at) == ("waiting", datetime(2026, 3, 3, 6, 0, tzinfo=UTC))
    (body,) = world.bodies()
    assert (body["type"], body["data"]["alert"]["sentence"]) == ("alert.opened", FACT.sentence)
    assert datetime.fromisoformat(body["timestamp"]) == datetime(2026, 3, 3, 6, 0, tzinfo=UTC)


async def test_an_open_alert_is_told_again_until_a_person_acknowledges_it(world: World) -> None:
    url = world.server.on("/alerts", OK)
    await world.channel("webhook", {"url": url}, repeat_every_seconds=3600)
    (transition,) = await world.see(FACT)
    await world.run(timedelta(hours=2, minutes=30))
    before = [body["type"] for body in world.bodies()]
    await world.commands.alerts.acknowledge(transition.alert.id, until=START + timedelta(hours=5), actor=Actor("ada"))
    await world.run(timedelta(hours=2))
    acknowledged = [body["type"] for body in world.bodies()][len(before) :]
    await world.run(timedelta(hours=1))
    await world.see(FACT)  # the acknowledgement is over
    await world.run(timedelta(hours=1, minutes=30))

    assert before == ["alert.opened", "alert.reminder", "alert.reminder"]
    assert world.bodies()[2]["data"]["title"] == "Still open for 2 h: nightly has not succeeded for 26 h"
    assert acknowledged == ["alert.acknowledged"]
    later = [body["type"] for body in world.bodies()][len(before) + 1 :]
    assert later == ["alert.reminder", "alert.reminder"]


async def test_reminders_of_a_channel_that_is_down_go_on_by_themselves(world: World) -> None:
    url = world.server.on("/alerts", BUSY)
    await world.channel("webhook", {"url": url}, repeat_every_seconds=3600)
    await world.see(FACT)
    await world.run(timedelta(hours=3, minutes=30))
    world.server.on("/alerts", OK)
    await world.run(timedelta(hours=1))

    # Each reminder takes the place of the one before it: a channel that comes back hears one message, not all that it missed.
    states = await world.states()
    assert states[:3] == [("opened", "left_out"), ("reminder", "left_out"), ("reminder", "left_out")]
    assert ("reminder", "sent") in states


async def test_a_route_that_is_changed_decides_about_what_waits(world: World) -> None:
    url = world.server.on("/alerts", OK)
    await world.channel("webhook", {"url": url}, repeat_every_seconds=3600)
    await world.see(FACT)
    await world.run()
    await world.commands.alert_routes.update("to-ops", {"queues": ["other"]})
    await world.run(timedelta(hours=5))

    assert [body["type"] for body in world.bodies()] == ["alert.opened"]
    (_, reminder) = await world.deliveries()
    assert reminder.note == "no route leads from the alert to this channel any more"


async def test_a_channel_that_is_deleted_hears_nothing_more(world: World) -> None:
    url = world.server.on("/alerts", OK)
    await world.channel("webhook", {"url": url})
    await world.see(FACT)
    await world.commands.alert_routes.delete("to-ops")
    await world.commands.channels.delete("ops")
    await world.run()

    assert world.server.requests == []
    assert [one.note for one in await world.deliveries()] == ["the channel was deleted"]


# what may happen at the same time, or not at all


async def test_a_transition_and_its_deliveries_are_written_together_or_not_at_all(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.channel("webhook", {"url": world.server.on("/alerts", OK)})
    create = world.store.enqueuer.create

    async def die(*_arguments: Any, **_options: Any) -> Any:
        raise RuntimeError("the node is dead")

    monkeypatch.setattr(world.store.enqueuer, "create", die)
    with pytest.raises(RuntimeError):
        await world.see(FACT)
    left = [await table(world.store, name) for name in ("alert", "alert_delivery")]
    monkeypatch.setattr(world.store.enqueuer, "create", create)
    await world.see(FACT)  # another node does it
    await world.run()

    assert left == [[], []]
    assert await world.states() == [("opened", "sent")]


async def test_the_end_of_an_alert_waits_for_its_opening_that_is_being_sent(world: World) -> None:
    await world.channel("webhook", {"url": world.server.on("/alerts", OK)})
    await world.see(FACT)
    (opened,) = await world.deliveries()
    await claim_all(world.store, handlers=["alert.deliver"])
    order = await world.store.alert_deliveries.begin(opened.id)
    await world.see()
    (_, resolved) = await world.deliveries()

    while_sending = await world.store.alert_deliveries.begin(resolved.id)
    await world.store.alert_deliveries.note_sent(opened.id)
    afterwards = await world.store.alert_deliveries.begin(resolved.id)

    assert isinstance(order, SendOrder)
    assert while_sending == SendLater(TURN)
    assert isinstance(afterwards, SendOrder)


async def test_two_messages_of_one_alert_that_begin_at_once_see_each_other(world: World) -> None:
    await world.channel("webhook", {"url": world.server.on("/alerts", OK)})
    await world.see(FACT)
    (opened,) = await world.deliveries()
    await claim_all(world.store, handlers=["alert.deliver"])
    log, database = world.store.alert_deliveries, world.store.database
    async with database.transaction() as connection:
        # The opening has begun in a transaction that is not committed yet.
        await database.fetch("lock_line_of_delivery", connection, id=opened.id)
        await database.fetch("begin_delivery", connection, id=opened.id, channel_version=1)
        adding = asyncio.ensure_future(world.see())
        await adding
        (_, resolved) = await world.deliveries()
        beginning = asyncio.ensure_future(log.begin(resolved.id))
        async with asyncio.timeout(patience(30)):
            while not await connection.fetchval(_WAITING):
                await asyncio.sleep(0.01)

    assert await beginning == SendLater(TURN)


_WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


async def test_a_reminder_is_written_once_however_often_its_delivery_begins(world: World) -> None:
    await world.channel("webhook", {"url": world.server.on("/alerts", OK)}, repeat_every_seconds=3600)
    await world.see(FACT)
    (opened,) = await world.deliveries()
    for _ in range(3):
        await world.store.alert_deliveries.begin(opened.id)

    assert [one.event.value for one in await world.deliveries()] == ["opened", "reminder"]


async def test_deliveries_of_an_open_alert_are_kept_longer_than_the_history(world: World) -> None:
    await world.channel("webhook", {"url": world.server.on("/alerts", OK)})
    other = AlertFact(kind="dead", key="dead:x", severity=Severity.WARNING, sentence="x is dead")
    await world.see(FACT, other)
    await world.run()
    await world.see(FACT)
    await world.run()

    gone = await world.store.retention.alert_deliveries(world.env.clock.now() + timedelta(seconds=1))

    assert gone == 2
    assert [one.sentence for one in await world.deliveries()] == [FACT.sentence]


# a test of a channel, and jobs that pretend to be deliveries


async def test_a_test_is_sent_once_and_its_failure_is_told(world: World) -> None:
    url = world.server.on("/alerts", turn(BUSY, OK))
    await world.channel("webhook", {"url": url})
    await world.commands.channels.test("ops", EDITOR)
    await world.run(timedelta(hours=1))
    await world.commands.channels.test("ops", EDITOR)
    await world.run()

    failed, sent = await world.deliveries()
    assert (failed.event, failed.state, failed.attempts) == ("test", "failed", 1)
    assert "503" in (failed.error or "")
    assert sent.state == "sent"
    assert world.bodies()[1]["data"]["title"] == "Test: this message tests the channel ops"


async def test_a_job_that_a_person_has_written_is_no_delivery(world: World) -> None:
    url = world.server.on("/alerts", OK)
    await world.channel("webhook", {"url": url})
    await world.see(FACT)
    await world.run()
    (delivery,) = await world.deliveries()
    forged = {"delivery": str(delivery.id), "channel": "ops", "event": "opened"}
    created = await world.commands.jobs.create(JobSpec(handler="alert.deliver", payload=forged), actor=EDITOR)
    await world.run()

    assert len(world.server.requests) == 1
    assert created.execution_id is not None
    execution = await world.store.history.find(created.execution_id)
    assert execution is not None
    assert "is not the delivery of this job" in str(execution.error)


# secrets


async def test_the_secrets_of_channels_are_in_no_row_no_log_and_no_error(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def echo(request: Request, writer: Any) -> None:
        """A server that repeats everything that it was sent."""
        writer.write(answer("400 Bad Request", f"{request.line} {request.headers} {request.body!r}".encode()))
        await writer.drain()

    path = f"/services/{CANARY}/B0"
    monkeypatch.setenv("TIMEBALL_SECRET_SLACK", world.server.on(path, echo))
    header = {"Authorization": {"$secret": "CANARY"}}
    await world.channel("webhook", {"url": world.server.on("/a", echo), "headers": header}, "hook")
    await world.channel("slack", {"url": {"$secret": "SLACK"}}, "chat")
    pager = {"routing_key": {"$secret": "CANARY"}, "url": world.server.on("/b", echo)}
    await world.channel("pagerduty", pager, "pager")
    await world.see(FACT)
    await world.run()

    for name in ("hook", "chat", "pager"):
        (delivery,) = await world.deliveries(name)
        assert (delivery.state, delivery.attempts) == ("failed", 1)
        assert "400 Bad Request" in (delivery.error or "")
    assert len(world.server.requests) == 3
    assert CANARY in str(world.server.requests[0].headers) + str(world.server.requests)
    assert CANARY not in await all_rows(world.parts)


async def test_the_first_use_of_a_secret_by_a_channel_is_audited(world: World) -> None:
    url = world.server.on("/alerts", OK)
    await world.channel("webhook", {"url": url, "headers": {"Authorization": {"$secret": "CANARY"}}})
    for _ in range(2):
        await world.see(FACT)
        await world.run()
        await world.see()
        await world.run()

    notes = [row for row in await table(world.store, "audit") if row["action"] == "secret.use"]
    assert [row["subject"] for row in notes] == ["channel:ops"]
    assert len(world.server.requests) == 4


@pytest.mark.parametrize(("hosts", "state"), [(None, "failed"), ("127.0.0.1", "sent"), ("example.com", "failed")])
async def test_a_channel_of_an_editor_gets_only_secrets_that_are_bound_to_its_host(
    world: World, monkeypatch: pytest.MonkeyPatch, hosts: str | None, state: str
) -> None:
    if hosts is not None:
        monkeypatch.setenv("TIMEBALL_SECRET_CANARY_HOSTS", hosts)
    url = world.server.on("/alerts", OK)
    settings = {"url": url, "headers": {"Authorization": {"$secret": "CANARY"}}}
    await world.channel("webhook", settings, actor=EDITOR)
    await world.see(FACT)
    await world.run()

    (delivery,) = await world.deliveries()
    assert delivery.state == state
    assert bool(world.server.requests) is (state == "sent")


async def test_an_editor_who_changes_the_settings_of_an_administrator_becomes_their_author(world: World) -> None:
    url = world.server.on("/alerts", OK)
    header = {"Authorization": {"$secret": "CANARY"}}
    await world.channel("webhook", {"url": world.server.on("/elsewhere", OK), "headers": header})
    await world.see(FACT)
    # The delivery was written before the change, and goes by what is there when it is sent.
    await world.commands.channels.update("ops", {"settings": {"url": url, "headers": header}}, EDITOR)
    await world.run()

    assert world.server.requests == []
    (delivery,) = await world.deliveries()
    assert "bound to no hosts" in (delivery.error or "")


async def test_settings_that_change_while_a_message_is_sent_get_no_secret(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.channel("webhook", {"url": world.server.on("/alerts", OK)}, actor=EDITOR)
    headers = {"Authorization": {"$secret": "CANARY"}}
    await world.commands.channels.update(
        "ops", {"settings": {"url": world.server.url("/alerts"), "headers": headers}}, EDITOR
    )
    await world.see(FACT)
    log = world.store.alert_deliveries
    begin = log.begin

    async def begin_and_change(delivery_id: Any) -> Any:
        order = await begin(delivery_id)
        # The settings of the editor are in hand; those that an administrator writes now may use any secret.
        settings = {"url": world.server.url("/other"), "headers": headers}
        await world.commands.channels.update("ops", {"settings": settings}, Actor("ada"))
        return order

    monkeypatch.setattr(log, "begin", begin_and_change)
    await world.run()

    assert world.server.requests == []


async def test_an_editor_who_changes_the_description_leaves_the_settings_to_their_author(world: World) -> None:
    url = world.server.on("/alerts", OK)
    await world.channel("webhook", {"url": url, "headers": {"Authorization": {"$secret": "CANARY"}}})
    await world.commands.channels.update("ops", {"description": "who is on call"}, EDITOR)
    await world.see(FACT)
    await world.run()

    assert await world.states() == [("opened", "sent")]


async def test_channels_reach_private_addresses_only_where_an_administrator_allows_it(world: World) -> None:
    await world.channel("webhook", {"url": f"http://127.0.0.1:{world.server.port + 1}/alerts"})
    await world.see(FACT)
    await world.run()

    (delivery,) = await world.deliveries()
    assert (delivery.state, delivery.attempts) == ("failed", 1)


async def test_a_storm_is_one_alert_and_a_handful_of_messages(world: World) -> None:
    url = world.server.on("/alerts", OK)
    await world.channel("webhook", {"url": url}, repeat_every_seconds=3600)
    # 10,000 executions die in a minute: every second an evaluation finds more of them.
    for second in range(60):
        members = tuple(AlertMember(name=f"job-{number}") for number in range(500))
        count = (second + 1) * 167
        storm = AlertFact(
            kind="dead",
            key="dead:*",
            severity=Severity.CRITICAL,
            sentence=f"{count} are dead",
            members=members,
            count=count,
        )
        await world.see(storm)
        await world.run(timedelta(seconds=1))
    await world.run(timedelta(minutes=30))

    assert len(await world.store.alerts.unresolved()) == 1
    types = [body["type"] for body in world.bodies()]
    assert types == ["alert.opened", "alert.grew"]
    assert world.bodies()[1]["data"]["alert"]["count"] == 60 * 167


# a storm


async def die(world: World, jobs: Sequence[Job], number: int) -> None:
    """So many executions of these jobs die within the next ten seconds."""
    async with world.store.database.transaction() as connection:
        await connection.execute(
            """
            INSERT INTO timeball.finished (id, job_id, state, origin, version, queue, priority, handler, scheduled_for, started_at,
                                           finished_at, attempts, lost, fence)
            SELECT timeball.follow_up_id(job_id, number::text, at), job_id, 'dead', 'schedule', 1, 'default', 50, 'h', at, at, at,
                   1, 0, 1
            FROM (
                SELECT number, ($1::uuid[])[1 + number % cardinality($1)] AS job_id,
                       $2::timestamptz + number * interval '10 seconds' / $3 AS at
                FROM generate_series(1, $3) AS number
            ) AS numbered
            """,
            [job.id for job in jobs],
            world.env.clock.now(),
            number,
        )


@pytest.mark.parametrize("number", [1, 300])
async def test_ten_thousand_executions_that_die_in_a_minute_are_a_handful_of_messages(
    world: World, number: int
) -> None:
    """Of one job, or of hundreds: each kind of fact is one alert, and told once; a group that grows once more in a quarter of an hour."""
    await world.channel("webhook", {"url": world.server.on("/alerts", OK)})
    jobs = [await create(world.store, expect={"max_failures_in_a_row": 2, "max_dead": 2}) for _ in range(number)]
    evaluate = make_queries(world.parts.settings, world.store).alerts.evaluate
    for _ in range(6):
        await die(world, jobs, 10_000 // 6)
        await world.run(timedelta(seconds=10))
        await world.commands.alerts.reconcile(await evaluate())
        await world.run()
    await world.run(timedelta(minutes=20))

    kinds = {"dead_letters", "failing", "too_many_dead"}
    alerts = [alert for alert in await world.store.alerts.unresolved() if alert.fact.kind in kinds]
    told = [body["data"]["alert"]["kind"] for body in world.bodies()]
    assert sorted(alert.fact.kind for alert in alerts) == sorted(kinds)
    assert set(told) >= kinds
    assert len(told) <= 6, told
    sentences = {alert.fact.kind: alert.fact.sentence for alert in alerts}
    assert sentences["dead_letters"].startswith("dead letters: 9996 executions are dead")


# the walk of docs/howto/alerts.md


async def test_a_nightly_job_whose_queue_is_paused_is_told_to_a_webhook_and_a_mailbox_until_it_succeeds(
    open_world: Open,
) -> None:
    office = PostOffice()
    with running(office) as port:
        async with open_world(smtp_url=f"smtp://127.0.0.1:{port}", smtp_from="timeball@example.com") as world:
            await world.channel("webhook", {"url": world.server.on("/alerts", OK)}, queues=["batch"])
            await world.channel("email", {"to": ["ops@example.com"]}, "mail", queues=["batch"])
            find_facts = make_queries(world.parts.settings, world.store).alerts.evaluate
            expect = {"succeed_every": "26h"}
            await world.commands.jobs.create(
                JobSpec(name="nightly", handler="test.echo", schedule="0 2 * * *", queue="batch", expect=expect)
            )

            async def evaluate() -> None:
                await world.commands.alerts.reconcile(await find_facts())
                await world.run()

            await world.run(timedelta(hours=26))
            await evaluate()
            assert world.bodies() == []

            await world.commands.queues.pause("batch", Actor("ana", "release"))
            await world.run(timedelta(hours=26))
            await evaluate()
            (opened,) = world.bodies()
            assert "its queue batch is paused by ana" in opened["data"]["alert"]["sentence"]
            assert "its queue batch is paused by ana" in office.letter().get_content()

            (alert,) = [one for one in await world.store.alerts.unresolved() if one.fact.kind == "no_success"]
            until = world.env.clock.now() + timedelta(hours=2)
            await world.commands.alerts.acknowledge(alert.id, until=until, actor=Actor("bo", "on it"))
            await world.run()

            await world.commands.queues.resume("batch", Actor("ana"))
            await world.run()
            await evaluate()
            told = ["opened", "acknowledged", "resolved"]
            assert [body["type"] for body in world.bodies()] == [f"alert.{word}" for word in told]
            assert await world.states("mail") == [(word, "sent") for word in told]
            assert len(office.envelopes) == len(told)
