"""What follows the end of an execution: calls that are not yet made.

A call is a JSON object: a handler, a payload, and what a one-off may say beside them, other calls among it.

    {"handler": "report.send", "payload": {"file": {"$cause": "result"}}, "queue": "mail", "on_failure": {...}}

A job keeps one for its success and one for any other end. They are checked when the job is written, and stored with every field that a
one-off has; so the statement that ends an execution can write what follows it, whatever ended it (`timeball.follow_up` in the schema).
Only the payload refers to the run before it, and its references are resolved when the call starts (`domain.payload_references`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from timeball.domain.job_fields import OPTION_FIELDS, SPEC_FIELDS, JobSpec
from timeball.domain.payload_references import OF_FAILURE, OF_SUCCESS, check_references
from timeball.domain.values.field_errors import did_you_mean, list_choices, nearest_names, unexpected_value
from timeball.domain.values.ids import ExecutionId
from timeball.domain.values.json_text import to_json
from timeball.errors import InvalidInput, quote_text

# The fields of a job that say what follows, each with what a payload there may say of the run before it.
FOLLOW_UP_FIELDS: Final = {"on_success": OF_SUCCESS, "on_failure": OF_FAILURE}
# What a call may say.
CALL_FIELDS: Final = (
    "handler",
    "payload",
    "description",
    "meta",
    *OPTION_FIELDS,
    "limit_key",
    *FOLLOW_UP_FIELDS,
)
# Set by us: the payload names secrets, and its author is no administrator. A caller may only confine a call.
CONFINED: Final = "bound_secrets_only"

_EXAMPLE = 'a call such as {"handler": "mail.send", "payload": {}}'


@dataclass(frozen=True, slots=True)
class ExecutionLinks:
    """The execution that one follows, and those that follow it."""

    follows: ExecutionId | None = None
    followed_by: Sequence[ExecutionId] = ()


NO_LINKS: Final = ExecutionLinks()


def check_call(value: object, field: str, define: Callable[[JobSpec], Mapping[str, Any]]) -> dict[str, Any]:
    """A call as it is stored; InvalidInput, with a pointer, if it cannot be made.

    *field* says whose end it follows. *define* checks its fields as those of a one-off, the calls that follow it included.
    """
    if not isinstance(value, Mapping):
        raise unexpected_value(field, value, _EXAMPLE)
    call: Mapping[str, Any] = value
    try:
        _check_names(call)
        payload = to_json(call.get("payload", {}))
        check_references(payload, FOLLOW_UP_FIELDS[field])
        given = {name: given for name, given in call.items() if name not in ("payload", CONFINED)}
        if given.get("max_running") is not None:
            # All calls of the handler share the limit; the limit of a single one-off would limit nothing.
            given["limit_key"] = given.get("limit_key") or given["handler"]
        checked = define(JobSpec(**given, payload={}))
    except InvalidInput as error:
        raise error.below(field) from None
    # What is empty stays away: the row of the call has NULL there, as that of any other job.
    stored = {name: checked[name] for name in CALL_FIELDS if checked[name] not in (None, ())}
    stored |= {"payload": orjson.loads(payload), "tags": list(checked["tags"])}
    if call.get(CONFINED):
        stored[CONFINED] = True
    to_json(stored, field)
    return stored


def _check_names(call: Mapping[str, Any]) -> None:
    for name in call:
        if name in CALL_FIELDS or (name == CONFINED and call[name] is True):
            continue
        if name in SPEC_FIELDS:
            raise InvalidInput(
                f"{name} is given, but a call that follows a run starts when that run has ended, once and without a name",
                field=name,
                hint="leave it out",
            )
        hint = did_you_mean(nearest_names(str(name), CALL_FIELDS)) or "leave it out"
        raise InvalidInput(
            f"{quote_text(str(name))} is unknown, expected {list_choices(CALL_FIELDS)}",
            field=quote_text(str(name)),
            hint=hint,
        )
    if "handler" not in call:
        raise InvalidInput(f"handler is missing, expected {_EXAMPLE}", field="handler")


def calls_in(fields: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Every call in what follows a job or a call, the outer ones first."""
    for name in FOLLOW_UP_FIELDS:
        call = fields.get(name)
        if isinstance(call, Mapping):
            yield call
            yield from calls_in(call)


def map_calls(call: Mapping[str, Any], change: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """A call with *change* made to it and to every call in it, the inner ones first."""
    inner = {name: map_calls(call[name], change) for name in FOLLOW_UP_FIELDS if isinstance(call.get(name), Mapping)}
    return change({**call, **inner})


def confine_calls(
    fields: Mapping[str, dict[str, Any] | None], is_confined: Callable[[str], bool]
) -> dict[str, dict[str, Any] | None]:
    """What follows a job, as it is stored for an author: calls whose payload *is_confined* may use bound secrets only."""

    def confine(call: dict[str, Any]) -> dict[str, Any]:
        return {**call, CONFINED: True} if is_confined(to_json(call["payload"])) else call

    return {name: None if call is None else map_calls(call, confine) for name, call in fields.items()}


def shown_call(call: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """A call as callers see it."""
    return None if call is None else map_calls(call, _without_mark)


def _without_mark(call: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in call.items() if name != CONFINED}
