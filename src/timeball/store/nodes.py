"""Nodes, their leases and shards, and the handler contracts that workers publish."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from typing import TYPE_CHECKING, Any
from uuid import UUID

import asyncpg
import orjson

from timeball.domain.handler import ContractVersion, HandlerContract
from timeball.domain.node import BROKER_OK, BrokerStatus, Node, NodeKind, NodeStatus
from timeball.domain.values.ids import Incarnation
from timeball.domain.wakeup import PeerWorker, Wakeup
from timeball.env import ClockReading
from timeball.store.db.columns import write_audit
from timeball.store.db.rows import node_from
from timeball.store.types import AuditEntry, LeaseRenewal, ShardHolding

if TYPE_CHECKING:
    from timeball.store.db.database import Database
    from timeball.store.db.notifier import Notifier
    from timeball.store.db.pool import Connection

# The number of contracts of a handler that are kept: a deployment that is rolled back finds its own among them.
_MAX_CONTRACTS = 20

# The size of the cache of schemas: a fingerprint means the same schema for ever.
_MAX_SCHEMAS = 1_000


class HandlerStore:
    """The handler contracts that workers publish."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._schemas: dict[str, Mapping[str, Any]] = {}

    async def publish(self, contracts: Sequence[HandlerContract], *, is_start: bool) -> None:
        """Publish contracts. If a process starts with them (*is_start*), they become the newest of their names.

        Nothing is written for a contract that is the newest already.
        """
        if not contracts:
            return
        written = await self._database.fetch(
            "publish_handlers",
            names=[contract.name for contract in contracts],
            fingerprints=[contract.fingerprint for contract in contracts],
            schemas=[_schema_json(contract.schema) for contract in contracts],
            options=[_schema_json(contract.options) for contract in contracts],
            docs=[contract.doc for contract in contracts],
            run_styles=[contract.run_style for contract in contracts],
            is_start=is_start,
        )
        if written:
            await self._database.fetch(
                "forget_old_contracts", names=[row["name"] for row in written], limit=_MAX_CONTRACTS
            )

    async def versions(self, names: Iterable[str]) -> dict[str, list[ContractVersion]]:
        """All published contracts of these handlers, the newest of each first; handlers without any are missing."""
        storable = sorted({name for name in names if "\0" not in name})
        rows = await self._database.fetch("contract_versions", names=storable) if storable else []
        return {
            name: [_contract_version_from(row) for row in group]
            for name, group in groupby(rows, lambda row: str(row["name"]))
        }

    async def schemas(self, versions: Iterable[ContractVersion]) -> dict[str, Mapping[str, Any]]:
        """The schemas of these contracts, by their fingerprints."""
        names_by_fingerprint = {version.fingerprint: version.name for version in versions}
        schemas = {
            fingerprint: self._schemas[fingerprint]
            for fingerprint in names_by_fingerprint
            if fingerprint in self._schemas
        }
        missing = [fingerprint for fingerprint in names_by_fingerprint if fingerprint not in schemas]
        if missing:
            names = sorted({names_by_fingerprint[fingerprint] for fingerprint in missing})
            rows = await self._database.fetch("contract_schemas", names=names, fingerprints=missing)
            read = {row["fingerprint"]: orjson.loads(row["schema"]) for row in rows}
            if len(self._schemas) + len(read) > _MAX_SCHEMAS:
                self._schemas.clear()
            self._schemas |= read
            schemas |= read
        return schemas

    async def names(self, limit: int, after: str = "") -> list[str]:
        """The names of published handlers, in order, after a name."""
        return [row["name"] for row in await self._database.fetch("handler_names", after=after, limit=limit)]

    async def payloads_of_jobs(self, handlers: Sequence[str], after: UUID, limit: int) -> list[Any]:
        """Named jobs after an id, with their payloads; None for a job of another handler."""
        return await self._database.fetch("payloads_of_jobs", handlers=list(handlers), after=after, limit=limit)

    async def waiting_payloads(self, handlers: Sequence[str], after: UUID, limit: int) -> list[Any]:
        """Unfinished executions after an id, with their payloads.

        The payload is None for another handler, and for an execution with the present payload of a named job.
        """
        return await self._database.fetch("waiting_payloads", handlers=list(handlers), after=after, limit=limit)


def _schema_json(value: Mapping[str, Any]) -> str:
    # PostgreSQL cannot store NUL; a schema with one in a default is stored without it.
    return orjson.dumps(value).decode().replace("\\u0000", "")


def _contract_version_from(row: Any) -> ContractVersion:
    return ContractVersion(
        name=row["name"],
        fingerprint=row["fingerprint"],
        options=orjson.loads(row["options"]),
        doc=row["doc"],
        run_style=row["run_style"],
        published_at=row["published_at"],
        started_at=row["started_at"],
        is_newest=row["is_newest"],
        workers=tuple(row["workers"]),
    )


