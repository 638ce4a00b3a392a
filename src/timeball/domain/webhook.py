"""Outgoing webhooks: which events go to which address, what is sent, and what follows an attempt to send it.

A webhook gets the events of the change stream that pass its filter. Each of them becomes a delivery, which is tried until the address
answers with 2xx, or for about three days. Deliveries about the same subject, such as one execution, are sent one after the other, in
the order of the events; what is given up does not hold up the next. The id of a message is that of its event, however often it is sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NewType
from uuid import UUID

import orjson

from timeball.domain.change_event import ChangeEvent, EventFilter, change_event_id, cloud_event
from timeball.domain.values.field_errors import did_you_mean, list_choices, nearest_names
from timeball.domain.values.ids import format_id, parse_id
from timeball.domain.values.text import check_description, check_label
from timeball.errors import InvalidInput, NotFound, quote_text

WebhookId = NewType("WebhookId", UUID)
DeliveryId = NewType("DeliveryId", UUID)

# Every type that a webhook can ask for, and what it says. An event of the change stream that has such a type is sent as it is.
WEBHOOK_EVENT_TYPES: Mapping[str, str] = {
    "execution.succeeded": "an execution succeeded",
    "execution.retrying": "an attempt failed, timed out or was lost, and the execution will be tried again",
    "execution.dead": "an execution has no attempts left, or must not be tried again",
    "execution.cancelled": "an execution was cancelled",
    "execution.skipped": "an execution did not run",
    "job.changed": "a job was created, changed, paused, resumed or deleted; an enqueue is no change",
    "queue.changed": "a queue was paused, resumed, limited or purged",
    "alert.opened": "a fact that a person should act upon has opened an alert",
    "alert.acknowledged": "a person knows of an alert",
    "alert.unacknowledged": "an acknowledgement was taken back, or is over",
    "alert.severity_changed": "an alert became more or less severe",
    "alert.resolved": "the fact of an alert is gone",
}
# Sent to every webhook, whatever it asks for: events were left out, because their records were deleted before they were read.
EVENTS_MISSED = "events.missed"
# What the test of a webhook sends.
WEBHOOK_TEST = "webhook.test"

# Actions about a job that do not change it.
_NO_CHANGES = frozenset({"job.trigger", "job.backfill"})

MAX_WEBHOOKS = 50
MAX_URL_LENGTH = 2_000
# A webhook with more deliveries than this that wait is disabled: its address has been out of reach for long, or is too slow.
MAX_WAITING = 100_000
MAX_BODY_BYTES = 64 * 1024
# The attempts of a delivery that are shown.
MAX_ATTEMPTS_KEPT = 20
SEND_TIMEOUT = timedelta(seconds=15)
DELIVERIES_KEPT_FOR = timedelta(days=7)
LONGEST_ROTATION = timedelta(days=7)

# The pauses after each attempt that failed; after the last one the delivery is given up, some three days after the event.
RETRY_PAUSES = (
    timedelta(seconds=5),
    timedelta(minutes=5),
    timedelta(minutes=30),
    timedelta(hours=2),
    timedelta(hours=5),
    timedelta(hours=10),
    timedelta(hours=14),
    timedelta(hours=20),
    timedelta(hours=24),
)
_LONGEST_WAIT = timedelta(days=1)
# Each pause is up to this much longer, so that deliveries which failed together do not come back together.
_JITTER = 0.1
_GONE = 410


class WebhookFormat(StrEnum):
    """The shape of the bodies."""

    STANDARD = "standard"
    CLOUDEVENTS = "cloudevents"


class WebhookState(StrEnum):
    """Whether a webhook gets events."""

    ACTIVE = "active"
    DISABLED = "disabled"


class DeliveryState(StrEnum):
    """What has become of a delivery."""

    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSpec:
    """What a caller says about a webhook; `check` makes sure that it can be used."""

    url: str
    filter: EventFilter = EventFilter()
    format: WebhookFormat = WebhookFormat.STANDARD
    description: str | None = None

    def check(self) -> WebhookSpec:
        """This spec, or InvalidInput. Whether the address may be reached is decided where it is sent from."""
        for pattern in self.filter.types:
            check_event_type(pattern)
        for name in ("queue", "handler", "tag"):
            value = getattr(self.filter, name)
            if value is not None:
                check_label(value, name)
        if self.description is not None:
            check_description(self.description, "description", longest=1_000)
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookEndpoint:
    """A webhook as it is stored, without its secrets.

    *previous_until*: until then messages are signed by the secret before the last rotation, too. *waiting* is the number of deliveries
    that are not over; *failing_since* is the first failed attempt since the last success.
    """

    id: WebhookId
    spec: WebhookSpec
    state: WebhookState
    disabled_reason: str | None = None
    previous_until: datetime | None = None
    waiting: int = 0
    failing_since: datetime | None = None
    succeeded_at: datetime | None = None
    version: int = 1
    created_by: str
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryAttempt:
    """One try of a delivery: when it ended, what the address answered, and what went wrong."""

    at: datetime
    status: int | None
    error: str | None
    duration_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookDelivery:
    """One event on its way to one webhook. *next_at* is None if it is over, waits for an earlier one of its subject, or is held back."""

    id: DeliveryId
    webhook_id: WebhookId
    event_id: UUID
    type: str
    subject: str
    occurred_at: datetime
    body: str
    state: DeliveryState
    attempts: int
    next_at: datetime | None
    created_at: datetime
    finished_at: datetime | None
    tries: tuple[DeliveryAttempt, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OutgoingMessage:
    """A delivery that is to be sent now, and the secrets that sign it."""

    delivery_id: DeliveryId
    webhook_id: WebhookId
    message_id: str
    type: str
    url: str
    format: WebhookFormat
    body: bytes
    attempt: int
    created_at: datetime
    secrets: tuple[str, ...] = field(repr=False)

    @property
    def content_type(self) -> str:
        return "application/json" if self.format is WebhookFormat.STANDARD else "application/cloudevents+json"


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookAnswer:
    """What an address answered; without a *status*, *error* says why there was no answer."""

    status: int | None = None
    error: str | None = None
    retry_after: timedelta | None = None

    @property
    def is_success(self) -> bool:
        """2xx, and nothing else: a redirect is not followed."""
        return self.status is not None and 200 <= self.status < 300


@dataclass(frozen=True, slots=True)
class SentMessage:
    """A message that was sent, the answer to it, and how long that took."""

    message: OutgoingMessage
    answer: WebhookAnswer
    took: timedelta


@dataclass(frozen=True, slots=True)
class DeliveryDecision:
    """What follows an attempt: the state of the delivery, the pause before the next attempt, and why its webhook is disabled, if it is."""

    state: DeliveryState
    pause: timedelta | None = None
    disables: str | None = None


def decide_delivery(sent: SentMessage, chance: float, *, is_failing_throughout: bool) -> DeliveryDecision:
    """What follows an attempt; *is_failing_throughout*: no message to this webhook has succeeded since this one was first tried."""
    answer, attempt = sent.answer, sent.message.attempt
    if answer.is_success:
        return DeliveryDecision(DeliveryState.DELIVERED)
    if sent.message.type == WEBHOOK_TEST:
        return DeliveryDecision(DeliveryState.FAILED)
    if answer.status == _GONE:
        return DeliveryDecision(DeliveryState.FAILED, disables="the address answered 410 Gone")
    if attempt <= len(RETRY_PAUSES):
        pause = RETRY_PAUSES[attempt - 1] * (1 + _JITTER * chance)
        return DeliveryDecision(DeliveryState.PENDING, max(pause, min(answer.retry_after or pause, _LONGEST_WAIT)))
    reason = f"no message got through in {attempt} attempts over three days" if is_failing_throughout else None
    return DeliveryDecision(DeliveryState.FAILED, disables=reason)


def check_event_type(pattern: str) -> str:
    """A type that a webhook can ask for, or a group of them such as `execution.*`."""
    kinds = {f"{name.partition('.')[0]}.*" for name in WEBHOOK_EVENT_TYPES}
    if pattern in WEBHOOK_EVENT_TYPES or pattern in kinds or pattern == "*":
        return pattern
    raise InvalidInput(
        f"events has {quote_text(pattern, 60)!r}, expected {list_choices([*WEBHOOK_EVENT_TYPES, *sorted(kinds)])}",
        hint=did_you_mean(nearest_names(pattern, WEBHOOK_EVENT_TYPES)) or None,
        field="events",
    )


def published_event(event: ChangeEvent) -> ChangeEvent | None:
    """An event of the change stream as webhooks know it; None if they do not."""
    if event.type in WEBHOOK_EVENT_TYPES:
        return event
    kind, _, what = event.type.partition(".")
    if kind == "attempt":
        if not event.data.get("will_retry"):
            return None
        data = {name: value for name, value in event.data.items() if name != "will_retry"}
        return replace(event, type="execution.retrying", data=data | {"outcome": what})
    changed = f"{kind}.changed"
    if changed not in WEBHOOK_EVENT_TYPES or event.type in _NO_CHANGES:
        return None
    return replace(event, type=changed, data={"action": event.type, **event.data})


def missed_event(since: datetime, until: datetime, reason: str) -> ChangeEvent:
    """The event that says that the events of a span were not read."""
    return ChangeEvent(
        id=change_event_id(until, EVENTS_MISSED, since),
        type=EVENTS_MISSED,
        at=until,
        subject="events",
        data={"since": since, "until": until, "reason": reason},
    )


def trial_event(event_id: UUID, webhook_id: WebhookId, at: datetime) -> ChangeEvent:
    """The event that the test of a webhook sends."""
    return ChangeEvent(
        id=event_id, type=WEBHOOK_TEST, at=at, subject=format_webhook_id(webhook_id), data={"message": "It works."}
    )


def body_of(event: ChangeEvent, format: WebhookFormat) -> str:
    """The body that tells of an event: ids and a few facts, and never a payload, a result or the text of an error."""
    if format is WebhookFormat.CLOUDEVENTS:
        document = cloud_event(event)
    else:
        about = {"job_id": None if event.job_id is None else format_id("job", event.job_id)}
        data = {"subject": event.subject, **about, "queue": event.queue, "handler": event.handler, **event.data}
        document = {"type": event.type, "timestamp": event.at, "data": data}
    return orjson.dumps(document, option=orjson.OPT_UTC_Z).decode()


def format_webhook_id(value: UUID) -> str:
    """The id of a webhook with its prefix."""
    return format_id("whk", value)


def format_delivery_id(value: UUID) -> str:
    """The id of a delivery with its prefix."""
    return format_id("dlv", value)


def parse_webhook_id(text: str) -> WebhookId:
    """The id of a webhook; NotFound if it is none."""
    return WebhookId(_parse_reference("whk", "webhook", text))


def parse_delivery_id(text: str) -> DeliveryId:
    """The id of a delivery; NotFound if it is none."""
    return DeliveryId(_parse_reference("dlv", "delivery", text))


def _parse_reference(prefix: str, kind: str, text: str) -> UUID:
    try:
        return parse_id(prefix, text)
    except InvalidInput:
        raise NotFound(kind, quote_text(text)) from None
