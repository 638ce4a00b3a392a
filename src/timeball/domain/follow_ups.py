"""What follows the end of an execution: calls that are not yet made, chains of them, and groups.

A call is a JSON object: a handler, a payload, and what a one-off may say beside them, other calls among it.

    {"handler": "report.send", "payload": {"file": {"$cause": "result"}}, "queue": "mail", "on_failure": {...}}
    {"chain": [WORK, WORK, ...], "on_failure": WORK}           one after the other, as long as each succeeds
    {"group": [WORK, ...], "then": WORK, "on_failure": WORK}   side by side, and what follows when all have ended

A job keeps one for its success and one for any other end. They are checked when the job is written, and stored with every field that a
one-off has; so the statement that ends an execution can write what follows it, whatever ended it (`timeball.follow_up` in the schema).
Only the payload refers to the run before it, and its references are resolved when the call starts (`domain.payload_references`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, TypeAlias
from uuid import UUID

import orjson

from timeball.domain.execution import ExecutionState
from timeball.domain.job_fields import OPTION_FIELDS, SPEC_FIELDS, JobSpec
from timeball.domain.payload_references import OF_FAILURE, OF_GROUP, OF_SUCCESS, CauseReference, check_references
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
    # A call is a one-off, of which nothing is expected.
    *(name for name in OPTION_FIELDS if name != "expect"),
    "limit_key",
    *FOLLOW_UP_FIELDS,
)
# Set by us: the payload names secrets, and its author is no administrator. A caller may only confine a call.
CONFINED: Final = "bound_secrets_only"

# How many parts a group has, with those of the groups in it, or steps a chain; and how deep they stand in each other.
# The statement that ends a run begins all parts that follow it, and the outcomes of other runs wait for that.
MAX_PARTS: Final = 10_000
MAX_DEPTH: Final = 20
_CHAIN_KEYS = frozenset({"chain", "on_failure"})
_GROUP_KEYS = frozenset({"group", "then", "on_failure"})
_EXAMPLE = 'a call such as {"handler": "mail.send", "payload": {}}'


@dataclass(frozen=True, slots=True)
class ExecutionLinks:
    """The execution or group that one follows, the executions that follow it, and the part of a group that it belongs to."""

    follows: ExecutionId | None = None
    followed_by: Sequence[ExecutionId] = ()
    follows_group: UUID | None = None
    group_id: UUID | None = None
    part: int | None = None


NO_LINKS: Final = ExecutionLinks()


Define: TypeAlias = Callable[[JobSpec], Mapping[str, Any]]


def check_call(value: object, field: str, define: Define) -> dict[str, Any]:
    """A call, chain or group as it is stored; InvalidInput, with a pointer, if it cannot be made.

    *field* says whose end it follows. *define* checks its fields as those of a one-off, the calls that follow it included.
    """
    stored = _check_work(value, field, FOLLOW_UP_FIELDS[field], define)
    to_json(stored, field)
    return stored


def check_group(value: Mapping[str, Any], define: Define) -> dict[str, Any]:
    """A group or a chain that begins something, as it is stored: no run comes before it."""
    return _check_work(value, "", frozenset(), define)


def _check_work(
    value: object, field: str, of_cause: Collection[CauseReference], define: Define, depth: int = 0
) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise unexpected_value(field, value, _EXAMPLE)
    if depth > MAX_DEPTH:
        raise InvalidInput(f"chains and groups are more than {MAX_DEPTH} deep, expected at most that", field=field)
    if "chain" not in value and "group" not in value:
        return _check_one(value, field, of_cause, define)
    kind, known_keys = ("chain", _CHAIN_KEYS) if "chain" in value else ("group", _GROUP_KEYS)
    try:
        for name in value:
            if name not in known_keys:
                raise InvalidInput(f"{quote_text(str(name))} is unknown beside a {kind}", field=quote_text(str(name)))
        stored: dict[str, Any] = {kind: _check_steps(kind, value[kind], of_cause, define, depth)}
        if kind == "group" and (begun := _begun_at_once(stored)) > MAX_PARTS:
            raise InvalidInput(
                f"the group begins {begun:,} calls at once, with those of the groups in it, expected at most {MAX_PARTS:,}",
                field=kind,
            )
        if value.get("then") is not None:
            stored["then"] = _check_work(value["then"], "then", OF_GROUP, define, depth + 1)
        if value.get("on_failure") is not None:
            stored["on_failure"] = _check_work(value["on_failure"], "on_failure", OF_FAILURE, define, depth + 1)
    except InvalidInput as error:
        raise (error.below(field) if field else error) from None
    return stored


def _check_steps(
    kind: str, steps: object, of_cause: Collection[CauseReference], define: Define, depth: int
) -> list[dict[str, Any]]:
    if not isinstance(steps, list) or not steps:
        raise InvalidInput(f"the {kind} is empty, expected one or more calls", field=kind)
    if len(steps) > MAX_PARTS:
        raise InvalidInput(f"the {kind} has {len(steps):,} calls, expected at most {MAX_PARTS:,}", field=kind)
    stored: list[dict[str, Any]] = []
    known = of_cause
    for number, step in enumerate(steps):
        stored.append(_check_work(step, f"{kind}/{number}", known, define, depth + 1))
        if kind == "chain":
            known = _known_after(stored[-1])
    return stored


def _begun_at_once(work: Mapping[str, Any]) -> int:
    """How many calls are written when work begins."""
    if "chain" in work:
        return _begun_at_once(work["chain"][0])
    return sum(map(_begun_at_once, work["group"])) if "group" in work else 1


def _known_after(work: Mapping[str, Any]) -> Collection[CauseReference]:
    """What is known of the end of work to the step after it."""
    if "chain" in work:
        return _known_after(work["chain"][-1])
    if "group" in work:
        return _known_after(work["then"]) if "then" in work else OF_GROUP
    return OF_SUCCESS


def _check_one(
    call: Mapping[str, Any], field: str, of_cause: Collection[CauseReference], define: Define
) -> dict[str, Any]:
    try:
        _check_names(call)
        payload = to_json(call.get("payload", {}))
        check_references(payload, of_cause)
        given = {name: given for name, given in call.items() if name not in ("payload", CONFINED)}
        if given.get("max_running") is not None:
            # All calls of the handler share the limit; the limit of a single one-off would limit nothing.
            given["limit_key"] = given.get("limit_key") or given["handler"]
        checked = define(JobSpec(**given, payload={}))
    except InvalidInput as error:
        raise error.below(field) from None
    # What is empty stays away: the row of the call has NULL there, as that of any other job.
    stored = {
        name: list(value) if isinstance(value, tuple) else value
        for name in CALL_FIELDS
        for value in (checked[name],)
        if value not in (None, ())
    }
    stored |= {"payload": orjson.loads(payload), "tags": list(checked["tags"])}
    if call.get(CONFINED):
        stored[CONFINED] = True
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


def calls_in(fields: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every call in what follows a job, or in a call, chain or group, the outer ones first, each with its place: `group/3/on_success`."""
    if "handler" in fields and path:
        yield path, fields
    for name in (*FOLLOW_UP_FIELDS, "then"):
        if isinstance(fields.get(name), Mapping):
            yield from calls_in(fields[name], _below(path, name))
    for name in ("chain", "group"):
        steps = fields.get(name)
        for number, step in enumerate(steps if isinstance(steps, list) else ()):
            if isinstance(step, Mapping):
                yield from calls_in(step, _below(path, f"{name}/{number}"))


