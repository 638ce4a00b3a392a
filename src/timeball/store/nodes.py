"""Nodes, their leases, and who owns which shard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import asyncpg

from timeball.clock import ClockReading
from timeball.domain.hints import Hints
from timeball.domain.ids import Incarnation
from timeball.domain.node import BROKER_WORKS, BrokerStatus, Node, NodeKind, NodeStatus
from timeball.domain.turns import Peer
from timeball.store.connections import Connection
from timeball.store.database import Database
from timeball.store.hinter import Hinter
from timeball.store.rows import node_from

# Some who offer PostgreSQL as a service do not show what is below it.
_MAY_NOT_BE_ASKED = (
    asyncpg.InsufficientPrivilegeError,
    asyncpg.UndefinedFunctionError,
    asyncpg.FeatureNotSupportedError,
)


@dataclass(frozen=True, slots=True)
class Renewal:
    """An accepted renewal: whether the node is to drain, what the database's clock said, and who can stand in for the node."""

    is_draining: bool
    reading: ClockReading
    peers: Sequence[Peer]


@dataclass(frozen=True, slots=True)
class Holding:
    """What a scheduler owns: shards with their epochs. Whether it is alive, and one of those among which all shards are shared.

    What nobody owns is a holding without an owner.
    """

    owner: Incarnation | None
    lives: bool
    takes_part: bool
    epochs: Mapping[int, int]


class Nodes:
    """Leases and shards. Time decides only liveness here; nothing is unsafe when two nodes disagree for a moment."""

    def __init__(self, database: Database, hinter: Hinter) -> None:
        self._database = database
        self._hinter = hinter

    async def register(self, node: Node) -> None:
        """Begin a life: from now on the node is believed alive until its lease runs out."""
        await self._database.fetch(
            "register_node",
            incarnation=node.incarnation,
            kind=node.kind.value,
            name=node.name,
            lease=node.lease.span,
            slots=node.slots,
            queues=None if node.queues is None else list(node.queues),
            handlers=list(node.handlers),
            fingerprints=list(node.fingerprints),
            version=node.version,
            broker=node.broker,
            trouble=node.trouble,
        )
        self._hinter.tell(Hints(nodes_changed=True))

    async def renew(
        self,
        incarnation: Incarnation,
        busy: int,
        connection: Connection | None = None,
        broker: BrokerStatus = BROKER_WORKS,
        trouble: str | None = None,
    ) -> Renewal | None:
        """Renew a lease that has not run out; None means that this life is over. *trouble* is what went wrong since, if anything did."""
        clock = self._database.env.clock
        sent = clock.monotonic()
        row = await self._database.fetch_row(
            "renew_lease",
            connection,
            incarnation=incarnation,
            busy=busy,
            broker_state=broker.state.value,
            broker_error=broker.error,
            trouble=trouble,
        )
        if row is None:
            return None
        reading = ClockReading(sent, clock.monotonic(), row["database_time"])
        return Renewal(row["draining"], reading, [Peer(*peer) for peer in row["peers"]])

    async def read_clock(self, connection: Connection | None = None) -> ClockReading:
        """One look at the database's clock."""
        clock = self._database.env.clock
        sent = clock.monotonic()
        database_time: datetime = await self._database.fetch_value("read_clock", connection)
        return ClockReading(sent, clock.monotonic(), database_time)

    async def identity(self, connection: Connection | None = None) -> str | None:
        """Which database this is, and which of its time lines; None where that may not be asked."""
        if connection is None:
            async with self._database.connection() as own:
                return await self.identity(own)
        try:
            found: str | None = await self._database.fetch_value("read_identity", connection)
        except _MAY_NOT_BE_ASKED:
            return None
        return found

    async def remove(self, incarnation: Incarnation) -> None:
        """A clean farewell: others need not wait for the lease to run out."""
        await self._database.fetch("remove_node", incarnation=incarnation)
        self._hinter.tell(Hints(nodes_changed=True))

    async def bury(self) -> list[tuple[Incarnation, NodeKind, str]]:
        """Remove the nodes whose lease has passed, and say which."""
        rows = await self._database.fetch("bury_nodes")
        if rows:
            self._hinter.tell(Hints(nodes_changed=True))
        return [(Incarnation(row["incarnation"]), NodeKind(row["kind"]), row["name"]) for row in rows]

    async def drain(self, incarnation: Incarnation) -> bool:
        """Ask a node to stop taking work; it hears of it with its next renewal. False if there is no such node."""
        return bool(await self._database.fetch("drain_node", incarnation=incarnation))

    async def list(self) -> Sequence[NodeStatus]:
        """Every node that is believed alive."""
        return [node_from(row) for row in await self._database.fetch("list_nodes")]

    async def is_alive(self, host: str, kinds: Sequence[NodeKind]) -> bool:
        """Whether a node of one of these kinds on this host is believed alive."""
        alive: bool = await self._database.fetch_value("host_is_alive", host=host, kinds=[kind.value for kind in kinds])
        return alive

    async def inboxes(self, broker: str) -> Sequence[tuple[Sequence[str] | None, Sequence[str]]]:
        """The queues served (None means all) and the handlers known by living workers that use this broker; each pair once."""
        return [(row["queues"], row["handlers"]) for row in await self._database.fetch("read_inboxes", broker=broker)]

    async def holdings(self) -> Sequence[Holding]:
        """All shards, by their owners; and all who take part in the sharing, with or without shards."""
        return [
            Holding(
                None if owner is None else Incarnation(owner), lives, takes_part, dict(zip(shards, epochs, strict=True))
            )
            for owner, lives, takes_part, shards, epochs in await self._database.fetch("read_holdings")
        ]

    async def take_shards(self, incarnation: Incarnation, ids: Sequence[int]) -> dict[int, int]:
        """Take those of the shards that nobody alive owns; returns each with its new epoch."""
        rows = await self._database.fetch("take_shards", incarnation=incarnation, ids=list(ids))
        return {row["id"]: row["epoch"] for row in sorted(rows)}

    async def release_shards(self, incarnation: Incarnation, ids: Sequence[int]) -> None:
        """Give shards up, so that others can take them at once."""
        await self._database.fetch("release_shards", incarnation=incarnation, ids=list(ids))
        self._hinter.tell(Hints(nodes_changed=True))
