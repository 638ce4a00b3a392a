"""Spans of enqueues and runs, kept by the exporter in memory: one trace, whatever an execution goes through."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

from tests.testing.conftest import harness as harness  # a fixture
from timeball import PendingEnqueue, Snooze, Timeball, current
from timeball.contrib import otel
from timeball.contrib.otel import Instrumentation
from timeball.domain.job_fields import MAX_META_BYTES
from timeball.domain.trace import TRACE_KEY, trace_id
from timeball.testing import TimeballHarness

on_one_server = pytest.mark.parametrize("fresh_database", ["pg15"], indirect=True)
NOWHERE = "postgresql://nobody@nowhere.invalid/none"


class Spans:
    """A program's provider, and the spans that it has exported."""

    def __init__(self, tb: Timeball, **options: Any) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False, **options)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.made: Instrumentation = otel.instrument(tb, tracer_provider=self.provider)

    def ended(self) -> list[ReadableSpan]:
        self.made.flush()
        return sorted(self._exporter.get_finished_spans(), key=lambda span: span.start_time or 0)

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.ended() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span


@pytest.fixture
def tb() -> Timeball:
    return Timeball(database_url=NOWHERE)


@pytest.fixture
def spans(tb: Timeball) -> Spans:
    return Spans(tb)


def trace_of(span: ReadableSpan) -> str:
    return f"{span.context.trace_id:032x}"


