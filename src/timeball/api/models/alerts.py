"""Bodies about alerts."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from timeball.api.models import PageOut, ReasonIn
from timeball.api.models.system import TargetOut
from timeball.domain.alerts import Alert, AlertMember, format_alert_id
from timeball.domain.values.ids import format_job_id


class AcknowledgeIn(ReasonIn):
    """An acknowledgement, until an instant or until the alert is resolved."""

    until: Annotated[str, Field(max_length=64, description="ISO 8601; without an offset, it is in UTC.")] | None = None


class AlertMemberOut(BaseModel):
    """What an alert is about: a job, a queue, a node."""

    name: str
    job_id: str | None
    queue: str | None
    tags: list[str]


class AcknowledgementOut(BaseModel):
    """Who knows of an alert, since when, and until when that is enough."""

    at: datetime
    by: str
    until: datetime | None = Field(description="`null`: until the alert is resolved.")
    reason: str | None


class AlertOut(BaseModel):
    """A fact that a person should act upon, from when it was first seen until it is gone."""

    id: str
    kind: str
    severity: Literal["critical", "warning"]
    state: Literal["pending", "open", "acknowledged", "resolved"]
    sentence: str
    advice: str | None
    command: str | None
    why: str | None = Field(description="Why it is so, in one sentence, where that is known.")
    target: TargetOut | None
    count: int = Field(description="How many members it has.")
    members: list[AlertMemberOut] = Field(description="What it is about; of many, 500.")
    first_seen_at: datetime
    opened_at: datetime | None = Field(description="`null` while it is pending.")
    last_seen_at: datetime
    resolved_at: datetime | None
    acknowledgement: AcknowledgementOut | None


class AlertPage(PageOut[AlertOut]):
    """A page of alerts."""

    evaluated_at: datetime | None = Field(description="When alerts were last evaluated; `null` if they never were.")


def alert_document(alert: Alert) -> dict[str, Any]:
    """An alert."""
    fact, known = alert.fact, alert.acknowledgement
    return {
        "id": format_alert_id(alert.id),
        "kind": fact.kind,
        "severity": fact.severity.value,
        "state": alert.state.value,
        "sentence": fact.sentence,
        "advice": fact.advice,
        "command": fact.command,
        "why": fact.why,
        "target": None if fact.target is None else {"kind": fact.target[0], "id": fact.target[1]},
        "count": fact.count,
        "members": [_member_document(member) for member in fact.members],
        "first_seen_at": alert.first_seen_at,
        "opened_at": alert.opened_at,
        "last_seen_at": alert.last_seen_at,
        "resolved_at": alert.resolved_at,
        "acknowledgement": None
        if known is None
        else {"at": known.at, "by": known.by, "until": known.until, "reason": known.reason},
    }


def _member_document(member: AlertMember) -> dict[str, Any]:
    return {
        "name": member.name,
        "job_id": None if member.job_id is None else format_job_id(member.job_id),
        "queue": member.queue,
        "tags": list(member.tags),
    }
