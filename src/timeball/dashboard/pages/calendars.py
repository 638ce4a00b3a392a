"""Calendars: named sets of days that jobs skip, or run on alone."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from timeball.api.auth import Role
from timeball.api.resources.calendars import calendar_document
from timeball.dashboard.context import PageContext, PageRouter
from timeball.dashboard.internal_api import ApiProblem, field_errors
from timeball.errors import InvalidInput

router = PageRouter()

_PAGE, _MAX_VERSIONS = 100, 20
_BLANK = {"name": "", "description": "", "source": "list", "days": "", "ics": "", "country": "", "subdivision": ""}


@router.get("/calendars")
async def list_calendars(context: PageContext) -> Response:
    """All calendars, by name."""
    page = await context.site.queries.calendars.page(context.page_request(_PAGE))
    rows = [calendar_document(view) for view in page.items]
    return context.page("calendars.html", part="partials/calendars_list.html", rows=rows, page=page)


@router.get("/calendars/new", Role.EDITOR)
async def new_calendar_form(context: PageContext) -> Response:
    """The form of a new calendar."""
    return _form(context, None, {})


@router.post("/calendars", Role.EDITOR)
async def create_calendar(context: PageContext) -> Response:
    """Create a calendar."""
    try:
        created = await context.api.post(
            "calendars", body={"name": context.form.get("name", "").strip()} | _body(context)
        )
    except (ApiProblem, InvalidInput) as problem:
        return _form(context, None, context.form, problem)
    message = " ".join((f"The calendar {created['name']} is created.", *created["warnings"]))
    return context.go(context.site_url(f"/calendars/{created['name']}"), message)


@router.get("/calendars/{calendar}")
async def calendar_page(context: PageContext) -> Response:
    """One calendar: its days, the jobs that use it, and its versions with what each of them changed."""
    calendar = await _read(context)
    latest, version = calendar["version"], context.query("version")
    if version.isascii() and version.isdecimal() and 0 < int(version) < latest:
        calendar = await _read(context, int(version))
    shown = calendar["version"]
    before = (await _read(context, shown - 1))["days"] if shown > 1 else calendar["days"]
    known, earlier = set(calendar["days"]), set(before)
    return context.page(
        "calendar.html",
        calendar=calendar,
        latest=latest,
        versions=range(latest, max(latest - _MAX_VERSIONS, 0), -1),
        added=[day for day in calendar["days"] if day not in earlier],
        removed=[day for day in before if day not in known],
        subject=f"calendar:{calendar['name']}",
    )


@router.get("/calendars/{calendar}/edit", Role.EDITOR)
async def edit_calendar_form(context: PageContext) -> Response:
    """The form of a calendar."""
    calendar = await _read(context)
    source = calendar["source"]
    values = {
        "description": calendar["description"] or "",
        "source": "country" if source["kind"] == "country" else "list",
        "days": "\n".join(calendar["days"]),
        "country": source.get("country") or "",
        "subdivision": source.get("subdivision") or "",
    }
    return _form(context, calendar, values)


@router.post("/calendars/{calendar}/edit", Role.EDITOR)
async def change_calendar(context: PageContext) -> Response:
    """Change a calendar, if it still has the version that the form was opened with; its jobs follow."""
    calendar = await _read(context)
    try:
        version = int(context.form.get("version") or calendar["version"])
        changed = await context.api.change("calendars", calendar["name"], body=_body(context), version=version)
    except (ApiProblem, InvalidInput) as problem:
        return _form(context, calendar, context.form, problem)
    rest = "" if changed["followed"] else " Some of its jobs follow within a minute."
    message = " ".join((f"Saved; its jobs follow it from now on.{rest}", *changed["warnings"]))
    return context.go(context.site_url(f"/calendars/{calendar['name']}"), message)


@router.post("/calendars/{calendar}/delete", Role.EDITOR)
async def delete_calendar(context: PageContext) -> Response:
    """Delete a calendar that no job uses."""
    await context.api.delete("calendars", context.path["calendar"])
    return context.go(context.site_url("/calendars"), "The calendar is deleted.")


def _body(context: PageContext) -> dict[str, Any]:
    """What the form says: the one source of days that was chosen."""
    form = context.form
    body: dict[str, Any] = {"description": form.get("description", "").strip() or None}
    match form.get("source"):
        case "ics":
            return body | {"ics": form.get("ics", "")}
        case "country":
            return body | {
                "country": form.get("country", "").strip(),
                "subdivision": form.get("subdivision", "").strip() or None,
            }
        case _:
            return body | {"days": form.get("days", "").replace(",", " ").split()}


def _form(
    context: PageContext,
    calendar: dict[str, Any] | None,
    values: dict[str, str],
    problem: ApiProblem | InvalidInput | None = None,
) -> Response:
    return context.page(
        "calendar_form.html",
        http_status=200 if problem is None else 422,
        calendar=calendar,
        values=_BLANK | values,
        problem=problem,
        errors=field_errors(problem),
    )


async def _read(context: PageContext, version: int | None = None) -> dict[str, Any]:
    return calendar_document(await context.site.queries.calendars.find(context.path["calendar"], version))
