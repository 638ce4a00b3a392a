"""What a strict type checker is to say about the client."""

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from typing import assert_type

from timeball import AsyncClient, Client
from timeball.client import Page
from timeball.client.types import CreatedJob, Execution, ExecutionDetails, Job, Queue


def blocking(client: Client) -> None:
    assert_type(client.jobs.get("nightly"), Job)
    assert_type(client.jobs.create("h", "nightly", schedule="0 6 * * *", priority=75), CreatedJob)
    assert_type(client.jobs.pause("nightly", datetime.now(UTC), reason="holiday"), Job)
    assert_type(client.jobs.list(status="active"), Page[Job])
    assert_type(client.jobs.iterate(queue="mail"), Iterator[Job])
    assert_type(client.jobs.delete("nightly"), None)
    assert_type(client.jobs.export("csv"), Iterator[bytes])
    assert_type(client.queues.list(), list[Queue])
    client.jobs.create("h", priorty=75)  # refused: call-arg | reportCallIssue
    client.jobs.create("h", priority="high")  # refused: arg-type | reportArgumentType
    client.jobs.get(7)  # refused: arg-type | reportArgumentType
    client.jobs.export("xml")  # refused: arg-type | reportArgumentType
    _name: str = client.jobs.get("nightly")  # refused: assignment | reportAssignmentType


async def awaited(client: AsyncClient) -> None:
    assert_type(await client.jobs.get("nightly"), Job)
    assert_type(await client.executions.get("exe_1"), ExecutionDetails)
    assert_type(client.executions.iterate(status=["dead"]), AsyncIterator[Execution])
    async for event in client.events(types="execution"):
        assert_type(event.type, str)
    _job: Job = client.jobs.get("nightly")  # refused: assignment | reportAssignmentType
