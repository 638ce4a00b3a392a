"""Nodes: the processes of an installation, their leases, their shares of the shards, and the state of their broker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from hashlib import blake2b

from timeball.domain.values.ids import Incarnation
from timeball.domain.values.wording import counted
from timeball.errors import SettingsError


def alive_nodes(nodes: Sequence[NodeStatus], now: datetime) -> list[NodeStatus]:
    """The nodes whose lease has not run out; the others are expired, even if they are still registered."""
    return [node for node in nodes if node.lease_until > now]


_NAMES = {"postgresql": "PostgreSQL", "redis": "Redis", "rabbitmq": "RabbitMQ"}
_MEANWHILE = "work goes on through PostgreSQL"


@dataclass(frozen=True, slots=True)
class BrokerReport:
    """The state of the broker across all nodes, and advice if something is wrong."""

    detail: str
    advice: str | None = None

    @property
    def is_fine(self) -> bool:
        return self.advice is None


def broker_name(kind: str) -> str:
    """The name of a broker in messages."""
    return _NAMES[kind]


def report_broker(nodes: Sequence[NodeStatus]) -> BrokerReport:
    """The worst state that any node reports."""
    kinds = Counter(node.broker for node in nodes)
    down = [node for node in nodes if node.broker_status.state is BrokerState.DOWN]
    silent = [node for node in nodes if node.broker_status.state is BrokerState.SILENT]
    if down:
        return _broker_down(down, len(nodes))
    if len(kinds) > 1:
        used = ", ".join(f"{broker_name(kind)}: {number}" for kind, number in sorted(kinds.items()))
        return BrokerReport(f"the nodes use different ones ({used})", "set TIMEBALL_BROKER_URL alike on all nodes")
    if silent:
        detail = f"{counted(len(silent), 'worker')} got no tickets from {broker_name(silent[0].broker)}; {_MEANWHILE}"
        return BrokerReport(detail, "run a scheduler with the same TIMEBALL_BROKER_URL")
    return BrokerReport(f"{broker_name(next(iter(kinds), 'postgresql'))} carries due work")


def _broker_down(down: Sequence[NodeStatus], number: int) -> BrokerReport:
    name, error = broker_name(down[0].broker), down[0].broker_status.error
    detail = f"{len(down)} of {counted(number, 'node')} cannot use {name} ({error}); {_MEANWHILE}"
    return BrokerReport(detail, f"bring {name} back, or unset TIMEBALL_BROKER_URL")


class NodeKind(StrEnum):
    """What a node does."""

    SCHEDULER = "scheduler"
    WORKER = "worker"


class BrokerState(StrEnum):
    """Whether a node's broker carries due work."""

    WORKS = "works"
    # The broker answers, but no ticket arrives although work is ready.
    SILENT = "silent"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """The state of a node's broker, and its last error when it is down."""

    state: BrokerState = BrokerState.WORKS
    error: str | None = None


BROKER_OK = BrokerStatus()


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """How long a node counts as alive after each renewal, and how often it renews."""

    span: timedelta
    interval: timedelta

    def __post_init__(self) -> None:
        # Two renewals may fail before a lease runs out; with less, one slow commit kills a healthy node.
        if self.span < 3 * self.interval:
            raise SettingsError([f"lease of {self.span} is shorter than three renewal intervals of {self.interval}"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A process from registration to exit. Its name is for people; only its incarnation identifies it."""

    incarnation: Incarnation
    kind: NodeKind
    name: str
    lease: Lease
    slots: int = 0
    queues: tuple[str, ...] | None = None
    handlers: tuple[str, ...] = ()
    # The fingerprints of the contracts of these handlers.
    fingerprints: tuple[str, ...] = ()
    version: str = ""
    broker: str = "postgresql"
    # Set if it replaces a node that died: how that node died.
    trouble: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """A registered node as reads return it."""

    incarnation: Incarnation
    kind: NodeKind
    name: str
    started_at: datetime
    renewed_at: datetime
    lease_until: datetime
    slots: int
    busy: int
    queues: tuple[str, ...] | None
    handlers: tuple[str, ...]
    version: str
    draining: bool
    fingerprints: tuple[str, ...] = ()
    shards: tuple[int, ...] = field(default=())
    broker: str = "postgresql"
    broker_status: BrokerStatus = BROKER_OK
    # What went wrong with it last, though it lives on.
    trouble: str | None = None
    trouble_at: datetime | None = None

    def serves(self, queue: str) -> bool:
        """Whether this worker claims from a queue; a draining worker does not."""
        return not self.draining and serves_queue(self.queues, queue)


def serves_queue(queues: Collection[str] | None, queue: str) -> bool:
    """Whether a worker with these queues serves this one; no queues means all."""
    return not queues or queue in queues


def fair_share(shards: Iterable[int], nodes: Iterable[Incarnation]) -> dict[int, Incarnation]:
    """The owner of each shard: rendezvous hashing, evened out.

    Every scheduler that sees the same nodes computes the same answer, and a node that joins or leaves moves few shards.
    The shares differ by one shard at most.
    """
    candidates = sorted(set(nodes), key=lambda node: node.bytes)
    all_shards = sorted(set(shards))
    if not candidates:
        return {}
    least, left_over = divmod(len(all_shards), len(candidates))
    owned = dict.fromkeys(candidates, 0)
    share: dict[int, Incarnation] = {}
    for shard in all_shards:
        ranked = sorted(candidates, key=lambda node: _weight(shard, node), reverse=True)
        owner = next(node for node in ranked if owned[node] < least + (left_over > 0))
        left_over -= owned[owner] == least
        owned[owner] += 1
        share[shard] = owner
    return share


def _weight(shard: int, node: Incarnation) -> bytes:
    return blake2b(node.bytes + shard.to_bytes(4, "big"), digest_size=8).digest()
