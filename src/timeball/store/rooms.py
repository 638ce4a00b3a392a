"""The rooms an execution walks through, and every move between them: hoist, claim, finish, promote, reap."""

from __future__ import annotations

from timeball.store.claiming import Claiming, Claims, ClaimWish
from timeball.store.finishing import Finishing, Orphan
from timeball.store.hoisting import PARKED_AT, Hoisting, Ownership

__all__ = ["PARKED_AT", "ClaimWish", "Claims", "Orphan", "Ownership", "Rooms"]


class Rooms(Hoisting, Claiming, Finishing):
    """Every move of an execution. Each is one statement; those that count a limit lock it first."""
