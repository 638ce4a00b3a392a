"""The ledger over HTTP: every occurrence of a job with its verdict, page by page."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.api.test_conventions import check_problem
from tests.engine.support import create, start_scheduler, start_worker
from tests.support.factories import seconds
from timeball.api.app import make_api
from timeball.client import AsyncClient
from timeball.client.in_process import InProcessTransport
from timeball.domain.job import Job
from timeball.domain.scheduling.civil_time import tzdata_version
from timeball.domain.values.ids import format_execution_id, occurrence_id
from timeball.runtime import ServerRuntime
from timeball.store.store import Store
from timeball.testing.environment import START


@pytest.fixture
async def job(store: Store) -> Job:
    """A job of every five seconds; between 12 and 67 s nothing was alive."""
    node, worker = await start_scheduler(store), await start_worker(store)
    job = await create(store, name="beat", interval_seconds=5)
    await node.run_until(START + seconds(12), worker.work)
    node.clock.advance_to(START + seconds(67))
    await node.run_until(START + seconds(72), worker.work)
    return job


@pytest.fixture
async def sdk(parts: ServerRuntime) -> AsyncIterator[AsyncClient]:
    async with AsyncClient("http://localhost", transport=InProcessTransport(make_api(parts))) as client:
        yield client


def at(number: float) -> str:
    return (START + seconds(number)).isoformat().replace("+00:00", "Z")


async def get(client: httpx.AsyncClient, path: str = "/jobs/beat/occurrences", **params: Any) -> Any:
    response = await client.get(path, params={name.rstrip("_"): value for name, value in params.items()})
    assert response.status_code == 200, response.text
    return response.json()


async def test_occurrences_are_listed_with_their_verdicts(client: httpx.AsyncClient, job: Job) -> None:
    document = await get(client, from_=at(8), until=at(41))

    ran = {
        "scheduled_for": at(10),
        "from": None,
        "until": None,
        "count": 1,
        "verdict": "ran",
        "reason": None,
        "freeze": None,
        "origin": "schedule",
        "filled": 0,
        "execution_id": format_execution_id(occurrence_id(job.id, START + seconds(10))),
        "state": "succeeded",
        "version": 1,
        "tzdata": tzdata_version(),
    }
    assert document["data"] == [
        ran,
        {
            "scheduled_for": None,
            "from": at(15),
            "until": at(35),
            "count": 5,
            "verdict": "skipped",
            "reason": "misfire",
            "freeze": None,
            "origin": "schedule",
            "filled": 0,
            "execution_id": None,
            "state": None,
            "version": 1,
            "tzdata": tzdata_version(),
        },
        ran
        | {
            "scheduled_for": at(40),
            "execution_id": format_execution_id(occurrence_id(job.id, START + seconds(40))),
        },
    ]
    assert (document["from"], document["until"], document["order"]) == (at(8), at(41), "asc")
    assert (document["next_cursor"], document["has_more"], document["history_from"]) == (None, False, None)


async def test_the_default_span_is_the_last_week_and_the_next_day(client: httpx.AsyncClient, job: Job) -> None:
    document = await get(client)

    assert (document["from"], document["until"]) == (at(72 - 7 * 86_400), at(72 + 86_400))
    assert len(document["data"]) == 50
    assert document["data"][0]["scheduled_for"] == at(5)
    assert document["has_more"] is True


async def test_the_filters_and_the_order_are_kept_from_page_to_page(client: httpx.AsyncClient, job: Job) -> None:
    told: list[str] = []
    cursor: str | None = None
    while True:
        filters: dict[str, Any] = {"verdict": "ran,skipped", "order": "desc", "limit": 3}
        document = await get(client, **filters | ({} if cursor is None else {"cursor": cursor}))
        told += [entry["scheduled_for"] or entry["from"] for entry in document["data"]]
        cursor = document["next_cursor"]
        if cursor is None:
            break

    assert told == [at(number) for number in (70, 65, 60, 55, 50, 45, 40, 15, 10, 5)]


async def test_an_occurrence_that_expired_is_one_entry(client: httpx.AsyncClient, store: Store) -> None:
    """Whichever part skipped it: the scheduler before its promotion, or the sweep in the queue."""
    node = await start_scheduler(store)
    await create(store, name="late", interval_seconds=60, start_within_seconds=10, overlap="allow")
    await node.run_until(START + seconds(61))
    node.clock.advance_to(START + seconds(130))
    await store.executions.expire_waiting(10)
    await node.tick()

    document = await get(client, "/jobs/late/occurrences", until=at(150))

    told = [(entry["scheduled_for"], entry["verdict"], entry["reason"]) for entry in document["data"]]
    assert told == [(at(60), "skipped", "expired"), (at(120), "skipped", "expired")]


async def test_occurrences_are_filtered_by_reason(client: httpx.AsyncClient, job: Job) -> None:
    missed = await get(client, reason="misfire")
    paused = await get(client, reason="paused,overlap", verdict="skipped")

    assert [entry["count"] for entry in missed["data"]] == [5]
    assert paused["data"] == []


async def test_a_time_without_an_offset_is_on_the_clock_of_the_job(client: httpx.AsyncClient, store: Store) -> None:
    await create(store, name="berlin", schedule="0 12 * * *", timezone="Europe/Berlin")

    document = await get(client, "/jobs/berlin/occurrences", from_="2026-03-02T12:00:00", until="2026-03-02T12:00:00")

    assert document["from"] == "2026-03-02T11:00:00Z"


@pytest.mark.parametrize(
    ("params", "field", "detail"),
    [
        ({"verdict": "missed"}, "verdict", 'verdict is "missed", expected ran, running, waiting, skipped or expected'),
        ({"reason": "rain"}, "reason", 'reason is "rain", expected misfire, too_old'),
        ({"from": "2026-03-02", "until": "2026-03-01"}, "until", "expected an instant that is not before from"),
        ({"from": "yesterday"}, "from", "from is"),
        ({"cursor": "abc"}, "cursor", "cursor does not belong to this list"),
        ({"limit": 201}, "limit", "expected 200 or less"),
        ({"verdicts": "ran"}, None, "parameter verdicts is unknown"),
    ],
)
async def test_bad_parameters_are_refused(
    client: httpx.AsyncClient, job: Job, params: dict[str, str], field: str | None, detail: str
) -> None:
    response = await client.get("/jobs/beat/occurrences", params=params)

    code = {None: "unknown_parameter", "from": "invalid_schedule"}.get(field, "invalid_input")
    problem = check_problem(response, 422, code)
    assert detail in problem["detail"]
    assert field is None or field in str(problem["errors"])


async def test_the_ledger_of_a_job_that_does_not_exist_is_not_found(client: httpx.AsyncClient) -> None:
    check_problem(await client.get("/jobs/nowhere/occurrences"), 404, "not_found")


async def test_the_client_reads_entries_and_iterates_over_all_pages(sdk: AsyncClient, job: Job) -> None:
    page = await sdk.jobs.occurrences("beat", from_=START, until=START + seconds(40), verdict="skipped")
    everything = [entry async for entry in sdk.jobs.iterate_occurrences("beat", until=START + seconds(70), limit=2)]

    (missed,) = page.data
    assert (missed.from_, missed.until, missed.count) == (START + seconds(15), START + seconds(35), 5)
    assert (missed.verdict, missed.reason, missed.scheduled_for) == ("skipped", "misfire", None)
    assert sum(entry.count or 0 for entry in everything) == 14


async def test_stats_and_metrics_count_what_was_missed_and_what_ran(
    client: httpx.AsyncClient, store: Store, job: Job
) -> None:
    await create(store, name="other", interval_seconds=5)
    await store.rollups.fold()

    everything = (await get(client, "/stats"))["total"]["occurrences"]
    of_job = (await get(client, "/stats", job="beat"))["total"]["occurrences"]
    of_other = (await get(client, "/stats", job="other"))["total"]["occurrences"]
    text = (await client.get("http://localhost/metrics")).text

    assert everything == of_job == {"ran": 9, "skipped": {"misfire": 5}}
    assert of_other == {"ran": 0, "skipped": {}}
    assert 'timeball_occurrences_total{reason="misfire",verdict="skipped"} 5.0' in text
    assert 'timeball_occurrences_total{reason="overlap",verdict="skipped"} 0.0' in text
    assert 'timeball_occurrences_total{reason="",verdict="ran"} 9.0' in text
    # What calendars leave out is not recorded, and not counted.
    assert 'reason="calendar"' not in text
