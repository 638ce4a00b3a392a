"""Handlers: what can be run, what each takes, what its jobs are given, and which workers have which version."""

from __future__ import annotations

from starlette.responses import Response

from timeball.dashboard.inner_api import Document
from timeball.dashboard.routing import Pages
from timeball.dashboard.visit import Visit
from timeball.dashboard.wording import pretty
from timeball.errors import NotFound

pages = Pages()


@pages.get("/handlers")
async def list_handlers(visit: Visit) -> Response:
    """All handlers, by name."""
    found = await visit.api.get("handlers", limit=100, cursor=visit.query("cursor"))
    return visit.page("handlers.html", part="partials/handlers_list.html", rows=found["data"], page=found)


@pages.get("/handlers/one")
async def show_handler(visit: Visit) -> Response:
    """One handler; its name may hold any character, so it is no part of the path."""
    name = visit.query("name")
    if not name:
        raise NotFound("handler", "")
    found = await visit.api.get("handlers", name)
    return visit.page(
        "handler.html",
        part="partials/handler.html",
        handler=found,
        fields=_fields(found),
        schema=pretty(found["payload_schema"]),
        example=pretty(found["example"]),
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
    return pretty(field["default"]) if "default" in field else ""
