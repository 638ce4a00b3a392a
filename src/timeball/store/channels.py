"""Channels of alerts and the routes that lead to them: found, created, changed, deleted; each change is audited in its own transaction."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import orjson

from timeball.domain.alert_routes import AlertRoute, check_quiet_hours
from timeball.domain.alerts import Severity
from timeball.domain.channels import AlertChannel, ChannelKind
from timeball.errors import Conflict, InvalidInput, NotFound, quote_text
from timeball.store.db.columns import write_audit

if TYPE_CHECKING:
    from timeball.domain.search import ResultPage
    from timeball.store.db.database import Database
    from timeball.store.db.pool import Connection
    from timeball.store.types import AuditEntry

_BY_NAME = "channel"
_SOME_ID = UUID(int=0)


class ChannelStore:
    """The channels of this installation, and the routes that lead to them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    # channels

    async def find(self, name: str, connection: Connection | None = None) -> AlertChannel | None:
        """The channel of that name."""
        row = await self._database.fetch_row("find_channel", connection, name=name)
        return None if row is None else channel_from(row)

    async def page(self, limit: int, cursor: str | None) -> ResultPage[AlertChannel]:
        """A page of channels, by name."""
        # Here and not above: a node lists no channels.
        from timeball.domain.search import ResultPage, read_cursor, write_cursor

        after = "" if cursor is None else read_cursor(cursor, _BY_NAME, 2)[0] or ""
        rows = await self._database.fetch("list_channels", after=after, limit=limit + 1)
        items = [channel_from(row) for row in rows[:limit]]
        return ResultPage(items, write_cursor(_BY_NAME, items[-1].name, _SOME_ID) if len(rows) > limit else None)

    async def add(self, channel: AlertChannel, audit: AuditEntry) -> AlertChannel:
        """Insert a channel; Conflict if its name is taken."""
        note = self._database.env.new_id()

        async def work(connection: Connection) -> AlertChannel:
            row = await self._database.fetch_row("add_channel", connection, **_channel_columns(channel))
            if row is None:
                raise _taken("channel", channel.name)
            after = channel_from(row)
            await self._note(connection, note, audit, "channel.create", f"channel:{channel.name}", None, _facts(after))
            return after

        done: AlertChannel = await self._database.once(work, note)
        return done

    async def change(
        self, name: str, decide: Callable[[AlertChannel], AlertChannel], audit: AuditEntry
    ) -> AlertChannel:
        """Replace a channel by what *decide* makes of it; its version goes up by one."""
        note = self._database.env.new_id()

        async def work(connection: Connection) -> AlertChannel:
            before = await self._locked(connection, name)
            columns = _channel_columns(decide(before))
            row = await self._database.fetch_row("write_channel", connection, **columns)
            after = channel_from(row)
            facts = _facts(before), _facts(after)
            await self._note(connection, note, audit, "channel.update", f"channel:{name}", *facts)
            return after

        done: AlertChannel = await self._database.once(work, note)
        return done

    async def delete(self, name: str, check: Callable[[AlertChannel], None], audit: AuditEntry) -> None:
        """Delete a channel, unless *check* raises, or a route leads to it: then Conflict names the routes."""
        note = self._database.env.new_id()

        async def work(connection: Connection) -> None:
            before = await self._locked(connection, name)
            check(before)
            used_by = [route.name for route in await self.routes(connection) if name in route.channels]
            if used_by:
                raise Conflict(
                    f"the channel {name!r} is used by the alert routes {', '.join(used_by[:10])}",
                    hint="take it out of these routes first, or delete them",
                    routes=used_by[:10],
                )
            await self._database.fetch("delete_channel", connection, name=name)
            await self._note(connection, note, audit, "channel.delete", f"channel:{name}", _facts(before), None)

        await self._database.once(work, note)

    async def _locked(self, connection: Connection, name: str) -> AlertChannel:
        row = await self._database.fetch_row("lock_channel", connection, name=name)
        if row is None:
            raise NotFound("channel", quote_text(name))
        return channel_from(row)

    # routes

    async def routes(self, connection: Connection | None = None) -> list[AlertRoute]:
        """Every route, by name."""
        return [_route_from(row) for row in await self._database.fetch("all_alert_routes", connection)]

    async def find_route(self, name: str) -> AlertRoute | None:
        """The route of that name."""
        row = await self._database.fetch_row("find_alert_route", name=name)
        return None if row is None else _route_from(row)

    async def add_route(self, route: AlertRoute, audit: AuditEntry) -> AlertRoute:
        """Insert a route; Conflict if its name is taken, InvalidInput if one of its channels does not exist."""
        note = self._database.env.new_id()

        async def work(connection: Connection) -> AlertRoute:
            await self._hold_channels(connection, route)
            row = await self._database.fetch_row("add_alert_route", connection, **_route_columns(route))
            if row is None:
                raise _taken("alert route", route.name)
            after, subject = _route_from(row), f"alert_route:{route.name}"
            await self._note(connection, note, audit, "alert_route.create", subject, None, after.as_fields())
            return after

        done: AlertRoute = await self._database.once(work, note)
        return done

    async def change_route(
        self, name: str, decide: Callable[[AlertRoute], AlertRoute], audit: AuditEntry
    ) -> AlertRoute:
        """Replace a route by what *decide* makes of it; its version goes up by one."""
        note = self._database.env.new_id()

        async def work(connection: Connection) -> AlertRoute:
            before = await self._locked_route(connection, name)
            route = decide(before)
            await self._hold_channels(connection, route)
            row = await self._database.fetch_row("write_alert_route", connection, **_route_columns(route))
            after, subject = _route_from(row), f"alert_route:{name}"
            facts = before.as_fields(), after.as_fields()
            await self._note(connection, note, audit, "alert_route.update", subject, *facts)
            return after

        done: AlertRoute = await self._database.once(work, note)
        return done

    async def delete_route(self, name: str, check: Callable[[AlertRoute], None], audit: AuditEntry) -> None:
        """Delete a route, unless *check* raises."""
        note = self._database.env.new_id()

        async def work(connection: Connection) -> None:
            before = await self._locked_route(connection, name)
            check(before)
            await self._database.fetch("delete_alert_route", connection, name=name)
            facts, subject = before.as_fields(), f"alert_route:{name}"
            await self._note(connection, note, audit, "alert_route.delete", subject, facts, None)

        await self._database.once(work, note)

    async def _locked_route(self, connection: Connection, name: str) -> AlertRoute:
        row = await self._database.fetch_row("lock_alert_route", connection, name=name)
        if row is None:
            raise NotFound("alert route", quote_text(name))
        return _route_from(row)

    async def _hold_channels(self, connection: Connection, route: AlertRoute) -> None:
        """Let none of its channels be deleted before the route is written."""
        rows = await self._database.fetch("hold_channels", connection, names=list(route.channels))
        missing = sorted(set(route.channels) - {row["name"] for row in rows})
        if missing:
            raise InvalidInput(
                f"channels names {quote_text(missing[0])}, expected the names of channels that exist",
                field="channels",
                hint="see timeball channels list",
            )

    async def _note(
        self,
        connection: Connection,
        note: UUID,
        audit: AuditEntry,
        action: str,
        subject: str,
        before: dict[str, Any] | None,
        after: dict[str, Any] | None,
    ) -> None:
        await write_audit(self._database, connection, note, audit, action, subject, before, after)


