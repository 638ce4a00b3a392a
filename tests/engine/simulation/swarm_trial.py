"""One plan, lived through on a database of its own: trouble, healing, and then the question which promises were broken."""

from __future__ import annotations

import json
import traceback
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import timeball
from tests.engine.simulation.swarm import OpenStore, Swarm, timers_by
from tests.engine.simulation.swarm_plan import GROUP, Deed, Plan
from tests.support.factories import ALWAYS, table
from timeball.domain.execution import Succeeded
from timeball.domain.values.ids import filling_id
from timeball.env import Env
from timeball.store.store import Store
from timeball.store.verify.proof import verify
from timeball.testing import VirtualClock

MOST_HEALING_STEPS = 3_000
_PRODUCT = Path(timeball.__file__).parent
_LOOKS_EVERY = 5
_A_SECOND = timedelta(seconds=1)

MakeDatabase = Callable[[], str]
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Trial:
    """What came of a plan."""

    # Each promise that was broken, and what shows it.
    broken: dict[str, str]
    seen: Counter[str]
    trace: str
    # The deeds up to the healing, as they went.
    done: tuple[Deed, ...]

    def __str__(self) -> str:
        return "\n\n".join(f"{name}\n{text}" for name, text in self.broken.items())

    @property
    def broke(self) -> str:
        """The first promise that was broken."""
        return next(iter(self.broken))


async def live_through(
    plan: Plan, make_database: MakeDatabase, tell: Tell | None = None, *, reverses_rows: bool = False
) -> Trial:
    """A phase of trouble, and one in which everything has to come to its end. Whatever is raised is a broken promise."""
    clock = VirtualClock()
    swarm = Swarm(plan, clock, tell, reverses_rows=reverses_rows)
    with timers_by(clock):
        broken = await _live_on(make_database(), swarm)
    return Trial(broken, swarm.seen, swarm.trace, tuple(swarm.done[: len(plan.deeds)]))


async def _live_on(dsn: str, swarm: Swarm) -> dict[str, str]:
    async with opened(dsn) as open_store:
        try:
            store = await open_store(Env(swarm.clock, swarm.plan.chance("work")))
            swarm.watch(store, "work")
            return await _live(swarm, store, open_store)
        except Exception as error:
            return {_name_of(error): "".join(traceback.format_exception(error))}


