"""Published handler contracts, and stored payloads that other code would refuse."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from timeball.domain.search import PageRequest, ResultPage, foreign_cursor, read_cursor, write_cursor
from timeball.domain.template import placeholders
from timeball.domain.values.ids import ExecutionId, JobId, format_execution_id, format_id, format_job_id
from timeball.domain.values.json_text import to_json
from timeball.errors import InvalidInput

if TYPE_CHECKING:
    from timeball.domain.handler import ContractVersion
    from timeball.store.store import Store

_BY_NAME = "handler"
_MOST_NAMES = 500
_PAYLOADS = "payloads"
_NIL_ID = UUID(int=0)
_SOURCES = ("jobs", "templates", "executions")


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedHandler:
    """A handler with all its published contracts, the newest first, and the schema of the newest."""

    name: str
    versions: Sequence[ContractVersion] = ()
    schema: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPayload:
    """The payload of a job, a template or a waiting execution."""

    kind: str
    id: str
    name: str | None
    handler: str
    payload: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IncompatiblePayload:
    """A stored payload that does not fit, and the error."""

    stored: StoredPayload
    refusal: InvalidInput


def find_incompatible(
    stored: Sequence[StoredPayload], checks: Mapping[str, Callable[[str], object]]
) -> list[IncompatiblePayload]:
    """The payloads that the checks of their handlers refuse."""
    incompatible: list[IncompatiblePayload] = []
    for payload in stored:
        try:
            checks[payload.handler](payload.payload)
        except InvalidInput as refusal:
            incompatible.append(IncompatiblePayload(stored=payload, refusal=refusal))
    return incompatible


class HandlerQueries:
    """Reads the published contracts."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def page(self, known: Sequence[str], request: PageRequest) -> ResultPage[PublishedHandler]:
        """A page of handlers by name: the published ones, and those *known* in other ways."""
        after = "" if request.cursor is None else read_cursor(request.cursor, _BY_NAME, 2)[0] or ""
        published = await self._store.handlers.names(request.limit + 1, after)
        names = sorted({*published, *(name for name in known if name > after)})
        shown = names[: request.limit]
        cursor = write_cursor(_BY_NAME, shown[-1], _NIL_ID) if len(names) > request.limit else None
        return ResultPage(await self.read(shown), cursor)

    async def names(self) -> list[str]:
        """The names of the first 500 published handlers."""
        return await self._store.handlers.names(_MOST_NAMES)

    async def read(self, names: Sequence[str]) -> list[PublishedHandler]:
        """These handlers with their published contracts."""
        versions = await self._store.handlers.versions(names)
        schemas = await self._store.handlers.schemas(published[0] for published in versions.values())
        handlers = []
        for name in names:
            published = versions.get(name, [])
            schema = schemas.get(published[0].fingerprint) if published else None
            handlers.append(PublishedHandler(name=name, versions=published, schema=schema))
        return handlers

    async def payloads(
        self, handlers: Sequence[str], cursor: str | None, limit: int
    ) -> tuple[list[StoredPayload], str | None]:
        """A page of the payloads stored for these handlers, and a cursor: named jobs, templates, then waiting executions."""
        source, name, after = _SOURCES[0], "", _NIL_ID
        if cursor is not None:
            cursor_source, cursor_name, cursor_id = read_cursor(cursor, _PAYLOADS, 3)
            source, name, after = str(cursor_source), str(cursor_name), UUID(str(cursor_id))
        if source == "templates":
            return await self._templates(handlers, name, limit)
        if source not in _SOURCES:
            raise foreign_cursor()
        read = self._store.handlers.payloads_of_jobs if source == "jobs" else self._store.handlers.waiting_payloads
        rows = await read(handlers, after, limit)
        payloads = [_stored(source, row) for row in rows if row["payload"] is not None]
        if len(rows) == limit:
            return payloads, write_cursor(_PAYLOADS, source, "", rows[-1]["id"])
        return payloads, _next_source(source)

    async def _templates(
        self, handlers: Sequence[str], after: str, limit: int
    ) -> tuple[list[StoredPayload], str | None]:
        page = await self._store.templates.page(limit, None if not after else write_cursor("template", after, _NIL_ID))
        payloads = [
            StoredPayload(
                kind="template",
                id=format_id("tpl", template.id),
                name=template.name,
                handler=str(template.job["handler"]),
                payload=to_json(template.job.get("payload", {})),
            )
            for template in page.items
            if template.job.get("handler") in handlers and not any(placeholders(template.job.get("payload")))
        ]
        if page.next_cursor is None:
            return payloads, _next_source("templates")
        return payloads, write_cursor(_PAYLOADS, "templates", page.items[-1].name, _NIL_ID)

    async def incompatible_payloads(
        self, checks: Mapping[str, Callable[[str], object]], page: int
    ) -> AsyncIterator[tuple[int, list[IncompatiblePayload]]]:
        """For each page: the number of payloads that were checked, and those that their checks refuse."""
        cursor: str | None = None
        while True:
            stored, cursor = await self.payloads(list(checks), cursor, page)
            yield len(stored), find_incompatible(stored, checks)
            if cursor is None:
                return


def _stored(source: str, row: Any) -> StoredPayload:
    is_job = source == "jobs"
    return StoredPayload(
        kind="job" if is_job else "execution",
        id=format_job_id(JobId(row["id"])) if is_job else format_execution_id(ExecutionId(row["id"])),
        name=row["name"],
        handler=row["handler"],
        payload=row["payload"],
    )


def _next_source(source: str) -> str | None:
    following = _SOURCES.index(source) + 1
    return write_cursor(_PAYLOADS, _SOURCES[following], "", _NIL_ID) if following < len(_SOURCES) else None
