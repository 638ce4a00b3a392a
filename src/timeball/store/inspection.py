"""What a doctor looks at: the server, the rooms at a glance, who uses what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from timeball.domain.execution import Attempt
from timeball.domain.ids import ExecutionId, JobId
from timeball.store.database import Database
from timeball.store.rows import attempt_from

_MOST_USES = 2_000


class Inspection:
    """Reads over the whole house, each bounded."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def server(self) -> Mapping[str, Any]:
        """The server: version, durability, its oldest transaction."""
        return await self._only("server_facts")

    async def house(self) -> Mapping[str, Any]:
        """The rooms at a glance."""
        return await self._only("house_facts")

    async def uses(self) -> dict[tuple[str, str], int]:
        """How many jobs use which handler in which queue."""
        rows = await self._database.fetch("uses_of_handlers", most=_MOST_USES)
        return {(row["queue"], row["handler"]): row["jobs"] for row in rows}

    async def oldest_ready(self, queues: Sequence[str]) -> list[tuple[str, ExecutionId, datetime]]:
        """What has waited longest in each of these queues."""
        rows = await self._database.fetch("oldest_ready", queues=list(queues))
        return [(row["queue"], ExecutionId(row["id"]), row["run_at"]) for row in rows]

    async def versions(self, job_id: JobId) -> dict[int, Mapping[str, Any]]:
        """The versions of a job that are kept, with the span of instants each answers for."""
        rows = await self._database.fetch("versions_of_job", job_id=job_id)
        return {row["version"]: dict(row) for row in rows}

    async def attempts(self, ids: Sequence[ExecutionId]) -> dict[ExecutionId, list[Attempt]]:
        """The unsuccessful tries of some executions, each in order."""
        found: dict[ExecutionId, list[Attempt]] = {id_: [] for id_ in ids}
        for row in await self._database.fetch("attempts_of_some", ids=list(ids)):
            found[ExecutionId(row["execution_id"])].append(attempt_from(row))
        return found

    async def unsuccessful_tries(self, since: datetime, until: datetime, limit: int) -> list[dict[str, Any]]:
        """The tries that ended within a span without success, the latest first."""
        rows = await self._database.fetch("unsuccessful_tries", since=since, until=until, limit=limit)
        return [dict(row) for row in rows]

    async def _only(self, name: str) -> Mapping[str, Any]:
        row = await self._database.fetch_row(name)
        assert row is not None
        return dict(row)
