"""Channels of alerts with what was sent to them, and the routes that lead to them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from timeball.api.auth import Role
from timeball.api.resources.channels import channel_document, delivery_document, route_document
from timeball.dashboard.context import PageContext, PageRouter
from timeball.dashboard.internal_api import ApiProblem, field_errors
from timeball.domain.alerts import Severity
from timeball.domain.channels import CHANNEL_FIELDS, ChannelField, ChannelKind, SettingRule
from timeball.domain.values.wording import format_duration, parse_duration
from timeball.errors import InvalidInput

router = PageRouter()

_PAGE, _SOME = 100, 50
# In a form a secret is written with a dollar sign, as in $SLACK_URL.
_SECRET = re.compile(r"\$([A-Z][A-Z0-9_]*)")
_STATES = {
    "waiting": "scheduled",
    "sending": "running",
    "retrying": "retrying",
    "sent": "succeeded",
    "left_out": "skipped",
    "failed": "dead",
}
_BLANK = dict.fromkeys(("name", "description", "kind"), "")
_BLANK |= {f"{kind}.{field.name}": "" for kind, fields in CHANNEL_FIELDS.items() for field in fields}
_BLANK_ROUTE = dict.fromkeys(("name", "description", "channels", "queues", "tags", "jobs", "quiet", "repeat"), "")
_BLANK_ROUTE |= {"severity": Severity.WARNING.value}


@router.get("/channels")
async def list_channels(context: PageContext) -> Response:
    """All channels, by name, and the routes that lead to them."""
    page = await context.site.queries.channels.page(context.page_request(_PAGE))
    return context.page(
        "channels.html",
        part="partials/channels_list.html",
        rows=[channel_document(view) for view in page.items],
        routes=[_route_row(route_document(route)) for route in await context.site.queries.channels.routes()],
        kinds={kind.value: kind.about for kind in ChannelKind},
        states=_STATES,
        page=page,
    )


@router.get("/channels/new", Role.EDITOR)
async def new_channel_form(context: PageContext) -> Response:
    """The form of a new channel."""
    return _form(context, None, {"kind": ChannelKind.WEBHOOK.value})


@router.post("/channels", Role.EDITOR)
async def create_channel(context: PageContext) -> Response:
    """Create a channel."""
    form = context.form
    try:
        body = {"name": form.get("name", "").strip(), "kind": form.get("kind", ""), **_body(form)}
        created = await context.api.post("channels", body=body)
    except (ApiProblem, InvalidInput) as problem:
        return _form(context, None, form, problem)
    message = f"The channel {created['name']} is created. Send a test, and lead alerts to it with a route."
    return context.go(context.site_url(f"/channels/{created['name']}"), message)


@router.get("/channels/{channel}")
async def channel_page(context: PageContext) -> Response:
    """One channel, and what was sent to it."""
    view = await context.site.queries.channels.find(context.path["channel"])
    page = await context.site.queries.channels.deliveries(view.channel.name, context.page_request(_SOME))
    channel = channel_document(view)
    return context.page(
        "channel.html",
        part="partials/channel_deliveries.html",
        channel=channel,
        settings=[(field.label, _written(field, channel["settings"].get(field.name))) for field in _fields_of(channel)],
        about=view.channel.kind.about,
        rows=[delivery_document(delivery) for delivery in page.items],
        states=_STATES,
        page=page,
        subject=f"channel:{view.channel.name}",
    )


@router.get("/channels/{channel}/edit", Role.EDITOR)
async def edit_channel_form(context: PageContext) -> Response:
    """The form of a channel."""
    channel = await _read(context)
    values = {
        f"{channel['kind']}.{field.name}": _written(field, channel["settings"].get(field.name))
        for field in _fields_of(channel)
    }
    about = {"kind": channel["kind"], "description": channel["description"] or ""}
    return _form(context, channel, values | about)


@router.post("/channels/{channel}/edit", Role.EDITOR)
async def change_channel(context: PageContext) -> Response:
    """Change a channel, if it still has the version that the form was opened with."""
    channel = await _read(context)
    form = {**context.form, "kind": channel["kind"]}
    try:
        version = int(form.get("version") or channel["version"])
        await context.api.change("channels", channel["name"], body=_body(form), version=version)
    except (ApiProblem, InvalidInput) as problem:
        return _form(context, channel, form, problem)
    return context.go(context.site_url(f"/channels/{channel['name']}"), "Saved.")


@router.post("/channels/{channel}/test", Role.OPERATOR)
async def send_test(context: PageContext) -> Response:
    """Send a test to a channel."""
    channel = await _read(context)
    await context.api.post("channels", channel["name"], "test")
    message = "A test is on its way; its delivery is the first in the list."
    return context.go(context.site_url(f"/channels/{channel['name']}"), message)


@router.post("/channels/{channel}/delete", Role.EDITOR)
async def delete_channel(context: PageContext) -> Response:
    """Delete a channel that no route leads to."""
    await context.api.delete("channels", context.path["channel"])
    return context.go(context.site_url("/channels"), "The channel is deleted.")


def _body(form: Mapping[str, str]) -> dict[str, Any]:
    try:
        kind = ChannelKind(form.get("kind", ""))
    except ValueError:
        return {"settings": {}, "description": None}
    settings = {
        field.name: value
        for field in CHANNEL_FIELDS[kind]
        if (value := _read_setting(field, form.get(f"{kind}.{field.name}", "").strip())) not in ("", [], {})
    }
    return {"settings": settings, "description": form.get("description", "").strip() or None}


def _read_setting(field: ChannelField, text: str) -> Any:
    """What a field of the form says: a line for each of several, and $NAME for a secret."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    match field.rule:
        case SettingRule.TEXT:
            return text
        case SettingRule.ADDRESS:
            return _reference(text)
        case SettingRule.SECRET:
            # The sign may be left out where nothing but a secret can stand.
            return {"$secret": text.removeprefix("$")} if re.fullmatch(r"\$?[A-Z][A-Z0-9_]*", text) else text
        case SettingRule.SECRETS:
            names = text.replace(",", " ").split()
            return [_reference(name if name.startswith("$") else f"${name}") for name in names]
        case SettingRule.TEXTS:
            return [line.rstrip(",") for line in lines]
        case SettingRule.ARGUMENTS:
            return [_reference(line) for line in lines]
        case SettingRule.PAIRS:
            pairs = (line.partition(":") for line in lines)
            return {name.strip(): _reference(value.strip()) for name, _, value in pairs}


