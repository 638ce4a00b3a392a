"""The pages, a file for each topic."""

from __future__ import annotations

from starlette.routing import Route

from timeball.dashboard.pages import home, login, shell

_TOPICS = (home, shell)


def every_page() -> list[Route]:
    """All addresses of the dashboard; the first that fits answers."""
    return [*login.ROUTES, *(route for topic in _TOPICS for route in topic.pages.routes)]
