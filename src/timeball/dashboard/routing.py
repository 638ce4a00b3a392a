"""From a request to a page: who looks, whether they may, whether a change comes from one of our own forms."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from timeball.api.auth import Role
from timeball.dashboard.site import Site
from timeball.dashboard.visit import Visit
from timeball.dashboard.visitor import LOCAL_KEY_PARAMETER, keep_session, refuse_foreign

Page: TypeAlias = Callable[[Visit], Awaitable[Response]]


class Pages:
    """The pages of one topic; each names the role it needs."""

    def __init__(self) -> None:
        self.routes: list[Route] = []

    def get(self, path: str, role: Role = Role.VIEWER) -> Callable[[Page], Page]:
        """A page to look at."""
        return self._add(path, "GET", role)

    def post(self, path: str, role: Role) -> Callable[[Page], Page]:
        """Something to do."""
        return self._add(path, "POST", role)

    def _add(self, path: str, method: str, role: Role) -> Callable[[Page], Page]:
        def add(page: Page) -> Page:
            self.routes.append(Route(path, _endpoint(page, role), methods=[method]))
            return page

        return add


def _endpoint(page: Page, role: Role) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        site: Site = request.app.state.site
        session = site.reception.local_session(request)
        if session is not None and request.method == "GET":
            return _begin_local_session(request, session)
        caller = await site.reception.identify(request)
        if caller is None:
            return _to_login(request)
        await site.signer.prepare()
        visit = Visit(request, site, caller)
        request.state.visit = visit
        # Before the form is read: its size is not for callers to choose who may not send it.
        caller.needs(role, f"{request.method} {request.url.path[:200]}")
        if request.method == "POST":
            await visit.read_form()
            refuse_foreign(request, visit.form.get("token", ""))
        return await page(visit)

    return endpoint


def _begin_local_session(request: Request, session: str) -> Response:
    """Keep the local key out of the address, where it would be seen and stored: the browser gets a cookie instead."""
    address = request.url.remove_query_params(LOCAL_KEY_PARAMETER)
    response = RedirectResponse(f"{address.path}?{address.query}" if address.query else address.path, 303)
    keep_session(response, request, session)
    return response


def _to_login(request: Request) -> Response:
    """Log in first, then come back; a part or a stream cannot ask for a key, so its whole page goes."""
    prefix = request.scope.get("root_path", "")
    is_page = "text/html" in request.headers.get("accept", "text/html") or "*/*" in request.headers["accept"]
    if request.method != "GET" or request.headers.get("hx-request") or not is_page:
        return Response(status_code=401, headers={"HX-Redirect": f"{prefix}/login"})
    wanted = request.scope["path"].removeprefix(prefix)
    query = request.url.query
    target = request.url.replace_query_params(next=f"{wanted}?{query}" if query else wanted).query
    return RedirectResponse(f"{prefix}/login?{target}", 303)
