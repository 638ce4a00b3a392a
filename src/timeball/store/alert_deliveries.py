"""Deliveries of alerts: written with the transitions that cause them, begun, ended, and read.

A delivery is a row and the one-off job that sends it, with the same id, written in the transaction of the transition: an alert that has
opened has its messages, whatever dies then. The execution brings retries, back-off and the dead letter; the row says what the channel has
heard. The next reminder is written when a delivery begins, once, so no loop watches over open alerts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from timeball.domain.alert_messages import AlertMessage, SendOrder, sample_alert
from timeball.domain.alert_routes import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    MAX_RETRIES,
    SEND_WITHIN,
    AlertDeliveryEvent,
    AlertDeliveryId,
    AlertDeliveryState,
    DeliveryLine,
    EarlierDelivery,
    LeaveOut,
    PlannedAlertDelivery,
    SendLater,
    SendNow,
    decide_delivery,
    format_alert_delivery_id,
    plan_deliveries,
)
from timeball.domain.alerts import DELIVERY_HANDLER, DELIVERY_QUEUE, Alert, AlertId, AlertTransition, format_alert_id
from timeball.domain.execution import Origin
from timeball.domain.job import define_job
from timeball.domain.job_fields import JobSpec
from timeball.domain.search import ResultPage, foreign_cursor, read_cursor, write_cursor
from timeball.domain.values.ids import ExecutionId, JobId
from timeball.store.db.columns import write_audit
from timeball.store.types import FirstExecution

if TYPE_CHECKING:
    from timeball.domain.channels import AlertChannel
    from timeball.domain.execution import ClaimedExecution
    from timeball.domain.job import Job
    from timeball.store.alerts import AlertStore
    from timeball.store.channels import ChannelStore
    from timeball.store.db.database import Database
    from timeball.store.db.pool import Connection
    from timeball.store.enqueue import Enqueuer
    from timeball.store.types import AuditEntry

# Before other work: it is short, and a person waits for it.
_PRIORITY = 90
_MILLISECOND = timedelta(milliseconds=1)
_BY_NUMBER = "alert_delivery"
_LAST_NUMBER = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertDelivery:
    """A delivery as people see it. *next_at* is when it is to be sent, or tried again; *error* is that of its last attempt."""

    id: AlertDeliveryId
    number: int
    channel: str
    alert_id: AlertId | None
    event: AlertDeliveryEvent
    state: AlertDeliveryState
    sentence: str | None
    attempts: int
    created_at: datetime
    next_at: datetime | None
    sent_at: datetime | None
    note: str | None
    error: str | None


class AlertDeliveryStore:
    """The deliveries of this installation."""

    def __init__(
        self, database: Database, enqueuer: Enqueuer, alerts: AlertStore, channels: ChannelStore, shards: int
    ) -> None:
        self._database = database
        self._enqueuer = enqueuer
        self._alerts = alerts
        self._channels = channels
        self._shards = shards

    # written

    async def announce(self, connection: Connection, transitions: Sequence[AlertTransition]) -> None:
        """Write the deliveries that these transitions cause, in their transaction."""
        routes = await self._channels.routes(connection)
        if not routes:
            return
        now: datetime = await self._database.fetch_value("moment", connection)
        earlier: dict[AlertId, list[EarlierDelivery]] = {}
        ids = list({transition.alert.id for transition in transitions})
        for row in await self._database.fetch("deliveries_of_alerts", connection, alert_ids=ids):
            event = AlertDeliveryEvent(row["event"])
            known = EarlierDelivery(channel=row["channel"], event=event, run_at=row["run_at"])
            earlier.setdefault(AlertId(row["alert_id"]), []).append(known)
        await self._add(connection, plan_deliveries(transitions, routes, earlier, now), now)

    async def test(self, channel: AlertChannel, audit: AuditEntry) -> AlertDeliveryId:
        """Send a test to a channel, once: a test that fails is not tried again."""
        note = self._database.env.new_id()

        async def work(connection: Connection) -> AlertDeliveryId:
            now: datetime = await self._database.fetch_value("moment", connection)
            planned = PlannedAlertDelivery(channel=channel.name, alert_id=None, event=AlertDeliveryEvent.TEST)
            (delivery_id,) = await self._add(connection, [planned], now)
            facts = {"delivery": format_alert_delivery_id(delivery_id)}
            subject = f"channel:{channel.name}"
            await write_audit(self._database, connection, note, audit, "channel.test", subject, None, facts)
            return delivery_id

        done: AlertDeliveryId = await self._database.once(work, note)
        return done

    async def _add(
        self, connection: Connection, planned: Sequence[PlannedAlertDelivery], now: datetime
    ) -> list[AlertDeliveryId]:
        if not planned:
            return []
        ids = [AlertDeliveryId(self._database.env.new_id()) for _ in planned]
        await self._database.fetch(
            "add_deliveries",
            connection,
            ids=ids,
            channels=[delivery.channel for delivery in planned],
            alert_ids=[delivery.alert_id for delivery in planned],
            events=[delivery.event.value for delivery in planned],
            run_ats=[delivery.run_at or now for delivery in planned],
        )
        jobs = [self._job(id_, delivery, now) for id_, delivery in zip(ids, planned, strict=True)]
        firsts = [
            FirstExecution(
                id=ExecutionId(job.id),
                job_id=job.id,
                origin=Origin.ENQUEUE,
                run_at=delivery.run_at,
                scheduled_for=delivery.run_at,
            )
            for job, delivery in zip(jobs, planned, strict=True)
        ]
        await self._enqueuer.create(jobs, firsts, connection)
        return ids

    def _job(self, delivery_id: AlertDeliveryId, delivery: PlannedAlertDelivery, now: datetime) -> Job:
        about = None if delivery.alert_id is None else format_alert_id(delivery.alert_id)
        payload = {
            "delivery": format_alert_delivery_id(delivery_id),
            "channel": delivery.channel,
            "event": delivery.event.value,
            "alert": about,
        }
        is_test = delivery.event is AlertDeliveryEvent.TEST
        spec = JobSpec(
            handler=DELIVERY_HANDLER,
            queue=DELIVERY_QUEUE,
            payload=payload,
            priority=_PRIORITY,
            timeout_ms=SEND_WITHIN // _MILLISECOND,
            scheduled_at=delivery.run_at or now,
            max_retries=0 if is_test else MAX_RETRIES,
            initial_backoff_ms=FIRST_PAUSE // _MILLISECOND,
            max_backoff_ms=LONGEST_PAUSE // _MILLISECOND,
        )
        return define_job(spec, JobId(delivery_id), now, self._shards, f"channel:{delivery.channel}")

    # sent

    async def begin(self, delivery_id: AlertDeliveryId) -> SendOrder | SendLater | LeaveOut:
        """What becomes of a delivery that is due. If it is to be sent, the reminder after it is written, unless it was before."""

        async def work(connection: Connection) -> SendOrder | SendLater | LeaveOut:
            await self._database.fetch("lock_line_of_delivery", connection, id=delivery_id)
            row = await self._database.fetch_row("line_of_delivery", connection, id=delivery_id)
            if row is None:
                return LeaveOut("the record of the delivery is gone")
            channel = await self._channels.find(row["channel"], connection)
            if channel is None:
                return await self._leave_out(connection, delivery_id, LeaveOut("the channel was deleted"))
            alert = await self._alert_of(row, connection)
            routes, now = await self._channels.routes(connection), row["moment"]
            decision = decide_delivery(_line_from(row), channel.name, alert, routes, now)
            match decision:
                case SendLater():
                    return decision
                case LeaveOut():
                    return await self._leave_out(connection, delivery_id, decision)
                case SendNow(repeat_at=repeat_at):
                    version = channel.version
                    await self._database.fetch("begin_delivery", connection, id=delivery_id, channel_version=version)
                    if repeat_at is not None and row["begun_at"] is None and alert is not None:
                        await self._remind(connection, channel.name, alert, repeat_at, now)
                    return _order_of(row, channel, alert or sample_alert(channel.name, now))

        return await self._database.repeat(work)

    async def _alert_of(self, row: Any, connection: Connection) -> Alert | None:
        return None if row["alert_id"] is None else await self._alerts.find(AlertId(row["alert_id"]), connection)

    async def _remind(
        self, connection: Connection, channel: str, alert: Alert, run_at: datetime, now: datetime
    ) -> None:
        event = AlertDeliveryEvent.REMINDER
        planned = PlannedAlertDelivery(channel=channel, alert_id=alert.id, event=event, run_at=run_at)
        await self._add(connection, [planned], now)

    async def _leave_out(self, connection: Connection, delivery_id: AlertDeliveryId, decision: LeaveOut) -> LeaveOut:
        await self._database.fetch("leave_out_delivery", connection, id=delivery_id, reason=decision.reason)
        return decision

    async def note_sent(self, delivery_id: AlertDeliveryId) -> None:
        """Note that a message was taken by its channel."""
        await self._database.fetch("note_sent_delivery", id=delivery_id)

    async def note_unheard(self, delivery_id: AlertDeliveryId) -> None:
        """Note that the attempt that has begun did not reach the channel, or was refused by it."""
        await self._database.fetch("note_unheard_delivery", id=delivery_id)

    async def use_secrets(self, claimed: ClaimedExecution, names: Sequence[str], *, is_bound: bool) -> bool:
        """Whether a running delivery may use these secrets; if so, the first use of each by its channel is recorded.

        A channel whose author is not an administrator may use bound secrets only.
        """
        row = await self._database.fetch_row(
            "use_secrets_of_channel",
            id=claimed.id,
            claim_id=claimed.claim_id,
            names=list(names),
            notes=[self._database.env.new_id() for _ in names],
            is_bound=is_bound,
        )
        # Without a row the claim is lost, or the channel has changed since its settings were read.
        return row is not None and bool(row["is_allowed"])

    # read

    async def find(self, delivery_id: AlertDeliveryId) -> AlertDelivery | None:
        """One delivery."""
        row = await self._database.fetch_row("find_delivery", id=delivery_id)
        return None if row is None else _delivery_from(row)

    async def page(self, channel: str, limit: int, cursor: str | None) -> ResultPage[AlertDelivery]:
        """A page of the deliveries of a channel, the latest first."""
        before = _LAST_NUMBER if cursor is None else _number_from(cursor)
        rows = await self._database.fetch("page_deliveries", channel=channel, before=before, limit=limit + 1)
        items = [_delivery_from(row) for row in rows[:limit]]
        more = len(rows) > limit
        return ResultPage(items, write_cursor(_BY_NUMBER, str(items[-1].number), items[-1].id) if more else None)


def _number_from(cursor: str) -> int:
    text = read_cursor(cursor, _BY_NUMBER, 2)[0] or ""
    if not text.isdecimal() or int(text) > _LAST_NUMBER:
        raise foreign_cursor()
    return int(text)


def _line_from(row: Any) -> DeliveryLine:
    return DeliveryLine(
        event=AlertDeliveryEvent(row["event"]),
        is_sent=row["sent_at"] is not None,
        was_heard=row["was_heard"],
        is_overtaken=row["is_overtaken"],
        must_wait=row["must_wait"],
    )


def _order_of(row: Any, channel: AlertChannel, alert: Alert) -> SendOrder:
    message = AlertMessage(
        delivery_id=row["id"],
        event=AlertDeliveryEvent(row["event"]),
        alert=alert,
        channel=channel.name,
        at=row["moment"],
    )
    return SendOrder(channel=channel, message=message, may_have_arrived=row["heard_at"] is not None)


def _delivery_from(row: Any) -> AlertDelivery:
    state, alert_id = _state_of(row), row["alert_id"]
    is_ahead = state in (AlertDeliveryState.WAITING, AlertDeliveryState.RETRYING)
    return AlertDelivery(
        id=AlertDeliveryId(row["id"]),
        number=row["number"],
        channel=row["channel"],
        alert_id=None if alert_id is None else AlertId(alert_id),
        event=AlertDeliveryEvent(row["event"]),
        state=state,
        sentence=row["sentence"],
        attempts=row["failures"] + (1 if row["sent_at"] is not None else 0),
        created_at=row["created_at"],
        next_at=(row["next_at"] or row["run_at"]) if is_ahead else None,
        sent_at=row["sent_at"],
        note=row["left_out"],
        error=None if row["sent_at"] is not None else row["error"],
    )


_STATES = {
    "scheduled": AlertDeliveryState.WAITING,
    "queued": AlertDeliveryState.WAITING,
    "running": AlertDeliveryState.SENDING,
    "retrying": AlertDeliveryState.RETRYING,
}


def _state_of(row: Any) -> AlertDeliveryState:
    if row["sent_at"] is not None:
        return AlertDeliveryState.SENT
    if row["left_out"] is not None:
        return AlertDeliveryState.LEFT_OUT
    # An execution that has ended without a message, or whose record is gone.
    return _STATES.get(row["state"], AlertDeliveryState.FAILED)
