"""The ledger tells what became of every occurrence, page by page, and what is expected; it leaves nothing out and makes nothing up."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from random import Random
from uuid import UUID

import pytest

from tests.engine.support import Hands, ManualScheduler, create, start_scheduler, start_worker
from tests.support.factories import enqueue, put_row, read_job, seconds
from timeball.application.commands import Commands
from timeball.application.commands.calendars import DaysRequest
from timeball.application.commands.requests import Actor
from timeball.application.queries import Queries
from timeball.application.queries import ledger as ledger_module
from timeball.application.queries.ledger import LedgerQuery
from timeball.domain.freeze import Afterwards, FreezeScope
from timeball.domain.job import Job
from timeball.domain.policies import SkipReason, Verdict
from timeball.domain.scheduling.civil_time import MICROSECOND
from timeball.domain.scheduling.cron import NoteKind
from timeball.domain.scheduling.ledger import VersionPeriod
from timeball.domain.scheduling.schedule import Cron, Every
from timeball.domain.scheduling.verdicts import LedgerLine, instants_of
from timeball.domain.search import PageRequest
from timeball.domain.values.ids import occurrence_id
from timeball.errors import InvalidInput
from timeball.store.store import Store
from timeball.testing import VirtualClock
from timeball.testing.environment import START

SOMEBODY = Actor("somebody")
Told = tuple[float, float, str, str | None, int | None]


@pytest.fixture
async def node(store: Store) -> ManualScheduler:
    return await start_scheduler(store)


@pytest.fixture
async def worker(store: Store) -> Hands:
    return await start_worker(store)


def span(since: float, until: float, **filters: object) -> LedgerQuery:
    """A query in seconds from the start of the test."""
    return LedgerQuery(since=START + seconds(since), until=START + seconds(until), **filters)  # type: ignore[arg-type]


def told(lines: list[LedgerLine]) -> list[Told]:
    """Lines in short: the seconds of their first and last instants, verdict, reason, count."""
    return [
        (
            (line.first - START).total_seconds(),
            (line.last - START).total_seconds(),
            line.verdict.value,
            line.reason,
            line.count,
        )
        for line in lines
    ]


def single(at: float, verdict: str, reason: str | None = None) -> Told:
    return (at, at, verdict, reason, 1)


async def read(queries: Queries, job: Job, query: LedgerQuery, limit: int = 200) -> list[LedgerLine]:
    """All pages, each of which has to go on where the one before ended."""
    lines: list[LedgerLine] = []
    cursor: str | None = None
    while True:
        page = (await queries.ledger.page(job, query, PageRequest(limit=limit, cursor=cursor))).page
        assert len(page.items) <= limit
        lines += page.items
        cursor = page.next_cursor
        if cursor is None:
            return lines


async def silence(store: Store, node: ManualScheduler, worker: Hands) -> Job:
    """A job of every five seconds that ran at 5 and 10 s; then nothing was alive for 55 s; then it ran on."""
    job = await create(store, interval_seconds=5)
    await node.run_until(START + seconds(12), worker.work)
    node.clock.advance_to(START + seconds(67))
    await node.run_until(START + seconds(72), worker.work)
    return job


async def test_occurrences_missed_in_a_silence_are_one_line_with_their_count_and_reason(
    store: Store, queries: Queries, node: ManualScheduler, worker: Hands
) -> None:
    job = await silence(store, node, worker)

    lines = await read(queries, job, span(0, 70))

    assert told(lines) == [
        single(5, "ran"),
        single(10, "ran"),
        (15, 35, "skipped", "misfire", 5),
        *(single(at, "ran") for at in range(40, 75, 5)),
    ]
    assert [line.execution_id for line in lines if line.verdict is Verdict.RAN] == [
        occurrence_id(job.id, line.first) for line in lines if line.verdict is Verdict.RAN
    ]
    assert {line.version for line in lines} == {1}


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 200])
@pytest.mark.parametrize("newest_first", [False, True])
async def test_pages_of_any_size_tell_the_same_lines_in_either_order(
    store: Store, queries: Queries, node: ManualScheduler, worker: Hands, limit: int, newest_first: bool
) -> None:
    job = await silence(store, node, worker)

    lines = await read(queries, job, span(0, 100, newest_first=newest_first), limit)

    in_order = [
        single(5, "ran"),
        single(10, "ran"),
        (15, 35, "skipped", "misfire", 5),
        *(single(at, "ran") for at in range(40, 75, 5)),
        *(single(at, "expected") for at in range(75, 105, 5)),
    ]
    assert told(lines) == (in_order[::-1] if newest_first else in_order)


async def test_a_range_that_crosses_the_edge_of_a_span_is_told_whole(
    store: Store, queries: Queries, node: ManualScheduler, worker: Hands
) -> None:
    job = await silence(store, node, worker)

    assert told(await read(queries, job, span(22, 23))) == [(15, 35, "skipped", "misfire", 5)]
    assert told(await read(queries, job, span(36, 39))) == []
    assert told(await read(queries, job, span(11, 14))) == []


async def test_the_line_of_an_instant_is_found(
    store: Store, queries: Queries, node: ManualScheduler, worker: Hands
) -> None:
    job = await silence(store, node, worker)

    ran = await queries.ledger.at(job, START + seconds(10))
    missed = await queries.ledger.at(job, START + seconds(20))
    expected = await queries.ledger.at(job, START + seconds(500))

    assert ran is not None
    assert ran.execution_id == occurrence_id(job.id, START + seconds(10))
    assert missed is not None
    assert (missed.verdict, missed.reason) == (Verdict.SKIPPED, "misfire")
    assert expected is not None
    assert expected.verdict is Verdict.EXPECTED
    assert await queries.ledger.at(job, START + seconds(11)) is None


async def test_the_instants_of_a_range_come_from_the_schedule_of_its_version(
    store: Store, queries: Queries, node: ManualScheduler, worker: Hands, commands: Commands
) -> None:
    job = await silence(store, node, worker)
    await commands.jobs.update(job.id, {"interval_seconds": 7}, SOMEBODY)

    (missed,) = await read(queries, job, span(0, 70, verdicts=frozenset({Verdict.SKIPPED})))
    periods = await queries.ledger.versions(job)

    assert [period.version for period in periods] == [1, 2]
    assert list(instants_of(missed, periods)) == [START + seconds(at) for at in range(15, 40, 5)]


async def test_lines_are_filtered_by_verdict_and_reason(
    store: Store, queries: Queries, node: ManualScheduler, worker: Hands
) -> None:
    job = await silence(store, node, worker)

    async def lines(verdict: str, **filters: object) -> list[Told]:
        return told(await read(queries, job, span(0, 100, verdicts=frozenset({Verdict(verdict)}), **filters)))

    missed = [(15.0, 35.0, "skipped", "misfire", 5)]
    assert await lines("skipped") == missed
    assert await lines("skipped", reasons=frozenset({"misfire"})) == missed
    assert await lines("skipped", reasons=frozenset({"overlap"})) == []
    assert [line[0] for line in await lines("ran")] == [5, 10, *range(40, 75, 5)]
    assert [line[0] for line in await lines("expected")] == list(range(75, 105, 5))
    assert await lines("running") == []
    assert told(await read(queries, job, span(0, 1_000, reasons=frozenset({"misfire"}), newest_first=True))) == missed


async def test_an_execution_is_told_in_every_state_table(
    store: Store, queries: Queries, node: ManualScheduler, worker: Hands
) -> None:
    job = await create(store, interval_seconds=5, overlap="allow")
    await node.run_until(START + seconds(5))
    (first,) = await worker.claim()
    await node.run_until(START + seconds(11))

    lines = await read(queries, job, span(0, 16))

    assert [(line.verdict.value, line.state) for line in lines] == [
        ("running", "running"),
        ("waiting", "queued"),
        ("expected", "scheduled"),
    ]
    assert lines[0].execution_id == first.id


async def test_a_single_skipped_occurrence_and_a_cancelled_one_tell_their_reasons(
    store: Store, queries: Queries, node: ManualScheduler, worker: Hands, commands: Commands
) -> None:
    job = await create(store, interval_seconds=5, overlap="skip")
    await node.run_until(START + seconds(5))
    claims = await worker.claim()
    await node.run_until(START + seconds(11))
    await worker.succeed(claims)
    await commands.executions.cancel([occurrence_id(job.id, START + seconds(15))], SOMEBODY)

    lines = await read(queries, job, span(0, 15))

    assert told(lines) == [single(5, "ran"), single(10, "skipped", "overlap"), single(15, "skipped", "cancelled")]
    assert [line.state for line in lines] == ["succeeded", "skipped", "cancelled"]
    only = await read(queries, job, span(0, 15, reasons=frozenset({"cancelled"})))
    assert told(only) == [single(15, "skipped", "cancelled")]


async def test_what_is_due_and_not_judged_waits(
    store: Store, queries: Queries, node: ManualScheduler, worker: Hands, clock: VirtualClock
) -> None:
    """Nothing is said about what will become of it: the next scheduler decides."""
    job = await create(store, interval_seconds=5)
    await node.run_until(START + seconds(6), worker.work)

    clock.advance_to(START + seconds(31))

    lines = await read(queries, job, span(0, 40))
    assert told(lines) == [
        single(5, "ran"),
        single(10, "waiting"),
        (15, 30, "waiting", None, 4),
        single(35, "expected"),
        single(40, "expected"),
    ]
    assert [line.execution_id for line in lines[1:]] == [occurrence_id(job.id, START + seconds(10)), None, None, None]


async def test_what_a_freeze_holds_waits_and_names_the_freeze(
    store: Store, queries: Queries, node: ManualScheduler, worker: Hands, commands: Commands
) -> None:
    job = await create(store, interval_seconds=5)
    await node.run_until(START + seconds(6), worker.work)
    await commands.freezes.add(
        FreezeScope.JOB, job_id=job.id, until=START + seconds(22), actor=Actor("ana", reason="release")
    )
    ahead = await read(queries, job, span(6, 12))
    await node.run_until(START + seconds(16), worker.work)

    held = await read(queries, job, span(6, 26))
    only = await read(queries, job, span(6, 26, verdicts=frozenset({Verdict.WAITING})))
    inside = await queries.ledger.at(job, START + seconds(15))
    await node.run_until(START + seconds(24), worker.work)
    over = await read(queries, job, span(6, 26))

    assert told(ahead) == [single(10, "expected", "freeze")]
    assert told(held) == [
        single(10, "waiting", "freeze"),
        single(15, "waiting", "freeze"),
        single(20, "expected", "freeze"),
        single(25, "expected"),
    ]
    assert only == held[:2]
    assert inside == held[1]
    assert [line.freeze and line.freeze.reason for line in held] == ["release", "release", "release", None]
    assert told(over) == [(10, 20, "skipped", "freeze", 3), single(25, "expected")]


@pytest.mark.parametrize(
    ("afterwards", "frozen"),
    [("skip", ["freeze", "freeze", "freeze"]), ("latest", ["freeze", "freeze", None]), ("all", ["capped", None, None])],
)
@pytest.mark.parametrize("newest_first", [False, True])
async def test_what_a_freeze_will_skip_is_expected_with_its_reason(
    store: Store,
    queries: Queries,
    node: ManualScheduler,
    worker: Hands,
    commands: Commands,
    afterwards: str,
    frozen: list[str | None],
    newest_first: bool,
) -> None:
    """The freeze holds starts, which come at some jitter after their instants: those of 15, 20 and 25 s."""
    job = await create(store, interval_seconds=5, jitter_seconds=3, misfire_cap=2, max_executions=6, overlap="allow")
    late = job.jitter
    await commands.freezes.add(
        FreezeScope.QUEUE,
        job.queue,
        since=START + late + seconds(11),
        until=START + late + seconds(26),
        afterwards=Afterwards(afterwards),
        actor=Actor("ana", reason="release"),
    )

    lines = await read(queries, job, span(0, 100, newest_first=newest_first), limit=2)
    reasons = frozenset({"freeze", "capped"})
    only = await read(queries, job, span(0, 100, newest_first=newest_first, reasons=reasons), limit=2)
    for second in range(1, 101):  # so that nothing that was promoted before the freeze is claimed in it
        await node.run_until(START + seconds(second), worker.work)
    ran = [line for line in await read(queries, job, span(0, 100)) if line.verdict is Verdict.RAN]

    lines, only = (found[::-1] if newest_first else found for found in (lines, only))
    in_freeze = {15: frozen[0], 20: frozen[1], 25: frozen[2]}
    assert {(line.first - START).total_seconds(): line.reason for line in lines if line.freeze} == in_freeze
    assert only == [line for line in lines if line.reason]
    assert [line.first for line in lines if line.reason is None] == [line.first for line in ran]
    assert len(ran) == 6


@pytest.mark.parametrize("scope", [FreezeScope.QUEUE, FreezeScope.JOB])
async def test_a_queued_execution_waits_for_the_freeze_that_holds_it(
    store: Store, queries: Queries, node: ManualScheduler, worker: Hands, commands: Commands, scope: FreezeScope
) -> None:
    job = await create(store, interval_seconds=5, overlap="allow")
    await node.run_until(START + seconds(5))
    scoped = {"target": job.queue} if scope is FreezeScope.QUEUE else {"job_id": job.id}
    await commands.freezes.add(scope, **scoped, until=START + seconds(60), actor=SOMEBODY)  # type: ignore[arg-type]
    # A claim puts back what a freeze of its job holds, and looks at no frozen queue.
    assert await worker.claim() == []

    (line,) = await read(queries, job, span(0, 5))

    assert told([line]) == [single(5, "waiting", "freeze")]
    assert line.freeze is not None
    assert line.freeze.scope is scope


async def test_a_pause_tells_what_it_skips_and_what_comes_after_it(
    store: Store, queries: Queries, node: ManualScheduler, worker: Hands, commands: Commands
) -> None:
    job = await create(store, interval_seconds=5)
    await node.run_until(START + seconds(6), worker.work)
    await commands.jobs.pause(job.id, START + seconds(42), SOMEBODY)
    node.clock.advance_to(START + seconds(21))

    paused = await read(queries, await read_job(store, job.id), span(0, 51))
    await node.run_until(START + seconds(43), worker.work)
    resumed = await read(queries, await read_job(store, job.id), span(0, 51))

    assert told(paused) == [
        single(5, "ran"),
        (10, 20, "skipped", "paused", 3),
        (25, 40, "expected", "paused", 4),
        single(45, "expected"),
        single(50, "expected"),
    ]
    assert told(resumed) == [
        single(5, "ran"),
        (10, 40, "skipped", "paused", 7),
        single(45, "expected"),
        single(50, "expected"),
    ]


async def test_a_job_that_is_paused_without_end_expects_nothing_but_skips(
    store: Store, queries: Queries, commands: Commands
) -> None:
    job = await create(store, interval_seconds=1)
    await commands.jobs.pause(job.id, None, SOMEBODY)

    year = await read(queries, await read_job(store, job.id), span(0, 365 * 86_400))

    assert told(year) == [(1, 365 * 86_400, "expected", "paused", 365 * 86_400)]


@pytest.mark.parametrize("newest_first", [False, True])
async def test_only_so_many_are_expected_as_the_job_has_executions_left(
    store: Store, queries: Queries, node: ManualScheduler, worker: Hands, newest_first: bool
) -> None:
    job = await create(store, schedule="*/2 * * * *", max_executions=5)
    await node.run_until(START + timedelta(minutes=5), worker.work)

    lines = await read(queries, job, span(0, 86_400, newest_first=newest_first), limit=2)

    instants = sorted(line.first for line in lines)
    assert len(lines) == 5
    assert [line.verdict for line in sorted(lines, key=lambda line: line.first)] == ["ran"] * 2 + ["expected"] * 3
    assert {later - earlier for earlier, later in pairwise(instants)} == {timedelta(minutes=2)}


async def test_nothing_is_expected_after_the_end_of_a_job(store: Store, queries: Queries) -> None:
    job = await create(store, interval_seconds=5, ends_at=START + seconds(12))

    assert told(await read(queries, job, span(0, 100))) == [single(5, "expected"), single(10, "expected")]


async def test_a_one_off_has_one_line(store: Store, queries: Queries, worker: Hands) -> None:
    job = await read_job(store, await enqueue(store, after=3_600))  # type: ignore[arg-type]
    named = await create(store, scheduled_at=START + seconds(7))
    manual = await create(store)

    assert told(await read(queries, job, span(0, 9_999))) == [single(3_600, "expected")]
    assert told(await read(queries, named, span(0, 9_999))) == [single(7, "expected")]
    assert await read(queries, manual, span(0, 9_999)) == []


async def test_a_one_off_that_ran_long_after_it_was_enqueued_has_its_line(
    store: Store, queries: Queries, node: ManualScheduler, worker: Hands
) -> None:
    job = await read_job(store, await enqueue(store, after=9 * 86_400))  # type: ignore[arg-type]
    await node.run_until(START + timedelta(days=9, seconds=1), worker.work)

    lines = await read(queries, job, span(8 * 86_400, 10 * 86_400))

    assert told(lines) == [single(9 * 86_400, "ran")]


async def test_triggers_and_other_jobs_are_not_in_the_ledger(
    store: Store, queries: Queries, node: ManualScheduler, worker: Hands, commands: Commands
) -> None:
    job = await create(store, interval_seconds=5, overlap="allow")
    await create(store, interval_seconds=5, overlap="allow")
    await node.run_until(START + seconds(3), worker.work)
    await commands.executions.trigger(job.id, None, SOMEBODY)
    await node.run_until(START + seconds(6), worker.work)
    await commands.executions.trigger(job.id, None, SOMEBODY)

    assert told(await read(queries, job, span(0, 9))) == [single(5, "ran")]


async def test_a_page_that_has_passed_over_many_records_ends_and_can_be_continued(
    store: Store, queries: Queries, node: ManualScheduler, worker: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred triggers of one millisecond stand between two occurrences."""
    job = await create(store, interval_seconds=5, overlap="allow")
    await node.run_until(START + seconds(11), worker.work)
    first = int(occurrence_id(job.id, START + seconds(5)).int >> 80) << 80
    for number in range(1, 101):
        await _triggered(store, job, (first + (2 << 80)) | number)
    monkeypatch.setattr(ledger_module, "MAX_LOOKED_AT", 20)
    monkeypatch.setattr(ledger_module, "_FILTERED_BATCH", 10)

    page = (await queries.ledger.page(job, span(0, 11), PageRequest(limit=5))).page
    lines = await read(queries, job, span(0, 11), limit=5)

    assert page.next_cursor is not None
    assert page.looked_at is not None
    assert told(list(page.items)) == [single(5, "ran")]
    assert told(lines) == [single(5, "ran"), single(10, "ran")]


