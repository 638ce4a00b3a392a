"""API keys: who may come in; for administrators."""

from __future__ import annotations

from starlette.responses import Response

from timeball.api.auth import Role
from timeball.dashboard.routing import Pages
from timeball.dashboard.visit import Visit
from timeball.domain.spans import parse_span
from timeball.errors import InvalidInput

pages = Pages()


@pages.get("/keys", Role.ADMIN)
async def list_keys(visit: Visit) -> Response:
    """All keys, without their tokens."""
    return await _list(visit)


@pages.post("/keys", Role.ADMIN)
async def make_key(visit: Visit) -> Response:
    """Make a key, and show its token this one time."""
    form = visit.form
    try:
        lasts = parse_span(form["lasts"], "lasts") if form.get("lasts", "").strip() else None
        name = form.get("name", "").strip()
        _, token = await visit.site.cupboard.create(
            form.get("role", ""), name, lasts, visit.caller.acting(form.get("reason") or None).entry
        )
    except InvalidInput as problem:
        return await _list(visit, problem=problem)
    return await _list(visit, token=token)


@pages.post("/keys/{key}/revoke", Role.ADMIN)
async def revoke(visit: Visit) -> Response:
    """Let a key open nothing from now on; its sessions end with it."""
    key = await visit.site.cupboard.revoke(
        visit.path["key"], visit.caller.acting(visit.form.get("reason") or None).entry
    )
    return visit.go(visit.site_url("/keys"), f"The key {key.name} is revoked.")


async def _list(visit: Visit, token: str | None = None, problem: InvalidInput | None = None) -> Response:
    is_open = await visit.site.reception.is_open()
    # With the first key the door closes: what these pages fetched then would lead to the login, the one that sends the form
    # before its answer is there, and the one that shows the key before it is read.
    visit.stands_still = is_open or token is not None
    return visit.page(
        "keys.html",
        http_status=200 if problem is None else 422,
        keys=await visit.site.cupboard.list(),
        new_token=token,
        problem=problem,
        values=visit.form,
        roles=list(Role),
        now=visit.site.insights.now(),
        is_open=is_open,
    )
