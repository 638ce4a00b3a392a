"""What a channel is told of an alert: JSON of a webhook, blocks of Slack, events of PagerDuty, a mail, variables of a command.

A message becomes the call of a built-in handler (`channel_call`), which sends it: what that refuses, no channel can do.
The id of a delivery is the id of its message, however often it is sent; the id of an alert is the key by which PagerDuty knows an incident.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import orjson

from timeball.domain.alert_routes import AlertDeliveryEvent, format_alert_delivery_id
from timeball.domain.alerts import Alert, AlertFact, AlertId, AlertMember, Severity, format_alert_id
from timeball.domain.channels import AlertChannel, ChannelKind
from timeball.domain.scheduling.civil_time import format_instant
from timeball.domain.values.ids import format_job_id
from timeball.domain.values.text import shorten_text
from timeball.domain.values.wording import counted, duration_in_words

PAGERDUTY_URLS: Final = {
    "us": "https://events.pagerduty.com/v2/enqueue",
    "eu": "https://events.eu.pagerduty.com/v2/enqueue",
}
# What the services take at most.
_SLACK_HEADER, _SLACK_SECTION = 150, 3_000
_PAGERDUTY_SUMMARY = 1_024
_MOST_NAMED = 20
_SUBJECT = 200
_COLOURS: Final = {Severity.CRITICAL: "\N{LARGE RED CIRCLE}", Severity.WARNING: "\N{LARGE ORANGE CIRCLE}"}
_LINE_BREAKS = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertMessage:
    """What a delivery tells: *event* of an alert, at an instant. *link* leads to the alert, if the address of the dashboard is known."""

    delivery_id: UUID
    event: AlertDeliveryEvent
    alert: Alert
    channel: str
    at: datetime
    link: str | None = None

    @property
    def id(self) -> str:
        """The id of the message: that of its delivery."""
        return format_alert_delivery_id(self.delivery_id)

    @property
    def title(self) -> str:
        """The message in a line."""
        alert, sentence = self.alert, one_line(self.alert.fact.sentence)
        match self.event:
            case AlertDeliveryEvent.OPENED | AlertDeliveryEvent.WORSE | AlertDeliveryEvent.GREW:
                return f"{alert.fact.severity.capitalize()}: {sentence}"
            case AlertDeliveryEvent.REMINDER:
                since = alert.opened_at or alert.first_seen_at
                return f"Still open for {duration_in_words(self.at - since)}: {sentence}"
            case AlertDeliveryEvent.ACKNOWLEDGED:
                who = "" if alert.acknowledgement is None else f" by {one_line(alert.acknowledgement.by)}"
                return f"Acknowledged{who}: {sentence}"
            case AlertDeliveryEvent.RESOLVED:
                return f"Resolved: {sentence}"
            case AlertDeliveryEvent.TEST:
                return f"Test: {sentence}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SendOrder:
    """A message that is to be sent to a channel now. *may_have_arrived*: an earlier attempt had no clear end."""

    channel: AlertChannel
    message: AlertMessage
    may_have_arrived: bool = False


def sample_alert(channel: str, now: datetime) -> Alert:
    """The alert that a test of a channel tells of."""
    return Alert(
        id=AlertId(UUID(int=0)),
        fact=AlertFact(
            kind="test",
            key="test",
            severity=Severity.WARNING,
            sentence=f"this message tests the channel {channel}",
            advice="Nothing is wrong, and nothing is to be done.",
        ),
        first_seen_at=now,
        last_seen_at=now,
        opened_at=now,
    )


def one_line(text: str) -> str:
    """Text without line breaks and other control characters, and without what a mail would take for an encoded word."""
    return _LINE_BREAKS.sub(" ", text).replace("=?", "= ?").strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelCall:
    """The call of a built-in handler that sends a message. *variables* are those that a command is told of the alert."""

    handler: str
    payload: Mapping[str, Any]
    variables: Mapping[str, str] = field(default_factory=dict)


def channel_call(channel: AlertChannel, message: AlertMessage) -> ChannelCall:
    """What sends a message to a channel."""
    settings, handler = channel.settings, channel.kind.handler
    match channel.kind:
        case ChannelKind.WEBHOOK:
            return ChannelCall(handler=handler, payload={**settings, "json": webhook_body(message)})
        case ChannelKind.SLACK:
            return ChannelCall(handler=handler, payload={"url": settings["url"], "json": slack_body(message)})
        case ChannelKind.PAGERDUTY:
            url = settings.get("url") or PAGERDUTY_URLS[settings.get("region", "us")]
            body = pagerduty_event(message, settings["routing_key"])
            return ChannelCall(handler=handler, payload={"url": url, "json": body})
        case ChannelKind.EMAIL:
            mail = {"subject": shorten_text(message.title, _SUBJECT), "message": mail_text(message)}
            return ChannelCall(handler=handler, payload={**settings, **mail})
        case ChannelKind.COMMAND:
            return ChannelCall(handler=handler, payload=settings, variables=command_variables(message))


def webhook_body(message: AlertMessage) -> dict[str, Any]:
    """The JSON that a webhook gets: type, instant and data, as Standard Webhooks recommends."""
    return {
        "type": f"alert.{message.event}",
        "timestamp": format_instant(message.at),
        "data": {
            "delivery": message.id,
            "channel": message.channel,
            "title": message.title,
            "link": message.link,
            "alert": alert_facts(message.alert),
        },
    }


def alert_facts(alert: Alert) -> dict[str, Any]:
    """An alert as messages have it."""
    fact, acknowledgement = alert.fact, alert.acknowledgement
    return {
        "id": format_alert_id(alert.id),
        "kind": fact.kind,
        "key": fact.key,
        "severity": fact.severity.value,
        "state": alert.state.value,
        "sentence": fact.sentence,
        "advice": fact.advice,
        "command": fact.command,
        "why": fact.why,
        "count": fact.count,
        "members": [_member(member) for member in fact.members[:_MOST_NAMED]],
        "queues": sorted(fact.queues)[:_MOST_NAMED],
        "tags": sorted(fact.tags)[:_MOST_NAMED],
        "opened_at": _instant(alert.opened_at),
        "acknowledged_by": None if acknowledgement is None else acknowledgement.by,
        "acknowledged_until": None if acknowledgement is None else _instant(acknowledgement.until),
        "resolved_at": _instant(alert.resolved_at),
    }


def _member(member: AlertMember) -> dict[str, Any]:
    return {
        "name": member.name,
        "job_id": None if member.job_id is None else format_job_id(member.job_id),
        "queue": member.queue,
        "tags": list(member.tags),
    }


def _instant(at: datetime | None) -> str | None:
    return None if at is None else format_instant(at)


def slack_body(message: AlertMessage) -> dict[str, Any]:
    """The message of Slack: blocks, and the text that notifications show."""
    fact = message.alert.fact
    is_over = message.event is AlertDeliveryEvent.RESOLVED
    mark = "\N{LARGE GREEN CIRCLE}" if is_over else _COLOURS[fact.severity]
    blocks: list[dict[str, Any]] = [
        {
            "type": "header",
            "text": {"type": "plain_text", "text": shorten_text(f"{mark} {message.title}", _SLACK_HEADER)},
        }
    ]
    blocks += [{"type": "section", "text": _mrkdwn(text)} for text in _sections(message)]
    blocks.append({"type": "context", "elements": [_mrkdwn(_footer(message))]})
    if message.link is not None:
        button = {"type": "button", "text": {"type": "plain_text", "text": "Open"}, "url": message.link}
        blocks.append({"type": "actions", "elements": [button]})
    return {"text": _escaped(message.title), "blocks": blocks}


def _mrkdwn(text: str) -> dict[str, Any]:
    return {"type": "mrkdwn", "text": shorten_text(text, _SLACK_SECTION)}


def _escaped(text: str) -> str:
    """Text in which Slack sees no mention, link or channel."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _sections(message: AlertMessage) -> list[str]:
    fact = message.alert.fact
    texts = [_escaped(fact.sentence)]
    if fact.why:
        texts.append(_escaped(fact.why))
    if message.event.calls or message.event is AlertDeliveryEvent.TEST:
        texts += [_escaped(fact.advice)] if fact.advice else []
        # A grave accent would end the code before its end.
        texts += [f"`{_escaped(fact.command.replace('`', ''))}`"] if fact.command else []
    return texts


