"""Bodies about channels of alerts, what was sent to them, and the routes that lead to them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from timeball.api.models import Label, RequestModel

ChannelKindWord = Literal["webhook", "slack", "email", "pagerduty", "command"]
ChannelName = Annotated[str, Field(min_length=1, max_length=100)]
ChannelSettings = Annotated[
    dict[str, Any],
    Field(
        max_length=20,
        description='What the kind needs to know. A secret is named, never given: `{"$secret": "SLACK_URL"}` stands for the '
        "variable `TIMEBALL_SECRET_SLACK_URL` of the workers.",
    ),
]
AboutText = Annotated[str, Field(max_length=10_000)]
Severities = Literal["critical", "warning"]
Names = Annotated[list[Label], Field(max_length=100)]


class ChannelIn(RequestModel):
    """A place that alerts go to."""

    name: ChannelName
    kind: ChannelKindWord
    settings: ChannelSettings
    description: AboutText | None = None


class ChannelPatch(RequestModel):
    """What to change of a channel: only what is given. New settings replace all that are there; the kind stays."""

    settings: ChannelSettings | None = None
    description: AboutText | None = None


class AlertDeliveryOut(BaseModel):
    """A message of an alert to a channel."""

    id: str
    channel: str
    alert: str | None = Field(description="The id of the alert; null for a test.")
    event: Literal["opened", "worse", "grew", "reminder", "acknowledged", "resolved", "test"] = Field(
        description="What it tells: `worse` of a higher severity, `grew` of more members, `reminder` of an alert that is still open."
    )
    state: Literal["waiting", "sending", "retrying", "sent", "left_out", "failed"] = Field(
        description="`left_out`: it was not sent, and `note` says why. `failed`: it was given up."
    )
    sentence: str | None = Field(description="What the alert says.")
    attempts: int = Field(description="How many attempts were made to send it, those of the earlier failures included.")
    created_at: datetime
    next_at: datetime | None = Field(description="When it is to be sent, or tried again.")
    sent_at: datetime | None
    note: str | None = Field(description="Why it was not sent.")
    error: str | None = Field(description="Why its last attempt failed.")
    execution: str = Field(description="The execution that delivers it; its page and log have every attempt.")


class ChannelOut(BaseModel):
    """A place that alerts go to. Its settings name secrets, and have none."""

    name: str
    kind: ChannelKindWord
    settings: dict[str, Any]
    description: str | None
    secrets: list[str] = Field(description="The names of the secrets that it uses.")
    bound_secrets_only: bool = Field(
        description="Its author is no administrator: only secrets that are bound to its host are given to it."
    )
    routes: list[str] = Field(description="The routes that lead to it; without one it hears of nothing.")
    latest_delivery: AlertDeliveryOut | None
    version: int
    created_at: datetime
    updated_at: datetime


class QuietHoursIn(RequestModel):
    """A span of the day in which no one is called; `until` may be on the next day."""

    model_config = ConfigDict(populate_by_name=True)

    from_: Annotated[str, Field(alias="from", max_length=5, examples=["22:00"])]
    until: Annotated[str, Field(max_length=5, examples=["07:00"])]
    timezone: Annotated[str, Field(max_length=200)] = "UTC"
    days: (
        Annotated[
            list[Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]],
            Field(min_length=1, max_length=7, description="The days on which it begins. Default: every day."),
        ]
        | None
    ) = None


RepeatSeconds = Annotated[int, Field(ge=60, le=30 * 86_400)]


class AlertRouteIn(RequestModel):
    """Which alerts go to which channels. `queues`, `tags` and `jobs` narrow it down: of those that are given, each must fit."""

    name: ChannelName
    description: AboutText | None = None
    channels: Annotated[Names, Field(min_length=1)]
    severity: Severities = Field("warning", description="The least severity: `critical`, or `warning` for all.")
    queues: Names = Field(default_factory=list)
    tags: Names = Field(default_factory=list)
    jobs: Names = Field(default_factory=list, description="The names or ids of jobs.")
    quiet_hours: list[QuietHoursIn] = Field(default_factory=list, max_length=10)
    repeat_every_seconds: RepeatSeconds | None = Field(
        None, description="Tell it again so often while the alert is open and not acknowledged."
    )


class AlertRoutePatch(RequestModel):
    """What to change of a route: only what is given. A list replaces the whole list that is there."""

    description: AboutText | None = None
    channels: Annotated[Names, Field(min_length=1)] | None = None
    severity: Severities | None = None
    queues: Names | None = None
    tags: Names | None = None
    jobs: Names | None = None
    quiet_hours: Annotated[list[QuietHoursIn], Field(max_length=10)] | None = None
    repeat_every_seconds: RepeatSeconds | None = None


class QuietHoursOut(BaseModel):
    """A span of the day in which no one is called."""

    model_config = ConfigDict(populate_by_name=True)

    from_: str = Field(alias="from")
    until: str
    timezone: str
    days: list[str]


class AlertRouteOut(BaseModel):
    """Which alerts go to which channels."""

    name: str
    description: str | None
    channels: list[str]
    severity: Severities
    queues: list[str]
    tags: list[str]
    jobs: list[str]
    quiet_hours: list[QuietHoursOut]
    repeat_every_seconds: int | None
    version: int
    created_at: datetime
    updated_at: datetime
