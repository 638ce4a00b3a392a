"""Sentry: errors of handlers with what is known of their runs, and check-ins for scheduled jobs.

    import sentry_sdk
    from timeball.contrib import sentry

    sentry_sdk.init(dsn=..., environment="production")
    sentry.instrument(tb)

An event is made of the record of `logging` that each failed attempt has (`engine.runners.failure_log`), by Sentry's own integration of
logging: an attempt that is retried is a breadcrumb, the last one an event, an expected error neither. Around each run there is an
isolation scope, which the record is made in; so the event has its tags.

A check-in belongs to an execution, not to an attempt: in progress when it first starts, then ok, or an error once no attempt is left.
That an occurrence is missing, Sentry finds by itself, from the schedule that goes with each check-in.

Nothing in here may raise into a run. Sentry's client sends from a thread of its own; while it cannot, it drops.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from hashlib import blake2b
from time import monotonic
from typing import TYPE_CHECKING, Any

from timeball.config.environment import explain_missing_extra
from timeball.current import FAILURE_MARK, ActiveRun, RunOutcome, StopReason, current
from timeball.domain.execution import ExecutionState, Origin
from timeball.domain.values.ids import parse_id
from timeball.domain.values.redaction import redact
from timeball.errors import InvalidInput

with explain_missing_extra():
    import sentry_sdk
    from sentry_sdk.crons import capture_checkin

if TYPE_CHECKING:
    from timeball.domain.job_fields import JobSpec
    from timeball.sdk.app import Timeball

_FLUSH_SECONDS = 2.0
_LONGEST_SLUG = 50
_LONGEST_TAG = 200


def instrument(tb: Timeball, *, crons: bool = True) -> None:
    """Surround every run of this program with a scope of Sentry; with *crons*, report scheduled jobs to Sentry's monitors.

    `sentry_sdk.init(...)` is called by the program, before or after this. An isolated child imports the program, and so has both.
    """
    if not isinstance(crons, bool):
        raise InvalidInput(f"crons is {crons!r}, expected True or False", field="crons")
    monitors = Monitors(tb) if crons else None
    scopes = RunScopes(monitors)
    tb.around_run(scopes.around)
    tb.on_worker_stop(_flush)
    if monitors is not None:
        tb.on_worker_start(monitors.listen)


def _flush() -> None:
    with suppress(Exception):
        sentry_sdk.flush(timeout=_FLUSH_SECONDS)


class RunScopes:
    """Opens the scope of each run."""

    def __init__(self, monitors: Monitors | None) -> None:
        self._monitors = monitors

    @contextmanager
    def around(self, run: ActiveRun) -> Iterator[None]:
        """An isolation scope with what is known of the run."""
        began_at = monotonic()
        with ExitStack() as stack:
            with suppress(Exception):
                scope = stack.enter_context(sentry_sdk.isolation_scope())
                _describe(scope, run)
            with suppress(Exception):
                self._begin(run)
            try:
                yield
            finally:
                with suppress(Exception):
                    self._end(run, monotonic() - began_at)

    def _begin(self, run: ActiveRun) -> None:
        if self._monitors is not None and run.attempt == 1:
            self._monitors.check_in(run.job_name, run.origin, run.id, "in_progress")

    def _end(self, run: ActiveRun, seconds: float) -> None:
        status = None if self._monitors is None else _status_of(run)
        if self._monitors is not None and status is not None:
            self._monitors.check_in(run.job_name, run.origin, run.id, status, seconds)


def _status_of(run: ActiveRun) -> str | None:
    """How the check-in of an execution ends with this attempt; None if it does not, or that is decided later."""
    if run.outcome in (RunOutcome.SUCCEEDED, RunOutcome.CANCELLED):
        return "ok"
    return "error" if run.outcome is RunOutcome.STOPPED and current.stop_reason is StopReason.CANCEL else None


def _describe(scope: Any, run: ActiveRun) -> None:
    scope.clear_breadcrumbs()
    scope.set_transaction_name(run.handler, source="task")
    tags = {
        "timeball.handler": run.handler,
        "timeball.queue": run.queue,
        "timeball.job": run.job_name or run.job_id,
        "timeball.execution": run.id,
        "timeball.attempt": str(run.attempt),
        "timeball.origin": run.origin.value,
    }
    for name, value in tags.items():
        scope.set_tag(name, value[:_LONGEST_TAG])
    scope.set_context(
        "timeball",
        {
            "execution": run.id,
            "job": run.job_id,
            "job_name": run.job_name,
            "handler": run.handler,
            "queue": run.queue,
            "attempt": run.attempt,
            "origin": run.origin.value,
            "scheduled_for": run.scheduled_for.isoformat(),
            "meta": redact(run.meta),
        },
    )


# monitors


class Monitors:
    """The check-ins of the executions that a schedule has made."""

    def __init__(self, tb: Timeball) -> None:
        self._tb = tb

    def listen(self) -> None:
        """Hear of the executions that end dead: which attempt is the last one is known only when it is recorded."""
        # On the loggers of the handlers: one on the root would be taken for a configuration of the program.
        for name in self._tb.registry.names():
            logger = logging.getLogger(name)
            for handler in [handler for handler in logger.handlers if isinstance(handler, _EndOfExecution)]:
                logger.removeHandler(handler)
            logger.addHandler(_EndOfExecution(self))

    def check_in(
        self, job_name: str | None, origin: Origin, execution_id: str, status: str, seconds: float | None = None
    ) -> None:
        """Tell Sentry how an occurrence stands; nothing for what no schedule has made."""
        if job_name is None or origin is not Origin.SCHEDULE:
            return
        capture_checkin(
            monitor_slug=monitor_slug(job_name),
            # The same for all attempts, whatever process makes them.
            check_in_id=parse_id("exe", execution_id).hex,
            status=status,
            duration=seconds,
            monitor_config=monitor_config(self._tb.schedules.get(job_name)),
        )


class _EndOfExecution(logging.Handler):
    """Ends the check-in of an execution with the record of its last attempt."""

    def __init__(self, monitors: Monitors) -> None:
        super().__init__()
        self._monitors = monitors

    def emit(self, record: logging.LogRecord) -> None:
        fields = record.__dict__
        if FAILURE_MARK in fields and fields.get("becomes") == ExecutionState.DEAD:
            with suppress(Exception):
                self._monitors.check_in(fields["job_name"], Origin(fields["origin"]), fields["execution_id"], "error")


def monitor_slug(job_name: str) -> str:
    """The name of a job as Sentry accepts it: lower case, digits, `-` and `_`, up to 50 characters."""
    slug = re.sub(r"[^a-z0-9_-]+", "-", job_name.lower()).strip("-_")
    if slug and len(slug) <= _LONGEST_SLUG:
        return slug
    digest = blake2b(job_name.encode("utf-8", "replace"), digest_size=4).hexdigest()
    return f"{slug[: _LONGEST_SLUG - 9].rstrip('-_') or 'job'}-{digest}"


# What the crontab of Sentry knows: five fields of numbers, names, lists, ranges and steps.
_NAMES = "jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec|mon|tue|wed|thu|fri|sat|sun"
_CRON_FIELD = rf"(?:[0-9*,/-]|{_NAMES})+"
_PLAIN_CRON = re.compile(
    rf"{_CRON_FIELD}(?: {_CRON_FIELD}){{4}}|@(?:hourly|daily|weekly|monthly|yearly)", re.IGNORECASE
)
_SECONDS_OF_UNITS = (("day", 86_400), ("hour", 3_600), ("minute", 60))


def monitor_config(spec: JobSpec | None) -> Any:
    """The schedule of a job for Sentry; None for one that is declared elsewhere, or that Sentry has no words for."""
    if spec is None or spec.skip_on or spec.only_on:
        return None
    schedule = _monitor_schedule(spec)
    if schedule is None:
        return None
    config: dict[str, Any] = {"schedule": schedule, "timezone": spec.timezone}
    if spec.timeout_ms is not None:
        config["max_runtime"] = max(-(-spec.timeout_ms * (spec.max_retries + 1) // 60_000), 1)
    return config


def _monitor_schedule(spec: JobSpec) -> Mapping[str, Any] | None:
    expression = spec.schedule
    if isinstance(expression, str) and _PLAIN_CRON.fullmatch(expression):
        return {"type": "crontab", "value": expression}
    seconds = spec.interval_seconds
    for unit, size in _SECONDS_OF_UNITS if seconds else ():
        if seconds is not None and seconds % size == 0:
            return {"type": "interval", "value": int(seconds // size), "unit": unit}
    return None
