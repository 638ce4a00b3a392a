"""The rooms an execution walks through, and every move between them: hoist, claim, finish, promote, reap."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from timeball.domain.hints import Mark
from timeball.domain.ids import ClaimId, ExecutionId, Incarnation
from timeball.store.claiming import Claiming, Claims, ClaimWish
from timeball.store.connections import Connection
from timeball.store.finishing import Finishing, Orphan
from timeball.store.hoisting import PARKED_AT, Hoisting, Ownership

__all__ = ["PARKED_AT", "ClaimWish", "Claims", "Orphan", "Ownership", "Rooms"]


# PostgreSQL plans a statement five times for the values it is given, before one plan does for all.
_REHEARSALS = 6


class Rooms(Hoisting, Claiming, Finishing):
    """Every move of an execution. Each is one statement; those that count a limit lock it first."""

    async def rehearse(self) -> None:
        """Claim from a queue that cannot be, and finish nothing, until every connection at hand has its plans.

        The first claim on a connection takes ten times as long as any later one: the driver asks for the types of all arrays.
        """
        if not self._database.behind_pgbouncer:
            await self._database.on_each_at_hand(self._rehearse_on)

    async def _rehearse_on(self, connection: Connection) -> None:
        env = self._database.env
        wish = ClaimWish(Incarnation(env.new_id()), [""], slots=1, holds=1)
        # Where it looks further, into one lane and into several, it takes other plans; those are made once and for all.
        thorough = replace(wish, unclaimed_for=timedelta(seconds=1))
        for asked, lanes in (*[(wish, 1)] * _REHEARSALS, (thorough, 1), (thorough, 2)):
            marks = {("", priority): Mark(env.clock.now()) for priority in range(lanes)}
            await self.claim(asked, marks, ClaimId(env.new_id()), connection)
            await self.claim_named(asked, ExecutionId(env.new_id()), None, ClaimId(env.new_id()), connection)
            await self.finish_succeeded([], connection)
