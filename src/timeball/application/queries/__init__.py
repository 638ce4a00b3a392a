"""Every read of API, command line and dashboard, by question; nothing here writes or counts a whole table."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from timeball.application.queries.alerts import AlertQueries
from timeball.application.queries.calendars import CalendarQueries
from timeball.application.queries.channels import ChannelQueries
from timeball.application.queries.doctor import DoctorQueries
from timeball.application.queries.executions import ExecutionQueries, OperationQueries
from timeball.application.queries.explain import ExplainQueries
from timeball.application.queries.feed import FeedQueries
from timeball.application.queries.forecast import ForecastQueries
from timeball.application.queries.groups import GroupQueries
from timeball.application.queries.handlers import HandlerQueries
from timeball.application.queries.instants import InstantQueries
from timeball.application.queries.jobs import JobQueries, TemplateQueries
from timeball.application.queries.ledger import LedgerQueries
from timeball.application.queries.ledger_days import LedgerDayQueries
from timeball.application.queries.metrics import MetricsQueries
from timeball.application.queries.timeline import TimelineQueries
from timeball.application.queries.webhooks import WebhookQueries
from timeball.store.diagnostics import DoctorStore, ExplainStore, GaugeStore
from timeball.store.ledger import LedgerStore
from timeball.store.timeline import TimelineStore

if TYPE_CHECKING:
    from timeball.config.settings import Settings
    from timeball.domain.freeze import FreezeList
    from timeball.domain.node import NodeKind, NodeStatus
    from timeball.domain.search import PageRequest, ResultPage
    from timeball.store.search.listing import ListingStore
    from timeball.store.store import Store


class Queries:
    """All queries over one store, by what they are about."""

    def __init__(self, store: Store, listing: ListingStore, settings: Settings) -> None:
        self._store = store
        self._listing = listing
        timelines, diagnostics = TimelineStore(store.database), DoctorStore(store.database)
        self.jobs = JobQueries(store, listing, diagnostics)
        self.templates = TemplateQueries(store)
        self.calendars = CalendarQueries(store)
        self.webhooks = WebhookQueries(store)
        self.channels = ChannelQueries(store)
        self.executions = ExecutionQueries(store, listing, diagnostics, timelines)
        self.groups = GroupQueries(store)
        self.operations = OperationQueries(store)
        self.handlers = HandlerQueries(store)
        self.explain = ExplainQueries(store, ExplainStore(store.database), self.jobs, self.executions, self.groups)
        self.alerts = AlertQueries(
            store, listing, diagnostics, timelines, self.explain, ExplainStore(store.database), settings
        )
        self.doctor = DoctorQueries(store, listing, self.alerts)
        ledger = LedgerStore(store.database)
        self.ledger = LedgerQueries(store, ledger)
        self.ledger_days = LedgerDayQueries(store, ledger, self.ledger)
        self.instants = InstantQueries(store, ExplainStore(store.database), self.jobs, self.ledger, self.explain)
        self.timeline = TimelineQueries(store, timelines)
        self.forecast = ForecastQueries(store, timelines)
        self.feed = FeedQueries(store, timelines)
        self.metrics = MetricsQueries(store, listing, GaugeStore(store.database), settings.api.metrics_jobs)

    def now(self) -> datetime:
        """The database's time, as accurately as this process knows it."""
        return self._store.env.clock.now()

    async def queues(self) -> list[dict[str, Any]]:
        """Up to 200 queues that have ready or running executions, a pause or a limit; longest waiting first."""
        return await self._listing.queues(by_need=True)

    async def queue_page(self, request: PageRequest) -> ResultPage[dict[str, Any]]:
        """A page of all queues by name."""
        return await self._listing.queue_page(request)

    async def queue(self, name: str) -> dict[str, Any]:
        """One queue; a queue that was never used is empty."""
        return (await self._listing.queues(name))[0]

    async def freezes(self) -> FreezeList:
        """Every freeze that is kept, those that are over included."""
        return await self._store.freezes.list()

    async def nodes(self, kind: NodeKind | None = None) -> list[NodeStatus]:
        """Every worker or scheduler that is registered."""
        return [node for node in await self._store.nodes.list() if kind is None or node.kind is kind]

    async def audit(self, subject: str | None, actor: str | None, request: PageRequest) -> ResultPage[dict[str, Any]]:
        """A page of audit entries, the latest first."""
        return await self._listing.audit(subject, actor, request)
