"""The store as the engine sees it: domain verbs, in groups.

There is one implementation, on PostgreSQL; this is the seam behind which it stays.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from timeball.store.connections import Confirmation, Connection
from timeball.store.enqueuing import Own, Pattern, is_plain, pattern_of
from timeball.store.history import History as HistoryStore
from timeball.store.history import LogLine
from timeball.store.jobs import Jobs as JobStore
from timeball.store.jobs import Request
from timeball.store.lost_replies import write_again
from timeball.store.new_jobs import Created, Opening
from timeball.store.nodes import Holding, Renewal
from timeball.store.nodes import Nodes as NodeStore
from timeball.store.placing import AuditEntry
from timeball.store.postgres import Store
from timeball.store.retention import Retention as RetentionStore
from timeball.store.rooms import PARKED_AT, Claims, ClaimWish, Orphan, Ownership
from timeball.store.rooms import Rooms as RoomStore

if TYPE_CHECKING:
    from timeball.store.changes import Changes, ChangeStream
    from timeball.store.handlers import Handlers as HandlerStore
    from timeball.store.lines import LoopLine, ThreadLine
    from timeball.store.rollups import Rollups as RollupStore
    from timeball.store.tickets import ReadyRow, TicketClaims
    from timeball.store.tickets import Tickets as TicketStore

__all__ = [
    "PARKED_AT",
    "AuditEntry",
    "ChangeStream",
    "Changes",
    "ClaimWish",
    "Claims",
    "Confirmation",
    "Connection",
    "Created",
    "HandlerStore",
    "HistoryStore",
    "Holding",
    "JobStore",
    "LogLine",
    "LoopLine",
    "NodeStore",
    "Opening",
    "Orphan",
    "Own",
    "Ownership",
    "Pattern",
    "ReadyRow",
    "Renewal",
    "Request",
    "RetentionStore",
    "RollupStore",
    "RoomStore",
    "Store",
    "ThreadLine",
    "TicketClaims",
    "TicketStore",
    "is_plain",
    "pattern_of",
    "write_again",
]

# What an idle worker never asks for is imported when somebody does.
_LATE = {
    "ChangeStream": ("changes", "ChangeStream"),
    "Changes": ("changes", "Changes"),
    "HandlerStore": ("handlers", "Handlers"),
    "LoopLine": ("lines", "LoopLine"),
    "ReadyRow": ("tickets", "ReadyRow"),
    "RollupStore": ("rollups", "Rollups"),
    "ThreadLine": ("lines", "ThreadLine"),
    "TicketClaims": ("tickets", "TicketClaims"),
    "TicketStore": ("tickets", "Tickets"),
}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _LATE[name]
    return getattr(import_module(f"timeball.store.{module}"), attribute)