def _below(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name


def map_calls(work: Mapping[str, Any], change: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """A call, chain or group with *change* made to every call in it, the inner ones first; an InvalidInput points to its call."""
    inner: dict[str, Any] = {}
    for name in (*FOLLOW_UP_FIELDS, "then"):
        if isinstance(work.get(name), Mapping):
            inner[name] = _map_at(name, work[name], change)
    for name in ("chain", "group"):
        if isinstance(work.get(name), list):
            inner[name] = [
                _map_at(f"{name}/{number}", step, change) if isinstance(step, Mapping) else step
                for number, step in enumerate(work[name])
            ]
    whole = {**work, **inner}
    return change(whole) if "handler" in work else whole


def _map_at(path: str, work: Mapping[str, Any], change: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    try:
        return map_calls(work, change)
    except InvalidInput as error:
        raise error.below(path) from None


def confine_calls(
    fields: Mapping[str, dict[str, Any] | None], is_confined: Callable[[str], bool]
) -> dict[str, dict[str, Any] | None]:
    """What follows a job, as it is stored for an author: calls whose payload *is_confined* may use bound secrets only."""

    def confine(call: dict[str, Any]) -> dict[str, Any]:
        return {**call, CONFINED: True} if is_confined(to_json(call["payload"])) else call

    return {name: None if call is None else map_calls(call, confine) for name, call in fields.items()}


class GroupState(StrEnum):
    """Whether all parts of a group have ended, and how."""

    OPEN = "open"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatus:
    """A group as it stands: how many parts it has, and how many of them have ended so far."""

    id: UUID
    state: GroupState
    total: int
    succeeded: int
    failed: int
    created_at: datetime
    closed_at: datetime | None
    # The innermost group that it belongs to.
    outer: UUID | None = None
    meta: Mapping[str, Any] | None = None
    created_by: str | None = None
    # One of the handlers of its parts, to know it by.
    handler: str | None = None

    @property
    def waits_for(self) -> int:
        """How many parts have not ended."""
        return self.total - self.succeeded - self.failed


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStep:
    """What a part of a group has begun: an execution, or a group with the first of its own parts."""

    id: UUID
    handler: str | None = None
    state: ExecutionState | None = None
    error: str | None = None
    group: GroupStatus | None = None
    parts: Sequence[GroupPart] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPart:
    """A part of a group, with what it has begun so far; *steps_left* of its chain have not been begun."""

    number: int
    state: GroupState
    steps: Sequence[GroupStep]
    steps_left: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTree:
    """A group with a page of its parts, and the executions that follow its end."""

    status: GroupStatus
    parts: Sequence[GroupPart]
    # The number after which the next page begins.
    next_after: int | None
    followed_by: Sequence[ExecutionId]


def shown_call(call: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """A call as callers see it."""
    return None if call is None else map_calls(call, _without_mark)


def _without_mark(call: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in call.items() if name != CONFINED}
