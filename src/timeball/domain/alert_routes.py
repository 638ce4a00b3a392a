"""Which channels are told of an alert, and when: routes, quiet hours, repetitions, and the deliveries that follow from them.

Two decisions are made here, both pure. `plan_deliveries` says what a transition of an alert sends where: it is asked in the transaction of
the transition, so no delivery is lost. `decide_delivery` is asked when a delivery is about to be sent, maybe hours later: the alert may
be resolved by then, or a later message may have taken its place.

The deliveries of an alert to a channel are a line. What calls a person (an opening, a reminder) is held back in quiet hours, and is not
sent if the alert is over or acknowledged by then. That an alert is acknowledged or resolved is told only where it was heard of, and at
once: it wakes no one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from enum import StrEnum
from itertools import groupby
from typing import Any, Final, NewType
from uuid import UUID

from timeball.domain.alerts import Alert, AlertEvent, AlertFact, AlertId, AlertState, AlertTransition, Severity
from timeball.domain.channels import MAX_ITEMS, check_name
from timeball.domain.scheduling.civil_time import DAY, first_instant, format_instant, load_zone
from timeball.domain.values.field_errors import describe_unknown_name, list_choices, unexpected_value
from timeball.domain.values.ids import format_id, format_job_id
from timeball.domain.values.text import check_description, check_label
from timeball.errors import InvalidInput

AlertDeliveryId = NewType("AlertDeliveryId", UUID)

MIN_REPEAT: Final = timedelta(minutes=1)
MAX_REPEAT: Final = timedelta(days=30)
# A group that grows is told again, but a channel hears of it no more often than this.
GATHER: Final = timedelta(minutes=15)
# How long a delivery waits for an earlier one of its line that is being sent.
TURN: Final = timedelta(seconds=2)
MAX_QUIET_HOURS: Final = 10
# A channel that is down is tried again for some five hours, and then the delivery is given up.
MAX_RETRIES: Final = 14
FIRST_PAUSE: Final = timedelta(seconds=5)
LONGEST_PAUSE: Final = timedelta(hours=1)
SEND_WITHIN: Final = timedelta(seconds=60)
_WEEKDAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_WEEK: Final = timedelta(days=7)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuietHours:
    """A span of the day in a zone, from one wall time to another, which may be on the next day; *days* are those on which it begins.

    From 00:00 to 00:00 is the whole day.
    """

    start: time
    end: time
    timezone: str
    days: tuple[str, ...] = _WEEKDAYS

    def end_at(self, instant: datetime) -> datetime | None:
        """When the span that covers an instant is over; None if none covers it."""
        today = instant.astimezone(load_zone(self.timezone)).date()
        ends = (end for start, end in map(self._span, (today - DAY, today)) if start <= instant < end)
        return max(ends, default=None)

    def _span(self, day: date) -> tuple[datetime, datetime]:
        start = first_instant(self.timezone, datetime.combine(day, self.start))
        if _WEEKDAYS[day.weekday()] not in self.days:
            return start, start
        last = day if self.end > self.start else day + DAY
        return start, first_instant(self.timezone, datetime.combine(last, self.end))

    def as_json(self) -> dict[str, Any]:
        """As the API and the database have it."""
        return {
            "from": f"{self.start:%H:%M}",
            "until": f"{self.end:%H:%M}",
            "timezone": self.timezone,
            "days": list(self.days),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertRoute:
    """Which alerts go to which channels. An empty *queues*, *tags* or *jobs* asks for nothing; of those that are given, each must fit."""

    name: str
    channels: tuple[str, ...]
    description: str | None = None
    severity: Severity = Severity.WARNING
    queues: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    quiet_hours: tuple[QuietHours, ...] = ()
    repeat_every: timedelta | None = None
    version: int = 1
    created_at: datetime | None = None
    updated_at: datetime | None = None

    def as_fields(self) -> dict[str, Any]:
        """Its fields as the API and the audit have them."""
        return {
            "name": self.name,
            "description": self.description,
            "channels": list(self.channels),
            "severity": self.severity.value,
            "queues": list(self.queues),
            "tags": list(self.tags),
            "jobs": list(self.jobs),
            "quiet_hours": [hours.as_json() for hours in self.quiet_hours],
            "repeat_every_seconds": None if self.repeat_every is None else int(self.repeat_every.total_seconds()),
        }

    def matches(self, fact: AlertFact) -> bool:
        """Whether an alert about this fact takes the route. A group takes it if one of its members does."""
        return (
            fact.severity.rank <= self.severity.rank
            and (not self.queues or not fact.queues.isdisjoint(self.queues))
            and (not self.tags or not fact.tags.isdisjoint(self.tags))
            and (not self.jobs or not _job_names(fact).isdisjoint(self.jobs))
        )

    def quiet_until(self, instant: datetime) -> datetime:
        """The instant itself, or when the quiet hours are over that cover it."""
        end = instant
        # Spans that touch are one: a night may end where a quiet Sunday begins.
        while end - instant <= _WEEK:
            ends = [over for hours in self.quiet_hours if (over := hours.end_at(end)) is not None]
            if not ends:
                break
            end = max(ends)
        return end


def _job_names(fact: AlertFact) -> frozenset[str]:
    jobs = [member for member in fact.members if member.job_id is not None]
    return frozenset(name for member in jobs for name in (member.name, format_job_id(member.job_id or UUID(int=0))))


# The checks of a route.

_ROUTE_FIELDS: Final = (
    *("name", "description", "channels", "severity", "queues", "tags", "jobs", "quiet_hours"),
    "repeat_every_seconds",
)


def check_route(fields: Mapping[str, Any]) -> AlertRoute:
    """A route of these fields, as the API has them; InvalidInput names the one that does not fit."""
    for unknown in sorted(set(fields) - set(_ROUTE_FIELDS)):
        raise InvalidInput(describe_unknown_name(unknown, _ROUTE_FIELDS), field=unknown)
    description, repeat = fields.get("description"), fields.get("repeat_every_seconds")
    channels = _labels(fields.get("channels"), "channels")
    if not channels:
        raise InvalidInput("channels is empty, expected the names of the channels that are told", field="channels")
    route = AlertRoute(
        name=check_name(fields.get("name")),
        channels=channels,
        description=None if description is None else check_description(description, "description"),
        severity=_severity(fields.get("severity")),
        queues=_labels(fields.get("queues"), "queues"),
        tags=_labels(fields.get("tags"), "tags"),
        jobs=_labels(fields.get("jobs"), "jobs"),
        quiet_hours=check_quiet_hours(fields.get("quiet_hours") or ()),
        repeat_every=None if repeat is None else _repeat(repeat),
    )
    _check_is_ever_heard(route)
    return route


def _severity(value: object) -> Severity:
    try:
        return Severity.WARNING if value is None else Severity(str(value))
    except ValueError:
        raise unexpected_value("severity", value, list_choices(Severity)) from None


def _labels(value: Any, field: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list | tuple) or len(value) > MAX_ITEMS:
        raise unexpected_value(field, value, f"a list of up to {MAX_ITEMS} names")
    return tuple(dict.fromkeys(check_label(name, f"{field}/{number}") for number, name in enumerate(value)))


def _repeat(value: Any) -> timedelta:
    least, most = int(MIN_REPEAT.total_seconds()), int(MAX_REPEAT.total_seconds())
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise unexpected_value("repeat_every_seconds", value, f"whole seconds from {least} to {most}")
    return timedelta(seconds=value)


def check_quiet_hours(value: Any) -> tuple[QuietHours, ...]:
    """Quiet hours as the API has them: `{"from": "22:00", "until": "07:00", "timezone": "Europe/Berlin", "days": ["mon"]}`."""
    if not isinstance(value, list | tuple) or len(value) > MAX_QUIET_HOURS:
        raise unexpected_value("quiet_hours", value, f"a list of up to {MAX_QUIET_HOURS} spans")
    return tuple(_quiet_hours(one, f"quiet_hours/{number}") for number, one in enumerate(value))


def _quiet_hours(value: Any, place: str) -> QuietHours:
    if not isinstance(value, Mapping):
        raise unexpected_value(place, value, 'an object such as {"from": "22:00", "until": "07:00"}')
    for unknown in sorted(set(value) - {"from", "until", "timezone", "days"}):
        raise InvalidInput(
            describe_unknown_name(unknown, ("from", "until", "timezone", "days")), field=f"{place}/{unknown}"
        )
    days = value.get("days")
    if days is None:
        days = _WEEKDAYS
    if not isinstance(days, list | tuple) or not days or not set(map(str, days)) <= set(_WEEKDAYS):
        raise unexpected_value(f"{place}/days", days, f"a list of some of {', '.join(_WEEKDAYS)}")
    zone = str(value.get("timezone") or "UTC")
    load_zone(zone)
    return QuietHours(
        start=_wall_time(value.get("from"), f"{place}/from"),
        end=_wall_time(value.get("until"), f"{place}/until"),
        timezone=zone,
        days=tuple(day for day in _WEEKDAYS if day in days),
    )


def _wall_time(value: Any, place: str) -> time:
    try:
        parsed = time.fromisoformat(value if isinstance(value, str) and len(value) == len("22:00") else "")
    except ValueError:
        raise unexpected_value(place, value, "a time of the day such as 22:00") from None
    return parsed


# A Monday far from any clock change.
_SOME_MONDAY: Final = datetime.fromisoformat("2026-01-05T00:00:00+00:00")


def _check_is_ever_heard(route: AlertRoute) -> None:
    """Refuse quiet hours that never end: nothing would be sent, ever."""
    if route.quiet_hours and route.quiet_until(_SOME_MONDAY) - _SOME_MONDAY >= _WEEK:
        raise InvalidInput(
            "quiet_hours cover the whole week, expected some time at which a message may be sent",
            field="quiet_hours",
            hint="leave the route out, if its alerts are for no one",
        )


# Deliveries.


class AlertDeliveryEvent(StrEnum):
    """What a message tells of an alert."""

    OPENED = "opened"
    WORSE = "worse"
    GREW = "grew"
    REMINDER = "reminder"
    ACKNOWLEDGED = "acknowledged"
    RESOLVED = "resolved"
    TEST = "test"

    @property
    def calls(self) -> bool:
        """Whether it asks a person to act: then it waits for quiet hours, and for nothing else."""
        return self not in (AlertDeliveryEvent.ACKNOWLEDGED, AlertDeliveryEvent.RESOLVED, AlertDeliveryEvent.TEST)


class AlertDeliveryState(StrEnum):
    """Where a delivery is: it waits, is being sent or tried again, was sent, was left out for a reason, or was given up."""

    WAITING = "waiting"
    SENDING = "sending"
    RETRYING = "retrying"
    SENT = "sent"
    LEFT_OUT = "left_out"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedAlertDelivery:
    """A message that is to be sent to a channel, not before *run_at*; None: now."""

    channel: str
    alert_id: AlertId | None
    event: AlertDeliveryEvent
    run_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierDelivery:
    """A delivery of an alert that exists already: when it is or was due, and whether it is over."""

    channel: str
    event: AlertDeliveryEvent
    run_at: datetime


def format_alert_delivery_id(delivery_id: UUID) -> str:
    """A delivery as people and the API name it."""
    return format_id("ald", delivery_id)


_TOLD_BY: Final[Mapping[AlertEvent, AlertDeliveryEvent]] = {
    AlertEvent.OPENED: AlertDeliveryEvent.OPENED,
    AlertEvent.SEVERITY_CHANGED: AlertDeliveryEvent.WORSE,
    AlertEvent.UNACKNOWLEDGED: AlertDeliveryEvent.REMINDER,
    AlertEvent.GREW: AlertDeliveryEvent.GREW,
    AlertEvent.ACKNOWLEDGED: AlertDeliveryEvent.ACKNOWLEDGED,
    AlertEvent.RESOLVED: AlertDeliveryEvent.RESOLVED,
}
# Of several things that happen to an alert at once, one is told.
_WEIGHT: Final = (
    *(AlertEvent.RESOLVED, AlertEvent.OPENED, AlertEvent.SEVERITY_CHANGED),
    *(AlertEvent.GREW, AlertEvent.UNACKNOWLEDGED, AlertEvent.ACKNOWLEDGED),
)


def plan_deliveries(
    transitions: Iterable[AlertTransition],
    routes: Sequence[AlertRoute],
    earlier: Mapping[AlertId, Sequence[EarlierDelivery]],
    now: datetime,
) -> list[PlannedAlertDelivery]:
    """What these transitions send where; *earlier* has the deliveries of these alerts that exist already."""
    planned: list[PlannedAlertDelivery] = []
    ordered = sorted(transitions, key=lambda one: (one.alert.id, _WEIGHT.index(one.event)))
    for alert_id, of_alert in groupby(ordered, key=lambda one: one.alert.id):
        happened = [one for one in of_alert if not _is_relief(one)]
        if happened:
            planned += _planned(happened[0], routes, earlier.get(alert_id, ()), now)
    return planned


def _is_relief(transition: AlertTransition) -> bool:
    """An alert that became less severe calls no one."""
    before = transition.before
    return (
        transition.event is AlertEvent.SEVERITY_CHANGED
        and before is not None
        and transition.alert.fact.severity.rank > before.fact.severity.rank
    )


def _planned(
    transition: AlertTransition, routes: Sequence[AlertRoute], earlier: Sequence[EarlierDelivery], now: datetime
) -> Iterator[PlannedAlertDelivery]:
    alert, event = transition.alert, _TOLD_BY[transition.event]
    if not event.calls:
        for channel in dict.fromkeys(one.channel for one in earlier if one.run_at <= now):
            yield PlannedAlertDelivery(channel=channel, alert_id=alert.id, event=event)
        return
    leading = leading_routes(alert, routes)
    for channel, of_channel in leading.items():
        before = [one.run_at for one in earlier if one.channel == channel]
        run_at = _not_before(event, before, now)
        run_at = min(route.quiet_until(run_at) for route in of_channel)
        # One that waits for no longer than this says the same: what it tells is read when it is sent.
        if not any(now < waiting <= run_at for waiting in before):
            yield PlannedAlertDelivery(
                channel=channel, alert_id=alert.id, event=event, run_at=None if run_at <= now else run_at
            )


def _not_before(event: AlertDeliveryEvent, before: Sequence[datetime], now: datetime) -> datetime:
    told = max((at for at in before if at <= now), default=None)
    return now if event is not AlertDeliveryEvent.GREW or told is None else max(now, told + GATHER)


def leading_routes(alert: Alert, routes: Sequence[AlertRoute]) -> dict[str, list[AlertRoute]]:
    """The channels that hear of an alert, each with the routes that lead there."""
    leading: dict[str, list[AlertRoute]] = {}
    for route in routes:
        if route.matches(alert.fact):
            for channel in route.channels:
                leading.setdefault(channel, []).append(route)
    return leading


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryLine:
    """A delivery among those of its alert to its channel.

    *was_heard*: an earlier one may have arrived. *is_overtaken*: a later one is due. *must_wait*: an earlier one is being sent.
    """

    event: AlertDeliveryEvent
    is_sent: bool = False
    was_heard: bool = False
    is_overtaken: bool = False
    must_wait: bool = False


@dataclass(frozen=True, slots=True)
class SendNow:
    """Send it. *repeat_at*: when the channel is to be told again, unless the alert is over or acknowledged by then."""

    repeat_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class SendLater:
    """Not yet: look again after so long."""

    after: timedelta


@dataclass(frozen=True, slots=True)
class LeaveOut:
    """It is not sent, for this reason."""

    reason: str


def decide_delivery(
    line: DeliveryLine, channel: str, alert: Alert | None, routes: Sequence[AlertRoute], now: datetime
) -> SendNow | SendLater | LeaveOut:
    """What becomes of a delivery that is due."""
    if line.is_sent:
        return LeaveOut("it was sent before")
    if line.event is AlertDeliveryEvent.TEST:
        return SendNow()
    if alert is None:
        return LeaveOut("the record of the alert is gone")
    if line.is_overtaken:
        return LeaveOut("a later message took its place")
    if not line.event.calls:
        if not line.was_heard:
            return LeaveOut("the channel never heard of the alert")
        if line.event is AlertDeliveryEvent.ACKNOWLEDGED and alert.state is not AlertState.ACKNOWLEDGED:
            return LeaveOut("the alert is not acknowledged any more")
        return SendLater(TURN) if line.must_wait else SendNow()
    if alert.resolved_at is not None:
        return LeaveOut(f"the alert was resolved at {format_instant(alert.resolved_at)}")
    if alert.acknowledgement is not None:
        return LeaveOut(f"the alert was acknowledged by {alert.acknowledgement.by}")
    leading = leading_routes(alert, routes).get(channel)
    if leading is None:
        return LeaveOut("no route leads from the alert to this channel any more")
    quiet_until = min(route.quiet_until(now) for route in leading)
    if quiet_until > now:
        return SendLater(quiet_until - now)
    if line.must_wait:
        return SendLater(TURN)
    repeats = [route.repeat_every for route in leading if route.repeat_every is not None]
    return SendNow(now + min(repeats) if repeats else None)
