"""What a broker needs of the store: which executions are ready, and the claim of those that tickets name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import blake2b

from timeball.domain.execution import Claimed
from timeball.domain.hints import Lane
from timeball.domain.ids import ClaimId, ExecutionId
from timeball.store.database import Database
from timeball.store.rooms import ClaimWish
from timeball.store.rows import claims_from


@dataclass(frozen=True, slots=True)
class ReadyRow:
    """A ready execution, as far as a ticket has to know; its *fence* grows with every claim."""

    id: ExecutionId
    queue: str
    rank: datetime
    handler: str
    fence: int


@dataclass(frozen=True, slots=True)
class TicketClaims:
    """What a worker was given, and the ids of what it could have been given, had there been room."""

    executions: list[Claimed]
    left: list[ExecutionId]


class Tickets:
    """Reads what is ready, and claims by id. Tickets prove nothing: every rule for claims is asked again here."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read(self, lanes: Mapping[Lane, datetime], handlers: Sequence[str], limit: int) -> list[ReadyRow]:
        """The most urgent of these lanes, each from its bound on, at most *limit* a queue; none of paused and limited queues."""
        rows = await self._database.fetch(
            "read_tickets",
            queues=[queue for queue, _ in lanes],
            priorities=[priority for _, priority in lanes],
            bounds=list(lanes.values()),
            handlers=list(handlers),
            limit=limit,
        )
        return [
            ReadyRow(ExecutionId(row["id"]), row["queue"], row["rank"], row["handler"], row["fence"]) for row in rows
        ]

    async def claim(
        self, wish: ClaimWish, ids: Sequence[ExecutionId], queues: Sequence[str] | None, claim_id: ClaimId
    ) -> TicketClaims:
        """Give those of the executions to one worker that are ready, that it may run and that it has room for.

        No two workers are ever given the same execution. Paused and limited queues give nothing here.
        """
        rows = await self._database.fetch(
            "claim_tickets",
            ids=list(dict.fromkeys(ids)),
            handlers=wish.handlers,
            queues=queues,
            slots=max(wish.slots, 0),
            holds=wish.holds,
            incarnation=wish.incarnation,
            claim_id=claim_id,
        )
        return TicketClaims(claims_from(rows, claim_id), [ExecutionId(id_) for id_ in rows[0]["left_ids"] or ()])

    async def namespace(self) -> str:
        """A short name for this database, other than that of any other which may use the same broker."""
        text: str = await self._database.fetch_value("read_namespace")
        return blake2b(text.encode(), digest_size=6).hexdigest()
