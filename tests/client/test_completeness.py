"""The client has a method for every route."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

from fastapi.routing import APIRoute

from timeball import Client
from timeball.api.app import _ROUTERS
from timeball.api.models.jobs import JobIn
from timeball.api.params import execution_filter, job_filter
from timeball.client.requests import ApiRequest, DownloadMethod, IterateMethod, Method, Poll, Resource, WaitMethod
from timeball.client.types import (
    CallParams,
    ChainParams,
    ExecutionFilterParams,
    GroupParams,
    JobFilterParams,
    JobParams,
)
from timeball.domain.follow_ups import CALL_FIELDS

# PUT does the same as PATCH; probes are for load balancers; events have their own method;
# `jobs.bulk` takes `delete` like its other actions.
WITHOUT_A_VERB = {
    ("PUT", "/jobs/{job}"),
    ("PUT", "/templates/{template}"),
    ("PUT", "/calendars/{calendar}"),
    ("PUT", "/webhooks/{webhook}"),
    ("PUT", "/channels/{channel}"),
    ("PUT", "/alert-routes/{route}"),
    ("GET", "/health/live"),
    ("GET", "/health/ready"),
    ("GET", "/events"),
    ("POST", "/jobs/bulk/delete"),
}


def calls_of_the_client() -> Iterator[ApiRequest[Any]]:
    """The request of each method, built with values for its parameters."""
    with Client("http://nowhere") as client:
        groups = [one for one in vars(client).values() if isinstance(one, Resource)]
    for group in groups:
        for verb in vars(type(group)).values():
            if isinstance(verb, Method | WaitMethod | IterateMethod | DownloadMethod):
                made: Any = verb._make(*_arguments(verb._make), **_named(verb._make))
                yield made.request if isinstance(made, Poll) else made


def _arguments(make: Any) -> list[Any]:
    required = (one for one in inspect.signature(make).parameters.values() if one.default is inspect.Parameter.empty)
    return [_value(one) for one in required if one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]


def _named(make: Any) -> dict[str, Any]:
    parameters = inspect.signature(make).parameters.values()
    return {
        one.name: _value(one)
        for one in parameters
        if one.kind is inspect.Parameter.KEYWORD_ONLY and one.default is inspect.Parameter.empty
    }


def _value(parameter: inspect.Parameter) -> Any:
    annotation = str(parameter.annotation)
    return [] if annotation.startswith("Sequence") else {} if annotation.startswith("Mapping") else "x"


def routes_of_the_api() -> Iterator[tuple[str, str]]:
    for router in _ROUTERS:
        for route in router.routes:
            assert isinstance(route, APIRoute)
            yield from ((method, route.path) for method in route.methods or () if method != "HEAD")


def _pattern(path: str) -> str:
    return re.sub(r"\{\w+(:words)?\}", "[^/]+", path)


def test_every_route_has_a_client_method() -> None:
    calls = {(call.method, call.path) for call in calls_of_the_client()}

    missing = {
        (method, path)
        for method, path in routes_of_the_api()
        if not any(verb == method and re.fullmatch(_pattern(path), called) for verb, called in calls)
    }

    assert missing == WITHOUT_A_VERB


def test_typed_parameters_are_those_of_the_api() -> None:
    """Type checkers need the names written out, so they exist twice; this test compares them."""
    assert JobParams.__optional_keys__ == set(JobIn.model_fields)
    assert CallParams.__optional_keys__ | CallParams.__required_keys__ == set(CALL_FIELDS)
    assert ChainParams.__optional_keys__ | ChainParams.__required_keys__ == {"chain", "on_failure"}
    assert GroupParams.__optional_keys__ | GroupParams.__required_keys__ == {"group", "then", "on_failure"}
    assert JobFilterParams.__optional_keys__ == set(inspect.signature(job_filter).parameters)
    assert ExecutionFilterParams.__optional_keys__ == set(inspect.signature(execution_filter).parameters)
