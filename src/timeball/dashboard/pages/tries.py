"""The tries of the last hour that did not succeed: what the number on the first page counts."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from starlette.responses import Response

from timeball.api.views import show_worker
from timeball.dashboard.routing import Pages
from timeball.dashboard.visit import Visit
from timeball.dashboard.wording import moment
from timeball.domain.ids import show_execution

pages = Pages()
_PAGE = 100
_HOUR, _MINUTE = timedelta(hours=1), timedelta(minutes=1)


@pages.get("/tries")
async def tries(visit: Visit) -> Response:
    """Each try that failed, timed out or was lost with its worker, the latest first."""
    since, until = window(visit.site.insights.now())
    before = _read(visit.query("cursor")) or until
    found = await visit.site.insights.unsuccessful_tries(since, min(before, until), _PAGE + 1)
    names = await visit.site.insights.job_names([row["job_id"] for row in found[:_PAGE]])
    rows = [_shown(row) | {"job_name": names.get(row["job_id"])} for row in found[:_PAGE]]
    cursor = rows[-1]["finished_at"].isoformat() if len(found) > _PAGE else None
    total = (await visit.api.get("metrics"))["last_hour"]
    return visit.page("tries.html", part="partials/tries.html", rows=rows, cursor=cursor, since=since, total=total)


def window(now: datetime) -> tuple[datetime, datetime]:
    """The last hour as the numbers count it: sixty whole minutes, the one that has begun among them."""
    until = now.replace(second=0, microsecond=0) + _MINUTE
    return until - _HOUR, until


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    took = None if row["started_at"] is None else (row["finished_at"] - row["started_at"]) / timedelta(milliseconds=1)
    return row | {"id": show_execution(row["execution_id"]), "worker": show_worker(row["worker"]), "ms": took}


def _read(cursor: str) -> datetime | None:
    try:
        found = moment(cursor or None)
    except ValueError:
        return None
    return found if found is not None and found.tzinfo is not None else None
