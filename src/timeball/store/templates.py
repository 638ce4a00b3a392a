"""Job templates: created, changed, deleted; every change is audited."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from uuid import UUID

import asyncpg
import orjson

from timeball.domain.search import ResultPage, read_cursor, write_cursor
from timeball.domain.template import Template, TemplateId
from timeball.errors import Conflict, NotFound
from timeball.store.db.columns import write_audit

if TYPE_CHECKING:
    from timeball.store.db.database import Database
    from timeball.store.db.pool import Connection
    from timeball.store.types import AuditEntry

_BY_NAME = "template"


class TemplateStore:
    """The templates of this database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, template_id: TemplateId) -> Template | None:
        """One template."""
        return _template_from(await self._database.fetch_row("find_template", id=template_id))

    async def find_by_name(self, name: str) -> Template | None:
        """The template of that name."""
        return _template_from(await self._database.fetch_row("find_template_by_name", name=name))

    async def page(self, limit: int, cursor: str | None) -> ResultPage[Template]:
        """A page of templates, by name."""
        after = "" if cursor is None else read_cursor(cursor, _BY_NAME, 2)[0] or ""
        rows = await self._database.fetch("list_templates", after=after, limit=limit + 1)
        templates = [template for template in map(_template_from, rows) if template is not None]
        items = templates[:limit]
        return ResultPage(
            items, write_cursor(_BY_NAME, items[-1].name, items[-1].id) if len(templates) > limit else None
        )

    async def add(self, name: str, description: str | None, job: dict[str, Any], audit: AuditEntry) -> Template:
        """Insert a template; Conflict if its name is taken."""
        template_id, note = self._database.env.new_id(), self._database.env.new_id()

        async def work(connection: Connection) -> Template:
            row = await self._database.fetch_row(
                "add_template", connection, id=template_id, name=name, description=description, job=_json(job)
            )
            template = _existing(row, template_id)
            await self._note(connection, note, audit, "template.create", None, template)
            return template

        return await self._named(work, note, name)

    async def change(
        self, template_id: TemplateId, decide: Callable[[Template], Template], audit: AuditEntry
    ) -> Template:
        """Replace a template by what *decide* makes of it; its version goes up by one."""
        note = self._database.env.new_id()

        async def work(connection: Connection) -> Template:
            before = _existing(await self._database.fetch_row("lock_template", connection, id=template_id), template_id)
            template = decide(before)
            row = await self._database.fetch_row(
                "write_template",
                connection,
                id=template_id,
                name=template.name,
                description=template.description,
                job=_json(template.job),
            )
            after = _existing(row, template_id)
            await self._note(connection, note, audit, "template.update", before, after)
            return after

        return await self._named(work, note, "")

    async def delete(self, template_id: TemplateId, check: Callable[[Template], None], audit: AuditEntry) -> None:
        """Delete a template, unless *check* raises; jobs that were created from it stay."""
        note = self._database.env.new_id()

        async def work(connection: Connection) -> None:
            before = _existing(await self._database.fetch_row("lock_template", connection, id=template_id), template_id)
            check(before)
            await self._database.fetch("delete_template", connection, id=template_id)
            await self._note(connection, note, audit, "template.delete", before, None)

        await self._database.once(work, note)

    async def _named(self, work: Callable[[Connection], Any], note: UUID, name: str) -> Template:
        try:
            done: Template = await self._database.once(work, note)
        except asyncpg.UniqueViolationError as error:
            which = f" named {name!r}" if name else " of that name"
            raise Conflict(
                f"there is already a template{which}", hint="choose another name, or change that one"
            ) from error
        return done

    async def _note(
        self,
        connection: Connection,
        note: UUID,
        audit: AuditEntry,
        action: str,
        before: Template | None,
        after: Template | None,
    ) -> None:
        template = after or before
        assert template is not None
        subject = f"template:{template.id}"
        await write_audit(self._database, connection, note, audit, action, subject, _facts(before), _facts(after))


def _facts(template: Template | None) -> dict[str, Any] | None:
    return (
        None
        if template is None
        else {"name": template.name, "description": template.description, "job": dict(template.job)}
    )


def _json(job: Any) -> str:
    return orjson.dumps(dict(job)).decode()


def _template_from(row: Any) -> Template | None:
    return None if row is None else _existing(row, row["id"])


def _existing(row: Any, template_id: object) -> Template:
    if row is None:
        raise NotFound("template", template_id)
    return Template(
        id=TemplateId(row["id"]),
        name=row["name"],
        description=row["description"],
        job=orjson.loads(row["job_text"]),
        version=row["version"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )
