"""`alert.deliver`: send one message of an alert to one channel. Timeball itself enqueues it; see domain/alert_routes.py.

The payload holds ids only. What is sent where is read when it is sent: the settings of the channel, which name secrets and hold none, and
the alert as it is then. The message is a call of `http.webhook`, `email.send` or `shell.command`, so all that these refuse is refused here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

import orjson
from pydantic import ConfigDict, Field

from timeball.current import RUNNING, AttemptContext, Retry, Snooze, current
from timeball.domain.alerts import DELIVERY_HANDLER, DELIVERY_QUEUE
from timeball.domain.execution import ClaimedExecution, Origin
from timeball.domain.values.ids import ClaimId, ExecutionId, JobId, parse_id
from timeball.env import Env
from timeball.errors import TimeballError
from timeball.handlers.binding import HandlerRefused, Payload

if TYPE_CHECKING:
    from timeball.domain.alert_messages import ChannelCall, SendOrder
    from timeball.domain.alert_routes import AlertDeliveryId, LeaveOut, SendLater


class AlertDeliveryPayload(Payload):
    """Which delivery it is; the rest is for people."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "delivery": "ald_01JCV3V1KC8M2T4QZ5R7N9X0AB",
                    "channel": "on-call",
                    "event": "opened",
                    "alert": "alr_01JCV3V1KC8M2T4QZ5R7N9X0AB",
                }
            ]
        }
    )

    delivery: str = Field(max_length=100, description="The id of the delivery, which is that of this job.")
    channel: str = Field(max_length=200, description="The channel it goes to.")
    event: str = Field(max_length=100, description="What it tells.")
    alert: str | None = Field(default=None, max_length=100, description="The alert; none for a test.")


def channel_of(payload: str) -> str | None:
    """The channel of a stored payload: a channel that is down uses up its own budget of retries, and not that of the others."""
    try:
        return f"channel {orjson.loads(payload)['channel']}"
    except (ValueError, KeyError, TypeError):
        return None


class DeliveryLog(Protocol):
    """The deliveries, as the store keeps them."""

    async def begin(self, delivery_id: AlertDeliveryId) -> SendOrder | SendLater | LeaveOut:
        """What becomes of a delivery that is due."""

    async def note_sent(self, delivery_id: AlertDeliveryId) -> None:
        """Note that a message was taken by its channel."""

    async def note_unheard(self, delivery_id: AlertDeliveryId) -> None:
        """Note that the attempt that has begun did not reach the channel, or was refused by it."""


class ChannelSender(Protocol):
    """Sends what a channel is told, by one of the built-in handlers."""

    async def __call__(self, call: ChannelCall, message_id: str) -> Mapping[str, Any]:
        """Send it, and return what the other side said."""


class ChannelUnavailable(TimeballError):
    """This worker cannot send to channels of this kind; another one may."""

    code = "channel_unavailable"


class AlertSender:
    """Send one message of an alert to one channel."""

    def __init__(
        self, deliveries: Callable[[], DeliveryLog] | None, send: ChannelSender, public_url: str | None = None
    ) -> None:
        self._deliveries = deliveries
        self._send = send
        self._public_url = public_url

    async def __call__(self, payload: AlertDeliveryPayload) -> dict[str, Any]:
        from timeball.domain.alert_routes import AlertDeliveryId, LeaveOut, SendLater

        delivery_id = AlertDeliveryId(parse_id("ald", payload.delivery))
        # A job that a person has written is no delivery, whatever delivery it names.
        if delivery_id != RUNNING.get().claimed.job_id:
            raise HandlerRefused(
                f"{payload.delivery} is not the delivery of this job; Timeball itself enqueues alert.deliver, "
                "and timeball channels test NAME tries a channel"
            )
        if self._deliveries is None:
            raise HandlerRefused("this process knows no deliveries")
        deliveries = self._deliveries()
        step = await deliveries.begin(delivery_id)
        match step:
            case LeaveOut(reason=reason):
                current.log(f"not sent: {reason}")
                return {"sent": False, "reason": reason}
            case SendLater(after=after):
                raise Snooze(after)
        return await self._send_now(deliveries, delivery_id, step)

    async def _send_now(
        self, deliveries: DeliveryLog, delivery_id: AlertDeliveryId, order: SendOrder
    ) -> dict[str, Any]:
        from timeball.domain.alert_messages import channel_call

        message = replace(order.message, link=self._link(order))
        try:
            answer = await self._send(channel_call(order.channel, message), message.id)
        except (TimeballError, Retry) as error:
            if not order.may_have_arrived and not _may_have_arrived(error):
                await deliveries.note_unheard(delivery_id)
            raise
        await deliveries.note_sent(delivery_id)
        return {"sent": True, "message": message.id, "title": message.title, "answer": dict(answer)}

    def _link(self, order: SendOrder) -> str | None:
        if self._public_url is None or order.message.event == "test":
            return self._public_url
        from timeball.domain.alerts import format_alert_id

        return f"{self._public_url.rstrip('/')}/alerts/{quote(format_alert_id(order.message.alert.id))}"


async def deliver_unclaimed(
    send: Callable[[AlertDeliveryPayload], Awaitable[Any]], delivery_id: AlertDeliveryId, attempt: int, env: Env
) -> None:
    """Send a delivery that no worker has claimed. For all that is called it is a delivery like any other, of the same queue and handler."""
    from timeball.domain.alert_routes import SEND_WITHIN, format_alert_delivery_id

    now = env.clock.now()
    claimed = ClaimedExecution(
        id=ExecutionId(delivery_id),
        job_id=JobId(delivery_id),
        fence=attempt,
        attempt=attempt,
        lost=0,
        handler=DELIVERY_HANDLER,
        payload="{}",
        run_at=now,
        scheduled_for=now,
        timeout_ms=SEND_WITHIN // timedelta(milliseconds=1),
        queue=DELIVERY_QUEUE,
        priority=0,
        origin=Origin.ENQUEUE,
        version=1,
        job_name=None,
        expires_at=None,
        meta=None,
        claim_id=ClaimId(env.new_id()),
        stop=None,
    )
    # For this task alone, and what it calls.
    token = RUNNING.set(AttemptContext(claimed, env.clock, lambda _context: _NoSink()))
    try:
        await send(AlertDeliveryPayload(delivery=format_alert_delivery_id(delivery_id), channel="", event=""))
    finally:
        RUNNING.reset(token)


class _NoSink:
    """Keeps no log: the execution whose log it would be does not exist."""

    def emit_log(self, at: datetime, level: str, message: str) -> None:
        pass

    def report_progress(self, fraction: float, note: str | None) -> None:
        pass

    def keep_trace(self, words: dict[str, str]) -> None:
        pass


def _may_have_arrived(error: BaseException) -> bool:
    """Whether the other side may have taken the message although the attempt failed. A program that failed has run."""
    if isinstance(error, Retry):
        error = error.__cause__ or error
    return getattr(error, "may_have_arrived", not isinstance(error, HandlerRefused | ChannelUnavailable | Retry))