# Some providers of PostgreSQL do not permit the functions that identify a database.
_NOT_PERMITTED = (
    asyncpg.InsufficientPrivilegeError,
    asyncpg.UndefinedFunctionError,
    asyncpg.FeatureNotSupportedError,
)


class NodeStore:
    """Nodes, leases and shards. Time decides only about liveness here: nothing is unsafe if two nodes disagree for a moment."""

    def __init__(self, database: Database, notifier: Notifier) -> None:
        self._database = database
        self._notifier = notifier

    async def register(self, node: Node) -> None:
        """Insert a node: from now on it counts as alive until its lease expires."""
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
        self._notifier.tell(Wakeup(nodes_changed=True))

    async def renew(
        self,
        incarnation: Incarnation,
        busy: int,
        connection: Connection | None = None,
        broker: BrokerStatus = BROKER_OK,
        trouble: str | None = None,
    ) -> LeaseRenewal | None:
        """Renew a lease that has not expired; None means that the node has to stop. *trouble* is what went wrong since, if anything."""
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
        return LeaseRenewal(row["draining"], reading, [PeerWorker(*peer) for peer in row["peers"]])

    async def read_clock(self, connection: Connection | None = None) -> ClockReading:
        """One reading of the clock of the database."""
        clock = self._database.env.clock
        sent = clock.monotonic()
        database_time: datetime = await self._database.fetch_value("read_clock", connection)
        return ClockReading(sent, clock.monotonic(), database_time)

    async def drain(self, incarnation: Incarnation, audit: AuditEntry | None = None) -> bool:
        """Ask a node to take no more work; it reads that with its next renewal. False if there is no such node."""
        audit_id = self._database.env.new_id()

        async def work(connection: Connection) -> bool:
            if not await self._database.fetch("drain_node", connection, incarnation=incarnation):
                return False
            if audit is not None:
                after = {"draining": True}
                await write_audit(
                    self._database, connection, audit_id, audit, "node.drain", f"node:{incarnation}", None, after
                )
            return True

        return bool(await self._database.once(work, audit_id))

    async def identity(self, connection: Connection | None = None) -> str | None:
        """The id of the database and its timeline; None if the server does not permit reading them."""
        if connection is None:
            async with self._database.connection() as own:
                return await self.identity(own)
        try:
            identity: str | None = await self._database.fetch_value("read_identity", connection)
        except _NOT_PERMITTED:
            return None
        return identity

    async def remove(self, incarnation: Incarnation) -> None:
        """Deregister a node, so that other nodes need not wait until its lease expires."""
        await self._database.fetch("remove_node", incarnation=incarnation)
        self._notifier.tell(Wakeup(nodes_changed=True))

    async def remove_expired(self) -> list[tuple[Incarnation, NodeKind, str]]:
        """Remove the nodes whose lease has expired, and return them."""
        rows = await self._database.fetch("remove_expired_nodes")
        if rows:
            self._notifier.tell(Wakeup(nodes_changed=True))
        return [(Incarnation(row["incarnation"]), NodeKind(row["kind"]), row["name"]) for row in rows]

    async def list(self) -> Sequence[NodeStatus]:
        """Every node with a valid lease."""
        return [node_from(row) for row in await self._database.fetch("list_nodes")]

    async def inboxes(self, broker: str) -> Sequence[tuple[Sequence[str] | None, Sequence[str]]]:
        """The queues (None means all) and handlers of the living workers that use this broker; each pair once."""
        return [(row["queues"], row["handlers"]) for row in await self._database.fetch("read_inboxes", broker=broker)]

    async def holdings(self) -> Sequence[ShardHolding]:
        """All shards by owner, and every scheduler that takes shards, with or without any."""
        return [
            ShardHolding(
                None if owner is None else Incarnation(owner),
                is_alive,
                takes_shards,
                dict(zip(shards, epochs, strict=True)),
            )
            for owner, is_alive, takes_shards, shards, epochs in await self._database.fetch("read_holdings")
        ]

    async def take_shards(self, incarnation: Incarnation, ids: Sequence[int]) -> dict[int, int]:
        """Take those of the shards that have no living owner; returns each with its new epoch."""
        rows = await self._database.fetch("take_shards", incarnation=incarnation, ids=list(ids))
        return {row["id"]: row["epoch"] for row in sorted(rows)}

    async def release_shards(self, incarnation: Incarnation, ids: Sequence[int]) -> None:
        """Release shards, so that others can take them at once."""
        await self._database.fetch("release_shards", incarnation=incarnation, ids=list(ids))
        self._notifier.tell(Wakeup(nodes_changed=True))