@on_one_server
@pytest.mark.parametrize("is_async", [False, True])
def test_an_enqueue_and_its_attempt_are_spans_of_the_callers_trace(
    harness: TimeballHarness, tb: Timeball, spans: Spans, is_async: bool
) -> None:
    seen: list[int] = []

    def work() -> None:
        seen.append(trace.get_current_span().get_span_context().trace_id)

    async def awork() -> None:
        await asyncio.sleep(0)
        work()

    handle = tb.handler(name="app:work", queue="mail")(awork if is_async else work)
    harness.use(tb)
    with spans.provider.get_tracer("shop").start_as_current_span("checkout") as checkout:
        run = handle.enqueue()
    harness.drain()

    send, process = spans.one("send app:work"), spans.one("process app:work")
    assert send.parent is not None
    assert send.parent.span_id == checkout.get_span_context().span_id
    assert (send.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert process.parent is not None
    assert process.parent.span_id == send.context.span_id == process.links[0].context.span_id
    assert process.parent.is_remote
    assert {trace_of(span) for span in spans.ended()} == {trace_of(send)}
    assert seen == [send.context.trace_id]
    attributes = dict(process.attributes or {})
    assert attributes.pop("timeball.wait_seconds") >= 0
    assert attributes.pop("timeball.lateness_seconds") >= 0
    assert attributes.pop("timeball.scheduled_for")
    assert attributes == {
        "messaging.system": "timeball",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "mail",
        "messaging.message.id": run.id,
        "timeball.handler": "app:work",
        "timeball.job.id": run.job_id,
        "timeball.attempt": 1,
        "timeball.origin": "enqueue",
        "timeball.outcome": "succeeded",
    }
    assert dict(send.attributes or {}) == {
        "messaging.system": "timeball",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "mail",
        "timeball.handler": "app:work",
    }


@on_one_server
def test_an_enqueue_of_many_is_one_span(harness: TimeballHarness, tb: Timeball, spans: Spans) -> None:
    @tb.handler(name="app:work")
    def work(number: int) -> None: ...

    harness.use(tb)
    work.enqueue_many(work.call(number) for number in range(3))
    harness.drain()

    send = spans.one("send app:work")
    assert (send.attributes or {})["messaging.batch.message_count"] == 3
    assert [span.parent and span.parent.span_id for span in spans.named("process app:work")] == [
        send.context.span_id
    ] * 3


@on_one_server
def test_a_failure_is_an_error_of_its_attempt_and_retries_stay_in_the_trace(
    harness: TimeballHarness, tb: Timeball, spans: Spans
) -> None:
    @tb.handler(name="app:fail", retries=1, backoff="30s")
    def fail() -> int:
        if current.attempt == 1:
            raise LookupError("nothing there")
        return 1

    harness.use(tb)
    fail.enqueue()
    harness.clock.advance("1m")

    first, second = spans.named("process app:fail")
    assert (first.status.status_code, first.status.description) == (StatusCode.ERROR, "nothing there")
    assert (first.attributes or {})["error.type"] == "LookupError"
    (event,) = first.events
    assert event.name == "exception"
    words = dict(event.attributes or {})
    assert (words["exception.type"], words["exception.message"]) == ("LookupError", "nothing there")
    assert "in fail" in str(words["exception.stacktrace"])
    assert "timeball/handlers" not in str(words["exception.stacktrace"])
    assert [(span.attributes or {})["timeball.attempt"] for span in (first, second)] == [1, 2]
    assert second.status.status_code is StatusCode.UNSET
    assert trace_of(first) == trace_of(second) == trace_of(spans.one("send app:fail"))


@on_one_server
def test_an_occurrence_of_a_schedule_begins_a_trace_that_its_retries_and_what_follows_keep(
    harness: TimeballHarness, tb: Timeball, spans: Spans
) -> None:
    @tb.handler(name="app:tell")
    def tell() -> None: ...

    @tb.cron("0 * * * *", name="hourly", retries=1, backoff="10s", on_success=tell.call())
    def work() -> None:
        if current.attempt == 1:
            raise ValueError

    harness.use(tb)
    harness.clock.advance("121m")

    attempts, told = spans.named(f"process {work.name}"), spans.named("process app:tell")
    assert spans.named("send app:tell") == []
    assert len(attempts) == 4
    assert len(told) == 2
    firsts = [span for span in attempts if span.parent is None]
    assert len({trace_of(span) for span in firsts}) == 2
    assert sorted(map(trace_of, attempts)) == sorted(map(trace_of, firsts * 2))
    assert sorted(map(trace_of, told)) == sorted(map(trace_of, firsts))
    # It is kept with the execution.
    assert {trace_id(run.meta) for run in harness.executions(work) if run.state == "succeeded"} == {
        trace_of(span) for span in firsts
    }


@on_one_server
def test_a_chain_and_a_group_are_one_trace(harness: TimeballHarness, tb: Timeball, spans: Spans) -> None:
    @tb.handler(name="app:part")
    def part(number: int) -> int:
        return number

    @tb.handler(name="app:join")
    def join(numbers: list[int]) -> int:
        return sum(numbers)

    harness.use(tb)
    tb.group([part.call(1), tb.chain(part.call(2), part.call(3))]).then(join.call(tb.results)).enqueue()
    harness.drain()

    send = spans.one("send a group")
    assert (send.attributes or {})["messaging.batch.message_count"] == 2
    assert len(spans.named("process app:part")) == 3
    assert len(spans.named("process app:join")) == 1
    assert {trace_of(span) for span in spans.ended()} == {trace_of(send)}


@on_one_server
def test_the_trace_is_no_word_of_the_user(harness: TimeballHarness, tb: Timeball, spans: Spans) -> None:
    metas: list[Any] = []

    @tb.around_run
    def note(run: Any) -> Iterator[None]:
        metas.append(run.meta)
        yield

    @tb.handler(name="app:work")
    def work() -> None:
        metas.append(current.meta)

    harness.use(tb)
    run = work.options(meta={"tenant": "acme"}).enqueue()
    plain = work.enqueue()
    harness.drain()

    assert metas == [{"tenant": "acme"}] * 2 + [{}] * 2
    assert (run.info().meta, plain.info().meta) == ({"tenant": "acme"}, None)
    assert [run.id for run in tb.runs(meta={"tenant": "acme"})] == [run.id]
    assert run.info().trace_id == trace_of(spans.named("send app:work")[0])


@on_one_server
def test_a_program_that_says_all_that_meta_can_hold_goes_untraced(
    harness: TimeballHarness, tb: Timeball, spans: Spans
) -> None:
    @tb.handler(name="app:work")
    def work() -> None: ...

    harness.use(tb)
    full = {"words": "x" * (MAX_META_BYTES - 12)}
    run = work.options(meta=full).enqueue()
    harness.drain()

    assert run.info().meta == full
    assert spans.one("process app:work").parent is None


@on_one_server
def test_a_trace_that_is_given_is_kept(harness: TimeballHarness, tb: Timeball, spans: Spans) -> None:
    given = f"00-{'ab' * 16}-{'cd' * 8}-01"

    @tb.handler(name="app:work")
    def work() -> None: ...

    harness.use(tb)
    work.options(meta={TRACE_KEY: {"traceparent": given, "tracestate": "a=b"}}).enqueue()
    work.options(meta={TRACE_KEY: {"traceparent": "no trace"}}).enqueue()
    harness.drain()

    first, second = spans.named("process app:work")
    assert trace_of(first) == "ab" * 16
    assert second.parent is None
    assert spans.named("send app:work") == []


@on_one_server
def test_what_is_not_sampled_begins_no_trace(harness: TimeballHarness, tb: Timeball) -> None:
    spans = Spans(tb, sampler=ALWAYS_OFF)

    @tb.every("1h", name="hourly")
    def work() -> None: ...

    harness.use(tb)
    harness.clock.advance("1h")

    assert spans.ended() == []
    assert [trace_id(run.meta) for run in harness.executions(work)] == [None] * len(harness.executions(work))


def test_inline_runs_are_spans_too(tb: Timeball, spans: Spans) -> None:
    @tb.handler(name="app:work")
    def work() -> None:
        raise ValueError("no")

    with tb.inline():
        work.enqueue()

    process = spans.one("process app:work")
    assert process.status.status_code is StatusCode.ERROR
    assert process.parent is not None
    assert process.parent.span_id == spans.one("send app:work").context.span_id


@on_one_server
@pytest.mark.parametrize("ending", ["snoozed", "cancelled"])
def test_a_run_that_asks_for_its_end_is_no_error(
    harness: TimeballHarness, tb: Timeball, spans: Spans, ending: str
) -> None:
    from timeball import Cancel

    @tb.handler(name="app:work")
    def work() -> Any:
        return Snooze("1h") if ending == "snoozed" else Cancel("enough")

    harness.use(tb)
    work.enqueue()
    harness.drain()

    process = spans.one("process app:work")
    assert (process.attributes or {})["timeball.outcome"] == ending
    assert process.status.status_code is StatusCode.UNSET


# collectors that are no good


@on_one_server
def test_without_a_provider_nothing_is_traced_and_nothing_is_kept(harness: TimeballHarness, tb: Timeball) -> None:
    otel.instrument(tb)

    @tb.handler
    def work() -> int:
        return 1

    harness.use(tb)
    run = work.enqueue()

    assert harness.drain() == (1, 0, 0)
    assert run.info().trace_id is None
    assert [execution.meta for execution in harness.executions()] == [None]


class BadExporter(SpanExporter):
    """Raises, or blocks until it is released."""

    def __init__(self, release: threading.Event | None) -> None:
        self._release = release

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if self._release is None:
            raise ConnectionError("no collector")
        self._release.wait()
        return SpanExportResult.SUCCESS


@on_one_server
@pytest.mark.parametrize("blocks", [False, True])
def test_an_exporter_that_raises_or_blocks_harms_no_run(harness: TimeballHarness, tb: Timeball, blocks: bool) -> None:
    release = threading.Event() if blocks else None
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(BadExporter(release)))
    otel.instrument(tb, tracer_provider=provider)

    @tb.handler
    async def work(number: int) -> int:
        return number

    harness.use(tb)
    runs = [work.enqueue(number) for number in range(5)]

    assert harness.drain() == (5, 0, 0)
    assert [run.result() for run in runs] == [0, 1, 2, 3, 4]
    if release is not None:
        release.set()


