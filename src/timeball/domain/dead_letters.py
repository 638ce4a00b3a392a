"""Dead letters in groups: what they can be put together by, and what is told of each group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from timeball.domain.ids import ExecutionId

# How those are asked for whose error bears no fingerprint.
NO_FINGERPRINT = "none"


class DeadGrouping(StrEnum):
    """What dead letters are put together by; an error is known by its fingerprint."""

    ERROR = "error"
    HANDLER = "handler"
    QUEUE = "queue"

    @property
    def field(self) -> str:
        """What the executions of one group are asked for by."""
        return "fingerprint" if self is DeadGrouping.ERROR else self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadGroup:
    """Dead executions that have something in common; error and frame are those of the latest.

    *deaths* counts them in equal parts of the time from *since* to *until*, which is the same for all groups of a list.
    """

    by: DeadGrouping
    key: str
    executions: int
    error_type: str | None
    latest_error: str | None
    latest_id: ExecutionId
    top_frame: str | None
    handlers: Sequence[str]
    queues: Sequence[str]
    first_at: datetime
    last_at: datetime
    deaths: Sequence[int]
    since: datetime
    until: datetime
