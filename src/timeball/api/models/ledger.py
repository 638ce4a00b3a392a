"""Bodies about the ledger of a job."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from timeball.api.models import PageOut


class HoldingFreezeOut(BaseModel):
    """The freeze that holds an occurrence, or will hold it."""

    id: str
    what: str = Field(description="What it holds, in words.")
    until: datetime
    actor: str
    reason: str | None


class OccurrenceOut(BaseModel):
    """One occurrence of a job, or a range of consecutive ones, and what became of it."""

    model_config = ConfigDict(populate_by_name=True)

    scheduled_for: datetime | None = Field(description="The instant of a single occurrence; `null` for a range.")
    from_: datetime | None = Field(alias="from", description="The first instant of a range; `null` for a single one.")
    until: datetime | None = Field(description="The last instant of a range; `null` for a single one.")
    count: int | None = Field(description="How many occurrences it is; `null` for a range that was not counted.")
    verdict: Literal["ran", "running", "waiting", "skipped", "expected"]
    reason: str | None = Field(
        description="Why it was skipped; if it is expected, why it will be skipped unless something changes before; "
        "`freeze` if it waits for the end of a freeze."
    )
    freeze: HoldingFreezeOut | None = Field(
        description="The freeze that it waits for; of one that is expected, the freeze that its time falls into."
    )
    origin: Literal["schedule", "enqueue", "trigger", "backfill", "retry", "after"] = Field(
        description="`backfill`: an execution that a backfill created for the instant; what it fills in has an entry of its own."
    )
    filled: int = Field(description="How many of the skipped occurrences a backfill has filled in.")
    execution_id: str | None
    state: str | None = Field(description="The state of the execution.")
    version: int = Field(description="The version of the job that answers for it.")
    tzdata: str | None = Field(description="The edition of the time-zone data that computed it.")


class LedgerOut(PageOut[OccurrenceOut]):
    """A page of the ledger of a job, and the span that it is about."""

    model_config = ConfigDict(populate_by_name=True)

    from_: datetime = Field(alias="from")
    until: datetime
    order: Literal["asc", "desc"]
    history_from: datetime | None = Field(description="Records from before this instant were deleted.")
