"""Every write that API, command line, dashboard and SDK need; a rule that holds here holds everywhere.

The commands of queues and nodes are short and stand here; the others have a file for each resource.
"""

from __future__ import annotations

from datetime import datetime
from types import EllipsisType
from typing import TYPE_CHECKING, Any

from timeball.application.commands.alerts import AlertCommands
from timeball.application.commands.backfills import BackfillCommands
from timeball.application.commands.bulk import OperationCommands
from timeball.application.commands.calendars import CalendarCommands
from timeball.application.commands.channels import AlertRouteCommands, ChannelCommands
from timeball.application.commands.executions import ExecutionCommands
from timeball.application.commands.freezes import FreezeCommands
from timeball.application.commands.groups import GroupCommands
from timeball.application.commands.jobs import JobCommands
from timeball.application.commands.requests import LOCAL, Actor, ContractChecks
from timeball.application.commands.templates import TemplateCommands
from timeball.application.commands.webhooks import WebhookCommands
from timeball.domain.job_changes import refuse_past
from timeball.domain.values.field_errors import unexpected_value
from timeball.domain.values.ids import Incarnation
from timeball.domain.values.text import check_label
from timeball.domain.values.wording import Duration, parse_seconds
from timeball.errors import NotFound

if TYPE_CHECKING:
    from timeball.domain.handler import PayloadRules
    from timeball.env import Env
    from timeball.store.alerts import Announce
    from timeball.store.store import Store


class QueueCommands:
    """Pause, resume, limit and purge queues."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def pause(self, name: str, actor: Actor = LOCAL, until: datetime | None = None) -> None:
        """Stop workers from claiming out of a queue, without end or until an instant."""
        refuse_past(until, self._store.env.clock.now())
        await self._set_queue(name, actor, "queue.pause", is_paused=True, until=until)

    async def resume(self, name: str, actor: Actor = LOCAL) -> None:
        """Let a paused queue go on."""
        await self._set_queue(name, actor, "queue.resume", is_paused=False)

    async def limit(self, name: str, max_running: int | None, actor: Actor = LOCAL) -> None:
        """Set how many executions of a queue may run at once, across all workers; None removes the limit."""
        if max_running is not None and max_running < 1:
            raise unexpected_value("max_running", max_running, "1 or more", hint="pause the queue instead")
        await self._set_queue(name, actor, "queue.limit", max_running=max_running)

    async def expect(
        self,
        name: str,
        actor: Actor = LOCAL,
        *,
        max_oldest_wait: Duration | EllipsisType | None = ...,
        must_be_served: bool | None = None,
    ) -> None:
        """Say what is expected of a queue: nothing in it waits for longer; a worker serves it. An alert opens while it is not so.

        What is not given stays as it is; None expects nothing of its waits.
        """
        check_label(name, "queue")
        seconds: int | EllipsisType | None = ...
        if not isinstance(max_oldest_wait, EllipsisType):
            seconds = None if max_oldest_wait is None else parse_seconds(max_oldest_wait, "max_oldest_wait")
        await self._store.queues.expect(
            name, max_oldest_wait_seconds=seconds, must_be_served=must_be_served, audit=actor.entry
        )

    async def purge(self, name: str, actor: Actor = LOCAL) -> int:
        """Cancel everything in a queue that has not started; returns the number of executions. Schedules go on."""
        check_label(name, "queue")
        return await self._store.queues.purge(name, actor.reason or f"purged by {actor.name}", actor.entry)

    async def _set_queue(self, name: str, actor: Actor, action: str, **fields: Any) -> None:
        check_label(name, "queue")
        await self._store.queues.change(name, **fields, reason=actor.reason, audit=actor.entry, action=action)


class NodeCommands:
    """Drain workers and schedulers."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def drain(self, incarnation: Incarnation, actor: Actor = LOCAL) -> None:
        """Ask a worker or scheduler to finish what it holds and exit."""
        if not await self._store.nodes.drain(incarnation, actor.entry):
            raise NotFound("node", incarnation)


class Commands:
    """All commands over one store, by what they act upon."""

    def __init__(
        self, store: Store, env: Env, handlers: PayloadRules | None = None, announce: Announce | None = None
    ) -> None:
        """*announce* is told of what happens to alerts, in the transaction that writes it; without one, the channels are."""
        self.contracts = ContractChecks(store, handlers)
        self.channels = ChannelCommands(store, self.contracts)
        self.alert_routes = AlertRouteCommands(store)
        self.alerts = AlertCommands(store, announce or self.channels.announce)
        self.jobs = JobCommands(store, env, self.contracts)
        self.executions = ExecutionCommands(store, env, self.contracts, self.jobs)
        self.backfills = BackfillCommands(store, env, self.contracts, self.jobs)
        self.operations = OperationCommands(store, env, self.jobs, self.executions, self.backfills)
        self.groups = GroupCommands(store, env, self.contracts, self.executions)
        self.templates = TemplateCommands(store, env, self.contracts, self.jobs)
        self.calendars = CalendarCommands(store)
        self.queues = QueueCommands(store)
        self.freezes = FreezeCommands(store, env, self.jobs)
        self.nodes = NodeCommands(store)
        self.webhooks = WebhookCommands(store, env, self.contracts)
