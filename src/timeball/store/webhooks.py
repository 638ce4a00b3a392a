"""Outgoing webhooks: their settings, each change audited; the deliveries that are made of the change stream; and what became of them.

The changes are read and the deliveries written in one transaction with the position behind them, so a crash neither loses nor doubles an
event. Whatever adds deliveries and whatever ends them locks their webhook first, so that one that waits for another is always released.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import orjson

from timeball.domain.change_event import ChangeEvent, EventFilter
from timeball.domain.search import ResultPage, read_cursor, write_cursor
from timeball.domain.values.ids import JobId, format_id
from timeball.domain.wakeup import Wakeup
from timeball.domain.webhook import (
    MAX_ATTEMPTS_KEPT,
    MAX_WAITING,
    MAX_WEBHOOKS,
    SEND_TIMEOUT,
    DeliveryAttempt,
    DeliveryDecision,
    DeliveryId,
    DeliveryState,
    OutgoingMessage,
    SentMessage,
    WebhookDelivery,
    WebhookEndpoint,
    WebhookFormat,
    WebhookId,
    WebhookSpec,
    WebhookState,
    body_of,
    decide_delivery,
    format_delivery_id,
    format_webhook_id,
    missed_event,
    published_event,
    trial_event,
)
from timeball.errors import Conflict, NotFound
from timeball.store.db.columns import write_audit
from timeball.store.freezes import read_tags
from timeball.store.types import AuditEntry

if TYPE_CHECKING:
    from timeball.store.changes import ChangeStream
    from timeball.store.db.database import Database
    from timeball.store.db.notifier import Notifier
    from timeball.store.db.pool import Connection
    from timeball.store.types import RecordedChange

# Each transaction may have recorded some hundred outcomes.
_TRANSACTIONS = 200
# History is kept for days: a position that is younger has missed nothing.
_MAY_HAVE_MISSED = timedelta(hours=1)
# A process that sends a delivery is done with it by then, or dead.
_CLAIM_PATIENCE = SEND_TIMEOUT * 2
_TRIMMED_AT_ONCE = 5_000
_BY_NUMBER = "webhook deliveries"
_LAST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class DisabledWebhook:
    """A webhook that was disabled because of what its address did, and why."""

    id: WebhookId
    reason: str


@dataclass(frozen=True, slots=True)
class RecordedEvents:
    """One round of recording: how many deliveries were added, and whether there is more to read, or any webhook at all."""

    added: int = 0
    has_more: bool = False
    has_webhooks: bool = True
    disabled: Sequence[DisabledWebhook] = field(default_factory=tuple)


class WebhookStore:
    """The webhooks of this installation."""

    def __init__(self, database: Database, notifier: Notifier, changes: ChangeStream) -> None:
        self._database = database
        self._notifier = notifier
        self._changes = changes

    # settings

    async def all(self) -> list[WebhookEndpoint]:
        """All webhooks, in the order in which they were created."""
        return [_webhook_from(row) for row in await self._database.fetch("list_webhooks")]

    async def find(self, webhook_id: WebhookId) -> WebhookEndpoint | None:
        """One webhook."""
        row = await self._database.fetch_row("find_webhook", id=webhook_id)
        return None if row is None else _webhook_from(row)

    async def add(
        self, webhook_id: WebhookId, spec: WebhookSpec, secret: str, created_by: str, audit: AuditEntry
    ) -> WebhookEndpoint:
        """Insert a webhook; Conflict if there are too many. It gets what is recorded after this."""
        note = self._database.env.new_id()

        async def work(connection: Connection) -> WebhookEndpoint:
            await self._database.fetch("begin_webhook_position", connection)
            number = await self._database.fetch_value("count_webhooks", connection)
            if number >= MAX_WEBHOOKS:
                raise Conflict(
                    f"there are {number} webhooks, expected at most {MAX_WEBHOOKS}",
                    hint="delete one that is not needed, or let one address get the events of several",
                )
            row = await self._database.fetch_row(
                "add_webhook", connection, id=webhook_id, secret=secret, created_by=created_by, **_columns(spec)
            )
            return await self._audited(connection, note, audit, "webhook.create", None, row)

        return await self._written(work, note)

    async def change(
        self, webhook_id: WebhookId, decide: Callable[[WebhookEndpoint], WebhookEndpoint], audit: AuditEntry
    ) -> WebhookEndpoint:
        """Replace a webhook by what *decide* makes of it; NotFound if there is none."""
        note = self._database.env.new_id()

        async def work(connection: Connection) -> WebhookEndpoint:
            await self._database.fetch("begin_webhook_position", connection)
            before = await self._locked(connection, webhook_id)
            after = decide(before)
            row: Any = None
            if after.spec != before.spec:
                row = await self._database.fetch_row("write_webhook", connection, id=webhook_id, **_columns(after.spec))
            if after.state is not before.state:
                row = await self._switch(connection, after)
            return (
                before if row is None else await self._audited(connection, note, audit, "webhook.update", before, row)
            )

        return await self._written(work, note)

    async def _switch(self, connection: Connection, webhook: WebhookEndpoint) -> Any:
        if webhook.state is WebhookState.ACTIVE:
            return await self._database.fetch_row("enable_webhook", connection, id=webhook.id)
        return await self._disable(connection, webhook.id, webhook.disabled_reason or "")

    async def _disable(self, connection: Connection, webhook_id: WebhookId, reason: str) -> Any:
        return await self._database.fetch_row("disable_webhook", connection, id=webhook_id, reason=reason)

    async def rotate(
        self,
        webhook_id: WebhookId,
        secret: str,
        keep: timedelta,
        check: Callable[[WebhookEndpoint], None],
        audit: AuditEntry,
    ) -> WebhookEndpoint:
        """Sign by a new secret, and by the present one, too, for *keep*."""
        note = self._database.env.new_id()

        async def work(connection: Connection) -> WebhookEndpoint:
            before = await self._locked(connection, webhook_id)
            check(before)
            row = await self._database.fetch_row(
                "rotate_webhook_secret", connection, id=webhook_id, secret=secret, keep=keep
            )
            return await self._audited(connection, note, audit, "webhook.rotate", before, row)

        return await self._written(work, note)

    async def delete(self, webhook_id: WebhookId, check: Callable[[WebhookEndpoint], None], audit: AuditEntry) -> None:
        """Delete a webhook with its deliveries, unless *check* raises."""
        note = self._database.env.new_id()

        async def work(connection: Connection) -> None:
            before = await self._locked(connection, webhook_id)
            check(before)
            await self._database.fetch("delete_webhook", connection, id=webhook_id)
            await self._note(connection, note, audit, "webhook.delete", webhook_id, _facts(before), None)

        await self._database.once(work, note)

    async def _written(self, work: Callable[[Connection], Any], note: UUID) -> WebhookEndpoint:
        webhook: WebhookEndpoint = await self._database.once(work, note)
        self._notifier.tell(Wakeup(webhooks_changed=True))
        return webhook

    async def _locked(self, connection: Connection, webhook_id: WebhookId) -> WebhookEndpoint:
        row = await self._database.fetch_row("lock_webhook", connection, id=webhook_id)
        if row is None:
            raise NotFound("webhook", format_webhook_id(webhook_id))
        return _webhook_from(row)

    async def _audited(
        self,
        connection: Connection,
        note: UUID,
        audit: AuditEntry,
        action: str,
        before: WebhookEndpoint | None,
        row: Any,
    ) -> WebhookEndpoint:
        after = _webhook_from(row)
        old = None if before is None else _facts(before)
        await self._note(connection, note, audit, action, after.id, old, _facts(after))
        return after

    async def _note(
        self,
        connection: Connection,
        note: UUID,
        audit: AuditEntry,
        action: str,
        webhook_id: WebhookId,
        before: Mapping[str, Any] | None,
        after: Mapping[str, Any] | None,
    ) -> None:
        subject = f"webhook:{webhook_id}"
        await write_audit(self._database, connection, note, audit, action, subject, before, after)

    # recording

    async def record_changes(self) -> RecordedEvents:
        """Write the deliveries of the next changes, and the position behind them; one process at a time, others find nothing to do."""

        async def work(connection: Connection) -> RecordedEvents:
            mark = await self._database.fetch_row("lock_webhook_position", connection)
            if mark is None:
                return RecordedEvents()
            rows = await self._database.fetch("lock_active_webhooks", connection)
            if rows and mark["seen"] is not None:
                return await self._record(connection, mark, [_ActiveWebhook.of(row) for row in rows])
            if mark["seen"] is not None:
                await self._database.fetch("move_webhook_position", connection, seen=None, seen_at=None)
            return RecordedEvents(has_webhooks=await self._database.fetch_value("any_webhook", connection))

        return await self._database.repeat(work)

    async def _record(self, connection: Connection, mark: Any, webhooks: Sequence[_ActiveWebhook]) -> RecordedEvents:
        page = await self._changes.page(mark["seen"], _TRANSACTIONS, connection)
        now = self._database.env.clock.now()
        missed = await self._missed(connection, mark["seen_at"], now, is_from_elsewhere=page.is_from_elsewhere)
        events = await self._wanted(webhooks, page.changes)
        if missed is not None:
            events = [*((webhook, missed) for webhook in webhooks), *events]
        if page.is_from_elsewhere:
            await self._database.fetch("begin_webhooks_anew", connection)
        await self._add(connection, events)
        # A page that is not the last leaves the time as it is: the position is not the present yet.
        seen_at = mark["seen_at"] if page.has_more and missed is None else None
        await self._database.fetch("move_webhook_position", connection, seen=page.position, seen_at=seen_at)
        disabled = await self._disable_crowded(connection, webhooks, events)
        self._database.env.fault("webhooks.before_commit")
        return RecordedEvents(len(events), page.has_more, disabled=disabled)

    async def _missed(
        self, connection: Connection, seen_at: datetime, now: datetime, *, is_from_elsewhere: bool
    ) -> ChangeEvent | None:
        """The event that says that others were left out, if so."""
        if is_from_elsewhere:
            return missed_event(seen_at, now, "the database was restored")
        if now - seen_at < _MAY_HAVE_MISSED:
            return None
        history_from = await self._database.fetch_value("get_fact", connection, key="history_from")
        if history_from is None or datetime.fromisoformat(history_from) <= seen_at:
            return None
        return missed_event(seen_at, now, "history was deleted before webhooks were told of it")

    async def _wanted(
        self, webhooks: Sequence[_ActiveWebhook], changes: Iterable[RecordedChange]
    ) -> list[tuple[_ActiveWebhook, ChangeEvent]]:
        """Each event with each webhook whose filter it passes."""
        published = [(event, change.recorded) for change in changes if (event := published_event(change.event))]
        tags = {webhook.filter.tag for webhook in webhooks if webhook.filter.tag is not None}
        if tags and published:
            job_ids = {event.job_id for event, _ in published if event.job_id is not None}
            of_jobs = await read_tags(self._database, job_ids, tags)
            published = [
                (replace(event, tags=frozenset(of_jobs.get(event.job_id, ()))) if event.job_id else event, recorded)
                for event, recorded in published
            ]
        return [
            (webhook, event)
            for event, recorded in published
            for webhook in webhooks
            if not webhook.sees(recorded) and webhook.filter.matches(event)
        ]

    async def _add(self, connection: Connection, events: Sequence[tuple[_ActiveWebhook, ChangeEvent]]) -> None:
        if not events:
            return
        bodies: dict[tuple[UUID, WebhookFormat], str] = {}
        for webhook, event in events:
            key = event.id, webhook.format
            if key not in bodies:
                bodies[key] = body_of(event, webhook.format)
        await self._database.fetch(
            "add_webhook_deliveries",
            connection,
            ids=list(self._database.env.new_ids(len(events))),
            webhook_ids=[webhook.id for webhook, _ in events],
            event_ids=[event.id for _, event in events],
            types=[event.type for _, event in events],
            subjects=[event.subject for _, event in events],
            ats=[event.at for _, event in events],
            bodies=[bodies[event.id, webhook.format] for webhook, event in events],
        )

    async def _disable_crowded(
        self,
        connection: Connection,
        webhooks: Sequence[_ActiveWebhook],
        events: Sequence[tuple[_ActiveWebhook, ChangeEvent]],
    ) -> list[DisabledWebhook]:
        added = Counter(webhook.id for webhook, _ in events)
        crowded = [webhook for webhook in webhooks if webhook.waiting + added[webhook.id] > MAX_WAITING]
        reason = f"more than {MAX_WAITING} deliveries wait"
        return [await self._disable_itself(connection, webhook.id, reason) for webhook in crowded]

    async def _disable_itself(self, connection: Connection, webhook_id: WebhookId, reason: str) -> DisabledWebhook:
        await self._disable(connection, webhook_id, reason)
        note, audit = self._database.env.new_id(), AuditEntry("timeball", reason)
        after = {"state": WebhookState.DISABLED.value}
        await self._note(connection, note, audit, "webhook.disable", webhook_id, {"state": "active"}, after)
        return DisabledWebhook(webhook_id, reason)

    # sending

    async def claim(self, each: int, busy: Mapping[WebhookId, int]) -> list[OutgoingMessage]:
        """Deliveries that are due, of each webhook at most *each* less those that are *busy*; they are this process's for half a minute."""
        rows = await self._database.fetch(
            "claim_webhook_deliveries",
            each=each,
            busy_ids=list(busy),
            busy_numbers=list(busy.values()),
            patience=_CLAIM_PATIENCE,
        )
        return [_message_from(row) for row in rows]

    async def record_attempts(self, sent: Sequence[SentMessage]) -> list[DisabledWebhook]:
        """Write what became of messages that were sent, and let the next of each subject go; returns the webhooks that this disabled."""
        random = self._database.env.random
        chances = [random.random() for _ in sent]

        async def work(connection: Connection) -> list[DisabledWebhook]:
            ids = sorted({one.message.webhook_id for one in sent})
            rows = {row["id"]: row for row in await self._database.fetch("lock_webhooks", connection, ids=ids)}
            # A webhook that was deleted meanwhile has taken its deliveries along.
            decided = [
                (one, _decision(one, rows[one.message.webhook_id], chance))
                for one, chance in zip(sent, chances, strict=True)
                if one.message.webhook_id in rows
            ]
            attempts = orjson.dumps([_attempt_document(self._now(), one, decision) for one, decision in decided])
            recorded = await self._database.fetch(
                "record_delivery_attempts", connection, attempts=attempts.decode(), kept=MAX_ATTEMPTS_KEPT
            )
            over = [row for row in recorded if row["state"] != DeliveryState.PENDING]
            await self._database.fetch(
                "release_webhook_deliveries",
                connection,
                webhook_ids=[row["webhook_id"] for row in over],
                subjects=[row["subject"] for row in over],
            )
            reasons = {one.message.webhook_id: decision.disables for one, decision in decided if decision.disables}
            self._database.env.fault("webhooks.attempts_recorded")
            return [
                await self._disable_itself(connection, webhook_id, reason)
                for webhook_id, reason in reasons.items()
                if rows[webhook_id]["state"] == WebhookState.ACTIVE
            ]

        return await self._database.repeat(work)

    def _now(self) -> datetime:
        return self._database.env.clock.now()

    # deliveries

    async def deliveries(
        self, webhook_id: WebhookId, state: DeliveryState | None, limit: int, cursor: str | None
    ) -> ResultPage[WebhookDelivery]:
        """A page of deliveries of a webhook, the latest first."""
        before = _LAST
        if cursor is not None:
            number = read_cursor(cursor, _BY_NUMBER, 2)[0] or ""
            before = int(number) if number.isascii() and number.isdecimal() and len(number) < 19 else 0
        values: dict[str, Any] = {"webhook_id": webhook_id, "before": before, "limit": limit + 1}
        if state is None:
            rows = await self._database.fetch("webhook_deliveries", **values)
        else:
            rows = await self._database.fetch("webhook_deliveries_in_state", state=state.value, **values)
        items = [_delivery_from(row) for row in rows[:limit]]
        last = rows[limit - 1] if len(rows) > limit else None
        return ResultPage(items, None if last is None else write_cursor(_BY_NUMBER, str(last["number"]), last["id"]))

    async def find_delivery(self, delivery_id: DeliveryId) -> WebhookDelivery | None:
        """One delivery."""
        row = await self._database.fetch_row("find_webhook_delivery", id=delivery_id)
        return None if row is None else _delivery_from(row)

    async def add_trial(self, webhook_id: WebhookId, audit: AuditEntry) -> WebhookDelivery:
        """Let a webhook be sent a test, also one that is disabled."""
        env = self._database.env
        note, event_id = env.new_id(), env.new_id()
        event = trial_event(event_id, webhook_id, env.clock.now())

        async def work(connection: Connection) -> WebhookDelivery:
            webhook = await self._locked(connection, webhook_id)
            # Each test is a subject of its own: none waits for another.
            delivery_id = env.new_id()
            await self._database.fetch(
                "add_webhook_deliveries",
                connection,
                ids=[delivery_id],
                webhook_ids=[webhook_id],
                event_ids=[event.id],
                types=[event.type],
                subjects=[format_id("evt", event.id)],
                ats=[event.at],
                bodies=[body_of(event, webhook.spec.format)],
            )
            await self._note(connection, note, audit, "webhook.test", webhook_id, None, None)
            return _delivery_from(await self._database.fetch_row("find_webhook_delivery", connection, id=delivery_id))

        delivery: WebhookDelivery = await self._database.once(work, note)
        self._notifier.tell(Wakeup(webhooks_changed=True))
        return delivery

    async def redeliver(self, delivery_id: DeliveryId, audit: AuditEntry) -> WebhookDelivery:
        """Send a delivery again, or now if it waits for its next attempt; Conflict if it has to wait."""
        note = self._database.env.new_id()

        async def work(connection: Connection) -> WebhookDelivery:
            row = await self._database.fetch_row("find_webhook_delivery", connection, id=delivery_id)
            if row is None:
                raise NotFound("delivery", format_delivery_id(delivery_id))
            webhook = await self._locked(connection, WebhookId(row["webhook_id"]))
            row = await self._database.fetch_row("find_webhook_delivery", connection, id=delivery_id)
            if row is None:
                raise NotFound("delivery", format_delivery_id(delivery_id))
            _check_redelivery(webhook, row)
            if row["state"] != DeliveryState.PENDING:
                await self._database.fetch("count_waiting_delivery", connection, id=webhook.id)
            row = await self._database.fetch_row("send_webhook_delivery_now", connection, id=delivery_id)
            facts = {"delivery": format_delivery_id(delivery_id)}
            await self._note(connection, note, audit, "webhook.redeliver", webhook.id, None, facts)
            return _delivery_from(row)

        delivery: WebhookDelivery = await self._database.once(work, note)
        self._notifier.tell(Wakeup(webhooks_changed=True))
        return delivery

    async def trim(self, before: datetime) -> int:
        """Delete deliveries that were made before an instant and are over, or held back; returns their number."""
        number = 0
        while True:
            gone = await self._database.fetch("trim_webhook_deliveries", before=before, limit=_TRIMMED_AT_ONCE)
            number += len(gone)
            if len(gone) < _TRIMMED_AT_ONCE:
                return number


