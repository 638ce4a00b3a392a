"""What a watcher makes of what it sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

from timeball.domain.alert_routes import AlertRoute
from timeball.domain.alerts import (
    Acknowledgement,
    Alert,
    AlertEvaluation,
    AlertFact,
    AlertId,
    AlertState,
    AlertTransition,
    Severity,
)
from timeball.domain.watch import Observation, WatchedAlerts, narrowed_routes

NOON = datetime(2026, 11, 18, 12, tzinfo=UTC)
HALF_A_MINUTE = timedelta(seconds=30)
A_SECOND = timedelta(seconds=1)


def fact(kind: str, lasting: timedelta = HALF_A_MINUTE) -> AlertFact:
    return AlertFact(kind=kind, key=kind, severity=Severity.CRITICAL, sentence=f"{kind}: bad", lasting=lasting)


SCHEDULERS, OVERDUE, UNREACHABLE = fact("schedulers"), fact("overdue"), fact("unreachable")


def stored(of: AlertFact, **fields: object) -> Alert:
    """An alert of the installation."""
    alert = Alert(id=AlertId(UUID(int=7)), fact=of, first_seen_at=NOON, last_seen_at=NOON, opened_at=NOON)
    return replace(alert, **fields)  # type: ignore[arg-type]


def observation(at: timedelta, *facts: AlertFact, alerts: Sequence[Alert] = ()) -> Observation:
    evaluation = AlertEvaluation(NOON + at, facts)
    return Observation(evaluation=evaluation, alerts={one.fact.key: one for one in alerts}, routes=(), channels={})


def events(transitions: Sequence[AlertTransition]) -> list[tuple[str, str]]:
    return [(one.event.value, one.alert.fact.kind) for one in transitions]


def test_a_fact_opens_once_it_has_lasted_and_once_only_and_is_told_to_be_over() -> None:
    alerts = WatchedAlerts("a")

    told = [
        events(alerts.see(observation(second * A_SECOND, *facts)))
        for second, facts in ((0, [SCHEDULERS]), (29, [SCHEDULERS]), (30, [SCHEDULERS]), (60, [SCHEDULERS]), (90, []))
    ]

    assert told == [[], [], [("opened", "schedulers")], [], [("resolved", "schedulers")]]
    assert not alerts.open


def test_a_fact_that_passes_by_itself_is_forgotten() -> None:
    alerts = WatchedAlerts("a")

    assert not alerts.see(observation(0 * A_SECOND, SCHEDULERS))
    assert [alert.fact.kind for alert in alerts.pending] == ["schedulers"]
    assert not alerts.see(observation(29 * A_SECOND))
    assert not alerts.pending
    assert not alerts.see(observation(31 * A_SECOND, SCHEDULERS))


def test_what_the_installation_tells_the_watcher_does_not_tell() -> None:
    alerts = WatchedAlerts("a")

    for second in (0, 300):
        assert not alerts.see(observation(second * A_SECOND, OVERDUE, alerts=[stored(OVERDUE)]))

    assert not alerts.open
    # It has found it, and not told it yet.
    pending = stored(OVERDUE, opened_at=None)
    assert events(alerts.see(observation(600 * A_SECOND, OVERDUE, alerts=[pending]))) == [("opened", "overdue")]


def test_what_a_mute_installation_has_opened_is_told_with_its_id() -> None:
    alerts = WatchedAlerts("a")
    known = stored(OVERDUE)

    (opened,) = alerts.see(observation(300 * A_SECOND, OVERDUE, fact("alerts"), alerts=[known]))

    assert (opened.event.value, opened.alert.id, opened.alert.fact.kind) == ("opened", known.id, "overdue")


def test_what_was_told_is_not_told_to_be_over_because_the_installation_tells_it_now() -> None:
    alerts = WatchedAlerts("a")
    alerts.see(observation(0 * A_SECOND, OVERDUE))
    alerts.see(observation(30 * A_SECOND, OVERDUE))

    assert not alerts.see(observation(60 * A_SECOND, OVERDUE, alerts=[stored(OVERDUE)]))
    assert events(alerts.see(observation(90 * A_SECOND))) == [("resolved", "overdue")]


def test_while_the_database_cannot_be_read_nothing_is_gone_and_nothing_else_opens() -> None:
    alerts = WatchedAlerts("a")
    alerts.see(observation(0 * A_SECOND, SCHEDULERS))
    alerts.see(observation(30 * A_SECOND, SCHEDULERS, OVERDUE))

    assert not alerts.see_nothing(UNREACHABLE, NOON + 60 * A_SECOND)
    assert events(alerts.see_nothing(UNREACHABLE, NOON + 90 * A_SECOND)) == [("opened", "unreachable")]
    assert {alert.fact.kind for alert in alerts.open} == {"schedulers", "unreachable"}
    assert not alerts.pending

    back = alerts.see(observation(120 * A_SECOND, SCHEDULERS))
    assert events(back) == [("resolved", "unreachable")]


def test_an_acknowledgement_in_the_installation_counts() -> None:
    alerts = WatchedAlerts("a")
    alerts.see(observation(0 * A_SECOND, SCHEDULERS))
    alerts.see(observation(30 * A_SECOND, SCHEDULERS))
    known = stored(SCHEDULERS, acknowledgement=Acknowledgement(at=NOON, by="bo"))

    alerts.see(observation(60 * A_SECOND, SCHEDULERS, alerts=[known]))

    assert [alert.state for alert in alerts.open] == [AlertState.ACKNOWLEDGED]


def test_a_fact_has_the_same_id_after_a_restart_and_another_one_in_another_installation() -> None:
    ids = []
    for installation in ("a", "a", "b"):
        alerts = WatchedAlerts(installation)
        alerts.see(observation(0 * A_SECOND, SCHEDULERS))
        (opened,) = alerts.see(observation(30 * A_SECOND, SCHEDULERS))
        ids.append(opened.alert.id)

    assert ids[0] == ids[1] != ids[2]


def test_routes_are_narrowed_to_the_channels_that_may_be_used() -> None:
    routes = [AlertRoute(name="all", channels=("ops", "pager")), AlertRoute(name="night", channels=("pager",))]
    channels = ("ops", "pager", "spare")

    def narrowed(named: Sequence[str], own: Sequence[str] = ()) -> list[tuple[str, tuple[str, ...]]]:
        return [(route.name, route.channels) for route in narrowed_routes(routes, channels, named, own)]

    assert narrowed(()) == [("all", ("ops", "pager")), ("night", ("pager",))]
    assert narrowed(("ops",)) == [("all", ("ops",))]
    # No route leads to it, so it gets everything; one that does not exist gets nothing.
    assert narrowed(("spare", "gone"), ("own",)) == [("watch", ("spare", "own"))]
