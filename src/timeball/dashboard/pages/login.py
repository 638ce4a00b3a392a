"""Login with an API key, and logout."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from timeball.dashboard.context import ANONYMOUS, PageContext, Site
from timeball.dashboard.session import SESSION_COOKIE, check_csrf, cookie_options, set_session_cookie


async def _login_context(request: Request) -> PageContext:
    site: Site = request.app.state.site
    await site.signer.prepare()
    return PageContext(request, site, ANONYMOUS)


async def login_form(request: Request) -> Response:
    """The page that asks for a key."""
    return _form(await _login_context(request))


async def log_in(request: Request) -> Response:
    """Begin a session, and go to the page that was asked for."""
    context = await _login_context(request)
    await context.read_form()
    check_csrf(request, context.form.get("token", ""))
    token = await context.site.authenticator.log_in(request, context.form.get("key", ""))
    if token is None:
        return _form(context, "This key is unknown, expired or revoked.", 401)
    response = context.go(context.url("/login/done", next=context.form.get("next", "")))
    set_session_cookie(response, request, token)
    return response


async def after_login(request: Request) -> Response:
    """Check that the browser kept the session cookie: without it, the login page would come again and again."""
    context = await _login_context(request)
    if SESSION_COOKIE not in request.cookies:
        why = "Your browser did not keep the session: it needs cookies, and HTTPS unless this is localhost."
        return _form(context, why, 400)
    context.form = {"back": context.site_url(context.query("next") or "/")}
    return context.go(context.back("/"))


async def log_out(request: Request) -> Response:
    """End the session."""
    context = await _login_context(request)
    await context.read_form()
    check_csrf(request, context.form.get("token", ""))
    await context.site.authenticator.log_out(request)
    response = context.go(context.site_url("/login"), "You are logged out.")
    response.delete_cookie(SESSION_COOKIE, **cookie_options(request))
    return response


def _form(context: PageContext, error: str | None = None, status: int = 200) -> Response:
    target = context.form.get("next") or context.query("next")
    return context.page("login.html", http_status=status, error=error, target=target)


ROUTES = [
    Route("/login", login_form, methods=["GET"]),
    Route("/login", log_in, methods=["POST"]),
    Route("/login/done", after_login, methods=["GET"]),
    Route("/logout", log_out, methods=["POST"]),
]
