"""Where to look: the page of a thing that a read names by its kind and its id."""

from __future__ import annotations

from collections.abc import Mapping

from timeball.dashboard.visit import Visit
from timeball.dashboard.wording import term

_PAGES = {
    "job": "/jobs/{id}",
    "execution": "/executions/{id}",
    "worker": "/workers",
    "scheduler": "/workers",
    "node": "/workers",
    "dead": "/dead",
    "dead_letters": "/dead",
    "keys": "/keys",
    "database": "/doctor",
}


def page_of(visit: Visit, target: Mapping[str, str] | None) -> str | None:
    """The address of what is meant; None if no page shows it."""
    if target is None:
        return None
    kind, name = target["kind"], target["id"]
    if kind == "queue":
        return visit.url("/queues/one", name=name)
    if kind == "handler":
        return visit.url("/jobs", q=term(name, "handler"))
    path = _PAGES.get(kind)
    return None if path is None else visit.site_url(path.format(id=name))
