"""Alerts: what an evaluation makes of them, and their acknowledgements, each in one transaction with its audit and its announcement."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

import orjson

from timeball.domain.alerts import (
    Acknowledgement,
    Alert,
    AlertEvaluation,
    AlertEvent,
    AlertFact,
    AlertFilter,
    AlertId,
    AlertMember,
    AlertState,
    AlertTransition,
    Severity,
    acknowledge,
    format_alert_id,
    reconcile,
)
from timeball.domain.search import ResultPage, foreign_cursor, read_cursor, write_cursor
from timeball.domain.values.ids import JobId
from timeball.errors import Conflict, NotFound
from timeball.store.db.columns import json_text, write_audit
from timeball.store.types import AuditEntry

if TYPE_CHECKING:
    from timeball.store.db.database import Database
    from timeball.store.db.pool import Connection

# Is told of transitions in the transaction that writes them; what it raises undoes them. It writes, and waits for nothing else.
Announce: TypeAlias = Callable[["Connection", Sequence[AlertTransition]], Awaitable[None]]

_EVALUATOR = AuditEntry("timeball")
_BY_TIME = "alert"
_END_OF_TIME = datetime(9999, 1, 1, tzinfo=UTC)
_LAST_ID = UUID(int=2**128 - 1)
_PAGE = 200
# How many resolved alerts are looked at for one page.
_MOST_LOOKED_AT = 5_000
# The audit, and so the event stream, does not have the events that the alert itself shows.
_AUDITED = {
    AlertEvent.OPENED,
    AlertEvent.SEVERITY_CHANGED,
    AlertEvent.ACKNOWLEDGED,
    AlertEvent.UNACKNOWLEDGED,
    AlertEvent.RESOLVED,
}


async def announce_nothing(_connection: Connection, _transitions: Sequence[AlertTransition]) -> None:
    """For a process that has no one to tell."""


class AlertStore:
    """The alerts of this installation."""

    def __init__(self, database: Database) -> None:
        self._database = database

    # what an evaluation makes of them

    async def reconcile(
        self, evaluation: AlertEvaluation, announce: Announce = announce_nothing
    ) -> Sequence[AlertTransition]:
        """Let the alerts be those of an evaluation, and announce what has happened; nothing if a later one was written before.

        One transaction: an evaluator that dies has done all of it or nothing, and another one's next evaluation does the same.
        """

        async def work(connection: Connection) -> Sequence[AlertTransition]:
            latest = await self._database.fetch_value("lock_alert_evaluation", connection)
            if latest > evaluation.at:
                return ()
            stored = [_alert_from(row) for row in await self._database.fetch("lock_alerts", connection)]
            changes = reconcile(stored, evaluation, self._database.env.new_id)
            if changes.forgotten:
                await self._database.fetch("forget_alerts", connection, ids=list(changes.forgotten))
            if changes.written:
                await self._write(connection, changes.written)
            await self._tell(connection, changes.transitions, _EVALUATOR, announce)
            await self._database.fetch("note_alert_evaluation", connection, at=evaluation.at)
            return changes.transitions

        return await self._database.repeat(work)

    # what a person says

    async def acknowledge(
        self, alert_id: AlertId, until: datetime | None, audit: AuditEntry, announce: Announce = announce_nothing
    ) -> Alert:
        """Note that a person knows of an alert; Conflict if it is not open."""

        def change(alert: Alert, now: datetime) -> AlertTransition:
            _check_open(alert)
            return acknowledge(alert, Acknowledgement(at=now, by=audit.actor, until=until, reason=audit.reason))

        return await self._change(alert_id, change, audit, announce)

    async def unacknowledge(self, alert_id: AlertId, audit: AuditEntry, announce: Announce = announce_nothing) -> Alert:
        """Take an acknowledgement back; Conflict if the alert has none."""

        def change(alert: Alert, _now: datetime) -> AlertTransition:
            _check_open(alert)
            if alert.acknowledgement is None:
                raise Conflict(f"alert {format_alert_id(alert.id)} is not acknowledged")
            return acknowledge(alert, None)

        return await self._change(alert_id, change, audit, announce)

    async def _change(
        self,
        alert_id: AlertId,
        decide: Callable[[Alert, datetime], AlertTransition],
        audit: AuditEntry,
        announce: Announce,
    ) -> Alert:
        note = self._database.env.new_id()

        async def work(connection: Connection) -> Alert:
            row = await self._database.fetch_row("lock_alert", connection, id=alert_id)
            if row is None:
                raise NotFound("alert", format_alert_id(alert_id))
            transition = decide(_alert_from(row), await self._database.fetch_value("moment", connection))
            await self._write(connection, [transition.alert])
            await self._tell(connection, [transition], audit, announce, note)
            return transition.alert

        done: Alert = await self._database.once(work, note)
        return done

    async def _write(self, connection: Connection, alerts: Sequence[Alert]) -> None:
        rows = json_text(_alert_columns(alert) for alert in alerts)
        await self._database.fetch("write_alerts", connection, alerts=rows)

    async def _tell(
        self,
        connection: Connection,
        transitions: Sequence[AlertTransition],
        audit: AuditEntry,
        announce: Announce,
        note: UUID | None = None,
    ) -> None:
        for transition in transitions:
            if transition.event in _AUDITED:
                await write_audit(
                    self._database,
                    connection,
                    note or self._database.env.new_id(),
                    audit,
                    f"alert.{transition.event}",
                    f"alert:{transition.alert.id}",
                    None if transition.before is None else _facts(transition.before),
                    _facts(transition.alert),
                )
        if transitions:
            await announce(connection, transitions)

    # reading

    async def evaluated_at(self) -> datetime | None:
        """When alerts were last evaluated; None if they never were."""
        at: datetime = await self._database.fetch_value("alert_evaluated_at")
        return at if at.timestamp() else None

    async def unresolved(self) -> list[Alert]:
        """Every alert that is not resolved, the pending ones included, the latest first."""
        alerts = [_alert_from(row) for row in await self._database.fetch("unresolved_alerts")]
        return sorted(alerts, key=lambda alert: alert.id, reverse=True)

    async def count_open(self) -> dict[Severity, int]:
        """How many alerts wait for a person, by severity."""
        row = await self._database.fetch_row("count_open_alerts")
        return {severity: 0 if row is None else row[severity.value] for severity in Severity}

    async def find(self, alert_id: AlertId, connection: Connection | None = None) -> Alert | None:
        """One alert."""
        row = await self._database.fetch_row("find_alert", connection, id=alert_id)
        return None if row is None else _alert_from(row)

    async def page(self, chosen: AlertFilter, limit: int, cursor: str | None) -> ResultPage[Alert]:
        """A page of alerts: first those that are not resolved, the latest first, then the resolved ones, as long as they are kept."""
        place = (_END_OF_TIME, _LAST_ID) if cursor is None else _place_from(cursor)
        alerts: list[Alert] = []
        if place[0] == _END_OF_TIME:
            alerts = [alert for alert in await self.unresolved() if alert.id < place[1] and chosen.matches(alert)]
        looked_at, is_over = 0, AlertState.RESOLVED not in chosen.states
        end = place if place[0] != _END_OF_TIME else (_END_OF_TIME, UUID(int=0))
        while not is_over and len(alerts) <= limit and looked_at < _MOST_LOOKED_AT:
            rows = await self._database.fetch("resolved_alerts", before=end[0], before_id=end[1], limit=_PAGE)
            resolved = [_alert_from(row) for row in rows]
            alerts += [alert for alert in resolved if chosen.matches(alert)]
            looked_at, is_over = looked_at + len(rows), len(rows) < _PAGE
            end = _place_of(resolved[-1]) if resolved else end
        items = alerts[:limit]
        if len(alerts) > limit:
            return ResultPage(items, write_cursor(_BY_TIME, *_written(_place_of(items[-1]))))
        return ResultPage(items, None if is_over else write_cursor(_BY_TIME, *_written(end)))


def _place_of(alert: Alert) -> tuple[datetime, UUID]:
    return alert.resolved_at or _END_OF_TIME, alert.id


def _written(place: tuple[datetime, UUID]) -> tuple[str, str]:
    return place[0].isoformat(), str(place[1])


def _place_from(cursor: str) -> tuple[datetime, UUID]:
    at, alert_id = read_cursor(cursor, _BY_TIME, 2)
    try:
        return datetime.fromisoformat(at or ""), UUID(alert_id)
    except ValueError:
        raise foreign_cursor() from None


def _check_open(alert: Alert) -> None:
    if alert.state is AlertState.RESOLVED:
        assert alert.resolved_at is not None
        raise Conflict(f"alert {format_alert_id(alert.id)} was resolved at {alert.resolved_at.isoformat()}")
    if alert.state is AlertState.PENDING:
        raise Conflict(
            f"alert {format_alert_id(alert.id)} is pending",
            hint="it opens if its fact lasts, and can be acknowledged then",
        )


def _facts(alert: Alert) -> dict[str, Any]:
    """What the audit keeps of an alert."""
    until = None if alert.acknowledgement is None else alert.acknowledgement.until
    return {
        "kind": alert.fact.kind,
        "severity": alert.fact.severity.value,
        "sentence": alert.fact.sentence,
        "state": alert.state.value,
        **({} if until is None else {"until": until.isoformat()}),
    }


def _alert_columns(alert: Alert) -> dict[str, Any]:
    fact, known = alert.fact, alert.acknowledgement
    target_kind, target_id = fact.target or (None, None)
    return {
        "id": alert.id,
        "fact": fact.key,
        "kind": fact.kind,
        "severity": fact.severity,
        "sentence": fact.sentence,
        "advice": fact.advice,
        "command": fact.command,
        "why": fact.why,
        "target_kind": target_kind,
        "target_id": target_id,
        "members": [
            {"name": member.name, "job_id": member.job_id, "queue": member.queue, "tags": member.tags}
            for member in fact.members
        ],
        "count": fact.count,
        "first_seen_at": alert.first_seen_at,
        "opened_at": alert.opened_at,
        "last_seen_at": None if alert.resolved_at is None else alert.last_seen_at,
        "resolved_at": alert.resolved_at,
        "acknowledged_at": known and known.at,
        "acknowledged_by": known and known.by,
        "acknowledged_until": known and known.until,
        "acknowledged_reason": known and known.reason,
    }


def _alert_from(row: Any) -> Alert:
    target = None if row["target_kind"] is None else (row["target_kind"], row["target_id"])
    fact = AlertFact(
        kind=row["kind"],
        key=row["fact"],
        severity=Severity(row["severity"]),
        sentence=row["sentence"],
        advice=row["advice"],
        command=row["command"],
        target=target,
        why=row["why"],
        members=tuple(_member_from(member) for member in orjson.loads(row["members_text"])),
        count=row["count"],
    )
    acknowledgement = None
    if row["acknowledged_at"] is not None:
        acknowledgement = Acknowledgement(
            at=row["acknowledged_at"],
            by=row["acknowledged_by"],
            until=row["acknowledged_until"],
            reason=row["acknowledged_reason"],
        )
    return Alert(
        id=AlertId(row["id"]),
        fact=fact,
        first_seen_at=row["first_seen_at"],
        last_seen_at=row["last_seen_at"],
        opened_at=row["opened_at"],
        resolved_at=row["resolved_at"],
        acknowledgement=acknowledgement,
    )


def _member_from(member: dict[str, Any]) -> AlertMember:
    job_id = None if member["job_id"] is None else JobId(UUID(member["job_id"]))
    return AlertMember(name=member["name"], job_id=job_id, queue=member["queue"], tags=tuple(member["tags"]))