def _taken(kind: str, name: str) -> Conflict:
    return Conflict(
        f"there is already a {kind} named {name!r}".replace("a alert", "an alert"),
        hint="choose another name, or change that one",
    )


def _facts(channel: AlertChannel) -> dict[str, Any]:
    return {
        "name": channel.name,
        "description": channel.description,
        "kind": channel.kind.value,
        "settings": dict(channel.settings),
    }


def _channel_columns(channel: AlertChannel) -> dict[str, Any]:
    return {
        "name": channel.name,
        "description": channel.description,
        "kind": channel.kind.value,
        "settings": orjson.dumps(dict(channel.settings)).decode(),
        "bound_secrets_only": channel.bound_secrets_only,
    }


def channel_from(row: Any) -> AlertChannel:
    """A row of the table as a channel."""
    return AlertChannel(
        name=row["name"],
        kind=ChannelKind(row["kind"]),
        settings=orjson.loads(row["settings_text"]),
        description=row["description"],
        bound_secrets_only=row["bound_secrets_only"],
        version=row["version"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )


def _route_columns(route: AlertRoute) -> dict[str, Any]:
    fields = route.as_fields()
    return {**fields, "quiet_hours": orjson.dumps(fields["quiet_hours"]).decode()}


def _route_from(row: Any) -> AlertRoute:
    seconds = row["repeat_every_seconds"]
    return AlertRoute(
        name=row["name"],
        description=row["description"],
        channels=tuple(row["channels"]),
        severity=Severity(row["severity"]),
        queues=tuple(row["queues"]),
        tags=tuple(row["tags"]),
        jobs=tuple(row["jobs"]),
        quiet_hours=check_quiet_hours(orjson.loads(row["quiet_hours_text"])),
        repeat_every=None if seconds is None else timedelta(seconds=seconds),
        version=row["version"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )
