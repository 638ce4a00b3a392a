"""`verify` over many schedules: the quick check accepts those in order, and the others are named."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.store.verify.test_verify import ON_ONE_SERVER, fill
from tests.support.factories import make_job, make_recurring
from timeball.application.commands import Commands
from timeball.domain.job_fields import JobSpec
from timeball.domain.scheduling import ledger
from timeball.domain.scheduling.civil_time import tzdata_version
from timeball.store.store import Store
from timeball.store.verify import checks, proof
from timeball.store.verify.proof import verify
from timeball.testing import VirtualClock

pytestmark = ON_ONE_SERVER
MINUTE = timedelta(minutes=1)


async def sql(store: Store, statement: str, *values: Any) -> None:
    async with store.database.transaction() as connection:
        await connection.execute(statement, *values)


@pytest.mark.parametrize(
    "rule", [{"interval_seconds": 60}, {"schedule": "* * * * *"}, {"schedule": "30 2 * * *", "timezone": "Asia/Tokyo"}]
)
async def test_a_missing_first_occurrence_of_a_job_that_never_ran_is_a_hole(store: Store, rule: dict[str, Any]) -> None:
    job = await make_job(store, name="fresh", **rule)
    await make_job(store, name="beside", **rule)
    first = job.rule.next_after(store.env.clock.now())
    assert first is not None
    second = job.rule.next_after(first)
    await sql(
        store,
        "UPDATE timeball.due SET scheduled_for = $2, run_at = $2, watermark = $3, tzdata = $4 WHERE job_id = $1",
        job.id,
        second,
        first,
        tzdata_version(),
    )

    report = await verify(store.database)

    (violation,) = report.check("S1").violations
    assert violation.why == "an occurrence has no record"
    assert (violation.row["job"], violation.row["at"]) == ("fresh", f"{first:%Y-%m-%dT%H:%M:%SZ}")
    assert report.check("S3").checked == 2


async def test_no_ledger_is_opened_for_schedules_in_order(
    store: Store, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs = [JobSpec(name=f"every-{number}", handler="h", interval_seconds=60 + number) for number in range(20)]
    specs += [JobSpec(name=f"cron-{number}", handler="h", schedule="*/5 * * * *") for number in range(20)]
    await Commands(store, store.env).jobs.create_all(specs)
    for name in ("ran", "ran too"):
        await fill(store, await make_recurring(store, 60, name=name), clock.now(), 3)
    # The records of the last job of a page may continue on the next.
    last = await make_recurring(store, 60, name="last")
    await fill(store, last, clock.now(), 3)
    opened: list[str] = []

    class Noted(ledger.JobLedger):
        def __init__(self, *arguments: Any) -> None:
            opened.append("a ledger")
            super().__init__(*arguments)

    monkeypatch.setattr(proof, "JobLedger", Noted)
    report = await verify(store.database)

    assert report.holds, "\n".join(report.lines())
    assert (report.check("S1").checked, report.check("S3").checked) == (9, 43)
    assert len(opened) == 1


async def test_records_across_pages_are_checked(
    store: Store, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await make_recurring(store, 60, name="ticker")
    start = job.rule.next_after(clock.now())
    assert start is not None
    await fill(store, job, clock.now(), 2)
    await sql(
        store,
        """
        INSERT INTO timeball.skip_range (id, job_id, version, first_at, last_at, occurrences, reason, recorded_at)
        VALUES ($1, $2, 1, $3, $4, 2, 'misfire', $4)
        """,
        store.env.new_id(),
        job.id,
        start + 2 * MINUTE,
        start + 3 * MINUTE,
    )
    # The first page ends where everything seems in order: two executions, and the pending occurrence after them.
    monkeypatch.setattr(checks, "_PAGE", 2)

    report = await verify(store.database)

    (violation,) = report.check("S3").violations
    assert violation.why.startswith("what lies beyond the pending occurrence is recorded already")