def _footer(message: AlertMessage) -> str:
    opened = message.alert.opened_at or message.alert.first_seen_at
    words = [f"opened {format_instant(opened)}"]
    if message.alert.resolved_at is not None:
        words.append(f"resolved after {duration_in_words(message.alert.resolved_at - opened)}")
    if message.alert.fact.count > 1:
        words.append(counted(message.alert.fact.count, "fact"))
    return _escaped(" · ".join([*words, format_alert_id(message.alert.id)]))


_PAGERDUTY_ACTIONS: Final = {AlertDeliveryEvent.ACKNOWLEDGED: "acknowledge", AlertDeliveryEvent.RESOLVED: "resolve"}


def pagerduty_event(message: AlertMessage, routing_key: Any) -> dict[str, Any]:
    """An event of Events API v2. The id of the alert is its dedup_key, so that all of its messages are one incident."""
    alert, fact = message.alert, message.alert.fact
    action = _PAGERDUTY_ACTIONS.get(message.event, "trigger")
    # A test opens an incident of its own each time: it would be lost in one that is resolved.
    key = message.id if message.event is AlertDeliveryEvent.TEST else format_alert_id(alert.id)
    event: dict[str, Any] = {"routing_key": routing_key, "event_action": action, "dedup_key": key}
    if action != "trigger":
        return event
    event["payload"] = {
        "summary": shorten_text(message.title, _PAGERDUTY_SUMMARY),
        "source": "timeball",
        "severity": fact.severity.value,
        "timestamp": format_instant(alert.opened_at or alert.first_seen_at),
        "component": next(iter(sorted(fact.queues)), None) or "timeball",
        "class": fact.kind,
        "custom_details": {name: value for name, value in alert_facts(alert).items() if value not in (None, [])},
    }
    event["client"] = "Timeball"
    if message.link is not None:
        event["client_url"] = message.link
        event["links"] = [{"href": message.link, "text": "Open the alert"}]
    return event


