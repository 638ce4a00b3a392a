"""OpenTelemetry: a span for each enqueue, and one for each attempt, in one trace.

    from timeball.contrib import otel

    otel.instrument(tb)

The words are those of messaging (semantic conventions): an enqueue is a `send` of kind producer, an attempt a `process` of kind consumer
whose parent is the enqueue, and which is linked to it. The trace is carried in the meta of the execution (`domain.trace`), so retries, what
follows a run and the parts of a group stay in it. An execution that was enqueued without a trace, as each occurrence of a schedule,
begins one with its first attempt.

Spans are begun with the tracer of the program and ended in a thread of ours, with the instant at which they have ended: a processor that
exports at once may block or raise there without harm to a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from time import time_ns
from typing import TYPE_CHECKING, Any

from timeball.config.environment import explain_missing_extra
from timeball.current import ActiveRun, RunOutcome
from timeball.domain.job_fields import MAX_META_BYTES
from timeball.domain.trace import TRACE_KEY, with_trace
from timeball.domain.values.json_text import to_json
from timeball.engine.runners.outcome import describe_error
from timeball.telemetry.background_calls import BackgroundCalls
from timeball.version import __version__

with explain_missing_extra():
    from opentelemetry import context as otel_context
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer, TracerProvider
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

if TYPE_CHECKING:
    from timeball.sdk.app import Timeball
    from timeball.sdk.enqueue_hooks import PendingEnqueue

_FLUSH_SECONDS = 2.0
_SYSTEM = "timeball"
_PROPAGATOR = TraceContextTextMapPropagator()
_FAILURES = (RunOutcome.FAILED, RunOutcome.STOPPED)


def instrument(tb: Timeball, *, tracer_provider: TracerProvider | None = None) -> Instrumentation:
    """Make spans of the enqueues and runs of this program, with the given provider or the global one.

    Declared first, it surrounds what other code around runs does. The provider may be set up later, such as in `on_worker_start`: a
    provider with threads of its own does not survive a fork, and an isolated child sets up its own.
    """
    made = Instrumentation(tb, tracer_provider)
    tb.before_enqueue(made.on_enqueue)
    tb._enqueue_client.make_group_meta = made.meta_of_group
    tb.around_run(made.around)
    tb.on_worker_stop(made.flush)
    return made


class Instrumentation:
    """The spans of one program."""

    def __init__(self, tb: Timeball, tracer_provider: TracerProvider | None) -> None:
        self._tb = tb
        self._provider = tracer_provider
        self._ends = BackgroundCalls("timeball-spans")

    @cached_property
    def _tracer(self) -> Tracer:
        # Not before it is needed: a program may set up its provider later.
        return trace.get_tracer("timeball", __version__, self._provider)

    # enqueues

    def on_enqueue(self, enqueue: PendingEnqueue) -> None:
        """A span whose trace goes with the execution. One of a schedule begins its own; one that follows another has that of the other."""
        if not enqueue.is_schedule and not enqueue.is_follow_up and TRACE_KEY not in enqueue.meta:
            with suppress(Exception):
                self._send(enqueue)

    def meta_of_group(self, parts: int) -> dict[str, Any] | None:
        """A span for a chain or group, whose trace goes with all of its calls."""
        words: dict[str, str] = {}
        with suppress(Exception):
            words = self._send_span("a group", {"messaging.batch.message_count": parts})
        return with_trace(None, words) or None

    def _send(self, enqueue: PendingEnqueue) -> None:
        attributes: dict[str, Any] = {
            "messaging.destination.name": self._queue_of(enqueue),
            "timeball.handler": enqueue.handler,
        }
        if enqueue.number_of_calls != 1:
            attributes["messaging.batch.message_count"] = enqueue.number_of_calls
        meta = with_trace(enqueue.meta, self._send_span(enqueue.handler, attributes))
        # What the program says of the run goes before what we say.
        if len(to_json(meta).encode()) <= MAX_META_BYTES:
            enqueue.meta.update(meta)

    def _send_span(self, what: str, attributes: dict[str, Any]) -> dict[str, str]:
        span = self._tracer.start_span(f"send {what}", kind=SpanKind.PRODUCER)
        try:
            if span.is_recording():
                span.set_attributes(_operation("send") | attributes)
            return _words_of(span)
        finally:
            self._end(span)

    def _queue_of(self, enqueue: PendingEnqueue) -> str:
        handle = self._tb._handles.get(enqueue.handler)
        inherited = {} if handle is None else handle.target.inherited
        return str(enqueue.options.get("queue") or inherited.get("queue", "default"))

    # attempts

    @contextmanager
    def around(self, run: ActiveRun) -> Iterator[None]:
        """A span around the run, current in it."""
        begun: tuple[Span, Any] | None = None
        with suppress(Exception):
            begun = self._begin(run)
        try:
            yield
        finally:
            if begun is not None:
                with suppress(Exception):
                    self._finish(run, *begun)

    def _begin(self, run: ActiveRun) -> tuple[Span, Any]:
        words = run.trace
        # Not the context of the worker: what started it has nothing to do with the run.
        parent = _PROPAGATOR.extract(words, Context())
        cause = trace.get_current_span(parent).get_span_context()
        span = self._tracer.start_span(
            f"process {run.handler}",
            context=parent,
            kind=SpanKind.CONSUMER,
            links=[Link(cause)] if cause.is_valid else [],
        )
        if span.is_recording():
            span.set_attributes(_operation("process") | _attributes_of(run))
        own = span.get_span_context()
        if not cause.is_valid and own.is_valid and own.trace_flags.sampled:
            run.begin_trace(_words_of(span))
        return span, otel_context.attach(trace.set_span_in_context(span, parent))

    def _finish(self, run: ActiveRun, span: Span, token: Any) -> None:
        otel_context.detach(token)
        try:
            if span.is_recording():
                outcome = run.outcome or RunOutcome.FAILED
                span.set_attribute("timeball.outcome", outcome.value)
                if outcome in _FAILURES:
                    _note_error(span, run.error)
        finally:
            self._end(span)

    # ends

    def _end(self, span: Span) -> None:
        if span.is_recording():
            self._ends.add(partial(span.end, time_ns()))

    def flush(self) -> None:
        """Wait for a bounded time until the spans so far are ended, and have the provider export what it has kept."""
        self._ends.flush(_FLUSH_SECONDS)
        provider: Any = self._provider or trace.get_tracer_provider()
        force_flush: Callable[..., object] | None = getattr(provider, "force_flush", None)
        if force_flush is not None:
            exports = BackgroundCalls("timeball-flush")
            exports.add(partial(force_flush, int(_FLUSH_SECONDS * 1000)))
            exports.flush(_FLUSH_SECONDS)


def _note_error(span: Span, error: BaseException | None) -> None:
    if error is None:
        span.set_status(Status(StatusCode.ERROR))
        return
    described = describe_error(error)
    span.set_status(Status(StatusCode.ERROR, described.message))
    span.set_attribute("error.type", described.type)
    words = {"exception.type": described.type, "exception.message": described.message}
    if described.traceback is not None:
        words["exception.stacktrace"] = described.traceback
    span.add_event("exception", words)


def _words_of(span: Span) -> dict[str, str]:
    words: dict[str, str] = {}
    _PROPAGATOR.inject(words, trace.set_span_in_context(span, Context()))
    return words


def _operation(name: str) -> dict[str, Any]:
    return {"messaging.system": _SYSTEM, "messaging.operation.name": name, "messaging.operation.type": name}


def _attributes_of(run: ActiveRun) -> dict[str, Any]:
    named = {} if run.job_name is None else {"timeball.job.name": run.job_name}
    return named | {
        "messaging.destination.name": run.queue,
        "messaging.message.id": run.id,
        "timeball.handler": run.handler,
        "timeball.job.id": run.job_id,
        "timeball.attempt": run.attempt,
        "timeball.origin": run.origin.value,
        "timeball.scheduled_for": run.scheduled_for.isoformat(),
        "timeball.wait_seconds": run.wait.total_seconds(),
        "timeball.lateness_seconds": run.lateness.total_seconds(),
    }
