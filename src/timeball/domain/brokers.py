"""What the nodes say of their broker, all taken together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from timeball.domain.node import BrokerState, NodeStatus
from timeball.domain.wording import counted

_NAMES = {"postgresql": "PostgreSQL", "redis": "Redis", "rabbitmq": "RabbitMQ"}
_MEANWHILE = "work goes on through PostgreSQL"


@dataclass(frozen=True, slots=True)
class BrokerReport:
    """What was found, and what to do if it is not as it should be."""

    found: str
    advice: str | None = None

    @property
    def is_fine(self) -> bool:
        return self.advice is None


def broker_name(kind: str) -> str:
    """A broker as people write it."""
    return _NAMES[kind]


def report_on_broker(nodes: Sequence[NodeStatus]) -> BrokerReport:
    """The worst that any node has to say."""
    kinds = Counter(node.broker for node in nodes)
    down = [node for node in nodes if node.broker_status.state is BrokerState.DOWN]
    silent = [node for node in nodes if node.broker_status.state is BrokerState.SILENT]
    if down:
        return _down(down, len(nodes))
    if len(kinds) > 1:
        used = ", ".join(f"{broker_name(kind)}: {number}" for kind, number in sorted(kinds.items()))
        return BrokerReport(f"the nodes use different ones ({used})", "set TIMEBALL_BROKER_URL alike on all nodes")
    if silent:
        found = f"{counted(len(silent), 'worker')} got no tickets from {broker_name(silent[0].broker)}; {_MEANWHILE}"
        return BrokerReport(found, "run a scheduler with the same TIMEBALL_BROKER_URL")
    return BrokerReport(f"{broker_name(next(iter(kinds), 'postgresql'))} carries due work")


def _down(down: Sequence[NodeStatus], number: int) -> BrokerReport:
    name, error = broker_name(down[0].broker), down[0].broker_status.error
    found = f"{len(down)} of {counted(number, 'node')} cannot use {name} ({error}); {_MEANWHILE}"
    return BrokerReport(found, f"bring {name} back, or unset TIMEBALL_BROKER_URL")