def mail_text(message: AlertMessage) -> str:
    """The text of a mail."""
    fact, members = message.alert.fact, message.alert.fact.members
    parts = [message.title, fact.why, fact.advice, None if fact.command is None else f"    {fact.command}"]
    if fact.count > 1:
        names = [f"  {one_line(member.name)}" for member in members[:_MOST_NAMED]]
        left = fact.count - len(names)
        parts.append("\n".join([*names, f"  and {left:,} more"] if left > 0 else names))
    parts += [message.link, _mail_footer(message)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _mail_footer(message: AlertMessage) -> str:
    alert = message.alert
    lines = [f"Alert      {format_alert_id(alert.id)} ({alert.fact.kind}, {alert.fact.severity})"]
    lines.append(f"Opened     {format_instant(alert.opened_at or alert.first_seen_at)}")
    if alert.resolved_at is not None:
        lines.append(f"Resolved   {format_instant(alert.resolved_at)}")
    return "\n".join([*lines, f"Message    {message.id} to the channel {message.channel}"])


def command_variables(message: AlertMessage) -> dict[str, str]:
    """What a command is told, as environment variables; TIMEBALL_ALERT_JSON has all that a webhook would get."""
    alert, fact = message.alert, message.alert.fact
    told = {
        "EVENT": message.event.value,
        "DELIVERY": message.id,
        "CHANNEL": message.channel,
        "TITLE": message.title,
        "ID": format_alert_id(alert.id),
        "KIND": fact.kind,
        "SEVERITY": fact.severity.value,
        "STATE": alert.state.value,
        "SENTENCE": fact.sentence,
        "ADVICE": fact.advice or "",
        "COUNT": str(fact.count),
        "QUEUES": ",".join(sorted(fact.queues)[:_MOST_NAMED]),
        "OPENED_AT": _instant(alert.opened_at) or "",
        "RESOLVED_AT": _instant(alert.resolved_at) or "",
        "LINK": message.link or "",
        "JSON": orjson.dumps(webhook_body(message)).decode(),
    }
    return {f"TIMEBALL_ALERT_{name}": value.replace("\0", "") for name, value in told.items()}
