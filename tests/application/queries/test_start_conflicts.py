"""The load that a run meets at an instant, and the slots that it needs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.application.queries.support import ran
from tests.support.factories import HANDLER, enqueue, make_job, make_node, make_recurring
from timeball.application.commands import Commands
from timeball.application.queries import Queries
from timeball.application.queries.forecast import InstantLoad, InstantLoadRequest
from timeball.store.store import Store
from timeball.testing import VirtualClock

HALF_PAST_TWO = datetime(2026, 3, 3, 2, 30, tzinfo=UTC)


async def landing(queries: Queries, at: datetime = HALF_PAST_TWO, queue: str = "default") -> InstantLoad:
    return await queries.forecast.load_at(InstantLoadRequest(at=at, queue=queue))


def labels(found: InstantLoad) -> list[str]:
    return [job.label for job in found.jobs]


@pytest.fixture
async def reindex(store: Store, clock: VirtualClock) -> None:
    """A job that runs from 02:25 for nine minutes, in an installation with two slots."""
    job = await make_job(store, name="reindex", schedule="25 2 * * *")
    await ran(store, clock.now() - timedelta(days=2), 540, job.id)
    await make_node(store, slots=2, handlers=(HANDLER,))


@pytest.mark.usefixtures("reindex")
async def test_an_instant_meets_runs_that_have_started_and_not_ended(queries: Queries) -> None:
    found = await landing(queries)

    assert (labels(found), found.need, found.slots) == (["reindex"], 2, 2)
    assert found.jobs[0].typical is not None
    assert found.jobs[0].typical.p95 == timedelta(minutes=9)


@pytest.mark.usefixtures("reindex")
@pytest.mark.parametrize(
    ("at", "expected"),
    [("02:24:59", []), ("02:25:00", ["reindex"]), ("02:33:59", ["reindex"]), ("02:34:00", [])],
)
async def test_an_instant_meets_no_run_before_or_after(queries: Queries, at: str, expected: list[str]) -> None:
    found = await landing(queries, datetime.fromisoformat(f"2026-03-03T{at}Z"))

    assert (labels(found), found.need) == (expected, 1 + len(expected))


@pytest.mark.usefixtures("reindex")
async def test_a_job_that_starts_often_counts_with_every_run(
    store: Store, queries: Queries, clock: VirtualClock
) -> None:
    often = await make_recurring(store, every=60, name="often")
    await ran(store, clock.now() - timedelta(days=2), 150, often.id)

    found = await landing(queries)

    assert (labels(found), found.need) == (["reindex", "often"], 2 + 3 - 1 + 1)


@pytest.mark.usefixtures("reindex")
async def test_one_offs_that_are_due_then_count_too(store: Store, queries: Queries, clock: VirtualClock) -> None:
    ahead = (HALF_PAST_TWO - clock.now()).total_seconds()
    await enqueue(store, after=ahead)
    await enqueue(store, after=ahead + 1)

    found = await landing(queries)

    assert (found.one_offs, found.need) == (1, 3)


@pytest.mark.usefixtures("reindex")
async def test_a_job_does_not_count_itself(store: Store, queries: Queries) -> None:
    (job,) = (await store.jobs.find_by_names(["reindex"])).values()

    found = await queries.forecast.load_at(InstantLoadRequest(at=HALF_PAST_TWO, queue="default", job_id=job.id))

    assert (labels(found), found.need) == ([], 1)


@pytest.mark.usefixtures("reindex")
async def test_only_queues_that_share_the_slots_matter_and_limits_are_kept_to(store: Store, queries: Queries) -> None:
    await make_node(store, slots=5, handlers=(HANDLER,), queues=("crm",))
    await make_job(store, name="mirror", schedule="30 2 * * *", queue="crm")
    await Commands(store, store.env).queues.limit("crm", 1)

    default, crm = await landing(queries), await landing(queries, queue="crm")

    assert (labels(default), default.slots) == (["reindex"], 2)
    assert (labels(crm), crm.need, crm.slots) == (["mirror"], 2, 1)


async def test_an_installation_without_workers_has_no_slots(queries: Queries) -> None:
    found = await landing(queries)

    assert (labels(found), found.need, found.slots, found.left_out) == ([], 1, 0, False)
