"""When something cannot be done or found: a page that says what, why, and what to do next."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from timeball.api.problems import Refusal
from timeball.dashboard.inner_api import ApiProblem
from timeball.dashboard.site import Site
from timeball.dashboard.visit import STRANGER, Visit
from timeball.dashboard.visitor import was_identified
from timeball.domain.instants import shown
from timeball.errors import InvalidInput, NotFound, StoreUnavailable, TimeballError

_log = logging.getLogger("timeball.dashboard")
_TITLES = {
    401: "A key is needed",
    403: "You may not do this",
    404: "There is nothing here",
    409: "That is not possible now",
    412: "Somebody was quicker",
    422: "That does not fit",
    429: "Too much at once",
    503: "The database does not answer",
}


async def _visit(request: Request) -> Visit:
    """No page was reached, so it may not be known yet who looks; without a login, a stranger."""
    site: Site = request.app.state.site
    caller = None
    with suppress(Refusal, TimeballError):
        if not was_identified(request):
            caller = await site.reception.identify(request)
        await site.signer.prepare()
    return Visit(request, site, caller or STRANGER)


async def show_problem(request: Request, error: Any) -> Response:
    """The API refused."""
    assert isinstance(error, ApiProblem)
    return await _show(request, error.status, error.detail, error.hint)


async def show_refusal(request: Request, error: Any) -> Response:
    """The request itself cannot be accepted."""
    assert isinstance(error, Refusal)
    return await _show(request, error.status, str(error), error.hint, error.headers)


async def show_missing(request: Request, error: Any) -> Response:
    """No page has this address."""
    assert isinstance(error, HTTPException)
    return await _show(request, error.status_code, f"no page has the address {shown(request.url.path, 200)}", None)


async def show_failure(request: Request, error: Exception) -> Response:
    """Something went wrong inside; the log knows what."""
    if isinstance(error, InvalidInput):
        return await _show(request, 422, str(error), error.hint)
    if isinstance(error, NotFound):
        return await _show(request, 404, str(error), "it may have been deleted; look for it in the list")
    if isinstance(error, StoreUnavailable):
        return await _show(request, 503, "the database cannot be reached, or took too long", "try again in a moment")
    _log.error("page failed: %s %s", request.method, shown(request.url.path), exc_info=error)
    return await _show(request, 500, "something went wrong here", "the server's log knows more")


async def _show(
    request: Request, status: int, detail: str, hint: str | None, headers: Mapping[str, str] | None = None
) -> Response:
    visit = getattr(request.state, "visit", None) or await _visit(request)
    title = _TITLES.get(status, "That did not work")
    response = visit.page(
        "problem.html", part="partials/problem.html", http_status=status, title=title, detail=detail, hint=hint
    )
    response.headers.update(headers or {})
    return response
