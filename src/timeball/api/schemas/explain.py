"""Why something does not run."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, Field


class GateOut(BaseModel):
    """A gate on the way of an execution, and what it says."""

    name: str
    title: str
    verdict: Literal["passed", "stopped", "not_asked"]
    sentence: str
    advice: str | None = Field(description="What to do, where somebody can do something.")
    command: str | None = Field(description="What of the advice can be typed in a terminal.")
    links: list[str] = Field(description="The ids of what stands in the way.")


class LikelyStartOut(BaseModel):
    """When it should start, give or take."""

    at: datetime
    give_or_take_seconds: float


class ExplanationOut(BaseModel):
    """One sentence first, then every gate in the order in which an execution meets them."""

    checked_at: datetime
    job_id: str | None
    job_name: str | None
    execution_id: str | None
    state: str | None
    headline: str
    stopped_by: str | None
    likely_start: LikelyStartOut | None
    gates: list[GateOut]
