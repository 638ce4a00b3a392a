"""Create, change, delete and test channels of alerts; create, change and delete the routes that lead to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from timeball.application.commands.requests import LOCAL, Actor, check_version
from timeball.domain.alert_messages import AlertMessage, channel_call, sample_alert
from timeball.domain.alert_routes import AlertDeliveryEvent, check_route
from timeball.domain.channels import AlertChannel, ChannelKind, check_channel, check_settings
from timeball.domain.values.json_text import to_json
from timeball.domain.values.redaction import refuse_redacted
from timeball.domain.values.text import check_description
from timeball.errors import InvalidInput, NotAllowed, NotFound, quote_text

if TYPE_CHECKING:
    from timeball.application.commands.requests import ContractChecks
    from timeball.domain.alert_routes import AlertDeliveryId, AlertRoute
    from timeball.domain.alerts import AlertTransition
    from timeball.store.db.pool import Connection
    from timeball.store.store import Store


class ChannelCommands:
    """Create, change, delete and test channels, and let them hear of alerts."""

    def __init__(self, store: Store, contracts: ContractChecks) -> None:
        self._store = store
        self._contracts = contracts

    async def announce(self, connection: Connection, transitions: Sequence[AlertTransition]) -> None:
        """Write what these transitions send where, in their transaction."""
        await self._store.alert_deliveries.announce(connection, transitions)

    async def create(
        self,
        name: str,
        kind: str,
        settings: Mapping[str, Any],
        description: str | None = None,
        actor: Actor = LOCAL,
    ) -> AlertChannel:
        """Create a channel; Conflict if its name is taken."""
        refuse_redacted(dict(settings), "settings")
        channel = check_channel(name, kind, settings, description)
        return await self._store.channels.add(self._written_by(channel, actor), actor.entry)

    async def update(
        self, name: str, fields: Mapping[str, Any], actor: Actor = LOCAL, expected_version: int | None = None
    ) -> AlertChannel:
        """Change the description or the settings of a channel. Settings replace all that are there; the kind stays."""

        def decide(present: AlertChannel) -> AlertChannel:
            check_version("channel", present.version, expected_version)
            _check_owner(present.kind, actor)
            changed = present
            if "description" in fields:
                about = fields["description"]
                described = None if about is None else check_description(about, "description")
                changed = replace(changed, description=described)
            if "settings" in fields:
                refuse_redacted(fields["settings"], "settings")
                settings = check_settings(present.kind, fields["settings"])
                # An actor that leaves the settings as they are is not their author.
                if settings != dict(present.settings):
                    changed = self._written_by(replace(changed, settings=settings), actor)
            return changed

        return await self._store.channels.change(name, decide, actor.entry)

    def _written_by(self, channel: AlertChannel, actor: Actor) -> AlertChannel:
        """A channel as this actor writes it; refused if the handler that sends its messages could never take them."""
        _check_owner(channel.kind, actor)
        now = self._store.env.clock.now()
        message = AlertMessage(
            delivery_id=self._store.env.new_id(),
            event=AlertDeliveryEvent.TEST,
            alert=sample_alert(channel.name, now),
            channel=channel.name,
            at=now,
        )
        call = channel_call(channel, message)
        try:
            self._contracts.check_payload(call.handler, to_json(dict(call.payload)), actor)
        except InvalidInput as error:
            raise _as_settings(channel.kind, error) from None
        return replace(channel, bound_secrets_only=bool(channel.secrets) and not actor.is_administrator)

    async def delete(self, name: str, actor: Actor = LOCAL, expected_version: int | None = None) -> None:
        """Delete a channel that no route leads to. Its deliveries are kept; those that wait are not sent."""

        def check(present: AlertChannel) -> None:
            check_version("channel", present.version, expected_version)
            _check_owner(present.kind, actor)

        await self._store.channels.delete(name, check, actor.entry)

    async def test(self, name: str, actor: Actor = LOCAL) -> AlertDeliveryId:
        """Send a test to a channel; returns its delivery, which a worker makes."""
        channel = await self._store.channels.find(name)
        if channel is None:
            raise NotFound("channel", quote_text(name))
        return await self._store.alert_deliveries.test(channel, actor.entry)


def _check_owner(kind: ChannelKind, actor: Actor) -> None:
    if kind.is_for_administrators and not actor.is_administrator:
        raise NotAllowed(
            f"only an administrator may write channels of the kind {kind}",
            hint="ask one to do it; an operator may test it as it is",
        )


def _as_settings(kind: ChannelKind, error: InvalidInput) -> InvalidInput:
    """An error of the payload that a channel would send, as one of its settings."""
    errors = [
        {**one, "pointer": "/settings" + one["pointer"].removeprefix("/payload")}
        for one in error.errors or ({"pointer": "", "detail": str(error)},)
    ]
    summary = "; ".join(one["detail"] for one in errors[:5])
    return InvalidInput(
        f"the settings do not fit the kind {kind}: {summary}", field=errors[0]["pointer"][1:], errors=errors
    )


class AlertRouteCommands:
    """Create, change and delete the routes of alerts."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def create(self, fields: Mapping[str, Any], actor: Actor = LOCAL) -> AlertRoute:
        """Create a route of these fields; Conflict if its name is taken."""
        return await self._store.channels.add_route(check_route(fields), actor.entry)

    async def update(
        self, name: str, fields: Mapping[str, Any], actor: Actor = LOCAL, expected_version: int | None = None
    ) -> AlertRoute:
        """Change the given fields of a route. What waits to be sent follows it: routes are asked again when it is due."""

        def decide(present: AlertRoute) -> AlertRoute:
            check_version("alert route", present.version, expected_version)
            return check_route({**present.as_fields(), **fields, "name": present.name})

        return await self._store.channels.change_route(name, decide, actor.entry)

    async def delete(self, name: str, actor: Actor = LOCAL, expected_version: int | None = None) -> None:
        """Delete a route."""

        def check(present: AlertRoute) -> None:
            check_version("alert route", present.version, expected_version)

        await self._store.channels.delete_route(name, check, actor.entry)
