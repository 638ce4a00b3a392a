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
# Only streams and pages that listen are told of progress: it leaves no record to be read later.
EXECUTION_PROGRESS = "execution.progress"
# Every type except the actions of operators, which have the names of the audit (`job.pause`).
CHANGE_EVENT_TYPES = (
    EXECUTION_STARTED,
    EXECUTION_PROGRESS,
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
    """The id of an event: ordered by time, and the same on every machine."""
    digest = blake2b("\0".join(str(part) for part in parts).encode(), digest_size=10).digest()
    milliseconds = (at - _EPOCH) // timedelta(milliseconds=1)
    return new_id(milliseconds, int.from_bytes(digest, "big") >> 6)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeEvent:
    """A change of an execution, an attempt, a job, a queue or a node."""

    id: UUID
    type: str
    at: datetime
    subject: str
    job_id: JobId | None = None
    queue: str | None = None
    handler: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    # The tags of its job, as far as the reader has looked them up.
    tags: frozenset[str] = frozenset()

    @property
    def topics(self) -> frozenset[str]:
        """The topics of the parts of a page that this event may change."""
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
    """Selects events by type, queue, job, handler and a tag of the job; an empty filter selects all."""

    types: tuple[str, ...] = ()
    queue: str | None = None
    job_id: JobId | None = None
    handler: str | None = None
    tag: str | None = None

    def matches(self, event: ChangeEvent) -> bool:
        """Whether an event passes the filter; a type may end with a star: `execution.*`."""
        if self.types and not any(fnmatchcase(event.type, pattern) for pattern in self.types):
            return False
        if self.queue is not None and event.queue != self.queue:
            return False
        if self.handler is not None and event.handler != self.handler:
            return False
        if self.tag is not None and self.tag not in event.tags:
            return False
        return self.job_id is None or event.job_id == self.job_id

    def select(self, events: Iterable[ChangeEvent]) -> list[ChangeEvent]:
        """The events that pass the filter."""
        return [event for event in events if self.matches(event)]


def event_document(event: ChangeEvent) -> dict[str, Any]:
    """An event as the API shows it."""
    return {
        "id": format_id("evt", event.id),
        "type": event.type,
        "at": event.at,
        "subject": event.subject,
        "job_id": None if event.job_id is None else format_id("job", event.job_id),
        "queue": event.queue,
        "handler": event.handler,
        "data": dict(event.data),
    }


def cloud_event(event: ChangeEvent) -> dict[str, Any]:
    """An event in the format of CloudEvents 1.0."""
    document = event_document(event)
    return {
        "specversion": "1.0",
        "id": document["id"],
        "source": "/timeball",
        "type": f"timeball.{event.type}",
        "subject": event.subject,
        "time": event.at,
        "datacontenttype": "application/json",
        "data": {name: document[name] for name in ("job_id", "queue", "handler")} | document["data"],
    }