@on_one_server
def test_a_provider_that_raises_harms_no_run(harness: TimeballHarness, tb: Timeball) -> None:
    class Broken(trace.TracerProvider):
        def get_tracer(self, *_args: Any, **_options: Any) -> Any:
            raise RuntimeError("broken provider")

    otel.instrument(tb, tracer_provider=Broken())

    @tb.handler
    def work() -> None: ...

    harness.use(tb)
    work.enqueue()
    tb.chain(work.call(), work.call()).enqueue()

    assert harness.drain() == (3, 0, 0)


@on_one_server
def test_a_hook_is_told_what_it_sees(harness: TimeballHarness, tb: Timeball) -> None:
    seen: list[tuple[str, bool, bool, int]] = []

    @tb.before_enqueue
    def note(enqueue: PendingEnqueue) -> None:
        seen.append((enqueue.handler, enqueue.is_schedule, enqueue.is_follow_up, enqueue.number_of_calls))

    @tb.handler(name="a")
    def a() -> None: ...

    @tb.handler(name="b")
    def b() -> None: ...

    harness.use(tb)
    a.options(on_success=b.call()).enqueue()
    a.enqueue_many([a.call(), a.call()])
    a.schedule(every="1h", name="hourly")

    assert seen == [("a", False, False, 1), ("b", False, True, 1), ("a", False, False, 2), ("a", True, False, 1)]
