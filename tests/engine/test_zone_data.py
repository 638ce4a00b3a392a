"""New time-zone data arrive while nodes run, at some earlier than at others: what will be moves, what was stays, and every record
cites the data that name its instant."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
import tzdata

from tests.engine.support import check_promises, create, start_scheduler, start_worker
from tests.support.factories import STATE_TABLES, table
from timeball.application.commands import Commands
from timeball.domain.job import Job
from timeball.domain.policies import Misfire
from timeball.domain.scheduling import civil_time, cron, schedule
from timeball.domain.values.ids import JobId
from timeball.store.store import Store
from timeball.telemetry.events import OccurrencesSkipped
from timeball.testing import VirtualClock
from timeball.testing.environment import START

ZONE, OLDER, NEWER = "Europe/Berlin", "2001a", "2999z"
# Not `*`: that would follow elapsed time.
WALL_TIMES = "30 1,9,17 * * *"
TWO_DAYS = 2 * 86_400.0
# Three in the afternoon by the older data: by either of the newer ones, that is later.
LAST = START + timedelta(hours=2)


@dataclass
class Trees:
    """Two trees of time-zone data, of which one is in use: in the newer one a zone keeps another time."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch

    def grow(self, newer: str) -> None:
        for version, like in ((OLDER, ZONE), (NEWER, newer)):
            tree = self.folder / version
            (tree / "zoneinfo" / ZONE).parent.mkdir(parents=True)
            source = Path(tzdata.__file__).parent
            shutil.copy(source / "zones", tree / "zones")
            shutil.copy(source / "zoneinfo" / "UTC", tree / "zoneinfo" / "UTC")
            shutil.copy(source / "zoneinfo" / like, tree / "zoneinfo" / ZONE)

    def use(self, version: str) -> None:
        tree = self.folder / version
        self.monkeypatch.setattr(tzdata, "IANA_VERSION", version)
        self.monkeypatch.setattr(civil_time, "resources", SimpleNamespace(files=lambda _: tree))
        forget()

    def names(self, version: str, job: Job, instant: datetime) -> bool:
        """Whether the data of this version name an instant of a job."""
        used = tzdata.IANA_VERSION
        self.use(version)
        try:
            return job.rule.next_after(instant - timedelta(microseconds=1)) == instant
        finally:
            self.use(used)


def forget() -> None:
    """What a process knows of zones, it knows for as long as it lives."""
    for known in (
        civil_time.load_zone,
        civil_time.offset_periods_of_year,
        cron.cron_iterator,
        schedule._next_of_cron,
    ):
        known.cache_clear()


# An hour less, and most of a day more.
@pytest.fixture(params=["Europe/London", "Pacific/Auckland"])
def trees(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Trees]:
    made = Trees(tmp_path, monkeypatch)
    made.grow(request.param)
    made.use(OLDER)
    yield made
    monkeypatch.undo()
    forget()


async def create_each(store: Store) -> dict[JobId, Job]:
    """A job for each way to treat what was missed."""
    wishes = [{"misfire": misfire} for misfire in Misfire]
    jobs = [await create(store, schedule=WALL_TIMES, timezone=ZONE, overlap="allow", **wish) for wish in wishes]
    return {job.id: job for job in jobs}


async def pending(store: Store) -> dict[JobId, datetime]:
    rows = await table(store, "due")
    return {row["job_id"]: row["scheduled_for"] for row in rows if row["kind"] == "occurrence"}


async def records(store: Store) -> list[tuple[JobId, datetime, str]]:
    """Every instant that is recorded, and by which data; of a range, its edges."""
    executions = [row for room in STATE_TABLES for row in await table(store, room) if row.get("kind") != "occurrence"]
    found = [(row["job_id"], row["scheduled_for"], row["tzdata"]) for row in executions]
    for row in await table(store, "skip_range"):
        found += [(row["job_id"], row[edge], row["tzdata"]) for edge in ("first_at", "last_at")]
    return found


