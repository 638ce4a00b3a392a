"""Coming in with an API key, and leaving."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from timeball.dashboard.site import Site
from timeball.dashboard.visit import STRANGER, Visit
from timeball.dashboard.visitor import SESSION_COOKIE, cookie_settings, keep_session, refuse_foreign


async def _visit(request: Request) -> Visit:
    site: Site = request.app.state.site
    await site.signer.prepare()
    return Visit(request, site, STRANGER)


async def ask(request: Request) -> Response:
    """The page that asks for a key."""
    return _form(await _visit(request))


async def enter(request: Request) -> Response:
    """Begin a session, and go where the visitor wanted to go."""
    visit = await _visit(request)
    await visit.read_form()
    refuse_foreign(request, visit.form.get("token", ""))
    token = await visit.site.reception.log_in(request, visit.form.get("key", ""))
    if token is None:
        return _form(visit, "This key is unknown, expired or revoked.", 401)
    response = visit.go(visit.url("/login/done", next=visit.form.get("next", "")))
    keep_session(response, request, token)
    return response


async def done(request: Request) -> Response:
    """A browser that keeps no cookies would be asked for its key again and again; better to say so."""
    visit = await _visit(request)
    if SESSION_COOKIE not in request.cookies:
        why = "Your browser did not keep the session: it needs cookies, and HTTPS unless this is localhost."
        return _form(visit, why, 400)
    visit.form = {"back": visit.site_url(visit.query("next") or "/")}
    return visit.go(visit.back("/"))


async def leave(request: Request) -> Response:
    """End the session."""
    visit = await _visit(request)
    await visit.read_form()
    refuse_foreign(request, visit.form.get("token", ""))
    await visit.site.reception.log_out(request)
    response = visit.go(visit.site_url("/login"), "You are logged out.")
    response.delete_cookie(SESSION_COOKIE, **cookie_settings(request))
    return response


def _form(visit: Visit, error: str | None = None, status: int = 200) -> Response:
    wanted = visit.form.get("next") or visit.query("next")
    return visit.page("login.html", http_status=status, error=error, wanted=wanted)


ROUTES = [
    Route("/login", ask, methods=["GET"]),
    Route("/login", enter, methods=["POST"]),
    Route("/login/done", done, methods=["GET"]),
    Route("/logout", leave, methods=["POST"]),
]
