"""References in payloads: what they stand for, and what is refused."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timeball.domain.payload_references import (
    PayloadReference,
    ReferenceValues,
    VersionSchedule,
    check_references,
    check_resolved,
    may_have_references,
    preview_payload,
    references_in,
    resolve_references,
)
from timeball.domain.scheduling.schedule import Cron, Every, Manual, Once
from timeball.domain.values.ids import ExecutionId, JobId, format_execution_id, occurrence_id
from timeball.errors import InvalidInput

EVENING = datetime(2026, 11, 3, 23, 30, tzinfo=UTC)
VALUES = ReferenceValues(
    scheduled_for=EVENING,
    execution_id=ExecutionId(UUID(int=1)),
    attempt=2,
    fence=5,
    timezone="Europe/Berlin",
    previous_scheduled_for=EVENING - timedelta(days=1),
)
LARGEST = ReferenceValues(
    scheduled_for=datetime(2199, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    execution_id=ExecutionId(UUID(int=2**128 - 1)),
    attempt=2**31 - 1,
    fence=2**63 - 1,
    previous_scheduled_for=datetime(2199, 12, 30, 23, 59, 59, 999_999, tzinfo=UTC),
)


def resolved(value: Any, values: ReferenceValues = VALUES) -> Any:
    return json.loads(resolve_references(json.dumps(value), values))


def refusal(value: Any) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        check_references(json.dumps(value))
    return caught.value


# what they stand for


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("scheduled_for", "2026-11-03T23:30:00Z"),
        ("scheduled_date", "2026-11-04"),
        ("previous_scheduled_for", "2026-11-02T23:30:00Z"),
        ("execution_id", "exe_00000000000000000000000001"),
        ("attempt", 2),
        ("fence", 5),
    ],
)
def test_a_reference_stands_for_its_value_alone_and_inside_of_a_text(name: str, value: Any) -> None:
    payload = {"alone": {"$now": name}, "deep": [1, {"x": {"$text": f"a-{{{name}}}-{{{name}}}.csv"}}]}

    assert resolved(payload) == {"alone": value, "deep": [1, {"x": f"a-{value}-{value}.csv"}]}


def test_every_name_has_a_value() -> None:
    for name in PayloadReference:
        assert resolved({"$now": name}) is not None


def test_the_occurrence_before_the_first_is_null_and_an_empty_text() -> None:
    first = ReferenceValues(scheduled_for=EVENING, execution_id=VALUES.execution_id, attempt=1, fence=1)

    payload = {"a": {"$now": "previous_scheduled_for"}, "b": {"$text": "<{previous_scheduled_for}>"}}

    assert resolved(payload, first) == {"a": None, "b": "<>"}


def test_what_is_literal_and_what_only_looks_like_a_reference_stays_as_it_is() -> None:
    payload = {
        "literal": {"$literal": {"$now": "tomorrow", "$text": ["{"], "also": {"$literal": 1}}},
        "braces": {"$text": "{open_brace}{attempt}{close_brace}"},
        "text": "$now {scheduled_for} {",
        "name": "$text",
        "secret": {"$secret": "TOKEN"},
        "dollar": {"$ref": "{}"},
    }

    check_references(json.dumps(payload))
    assert resolved(payload) == {
        **payload,
        "literal": {"$now": "tomorrow", "$text": ["{"], "also": {"$literal": 1}},
        "braces": "{2}",
    }


def test_a_payload_without_references_is_the_same_object_afterwards() -> None:
    for payload in ("{}", '{"price": "$5", "$ref": 1}', "null"):
        assert resolve_references(payload, VALUES) is payload
        assert not may_have_references(payload)


def test_references_are_listed_once_in_their_order() -> None:
    payload = json.dumps({"a": {"$text": "{fence}{attempt}{fence}{open_brace}"}, "b": {"$now": "scheduled_for"}})

    assert references_in(payload) == ["scheduled_for", "attempt", "fence"]
    assert references_in('{"a": {"$literal": {"$now": "fence"}}}') == []


# what is refused


@pytest.mark.parametrize(
    ("payload", "pointer", "words"),
    [
        ({"a": {"$now": "tomorrow"}}, "/payload/a/$now", "$now names tomorrow, expected scheduled_for, scheduled_date"),
        ({"a": {"$now": "schedule_for"}}, "/payload/a/$now", "did you mean scheduled_for?"),
        ({"a": [{"$now": 5}]}, "/payload/a/0/$now", "$now is 5, expected scheduled_for"),
        ({"a": {"$now": "attempt", "b": 1}}, "/payload/a", "$now stands beside b, expected $now alone"),
        ({"a": {"$text": "x", "$now": "attempt"}}, "/payload/a", "$now stands beside $text"),
        ({"a": {"$literal": 1, "b": 2}}, "/payload/a", "$literal stands beside b"),
        ({"a": {"$text": {"$search": "tea"}}}, "/payload/a/$text", "$text is an object, expected text"),
        ({"a": {"$text": "{tomorrow}"}}, "/payload/a/$text", "$text names tomorrow, expected"),
        ({"a": {"$text": "{}"}}, "/payload/a/$text", "$text names nothing, expected"),
        ({"a": {"$text": "{attempt + 1}"}}, "/payload/a/$text", "names attempt + 1"),
        ({"a": {"$text": "{ attempt }"}}, "/payload/a/$text", "did you mean attempt?"),
        ({"a": {"$text": "x{"}}, "/payload/a/$text", "a { without its other half at character 2"),
        ({"a": {"$text": "}"}}, "/payload/a/$text", "a } without its other half at character 1"),
        ({"a": {"$text": "{{scheduled_date}}"}}, "/payload/a/$text", "or {open_brace} for a brace"),
        ({"$now": {"$now": "attempt"}}, "/payload/$now", "$now is an object"),
        ({"a": {"$secret": {"$text": "TOKEN_{attempt}"}}}, "/payload/a/$secret", "expected the name of a secret"),
        ({"a": {"$secret": [{"$literal": "TOKEN"}]}}, "/payload/a/$secret", "expected the name of a secret"),
    ],
)
def test_a_wrong_reference_is_refused_with_its_place_and_what_was_expected(
    payload: Any, pointer: str, words: str
) -> None:
    error = refusal(payload)

    assert error.errors[0]["pointer"] == pointer
    assert words in error.errors[0]["detail"]
    assert words in str(error)
    assert "$literal" in (error.hint or "")


def test_every_wrong_reference_is_told_up_to_a_number() -> None:
    error = refusal([{"$now": "x"}] * 1_000)

    assert [each["pointer"] for each in error.errors] == [f"/payload/{number}/$now" for number in range(20)]


def test_a_wrong_reference_that_came_past_the_checks_is_refused_at_the_run() -> None:
    with pytest.raises(InvalidInput, match="names tomorrow"):
        resolve_references('{"a": {"$now": "tomorrow"}}', VALUES)


# the schedule


def before(rule: Any) -> datetime | None:
    return VALUES.with_schedule(VersionSchedule(rule, "UTC")).previous_scheduled_for


def test_the_occurrence_before_this_one_comes_from_the_schedule() -> None:
    nightly = Cron(expression="30 23 * * *")
    hourly = Every(interval_seconds=3600, anchor=EVENING - timedelta(hours=2))

    assert before(nightly) == EVENING - timedelta(days=1)
    assert before(hourly) == EVENING - timedelta(hours=1)
    assert before(Every(interval_seconds=3600, anchor=EVENING)) is None
    assert before(Cron(expression="30 23 * * *", starts_at=EVENING)) is None
    assert before(Once(scheduled_at=EVENING)) is None
    assert before(Manual()) is None


def test_the_occurrence_before_this_one_crosses_a_clock_change_by_the_wall_clock() -> None:
    nightly = Cron(expression="30 2 * * *", timezone="Europe/Berlin")
    after_change = datetime(2026, 3, 30, 0, 30, tzinfo=UTC)
    values = ReferenceValues(scheduled_for=after_change, execution_id=VALUES.execution_id, attempt=1, fence=1)

    previous = values.with_schedule(VersionSchedule(nightly, "Europe/Berlin")).previous_scheduled_for

    assert previous == datetime(2026, 3, 29, 1, 0, tzinfo=UTC), "02:30 did not exist, so it ran at 03:00"


def test_a_preview_knows_the_id_of_the_execution_once_there_is_a_job() -> None:
    job_id = JobId(UUID(int=7))
    schedule = VersionSchedule(Cron(expression="30 23 * * *"), "UTC")
    payload = '{"a": {"$now": "execution_id"}, "b": {"$text": "{attempt}/{fence}"}}'

    known = preview_payload(payload, schedule, EVENING, job_id)
    unknown = preview_payload(payload, schedule, EVENING)

    expected = format_execution_id(occurrence_id(job_id, EVENING))
    assert json.loads(known or "") == {"a": expected, "b": "1/1"}
    assert json.loads(unknown or "")["a"] == "exe_" + "0" * 26
    for plain in ("{}", '{"a": "$now"}'):
        assert preview_payload(plain, schedule, EVENING) is None


# checks of handlers


def test_a_check_sees_values_of_the_right_types_and_null_for_the_first_occurrence() -> None:
    seen: list[Any] = []
    payload = {name.value: {"$now": name} for name in PayloadReference}

    check_resolved(json.dumps(payload), lambda text: seen.append(json.loads(text)))

    usual, first = seen
    assert {name for name, value in usual.items() if isinstance(value, str)} == {
        *("scheduled_for", "scheduled_date", "previous_scheduled_for", "execution_id")
    }
    assert {name for name, value in usual.items() if isinstance(value, int)} == {"attempt", "fence"}
    assert first == usual | {"previous_scheduled_for": None}


def test_a_refusal_of_null_says_where_the_null_comes_from() -> None:
    def refuse_null(text: str) -> None:
        if "null" in text:
            raise InvalidInput("since is null, expected text")

    with pytest.raises(InvalidInput) as caught:
        check_resolved('{"since": {"$now": "previous_scheduled_for"}}', refuse_null)

    assert "null at the first occurrence" in (caught.value.hint or "")


def test_a_payload_without_references_is_checked_once_as_it_is() -> None:
    seen: list[str] = []

    check_resolved('{"a": 1}', seen.append)

    assert seen == ['{"a": 1}']


# any payload

names = st.sampled_from([*PayloadReference])
references = st.builds(lambda name: {"$now": name.value}, names)
texts = st.builds(lambda parts: {"$text": "".join(f"{{{part}}}" for part in parts)}, st.lists(names))
leaves = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text() | references | texts
payloads = st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


@given(payloads)
def test_a_payload_that_passes_the_check_can_be_resolved_and_stays_small(payload: Any) -> None:
    text = json.dumps(payload, ensure_ascii=False, separators=(",", ":"))
    try:
        check_references(text)
    except InvalidInput:
        return

    grown = resolve_references(text, LARGEST)

    assert len(grown.encode()) < 3 * len(text.encode())


@given(payloads)
def test_a_literal_payload_is_kept_whatever_it_is(payload: Any) -> None:
    text = json.dumps({"kept": {"$literal": payload}})

    check_references(text)
    assert json.loads(resolve_references(text, VALUES)) == {"kept": payload}
