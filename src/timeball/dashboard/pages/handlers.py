"""Handlers: what can be run, what each takes, what its jobs are given, and which workers have which version."""

from __future__ import annotations

from starlette.responses import Response

from timeball.api.resources.handlers import handlers_page, read_handler
from timeball.dashboard.context import PageContext, PageRouter
from timeball.dashboard.formatting import pretty_json
from timeball.dashboard.internal_api import Document
from timeball.errors import NotFound

router = PageRouter()

_PAGE = 100


@router.get("/handlers")
async def list_handlers(context: PageContext) -> Response:
    """All handlers, by name."""
    site = context.site
    page, show = await handlers_page(site.queries, site.catalogue, context.page_request(_PAGE))
    rows = [show(handler) for handler in page.items]
    return context.page("handlers.html", part="partials/handlers_list.html", rows=rows, page=page)


@router.get("/handlers/one")
async def handler_page(context: PageContext) -> Response:
    """One handler; its name may hold any character, so it is no part of the path."""
    name = context.query("name")
    if not name:
        raise NotFound("handler", "")
    handler = await read_handler(context.site.queries, context.site.catalogue, name)
    return context.page(
        "handler.html",
        part="partials/handler.html",
        handler=handler,
        fields=_fields(handler),
        schema=pretty_json(handler["payload_schema"]),
        example=pretty_json(handler["example"]),
    )


def _fields(handler: Document) -> list[Document]:
    """The fields of the payload, one line each."""
    schema = handler["payload_schema"] or {}
    required = set(schema.get("required", ()))
    return [
        {"name": name, "kind": _kind(field), "is_required": name in required, "default": _default(field)}
        for name, field in schema.get("properties", {}).items()
    ]


def _kind(field: Document) -> str:
    if "anyOf" in field:
        return " or ".join(map(_kind, field["anyOf"]))
    if "$ref" in field:
        return str(field["$ref"]).rpartition("/")[2]
    return str(field.get("type", "anything"))


def _default(field: Document) -> str:
    return pretty_json(field["default"]) if "default" in field else ""
