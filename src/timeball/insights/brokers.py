"""Whether due work is carried as it was meant to be: what the nodes say of their broker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from timeball.domain.node import BrokerState, NodeStatus
from timeball.insights.views import Check

_NAMES = {"postgresql": "PostgreSQL", "redis": "Redis", "rabbitmq": "RabbitMQ"}
_MEANWHILE = "work goes on through PostgreSQL"


def broker_check(nodes: Sequence[NodeStatus]) -> Check:
    """One line about the broker: the worst that any node has to say."""
    kinds = Counter(node.broker for node in nodes)
    down = [node for node in nodes if node.broker_status.state is BrokerState.DOWN]
    silent = [node for node in nodes if node.broker_status.state is BrokerState.SILENT]
    if down:
        first = down[0]
        problem = f"{len(down)} of {len(nodes)} nodes do not reach {_NAMES[first.broker]}"
        return Check("broker", "warn", f"{problem} ({first.broker_status.error}); {_MEANWHILE}")
    if len(kinds) > 1:
        used = ", ".join(f"{_NAMES[kind]}: {number}" for kind, number in sorted(kinds.items()))
        return Check(
            "broker", "warn", f"the nodes use different ones ({used}); set TIMEBALL_BROKER_URL alike everywhere"
        )
    if silent:
        problem = f"{len(silent)} workers get no tickets from {_NAMES[silent[0].broker]}"
        return Check("broker", "warn", f"{problem}: does a scheduler use the same TIMEBALL_BROKER_URL? {_MEANWHILE}")
    kind = next(iter(kinds), "postgresql")
    return Check("broker", "ok", f"{_NAMES[kind]} carries due work")
