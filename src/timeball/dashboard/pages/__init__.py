"""The pages, a file for each topic."""

from __future__ import annotations

from starlette.routing import Route

from timeball.dashboard.pages import (
    audit,
    dead,
    doctor,
    downloads,
    execution_actions,
    executions,
    forecast,
    handlers,
    home,
    job_actions,
    job_form,
    jobs,
    keys,
    log,
    login,
    operations,
    queues,
    schedule_preview,
    search_ends,
    settings,
    shell,
    stream,
    templates,
    timeline,
    tries,
    workers,
)

# The order matters: `new`, `bulk` and `export` come before the place of a job's or an execution's id.
_TOPICS = (
    home,
    shell,
    search_ends,
    stream,
    timeline,
    tries,
    forecast,
    schedule_preview,
    downloads,
    job_form,
    job_actions,
    jobs,
    log,
    execution_actions,
    executions,
    dead,
    queues,
    workers,
    handlers,
    doctor,
    keys,
    audit,
    operations,
    settings,
    templates,
)


def every_page() -> list[Route]:
    """All addresses of the dashboard; the first that fits answers."""
    return [*login.ROUTES, *(route for topic in _TOPICS for route in topic.pages.routes)]
