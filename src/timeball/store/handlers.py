"""What workers have published of their handlers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any
from uuid import UUID

import orjson

from timeball.domain.contract import Contract, ContractVersion
from timeball.store.database import Database

# So many contracts of a handler are kept; a deploy that is rolled back finds its own among them.
_MOST_CONTRACTS = 20
# Schemas that were read before: a fingerprint names one schema for ever.
_MOST_SCHEMAS = 1_000


class Handlers:
    """The published contracts."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._schemas: dict[str, Mapping[str, Any]] = {}

    async def publish(self, contracts: Sequence[Contract], *, is_start: bool) -> None:
        """Make contracts known; those a process starts with (*is_start*) become the newest of their names.

        Nothing is written for a contract that is the newest already.
        """
        if not contracts:
            return
        written = await self._database.fetch(
            "publish_handlers",
            names=[contract.name for contract in contracts],
            fingerprints=[contract.fingerprint for contract in contracts],
            schemas=[_json(contract.schema) for contract in contracts],
            options=[_json(contract.options) for contract in contracts],
            docs=[contract.doc for contract in contracts],
            run_styles=[contract.run_style for contract in contracts],
            is_start=is_start,
        )
        if written:
            await self._database.fetch(
                "forget_old_contracts", names=[row["name"] for row in written], most=_MOST_CONTRACTS
            )

    async def versions(self, names: Iterable[str]) -> dict[str, list[ContractVersion]]:
        """All published contracts of these handlers, the newest of each first; a handler without any is left out."""
        wanted = sorted({name for name in names if "\0" not in name})
        rows = await self._database.fetch("contract_versions", names=wanted) if wanted else []
        return {name: [_version(row) for row in group] for name, group in groupby(rows, lambda row: str(row["name"]))}

    async def schemas(self, versions: Iterable[ContractVersion]) -> dict[str, Mapping[str, Any]]:
        """The schemas of these contracts, by their fingerprints."""
        wanted = {version.fingerprint: version.name for version in versions}
        known = {fingerprint: self._schemas[fingerprint] for fingerprint in wanted if fingerprint in self._schemas}
        missing = [fingerprint for fingerprint in wanted if fingerprint not in known]
        if missing:
            names = sorted({wanted[fingerprint] for fingerprint in missing})
            rows = await self._database.fetch("contract_schemas", names=names, fingerprints=missing)
            found = {row["fingerprint"]: orjson.loads(row["schema"]) for row in rows}
            if len(self._schemas) + len(found) > _MOST_SCHEMAS:
                self._schemas.clear()
            self._schemas |= found
            known |= found
        return known

    async def names(self, limit: int, after: str = "") -> list[str]:
        """Names of handlers that workers have published, in order, behind a name."""
        return [row["name"] for row in await self._database.fetch("handler_names", after=after, limit=limit)]

    async def payloads_of_jobs(self, handlers: Sequence[str], after: UUID, limit: int) -> list[Any]:
        """Jobs with names, behind an id, with their payloads; a job of another handler without."""
        return await self._database.fetch("payloads_of_jobs", handlers=list(handlers), after=after, limit=limit)

    async def waiting_payloads(self, handlers: Sequence[str], after: UUID, limit: int) -> list[Any]:
        """Executions that wait or run, behind an id, with the payloads they run with.

        Without it: one of another handler, and one that runs with what a job with a name is given now.
        """
        return await self._database.fetch("waiting_payloads", handlers=list(handlers), after=after, limit=limit)


def _json(value: Mapping[str, Any]) -> str:
    # NUL cannot be kept in the database; a schema with one in a default is told without it.
    return orjson.dumps(value).decode().replace("\\u0000", "")


def _version(row: Any) -> ContractVersion:
    return ContractVersion(
        name=row["name"],
        fingerprint=row["fingerprint"],
        options=orjson.loads(row["options"]),
        doc=row["doc"],
        run_style=row["run_style"],
        published_at=row["published_at"],
        started_at=row["started_at"],
        is_newest=row["is_newest"],
        workers=tuple(row["workers"]),
    )
