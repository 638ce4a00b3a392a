"""The settings: what this process runs with; for administrators, and to be looked at only."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import Any

from pydantic import SecretStr
from starlette.responses import Response

from timeball.api.auth import Role
from timeball.dashboard.routing import Pages
from timeball.dashboard.visit import Visit
from timeball.domain.redaction import REDACTED, redacted
from timeball.setting_names import FILE, paths, variable
from timeball.settings import HandlerSettings, Settings

pages = Pages()

_TITLES = {"api": "API"}


@dataclass(frozen=True, slots=True)
class Shown:
    """One setting: what it is called in the environment, its value for people's eyes, and what it means."""

    name: str
    value: str
    is_default: bool
    meaning: str


@pages.get("/settings", Role.ADMIN)
async def settings(visit: Visit) -> Response:
    """Every setting, in the groups of the reference."""
    return visit.page("settings.html", groups=shown_settings(visit.site.settings), file=FILE)


def shown_settings(settings: Settings) -> list[tuple[str, list[Shown]]]:
    """All settings by their group; secrets hidden."""
    ordered = sorted(paths(Settings), key=lambda path: (path[0] in HandlerSettings.model_fields, len(path)))
    return [(title, [_shown(settings, path) for path in some]) for title, some in groupby(ordered, key=_group)]


def _group(path: tuple[str, ...]) -> str:
    if len(path) > 1:
        return _TITLES.get(path[0], path[0].capitalize())
    return "Handlers in the box" if path[0] in HandlerSettings.model_fields else "A process"


def _shown(settings: Settings, path: tuple[str, ...]) -> Shown:
    section = settings if len(path) == 1 else getattr(settings, path[0])
    name = path[-1]
    field, value = type(section).model_fields[name], getattr(section, name)
    return Shown(variable(path), _text(name, value), value == field.default, field.description or "")


def _text(name: str, value: Any) -> str:
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
    return REDACTED if is_hidden else str(redacted(text))
