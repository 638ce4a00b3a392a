"""Write what an evaluation makes of alerts, and acknowledge them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from timeball.application.commands.requests import LOCAL, Actor
from timeball.domain.job_changes import refuse_past

if TYPE_CHECKING:
    from timeball.domain.alerts import Alert, AlertEvaluation, AlertId, AlertTransition
    from timeball.store.alerts import Announce
    from timeball.store.store import Store


class AlertCommands:
    """Reconcile and acknowledge alerts. *announce* is told of every transition, in the transaction that writes it."""

    def __init__(self, store: Store, announce: Announce | None = None) -> None:
        self._store = store
        self._told: dict[str, Any] = {} if announce is None else {"announce": announce}

    async def reconcile(self, evaluation: AlertEvaluation) -> Sequence[AlertTransition]:
        """Let the alerts be those of an evaluation; returns what has happened. Doing it again changes nothing."""
        return await self._store.alerts.reconcile(evaluation, **self._told)

    async def acknowledge(self, alert_id: AlertId, *, until: datetime | None = None, actor: Actor = LOCAL) -> Alert:
        """Say that a person knows of an open alert: until an instant, or until it is resolved."""
        refuse_past(until, self._store.env.clock.now())
        return await self._store.alerts.acknowledge(alert_id, until, actor.entry, **self._told)

    async def unacknowledge(self, alert_id: AlertId, *, actor: Actor = LOCAL) -> Alert:
        """Take an acknowledgement back."""
        return await self._store.alerts.unacknowledge(alert_id, actor.entry, **self._told)
