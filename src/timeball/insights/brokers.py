"""Whether due work is carried as it was meant to be, as a line of the health report."""

from __future__ import annotations

from collections.abc import Sequence

from timeball.domain.brokers import report_on_broker
from timeball.domain.node import NodeStatus
from timeball.insights.views import Check


def broker_check(nodes: Sequence[NodeStatus]) -> Check:
    """One line about the broker; it never fails, because work goes on without one."""
    report = report_on_broker(nodes)
    return Check("broker", "ok" if report.is_fine else "warn", report.found)
