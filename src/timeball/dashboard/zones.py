"""The zone a visitor chose: their browser says it, and pages that draw hours and days keep to it."""

from __future__ import annotations

from urllib.parse import unquote
from zoneinfo import ZoneInfo

from starlette.requests import Request

from timeball.domain.civil_time import load_zone
from timeball.errors import InvalidInput

ZONE_COOKIE = "timeball_zone"


def zone_of(request: Request) -> ZoneInfo:
    """The zone of a visitor; UTC if their browser has not said it yet, or said nonsense."""
    try:
        return load_zone(unquote(request.cookies.get(ZONE_COOKIE, "UTC")))
    except InvalidInput:
        return load_zone("UTC")


def zone_name(zone: ZoneInfo) -> str:
    """`Berlin` for Europe/Berlin."""
    return zone.key.rpartition("/")[2].replace("_", " ")
