"""The system as a whole, as calls."""

from __future__ import annotations

from timeball.client.calls import Call, Page, a, a_page, get, many
from timeball.client.models import AuditRecord, Concern, Diagnosis, Health, Metrics, Series, Stats
from timeball.client.verbs import Face, Group, Verb, Walk


def health() -> Call[Health]:
    """The database, its schema, and whether schedulers and workers are alive; also when they are not."""
    return Call("GET", "/health", a(Health), also_fine=frozenset({503}))


def stats(
    hours: float = 24, *, queue: str | None = None, handler: str | None = None, job: str | None = None
) -> Call[Stats]:
    """What waits and runs, and how executions ended; of all, or of one queue, handler or job."""
    return get("/stats", a(Stats), hours=hours, queue=queue, handler=handler, job=job)


def metrics() -> Call[Metrics]:
    """The numbers of this moment and of the last hour."""
    return get("/metrics", a(Metrics))


def series(
    hours: float = 24, *, queue: str | None = None, handler: str | None = None, job: str | None = None
) -> Call[Series]:
    """What happened in the last hours, step by step."""
    return get("/metrics/executions", a(Series), hours=hours, queue=queue, handler=handler, job=job)


def doctor() -> Call[Diagnosis]:
    """Whether everything is in order: what was found, and what to type."""
    return get("/doctor", a(Diagnosis))


def attention() -> Call[list[Concern]]:
    """What needs a human, the gravest first."""
    return get("/attention", many(Concern))


def list_audit(
    *, subject: str | None = None, actor: str | None = None, limit: int | None = None, cursor: str | None = None
) -> Call[Page[AuditRecord]]:
    """Who changed what, when and why, the latest first."""
    return get("/audit", a_page(AuditRecord), subject=subject, actor=actor, limit=limit, cursor=cursor)


class System(Group[Face]):
    """The system as a whole."""

    health = Verb(health)
    stats = Verb(stats)
    metrics = Verb(metrics)
    series = Verb(series)
    doctor = Verb(doctor)
    attention = Verb(attention)
    audit = Verb(list_audit)
    iterate_audit = Walk(list_audit)
