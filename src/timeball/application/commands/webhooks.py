"""Create, change, rotate, test and delete outgoing webhooks, and send deliveries again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import orjson

from timeball.application.commands.requests import LOCAL, Actor, check_version, new_ids
from timeball.domain.change_event import EventFilter
from timeball.domain.values.field_errors import unexpected_value
from timeball.domain.values.ids import IdempotentRequest
from timeball.domain.values.redaction import refuse_redacted
from timeball.domain.values.wording import format_duration
from timeball.domain.webhook import (
    LONGEST_ROTATION,
    MAX_URL_LENGTH,
    DeliveryId,
    WebhookDelivery,
    WebhookEndpoint,
    WebhookId,
    WebhookSpec,
    WebhookState,
)
from timeball.errors import InvalidInput
from timeball.handlers.signatures import new_signing_secret, parse_signing_secret

if TYPE_CHECKING:
    from timeball.application.commands.requests import ContractChecks
    from timeball.env import Env
    from timeball.store.store import Store

KEPT_AFTER_ROTATION = timedelta(hours=24)
_FILTERS = frozenset(line.name for line in fields(EventFilter))
_SENT_BY = "http.webhook"


@dataclass(frozen=True, slots=True)
class NewSecret:
    """A webhook, and the secret that it signs with from now on; it cannot be read again."""

    webhook: WebhookEndpoint
    secret: str

    def __repr__(self) -> str:
        return f"NewSecret({self.webhook!r})"


class WebhookCommands:
    """Create, change and delete outgoing webhooks."""

    def __init__(self, store: Store, env: Env, contracts: ContractChecks) -> None:
        self._store = store
        self._env = env
        self._contracts = contracts

    async def create(
        self,
        spec: WebhookSpec,
        secret: str | None = None,
        actor: Actor = LOCAL,
        idempotency: IdempotentRequest | None = None,
    ) -> NewSecret:
        """Create a webhook, which gets what happens from now on; with a *secret* of the caller, or a fresh one."""
        self._check(spec)
        chosen = _secret(secret)
        webhook_id = WebhookId(next(new_ids(self._env, 1, idempotency)))
        webhook = await self._store.webhooks.add(webhook_id, spec, chosen, actor.created_by, actor.entry)
        return NewSecret(webhook, chosen)

    async def update(
        self,
        webhook_id: WebhookId,
        changes: Mapping[str, Any],
        actor: Actor = LOCAL,
        expected_version: int | None = None,
    ) -> WebhookEndpoint:
        """Change the given fields: of `WebhookSpec`, of its filter, and *state*. One that is enabled gets what happens from then on."""

        def decide(present: WebhookEndpoint) -> WebhookEndpoint:
            check_version("webhook", present.version, expected_version)
            chosen = {name: value for name, value in changes.items() if name in _FILTERS}
            about = {name: value for name, value in changes.items() if name not in _FILTERS and name != "state"}
            spec = replace(present.spec, filter=replace(present.spec.filter, **chosen), **about)
            self._check(spec)
            state = WebhookState(changes.get("state", present.state))
            if state is present.state:
                return replace(present, spec=spec)
            reason = None if state is WebhookState.ACTIVE else actor.reason or f"disabled by {actor.name}"
            return replace(present, spec=spec, state=state, disabled_reason=reason)

        return await self._store.webhooks.change(webhook_id, decide, actor.entry)

    async def rotate(
        self,
        webhook_id: WebhookId,
        secret: str | None = None,
        keep: timedelta = KEPT_AFTER_ROTATION,
        actor: Actor = LOCAL,
        expected_version: int | None = None,
    ) -> NewSecret:
        """Sign by a new secret. For *keep* messages are signed by the present one, too, so that the receiver can be changed meanwhile."""
        if not timedelta(0) <= keep <= LONGEST_ROTATION:
            raise unexpected_value("keep", format_duration(keep), f"0s to {format_duration(LONGEST_ROTATION)}")
        chosen = _secret(secret)
        webhook = await self._store.webhooks.rotate(
            webhook_id, chosen, keep, _version_check(expected_version), actor.entry
        )
        return NewSecret(webhook, chosen)

    async def delete(self, webhook_id: WebhookId, actor: Actor = LOCAL, expected_version: int | None = None) -> None:
        """Delete a webhook with its deliveries; what waits is not sent."""
        await self._store.webhooks.delete(webhook_id, _version_check(expected_version), actor.entry)

    async def test(self, webhook_id: WebhookId, actor: Actor = LOCAL) -> WebhookDelivery:
        """Send a webhook an event of type `webhook.test`, once, also if it is disabled."""
        return await self._store.webhooks.add_trial(webhook_id, actor.entry)

    async def redeliver(self, delivery_id: DeliveryId, actor: Actor = LOCAL) -> WebhookDelivery:
        """Send a delivery again, with the same id and body; or now, if it waits for its next attempt."""
        return await self._store.webhooks.redeliver(delivery_id, actor.entry)

    def _check(self, spec: WebhookSpec) -> None:
        spec.check()
        refuse_redacted(spec.url, "url")
        if len(spec.url) > MAX_URL_LENGTH:
            raise unexpected_value("url", spec.url, f"at most {MAX_URL_LENGTH} characters")
        # By the rules of the handler: what it could never send is refused here.
        try:
            self._contracts.check_payload(_SENT_BY, orjson.dumps({"url": spec.url}).decode(), LOCAL)
        except InvalidInput as error:
            raise InvalidInput(str(error), field="url", hint=error.hint) from None


def _version_check(expected: int | None) -> Callable[[WebhookEndpoint], None]:
    return lambda present: check_version("webhook", present.version, expected)


def _secret(secret: str | None) -> str:
    if secret is None:
        return new_signing_secret()
    try:
        parse_signing_secret(secret)
    except ValueError as error:
        raise InvalidInput(f"secret {error}", hint="leave it out to get a fresh one", field="secret") from None
    return secret
