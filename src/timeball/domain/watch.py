"""What a watcher makes of what it sees: alerts of its own, kept in memory, about what the installation cannot tell by itself.

An installation tells its alerts by a scheduler that evaluates them, a worker that delivers them, and the database between. A watcher has
none of these. It looks at the same facts, gives them the same life (`reconcile`), and sends by the same routes, from its own process.

What the installation tells itself, the watcher leaves to it. An alert that both know has one id, so that a service such as PagerDuty
takes what both say for one incident; so does the same fact after a restart of the watcher.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final
from uuid import UUID, uuid5

from timeball.domain.alert_routes import AlertRoute
from timeball.domain.alerts import Alert, AlertEvaluation, AlertFact, AlertId, AlertTransition, reconcile
from timeball.domain.channels import AlertChannel
from timeball.domain.explain.diagnosis import MUTE_KINDS

_IDS: Final = UUID("6f1d3b52-64c0-4f0f-9d0e-3f5d1a7b8c21")


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What a look has shown: the vital facts, and what the installation has of alerts (by key), routes and channels (by name)."""

    evaluation: AlertEvaluation
    alerts: Mapping[str, Alert]
    routes: Sequence[AlertRoute]
    channels: Mapping[str, AlertChannel]

    @property
    def is_mute(self) -> bool:
        """Whether the installation cannot tell anything by itself."""
        return any(fact.kind in MUTE_KINDS for fact in self.evaluation.facts)

    def tells(self, fact: AlertFact) -> bool:
        """Whether the installation tells this fact by itself."""
        alert = self.alerts.get(fact.key)
        return not self.is_mute and alert is not None and alert.opened_at is not None


class WatchedAlerts:
    """The alerts of a watcher. *installation* names what it watches: alerts of two installations have different ids."""

    def __init__(self, installation: str) -> None:
        self.installation = installation
        self._alerts: dict[str, Alert] = {}

    @property
    def pending(self) -> list[Alert]:
        """Those whose facts may pass by themselves."""
        return [alert for alert in self._alerts.values() if alert.opened_at is None]

    @property
    def open(self) -> list[Alert]:
        """Those that are open or acknowledged, the most severe first."""
        alerts = [alert for alert in self._alerts.values() if alert.opened_at is not None]
        return sorted(alerts, key=lambda alert: alert.fact.severity.rank)

    def see(self, observation: Observation) -> Sequence[AlertTransition]:
        """What has happened, given what a look has shown."""
        told = {alert.fact.key for alert in self.open}
        facts = [fact for fact in observation.evaluation.facts if fact.key in told or not observation.tells(fact)]
        return self._reconcile(AlertEvaluation(observation.evaluation.at, facts), observation.alerts)

    def see_nothing(self, fact: AlertFact, now: datetime) -> Sequence[AlertTransition]:
        """What has happened, if the database cannot be read, which is *fact*: what was open is neither gone nor new."""
        others = [alert.fact for alert in self.open if alert.fact.key != fact.key]
        return self._reconcile(AlertEvaluation(now, [fact, *others]), {})

    def _reconcile(self, evaluation: AlertEvaluation, known: Mapping[str, Alert]) -> Sequence[AlertTransition]:
        alerts = {key: self._acknowledged_as(alert, known.get(key)) for key, alert in self._alerts.items()}
        for fact in evaluation.facts:
            if fact.key not in alerts:
                alerts[fact.key] = self._first_seen(fact, known.get(fact.key), evaluation.at)
        changes = reconcile(list(alerts.values()), evaluation, _no_id)
        alerts |= {alert.fact.key: alert for alert in changes.written}
        self._alerts = {
            key: alert
            for key, alert in alerts.items()
            if alert.resolved_at is None and alert.id not in changes.forgotten
        }
        return changes.transitions

    def _first_seen(self, fact: AlertFact, known: Alert | None, now: datetime) -> Alert:
        id_ = AlertId(uuid5(_IDS, f"{self.installation}\n{fact.key}")) if known is None else known.id
        first_seen_at = now if known is None else min(known.first_seen_at, now)
        return Alert(id=id_, fact=fact, first_seen_at=first_seen_at, last_seen_at=now)

    def _acknowledged_as(self, alert: Alert, known: Alert | None) -> Alert:
        """The alert, acknowledged if a person has acknowledged it in the installation."""
        return alert if known is None else replace(alert, acknowledgement=known.acknowledgement)


def _no_id() -> UUID:
    raise AssertionError("every fact has an alert by then")


def narrowed_routes(
    routes: Iterable[AlertRoute], channels: Iterable[str], named: Sequence[str], own: Sequence[str]
) -> list[AlertRoute]:
    """The routes of a watcher: those of the installation, to *channels* that exist, and of these only those that are *named*, if any are.

    A named channel to which no route leads gets everything, and so do the watcher's *own* ones.
    """
    usable = {name for name in channels if not named or name in named}
    narrowed = [
        replace(route, channels=kept)
        for route in routes
        if (kept := tuple(name for name in route.channels if name in usable))
    ]
    led_to = {name for route in narrowed for name in route.channels}
    rest = [*(name for name in named if name in usable - led_to), *own]
    return [*narrowed, *([AlertRoute(name="watch", channels=tuple(rest))] if rest else [])]
