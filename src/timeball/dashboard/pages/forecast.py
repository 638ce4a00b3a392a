"""The forecast: the hours of the next days that need more slots than there are, and the jobs that cause it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from typing import Any
from urllib.parse import quote_plus

from starlette.responses import Response

from timeball.api.auth import Role
from timeball.api.models.jobs import job_document
from timeball.api.resources.forecast import advice_document, collision_document, forecast_document
from timeball.application.queries.forecast import Forecast, ForecastRequest, SpreadRequest
from timeball.dashboard.context import PageContext, PageRouter, Undo, browser_zone, zone_label
from timeball.dashboard.formatting import format_number, iso, pluralize
from timeball.dashboard.pages.freezes import freeze_rows
from timeball.domain.forecast.demand import Collision
from timeball.domain.freeze import Freeze

router = PageRouter()


MEASURES = {"busy": "busy slots", "starts": "starts"}
_DAYS, _SHADES = 7, 5
_NOTES = {"gap": "does not exist (clock change)", "repeat": "comes twice (clock change)"}


@router.get("/forecast")
async def forecast(context: PageContext) -> Response:
    """Seven days by twenty-four hours, and the collisions of jobs."""
    zone = browser_zone(context.request)
    measure = context.query("measure") if context.query("measure") in MEASURES else "busy"
    queue = context.query("queue") or None
    request = ForecastRequest(days=_DAYS, queue=queue, timezone=zone.key)
    foreseen, collisions = await context.shared(("forecast", request), lambda: _foresee(context, request))
    document = forecast_document(foreseen, measure)
    freezes = (await context.site.queries.freezes()).between(foreseen.now, foreseen.now + timedelta(days=_DAYS), queue)
    top = _top(document)
    hour_page = context.url("/timeline", span="1h", queue=queue) + "&from="
    names = {row["name"] for row in await context.shared("queues", context.site.queries.queues)}
    return context.page(
        "forecast.html",
        part="partials/forecast.html",
        forecast=document,
        collisions=[collision_document(collision) | {"key": _key(collision)} for collision in collisions],
        spread=context.query("spread"),
        advice=await _advice(context, collisions, zone.key),
        measure=measure,
        measures=MEASURES,
        queue=queue,
        queues=sorted(names | ({queue} if queue else set())),
        zone=zone_label(zone),
        calendar=context.url("/calendar.ics", queue=queue, timezone=zone.key),
        days=[_day(day, document["slots"], measure, top, hour_page, freezes) for day in document["days"]],
        freezes=await freeze_rows(context, freezes),
    )


async def _foresee(context: PageContext, request: ForecastRequest) -> tuple[Forecast, list[Collision]]:
    async with context.site.heavy.of(context.caller.name):
        return await context.site.queries.forecast.with_collisions(request)


async def _advice(context: PageContext, collisions: Sequence[Collision], timezone: str) -> dict[str, Any] | None:
    """Suggestions that spread the open collision; None if none is open."""
    opened = next((collision for collision in collisions if _key(collision) == context.query("spread")), None)
    if opened is None:
        return None
    request = SpreadRequest(queues=opened.pool.queues, at=opened.start, days=_DAYS, timezone=timezone)
    async with context.site.heavy.of(context.caller.name):
        advice = advice_document(await context.site.queries.forecast.spread(request))
    reason = f"spread: {opened.need} of {opened.pool.slots} slots wanted at {opened.local}"
    return advice | {"suggestions": [_suggestion(suggestion, reason) for suggestion in advice["suggestions"]]}


def _suggestion(suggestion: dict[str, Any], reason: str) -> dict[str, Any]:
    """A suggestion with the fields of its two buttons: to apply it, and to preview it in the form."""
    named = {"schedule": "schedule", "scheduled_at": "first_at"}
    return suggestion | {
        "fields": suggestion["changes"] | {"version": suggestion["version"], "reason": reason},
        "filled_in": {named[name]: value for name, value in suggestion["changes"].items()},
    }


def _key(collision: Collision) -> str:
    """The key of a collision in an address."""
    return f"{iso(collision.start)} {collision.pool.label}"[:1_000].strip()


@router.post("/jobs/{job}/move", Role.EDITOR)
async def move(context: PageContext) -> Response:
    """Give a job the times that spread a collision, if it still has the version that was shown; can be undone."""
    form, job = context.form, context.path["job"]
    before = job_document(await context.site.queries.jobs.view(job))
    changes = {name: form[name] for name in ("schedule", "scheduled_at") if form.get(name) and before[name]}
    if len(changes) != 1:
        return context.go(context.back("/forecast"), "Nothing was selected.", kind="bad")
    version = int(form["version"]) if form.get("version", "").isdigit() else before["version"]
    after = await context.api.change("jobs", job, body=changes, version=version, reason=form.get("reason"))
    (name,) = changes
    old = before[name] if name == "schedule" else before[name].isoformat().replace("+00:00", "Z")
    toast = f"{after['name'] or after['id']} is moved: {old} → {after[name]}."
    back = {name: old, "version": str(after["version"]), "reason": "moved by mistake"}
    return context.go(context.back("/forecast"), toast, undo=Undo(context.site_url(f"/jobs/{after['id']}/move"), back))


def _top(forecast: Mapping[str, Any]) -> float:
    return max((hour["value"] or 0 for day in forecast["days"] for hour in day["hours"]), default=0)


def _day(
    day: Mapping[str, Any], slots: int, measure: str, top: float, hour_page: str, freezes: Sequence[Freeze]
) -> dict[str, Any]:
    when = date.fromisoformat(str(day["date"]))
    name = f"{when:%a %-d %b}"
    changes = [f"{hour['hour']:02}:00 {_NOTES[hour['note']]}" for hour in day["hours"] if hour["note"] in _NOTES]
    return {
        "name": name,
        "hours": [
            _cell(hour, name, hour_page, shade(hour, slots, measure, top), measure, is_frozen=_is_frozen(hour, freezes))
            for hour in day["hours"]
        ],
        "peak": _peak(day["peak"], slots, measure),
        "changes": changes,
    }


def _is_frozen(hour: Mapping[str, Any], freezes: Sequence[Freeze]) -> bool:
    at = hour["at"]
    return at is not None and any(freeze.touches(at, at + timedelta(hours=1)) for freeze in freezes)


def _cell(
    hour: Mapping[str, Any], day: str, hour_page: str, shade: str, measure: str, *, is_frozen: bool
) -> dict[str, Any]:
    """An hour as the table shows it; built in Python, because a template is slow for 168 of them."""
    if hour["note"] in ("past", "gap"):
        return {"shade": shade, "note": hour["note"], "hour": f"{hour['hour']:02}:00"}
    twice = "; comes twice" if hour["note"] == "repeat" else ""
    frozen = "; frozen" if is_frozen else ""
    title = f"{day} {hour['hour']:02}:00: {hour['busy']} slots busy, {pluralize(hour['starts'], 'start')}"
    return {
        "shade": f"{shade}{' repeat' if twice else ''}{' frozen' if frozen else ''}",
        "note": hour["note"],
        "href": hour_page + quote_plus(iso(hour["at"])),
        "title": f"{title}{twice}{frozen}",
        "text": _value(hour["value"], measure),
    }


def _value(value: float | None, measure: str) -> str:
    """Tenths of a slot below ten; empty for zero, which the template shows as a dot."""
    if not value:
        return ""
    return f"{value:.1f}" if value < 10 and measure == "busy" else format_number(round(value))


def _peak(peak: Mapping[str, Any] | None, slots: int, measure: str) -> str:
    if peak is None:
        return "nothing due"
    value = f"{peak['value']:.1f} of {slots}" if measure == "busy" else f"{peak['value']:g} starts"
    return f"{peak['hour']:02}:00, {value}"


def shade(hour: Mapping[str, Any], slots: int, measure: str, top: float) -> str:
    """The shade of an hour: busy slots relative to the slots there are, starts relative to the highest hour."""
    if hour["note"] == "past" or hour["note"] == "gap":
        return str(hour["note"])
    value = hour["value"] or 0
    if measure == "busy" and slots and value > slots:
        return "over"
    whole = slots if measure == "busy" else top
    if not value or not whole:
        return "0"
    return str(min(_SHADES, max(1, round(value / whole * _SHADES + 0.4))))