async def check_citations(store: Store, trees: Trees, jobs: Mapping[JobId, Job], *judges: str) -> None:
    """No phantom: every record cites data that name its instant; and `verify` has nothing against it, by whichever data it judges."""
    odd = [record for record in await records(store) if not trees.names(record[2], jobs[record[0]], record[1])]
    assert odd == []
    used = tzdata.IANA_VERSION
    for version in judges or (OLDER, NEWER):
        trees.use(version)
        await check_promises(store)
    trees.use(used)


@pytest.mark.parametrize("silence", ["0s", "3d"])
async def test_what_will_be_moves_and_what_was_stays(
    store: Store, clock: VirtualClock, trees: Trees, silence: str
) -> None:
    """Fault 23. With schedulers that go on at once, and after some days without any."""
    jobs = await create_each(store)
    node, worker = await start_scheduler(store), await start_worker(store)
    await node.run_for(TWO_DAYS, worker.work)
    before = await records(store)
    assert len(before) == len(jobs) * 6
    await store.nodes.remove(node.incarnation)

    trees.use(NEWER)
    clock.advance(silence)
    node = await start_scheduler(store)
    await node.tick()
    assert [at for job_id, at in (await pending(store)).items() if not trees.names(NEWER, jobs[job_id], at)] == []
    await node.run_for(TWO_DAYS, worker.work)

    after = await records(store)
    assert [record for record in after if record in before] == before
    assert {version for _, _, version in after} == {OLDER, NEWER}
    await check_citations(store, trees, jobs)


@pytest.mark.parametrize("missed", ["1s", "3d"])
async def test_what_newer_data_named_is_run_by_one_who_has_older(
    store: Store, clock: VirtualClock, trees: Trees, missed: str
) -> None:
    """Fault 23. What lies behind the occurrence that others named is computed by our own data, and cites those."""
    trees.use(NEWER)
    jobs = await create_each(store)
    waits_for = min((await pending(store)).values())

    trees.use(OLDER)
    clock.advance_to(waits_for)
    clock.advance(missed)
    node, worker = await start_scheduler(store), await start_worker(store)
    await node.run_for(60, worker.work)

    named_by_others = [record for record in await records(store) if record[2] == NEWER]
    assert sorted(named_by_others) == sorted((job_id, waits_for, NEWER) for job_id in jobs)
    await check_citations(store, trees, jobs)


@pytest.mark.parametrize("missed", ["-1h", "1h", "3d"])
async def test_what_other_data_named_is_called_off_as_theirs(
    store: Store, clock: VirtualClock, trees: Trees, missed: str
) -> None:
    """Fault 23. Whoever changes a job may have other data than the scheduler that computed its pending occurrence."""
    skipped, edited, deleted, paused = [
        await create(store, schedule=WALL_TIMES, timezone=ZONE) for _ in ("skip_next", "update", "delete", "pause")
    ]
    jobs = {job.id: job for job in (skipped, edited, deleted, paused)}
    waits_for = (await pending(store))[skipped.id]
    is_ahead = missed.startswith("-")
    clock.advance_to(waits_for - timedelta(hours=1) if is_ahead else waits_for)
    clock.advance("0s" if is_ahead else missed)
    commands = Commands(store, store.env)

    trees.use(NEWER)
    await commands.jobs.skip_next(skipped.id)
    await commands.jobs.update(edited.id, {"schedule": "5 5 * * *"})
    await commands.jobs.delete(deleted.id)
    await commands.jobs.pause(paused.id)
    clock.advance("2d")
    await commands.jobs.resume(paused.id)

    cited = {job_id for job_id, at, version in await records(store) if (at, version) == (waits_for, OLDER)}
    assert cited == ({skipped.id} if is_ahead else {skipped.id, edited.id, deleted.id})
    await check_citations(store, trees, jobs)


