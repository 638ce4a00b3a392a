"""Templates: plain substitution, and nothing more."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timeball.domain.template import fill_placeholders, placeholders, spec_from_template
from timeball.errors import InvalidInput


@pytest.mark.parametrize(
    ("payload", "variables", "expected"),
    [
        ({"a": "{{x}}"}, {"x": 42}, {"a": 42}),
        ({"a": "no. {{x}}!"}, {"x": 42}, {"a": "no. 42!"}),
        ({"a": ["{{ x }}", {"b": "{{y}}{{y}}"}]}, {"x": True, "y": "z"}, {"a": [True, {"b": "zz"}]}),
        ({"a": "is {{x}}"}, {"x": False}, {"a": "is false"}),
        ({"{{x}}": "{{x}}"}, {"x": "v"}, {"{{x}}": "v"}),
        ({"a": "{{x}}"}, {"x": "{{y}}"}, {"a": "{{y}}"}),
        ({"a": "{{x.__class__}} {{1+1}} {% if %}"}, {}, {"a": "{{x.__class__}} {{1+1}} {% if %}"}),
    ],
)
def test_names_are_replaced_once_and_as_they_are(payload: Any, variables: dict[str, Any], expected: Any) -> None:
    assert fill_placeholders(payload, variables) == expected


@pytest.mark.parametrize("variables", [{}, {"x": 1, "colour": "red"}])
def test_missing_and_surplus_variables_are_refused(variables: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="variables has"):
        fill_placeholders({"a": "{{x}}"}, variables)


@given(st.recursive(st.text() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_what_leaves_nothing_open_stays_as_it_is(payload: Any) -> None:
    if not any(placeholders(payload)):
        assert fill_placeholders(payload, {}) == payload


def test_without_variables_a_payload_is_not_touched() -> None:
    assert spec_from_template({"handler": "h", "payload": {"a": "{{x}}"}}, {}).payload == {"a": "{{x}}"}


def test_another_kind_of_schedule_replaces_the_one_of_the_template() -> None:
    cron = {"handler": "h", "schedule": "0 6 * * *", "tags": ["a"]}

    once = spec_from_template(cron, {"scheduled_at": "2099-01-01T00:00:00Z"})

    assert (once.schedule, once.scheduled_at, once.tags) == (None, "2099-01-01T00:00:00Z", ("a",))
    with pytest.raises(InvalidInput, match="unknown field"):
        spec_from_template(cron, {"colour": "red"})
    with pytest.raises(InvalidInput, match="handler is missing"):
        spec_from_template({"payload": {}}, {})
