"""The doctor: whether the installation is in order, line by line; and the short health report."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from timeball.domain.explain.diagnosis import Diagnosis, unreachable
from timeball.domain.node import NodeKind, NodeStatus, report_broker
from timeball.errors import StoreError, quote_text
from timeball.store.db.migrate import newest_known

if TYPE_CHECKING:
    from timeball.application.queries.alerts import AlertQueries
    from timeball.store.search.listing import ListingStore
    from timeball.store.store import Store

_HEALTH_TIMEOUT_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """One line of the health report: `ok`, `warn` or `fail`, and a detail."""

    name: str
    status: str
    detail: str


class DoctorQueries:
    """Checks the whole installation."""

    def __init__(self, store: Store, listing: ListingStore, alerts: AlertQueries) -> None:
        self._store = store
        self._listing = listing
        self._alerts = alerts

    async def health(self) -> list[HealthCheck]:
        """Checks the database, its schema, and whether schedulers, workers and owners of all shards are alive."""
        try:
            async with asyncio.timeout(_HEALTH_TIMEOUT_SECONDS):
                schema = await self._listing.schema()
                nodes = await self._store.nodes.list()
                unowned = await self._listing.ownerless_shards()
        except (StoreError, TimeoutError) as error:
            detail = str(error) or f"no answer within {_HEALTH_TIMEOUT_SECONDS:g} s"
            return [HealthCheck("database", "fail", quote_text(detail, 200))]
        is_current = schema == newest_known()
        return [
            HealthCheck("database", "ok", "it answers"),
            HealthCheck(
                "schema", "ok" if is_current else "fail", f"it is {schema}, this program needs {newest_known()}"
            ),
            _alive_check(nodes, NodeKind.SCHEDULER),
            _alive_check(nodes, NodeKind.WORKER),
            HealthCheck("shards", "warn" if unowned else "ok", f"{unowned} of {self._store.shards} without an owner"),
            broker_check(nodes),
        ]

    async def diagnose(self) -> list[Diagnosis]:
        """Every line of the doctor: its checks, and what else needs attention. A database that does not answer is a line as well."""
        try:
            return await self._alerts.diagnose()
        except StoreError as error:
            return [unreachable(str(error))]


def broker_check(nodes: Sequence[NodeStatus]) -> HealthCheck:
    """The health line of the broker. It never fails: without a broker work goes on through PostgreSQL."""
    report = report_broker(nodes)
    return HealthCheck("broker", "ok" if report.is_fine else "warn", report.detail)


def _alive_check(nodes: Sequence[NodeStatus], kind: NodeKind) -> HealthCheck:
    number = sum(node.kind is kind for node in nodes)
    return HealthCheck(f"{kind.value}s", "ok" if number else "warn", f"{number} alive")
