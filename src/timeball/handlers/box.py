"""What comes in the box: the built-in handlers, made from their settings, and what they keep open."""

from __future__ import annotations

from timeball.clock import Clock
from timeball.domain.handler import Handler
from timeball.errors import InvalidInput, SettingsError
from timeball.handlers.egress import Egress, parse_opening
from timeball.handlers.http_webhook import Webhook, WebhookPayload
from timeball.handlers.secrets import Secrets
from timeball.handlers.testing import testing_handlers
from timeball.handlers.typed import typed_handler
from timeball.settings import HandlerSettings


class Box:
    """The built-in handlers of one process; nothing is opened before it is used."""

    def __init__(self, settings: HandlerSettings, clock: Clock) -> None:
        secrets = Secrets(settings.secrets_dir)
        self._webhook = Webhook(egress_of(settings), secrets, clock, signing_secrets=settings.webhook_signing_secrets)
        self.handlers: tuple[Handler, ...] = (
            typed_handler("http.webhook", self._webhook, WebhookPayload),
            *testing_handlers(),
        )

    async def close(self) -> None:
        """Close what handlers have opened."""
        await self._webhook.close()


def egress_of(settings: HandlerSettings) -> Egress:
    """The rules for addresses; SettingsError if the allow-list cannot be read."""
    try:
        openings = tuple(map(parse_opening, settings.webhook_allow))
    except InvalidInput as error:
        raise SettingsError([f"TIMEBALL_WEBHOOK_ALLOW: {error}"]) from None
    return Egress(openings, settings.webhook_ports, settings.webhook_http)