def _reference(text: str) -> Any:
    match = _SECRET.fullmatch(text)
    return {"$secret": match[1]} if match else text


def _written(field: ChannelField, value: Any) -> str:
    """A setting as a field of the form has it."""
    match value:
        case None:
            return ""
        case {"$secret": name} if len(value) == 1:
            return f"${name}"
        case Mapping():
            return "\n".join(f"{name}: {_written(field, inner)}" for name, inner in value.items())
        case list():
            return (" " if field.rule is SettingRule.SECRETS else "\n").join(_written(field, one) for one in value)
        case _:
            return str(value)


def _fields_of(channel: Mapping[str, Any]) -> tuple[ChannelField, ...]:
    return CHANNEL_FIELDS[ChannelKind(channel["kind"])]


async def _read(context: PageContext) -> dict[str, Any]:
    return channel_document(await context.site.queries.channels.find(context.path["channel"]))


def _form(
    context: PageContext,
    channel: dict[str, Any] | None,
    values: Mapping[str, str],
    problem: ApiProblem | InvalidInput | None = None,
) -> Response:
    kinds = [kind for kind in ChannelKind if channel is None or kind.value == channel["kind"]]
    return context.page(
        "channel_form.html",
        http_status=200 if problem is None else 422,
        channel=channel,
        values=_BLANK | dict(values),
        kinds=[(kind.value, kind.value.capitalize(), kind.about) for kind in kinds],
        fields=[(kind.value, [_form_field(field) for field in CHANNEL_FIELDS[kind]]) for kind in kinds],
        problem=problem,
        errors=_setting_errors(values.get("kind", ""), problem),
    )


def _form_field(field: ChannelField) -> dict[str, Any]:
    hints = {
        SettingRule.ADDRESS: " $NAME stands for a secret of the workers.",
        SettingRule.SECRET: " Write its name, such as SLACK_URL; the workers have its value as TIMEBALL_SECRET_SLACK_URL.",
        SettingRule.SECRETS: " Write the names of one or several secrets.",
        SettingRule.TEXTS: " One to a line.",
        SettingRule.ARGUMENTS: " One to a line; $NAME stands for a secret.",
        SettingRule.PAIRS: " One to a line: Name: value, or Name: $SECRET.",
    }
    is_long = field.rule in (SettingRule.TEXTS, SettingRule.ARGUMENTS, SettingRule.PAIRS)
    choices = [("", "the default"), *((word, word) for word in field.choices)] if field.choices else None
    return {
        "name": field.name,
        "label": field.label,
        "hint": field.about + hints.get(field.rule, ""),
        "is_long": is_long,
        "is_required": field.is_required,
        "choices": choices,
    }


def _setting_errors(kind: str, problem: ApiProblem | InvalidInput | None) -> dict[str, str]:
    """The errors of the settings stand beside the fields of the chosen kind."""
    errors = field_errors(problem)
    if isinstance(problem, ApiProblem):
        for error in problem.errors:
            first, _, rest = error["pointer"].strip("/").partition("/")
            if first == "settings" and rest:
                errors[f"{kind}.{rest.partition('/')[0]}"] = error["detail"]
    return errors


