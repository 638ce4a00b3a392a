"""The pages for administrators: API keys, audit log, settings."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from pydantic import SecretStr
from starlette.responses import Response

from timeball.api.auth import Role
from timeball.api.resources.system import audit_document
from timeball.api.responses import in_thread_if_large
from timeball.config.settings import HandlerSettings, Settings
from timeball.config.sources import SETTINGS_FILE, setting_paths, variable_name
from timeball.dashboard.context import PageContext, PageRouter
from timeball.domain.values.ids import JobId, parse_id
from timeball.domain.values.redaction import REDACTED, redact
from timeball.domain.values.wording import parse_duration
from timeball.errors import InvalidInput

router = PageRouter()


# API keys: who may come in; for administrators.


@router.get("/keys", Role.ADMIN)
async def list_keys(context: PageContext) -> Response:
    """All keys, without their tokens."""
    return await _keys_page(context)


@router.post("/keys", Role.ADMIN)
async def create_key(context: PageContext) -> Response:
    """Make a key, and show its token this one time."""
    form = context.form
    try:
        lasts = parse_duration(form["lasts"], "lasts") if form.get("lasts", "").strip() else None
        name = form.get("name", "").strip()
        _, token = await context.site.key_manager.create(
            form.get("role", ""), name, lasts, context.caller.as_actor(form.get("reason") or None).entry
        )
    except InvalidInput as problem:
        return await _keys_page(context, problem=problem)
    return await _keys_page(context, token=token)


@router.post("/keys/{key}/revoke", Role.ADMIN)
async def revoke(context: PageContext) -> Response:
    """Let a key open nothing from now on; its sessions end with it."""
    key = await context.site.key_manager.revoke(
        context.path["key"], context.caller.as_actor(context.form.get("reason") or None).entry
    )
    return context.go(context.site_url("/keys"), f"The key {key.name} is revoked.")


async def _keys_page(context: PageContext, token: str | None = None, problem: InvalidInput | None = None) -> Response:
    is_open = await context.site.authenticator.is_open()
    # With the first key the door closes: what these pages fetched then would lead to the login, the one that sends the form
    # before its answer is there, and the one that shows the key before it is read.
    context.is_static = is_open or token is not None
    return context.page(
        "keys.html",
        http_status=200 if problem is None else 422,
        keys=await context.site.key_manager.list(),
        new_token=token,
        problem=problem,
        values=context.form,
        roles=list(Role),
        now=context.site.queries.now(),
        is_open=is_open,
    )


_AUDIT_PAGE = 50


@router.get("/audit", Role.ADMIN)
async def audit_log(context: PageContext) -> Response:
    """All changes, the latest first, or those of one actor or subject."""
    actor, subject = context.query("actor"), context.query("subject")
    page = await context.site.queries.audit(subject or None, actor or None, context.page_request(_AUDIT_PAGE))
    characters = sum(len(row["before"] or "") + len(row["after"] or "") for row in page.items)
    entries = await in_thread_if_large(lambda: [audit_document(row) for row in page.items], characters)
    names = await _job_names(context, entries)
    changes = [
        entry | {"differences": differences(entry), "job_name": names.get(entry["subject"])} for entry in entries
    ]
    return context.page(
        "audit.html", part="partials/audit_list.html", changes=changes, page=page, actor=actor, subject=subject
    )


async def _job_names(context: PageContext, changes: list[dict[str, Any]]) -> dict[str, str | None]:
    """What the jobs are called that were changed, by how the audit names them."""
    ids: dict[str, JobId] = {}
    for subject in {change["subject"] for change in changes}:
        with suppress(InvalidInput):
            ids[subject] = JobId(parse_id("job", subject.removeprefix("job:")))
    names = await context.site.queries.jobs.names(list(ids.values()))
    return {subject: names.get(id_) for subject, id_ in ids.items()}


def differences(change: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """Which fields an audit entry changed: name, before, after."""
    before, after = change["before"] or {}, change["after"] or {}
    if not isinstance(before, dict) or not isinstance(after, dict):
        return [("", before, after)]
    names = sorted(set(before) | set(after))
    return [(name, before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)]


# The settings: what this process runs with; for administrators, and to be looked at only.


_GROUP_TITLES = {"api": "API"}


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One setting: what it is called in the environment, its value for people's eyes, and what it means."""

    name: str
    value: str
    is_default: bool
    meaning: str


@router.get("/settings", Role.ADMIN)
async def show_settings(context: PageContext) -> Response:
    """Every setting, in the groups of the reference."""
    return context.page("settings.html", groups=setting_rows(context.site.settings), file=SETTINGS_FILE)


def setting_rows(settings: Settings) -> list[tuple[str, list[SettingRow]]]:
    """All settings by their group; secrets hidden."""
    ordered = sorted(setting_paths(Settings), key=lambda path: (path[0] in HandlerSettings.model_fields, len(path)))
    return [(title, [_setting_row(settings, path) for path in some]) for title, some in groupby(ordered, key=_group)]


def _group(path: tuple[str, ...]) -> str:
    if len(path) > 1:
        return _GROUP_TITLES.get(path[0], path[0].capitalize())
    return "Handlers in the box" if path[0] in HandlerSettings.model_fields else "A process"


def _setting_row(settings: Settings, path: tuple[str, ...]) -> SettingRow:
    section = settings if len(path) == 1 else getattr(settings, path[0])
    name = path[-1]
    field, value = type(section).model_fields[name], getattr(section, name)
    return SettingRow(variable_name(path), _setting_text(name, value), value == field.default, field.description or "")


def _setting_text(name: str, value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case tuple():
            return ", ".join(map(str, value))
    text = value.get_secret_value() if isinstance(value, SecretStr) else str(value)
    # An address shows where it leads; what is secret and no address shows nothing.
    is_hidden = "://" not in text and (isinstance(value, SecretStr) or name.endswith("_url"))
    return REDACTED if is_hidden else str(redact(text))
