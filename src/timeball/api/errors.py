"""Errors as HTTP responses: application/problem+json with a code for programs and a hint for people."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from itertools import islice
from typing import Any
from urllib.parse import quote

import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from timeball.domain.values.field_errors import FieldError, errors_from_pydantic, summarize
from timeball.errors import (
    Conflict,
    InvalidInput,
    InvalidJson,
    JsonTooLarge,
    NotAllowed,
    NotFound,
    StoreUnavailable,
    TimeballError,
    quote_text,
)

PROBLEM_MEDIA_TYPE = "application/problem+json"
# The characters that RFC 3986 allows unescaped in a path; `instance` is a URI reference.
_IN_PATHS = "/:@!$&'()*+,;=~-._"
_log = logging.getLogger("timeball.api")
MAX_ERRORS = 50
_MAX_IN_DETAIL = 3


class HttpProblem(Exception):
    """A problem of the request itself rather than of what it asks for: its caller, its form, its precondition."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        hint: str | None = None,
        headers: Mapping[str, str] | None = None,
        **facts: Any,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.hint = hint
        self.headers = dict(headers or {})
        self.facts = facts


def install_error_handlers(app: FastAPI) -> None:
    """Turn every error of an app into a problem."""
    app.add_exception_handler(RequestValidationError, _handle)
    app.add_exception_handler(HTTPException, _handle)
    app.add_exception_handler(HttpProblem, _handle)
    app.add_exception_handler(TimeballError, _handle)
    app.add_exception_handler(Exception, _handle)


async def _handle(request: Request, error: Exception) -> Response:
    return problem_for(error, request)


def problem_for(error: Exception, request: Request) -> Response:
    """The response to a request that failed with this error."""
    match error:
        case HttpProblem():
            return _problem(
                request, error.status, error.code, str(error), error.hint, headers=error.headers, facts=error.facts
            )
        case RequestValidationError():
            return _invalid(request, error)
        case InvalidJson():
            status = 413 if isinstance(error, JsonTooLarge) else 400
            return _problem(request, status, error.code, str(error), error.hint)
        case InvalidInput():
            errors = [
                {name: quote_text(text, 500) for name, text in item.items()} for item in error.errors[:MAX_ERRORS]
            ]
            return _problem(request, 422, error.code, str(error), error.hint, errors)
        case NotAllowed():
            return _problem(request, 403, error.code, str(error), error.hint)
        case NotFound():
            hint = f"look for it with GET /api/v1/{_COLLECTIONS.get(error.kind, 'jobs')}"
            return _problem(request, 404, error.code, str(error), hint)
        case Conflict():
            return _problem(request, 409, error.code, str(error), error.hint)
        case StoreUnavailable():
            detail, hint = "the database is unavailable or too slow", "try again; narrow the filter of a list"
            return _problem(request, 503, error.code, detail, hint, headers={"Retry-After": "1"})
        case HTTPException():
            return _framework_problem(request, error)
        case _:
            # Internal details go into the log, not to the caller.
            _log.error("request failed: %s %s", request.method, quote_text(request.url.path), exc_info=error)
            code = error.code if isinstance(error, TimeballError) else "internal_error"
            detail = "the server failed to process the request"
            return _problem(request, 500, code, detail, "look for the request_id in the server's log")


_COLLECTIONS = {
    "job": "jobs",
    "execution": "executions",
    "node": "workers",
    "queue": "queues",
    "handler": "handlers",
    "template": "templates",
    "operation": "operations",
    "freeze": "freezes",
    "webhook": "webhooks",
    "alert": "alerts",
}
_CODES = {400: "bad_request", 404: "not_found", 405: "method_not_allowed"}


def _framework_problem(request: Request, error: HTTPException) -> Response:
    code = _CODES.get(error.status_code, "http_error")
    details = {
        404: f"there is nothing at {quote_text(request.url.path, 200)}",
        405: f"{quote_text(request.method, 20)} is not allowed at {quote_text(request.url.path, 200)}",
    }
    detail = details.get(error.status_code, str(error.detail))
    return _problem(request, error.status_code, code, detail, "GET /docs lists all routes", headers=error.headers)


def _invalid(request: Request, error: RequestValidationError) -> Response:
    found = [item for place, problems in _by_place(error) for item in _errors_at(place, problems, error, request)]
    errors = [{"pointer": pointer, "detail": field_error.detail} for pointer, field_error in found]
    detail = summarize([field_error for _, field_error in found], _MAX_IN_DETAIL)
    has_unknown = any(field_error.is_unknown for _, field_error in found)
    several = "see errors for each field" if len(found) > 1 else None
    hint = "unknown fields are refused; check their spelling" if has_unknown else several
    return _problem(request, 422, "invalid_input", detail, hint, errors)


def _by_place(error: RequestValidationError) -> list[tuple[str, list[Any]]]:
    """The problems of the body, the query, the path and the headers; at most as many as a response lists."""
    places: dict[str, list[Any]] = {}
    for problem in islice(error.errors(), MAX_ERRORS):
        place, *steps = problem["loc"]
        places.setdefault(str(place), []).append({**problem, "loc": steps})
    return list(places.items())


def _errors_at(
    place: str, problems: Sequence[Any], error: RequestValidationError, request: Request
) -> list[tuple[str, FieldError]]:
    """Each error with where it is: a JSON pointer into the body, or `query:limit` for a parameter."""
    if place == "body":
        errors = errors_from_pydantic(problems, error.body, "the body", known=_fields_of_body(request))
        return [(field_error.pointer or "/", field_error) for field_error in errors]
    # The first step of a parameter's place is its name.
    given = {problem["loc"][0]: problem["input"] for problem in problems if problem["loc"]}
    errors = errors_from_pydantic(problems, given, place)
    return [(f"{place}:{'/'.join(field_error.path)}", field_error) for field_error in errors]


def _fields_of_body(request: Request) -> Iterable[str]:
    """The fields that the body of this route may have."""
    field = getattr(request.scope.get("route"), "body_field", None)
    model = getattr(getattr(field, "field_info", None), "annotation", None)
    return getattr(model, "model_fields", ())


def _problem(
    request: Request,
    status: int,
    code: str,
    detail: str,
    hint: str | None,
    errors: Sequence[Mapping[str, str]] = (),
    *,
    headers: Mapping[str, str] | None = None,
    facts: Mapping[str, Any] | None = None,
) -> Response:
    request_id = request.scope.get("state", {}).get("request_id")
    document = {
        "type": f"urn:timeball:problem:{code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": quote_text(detail, 2_000),
        "instance": quote(quote_text(request.url.path, 500), safe=_IN_PATHS),
        "code": code,
        "errors": list(errors),
        "hint": hint,
        "request_id": request_id,
        **(facts or {}),
    }
    response = Response(orjson.dumps(document), status, media_type=PROBLEM_MEDIA_TYPE)
    response.headers.update(headers or {})
    return response


def precondition_error(error: Conflict) -> HttpProblem | Conflict:
    """A Conflict about the version as a failed precondition (412); any other Conflict stays one."""
    version = error.facts.get("version")
    if version is None:
        return error
    return HttpProblem(412, "precondition_failed", str(error), hint=error.hint, headers={"ETag": f'"{version}"'})
