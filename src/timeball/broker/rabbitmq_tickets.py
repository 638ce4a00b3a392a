"""Tickets as messages of RabbitMQ, and ranks as its levels."""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

import aio_pika

from timeball.broker.interface import Ticket, rank_number, rank_of
from timeball.domain.ids import ExecutionId

LEVELS = 10
_LEVEL = timedelta(seconds=120)


def level_of(ticket: Ticket, now: datetime) -> int:
    """How urgent a ticket is to RabbitMQ, from 0 to 10: one level for each two minutes that its rank lies in the past."""
    return max(0, min((now - ticket.rank) // _LEVEL, LEVELS))


def message_of(ticket: Ticket, level: int) -> aio_pika.Message:
    """A ticket on its way. Not persistent: one that a restart loses is published again."""
    body = ticket.id.bytes + rank_number(ticket.rank).to_bytes(8, "big", signed=True) + ticket.queue.encode()
    return aio_pika.Message(body, priority=level)


def ticket_of(body: bytes) -> Ticket | None:
    """A ticket, or None for what somebody else has put there."""
    try:
        rank = rank_of(int.from_bytes(body[16:24], "big", signed=True))
        return Ticket(ExecutionId(UUID(bytes=body[:16])), body[24:].decode(), rank)
    except (ValueError, OverflowError):
        return None
