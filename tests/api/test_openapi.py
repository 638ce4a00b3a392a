"""The OpenAPI document is true: no request causes a server error or an undocumented response."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
EXAMPLES_PER_ROUTE = 6


@pytest.mark.slow
def test_the_api_conforms_to_its_openapi_document(running_api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The same requests in every run: schemathesis also collects constants from imported modules.
    monkeypatch.setattr(providers, "_get_local_constants", Constants)
    schema = schemathesis.openapi.from_url(f"{running_api}/openapi.json", timeout=120)
    with httpx.Client(base_url=running_api, timeout=60) as client:
        # Something to find, so that not every response is a 404.
        body = {"handler": "h", "name": "0", "schedule": "0 6 * * *"}
        assert client.post("/api/v1/jobs", json=body).status_code == 201

    walked = 0
    # One connection for all requests: opening one costs as much as a response.
    with requests.Session() as session:
        for result in schema.get_all_operations():
            walked += 1
            _check(result.ok(), session)
    assert walked >= 45


def _check(operation: Any, session: requests.Session) -> None:
    @settings(
        max_examples=EXAMPLES_PER_ROUTE,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy())
    def check(case: Any) -> None:
        # A stream of events has no end.
        wish = {"headers": {"Accept": "application/json"}} if case.path.endswith("/events") else {}
        case.call_and_validate(checks=CHECKS, session=session, **wish)

    check()
