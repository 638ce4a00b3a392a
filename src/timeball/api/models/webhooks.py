"""Requests and responses about outgoing webhooks and their deliveries."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field

from timeball.api.models import Label, RequestModel, ShortText, refuse_nul

_Url = Annotated[
    str, Field(min_length=1, max_length=2_000, description="Where to; https, unless an administrator allows http.")
]
_EVENTS = "Types of events, such as `execution.dead` or `execution.*`; empty for all of them."
_JobText = Annotated[str, Field(max_length=200, description="Only events of this job, by id or name.")]
_Format = Literal["standard", "cloudevents"]
_Description = Annotated[str, Field(max_length=1_000), AfterValidator(refuse_nul)]
_Secret = Annotated[
    str, Field(max_length=200, description="`whsec_` and 24 to 64 bytes as base64. Default: a fresh one.")
]


class WebhookIn(RequestModel):
    """A new webhook: its address, and which events it gets."""

    url: _Url
    events: list[ShortText] = Field([], max_length=20, description=_EVENTS)
    queue: Label | None = Field(None, description="Only events of this queue.")
    job: _JobText | None = None
    handler: Label | None = Field(None, description="Only events of this handler.")
    tag: Label | None = Field(None, description="Only events of jobs with this tag.")
    format: _Format = "standard"
    description: _Description | None = None
    secret: _Secret | None = None


class WebhookPatch(RequestModel):
    """The fields of a webhook that are to change."""

    url: _Url = ""
    events: list[ShortText] = Field([], max_length=20, description=_EVENTS)
    queue: Label | None = None
    job: _JobText | None = None
    handler: Label | None = None
    tag: Label | None = None
    format: _Format = "standard"
    description: _Description | None = None
    state: Literal["active", "disabled"] = Field(
        "active", description="A disabled webhook gets no events; what waits is sent when it is enabled again."
    )
    reason: _Description | None = Field(None, description="The reason for the change, for the audit.")


class RotateIn(RequestModel):
    """A rotation of the secret of a webhook."""

    secret: _Secret | None = None
    keep: ShortText = Field("24h", description="For so long the present secret signs, too: `0s` to `7d`.")


class WebhookOut(BaseModel):
    """A webhook; its secret is shown when it is created or rotated, and never again."""

    id: str
    url: str = Field(description="Values in it that sound like secrets are hidden.")
    events: list[str]
    queue: str | None
    job_id: str | None
    handler: str | None
    tag: str | None
    format: _Format
    description: str | None
    state: Literal["active", "disabled"]
    disabled_reason: str | None
    waiting: int = Field(description="The number of its deliveries that are not over.")
    failing_since: datetime | None = Field(description="The first attempt that failed since the last success.")
    succeeded_at: datetime | None = Field(description="The last success.")
    rotation_until: datetime | None = Field(description="Until then the secret before the last rotation signs, too.")
    version: int
    created_by: str
    created_at: datetime
    updated_at: datetime


class WebhookWithSecret(WebhookOut):
    """A webhook with the secret that signs its messages from now on."""

    secret: str


class DeliveryAttemptOut(BaseModel):
    """One attempt of a delivery."""

    at: datetime
    status: int | None = Field(description="What the address answered; null if there was no answer.")
    error: str | None
    duration_ms: int


class DeliveryOut(BaseModel):
    """One event on its way to a webhook."""

    id: str
    webhook_id: str
    message_id: str = Field(description="The id of the event, which every attempt carries as `webhook-id`.")
    type: str
    subject: str
    occurred_at: datetime
    state: Literal["pending", "delivered", "failed"]
    attempts: int
    status: int | None = Field(description="The answer to the last attempt.")
    error: str | None
    next_at: datetime | None = Field(
        description="The next attempt; null if it is over, waits for an earlier one of its subject, or its webhook is disabled."
    )
    created_at: datetime
    finished_at: datetime | None


class DeliveryFull(DeliveryOut):
    """A delivery with what is sent, and its last attempts."""

    body: dict[str, Any]
    tries: list[DeliveryAttemptOut]
