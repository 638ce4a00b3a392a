"""From `ready` to `running`: executions are given to a worker, each to one, by a claim that the worker has made an id for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from timeball.domain.execution import Claimed, Stake
from timeball.domain.hints import Lane, Mark
from timeball.domain.ids import ClaimId, ExecutionId, Incarnation
from timeball.store.connections import Connection
from timeball.store.moves import Moves
from timeball.store.rows import claims_from


@dataclass(frozen=True, slots=True)
class ClaimWish:
    """What a worker can take: whose handlers, how many due now, how many to hold; of what is due, only what has waited so long.

    *has_rivals*: others are likely to be taking the same rows just now, so of several lanes it looks at more than it wants.
    """

    incarnation: Incarnation
    handlers: Sequence[str]
    slots: int
    holds: int
    unclaimed_for: timedelta = timedelta(0)
    has_rivals: bool = True


@dataclass(frozen=True, slots=True)
class Claims:
    """What a worker was given. *is_contended*: others were just taking more. *is_at_limit*: the queue has no place left."""

    executions: list[Claimed]
    is_contended: bool
    is_at_limit: bool = False


class Claiming(Moves):
    """What a worker takes, and what it has."""

    async def lanes(self) -> dict[Lane, tuple[Mark, bool]]:
        """Every lane that has something ready, most urgent first, with a mark at its first and whether its queue is limited."""
        rows = sorted(await self._database.fetch("lanes"), key=lambda row: (row["queue"], -row["priority"]))
        return {(row["queue"], row["priority"]): (Mark(row["run_at"], row["id"]), row["is_limited"]) for row in rows}

    async def is_anything_left(self, lanes: Mapping[Lane, datetime], handlers: Sequence[str], age: timedelta) -> bool:
        """Whether the first of one of these lanes, each from its instant on, has been ready for so long: nobody seems to take it."""
        marks = {lane: Mark(run_at) for lane, run_at in lanes.items()}
        is_left: bool = await self._database.fetch_value(
            "is_anything_left", **_lane_arrays(marks), handlers=handlers, age=age
        )
        return is_left

    async def claim(
        self, wish: ClaimWish, lanes: Mapping[Lane, Mark], claim_id: ClaimId, connection: Connection | None = None
    ) -> Claims:
        """Give up to *slots* due executions of these lanes to one worker, most urgent first, and up to *holds* that come next.

        Each lane is read from its mark on. No two workers are ever given the same execution. Paused and limited queues give nothing here.
        """
        most = wish.slots + wish.holds
        return await self._claim(wish, lanes, claim_id, most, is_limited=False, connection=connection)

    async def claim_limited(self, wish: ClaimWish, queue: str, lanes: Mapping[Lane, Mark], claim_id: ClaimId) -> Claims:
        """The same for one queue that has a limit: its row is locked first, so that the count is exact across all workers."""

        async def work(connection: Connection) -> Claims:
            limit = await self._database.fetch_value("lock_queue", connection, queue=queue)
            if limit is None:
                return Claims([], is_contended=False)
            running = await self._database.fetch_value("count_running_of_queue", connection, queue=queue)
            free = limit - running
            if free <= 0:
                return Claims([], is_contended=False, is_at_limit=True)
            narrowed = replace(wish, slots=min(wish.slots, free), holds=min(wish.holds, free))
            claims = await self._claim(narrowed, lanes, claim_id, free, is_limited=True, connection=connection)
            return replace(claims, is_at_limit=len(claims.executions) == free)

        claims: Claims = await self._database.repeat(work)
        return claims

    async def _claim(
        self,
        wish: ClaimWish,
        lanes: Mapping[Lane, Mark],
        claim_id: ClaimId,
        most: int,
        *,
        is_limited: bool,
        connection: Connection | None = None,
    ) -> Claims:
        rows = await self._database.fetch(
            "claim",
            connection,
            **_lane_arrays(lanes),
            is_limited=is_limited,
            unclaimed_for=wish.unclaimed_for,
            handlers=wish.handlers,
            slots=wish.slots,
            looks=2 * wish.slots if wish.has_rivals else wish.slots,
            holds=wish.holds,
            most=most,
            incarnation=wish.incarnation,
            claim_id=claim_id,
        )
        return Claims(claims_from(rows, claim_id), rows[0]["is_contended"])

    async def claim_named(
        self,
        wish: ClaimWish,
        execution_id: ExecutionId,
        queues: Sequence[str] | None,
        claim_id: ClaimId,
        connection: Connection | None = None,
    ) -> list[Claimed]:
        """Give this execution to one worker, if it is ready and due and may be run there. Paused and limited queues give nothing here."""
        rows = await self._database.fetch(
            "claim_named",
            connection,
            id=execution_id,
            handlers=wish.handlers,
            queues=queues,
            incarnation=wish.incarnation,
            claim_id=claim_id,
        )
        return claims_from(rows, claim_id)

    async def read_back_claim(self, incarnation: Incarnation, claim_id: ClaimId) -> list[Claimed]:
        """What a claim gave this worker, when the reply to it was lost."""
        rows = await self._database.fetch("read_back_claim", incarnation=incarnation, claim_id=claim_id)
        return [Claimed._make(tuple(row)) for row in rows]

    async def stakes(self, incarnation: Incarnation) -> set[Stake]:
        """Everything that stands in a worker's name, each with its claim."""
        rows = await self._database.fetch("stakes", incarnation=incarnation)
        return {(ExecutionId(row["id"]), ClaimId(row["claim_id"])) for row in rows}

    async def mark_queue_limited(self, connection: Connection | None = None) -> None:
        """Count what was claimed before its queue was limited."""
        await self._database.fetch("mark_queue_limited", connection)


def _lane_arrays(lanes: Mapping[Lane, Mark]) -> dict[str, list[Any]]:
    return {
        "queues": [queue for queue, _ in lanes],
        "priorities": [priority for _, priority in lanes],
        "bounds": [mark.run_at for mark in lanes.values()],
        "first_ids": [mark.id for mark in lanes.values()],
    }
