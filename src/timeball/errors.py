"""Every error Timeball raises.

TimeballError
├── InvalidInput             what was given cannot be used; says what was found and what was expected
│   ├── ScheduleError        a schedule that cannot be read or would never fire
│   │   ├── CronSyntaxError
│   │   ├── NeverFires
│   │   └── UnknownTimezone
│   ├── InvalidJson          text that should be JSON and is not
│   │   ├── JsonTooLarge
│   │   └── JsonTooDeep
│   ├── PayloadError         a payload or result that is not JSON, or too large
│   └── SettingsError        settings that do not fit together
├── NotFound                 no job, execution or queue of that name
├── Conflict                 the thing exists already, or has changed meanwhile
├── NotAllowed               a key is missing or unknown, or its role does not suffice
├── TooManyRequests          the API wants fewer requests; `retry_after` says when to come again
├── ServerError              the API failed, or answered what this program does not understand
├── ServerUnreachable        the API did not answer; `maybe_done` says whether the request may have been carried out
├── StoreError               the database said no
│   ├── StoreUnavailable     it cannot be reached just now; trying again makes sense
│   ├── Unwritable           it cannot hold what it was given; trying the same again is in vain
│   └── SchemaMismatch       the schema is older or newer than this program
├── BrokerUnavailable        Redis or RabbitMQ cannot carry tickets just now; work goes on through PostgreSQL
├── EmbeddedServerError      the embedded PostgreSQL could not be started or reached
├── LoopEnded                something that ran in a process of ours ended its event loop: a handler, most likely
├── ExecutionFailed          raised by `Run.result()`: the awaited execution did not succeed
└── ResultTimeout            raised by `Run.result()`: not finished in time
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self


def quote_text(text: str, limit: int = 60) -> str:
    """*text* as it may stand in a message: short, and without control characters."""
    short = text if len(text) <= limit else text[: limit - 1] + "…"
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in short)


class TimeballError(Exception):
    """The root: `except TimeballError` catches all that Timeball itself raises.

    What an API answered is raised as these errors too; then `status`, `errors` (pointers into what was sent, each with
    a `detail`) and `request_id` are those of the answer.
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
        """This error as somebody else told of it: the words are theirs, and so are the facts."""
        error = cls.__new__(cls, message)
        for name, value in facts.items():
            setattr(error, name, value)
        return error


class InvalidInput(TimeballError):
    """A value cannot be used; *field* names it, the message says what was found and what was expected.

    Where several fields do not fit, *errors* points at each.
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
        """The same refusal of something that stands at *path* in something larger."""
        inner = self.errors or ({"pointer": "", "detail": str(self)},)
        errors = [{"pointer": f"/{path}{one['pointer']}", "detail": one["detail"]} for one in inner]
        found = InvalidInput(str(self), field=errors[0]["pointer"][1:], hint=self.hint, errors=errors)
        found.code = self.code
        return found


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
    """The schedule names no instant at all, or none that is left."""

    code = "never_fires"


class UnknownTimezone(ScheduleError):
    """The time zone is no IANA name."""

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
    """The wish contradicts what is there: a name is taken, a version has moved on, a state is final."""

    code = "conflict"
    facts: Mapping[str, Any] = {}

    def __init__(self, message: str, *, hint: str | None = None, **facts: Any) -> None:
        super().__init__(message)
        self.hint = hint
        self.facts = facts


class NotAllowed(TimeballError):
    """The caller may not do this: no key, an unknown one, or one whose role does not suffice."""

    code = "forbidden"

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class TooManyRequests(TimeballError):
    """The API wants to be asked less often; *retry_after* are the seconds to wait, if it said so."""

    code = "too_many_requests"
    retry_after: float | None = None


class ServerError(TimeballError):
    """The API failed, or answered what this program does not understand."""

    code = "internal_error"


class ServerUnreachable(TimeballError):
    """The API did not answer; *maybe_done* says whether the request may have been carried out all the same."""

    code = "server_unreachable"

    def __init__(self, message: str, *, hint: str | None = None, maybe_done: bool = False) -> None:
        super().__init__(message)
        self.hint = hint
        self.maybe_done = maybe_done


class StoreError(TimeballError):
    """The database refused a statement."""

    code = "store_error"


class StoreUnavailable(StoreError):
    """The database cannot be reached just now; nothing is known to be lost, and trying again makes sense."""

    code = "store_unavailable"


class UnstorableValue(StoreError):
    """The database cannot hold what it was given: the fault is in the data, and the same data will be refused again."""

    code = "unwritable"


class SchemaMismatch(StoreError):
    """The database's schema is not the one this program was made for."""

    code = "schema_mismatch"


class BrokerUnavailable(TimeballError):
    """The broker cannot be reached, or takes nothing just now; nothing is lost, and trying again makes sense."""

    code = "broker_unavailable"


class EmbeddedServerError(TimeballError):
    """The embedded PostgreSQL could not be started, reached or stopped."""

    code = "embedded_server"

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class LoopClosed(TimeballError):
    """The event loop of a process was stopped, or all its tasks were cancelled, by something that ran in it."""

    code = "loop_ended"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.hint = "look for a handler that stops the loop, cancels tasks it did not start, or exits; isolate=True runs it apart"


class ExecutionFailed(TimeballError):
    """The awaited execution ended, but did not succeed."""

    code = "execution_failed"

    def __init__(self, execution_id: object, state: str, error: str | None) -> None:
        super().__init__(f"execution {execution_id} is {state}" + (f": {error}" if error else ""))
        self.execution_id = execution_id
        self.state = state
        self.error = error


class ResultTimeout(TimeballError):
    """The awaited execution had not ended within the time allowed; it goes on."""

    code = "result_timeout"
