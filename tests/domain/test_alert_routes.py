"""Routes: which alerts take them, when no one is called, what a transition sends, and what becomes of it when it is due."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from timeball.domain.alert_routes import (
    GATHER,
    TURN,
    AlertDeliveryEvent,
    AlertRoute,
    DeliveryLine,
    EarlierDelivery,
    LeaveOut,
    PlannedAlertDelivery,
    SendLater,
    SendNow,
    check_quiet_hours,
    check_route,
    decide_delivery,
    plan_deliveries,
)
from timeball.domain.alerts import (
    Acknowledgement,
    Alert,
    AlertEvent,
    AlertFact,
    AlertId,
    AlertMember,
    AlertTransition,
    Severity,
)
from timeball.domain.values.ids import JobId, format_job_id
from timeball.errors import InvalidInput

NOON = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)  # a Monday
HOUR = timedelta(hours=1)
JOB = JobId(UUID(int=7))
MEMBER = AlertMember(name="nightly", job_id=JOB, queue="mail", tags=("billing",))
FACT = AlertFact(kind="late", key="late:7", severity=Severity.WARNING, sentence="nightly is late", members=(MEMBER,))
ALERT = Alert(id=AlertId(UUID(int=1)), fact=FACT, first_seen_at=NOON, last_seen_at=NOON, opened_at=NOON)
NIGHT = {"from": "22:00", "until": "07:00", "timezone": "Europe/Berlin"}


def route(**fields: Any) -> AlertRoute:
    return check_route({"name": "all", "channels": ["ops"], **fields})


def opened(alert: Alert = ALERT) -> AlertTransition:
    return AlertTransition(AlertEvent.OPENED, alert)


def plan(
    *transitions: AlertTransition,
    routes: Sequence[AlertRoute],
    earlier: Sequence[EarlierDelivery] = (),
    now: datetime = NOON,
) -> list[tuple[str, str, datetime | None]]:
    planned = plan_deliveries(transitions, routes, {ALERT.id: earlier}, now)
    assert all(one.alert_id == ALERT.id for one in planned)
    return [(one.channel, one.event.value, one.run_at) for one in planned]


def before(event: AlertDeliveryEvent, ago: timedelta = HOUR, channel: str = "ops") -> EarlierDelivery:
    return EarlierDelivery(channel=channel, event=event, run_at=NOON - ago)


# which alerts take a route


@pytest.mark.parametrize(
    ("fields", "takes"),
    [
        ({}, True),
        ({"severity": "critical"}, False),
        ({"queues": ["mail", "other"]}, True),
        ({"queues": ["other"]}, False),
        ({"tags": ["billing"]}, True),
        ({"tags": ["eu"]}, False),
        ({"jobs": ["nightly"]}, True),
        ({"jobs": [format_job_id(JOB)]}, True),
        ({"jobs": ["daily"]}, False),
        ({"queues": ["mail"], "tags": ["eu"]}, False),
        ({"queues": ["mail"], "tags": ["billing"], "jobs": ["nightly"]}, True),
    ],
)
def test_an_alert_takes_a_route_whose_every_condition_it_meets(fields: dict[str, Any], takes: bool) -> None:
    assert route(**fields).matches(FACT) is takes


def test_a_critical_alert_takes_every_severity() -> None:
    critical = replace(FACT, severity=Severity.CRITICAL)

    assert route(severity="critical").matches(critical)
    assert route(severity="warning").matches(critical)


def test_a_group_takes_the_routes_of_each_of_its_members() -> None:
    group = replace(FACT, members=(MEMBER, AlertMember(name="cold", queue="cold")), count=2)

    assert route(queues=["cold"]).matches(group)
    assert route(tags=["billing"]).matches(group)


def test_a_name_of_a_queue_is_no_name_of_a_job() -> None:
    about_queue = replace(FACT, members=(AlertMember(name="nightly", queue="nightly"),))

    assert not route(jobs=["nightly"]).matches(about_queue)


# quiet hours


@pytest.mark.parametrize(
    ("hours", "instant", "until"),
    [
        # 22:00 in Berlin is 21:00 UTC in winter.
        ([NIGHT], "2026-03-02T20:59:59", None),
        ([NIGHT], "2026-03-02T21:00:00", "2026-03-03T06:00:00"),
        ([NIGHT], "2026-03-03T05:59:59", "2026-03-03T06:00:00"),
        ([NIGHT], "2026-03-03T06:00:00", None),
        # The night in which summer time begins is an hour shorter.
        ([NIGHT], "2026-03-28T23:00:00", "2026-03-29T05:00:00"),
        ([NIGHT], "2026-07-01T20:30:00", "2026-07-02T05:00:00"),
        # The days are those on which a span begins.
        ([{**NIGHT, "days": ["fri"]}], "2026-03-07T02:00:00", "2026-03-07T06:00:00"),
        ([{**NIGHT, "days": ["sat"]}], "2026-03-07T02:00:00", None),
        ([{"from": "12:00", "until": "13:00"}], "2026-03-02T12:30:00", "2026-03-02T13:00:00"),
        # The whole day.
        ([{"from": "00:00", "until": "00:00", "days": ["sun"]}], "2026-03-08T13:00:00", "2026-03-09T00:00:00"),
        # Spans that touch are one: Friday night, Saturday, Sunday.
        (
            [
                {"from": "18:00", "until": "00:00", "days": ["fri"]},
                {"from": "00:00", "until": "00:00", "days": ["sat", "sun"]},
            ],
            "2026-03-06T19:00:00",
            "2026-03-09T00:00:00",
        ),
    ],
)
def test_quiet_hours_are_on_the_clock_of_their_zone(hours: list[Any], instant: str, until: str | None) -> None:
    at = datetime.fromisoformat(f"{instant}+00:00")
    end = at if until is None else datetime.fromisoformat(f"{until}+00:00")

    assert route(quiet_hours=hours).quiet_until(at) == end


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"quiet_hours": {}}, None),
        ({"quiet_hours": "22-7"}, "quiet_hours is .*, expected a list"),
        ({"quiet_hours": [7]}, "quiet_hours/0 is 7, expected an object"),
        ({"quiet_hours": [{"from": "22", "until": "07:00"}]}, "quiet_hours/0/from is .22., expected a time of the day"),
        ({"quiet_hours": [{"from": "22:00"}]}, "quiet_hours/0/until is null, expected a time of the day"),
        ({"quiet_hours": [{**NIGHT, "days": ["monday"]}]}, "quiet_hours/0/days is a list of 1, expected"),
        ({"quiet_hours": [{**NIGHT, "timezone": "Europe/Berln"}]}, "Europe/Berln"),
        ({"quiet_hours": [{**NIGHT, "zone": "UTC"}]}, "zone is unknown"),
        ({"quiet_hours": [{"from": "00:00", "until": "00:00"}]}, "quiet_hours cover the whole week"),
        ({"channels": []}, "channels is empty, expected the names of the channels"),
        ({"channels": "ops"}, "channels is .*, expected a list of up to 100 names"),
        ({"severity": "fatal"}, 'severity is "fatal", expected critical or warning'),
        ({"repeat_every_seconds": 59}, "repeat_every_seconds is 59, expected whole seconds from 60 to 2592000"),
        ({"repeat_every_seconds": True}, "repeat_every_seconds is true"),
        ({"repeat": 60}, "repeat is unknown"),
        ({"name": "no/slash"}, "name is"),
    ],
)
def test_a_route_that_does_not_fit_is_refused_with_what_was_expected(fields: dict[str, Any], words: str | None) -> None:
    if words is None:
        assert route(**fields).quiet_hours == ()
        return
    with pytest.raises(InvalidInput, match=words):
        route(**fields)


def test_a_route_is_read_as_it_was_written() -> None:
    whole = route(
        description="all",
        severity="critical",
        queues=["a"],
        tags=["b"],
        jobs=["c"],
        quiet_hours=[{**NIGHT, "days": ["mon", "fri"]}],
        repeat_every_seconds=3600,
    )

    assert check_route(whole.as_fields()) == whole
    assert check_quiet_hours([hours.as_json() for hours in whole.quiet_hours]) == whole.quiet_hours


# what a transition sends


def test_an_opening_is_told_once_to_each_channel_that_a_route_leads_to() -> None:
    routes = [route(channels=["ops", "mail"]), route(name="b", channels=["mail"]), route(name="c", queues=["cold"])]

    assert plan(opened(), routes=routes) == [("ops", "opened", None), ("mail", "opened", None)]
    assert plan(opened(), routes=routes[2:]) == []


def test_an_opening_in_quiet_hours_waits_for_their_end() -> None:
    midnight = datetime(2026, 3, 3, 0, 0, tzinfo=UTC)
    morning = datetime(2026, 3, 3, 6, 0, tzinfo=UTC)

    assert plan(opened(), routes=[route(quiet_hours=[NIGHT])], now=midnight) == [("ops", "opened", morning)]
    # Another route that is not quiet leads there at once.
    routes = [route(quiet_hours=[NIGHT]), route(name="b", severity="warning")]
    assert plan(opened(), routes=routes, now=midnight) == [("ops", "opened", None)]


def test_resolved_and_acknowledged_are_told_at_once_to_channels_that_were_told_of_the_opening() -> None:
    midnight = datetime(2026, 3, 3, 0, 0, tzinfo=UTC)
    quiet = [route(channels=["ops", "new"], quiet_hours=[NIGHT])]
    told = [EarlierDelivery(channel="ops", event=AlertDeliveryEvent.OPENED, run_at=NOON)]
    held = [EarlierDelivery(channel="new", event=AlertDeliveryEvent.OPENED, run_at=midnight + HOUR)]
    for event in (AlertEvent.RESOLVED, AlertEvent.ACKNOWLEDGED):
        transition = AlertTransition(event, ALERT, ALERT)

        assert plan(transition, routes=quiet, earlier=told + held, now=midnight) == [("ops", event.value, None)]
        assert plan(transition, routes=[], earlier=told, now=midnight) == [("ops", event.value, None)]


def test_a_higher_severity_is_told_also_where_the_alert_was_not_told_before() -> None:
    worse = replace(ALERT, fact=replace(FACT, severity=Severity.CRITICAL))
    transition = AlertTransition(AlertEvent.SEVERITY_CHANGED, worse, ALERT)
    routes = [route(channels=["ops"]), route(name="b", channels=["pager"], severity="critical")]

    told = [before(AlertDeliveryEvent.OPENED)]
    assert plan(transition, routes=routes, earlier=told) == [("ops", "worse", None), ("pager", "worse", None)]


def test_a_lower_severity_calls_no_one() -> None:
    critical = replace(ALERT, fact=replace(FACT, severity=Severity.CRITICAL))

    assert plan(AlertTransition(AlertEvent.SEVERITY_CHANGED, ALERT, critical), routes=[route()]) == []


def test_of_several_things_that_happen_at_once_one_is_told() -> None:
    worse = replace(ALERT, fact=replace(FACT, severity=Severity.CRITICAL))
    events = (AlertEvent.UNACKNOWLEDGED, AlertEvent.GREW, AlertEvent.SEVERITY_CHANGED)
    transitions = [AlertTransition(event, worse, ALERT) for event in events]

    assert plan(*transitions, routes=[route()]) == [("ops", "worse", None)]


def test_a_group_that_grows_again_and_again_is_told_no_more_often_than_every_quarter_of_an_hour() -> None:
    grew = AlertTransition(AlertEvent.GREW, ALERT, ALERT)
    told = before(AlertDeliveryEvent.OPENED, timedelta(minutes=5))
    next_time = told.run_at + GATHER

    assert plan(grew, routes=[route()], earlier=[told]) == [("ops", "grew", next_time)]
    waiting = EarlierDelivery(channel="ops", event=AlertDeliveryEvent.GREW, run_at=next_time)
    assert plan(grew, routes=[route()], earlier=[told, waiting]) == []
    assert plan(grew, routes=[route()], earlier=[before(AlertDeliveryEvent.OPENED)]) == [("ops", "grew", None)]


def test_an_acknowledgement_that_is_over_calls_again() -> None:
    transition = AlertTransition(AlertEvent.UNACKNOWLEDGED, ALERT, ALERT)

    told = [before(AlertDeliveryEvent.OPENED)]
    assert plan(transition, routes=[route()], earlier=told) == [("ops", "reminder", None)]


def test_the_transitions_of_each_alert_are_planned_by_themselves() -> None:
    other = replace(ALERT, id=AlertId(UUID(int=2)))

    planned = plan_deliveries([opened(), opened(other)], [route()], {}, NOON)

    event = AlertDeliveryEvent.OPENED
    assert planned == [PlannedAlertDelivery(channel="ops", alert_id=alert.id, event=event) for alert in (ALERT, other)]


# what becomes of a delivery that is due


def decide(
    event: AlertDeliveryEvent,
    alert: Alert | None = ALERT,
    routes: Sequence[AlertRoute] | None = None,
    now: datetime = NOON,
    **line: bool,
) -> SendNow | SendLater | LeaveOut:
    chosen = [route()] if routes is None else routes
    return decide_delivery(DeliveryLine(event=event, **line), "ops", alert, chosen, now)


CALLS = [event for event in AlertDeliveryEvent if event.calls]
NEWS = [AlertDeliveryEvent.ACKNOWLEDGED, AlertDeliveryEvent.RESOLVED]
KNOWN = replace(ALERT, acknowledgement=Acknowledgement(at=NOON, by="ada"))


@pytest.mark.parametrize("event", CALLS)
def test_what_calls_a_person_is_sent_while_the_alert_is_open(event: AlertDeliveryEvent) -> None:
    assert decide(event) == SendNow()


@pytest.mark.parametrize("event", CALLS)
def test_what_calls_a_person_is_left_out_if_nothing_is_to_be_done(event: AlertDeliveryEvent) -> None:
    gone = replace(ALERT, resolved_at=NOON)

    assert decide(event, gone) == LeaveOut("the alert was resolved at 2026-03-02T12:00:00Z")
    assert decide(event, KNOWN) == LeaveOut("the alert was acknowledged by ada")
    assert decide(event, routes=[]) == LeaveOut("no route leads from the alert to this channel any more")
    assert decide(event, is_overtaken=True) == LeaveOut("a later message took its place")
    assert decide(event, None) == LeaveOut("the record of the alert is gone")


@pytest.mark.parametrize("event", CALLS)
def test_what_calls_a_person_waits_for_the_end_of_quiet_hours(event: AlertDeliveryEvent) -> None:
    midnight = datetime(2026, 3, 3, 0, 0, tzinfo=UTC)

    assert decide(event, routes=[route(quiet_hours=[NIGHT])], now=midnight) == SendLater(6 * HOUR)
    assert decide(event, routes=[route(quiet_hours=[NIGHT]), route(name="b")], now=midnight) == SendNow()


def test_the_next_reminder_comes_by_the_shortest_repetition_of_the_routes() -> None:
    routes = [
        route(repeat_every_seconds=7200),
        route(name="b", repeat_every_seconds=3600),
        route(name="c"),
        route(name="d", channels=["other"], repeat_every_seconds=60),
    ]

    assert decide(AlertDeliveryEvent.OPENED, routes=routes) == SendNow(NOON + HOUR)


@pytest.mark.parametrize("event", NEWS)
def test_news_are_sent_only_where_the_alert_was_heard_of(event: AlertDeliveryEvent) -> None:
    assert decide(event, KNOWN, was_heard=True) == SendNow()
    assert decide(event, KNOWN) == LeaveOut("the channel never heard of the alert")
    # Neither quiet hours nor a route that is gone hold them back.
    assert decide(event, KNOWN, routes=[], was_heard=True) == SendNow()


def test_an_acknowledgement_that_was_taken_back_is_not_told() -> None:
    reason = "the alert is not acknowledged any more"

    assert decide(AlertDeliveryEvent.ACKNOWLEDGED, ALERT, was_heard=True) == LeaveOut(reason)


@pytest.mark.parametrize("event", [AlertDeliveryEvent.OPENED, AlertDeliveryEvent.RESOLVED])
def test_a_message_waits_for_an_earlier_one_that_is_being_sent(event: AlertDeliveryEvent) -> None:
    assert decide(event, must_wait=True, was_heard=True) == SendLater(TURN)


@pytest.mark.parametrize("event", AlertDeliveryEvent)
def test_what_was_sent_is_not_sent_again(event: AlertDeliveryEvent) -> None:
    assert decide(event, is_sent=True, was_heard=True) == LeaveOut("it was sent before")


def test_a_test_is_sent_at_any_hour() -> None:
    midnight = datetime(2026, 3, 3, 0, 0, tzinfo=UTC)

    assert decide(AlertDeliveryEvent.TEST, None, routes=[], now=midnight) == SendNow()