@dataclass(frozen=True, slots=True)
class _ActiveWebhook:
    """What the recording of events needs of a webhook."""

    id: WebhookId
    filter: EventFilter
    format: WebhookFormat
    waiting: int
    # The transactions that it had seen from the start: all before the first number, and of those before the second all but some.
    seen_from: int
    seen_until: int
    unseen: frozenset[int]

    @classmethod
    def of(cls, row: Any) -> _ActiveWebhook:
        seen_from, seen_until, unseen = row["since_text"].split(":")
        return cls(
            WebhookId(row["id"]),
            _filter_from(row),
            WebhookFormat(row["format"]),
            row["waiting"],
            int(seen_from),
            int(seen_until),
            frozenset(int(number) for number in unseen.split(",") if number),
        )

    def sees(self, transaction: int) -> bool:
        """Whether a transaction had ended when the webhook was created, or enabled."""
        return transaction < self.seen_from or (transaction < self.seen_until and transaction not in self.unseen)


def _check_redelivery(webhook: WebhookEndpoint, row: Any) -> None:
    if webhook.state is WebhookState.DISABLED:
        raise Conflict(
            f"the webhook is disabled: {webhook.disabled_reason}",
            hint="enable it first; POST /webhooks/{webhook}/test tries whether its address works",
        )
    if row["state"] == DeliveryState.PENDING and row["next_at"] is None:
        raise Conflict(
            f"the delivery waits until an earlier one about {row['subject']} is over",
            hint="send that one again",
        )


