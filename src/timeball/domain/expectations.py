"""What is expected of a job or a queue, and the facts about those that are not as expected.

A job says it in its field `expect`, a JSON object such as `{"start_within": "1m", "succeed_every": "26h"}`. One-offs have none: there may
be millions, and each runs once. An occurrence is expected when the ledger says so: the instants are those of `due`, of what waits and runs,
and of the records of what was skipped.

The spans count from the instant that an occurrence is for. Errors that a handler expects are no failures.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timedelta
from shlex import quote
from typing import Any, Final

from timeball.domain.alerts import AlertFact, AlertMember, Severity
from timeball.domain.job_fields import JobSpec
from timeball.domain.values.field_errors import describe_unknown_name, list_choices, unexpected_value
from timeball.domain.values.ids import ExecutionId, JobId, format_execution_id, format_job_id
from timeball.domain.values.wording import (
    Duration,
    counted,
    duration_in_words,
    format_duration,
    instant_in_words,
    parse_duration,
)
from timeball.errors import InvalidInput, quote_text

MAX_FAILURES: Final = 1_000
_SPANS: Final = ("start_within", "finish_within", "succeed_every")
_NUMBERS: Final = {"max_failures_in_a_row": (0, MAX_FAILURES), "max_dead": (0, MAX_FAILURES)}
_EXAMPLE = 'an object such as {"start_within": "1m", "succeed_every": "26h"}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Expect:
    """What is expected of a job; an alert opens while it is not so. Spans are texts like `26h`, seconds, or timedeltas.

    *start_within*, *finish_within*: each occurrence has begun, or ended, so long after its time. *succeed_every*: an execution has
    succeeded in the last so long, whatever the schedule says. *max_failures_in_a_row*, *max_dead*: no more executions in a row have died,
    or are dead letters. *severity* is that of its alerts.
    """

    start_within: Duration | None = None
    finish_within: Duration | None = None
    succeed_every: Duration | None = None
    max_failures_in_a_row: int | None = None
    max_dead: int | None = None
    severity: Severity | str = Severity.CRITICAL


_NAMES: Final = tuple(attribute.name for attribute in fields(Expect))


def check_expect(value: object, field: str = "expect") -> dict[str, Any]:
    """What is expected as a job keeps it, with spans as text; InvalidInput, with a pointer to the place, if it cannot be."""
    if isinstance(value, Expect):
        value = {name: given for name, given in asdict(value).items() if given is not None}
        if value == {"severity": Severity.CRITICAL}:
            value = {}
    if not isinstance(value, Mapping):
        raise unexpected_value(field, value, _EXAMPLE)
    try:
        stored = {str(name): _checked(str(name), given) for name, given in value.items() if given is not None}
    except InvalidInput as error:
        raise error.below(field) from None
    if not stored.keys() - {"severity"}:
        raise InvalidInput(
            f"{field} says nothing, expected at least one of {', '.join(_NAMES[:-1])}",
            field=field,
            hint="null expects nothing of the job",
        )
    return {name: stored[name] for name in _NAMES if name in stored}


def check_expecting(spec: JobSpec, given_fields: Collection[str]) -> None:
    """Refuse a one-off of which the caller expects something; what its handler expects of its jobs does not concern it."""
    if "expect" in given_fields and spec.expect is not None and spec.is_one_off:
        raise InvalidInput(
            "expect is given, but the job is a one-off, which runs once",
            field="expect",
            hint="expect something of its queue (max_oldest_wait), or let it expire: start_within_seconds",
        )


def _checked(name: str, value: Any) -> Any:
    if name in _SPANS:
        return _checked_span(name, value)
    if name in _NUMBERS:
        least, most = _NUMBERS[name]
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise unexpected_value(name, value, f"a whole number from {least} to {most:,}")
        return value
    if name == "severity":
        if value not in list(Severity):
            raise unexpected_value(name, value, list_choices(Severity))
        return Severity(value).value
    detail = describe_unknown_name(quote_text(name, 60), _NAMES)
    raise InvalidInput(detail, field=quote_text(name, 60))


def _checked_span(name: str, value: Any) -> str:
    span = parse_duration(value, name)
    if span < timedelta(seconds=1):
        raise unexpected_value(name, value, "a span of 1s or more")
    # As it was written, if it is text: 26h stays 26h.
    return "".join(value.lower().split()) if isinstance(value, str) else format_duration(span)


# What an evaluation reads.


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectingJob:
    """A job of which something is expected, with the spans read."""

    id: JobId
    name: str
    handler: str
    queue: str
    tags: tuple[str, ...]
    created_at: datetime
    severity: Severity
    start_within: timedelta | None = None
    finish_within: timedelta | None = None
    succeed_every: timedelta | None = None
    max_failures_in_a_row: int | None = None
    max_dead: int | None = None

    @property
    def member(self) -> AlertMember:
        return AlertMember(name=self.name, job_id=self.id, queue=self.queue, tags=self.tags)


def expecting_job(expect: Mapping[str, Any], **fields_of_job: Any) -> ExpectingJob:
    """A job with what its field `expect` says."""
    spans: dict[str, Any] = {name: parse_duration(expect[name], name) for name in _SPANS if name in expect}
    numbers: dict[str, Any] = {name: expect[name] for name in _NUMBERS if name in expect}
    severity = Severity(expect.get("severity", Severity.CRITICAL))
    return ExpectingJob(severity=severity, **spans, **numbers, **fields_of_job)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """How a job has done, as far as it matters to what is expected of it."""

    # The latest success that is known; None if there is none.
    last_success_at: datetime | None = None
    failures_in_a_row: int = 0
    # The number of its dead letters, counted up to a limit.
    dead: int = 0
    # The oldest execution that has not begun, and the oldest that has not ended; each with its instant.
    not_begun: tuple[ExecutionId, datetime] | None = None
    not_ended: tuple[ExecutionId, datetime] | None = None
    # The latest instant that was skipped because nothing began it in time, with the reason; None if one began after it.
    missed: tuple[datetime, str] | None = None


@dataclass(frozen=True, slots=True)
class Obstacle:
    """What keeps a job from running, in a sentence that names who did it and since when; and the command that takes it away."""

    sentence: str
    command: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectingQueue:
    """A queue of which something is expected, and how it stands."""

    name: str
    max_oldest_wait: timedelta | None
    must_be_served: bool
    oldest_at: datetime | None
    is_served: bool


# The facts.


def is_suspect(job: ExpectingJob, record: JobRecord, now: datetime) -> bool:
    """Whether a job is not as expected."""
    return bool(job_facts(job, record, None, now))


def job_facts(job: ExpectingJob, record: JobRecord, obstacle: Obstacle | None, now: datetime) -> list[AlertFact]:
    """What is not as it is expected of a job; *obstacle* is what keeps it from running, if that is known."""
    facts: list[AlertFact] = []
    held = "" if obstacle is None else f": {obstacle.sentence}"
    command = None if obstacle is None else obstacle.command
    if job.succeed_every is not None:
        since = record.last_success_at or job.created_at
        if now - since >= job.succeed_every:
            last = (
                "it never has"
                if record.last_success_at is None
                else f"last success {instant_in_words(record.last_success_at, now)}"
            )
            span = duration_in_words(now - since)
            sentence = (
                f"{job.name} has not succeeded for {span}, expected every {_words(job.succeed_every)} ({last}){held}"
            )
            facts.append(_fact(job, "no_success", "{} jobs have not succeeded in time", sentence, command))
    if job.start_within is not None:
        late = _late_start(job, record, now)
        if late is not None:
            facts.append(_fact(job, "not_started", "{} jobs have not started in time", late + held, command))
    if job.finish_within is not None and record.not_ended is not None:
        execution_id, at = record.not_ended
        if now - at >= job.finish_within:
            span = duration_in_words(now - at)
            name = format_execution_id(execution_id)
            sentence = f"{job.name} has not ended {span} after its time, expected within {_words(job.finish_within)} ({name}){held}"
            facts.append(_fact(job, "not_finished", "{} jobs have not ended in time", sentence, command))
    if job.max_failures_in_a_row is not None and record.failures_in_a_row > job.max_failures_in_a_row:
        failed = f"the last {counted(record.failures_in_a_row, 'execution')} of {job.name} ended dead"
        sentence = f"{failed}, expected at most {job.max_failures_in_a_row} in a row"
        plural = "{} jobs have failed too often in a row"
        facts.append(_fact(job, "failing", plural, sentence, _dead_command(job)))
    if job.max_dead is not None and record.dead > job.max_dead:
        dead = (
            counted(record.dead, "dead execution that is", "dead executions that are")
            if record.dead < MAX_FAILURES
            else f"{MAX_FAILURES:,} or more dead executions that are"
        )
        sentence = f"{job.name} has {dead} not settled, expected at most {job.max_dead}"
        facts.append(_fact(job, "too_many_dead", "{} jobs have too many dead executions", sentence, _dead_command(job)))
    return facts


def _late_start(job: ExpectingJob, record: JobRecord, now: datetime) -> str | None:
    assert job.start_within is not None
    within = f"expected within {_words(job.start_within)}"
    if record.not_begun is not None and now - record.not_begun[1] >= job.start_within:
        execution_id, at = record.not_begun
        name = format_execution_id(execution_id)
        return f"{job.name} has not begun {duration_in_words(now - at)} after its time, {within} ({name})"
    if record.missed is not None and now - record.missed[0] >= job.start_within:
        at, reason = record.missed
        return f"{job.name} did not begin at {instant_in_words(at, now)}, {within}: it was skipped ({reason})"
    return None


def _fact(job: ExpectingJob, kind: str, plural: str, sentence: str, command: str | None) -> AlertFact:
    why = f"timeball why {quote(job.name)}"
    return AlertFact(
        kind=kind,
        key=f"{kind}:{job.id}",
        severity=job.severity,
        sentence=sentence,
        advice=f"ask why: {why}" if command is None else f"take away what holds it: {command}",
        command=command or why,
        target=("job", format_job_id(job.id)),
        members=(job.member,),
        plural=plural,
    )


def _dead_command(job: ExpectingJob) -> str:
    return f"timeball runs --job {quote(job.name)} --status dead"


def queue_facts(queue: ExpectingQueue, obstacle: Obstacle | None, now: datetime) -> list[AlertFact]:
    """What is not as it is expected of a queue."""
    facts: list[AlertFact] = []
    held = "" if obstacle is None else f": {obstacle.sentence}"
    member = AlertMember(name=queue.name, queue=queue.name)
    if (
        queue.max_oldest_wait is not None
        and queue.oldest_at is not None
        and now - queue.oldest_at >= queue.max_oldest_wait
    ):
        wait, most = duration_in_words(now - queue.oldest_at), _words(queue.max_oldest_wait)
        facts.append(
            AlertFact(
                kind="queue_wait",
                key=f"queue_wait:{queue.name}",
                severity=Severity.CRITICAL,
                sentence=f"queue {queue.name}: its oldest execution has waited for {wait}, expected at most {most}{held}",
                advice="take away what holds it" if obstacle else "add workers, or let the queue have more slots",
                command=None if obstacle is None else obstacle.command,
                target=("queue", queue.name),
                members=(member,),
                plural="{} queues have waited for too long",
            )
        )
    if queue.must_be_served and not queue.is_served:
        command = f"timeball worker app:tb --queue {quote(queue.name)}"
        facts.append(
            AlertFact(
                kind="queue_unserved",
                key=f"queue_unserved:{queue.name}",
                severity=Severity.CRITICAL,
                sentence=f"queue {queue.name}: no worker serves it, and one is expected to",
                advice=f"start one: {command}",
                command=command,
                target=("queue", queue.name),
                members=(member,),
                plural="{} queues have no worker",
                lasting=timedelta(seconds=30),
            )
        )
    return facts


def _words(span: timedelta) -> str:
    """A span as it would be written: 26h, and not 1 d 2 h."""
    hours, rest = divmod(span, timedelta(hours=1))
    return f"{hours} h" if not rest and hours <= 72 else duration_in_words(span)


EXPECTATION_KINDS: Final[Sequence[str]] = (
    "no_success",
    "not_started",
    "not_finished",
    "failing",
    "too_many_dead",
    "queue_wait",
)
