"""The OpenAPI document: what every route takes and answers, for programs that read it.

FastAPI makes most of it from the routes. What it leaves out or spells in its own way is put right here, so that the document
passes the linters people use (Spectral, Redocly) and the generators of clients understand it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute, RouteContext, iter_route_contexts
from starlette.routing import BaseRoute

from timeball.api.problems import MEDIA_TYPE
from timeball.api.schemas.bulk import BulkJobs

Document: TypeAlias = dict[str, Any]

# The version of the API, not of the program: strangers may read this, and need not know what runs here.
API_VERSION = "1"
_DESCRIPTION = (
    "Jobs at their exact time. Errors are `application/problem+json`; lists are `{data, next_cursor, has_more}`; "
    "every POST takes an `Idempotency-Key`. Each route says which role a key must have (`x-role`): "
    "viewer, operator, editor or admin, each including those before it."
)
_TAGS = {
    "jobs": "What to run, and when.",
    "executions": "Every run of a job: its state, its attempts, its log.",
    "dead letter": "Executions that have used up their retries.",
    "templates": "Jobs with placeholders, to be filled in.",
    "operations": "Bulk actions and how far they have come.",
    "queues": "Named lines of executions: pause, limit, purge.",
    "nodes": "The workers and schedulers that are running.",
    "handlers": "What workers can run.",
    "events": "Changes as they happen, as server-sent events.",
    "system": "Statistics, health, the doctor, the audit.",
    "time": "Timelines, forecasts, calendars and previews of schedules.",
}


def openapi_document(routes: Sequence[BaseRoute]) -> Document:
    """The description of all routes."""
    document = get_openapi(
        title="Timeball",
        version=API_VERSION,
        description=_DESCRIPTION,
        routes=routes,
        license_info={"name": "MIT", "identifier": "MIT"},
        tags=[{"name": name, "description": description} for name, description in _TAGS.items()],
    )
    _add_bulk_model(document)
    document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    # In open mode, on loopback and before the first key is made, no key is needed.
    document["security"] = [{"key": []}, {}]
    for operation, route in _operations(document, routes):
        _complete(operation)
        _restore_examples(operation, route)
    return document


def served_below(document: Document, prefix: str) -> Document:
    """The document for an application that is mounted below *prefix*."""
    return document | {"servers": [{"url": prefix or "/"}]}


def _add_bulk_model(document: Document) -> None:
    """The body of the bulk route is read by hand, so its model has to be added by hand."""
    model = BulkJobs.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas = document["components"]["schemas"]
    schemas.update({name: part for name, part in model.pop("$defs", {}).items() if name not in schemas})
    schemas["BulkJobs"] = model


def _operations(document: Document, routes: Sequence[BaseRoute]) -> Iterator[tuple[Document, RouteContext]]:
    for route in iter_route_contexts(routes):
        if isinstance(route.original_route, APIRoute) and route.include_in_schema:
            for method in route.methods or ():
                yield document["paths"][route.path_format][method.lower()], route


def _complete(operation: Document) -> None:
    """Problems have a media type of their own, every route names its role in words too, an optional body may be absent."""
    operation["description"] = f"{operation.get('description', '')}\n\nRole: **{operation['x-role']}**.".strip()
    for response in operation["responses"].values():
        content = response.get("content", {})
        if MEDIA_TYPE in content and "application/json" in content:
            content[MEDIA_TYPE]["schema"] = content.pop("application/json")["schema"]
    for media in operation.get("requestBody", {}).get("content", {}).values():
        _drop_null(media.get("schema", {}))


def _drop_null(schema: Document) -> None:
    """A body that may be left out is described by `required`; as `null` it would be sent by generated clients."""
    choices = schema.get("anyOf", [])
    kept = [choice for choice in choices if choice != {"type": "null"}]
    if len(kept) == 1 and len(choices) == 2:
        del schema["anyOf"]
        schema.update(kept[0])


def _restore_examples(operation: Document, route: RouteContext) -> None:
    """FastAPI drops every `null` of an example, and with it properties that the schema requires."""
    for status, response in (route.responses or {}).items():
        for media_type, media in response.get("content", {}).items():
            if "example" in media:
                operation["responses"][str(status)]["content"][media_type]["example"] = media["example"]
    body = (route.openapi_extra or {}).get("requestBody", {})
    for media_type, media in body.get("content", {}).items():
        if "example" in media:
            operation["requestBody"]["content"][media_type]["example"] = media["example"]