# Routes.


@router.get("/alert-routes/new", Role.EDITOR)
async def new_route_form(context: PageContext) -> Response:
    """The form of a new route; a link may have chosen its channel."""
    return await _route_form(context, None, {"channels": context.query("channel")})


@router.post("/alert-routes", Role.EDITOR)
async def create_route(context: PageContext) -> Response:
    """Create a route."""
    try:
        body = {"name": context.form.get("name", "").strip(), **_route_body(context)}
        created = await context.api.post("alert-routes", body=body)
    except (ApiProblem, InvalidInput) as problem:
        return await _route_form(context, None, context.form, problem)
    return context.go(context.site_url("/channels"), f"The route {created['name']} is created.")


@router.get("/alert-routes/{route}/edit", Role.EDITOR)
async def edit_route_form(context: PageContext) -> Response:
    """The form of a route."""
    route = route_document(await context.site.queries.channels.route(context.path["route"]))
    values = {
        "description": route["description"] or "",
        "channels": "\n".join(route["channels"]),
        "severity": route["severity"],
        "quiet": "\n".join(map(_quiet_words, route["quiet_hours"])),
        "repeat": _route_row(route)["repeat"],
        **{name: "\n".join(route[name]) for name in ("queues", "tags", "jobs")},
    }
    return await _route_form(context, route, values)


@router.post("/alert-routes/{route}/edit", Role.EDITOR)
async def change_route(context: PageContext) -> Response:
    """Change a route, if it still has the version that the form was opened with."""
    route = route_document(await context.site.queries.channels.route(context.path["route"]))
    try:
        version = int(context.form.get("version") or route["version"])
        await context.api.change("alert-routes", route["name"], body=_route_body(context), version=version)
    except (ApiProblem, InvalidInput) as problem:
        return await _route_form(context, route, context.form, problem)
    return context.go(context.site_url("/channels"), "Saved.")


@router.post("/alert-routes/{route}/delete", Role.EDITOR)
async def delete_route(context: PageContext) -> Response:
    """Delete a route."""
    await context.api.delete("alert-routes", context.path["route"])
    return context.go(context.site_url("/channels"), "The route is deleted.")


def _route_body(context: PageContext) -> dict[str, Any]:
    form = context.form
    repeat = form.get("repeat", "").strip()
    body: dict[str, Any] = {
        name: [line.strip() for line in form.get(name, "").splitlines() if line.strip()]
        for name in ("channels", "queues", "tags", "jobs")
    }
    return body | {
        "description": form.get("description", "").strip() or None,
        "severity": form.get("severity", Severity.WARNING.value),
        "quiet_hours": [_read_quiet(line) for line in form.get("quiet", "").splitlines() if line.strip()],
        "repeat_every_seconds": int(parse_duration(repeat, "repeat").total_seconds()) if repeat else None,
    }


def _read_quiet(line: str) -> dict[str, Any]:
    """`22:00-07:00 Europe/Berlin mon,tue`; what does not fit, the API refuses."""
    span, *words = line.split()
    start, _, end = span.partition("-")
    hours: dict[str, Any] = {"from": start, "until": end}
    for word in words:
        if re.fullmatch(r"[a-z]{3}(,[a-z]{3})*", word):
            hours["days"] = word.split(",")
        else:
            hours["timezone"] = word
    return hours


def _quiet_words(hours: Mapping[str, Any]) -> str:
    days = "" if len(hours["days"]) == len("MTWTFSS") else f" {','.join(hours['days'])}"
    return f"{hours['from']}-{hours['until']} {hours['timezone']}{days}"


def _route_row(route: Mapping[str, Any]) -> dict[str, Any]:
    seconds = route["repeat_every_seconds"]
    return {
        **route,
        "quiet": [_quiet_words(hours) for hours in route["quiet_hours"]],
        "repeat": "" if seconds is None else format_duration(parse_duration(seconds)),
    }


async def _route_form(
    context: PageContext,
    route: Mapping[str, Any] | None,
    values: Mapping[str, str],
    problem: ApiProblem | InvalidInput | None = None,
) -> Response:
    known = await context.site.queries.channels.page(context.page_request(_PAGE))
    errors = field_errors(problem)
    renamed = {"quiet_hours": "quiet", "repeat_every_seconds": "repeat"}
    return context.page(
        "alert_route_form.html",
        http_status=200 if problem is None else 422,
        route=route,
        values=_BLANK_ROUTE | dict(values),
        channels=[view.channel.name for view in known.items],
        severities=[("warning", "all alerts"), ("critical", "critical ones only")],
        problem=problem,
        errors={renamed.get(name, name): words for name, words in errors.items()},
    )
