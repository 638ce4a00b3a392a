"""Whether everything is in order, and what needs a human."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field


class TargetOut(BaseModel):
    """Where to look: what kind of thing, and which."""

    kind: str
    id: str


class DiagnosisOut(BaseModel):
    """One line of the doctor; every code is explained in docs/reference/doctor.md."""

    code: str
    status: Literal["ok", "warn", "fail"]
    subject: str
    found: str
    advice: str | None = Field(description="What to do.")
    command: str | None = Field(description="What of the advice can be typed in a terminal.")
    target: TargetOut | None


class DoctorOut(BaseModel):
    """All lines; the status is that of the gravest."""

    status: Literal["ok", "warn", "fail"]
    version: str
    lines: list[DiagnosisOut]


class ConcernOut(BaseModel):
    """What needs a human."""

    code: str
    status: Literal["warn", "fail"]
    sentence: str
    advice: str | None
    command: str | None
    target: TargetOut | None
    why: str | None = Field(description="The explanation of what waits, in one sentence.")
