"""References in payloads: what only the run can tell, such as the instant that it is for.

    {"since": {"$now": "previous_scheduled_for"}, "file": {"$text": "report-{scheduled_date}.csv"}}

`{"$now": NAME}` stands for a value, and `{NAME}` inside of a `$text` for the same value as text. The names are those of
`PayloadReference`; there are no others and no expressions. An object that has one of the keys `$now`, `$text`, `$cause` and `$literal` has
no second key.

    {"$cause": "result"}            stands for what the run returned that this one follows: see `CauseReference`
    {"$literal": VALUE}             stands for VALUE as it is: nothing inside of it is a reference
    {open_brace}, {close_brace}     stand for { and } in a `$text`

A payload is stored as it was written. `check_references` refuses a wrong one wherever a payload enters, and the worker puts the values in
just before the handler is called (`resolve_references`). Both walk through the payload once. Values are short, so a payload grows to less
than three times its size. A reference never becomes a key, nor the name of a secret: who may use a secret is decided when the payload is
written. What a handler takes is checked with values such as it will get (`check_resolved`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

import orjson

from timeball.domain.scheduling.civil_time import MICROSECOND, format_instant, load_zone
from timeball.domain.values.field_errors import (
    FieldError,
    describe_value,
    did_you_mean,
    list_choices,
    nearest_names,
    summarize,
)
from timeball.domain.values.ids import ExecutionId, JobId, format_execution_id, format_id, occurrence_id
from timeball.domain.values.json_text import MAX_PAYLOAD_BYTES, missing_result
from timeball.errors import InvalidInput, quote_text

if TYPE_CHECKING:
    from timeball.domain.scheduling.schedule import Schedule

_NOW, _TEXT, _CAUSE, _LITERAL, _SECRET = "$now", "$text", "$cause", "$literal", "$secret"
_KEYS = (_NOW, _TEXT, _CAUSE, _LITERAL)
# In JSON text: one of our keys is between quotes, and its dollar sign is never escaped, because orjson and jsonb write it.
# A payload without this has no references. Callers for whom a call is too much look for it themselves.
REFERENCE_MARK: Final = '"$'
_MARKS = tuple(f'"{key}"' for key in _KEYS)
_CAUSE_MARK = f'"{_CAUSE}"'
_BRACES = {"open_brace": "{", "close_brace": "}"}
_FIELD = re.compile(r"\{([^{}]*)\}|[{}]")
_MOST_ERRORS = 20

Value = str | int | None


class PayloadReference(StrEnum):
    """What a payload can refer to."""

    # The instant that the schedule named, in UTC: 2026-11-03T01:30:00Z.
    SCHEDULED_FOR = "scheduled_for"
    # Its day in the zone of the job: 2026-11-03.
    SCHEDULED_DATE = "scheduled_date"
    # The occurrence before it, by the schedule of the version that the execution cites; null if there is none.
    PREVIOUS_SCHEDULED_FOR = "previous_scheduled_for"
    EXECUTION_ID = "execution_id"
    ATTEMPT = "attempt"
    FENCE = "fence"


class CauseReference(StrEnum):
    """What the payload of a call can refer to of the run that it follows."""

    # What the handler returned.
    RESULT = "result"
    # What the parts of a group returned, in their order.
    RESULTS = "results"
    EXECUTION_ID = "execution_id"
    # How it ended: dead, cancelled or skipped.
    STATE = "state"
    # The error of its last attempt, or the reason why it was cancelled or skipped; null if there is neither.
    ERROR = "error"


# What is known of a run that has succeeded, and of one that has ended otherwise.
OF_SUCCESS = frozenset({CauseReference.RESULT, CauseReference.EXECUTION_ID})
OF_GROUP = frozenset({CauseReference.RESULTS, CauseReference.EXECUTION_ID})
OF_FAILURE = frozenset({CauseReference.EXECUTION_ID, CauseReference.STATE, CauseReference.ERROR})


# They change from one attempt of an execution to the next.
OF_ATTEMPT = frozenset({PayloadReference.ATTEMPT, PayloadReference.FENCE})
_OF_SCHEDULE = (PayloadReference.SCHEDULED_DATE, PayloadReference.PREVIOUS_SCHEDULED_FOR)


class VersionSchedule(NamedTuple):
    """When a job runs by one of its versions, and the zone that its days are counted in."""

    rule: Schedule
    timezone: str

    def before(self, instant: datetime) -> datetime | None:
        """The last occurrence before an instant."""
        return self.rule.last_at_or_before(instant - MICROSECOND)


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseRecord:
    """The run or the group that another run follows, as its record tells. Without a state the record is gone. *result* is JSON text."""

    id: UUID
    state: str | None
    result: str | None
    error: str | None
    is_group: bool = False

    @property
    def name(self) -> str:
        """Its id with its prefix."""
        return format_id("grp", self.id) if self.is_group else format_execution_id(self.id)

    def value_of(self, name: str) -> Any:
        """What a reference to it stands for; InvalidInput if that is not known any more."""
        if name == CauseReference.EXECUTION_ID:
            return self.name
        if self.state is None:
            raise InvalidInput(
                f"the record of {self.name}, which this run follows, is gone: its retention has passed",
                field="payload",
            )
        match CauseReference(name):
            case CauseReference.RESULT | CauseReference.RESULTS:
                return self._result()
            case CauseReference.STATE:
                return self.state
            case CauseReference.ERROR:
                return self.error

    def _result(self) -> Any:
        result = None if self.result is None else orjson.loads(self.result)
        why_missing = missing_result(result)
        if why_missing is not None:
            raise InvalidInput(
                f"the result of {self.name}, which this run follows, is not there: {why_missing}",
                field="payload",
                hint="store it elsewhere, and return where it is",
            )
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceValues:
    """What the references of one attempt stand for."""

    scheduled_for: datetime
    execution_id: ExecutionId
    attempt: int
    fence: int
    timezone: str = "UTC"
    previous_scheduled_for: datetime | None = None
    # The run before this one. None where it was not read: then references to it stay as they are.
    cause: CauseRecord | None = None

    def with_schedule(self, schedule: VersionSchedule) -> ReferenceValues:
        """The same with what the schedule tells."""
        previous = schedule.before(self.scheduled_for)
        return replace(self, timezone=schedule.timezone, previous_scheduled_for=previous)

    def value_of(self, name: str) -> Value:
        """What a reference stands for."""
        match PayloadReference(name):
            case PayloadReference.SCHEDULED_FOR:
                return format_instant(self.scheduled_for)
            case PayloadReference.SCHEDULED_DATE:
                return self.scheduled_for.astimezone(load_zone(self.timezone)).date().isoformat()
            case PayloadReference.PREVIOUS_SCHEDULED_FOR:
                previous = self.previous_scheduled_for
                return None if previous is None else format_instant(previous)
            case PayloadReference.EXECUTION_ID:
                return format_execution_id(self.execution_id)
            case PayloadReference.ATTEMPT:
                return self.attempt
            case PayloadReference.FENCE:
                return self.fence

    def cause_of(self, name: str) -> Any:
        """What a reference to the run before this one stands for."""
        return {_CAUSE: name} if self.cause is None else self.cause.value_of(name)


def may_have_references(payload: str) -> bool:
    """Whether a payload (JSON text) has a word that looks like a key of ours. Nearly none has: the first look at the text is enough."""
    return REFERENCE_MARK in payload and any(mark in payload for mark in _MARKS)


def has_references(payload: str) -> bool:
    """Whether a payload (JSON text) has references, or literals."""
    return may_have_references(payload) and _has_reference(orjson.loads(payload))


def check_references(payload: str, of_cause: Collection[CauseReference] = ()) -> None:
    """`InvalidInput`, with a pointer to each place, if a reference in a payload (JSON text) is wrong.

    *of_cause* is what it may say of the run before it; nothing, if it follows none.
    """
    if may_have_references(payload):
        _refuse(list(islice(_errors_in(orjson.loads(payload), (), of_cause), _MOST_ERRORS)))


def needs_cause(payload: str) -> bool:
    """Whether a payload (JSON text) refers to the run before it; sometimes true without need."""
    return _CAUSE_MARK in payload


def _refuse(errors: list[FieldError]) -> None:
    if errors:
        raise InvalidInput(
            f"the payload has a reference that cannot be used: {summarize(errors)}",
            field=f"payload{errors[0].pointer}",
            hint='{"$literal": VALUE} keeps a value as it is; {open_brace} and {close_brace} are braces in a $text',
            errors=[error.below("/payload") for error in errors],
        )


def references_in(payload: str) -> list[PayloadReference]:
    """The references of a payload, each once."""
    names: list[str] = []

    def note(name: str) -> Value:
        names.append(name)
        return None

    if may_have_references(payload):
        _resolved(orjson.loads(payload), note, _leave_out)
    return [name for name in PayloadReference if name in names]


def needs_schedule(payload: str) -> bool:
    """Whether the values of a payload with references come from the schedule of the job, too; sometimes true without need."""
    return any(name in payload for name in _OF_SCHEDULE)


def resolve_references(payload: str, values: ReferenceValues) -> str:
    """The payload with values in the place of its references; `InvalidInput` if one is wrong."""
    if not may_have_references(payload):
        return payload
    value = orjson.loads(payload)
    _refuse(list(islice(_errors_in(value, (), list(CauseReference)), 1)))
    resolved = orjson.dumps(_resolved(value, values.value_of, values.cause_of))
    if len(resolved) > MAX_PAYLOAD_BYTES:
        raise InvalidInput(
            f"the payload has {len(resolved):,} bytes with the values of its references, expected at most {MAX_PAYLOAD_BYTES:,}",
            field="payload",
            hint="hand on where a large result is stored, in place of the result",
        )
    return resolved.decode()


def _leave_out(_name: str) -> None:
    return None


def preview_payload(
    payload: str, schedule: VersionSchedule, scheduled_for: datetime, job_id: JobId | None = None
) -> str | None:
    """The payload as the first attempt of an occurrence gets it; None if it has no references.

    The id of the execution is known once there is a job; before that it is one of zeros.
    """
    if not has_references(payload):
        return None
    execution_id = ExecutionId(UUID(int=0)) if job_id is None else occurrence_id(job_id, scheduled_for)
    values = ReferenceValues(scheduled_for=scheduled_for, execution_id=execution_id, attempt=1, fence=1)
    return resolve_references(payload, values.with_schedule(schedule))


_SAMPLE = ReferenceValues(
    scheduled_for=datetime(2000, 1, 2, tzinfo=UTC),
    execution_id=ExecutionId(UUID(int=1)),
    attempt=1,
    fence=1,
    previous_scheduled_for=datetime(2000, 1, 1, tzinfo=UTC),
)


def check_resolved(payload: str, check: Callable[[str], object]) -> None:
    """Check a payload as its handler will get it: with values of the right types in the place of references.

    What a run before it returns can be anything: such a payload is checked when its handler is called.
    """
    if needs_cause(payload):
        return
    usual = resolve_references(payload, _SAMPLE)
    check(usual)
    if usual is payload:
        return
    first = resolve_references(payload, replace(_SAMPLE, previous_scheduled_for=None))
    if first != usual:
        try:
            check(first)
        except InvalidInput as error:
            error.hint = "previous_scheduled_for is null at the first occurrence; the handler has to take null there"
            raise


# walking through a payload


def _resolved(value: Any, value_of: Callable[[str], Value], cause_of: Callable[[str], Any]) -> Any:
    match value:
        case {"$now": name}:
            return value_of(name)
        case {"$cause": name}:
            return cause_of(name)
        case {"$text": text}:
            return _FIELD.sub(partial(_filled, value_of), text)
        case {"$literal": literal}:
            return literal
        case dict():
            return {key: _resolved(inner, value_of, cause_of) for key, inner in value.items()}
        case list():
            return [_resolved(inner, value_of, cause_of) for inner in value]
        case _:
            return value


def _filled(value_of: Callable[[str], Value], match: re.Match[str]) -> str:
    name = match[1]
    if name in _BRACES:
        return _BRACES[name]
    value = value_of(name)
    return "" if value is None else str(value)


def _errors_in(value: Any, path: tuple[str, ...], of_cause: Collection[CauseReference]) -> Iterator[FieldError]:
    if isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _errors_in(inner, (*path, str(number)), of_cause)
    elif isinstance(value, dict):
        key = next((key for key in _KEYS if key in value), None)
        if key is not None:
            yield from _errors_of_reference(key, value, (*path, key), of_cause)
        elif _SECRET in value:
            yield from _errors_of_secret(value, path)
        else:
            for name, inner in value.items():
                yield from _errors_in(inner, (*path, quote_text(name, 100)), of_cause)


def _errors_of_reference(
    key: str, value: dict[str, Any], path: tuple[str, ...], of_cause: Collection[CauseReference]
) -> Iterator[FieldError]:
    others = [name for name in value if name != key]
    if others:
        yield FieldError(path=path[:-1], detail=f"{key} stands beside {quote_text(others[0])}, expected {key} alone")
    given = value[key]
    if key == _LITERAL:
        return
    if not isinstance(given, str):
        expected = list_choices(_names_of(key, of_cause)) if key != _TEXT else "text"
        yield FieldError(path=path, detail=f"{key} {describe_value(given)}, expected {expected}")
    elif key == _CAUSE and not of_cause:
        detail = f'$cause is "{quote_text(given)}", but no run comes before this one'
        yield FieldError(path=path, detail=f"{detail}: it can only stand in a call that follows a run")
    elif key != _TEXT:
        yield from _errors_of_name(given, path, _names_of(key, of_cause))
    else:
        for match in _FIELD.finditer(given):
            yield from _errors_of_field(match, path)


def _names_of(key: str, of_cause: Collection[CauseReference]) -> list[str]:
    return [name for name in CauseReference if name in of_cause] if key == _CAUSE else list(PayloadReference)


def _errors_of_field(match: re.Match[str], path: tuple[str, ...]) -> Iterator[FieldError]:
    if match[1] is None:
        name = "open_brace" if match[0] == "{" else "close_brace"
        found = f"$text has a {match[0]} without its other half at character {match.start() + 1}"
        yield FieldError(path=path, detail=f"{found}, expected {{name}}, or {{{name}}} for a brace")
    else:
        yield from _errors_of_name(match[1], path, [*PayloadReference, *_BRACES])


def _errors_of_name(name: str, path: tuple[str, ...], names: list[str]) -> Iterator[FieldError]:
    if name not in names:
        suggestion = did_you_mean(nearest_names(name, names))
        detail = f"{path[-1]} names {quote_text(name) or 'nothing'}, expected {list_choices(names)}"
        yield FieldError(path=path, detail=f"{detail}; {suggestion}" if suggestion else detail)


def _errors_of_secret(value: dict[str, Any], path: tuple[str, ...]) -> Iterator[FieldError]:
    """Who may use a secret is decided by its name when the payload is written."""
    if _has_reference(value):
        yield FieldError(path=(*path, _SECRET), detail="$secret has a reference in it, expected the name of a secret")


def _has_reference(value: Any) -> bool:
    match value:
        case dict():
            return any(key in value for key in _KEYS) or any(map(_has_reference, value.values()))
        case list():
            return any(map(_has_reference, value))
        case _:
            return False
