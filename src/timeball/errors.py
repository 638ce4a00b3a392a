"""Every error Timeball raises.

TimeballError
├── InvalidInput             a value cannot be used; says what was found and what was expected
│   ├── ScheduleError        a schedule that cannot be read or would never fire
│   │   ├── CronSyntaxError
│   │   ├── NeverFires
│   │   └── UnknownTimezone
│   ├── InvalidJson          text that should be JSON and is not
│   │   ├── JsonTooLarge
│   │   └── JsonTooDeep
│   ├── PayloadError         a payload or result that is not JSON, or too large
│   └── SettingsError        settings that do not fit together
├── NotFound                 there is no job, execution or queue of that name or id
├── Conflict                 the thing exists already, or has changed in the meantime
├── NotAllowed               a key is missing or unknown, or its role does not suffice
├── TooManyRequests          the API limits this caller; `retry_after` says when to try again
├── ServerError              the API failed, or its response is not one of this API
├── ServerUnreachable        the API did not respond; `maybe_done` says whether the request may have been carried out
├── StoreError               the database refused a statement
│   ├── StoreUnavailable     the database cannot be reached; try again
│   ├── UnstorableValue      the database cannot hold a value; the same value will be refused again
│   └── SchemaMismatch       the schema is older or newer than this program
├── BrokerUnavailable        Redis or RabbitMQ cannot carry tickets; work goes on through PostgreSQL
├── EmbeddedServerError      the embedded PostgreSQL could not be started or reached
├── InlineOnly               enqueues run inline here, and what needs a database is not there
├── LoopClosed               code in a Timeball process, most likely a handler, ended its event loop
├── ExecutionFailed          raised by `Run.result()`: the awaited execution did not succeed
└── ResultTimeout            raised by `Run.result()`: not finished in time
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self


def quote_text(text: str, limit: int = 60) -> str:
    """*text* for use in a message: short, and without control characters."""
    short = text if len(text) <= limit else text[: limit - 1] + "…"
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in short)


class TimeballError(Exception):
    """The root: `except TimeballError` catches everything that Timeball itself raises.

    The client raises the API's problems as these errors too. Then `status`, `errors` (pointers into the request, each with
    a `detail`) and `request_id` are those of the response.
    """

    code = "error"
    status: int | None = None
    errors: Sequence[Mapping[str, str]] = ()
    request_id: str | None = None
    _hint: str | None = None

    @property
    def hint(self) -> str | None:
        """What to do about it; a traceback shows it below the message."""
        return self._hint

    @hint.setter
    def hint(self, hint: str | None) -> None:
        self._hint = hint
        if hint is not None and hint not in str(self):
            self.add_note(hint)

    @classmethod
    def from_response(cls, message: str, **facts: Any) -> Self:
        """This error with the message and the attributes that the API responded with."""
        error = cls.__new__(cls, message)
        for name, value in facts.items():
            setattr(error, name, value)
        return error


class InvalidInput(TimeballError):
    """A value cannot be used: *field* names it, the message says what was found and what was expected.

    Where several fields do not fit, *errors* points to each.
    """

    code = "invalid_input"
    field: str | None = None

    def __init__(
        self,
        message: str,
        *,
        field: str | None = None,
        hint: str | None = None,
        errors: Sequence[Mapping[str, str]] = (),
    ) -> None:
        super().__init__(message)
        self.field = field
        self.hint = hint
        self.errors = tuple(errors) or (() if field is None else ({"pointer": f"/{field}", "detail": message},))

    def below(self, path: str) -> InvalidInput:
        """The same error for a value that stands at *path* in something larger."""
        inner = self.errors or ({"pointer": "", "detail": str(self)},)
        errors = [{"pointer": f"/{path}{error['pointer']}", "detail": error["detail"]} for error in inner]
        moved = InvalidInput(str(self), field=errors[0]["pointer"][1:], hint=self.hint, errors=errors)
        moved.code = self.code
        return moved


class ScheduleError(InvalidInput):
    """A schedule cannot be read, or could never fire."""

    code = "invalid_schedule"


class CronSyntaxError(ScheduleError):
    """A cron expression has a field that does not fit: `cron "0 25 * * *": hour is 25, expected 0-23`."""

    code = "invalid_cron"

    def __init__(self, text: str, *, part: str, found: str, expected: str, hint: str | None = None) -> None:
        super().__init__(f'cron "{text}": {part} is {found}, expected {expected}', field="schedule", hint=hint)
        self.text = text
        self.part = part
        self.found = found
        self.expected = expected


class NeverFires(ScheduleError):
    """The schedule names no instant, or none in the future."""

    code = "never_fires"


class UnknownTimezone(ScheduleError):
    """The time zone is not an IANA name."""

    code = "unknown_timezone"


class InvalidJson(InvalidInput):
    """A text that should be JSON cannot be parsed."""

    code = "invalid_json"


class JsonTooLarge(InvalidJson):
    """JSON has more values than may be parsed at once."""

    code = "too_many_values"


class JsonTooDeep(InvalidJson):
    """JSON is nested more deeply than allowed."""

    code = "too_deep"


class PayloadError(InvalidInput):
    """A payload or result is not JSON, or is larger than allowed."""

    code = "invalid_payload"


class SettingsError(InvalidInput):
    """One or more settings do not fit; *problems* lists them all."""

    code = "invalid_settings"

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class NotFound(TimeballError):
    """There is no *kind* with this key."""

    code = "not_found"
    kind: str = "thing"
    key: object = None

    def __init__(self, kind: str, key: object) -> None:
        super().__init__(f"there is no {kind} {key}")
        self.kind = kind
        self.key = key


class Conflict(TimeballError):
    """The request contradicts what is there: a name is taken, a version is outdated, a state is final."""

    code = "conflict"
    facts: Mapping[str, Any] = {}

    def __init__(self, message: str, *, hint: str | None = None, **facts: Any) -> None:
        super().__init__(message)
        self.hint = hint
        self.facts = facts


class NotAllowed(TimeballError):
    """The caller may not do this: the key is missing or unknown, or its role does not suffice."""

    code = "forbidden"

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class TooManyRequests(TimeballError):
    """The API limits this caller; *retry_after* is the number of seconds to wait, if the API named one."""

    code = "too_many_requests"
    retry_after: float | None = None


class ServerError(TimeballError):
    """The API failed, or its response is not one of this API."""

    code = "internal_error"


class ServerUnreachable(TimeballError):
    """The API did not respond; *maybe_done* says whether the request may have been carried out nevertheless."""

    code = "server_unreachable"

    def __init__(self, message: str, *, hint: str | None = None, maybe_done: bool = False) -> None:
        super().__init__(message)
        self.hint = hint
        self.maybe_done = maybe_done


class StoreError(TimeballError):
    """The database refused a statement."""

    code = "store_error"


class StoreUnavailable(StoreError):
    """The database cannot be reached; nothing is known to be lost, and the request can be tried again."""

    code = "store_unavailable"


class UnstorableValue(StoreError):
    """The database cannot hold a value: the fault is in the data, and the same data will be refused again."""

    code = "unwritable"


class SchemaMismatch(StoreError):
    """The schema of the database is not the one this program needs."""

    code = "schema_mismatch"


class BrokerUnavailable(TimeballError):
    """The broker cannot be reached, or accepts nothing; nothing is lost, and it can be tried again."""

    code = "broker_unavailable"


class EmbeddedServerError(TimeballError):
    """The embedded PostgreSQL could not be started, reached or stopped."""

    code = "embedded_server"

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class LoopClosed(TimeballError):
    """Code that ran in the event loop of a process stopped the loop, or cancelled all its tasks."""

    code = "loop_ended"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.hint = "look for a handler that stops the loop, cancels tasks it did not start, or exits; isolate=True runs it apart"


class InlineOnly(TimeballError):
    """Enqueues run inline here; what needs a database, or time that passes, is not there."""

    code = "inline_only"

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class ExecutionFailed(TimeballError):
    """The awaited execution finished without success."""

    code = "execution_failed"

    def __init__(self, execution_id: object, state: str, error: str | None) -> None:
        super().__init__(f"execution {execution_id} is {state}" + (f": {error}" if error else ""))
        self.execution_id = execution_id
        self.state = state
        self.error = error


class ResultTimeout(TimeballError):
    """The awaited execution did not finish in the time allowed; it goes on."""

    code = "result_timeout"