def _name_of(error: Exception) -> str:
    """Errors of one kind from one place are one."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [
        frame.name for frame in frames if _PRODUCT in Path(frame.filename).parents and "database" not in frame.filename
    ]
    return f"{type(error).__name__} in {ours[-1] if ours else 'the swarm'}"


async def _live(swarm: Swarm, store: Store, open_store: OpenStore) -> dict[str, str]:
    await swarm.gather(open_store)
    for deed in swarm.plan.deeds:
        await swarm.do(deed, store)
    left = await _heal(swarm, store)
    if await swarm.backfill_again(store):
        left = await _heal(swarm, store)
    finished = sorted(await table(store, "finished"), key=lambda row: row["id"])
    if any(row["state"] == "dead" and row["lost"] == 3 for row in finished):
        swarm.seen["poison dead-lettered"] += 1
    swarm.seen.update(f"skipped: {row['reason']}" for row in await table(store, "skip_range"))
    swarm.seen.update(f"skipped: {row['reason']}" for row in finished if row["state"] == "skipped")
    for row in finished:
        if row["origin"] == "backfill":
            is_filling = row["id"] == filling_id(row["job_id"], row["scheduled_for"])
            swarm.seen["filled in" if is_filling else "run again by a backfill"] += 1
    for row in finished:
        swarm.note(*(row[column] for column in ("id", "state", "attempts", "lost", "fence", "claim_id", "finished_at")))
    broken = dict(_broken_in_the_ledger(swarm, finished, left))
    problems = [*await _group_problems(swarm, store, finished), *await _after_problems(swarm, store, finished)]
    if problems:
        broken["Everything is followed as often as it ends"] = "\n".join(problems)
    report = await verify(store.database, swarm.clock.now(), second_look=timedelta(0))
    broken |= {f"{check.code} {check.title}": "\n".join(check.lines()) for check in report.checks if not check.holds}
    if left:
        broken["L5 Everything comes to its end"] = f"{left} do not"
    return broken


async def _heal(swarm: Swarm, store: Store) -> int:
    """Turns without trouble, amid which the frozen wake, until all has come to its end; how many have not after enough of them."""
    for number, deed in enumerate(islice(swarm.plan.healing(), MOST_HEALING_STEPS)):
        if number % _LOOKS_EVERY == 0:
            left, wakes_at = await _unfinished(store)
            if not left:
                return 0
            # No node has anything to do until then: leap there.
            swarm.clock.advance_to(wakes_at - _A_SECOND)
        await swarm.do(deed, store)
        await swarm.feed()
    return (await _unfinished(store))[0]


def _broken_in_the_ledger(swarm: Swarm, finished: list[Any], left: int) -> Iterator[tuple[str, str]]:
    """What the database says, against what was seen outside of it."""
    twice = [id_ for id_, times in Counter(row["id"] for row in finished).items() if times > 1]
    if twice:
        yield "S5 Everything ends once", f"more than once: {twice}"
    again = [run for run, times in Counter((id_, claim) for id_, claim, _ in swarm.runs).items() if times > 1]
    if again:
        yield "S4 No claim is run twice", f"more than once: {again}"
    succeeded = {(id_, claim) for id_, claim, outcome in swarm.runs if isinstance(outcome, Succeeded)}
    unearned = [
        row["id"] for row in finished if row["state"] == "succeeded" and (row["id"], row["claim_id"]) not in succeeded
    ]
    if unearned:
        yield "S5 Only the claim's own outcome counts", f"succeeded by a claim that had not: {unearned}"
    if swarm.early:
        yield "S6 No attempt begins before its time, nor before that of its retry", "\n".join(swarm.early)
    if swarm.expired:
        yield "Nothing begins after it has expired", "\n".join(swarm.expired)
    gone = set(swarm.acknowledged) - {row["id"] for row in finished}
    if len(gone) > left:
        yield "S8 What was acknowledged stays", f"acknowledged, and nowhere: {sorted(gone)}"


async def _group_problems(swarm: Swarm, store: Store, finished: list[Any]) -> list[str]:
    """What ran of each group, against what had to by the ends of its calls."""
    ends: dict[int, dict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))
    by_job = {row["job_id"]: row for row in finished}
    for job in await table(store, "job"):
        payload = json.loads(job["payload"])
        if "group" in payload and job["id"] in by_job:
            ends[payload["group"]][payload["call"]].append(by_job[job["id"]]["state"] == "succeeded")
    parts = {deed.number: deed.amount for deed in swarm.plan.deeds if deed.work == GROUP}
    problems: list[str] = []
    for number, found in ends.items():
        expected = _expected_calls(parts[number], lambda call, found=found: found[call] == [True])  # type: ignore[misc]
        swarm.seen[f"group {'succeeded' if 'then' in expected else 'failed'}"] += 1
        ran = Counter({call: len(states) for call, states in found.items() if states})
        if ran != Counter(expected):
            problems.append(f"group {number}: ran {dict(ran)}, expected each of {expected} once")
    return problems


def _expected_calls(parts: int, succeeded: Callable[[str], bool]) -> list[str]:
    """The calls of `group_work`, if these succeed."""
    calls = [*(f"part {number}" for number in range(parts)), "step 1"]
    is_whole = all(succeeded(call) for call in calls)
    for before, after in ((("step 1",), ("inner 1", "inner 2")), (("step 1", "inner 1", "inner 2"), ("inner then",))):
        if all(succeeded(call) for call in before):
            calls += after
    is_whole = is_whole and "inner then" in calls and succeeded("inner then")
    return [*calls, "then" if is_whole else "failed"]


async def _after_problems(swarm: Swarm, store: Store, finished: list[Any]) -> list[str]:
    """The occurrences of each job that comes after a schedule, against the successes of that."""
    problems: list[str] = []
    skipped = await table(store, "skip_range")
    for job in [job for job in await table(store, "job") if job["after_id"] is not None]:
        successes = {
            row["scheduled_for"] for row in finished if row["job_id"] == job["after_id"] and row["state"] == "succeeded"
        }
        # A backfill may have run earlier ones, too.
        owed = {at for at in successes if at > job["after_since"]}
        own = [row["scheduled_for"] for row in finished if row["job_id"] == job["id"]]
        held_off = {
            at
            for at in successes
            for span in skipped
            if span["job_id"] == job["id"] and span["first_at"] <= at <= span["last_at"]
        }
        swarm.seen["came after another"] += len(own)
        if len(own) != len(set(own)) or not set(own) <= successes or owed - set(own) - held_off:
            problems.append(f"{job['name']}: ran for {sorted(own)}, expected {sorted(successes)}")
    return problems


@asynccontextmanager
async def opened(dsn: str) -> AsyncIterator[OpenStore]:
    """Opens stores on one database, each with connections of its own."""
    stores: list[Store] = []

    async def open_store(env: Env) -> Store:
        store = Store(dsn, env)
        stores.append(store)
        await store.open(migrates=False)
        return store

    try:
        yield open_store
    finally:
        for store in stores:
            await store.close()


async def _unfinished(store: Store) -> tuple[int, datetime]:
    """How many executions have not ended and dead nodes not been buried, and when the first of them is due, if it only waits for that."""
    async with store.database.connection() as connection:
        row = await connection.fetchrow(
            "SELECT waiting + busy + fed AS left, CASE WHEN busy + fed = 0 THEN wakes_at END AS wakes_at "
            "FROM (SELECT count(*) AS waiting, min(run_at) AS wakes_at FROM timeball.due) AS due, "
            "(SELECT (SELECT count(*) FROM timeball.ready) + (SELECT count(*) FROM timeball.blocked) "
            "+ (SELECT count(*) FROM timeball.execution_group WHERE state = 'open') "
            "+ (SELECT count(*) FROM timeball.running) + (SELECT count(*) FROM timeball.node WHERE lease_until < $1) AS busy) AS others, "
            "(SELECT count(*) AS fed FROM timeball.operation WHERE finished_at IS NULL) AS operations",
            store.env.clock.now(),
        )
    return row["left"], row["wakes_at"] or ALWAYS