@pytest.mark.parametrize("missed", ["-1h", "1h"])
async def test_what_newer_data_move_past_the_end_is_settled_once(
    store: Store, clock: VirtualClock, trees: Trees, missed: str
) -> None:
    """Fault 23. Nothing is left to fire: the occurrence that waited is recorded with its reason, and its job has come to its end."""
    job = await create(store, schedule="0 15 * * *", timezone=ZONE, ends_at=LAST)
    assert await pending(store) == {job.id: LAST}
    clock.advance_to(LAST - timedelta(hours=1))
    clock.advance("2h" if missed == "1h" else "0s")

    trees.use(NEWER)
    node = await start_scheduler(store)
    await node.tick()

    assert await table(store, "due") == []
    (ended,) = await table(store, "finished")
    assert (ended["scheduled_for"], ended["tzdata"]) == (LAST, OLDER)
    assert (ended["state"], ended["reason"], ended["version"]) == ("skipped", "ended", 1)
    assert node.heard.of(OccurrencesSkipped) == [OccurrencesSkipped(job.id, 1, "ended")]
    assert await store.executions.occurrences_of_other_tzdata(list(node.keeper.epochs), NEWER, 10) == []
    await check_citations(store, trees, {job.id: job})

    longer = await Commands(store, store.env).jobs.update(job.id, {"ends_at": LAST + timedelta(days=2)})
    (goes_on,) = (await pending(store)).values()
    assert LAST < goes_on <= LAST + timedelta(days=2)
    await node.run_for(TWO_DAYS)
    await check_citations(store, trees, {job.id: longer})


@pytest.mark.parametrize("has_been_promoted", [False, True])
async def test_the_end_of_a_job_is_judged_by_the_data_that_brought_it(
    store: Store, clock: VirtualClock, trees: Trees, has_been_promoted: bool
) -> None:
    """Fault 23. Other data may name another instant before `ends_at`: to them it looks as if the job had stopped too early."""
    # By the newer data of one zone there is one more, an hour later; or by the older ones there is one more, half an hour later.
    ends_at = LAST + (timedelta(hours=1) if has_been_promoted else timedelta(minutes=30))
    schedule = "0 15 * * *" if has_been_promoted else "0,30 15 * * *"
    job = await create(store, schedule=schedule, timezone=ZONE, ends_at=ends_at)
    worker = await start_worker(store)
    if has_been_promoted:
        await (await start_scheduler(store)).run_until(LAST, worker.work)
    trees.use(NEWER)
    await (await start_scheduler(store)).run_until(ends_at, worker.work)

    assert [row["reason"] for row in await table(store, "finished")] == [None if has_been_promoted else "ended"]
    assert await pending(store) == {}
    await check_citations(store, trees, {job.id: job})


async def test_a_version_says_by_which_data_it_left_off(store: Store, clock: VirtualClock, trees: Trees) -> None:
    """What waited was named by older data, what was owed by then or fell into a pause was recorded by newer ones."""
    ahead, owed, paused, kept = [await create(store, schedule="0 15 * * *", timezone=ZONE) for _ in range(4)]
    over = await create(store, schedule="0 15 * * *", timezone=ZONE, max_executions=1)
    commands, node, worker = Commands(store, store.env), await start_scheduler(store), await start_worker(store)
    await commands.jobs.pause(paused.id)

    trees.use(NEWER)
    await commands.jobs.update(ahead.id, {"priority": 1})
    trees.use(OLDER)
    await node.run_until(LAST, worker.work)
    await store.nodes.remove(node.incarnation)
    clock.advance("1d")
    trees.use(NEWER)
    for job in (owed, paused, over):
        await commands.jobs.update(job.id, {"priority": 1})
    await commands.jobs.delete(owed.id)

    left_off = {(row["job_id"], row["version"]): row["tzdata"] for row in await table(store, "job_version")}
    assert {key: left_off.pop(key) for key in list(left_off) if left_off[key] is not None} == {
        (ahead.id, 1): OLDER,
        (owed.id, 1): NEWER,
        (owed.id, 2): NEWER,
        (paused.id, 1): NEWER,
    }
    assert set(left_off) == {(ahead.id, 2), (paused.id, 2), (kept.id, 1), (over.id, 1), (over.id, 2)}
    await check_citations(store, trees, {job.id: job for job in (ahead, owed, paused, kept, over)})