def _decision(sent: SentMessage, row: Any, chance: float) -> DeliveryDecision:
    succeeded_at, created_at = row["succeeded_at"], sent.message.created_at
    is_failing_throughout = succeeded_at is None or succeeded_at < created_at
    return decide_delivery(sent, chance, is_failing_throughout=is_failing_throughout)


def _attempt_document(now: datetime, sent: SentMessage, decision: DeliveryDecision) -> dict[str, Any]:
    return {
        "id": str(sent.message.delivery_id),
        "attempt": sent.message.attempt,
        "state": decision.state,
        "pause_ms": None if decision.pause is None else round(decision.pause.total_seconds() * 1000),
        "trial": {
            "at": now,
            "status": sent.answer.status,
            "error": sent.answer.error,
            "duration_ms": round(sent.took.total_seconds() * 1000),
        },
    }


def _columns(spec: WebhookSpec) -> dict[str, Any]:
    return {
        "url": spec.url,
        "description": spec.description,
        "events": list(spec.filter.types),
        "queue": spec.filter.queue,
        "job_id": spec.filter.job_id,
        "handler": spec.filter.handler,
        "tag": spec.filter.tag,
        "format": spec.format.value,
    }


def _facts(webhook: WebhookEndpoint) -> dict[str, Any]:
    """What the audit keeps of a webhook: its address without what may be a secret in it, and never its secrets."""
    columns = _columns(webhook.spec)
    url = columns["url"].partition("?")[0]
    return columns | {
        "url": url,
        "job_id": None if columns["job_id"] is None else str(columns["job_id"]),
        "state": webhook.state.value,
        "version": webhook.version,
    }


