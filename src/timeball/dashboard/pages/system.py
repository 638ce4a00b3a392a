"""Doctor and about; and for administrators: API keys, the audit log, the settings."""

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
from timeball.dashboard.context import PageContext, PageRouter, target_url
from timeball.domain.explain.diagnosis import worst_status
from timeball.domain.values.ids import JobId, parse_id
from timeball.domain.values.redaction import REDACTED, redact
from timeball.domain.values.wording import parse_duration
from timeball.errors import InvalidInput

router = PageRouter()

_ORDER = {"fail": 0, "warn": 1, "ok": 2}
_VERDICTS = {
    "ok": ("good", "Everything is in order."),
    "warn": ("warn", "It works, with warnings."),
    "fail": ("bad", "Something needs to be done."),
}


@router.get("/doctor")
async def doctor(context: PageContext) -> Response:
    """All checks, the gravest findings first."""
    lines = sorted(
        await context.shared("doctor", context.site.queries.doctor.diagnose), key=lambda line: _ORDER[line.status]
    )
    groups = {status: list(group) for status, group in groupby(lines, key=lambda line: line.status)}
    tone, verdict = _VERDICTS[worst_status(lines)]
    variables: dict[str, Any] = {
        "groups": groups,
        "tone": tone,
        "verdict": verdict,
        "now": context.site.queries.now(),
        "page_of": target_url,
    }
    return context.page("doctor.html", part="partials/doctor.html", **variables)


@router.get("/about")
async def about(context: PageContext) -> Response:
    """The version, the words and the health of this installation."""
    return context.page("about.html", checks=await context.site.queries.doctor.health())


@router.get("/keys", Role.ADMIN)
async def list_keys(context: PageContext) -> Response:
    """All keys, without their tokens."""
    return await _keys_page(context)


@router.post("/keys", Role.ADMIN)
async def create_key(context: PageContext) -> Response:
    """Create a key, and show its token once."""
    form = context.form
    try:
        valid_for = parse_duration(form["lasts"], "lasts") if form.get("lasts", "").strip() else None
        name = form.get("name", "").strip()
        _, token = await context.site.key_manager.create(
            form.get("role", ""), name, valid_for, context.caller.as_actor(form.get("reason") or None).entry
        )
    except InvalidInput as problem:
        return await _keys_page(context, problem=problem)
    return await _keys_page(context, token=token)


@router.post("/keys/{key}/revoke", Role.ADMIN)
async def revoke(context: PageContext) -> Response:
    """Revoke a key; its sessions end with it."""
    key = await context.site.key_manager.revoke(
        context.path["key"], context.caller.as_actor(context.form.get("reason") or None).entry
    )
    return context.go(context.site_url("/keys"), f"The key {key.name} is revoked.")


async def _keys_page(context: PageContext, token: str | None = None, problem: InvalidInput | None = None) -> Response:
    is_open = await context.site.authenticator.is_open()
    # The first key ends the open mode. Parts that these two pages fetch would then lead to the login page: before the response
    # to the form is shown, and before the new key is copied.
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
    """All changes, the latest first; or those of one actor or subject."""
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
    """The names of the changed jobs, by the subject of their audit entries."""
    ids: dict[str, JobId] = {}
    for subject in {change["subject"] for change in changes}:
        with suppress(InvalidInput):
            ids[subject] = JobId(parse_id("job", subject.removeprefix("job:")))
    names = await context.site.queries.jobs.names(list(ids.values()))
    return {subject: names.get(id_) for subject, id_ in ids.items()}


def differences(change: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """The fields that an audit entry changed: name, before, after."""
    before, after = change["before"] or {}, change["after"] or {}
    if not isinstance(before, dict) or not isinstance(after, dict):
        return [("", before, after)]
    names = sorted(set(before) | set(after))
    return [(name, before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)]


_GROUP_TITLES = {"api": "API"}


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One setting: its environment variable, its value with secrets hidden, and its meaning."""

    name: str
    value: str
    is_default: bool
    meaning: str


@router.get("/settings", Role.ADMIN)
async def show_settings(context: PageContext) -> Response:
    """Every setting, in the groups of the reference."""
    return context.page("settings.html", groups=setting_rows(context.site.settings), file=SETTINGS_FILE)


def setting_rows(settings: Settings) -> list[tuple[str, list[SettingRow]]]:
    """All settings by group; secrets hidden."""
    ordered = sorted(setting_paths(Settings), key=lambda path: (path[0] in HandlerSettings.model_fields, len(path)))
    return [(title, [_setting_row(settings, path) for path in paths]) for title, paths in groupby(ordered, key=_group)]


def _group(path: tuple[str, ...]) -> str:
    if len(path) > 1:
        return _GROUP_TITLES.get(path[0], path[0].capitalize())
    return "Built-in handlers" if path[0] in HandlerSettings.model_fields else "Process"


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
    # An address is shown without its password; any other secret is hidden.
    is_hidden = "://" not in text and (isinstance(value, SecretStr) or name.endswith("_url"))
    return REDACTED if is_hidden else str(redact(text))
