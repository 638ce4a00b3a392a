"""Calls that follow the end of an execution, as a job keeps them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from timeball.domain.follow_ups import CALL_FIELDS, calls_in, confine_calls, shown_call
from timeball.domain.job import Job, define_job, redefine_job
from timeball.domain.job_fields import JobSpec
from timeball.domain.values.ids import JobId
from timeball.errors import InvalidInput

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SEND: dict[str, Any] = {"handler": "send", "payload": {"n": 1}}


def a_job(**fields: Any) -> Job:
    return define_job(JobSpec(handler="h", **fields), JobId(UUID(int=1)), NOW, 16)


def test_a_call_is_stored_with_every_field_of_a_one_off() -> None:
    job = a_job(on_success={**SEND, "queue": "mail", "tags": ["a"], "max_running": 2})

    assert job.on_success == SEND | {
        "queue": "mail",
        "priority": 50,
        "max_retries": 3,
        "max_lost": 3,
        "initial_backoff_ms": 1_000,
        "max_backoff_ms": 3_600_000,
        "timeout_ms": 3_600_000,
        "delivery": "at_least_once",
        "max_running": 2,
        "limit_key": "send",
        "tags": ["a"],
    }
    assert job.has_follow_ups
    assert not a_job().has_follow_ups


def test_a_call_without_a_payload_has_an_empty_one() -> None:
    assert (a_job(on_failure={"handler": "send"}).on_failure or {})["payload"] == {}


def test_a_stored_call_is_stored_again_as_it_is() -> None:
    job = a_job(on_success={**SEND, "on_failure": SEND})

    assert redefine_job(job, {"priority": 7}, NOW, 16).on_success == job.on_success
    assert redefine_job(job, {"on_success": None}, NOW, 16).on_success is None


def test_calls_in_calls_are_found_and_confined() -> None:
    job = a_job(on_success={**SEND, "on_failure": {"handler": "tell", "payload": {"key": {"$secret": "k"}}}})
    calls = {"on_success": job.on_success, "on_failure": job.on_failure}

    confined = confine_calls(calls, lambda payload: "$secret" in payload)

    assert [(path, call["handler"]) for path, call in calls_in(calls)] == [
        ("on_success", "send"),
        ("on_success/on_failure", "tell"),
    ]
    assert [call.get("bound_secrets_only") for _, call in calls_in(confined)] == [None, True]
    assert shown_call(confined["on_success"]) == job.on_success
    assert a_job(on_success=confined["on_success"]).on_success == confined["on_success"]


@pytest.mark.parametrize(
    ("call", "field", "message"),
    [
        ("send", "on_success", "on_success is .*, expected a call such as"),
        ([], "on_success", "expected a call such as"),
        ({}, "on_success/handler", "handler is missing, expected a call such as"),
        ({**SEND, "handlr": "x"}, "on_success/handlr", "handlr is unknown, expected handler, payload"),
        ({**SEND, "schedule": "@daily"}, "on_success/schedule", "a call that follows a run starts when that run has ended"),
        ({**SEND, "unique_key": "k"}, "on_success/unique_key", "a call that follows a run starts when"),
        ({**SEND, "priority": 101}, "on_success/priority", "priority is 101"),
        ({**SEND, "handler": ""}, "on_success/handler", "handler"),
        ({**SEND, "bound_secrets_only": False}, "on_success/bound_secrets_only", "is unknown"),
        ({**SEND, "payload": {"a": {"$cause": "resul"}}}, "on_success/payload/a/$cause", "did you mean"),
        ({**SEND, "payload": {"a": {"$cause": "error"}}}, "on_success/payload/a/$cause", "expected result or execution_id"),
        ({**SEND, "payload": {"a": {"$cause": 3}}}, "on_success/payload/a/$cause", "expected result or execution_id"),
        ({**SEND, "on_failure": {"payload": {}}}, "on_success/on_failure/handler", "handler is missing"),
        ({**SEND, "payload": "x" * 300_000}, "on_success/payload", "payload"),
    ],
)  # fmt: skip
def test_a_call_that_cannot_be_made_is_refused_where_it_stands(call: Any, field: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as caught:
        a_job(on_success=call)

    assert caught.value.field == field


def test_every_field_of_a_call_is_one_of_a_job() -> None:
    assert set(CALL_FIELDS) <= set(JobSpec.__dataclass_fields__)


def test_a_group_begins_no_more_calls_at_once_than_one_end_can_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timeball.domain.follow_ups.MAX_PARTS", 5)
    three = {"group": [SEND] * 3}

    a_job(on_success={"group": [three, {"chain": [SEND, three]}, SEND], "then": three})
    with pytest.raises(
        InvalidInput, match="the group begins 6 calls at once, with those of the groups in it, expected at most 5"
    ) as caught:
        a_job(on_success={"chain": [SEND, {"group": [three, {"chain": [three, SEND]}]}]})

    assert caught.value.field == "on_success/chain/1/group"
