"""Past and future on one axis, as calls."""

from __future__ import annotations

from typing import Literal

from timeball.client.calls import Call, a, get, many, raw
from timeball.client.models import Collision, Forecast, Timeline
from timeball.client.verbs import Face, Group, Verb
from timeball.client.wishes import Moment


def timeline(
    *,
    start: Moment | None = None,
    end: Moment | None = None,
    queue: str | None = None,
    rows: Literal["jobs", "queues", "workers"] = "jobs",
    limit: int | None = None,
    width: int | None = None,
) -> Call[Timeline]:
    """What ran, what runs and what is to run between two instants, merged to what *width* pixels can show."""
    span = {"from": start, "to": end}
    return get("/timeline", a(Timeline), **span, queue=queue, rows=rows, limit=limit, width=width)


def forecast(
    *,
    days: int = 7,
    queue: str | None = None,
    measure: Literal["busy", "starts"] = "busy",
    timezone: str = "UTC",
) -> Call[Forecast]:
    """How many slots each hour of the next days needs, and how good yesterday's forecast was."""
    return get("/forecast", a(Forecast), days=days, queue=queue, measure=measure, timezone=timezone)


def collisions(*, days: int = 7, queue: str | None = None, timezone: str = "UTC") -> Call[list[Collision]]:
    """The jobs that want more slots than there are, and when."""
    return get("/forecast/collisions", many(Collision), days=days, queue=queue, timezone=timezone)


def calendar(*, days: int = 7, queue: str | None = None, timezone: str = "UTC") -> Call[bytes]:
    """What is to run in the next days, as an iCalendar file."""
    return get("/calendar.ics", raw, days=days, queue=queue, timezone=timezone)


class Time(Group[Face]):
    """Past and future."""

    timeline = Verb(timeline)
    forecast = Verb(forecast)
    collisions = Verb(collisions)
    calendar = Verb(calendar)
