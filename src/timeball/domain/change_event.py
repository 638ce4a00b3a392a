"""Change events: what the event stream sends (a type, a subject, an instant, a few fields), and the filter of a subscriber."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from hashlib import blake2b
from typing import Any
from uuid import UUID

from timeball.domain.values.ids import JobId, format_id, new_id

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

EXECUTION_STARTED = "execution.started"
# Every type there is, but for the actions of operators: those are called as in the audit (`job.pause`).
CHANGE_EVENT_TYPES = (
    EXECUTION_STARTED,
    "execution.succeeded",
    "execution.cancelled",
    "execution.dead",
    "execution.skipped",
    "attempt.failed",
    "attempt.timed_out",
    "attempt.lost",
    "worker.started",
    "worker.gone",
    "scheduler.started",
    "scheduler.gone",
)


def change_event_id(at: datetime, *parts: object) -> UUID:
    """The id of what happened: ordered by time, the same wherever it is computed."""
    digest = blake2b("\0".join(str(part) for part in parts).encode(), digest_size=10).digest()
    milliseconds = (at - _EPOCH) // timedelta(milliseconds=1)
    return new_id(milliseconds, int.from_bytes(digest, "big") >> 6)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeEvent:
    """Something that happened."""

    id: UUID
    type: str
    at: datetime
    subject: str
    job_id: JobId | None = None
    queue: str | None = None
    handler: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)

    @property
    def topics(self) -> frozenset[str]:
        """The names of everything on a page that this may change."""
        kind = self.type.partition(".")[0]
        names = {_TOPIC_OF_KIND.get(kind, f"{kind}s"), self.subject}
        if self.type == "execution.dead":
            names.add("dead")
        if self.job_id is not None:
            names.add(format_id("job", self.job_id))
        if self.queue is not None:
            names |= {"queues", f"queue:{self.queue}"}
        return frozenset(names)


_TOPIC_OF_KIND = {"attempt": "executions", "scheduler": "workers"}


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Which events somebody wants to hear of; nothing named means all."""

    types: tuple[str, ...] = ()
    queue: str | None = None
    job_id: JobId | None = None

    def wants(self, event: ChangeEvent) -> bool:
        """Whether a event is wanted; a type may end with a star: `execution.*`."""
        if self.types and not any(fnmatchcase(event.type, wanted) for wanted in self.types):
            return False
        if self.queue is not None and event.queue != self.queue:
            return False
        return self.job_id is None or event.job_id == self.job_id

    def select(self, events: Iterable[ChangeEvent]) -> list[ChangeEvent]:
        """Those that are wanted."""
        return [event for event in events if self.wants(event)]
