"""Errors become HTTP here only: application/problem+json with a code for programs and a hint for people."""

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

from timeball.domain.values.field_errors import FieldError, read_field_errors
from timeball.errors import Conflict, InvalidInput, NotAllowed, NotFound, StoreUnavailable, TimeballError, quote_text

PROBLEM_MEDIA_TYPE = "application/problem+json"
# What RFC 3986 allows in a path as it is; `instance` is a URI reference.
_IN_PATHS = "/:@!$&'()*+,;=~-._"
_log = logging.getLogger("timeball.api")
MAX_ERRORS = 50


class HttpProblem(Exception):
    """The request itself cannot be accepted: who asks, how it is written, or that it comes too late."""

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
    """Let every error of an app leave it as a problem."""
    app.add_exception_handler(RequestValidationError, _handle)
    app.add_exception_handler(HTTPException, _handle)
    app.add_exception_handler(HttpProblem, _handle)
    app.add_exception_handler(TimeballError, _handle)
    app.add_exception_handler(Exception, _handle)


async def _handle(request: Request, error: Exception) -> Response:
    return problem_for(error, request)


def problem_for(error: Exception, request: Request) -> Response:
    """The answer to a request that failed with this error."""
    match error:
        case HttpProblem():
            return _problem(
                request, error.status, error.code, str(error), error.hint, headers=error.headers, facts=error.facts
            )
        case RequestValidationError():
            return _invalid(request, error)
        case InvalidInput():
            where = [{name: quote_text(text, 500) for name, text in one.items()} for one in error.errors[:MAX_ERRORS]]
            return _problem(request, 422, error.code, str(error), error.hint, where)
        case NotAllowed():
            return _problem(request, 403, error.code, str(error), error.hint)
        case NotFound():
            hint = f"look for it with GET /api/v1/{_COLLECTIONS.get(error.kind, 'jobs')}"
            return _problem(request, 404, error.code, str(error), hint)
        case Conflict():
            return _problem(request, 409, error.code, str(error), error.hint)
        case StoreUnavailable():
            detail, hint = "the database cannot be reached, or took too long", "try again; if it was a list, narrow it"
            return _problem(request, 503, error.code, detail, hint, headers={"Retry-After": "1"})
        case HTTPException():
            return _of_framework(request, error)
        case _:
            # What went wrong inside is for the log, not for the caller.
            _log.error("request failed: %s %s", request.method, quote_text(request.url.path), exc_info=error)
            code = error.code if isinstance(error, TimeballError) else "internal_error"
            detail = "something went wrong here"
            return _problem(request, 500, code, detail, "tell us the request_id; the server's log knows more")


_COLLECTIONS = {
    "job": "jobs",
    "execution": "executions",
    "node": "workers",
    "queue": "queues",
    "handler": "handlers",
    "template": "templates",
    "operation": "operations",
}
_CODES = {400: "bad_request", 404: "not_found", 405: "method_not_allowed"}


def _of_framework(request: Request, error: HTTPException) -> Response:
    code = _CODES.get(error.status_code, "http_error")
    details = {
        404: f"there is nothing at {quote_text(request.url.path, 200)}",
        405: f"{quote_text(request.method, 20)} is not possible at {quote_text(request.url.path, 200)}",
    }
    detail = details.get(error.status_code, str(error.detail))
    return _problem(request, error.status_code, code, detail, "GET /docs lists all routes", headers=error.headers)


def _invalid(request: Request, error: RequestValidationError) -> Response:
    found = [one for place, problems in _by_place(error) for one in _field_errors_at(place, problems, error, request)]
    errors = [{"pointer": pointer, "detail": misfit.words} for pointer, misfit in found]
    detail = "; ".join(misfit.words for _, misfit in found[:3])
    unknown = any(misfit.is_unknown for _, misfit in found)
    several = "see errors for each field" if len(found) > 1 else None
    hint = "unknown fields are refused; check their spelling" if unknown else several
    return _problem(request, 422, "invalid_input", detail, hint, errors)


def _by_place(error: RequestValidationError) -> list[tuple[str, list[Any]]]:
    """What does not fit in the body, the query, the path, the headers; no more of it than is told."""
    places: dict[str, list[Any]] = {}
    for problem in islice(error.errors(), MAX_ERRORS):
        place, *steps = problem["loc"]
        places.setdefault(str(place), []).append({**problem, "loc": steps})
    return list(places.items())


def _field_errors_at(
    place: str, problems: Sequence[Any], error: RequestValidationError, request: Request
) -> list[tuple[str, FieldError]]:
    """Each with where it is: a JSON pointer into the body, or the name of a parameter behind its place."""
    if place == "body":
        found = read_field_errors(problems, error.body, "the body", known=_fields_of_body(request))
        return [(misfit.pointer or "/", misfit) for misfit in found]
    # Parameters stand side by side, and their names are the first step.
    given = {problem["loc"][0]: problem["input"] for problem in problems if problem["loc"]}
    return [(f"{place}:{'/'.join(misfit.path)}", misfit) for misfit in read_field_errors(problems, given, place)]


def _fields_of_body(request: Request) -> Iterable[str]:
    """What the body of this route may have."""
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