def _filter_from(row: Any) -> EventFilter:
    job_id = None if row["job_id"] is None else JobId(row["job_id"])
    return EventFilter(tuple(row["events"]), row["queue"], job_id, row["handler"], row["tag"])


def _webhook_from(row: Any) -> WebhookEndpoint:
    return WebhookEndpoint(
        id=WebhookId(row["id"]),
        spec=WebhookSpec(
            url=row["url"],
            filter=_filter_from(row),
            format=WebhookFormat(row["format"]),
            description=row["description"],
        ),
        state=WebhookState(row["state"]),
        disabled_reason=row["disabled_reason"],
        previous_until=row["previous_until"],
        waiting=row["waiting"],
        failing_since=row["failing_since"],
        succeeded_at=row["succeeded_at"],
        version=row["version"],
        created_by=row["created_by"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )


def _message_from(row: Any) -> OutgoingMessage:
    return OutgoingMessage(
        delivery_id=DeliveryId(row["id"]),
        webhook_id=WebhookId(row["webhook_id"]),
        message_id=format_id("evt", row["event_id"]),
        type=row["type"],
        url=row["url"],
        format=WebhookFormat(row["format"]),
        body=row["body"].encode(),
        attempt=row["attempts"],
        created_at=row["created_at"],
        secrets=tuple(filter(None, (row["secret"], row["previous_secret"]))),
    )


def _delivery_from(row: Any) -> WebhookDelivery:
    return WebhookDelivery(
        id=DeliveryId(row["id"]),
        webhook_id=WebhookId(row["webhook_id"]),
        event_id=row["event_id"],
        type=row["type"],
        subject=row["subject"],
        occurred_at=row["occurred_at"],
        body=row["body"],
        state=DeliveryState(row["state"]),
        attempts=row["attempts"],
        next_at=row["next_at"],
        created_at=row["created_at"],
        finished_at=row["finished_at"],
        tries=tuple(
            DeliveryAttempt(
                at=datetime.fromisoformat(each["at"]),
                status=each["status"],
                error=each["error"],
                duration_ms=each["duration_ms"],
            )
            for each in orjson.loads(row["tries"])
        ),
    )
