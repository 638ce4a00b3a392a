"""What comes in the box: the built-in handlers, made from their settings, and what they keep open."""

from __future__ import annotations

from pathlib import Path

from timeball.clock import Clock
from timeball.domain.handler import Handler
from timeball.errors import InvalidInput, SettingsError
from timeball.handlers.cleanup import Cleanup, CleanupPayload, OldHistory
from timeball.handlers.egress import Egress, parse_opening
from timeball.handlers.email_send import Email, EmailPayload, MailServer, read_mail_server
from timeball.handlers.files import FilePayload, FileWrite, FolderCreate, FolderPayload
from timeball.handlers.http_webhook import Webhook, WebhookPayload, host_of
from timeball.handlers.queue_publish import Publish, PublishPayload, read_allowed
from timeball.handlers.registry import Registry
from timeball.handlers.rooted import Root
from timeball.handlers.secrets import Secrets
from timeball.handlers.shell_command import Shell, ShellPayload, ShellRules
from timeball.handlers.testing import testing_handlers
from timeball.handlers.typed import typed_handler
from timeball.settings import HandlerSettings

_MEGABYTE = 1024**2


class Box:
    """The built-in handlers of one process; nothing is opened before it is used.

    *known* are all of them, for checking payloads and for the catalogue; *handlers* are those this process is set up to run.
    The others are left to workers that are: one without `TIMEBALL_SHELL_ENABLED` never claims a command, one without
    `TIMEBALL_SMTP_URL` no mail.
    """

    def __init__(
        self, settings: HandlerSettings, clock: Clock, data_dir: Path, history: OldHistory | None = None
    ) -> None:
        secrets = Secrets(settings.secrets_dir)
        root = Root(settings.files_root or data_dir / "files")
        self._webhook = Webhook(egress_of(settings), secrets, clock, signing_secrets=settings.webhook_signing_secrets)
        shell = typed_handler("shell.command", Shell(shell_rules_of(settings), root, secrets), ShellPayload)
        mail_server = mail_server_of(settings)
        email = typed_handler("email.send", Email(mail_server, clock), EmailPayload)
        allowed_queues = read_allowed(settings.queue_allow)
        self._publish = Publish(allowed_queues, secrets)
        publish = typed_handler("queue.publish", self._publish, PublishPayload)
        cleanup = typed_handler("system.cleanup", Cleanup(history), CleanupPayload)
        always = (
            typed_handler("http.webhook", self._webhook, WebhookPayload, target=host_of),
            typed_handler("folder.create", FolderCreate(root), FolderPayload),
            typed_handler("file.write", FileWrite(root), FilePayload),
            *testing_handlers(),
        )
        self.known = Registry([*always, shell, email, publish, cleanup])
        configured = {
            shell: settings.shell_enabled,
            email: mail_server is not None,
            publish: bool(allowed_queues),
            cleanup: history is not None,
        }
        self.handlers: tuple[Handler, ...] = (*always, *(handler for handler, is_on in configured.items() if is_on))

    async def close(self) -> None:
        """Close what handlers have opened."""
        await self._webhook.close()
        await self._publish.close()


def egress_of(settings: HandlerSettings) -> Egress:
    """The rules for addresses; SettingsError if the allow-list cannot be read."""
    try:
        openings = tuple(map(parse_opening, settings.webhook_allow))
    except InvalidInput as error:
        raise SettingsError([f"TIMEBALL_WEBHOOK_ALLOW: {error}"]) from None
    return Egress(openings, settings.webhook_ports, settings.webhook_http)


def shell_rules_of(settings: HandlerSettings) -> ShellRules:
    """What commands may do; nothing at all unless they are enabled."""
    return ShellRules(
        programs=settings.shell_programs if settings.shell_enabled else (),
        user=settings.shell_user,
        cpu_seconds=settings.shell_cpu_seconds,
        memory_bytes=settings.shell_memory_mb * _MEGABYTE,
        file_bytes=settings.shell_file_mb * _MEGABYTE,
        output_bytes=settings.shell_output_mb * _MEGABYTE,
    )


def mail_server_of(settings: HandlerSettings) -> MailServer | None:
    """The mail server, if there is one."""
    url = settings.smtp_url
    return (
        None if url is None else read_mail_server(url.get_secret_value(), settings.smtp_from, settings.smtp_recipients)
    )
