"""Alerts: their list, one alert with its life, and what a person says of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from timeball.api.auth import Role
from timeball.api.models.alerts import alert_document
from timeball.api.resources.alerts import alert_id_of
from timeball.dashboard.context import PageContext, PageRouter, target_url, typed_instant
from timeball.domain.alerts import Alert, AlertFilter, AlertState, Severity

router = PageRouter()

_PAGE, _MEMBERS = 50, 100
_UNRESOLVED = frozenset({AlertState.OPEN, AlertState.ACKNOWLEDGED})
# By the word of a chip: the states that it shows.
_CHIPS: Mapping[str, frozenset[AlertState]] = {
    "": _UNRESOLVED,
    **{state.value: frozenset({state}) for state in AlertState},
}
# The look of a state is that of a state that pages know.
LOOKS = {"pending": "expected", "open": "fail", "acknowledged": "paused", "resolved": "ok"}
SEVERITIES = {"critical": "fail", "warning": "warn"}


@router.get("/alerts")
async def list_alerts(context: PageContext) -> Response:
    """The alerts that wait for a person, or those of a state; the latest first."""
    state = context.query("state") if context.query("state") in _CHIPS else ""
    severity = context.query("severity")
    chosen = AlertFilter(states=_CHIPS[state], severity=Severity(severity) if severity in list(Severity) else None)
    page = await context.site.queries.alerts.page(chosen, _PAGE, context.query("cursor") or None)
    return context.page(
        "alerts.html",
        part="partials/alerts_list.html",
        rows=[_row(context, alert) for alert in page.items],
        page=page,
        chosen=state,
        severity=severity,
        chips=[word for word in _CHIPS if word],
        evaluated_at=await context.site.queries.alerts.evaluated_at(),
        looks=LOOKS,
        severities=SEVERITIES,
    )


@router.get("/alerts/{alert}")
async def alert_page(context: PageContext) -> Response:
    """One alert: what it is about, what to do, and its life."""
    alert = await context.site.queries.alerts.find(alert_id_of(context.path["alert"]))
    row = _row(context, alert)
    return context.page(
        "alert.html",
        part="partials/alert_body.html",
        alert=row,
        members=[_member(context, member) for member in row["members"][:_MEMBERS]],
        looks=LOOKS,
        severities=SEVERITIES,
    )


@router.post("/alerts/{alert}/acknowledge", Role.OPERATOR)
async def acknowledge(context: PageContext) -> Response:
    """Say that a person knows of an alert."""
    alert = context.path["alert"]
    body = {"until": typed_instant(context, "until") or None, "reason": context.form.get("reason") or None}
    await context.api.post("alerts", alert, "acknowledge", body=body)
    return context.go(context.back(f"/alerts/{alert}"), "The alert is acknowledged.")


@router.post("/alerts/{alert}/unacknowledge", Role.OPERATOR)
async def unacknowledge(context: PageContext) -> Response:
    """Take an acknowledgement back."""
    alert = context.path["alert"]
    await context.api.post("alerts", alert, "unacknowledge", body={"reason": context.form.get("reason") or None})
    return context.go(context.back(f"/alerts/{alert}"), "The alert waits for a person again.")


def _row(context: PageContext, alert: Alert) -> dict[str, Any]:
    return alert_document(alert) | {"href": target_url(context, alert.fact.target)}


def _member(context: PageContext, member: Mapping[str, Any]) -> dict[str, Any]:
    if member["job_id"] is not None:
        return {**member, "href": context.site_url(f"/jobs/{member['job_id']}")}
    if member["queue"] is not None:
        return {**member, "href": context.url("/queues/one", name=member["queue"])}
    return {**member, "href": None}