async def _triggered(store: Store, job: Job, number: int) -> None:
    await put_row(
        store,
        "finished",
        id=UUID(int=number),
        job_id=job.id,
        state="succeeded",
        origin="trigger",
        version=1,
        queue="default",
        priority=50,
        handler=job.handler,
        scheduled_for=START + seconds(5),
        finished_at=START + seconds(5),
        attempts=1,
        lost=0,
        fence=1,
    )


async def test_a_million_expected_occurrences_are_not_walked_for_a_filter_that_they_cannot_match(
    store: Store, queries: Queries, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await create(store, interval_seconds=1)
    walked: list[datetime] = []
    expected = type((await queries.ledger._ledger.outlook(job))[0])._expected
    monkeypatch.setattr(
        "timeball.domain.scheduling.verdicts.JobOutlook._expected",
        lambda self, instant: (walked.append(instant), expected(self, instant))[1],
    )

    for newest_first in (False, True):
        for filters in ({"verdicts": frozenset({Verdict.SKIPPED})}, {"reasons": frozenset({"paused"})}):
            assert await read(queries, job, span(0, 10**9, newest_first=newest_first, **filters)) == []
    assert walked == []

    page = await queries.ledger.page(job, span(0, 10**9, newest_first=True), PageRequest(limit=10))
    assert len(page.page.items) == 10
    assert len(walked) == 11


# what the schedule leaves out


HOUR, DAY = 3_600, 86_400
# The tests begin on a Monday at noon.
SATURDAY = 4.5 * DAY


async def closed_at_weekends(store: Store, commands: Commands, **fields: object) -> Job:
    await commands.calendars.create("weekend", DaysRequest(days=("sat", "sun")))
    return await create(store, **{"interval_seconds": 12 * HOUR, "skip_on": ("weekend",)} | fields)


@pytest.mark.parametrize("limit", [1, 2, 3, 200])
@pytest.mark.parametrize("newest_first", [False, True])
async def test_days_that_a_calendar_leaves_out_are_lines_in_their_place(
    store: Store,
    queries: Queries,
    node: ManualScheduler,
    worker: Hands,
    commands: Commands,
    limit: int,
    newest_first: bool,
) -> None:
    job = await closed_at_weekends(store, commands)
    await node.run_until(START + seconds(7.2 * DAY), worker.work)

    lines = await read(queries, job, span(3.6 * DAY, 12 * DAY, newest_first=newest_first), limit)

    in_order = [
        single(4 * DAY, "ran"),
        (SATURDAY, SATURDAY + 1.5 * DAY, "skipped", "calendar", 4),
        *(single(at * DAY, "ran") for at in (6.5, 7)),
        *(single(at * DAY, "expected") for at in (7.5, 8, 8.5, 9, 9.5, 10, 10.5, 11)),
        (SATURDAY + 7 * DAY, SATURDAY + 8.5 * DAY, "expected", "calendar", 4),
    ]
    assert told(lines) == (in_order[::-1] if newest_first else in_order)
    assert {line.version for line in lines} == {1}
    assert {line.execution_id for line in lines if line.reason} == {None}


async def test_what_is_left_out_is_filtered_and_no_record_is_read_for_it(
    store: Store, queries: Queries, node: ManualScheduler, worker: Hands, commands: Commands
) -> None:
    job = await closed_at_weekends(store, commands)
    await node.run_until(START + seconds(7.2 * DAY), worker.work)

    async def lines(**filters: object) -> list[Told]:
        words = {name: frozenset(given) for name, given in filters.items() if isinstance(given, list)}
        return told(await read(queries, job, span(0, 14 * DAY, **filters | words)))

    past = (SATURDAY, SATURDAY + 1.5 * DAY, "skipped", "calendar", 4)
    ahead = (SATURDAY + 7 * DAY, SATURDAY + 8.5 * DAY, "expected", "calendar", 4)
    assert await lines(verdicts=[Verdict.SKIPPED]) == [past]
    assert await lines(reasons=["calendar"]) == [past, ahead]
    assert await lines(reasons=["calendar"], verdicts=[Verdict.EXPECTED], newest_first=True) == [ahead]
    assert await lines(reasons=["misfire", "clock_gap"]) == []
    assert await lines(verdicts=[Verdict.SKIPPED], with_left_out=False) == []
    assert span(0, 1, reasons=frozenset({"calendar"})).reads is None


async def test_days_that_are_left_out_now_end_with_this_moment(
    store: Store, queries: Queries, node: ManualScheduler, worker: Hands, commands: Commands
) -> None:
    job = await closed_at_weekends(store, commands)
    await node.run_until(START + seconds(5.2 * DAY), worker.work)

    lines = told(await read(queries, job, span(SATURDAY, 6.4 * DAY)))
    inside = await queries.ledger.at(job, START + seconds(5.5 * DAY))

    assert lines == [
        (SATURDAY, 5 * DAY, "skipped", "calendar", 2),
        (5.5 * DAY, 6 * DAY, "expected", "calendar", 2),
    ]
    assert inside is not None
    assert inside.reason == "calendar"


async def test_days_that_are_left_out_lie_within_an_outage_and_are_told_apart_from_it(
    store: Store, queries: Queries, node: ManualScheduler, worker: Hands, commands: Commands
) -> None:
    job = await closed_at_weekends(store, commands, misfire="skip")
    await node.run_until(START + seconds(3.7 * DAY), worker.work)
    node.clock.advance_to(START + seconds(7.2 * DAY))
    await node.run_for(1, worker.work)

    lines = told(await read(queries, job, span(3.6 * DAY, 7.2 * DAY)))
    inside = await queries.ledger.at(job, START + seconds(SATURDAY))

    assert lines == [
        (4 * DAY, 7 * DAY, "skipped", "misfire", 3),
        (SATURDAY, SATURDAY + 1.5 * DAY, "skipped", "calendar", 4),
    ]
    assert inside is not None
    assert inside.reason == "calendar"


async def test_a_time_that_a_clock_change_skips_is_a_line(
    store: Store, queries: Queries, node: ManualScheduler, worker: Hands, commands: Commands
) -> None:
    """The clock of New York jumps from 02:00 to 03:00 on 8 March 2026; what is due at the end of the gap has the same instant."""
    job = await create(store, schedule="0,30 2,3 * * *", timezone="America/New_York", on_gap="skip")
    await node.run_until(START + seconds(7 * DAY), worker.work)
    jump = (datetime(2026, 3, 8, 7, tzinfo=UTC) - START).total_seconds()

    lines = told(await read(queries, job, span(jump - HOUR, jump + HOUR)))
    at_the_end = await queries.ledger.at(job, START + seconds(jump))

    assert lines == [
        (jump, jump, "skipped", "clock_gap", 2),
        single(jump, "ran"),
        single(jump + HOUR / 2, "ran"),
    ]
    assert at_the_end is not None
    assert at_the_end.verdict is Verdict.RAN


@pytest.mark.parametrize("limit", [1, 2, 200])
@pytest.mark.parametrize("newest_first", [False, True])
async def test_what_was_missed_from_the_end_of_a_gap_on_is_told_beside_the_gap(
    store: Store,
    queries: Queries,
    node: ManualScheduler,
    worker: Hands,
    limit: int,
    newest_first: bool,
) -> None:
    """The range begins at the very instant of the clock change, at which the gap is told, too."""
    job = await create(store, schedule="0,30 2,3 * * *", timezone="America/New_York", on_gap="skip", misfire="skip")
    await node.run_until(START + seconds(5 * DAY), worker.work)
    jump = (datetime(2026, 3, 8, 7, tzinfo=UTC) - START).total_seconds()
    node.clock.advance_to(START + seconds(jump + 0.8 * HOUR))
    await node.run_for(1, worker.work)

    query = span(jump - HOUR, jump + HOUR, newest_first=newest_first)
    lines = told(await read(queries, job, query, limit))

    order = -1 if newest_first else 1
    gap = (jump, jump, "skipped", "clock_gap", 2)
    assert lines == [gap, (jump, jump + HOUR / 2, "skipped", "misfire", 2)][::order]


async def test_each_version_answers_for_what_it_leaves_out_and_none_for_what_comes_after_the_last_execution(
    store: Store, queries: Queries, node: ManualScheduler, worker: Hands, commands: Commands
) -> None:
    job = await closed_at_weekends(store, commands)
    await node.run_until(START + seconds(5.2 * DAY), worker.work)
    await commands.jobs.update(job.id, {"skip_on": [], "max_executions": 2}, SOMEBODY)
    await node.run_until(START + seconds(7.2 * DAY), worker.work)
    await commands.jobs.update(job.id, {"skip_on": ["weekend"], "max_executions": 5}, SOMEBODY)

    edited = told(await read(queries, await read_job(store, job.id), span(3.9 * DAY, 30 * DAY)))
    await node.run_until(START + seconds(30 * DAY), worker.work)
    ended = told(await read(queries, await read_job(store, job.id), span(3.9 * DAY, 30 * DAY)))

    first = [
        single(4 * DAY, "ran"),
        (SATURDAY, 5 * DAY, "skipped", "calendar", 2),
        single(5.5 * DAY, "ran"),
        single(6 * DAY, "ran"),
    ]
    assert edited == [*first, *(single(at * DAY, "expected") for at in (7.5, 8, 8.5))]
    assert ended == [*first, *(single(at * DAY, "ran") for at in (7.5, 8, 8.5))]


async def test_a_job_that_has_ended_leaves_out_what_it_left_out_whatever_is_triggered_later(
    store: Store, queries: Queries, node: ManualScheduler, worker: Hands, commands: Commands
) -> None:
    job = await closed_at_weekends(store, commands, max_executions=10)
    await node.run_until(START + seconds(9 * DAY), worker.work)
    before = told(await read(queries, job, span(3.9 * DAY, 30 * DAY)))

    for _ in range(3):
        triggered = await commands.executions.trigger(job.id, actor=SOMEBODY)
        await node.run_for(DAY, worker.work)
    await commands.executions.retry(triggered, actor=SOMEBODY)
    await node.run_for(1, worker.work)
    after = told(await read(queries, job, span(3.9 * DAY, 30 * DAY)))

    assert (SATURDAY, SATURDAY + 1.5 * DAY, "skipped", "calendar", 4) in before
    assert before[-1] == single(7 * DAY, "ran")
    assert after == before


@pytest.mark.parametrize("seed", range(6))
async def test_every_instant_that_a_version_names_is_told_once_with_its_verdict(
    store: Store, queries: Queries, node: ManualScheduler, worker: Hands, commands: Commands, seed: int
) -> None:
    """Whatever happens to a job: no occurrence of any version vanishes, and none is told twice."""
    draw = Random(seed)
    await commands.calendars.create("closed", DaysRequest(days=("wed", "2026-03-06")))
    job = await create(store, **_drawn_schedule(draw), overlap="skip", misfire=draw.choice(["skip", "latest", "all"]))
    for _ in range(14):
        await _something_happens(store, node, worker, commands, job, draw)
    await node.tick()
    now = node.clock.now()

    job = await read_job(store, job.id)
    query = LedgerQuery(since=START, until=now)
    lines = await read(queries, job, query, limit=7)
    backwards = await read(queries, job, replace(query, newest_first=True), limit=50)
    periods = await queries.ledger.versions(job)

    named = [one for period in periods for one in _named_by(period, now)]
    assert sorted(_told_instants(lines, periods, now)) == sorted(named)
    assert backwards[::-1] == lines
    assert all(line.reason in list(SkipReason) for line in lines if line.verdict is Verdict.SKIPPED)


def _drawn_schedule(draw: Random) -> dict[str, object]:
    calendars = draw.choice([{}, {"skip_on": ("closed",)}, {"only_on": ("closed",)}])
    if draw.random() < 0.4:
        return {"interval_seconds": draw.choice([3_600, 7_200, 43_200])} | calendars
    schedule, on_gap = draw.choice(["30 */2 * * *", "0 2,3,15 * * *"]), draw.choice(["skip", "next_valid"])
    return {"schedule": schedule, "timezone": "America/New_York", "on_gap": on_gap} | calendars


async def _something_happens(
    store: Store, node: ManualScheduler, worker: Hands, commands: Commands, job: Job, draw: Random
) -> None:
    span = timedelta(hours=draw.uniform(1, 40))
    match draw.choice(["works", "works", "works", "silence", "no worker", "pause", "freeze", "edit"]):
        case "works":
            await node.run_until(node.clock.now() + span, worker.work)
        case "silence":
            node.clock.advance_to(node.clock.now() + span)
        case "no worker":
            await node.run_until(node.clock.now() + span)
        case "pause":
            await commands.jobs.pause(job.id, None, SOMEBODY)
            await node.run_until(node.clock.now() + span, worker.work)
            await commands.jobs.resume(job.id, SOMEBODY)
        case "freeze":
            until = node.clock.now() + span
            await commands.freezes.add(
                FreezeScope.JOB, job_id=job.id, until=until, afterwards=draw.choice(list(Afterwards)), actor=SOMEBODY
            )
            await node.run_until(until + timedelta(minutes=1), worker.work)
        case "edit":
            fields = {"skip_on": [], "only_on": [], "schedule": None, "interval_seconds": None, "on_gap": "next_valid"}
            drawn = {
                name: list(value) if isinstance(value, tuple) else value
                for name, value in _drawn_schedule(draw).items()
            }
            await commands.jobs.update(job.id, fields | drawn, SOMEBODY)


def _named_by(period: VersionPeriod, now: datetime) -> list[tuple[datetime, bool]]:
    """What a version names, with or without its calendars, and what a clock change skips; True for what is due."""
    until = now if period.until is None else min(period.until, now)
    due = [(one.at, True) for one in period.rule.occurrences(period.after, until)]
    assert isinstance(period.rule, Cron | Every)
    whole = replace(period.rule, calendar=None).occurrences(period.after, until)
    gone = [(one.at, False) for one in whole if (one.at, True) not in due]
    skipped = [
        one for one in period.rule.occurrences(period.after, until, with_skipped=True) if not one.is_due and one.note
    ]
    gaps = [(one.at, False) for one in skipped if one.note and one.note.kind is NoteKind.SKIPPED_BY_GAP]
    return due + gone + gaps


def _told_instants(lines: list[LedgerLine], periods: list[VersionPeriod], now: datetime) -> list[tuple[datetime, bool]]:
    instants: list[tuple[datetime, bool]] = []
    for line in lines:
        if not line.is_left_out:
            instants += [(at, True) for at in instants_of(line, periods)]
            continue
        rule = next(period.rule for period in periods if period.version == line.version)
        assert isinstance(rule, Cron | Every)
        if line.is_gap:
            instants.append((line.first, False))
        else:
            whole = replace(rule, calendar=None).occurrences(line.first - MICROSECOND, line.last)
            instants += [(one.at, False) for one in whole]
    return instants


async def test_a_span_that_ends_before_it_begins_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"until is .*, expected an instant that is not before from"):
        span(10, 5)


@pytest.mark.parametrize("cursor", ["x", "W10", "WyJvdGhlciIsICIwIl0"])
async def test_the_cursor_of_another_list_is_refused(store: Store, queries: Queries, cursor: str) -> None:
    job = await create(store, interval_seconds=5)

    with pytest.raises(InvalidInput, match="cursor does not belong to this list"):
        await queries.ledger.page(job, span(0, 10), PageRequest(cursor=cursor))


async def test_a_cursor_beyond_all_instants_is_refused(store: Store, queries: Queries) -> None:
    from timeball.domain.search import write_cursor

    job = await create(store, interval_seconds=5)
    cursor = write_cursor("ledger oldest first", "ffffffff-ffff-ffff-ffff-ffffffffffff")

    with pytest.raises(InvalidInput, match="cursor does not belong to this list"):
        await queries.ledger.page(job, span(0, 10), PageRequest(cursor=cursor))
