"""Edits, pauses, resumptions and deletions keep the ledger: whatever happens in whatever order, each occurrence is recorded once.

A job lives through random sequences of waiting, promoting, working and being changed, in a world without a database:
`World` does to its lists what the store does to its rooms. In the end its books are checked twice: against a plain walk
over the rules, and by the ledger that `verify` uses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.domain.scheduling.oracle import utc
from tests.support.factories import or_manual
from timeball.domain import job_changes
from timeball.domain.execution import DueKind, Origin
from timeball.domain.job import Job, define_job
from timeball.domain.job_changes import JobChange, JobSnapshot
from timeball.domain.job_fields import JobSpec
from timeball.domain.policies import Misfire, Overlap, SkipReason
from timeball.domain.scheduling import ledger
from timeball.domain.scheduling.civil_time import tzdata_version
from timeball.domain.scheduling.ledger import JobLedger, LedgerBounds, LedgerFlaw, PendingOccurrence, VersionPeriod
from timeball.domain.scheduling.occurrences import (
    CheckAgain,
    DueRow,
    NextOccurrence,
    PromotionTarget,
    SkippedRange,
    first_occurrence,
    plan_promotion,
)
from timeball.domain.scheduling.schedule import Every, Once
from timeball.domain.values.ids import ExecutionId, JobId
from timeball.errors import Conflict, InvalidInput

START = utc(2026, 3, 2, 12).replace(microsecond=250_000)
JOB = JobId(UUID("0193c8a2-5d1e-7abc-8def-0123456789ab"))
SHARDS = 64
PROMOTION_WINDOW = timedelta(milliseconds=500)
MICROSECOND = timedelta(microseconds=1)


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


@dataclass
class Record:
    """An occurrence that was to run: it waits, or it has ended."""

    version: int
    is_waiting: bool = True
    is_withdrawn: bool = False


@dataclass
class World:
    """One job, its rooms and its books."""

    job: Job
    now: datetime = START
    pending: NextOccurrence | None = None
    runs: dict[datetime, Record] = field(default_factory=dict)
    later: list[DueRow] = field(default_factory=list)
    skips: list[tuple[SkippedRange, int]] = field(default_factory=list)
    spans: list[VersionPeriod] = field(default_factory=list)
    # Up to where a version had to answer that came to its end before the next one began.
    reached: dict[int, datetime] = field(default_factory=dict)
    resume_at: datetime | None = None

    def __post_init__(self) -> None:
        self.pending = first_occurrence(self.job, self.now)
        after = self.now if self.pending is None else min(self.now, self.pending.scheduled_for - MICROSECOND)
        self.open_version(after)
        if (
            self.pending is not None
            and not self.job.rule.is_recurring
            and self.pending.run_at <= self.now + PROMOTION_WINDOW
        ):
            # A one-off that is due is not put into `due` first.
            self.record_run(self.pending.scheduled_for, self.job.version)
            self.pending = None

    # what happens

    def wait(self, span: timedelta) -> None:
        self.now += span

    def promote(self) -> None:
        """All that a scheduler does in one moment."""
        if self.resume_at is not None and self.resume_at <= self.now:
            self.change(job_changes.resume_job)
        for _ in range(200):
            if not self.promote_once():
                return
        raise AssertionError("promoting does not come to an end")

    def promote_once(self) -> bool:
        is_parked = self.job.is_paused
        rows = [*([] if is_parked else self.later), *([self.pending_row()] if self.pending else [])]
        due = sorted((row for row in rows if row.run_at <= self.now + PROMOTION_WINDOW), key=lambda row: row.run_at)
        return any(self.promote_row(row) for row in due)

    def promote_row(self, row: DueRow) -> bool:
        is_busy = any(record.is_waiting for record in self.runs.values())
        planned = plan_promotion(row, self.job, self.now, is_busy=is_busy)
        if isinstance(planned, CheckAgain):
            assert planned.at > self.now
            return False
        if row.kind is DueKind.LATER:
            self.later.remove(row)
        else:
            self.pending = planned.following
        for run in planned.runs:
            if run.target is PromotionTarget.DUE:
                self.later.append(
                    replace(row, id=run.id, kind=DueKind.LATER, run_at=run.run_at, scheduled_for=run.scheduled_for)
                )
            else:
                self.record_run(run.scheduled_for, row.version)
        for skip in planned.skips:
            self.skips.append((_single(skip.scheduled_for, skip.reason), row.version))
        for skipped in planned.ranges:
            assert skipped.first < skipped.last
            self.skips.append((skipped, row.version))
        return True

    def work(self) -> None:
        """Everything that has been dropped ends."""
        for at, record in self.runs.items():
            record.is_waiting = record.is_waiting and at > self.now

    def change(self, decide: Callable[[JobSnapshot], JobChange]) -> None:
        live = [at for at, record in self.runs.items() if record.is_waiting] + [row.scheduled_for for row in self.later]
        snapshot = JobSnapshot(job=self.job, pending=self.pending, promoted_until=max(live, default=None), now=self.now)
        change = decide(snapshot)
        if self.is_finished():
            self.reached[self.job.version] = self.reach_of_finished(self.spans[-1])
        old, self.job, self.pending, self.resume_at = self.job, change.job, change.pending, change.resume_at
        if change.skipped is not None:
            self.skips.append((change.skipped, old.version))
        if change.effective_from is not None:
            self.close_version(change.effective_from)
            self.open_version(change.effective_from)
        if change.closes_at is not None:
            self.close_version(change.closes_at)
        if change.withdraw is not None or change.cancel_waiting is not None:
            self.withdraw()
        if change.cancel_waiting is not None:
            for row in self.later:
                self.record_run(row.scheduled_for, row.version).is_waiting = False
            self.later.clear()

    def withdraw(self) -> None:
        """What waits and has not been dropped is recorded as skipped or cancelled."""
        for record in self.runs.values():
            record.is_withdrawn |= record.is_waiting
            record.is_waiting = False

    # the books

    def record_run(self, at: datetime, version: int) -> Record:
        assert at not in self.runs, f"{at} is run twice"
        self.runs[at] = Record(version)
        return self.runs[at]

    def open_version(self, after: datetime) -> None:
        self.spans.append(
            VersionPeriod(
                version=self.job.version,
                rule=self.job.rule,
                after=after,
                until=None,
                max_executions=self.job.max_executions,
            )
        )

    def close_version(self, until: datetime) -> None:
        self.spans[-1] = replace(self.spans[-1], until=until)

    def pending_row(self) -> DueRow:
        pending = self.pending
        assert pending is not None
        return DueRow(
            id=pending.id,
            job_id=JOB,
            kind=DueKind.OCCURRENCE,
            origin=Origin.SCHEDULE,
            shard=self.job.shard,
            run_at=pending.run_at,
            scheduled_for=pending.scheduled_for,
            watermark=pending.watermark,
            tzdata=pending.tzdata,
            version=self.job.version,
            executions_left=pending.executions_left,
            limit_key=self.job.limit_key,
            queue=self.job.queue,
            priority=self.job.priority,
            is_paused=False,
        )

    # the audit

    def check(self) -> None:
        self.check_by_walking()
        self.check_by_the_ledger()
        self.check_budgets()

    def check_by_walking(self) -> None:
        if any(isinstance(span.rule, Once) for span in self.spans):
            return
        recorded = self.recorded()
        twice = {at: number for at, number in recorded.items() if number > 1}
        assert not twice, f"recorded more than once: {twice}"
        expected = set()
        for span in self.spans:
            expected |= {occurrence.at for occurrence in span.rule.occurrences(span.after, self.reach(span))}
        assert set(recorded) == expected

    def recorded(self) -> Counter[datetime]:
        found = Counter(self.runs.keys())
        found.update(row.scheduled_for for row in self.later)
        rules = {span.version: span.rule for span in self.spans}
        for skipped, version in self.skips:
            inside = [
                occurrence.at for occurrence in rules[version].occurrences(skipped.first - MICROSECOND, skipped.last)
            ]
            assert inside[0] == skipped.first
            assert inside[-1] == skipped.last
            assert skipped.count == len(inside)
            found.update(inside)
        return found

    def reach(self, span: VersionPeriod) -> datetime:
        """Up to where the occurrences of a version must be recorded, and none beyond."""
        if span.version in self.reached:
            return self.reached[span.version]
        if span.until is not None:
            return span.until
        if self.pending is not None:
            assert self.pending.scheduled_for == span.rule.next_after(self.pending.scheduled_for - MICROSECOND)
            return self.pending.scheduled_for - MICROSECOND
        if self.is_finished():
            return self.reach_of_finished(span)
        assert self.job.paused_from is not None
        return self.job.paused_from

    def is_finished(self) -> bool:
        return self.pending is None and (not self.job.is_paused or self.job.paused_left == 0)

    def reach_of_finished(self, span: VersionPeriod) -> datetime:
        """Nothing is pending: either the budget was used up, or the rule has come to its end."""
        used = len(self.runs) + len(self.later)
        if span.max_executions is not None and used >= span.max_executions:
            return max([at for at in self.recorded() if at > span.after], default=span.after)
        assert span.rule.ends_at is not None or not span.rule.is_recurring, (
            "nothing is pending, though the rule goes on"
        )
        return span.rule.ends_at or span.after

    def check_by_the_ledger(self) -> None:
        flaws: list[LedgerFlaw] = []
        outlook = LedgerBounds(
            pending=_pending(self.pending),
            is_deleted=self.job.deleted_at is not None,
            paused_from=self.job.paused_from,
            tzdata=tzdata_version(),
        )
        book = JobLedger(self.spans, outlook, flaws.append)
        for entry in sorted(self.entries(), key=lambda entry: (entry.first, entry.last)):
            book.enter(entry)
        book.close()
        assert not flaws

    def entries(self) -> list[ledger.LedgerEntry]:
        ran = [(at, record.version) for at, record in self.runs.items()]
        ran += [(row.scheduled_for, row.version) for row in self.later]
        return [_entry(at, at, version, number=1, used=1) for at, version in ran] + [
            _entry(skipped.first, skipped.last, version, number=skipped.count, used=0)
            for skipped, version in self.skips
        ]

    def check_budgets(self) -> None:
        """A limit that was never changed is never exceeded, however often the job was edited, paused and resumed."""
        limits = {span.max_executions for span in self.spans}
        if len(limits) == 1 and None not in limits:
            assert len(self.runs) + len(self.later) <= limits.pop()


def _pending(pending: NextOccurrence | None) -> PendingOccurrence | None:
    if pending is None:
        return None
    return PendingOccurrence(scheduled_for=pending.scheduled_for, tzdata=pending.tzdata, watermark=pending.watermark)


def _single(at: datetime, reason: SkipReason) -> SkippedRange:
    return SkippedRange(first=at, last=at, count=1, reason=reason)


def _entry(first: datetime, last: datetime, version: int, *, number: int | None, used: int) -> ledger.LedgerEntry:
    return ledger.LedgerEntry(
        first=first,
        last=last,
        number=number,
        version=version,
        tzdata=tzdata_version(),
        is_range=first != last,
        used=used,
    )


def make_world(**fields: Any) -> World:
    spec = JobSpec(**{"handler": "app:work", "name": "a-job"} | or_manual(fields))
    return World(define_job(spec, JOB, START, SHARDS))


def edit(world: World, fields: Mapping[str, Any]) -> None:
    world.change(lambda found: job_changes.edit_job(found, fields, SHARDS))


def pause(world: World, until: datetime | None = None) -> None:
    world.change(lambda found: job_changes.pause_job(found, until, None))


def resume(world: World) -> None:
    world.change(job_changes.resume_job)


def delete(world: World) -> None:
    world.change(lambda found: job_changes.delete_job(found, None))


# every sequence

crons = st.sampled_from(["*/2 * * * * *", "*/5 * * * * *", "7,8,9,50 * * * * *"])
times = st.one_of(
    st.fixed_dictionaries({"interval_seconds": st.integers(1, 7)}),
    st.fixed_dictionaries({"schedule": crons}),
)
policies = st.fixed_dictionaries(
    {},
    optional={
        "jitter_seconds": st.sampled_from([0, 2]),
        "misfire": st.sampled_from(Misfire),
        "misfire_grace_seconds": st.integers(0, 6),
        "misfire_cap": st.integers(1, 4),
        "misfire_max_age_seconds": st.none() | st.integers(0, 20),
        "overlap": st.sampled_from(Overlap),
        "max_executions": st.none() | st.integers(1, 9),
        "ends_at": st.none() | st.integers(60, 300).map(lambda number: START + seconds(number)),
    },
)
wishes = st.builds(lambda when, how: when | how, times, policies)
steps = st.one_of(
    st.tuples(st.just("wait"), st.sampled_from([0.3, 1, 2.5, 6, 31, 100])),
    st.tuples(st.just("promote"), st.none()),
    st.tuples(st.just("live"), st.integers(1, 9)),
    st.tuples(st.just("live"), st.integers(1, 9)),
    st.tuples(st.just("work"), st.none()),
    st.tuples(st.just("edit"), times | policies | wishes),
    st.tuples(st.just("pause"), st.none() | st.sampled_from([0.2, 3, 40])),
    st.tuples(st.just("resume"), st.none()),
)


def _dated(fields: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """A span ahead of now, where an instant is meant."""
    return {name: now + value if isinstance(value, timedelta) else value for name, value in fields.items()}


def take(world: World, step: str, given: Any) -> None:
    try:
        match step:
            case "wait":
                world.wait(seconds(given))
            case "promote":
                world.promote()
            case "live":
                for _ in range(given):
                    world.wait(seconds(1.5))
                    world.promote()
                    world.work()
            case "work":
                world.work()
            case "edit":
                edit(world, _dated(given, world.now))
            case "pause":
                pause(world, None if given is None else world.now + seconds(given))
            case "resume":
                resume(world)
    except InvalidInput:
        # An edit that makes no sense (an end before the next occurrence) changes nothing.
        assert step == "edit"


@given(wishes, st.lists(steps, max_size=15), st.booleans())
@settings(max_examples=150, deadline=None)
def test_every_occurrence_is_recorded_exactly_once_whatever_is_done_to_a_job(
    wish: dict[str, Any], taken: list[tuple[str, Any]], is_deleted: bool
) -> None:
    world = make_world(**_dated(wish, START))

    for step, argument in taken:
        take(world, step, argument)
    world.promote()
    if is_deleted:
        delete(world)

    world.check()


other_kinds = st.one_of(
    st.fixed_dictionaries({"scheduled_at": st.integers(0, 100).map(seconds)}),
    st.just({"schedule": "manual"}),
)


@given(
    other_kinds | times,
    st.lists(steps | st.tuples(st.just("edit"), other_kinds | times), max_size=15),
    st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_a_job_may_become_one_of_another_kind(
    wish: dict[str, Any], taken: list[tuple[str, Any]], is_deleted: bool
) -> None:
    world = make_world(**_dated(wish, START))

    for step, argument in taken:
        take(world, step, argument)
    world.promote()
    if is_deleted:
        delete(world)

    world.check()


# edits


def test_a_job_that_has_used_up_its_executions_becomes_a_one_off_of_this_moment() -> None:
    world = make_world(schedule="*/2 * * * * *")
    edit(world, {"max_executions": 1})
    take(world, "live", 3)

    edit(world, {"scheduled_at": world.now})
    world.promote()

    world.check()


def test_an_edit_takes_effect_from_now_on() -> None:
    world = make_world(interval_seconds=10)
    world.wait(seconds(25))

    edit(world, {"interval_seconds": 4})

    assert world.job.version == 2
    assert world.spans[0].until == world.spans[1].after == world.now
    # Counted from the old anchor, START + 10 s.
    assert world.pending is not None
    assert world.pending.scheduled_for == START + seconds(26)
    assert world.skips == [
        (SkippedRange(first=START + seconds(10), last=START + seconds(20), count=2, reason=SkipReason.EDITED), 1)
    ]


def test_an_edit_does_not_name_again_what_was_promoted_a_moment_ahead() -> None:
    world = make_world(interval_seconds=10)
    world.wait(seconds(9.8))
    world.promote()

    edit(world, {"queue": "mail"})

    assert world.spans[1].after == START + seconds(10)
    assert world.pending is not None
    assert world.pending.scheduled_for == START + seconds(20)
    world.check()


def test_a_new_limit_counts_from_what_was_used_of_the_old_one() -> None:
    world = make_world(interval_seconds=1, max_executions=9)
    for _ in range(4):
        world.wait(seconds(1))
        world.promote()
        world.work()

    edit(world, {"max_executions": 6})
    assert world.pending is not None
    assert world.pending.executions_left == 2

    edit(world, {"max_executions": 3})
    assert world.pending is None

    edit(world, {"max_executions": 5})
    assert world.pending is not None
    assert world.pending.executions_left == 2


@pytest.mark.parametrize(
    "change", [lambda world: edit(world, {"description": "why"}), lambda world: (pause(world), resume(world))]
)
def test_a_job_that_has_run_its_times_does_not_begin_again(change: Callable[[World], object]) -> None:
    world = make_world(interval_seconds=1, max_executions=1)
    world.wait(seconds(1))
    world.promote()
    world.work()

    change(world)

    assert world.pending is None
    world.check()


def test_a_job_whose_rule_has_ended_may_be_given_a_later_end() -> None:
    world = make_world(interval_seconds=10, max_executions=9, ends_at=START + seconds(15))
    world.wait(seconds(10))
    world.promote()
    world.work()
    assert world.pending is None

    edit(world, {"ends_at": START + seconds(60)})

    assert world.pending is not None
    world.check()


def test_a_limit_that_is_changed_during_a_pause_counts_when_it_is_over() -> None:
    world = make_world(interval_seconds=1, max_executions=9)
    for _ in range(4):
        world.wait(seconds(1))
        world.promote()
        world.work()
    pause(world)

    edit(world, {"max_executions": 6})
    resume(world)

    assert world.pending is not None
    assert world.pending.executions_left == 2


def test_a_name_cannot_be_taken_away() -> None:
    world = make_world(interval_seconds=10)

    with pytest.raises(InvalidInput, match="name cannot be taken away") as refusal:
        edit(world, {"name": None})

    assert refusal.value.field == "name"


def test_a_one_off_without_a_name_stays_one() -> None:
    world = make_world(name=None, scheduled_at=START + seconds(10))

    with pytest.raises(InvalidInput, match="cannot become another kind of job"):
        edit(world, {"interval_seconds": 10, "scheduled_at": None})


def test_a_one_off_that_has_begun_cannot_be_moved() -> None:
    world = make_world(name=None, scheduled_at=START)

    with pytest.raises(Conflict, match="its time cannot be changed") as refusal:
        edit(world, {"scheduled_at": START + seconds(10)})

    assert refusal.value.hint


def test_a_one_off_keeps_its_execution_when_it_is_moved() -> None:
    world = make_world(name=None, scheduled_at=START + seconds(10))

    edit(world, {"scheduled_at": START + seconds(20)})

    assert world.pending is not None
    assert (world.pending.id, world.pending.scheduled_for) == (ExecutionId(JOB), START + seconds(20))


def test_a_one_off_that_has_run_is_not_run_again_by_an_edit() -> None:
    world = make_world(scheduled_at=START)

    edit(world, {"description": "why"})

    assert world.pending is None
    world.check()


def test_a_one_off_moved_into_the_past_is_due_at_once() -> None:
    world = make_world(scheduled_at=START + seconds(10))

    edit(world, {"scheduled_at": START - seconds(5)})
    world.promote()

    assert set(world.runs) == {START - seconds(5)}
    world.check()


@pytest.mark.parametrize("leave", [lambda world: edit(world, {"interval_seconds": 60, "scheduled_at": None}), delete])
def test_an_overdue_one_off_is_recorded_when_its_rule_goes(leave: Callable[[World], None]) -> None:
    world = make_world(scheduled_at=START + seconds(10))
    world.wait(seconds(30))

    leave(world)

    assert [(skipped.first, skipped.count) for skipped, _ in world.skips] == [(START + seconds(10), 1)]
    world.check()


def test_a_one_off_set_to_a_past_instant_survives_no_pause_unrecorded() -> None:
    world = make_world(scheduled_at=START + seconds(10))
    edit(world, {"scheduled_at": START - seconds(5)})

    pause(world)
    resume(world)

    assert [(skipped.first, skipped.reason) for skipped, _ in world.skips] == [(START - seconds(5), SkipReason.PAUSED)]
    world.check()


# pauses


def test_a_pause_keeps_the_watermark_and_a_resumption_records_what_fell_into_it() -> None:
    world = make_world(interval_seconds=10)
    world.wait(seconds(10))
    world.promote()
    world.work()

    pause(world)
    assert (world.pending, world.job.paused_from) == (None, START + seconds(10))

    world.wait(seconds(35))
    resume(world)

    assert not world.job.is_paused
    assert world.job.paused_from is None
    assert world.pending is not None
    assert world.pending.scheduled_for == START + seconds(50)
    assert world.skips == [
        (SkippedRange(first=START + seconds(20), last=START + seconds(40), count=3, reason=SkipReason.PAUSED), 1)
    ]


def test_a_pause_does_not_change_the_version() -> None:
    world = make_world(interval_seconds=10)

    pause(world)
    resume(world)

    assert world.job.version == 1
    assert len(world.spans) == 1


def test_a_second_pause_keeps_the_beginning_of_the_first_and_takes_the_new_end() -> None:
    world = make_world(interval_seconds=10)
    pause(world, START + seconds(60))
    world.wait(seconds(25))

    pause(world, START + seconds(90))

    assert (world.job.paused_at, world.job.paused_from) == (START, START)
    assert world.resume_at == world.job.paused_until == START + seconds(90)


def test_a_pause_cannot_end_before_it_begins() -> None:
    world = make_world(interval_seconds=10)

    with pytest.raises(InvalidInput, match="which has passed; expected an instant in the future") as refusal:
        pause(world, START)

    assert refusal.value.field == "until"


def test_resuming_a_job_that_is_not_paused_changes_nothing() -> None:
    world = make_world(interval_seconds=10)
    job, pending = world.job, world.pending

    resume(world)

    assert (world.job, world.pending, world.skips) == (job, pending, [])


def test_a_paused_job_stays_paused_when_it_is_edited() -> None:
    world = make_world(interval_seconds=10)
    pause(world, START + seconds(100))
    world.wait(seconds(25))

    edit(world, {"interval_seconds": 7})

    assert world.job.is_paused
    assert (world.pending, world.resume_at) == (None, START + seconds(100))
    assert world.job.paused_from == world.now
    world.wait(seconds(75))
    world.promote()
    assert not world.job.is_paused
    world.check()


def test_a_one_off_that_fell_into_a_pause_is_skipped() -> None:
    world = make_world(scheduled_at=START + seconds(10))
    pause(world)
    world.wait(seconds(20))

    resume(world)

    assert world.pending is None
    assert [(skipped.first, skipped.reason) for skipped, _ in world.skips] == [(START + seconds(10), SkipReason.PAUSED)]


def test_a_one_off_whose_pause_is_over_in_time_runs() -> None:
    world = make_world(scheduled_at=START + seconds(10))
    pause(world)
    world.wait(seconds(5))

    resume(world)

    assert world.pending is not None
    assert world.pending.scheduled_for == START + seconds(10)


# deletions


def test_a_deletion_answers_for_everything_until_now() -> None:
    world = make_world(interval_seconds=10)
    world.wait(seconds(25))

    delete(world)

    assert world.job.deleted_at == world.now
    assert (world.pending, world.spans[-1].until) == (None, world.now)
    assert world.skips == [
        (SkippedRange(first=START + seconds(10), last=START + seconds(20), count=2, reason=SkipReason.DELETED), 1)
    ]


def test_a_job_deleted_during_a_pause_records_the_pause() -> None:
    world = make_world(interval_seconds=10)
    pause(world)
    world.wait(seconds(25))

    delete(world)

    assert [skipped.reason for skipped, _ in world.skips] == [SkipReason.PAUSED]
    world.check()


def test_a_deletion_says_why_what_waits_is_cancelled() -> None:
    snapshot = JobSnapshot(job=make_world(interval_seconds=10).job, pending=None, promoted_until=None, now=START)

    assert job_changes.delete_job(snapshot, "moved house").cancel_waiting == "moved house"
    assert job_changes.delete_job(snapshot, None).cancel_waiting == "the job was deleted"


def test_the_anchor_of_an_interval_is_no_edit_away() -> None:
    world = make_world(interval_seconds=10)

    edit(world, {"priority": 1})

    assert world.job.rule == Every(interval_seconds=10, anchor=START + seconds(10))
