"""Published handler contracts, and stored payloads that other code would refuse."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

from timeball.application.queries.views import IncompatiblePayload, PublishedHandler, StoredPayload, find_incompatible
from timeball.domain.search import PageRequest, ResultPage, foreign_cursor, read_cursor, write_cursor
from timeball.domain.template import placeholders
from timeball.domain.values.ids import ExecutionId, JobId, format_execution_id, format_id, format_job_id
from timeball.domain.values.json_text import to_json
from timeball.store.store import Store

_BY_NAME = "handler"
_MOST_NAMES = 500
_PAYLOADS = "payloads"
_NIL_ID = UUID(int=0)
_SOURCES = ("jobs", "templates", "executions")


class HandlerQuery:
    """Reads the published contracts."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def page(self, known: Sequence[str], request: PageRequest) -> ResultPage[PublishedHandler]:
        """Some handlers by name: those that were published, and those that are *known* in other ways."""
        after = "" if request.cursor is None else read_cursor(request.cursor, _BY_NAME, 2)[0] or ""
        published = await self._store.handlers.names(request.limit + 1, after)
        names = sorted({*published, *(name for name in known if name > after)})
        shown = names[: request.limit]
        cursor = write_cursor(_BY_NAME, shown[-1], _NIL_ID) if len(names) > request.limit else None
        return ResultPage(await self.read(shown), cursor)

    async def names(self) -> list[str]:
        """The first names that workers have published."""
        return await self._store.handlers.names(_MOST_NAMES)

    async def read(self, names: Sequence[str]) -> list[PublishedHandler]:
        """These handlers, with what was published of them, if anything was."""
        versions = await self._store.handlers.versions(names)
        schemas = await self._store.handlers.schemas(found[0] for found in versions.values())
        return [
            PublishedHandler(name=name, versions=found, schema=schemas.get(found[0].fingerprint) if found else None)
            for name in names
            for found in [versions.get(name, [])]
        ]

    async def payloads(
        self, handlers: Sequence[str], cursor: str | None, limit: int
    ) -> tuple[list[StoredPayload], str | None]:
        """Some of what is stored for these handlers, and where the rest begins: jobs with names, templates, waiting executions."""
        source, name, after = _SOURCES[0], "", _NIL_ID
        if cursor is not None:
            told_source, told_name, told_id = read_cursor(cursor, _PAYLOADS, 3)
            source, name, after = str(told_source), str(told_name), UUID(str(told_id))
        if source == "templates":
            return await self._templates(handlers, name, limit)
        if source not in _SOURCES:
            raise foreign_cursor()
        read = self._store.handlers.payloads_of_jobs if source == "jobs" else self._store.handlers.waiting_payloads
        rows = await read(handlers, after, limit)
        found = [_stored(source, row) for row in rows if row["payload"] is not None]
        if len(rows) == limit:
            return found, write_cursor(_PAYLOADS, source, "", rows[-1]["id"])
        return found, _next_source(source)

    async def _templates(
        self, handlers: Sequence[str], after: str, limit: int
    ) -> tuple[list[StoredPayload], str | None]:
        page = await self._store.templates.page(limit, None if not after else write_cursor("template", after, _NIL_ID))
        found = [
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
            return found, _next_source("templates")
        return found, write_cursor(_PAYLOADS, "templates", page.items[-1].name, _NIL_ID)

    async def misfits(
        self, checks: Mapping[str, Callable[[str], object]], page: int
    ) -> AsyncIterator[tuple[int, list[IncompatiblePayload]]]:
        """How many payloads were looked at, and those that their checks refuse; page by page."""
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
    place = _SOURCES.index(source) + 1
    return write_cursor(_PAYLOADS, _SOURCES[place], "", _NIL_ID) if place < len(_SOURCES) else None
