"""The built-in handlers, made from their settings, and the connections they keep open."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from timeball.clock import Clock
from timeball.config.settings import HandlerSettings
from timeball.domain.handler import Handler
from timeball.errors import InvalidInput, SettingsError
from timeball.handlers.binding import typed_handler
from timeball.handlers.builtin.egress import EgressPolicy, parse_egress_rule
from timeball.handlers.builtin.files import FilePayload, FileWrite, FolderCreate, FolderPayload
from timeball.handlers.builtin.path_sandbox import PathSandbox
from timeball.handlers.builtin.secrets import SecretStore, SecretUseRecorder, is_secret_name
from timeball.handlers.builtin.system import Cleanup, CleanupPayload, HistoryTrimmer, testing_handlers
from timeball.handlers.builtin.webhook import Webhook, WebhookPayload, host_of
from timeball.handlers.registry import Registry

if TYPE_CHECKING:
    from timeball.handlers.builtin.email import MailServer
    from timeball.handlers.builtin.queue_publish import QueuePublish
    from timeball.handlers.builtin.shell import ShellRules

_MEGABYTE = 1024**2


class BuiltinHandlers:
    """The built-in handlers of one process; nothing is opened before it is used.

    It knows all of them, for checking payloads and for the catalogue; *handlers* are those this process is set up to run.
    The others are left to workers that are: one without `TIMEBALL_SHELL_ENABLED` never claims a command, one without
    `TIMEBALL_SMTP_URL` no mail. A handler that has to be set up is imported when it is, or when it is asked for.
    """

    def __init__(
        self,
        settings: HandlerSettings,
        clock: Clock,
        data_dir: Path,
        history: HistoryTrimmer | None = None,
        database_uid: int | None = None,
        uses: SecretUseRecorder | None = None,
    ) -> None:
        self._settings = settings
        self._database_uid = database_uid
        self._clock = clock
        self._secrets = SecretStore(settings.secrets_dir, uses=uses)
        if problems := self._secrets.problems():
            raise SettingsError(problems)
        self._root = PathSandbox(settings.files_root or data_dir / "files")
        self._webhook = Webhook(egress_of(settings), self._secrets, clock, signing_secrets=signing_secrets_of(settings))
        self._publish: QueuePublish | None = None
        always = (
            typed_handler("http.webhook", self._webhook, WebhookPayload, target=host_of),
            typed_handler("folder.create", FolderCreate(self._root), FolderPayload),
            typed_handler("file.write", FileWrite(self._root), FilePayload),
            *testing_handlers(),
        )
        self._made = {handler.name: handler for handler in always}
        self._makers: dict[str, Callable[[], Handler]] = {
            "shell.command": self._make_shell,
            "email.send": self._make_email,
            "queue.publish": self._make_publish,
            "system.cleanup": lambda: typed_handler("system.cleanup", Cleanup(history), CleanupPayload),
        }
        is_set_up = {
            "shell.command": settings.shell_enabled,
            "email.send": settings.smtp_url is not None,
            "queue.publish": bool(settings.queue_allow),
            "system.cleanup": history is not None,
        }
        configured = (self._get(name) for name, is_on in is_set_up.items() if is_on)
        self.handlers: tuple[Handler, ...] = (*always, *configured)

    def find(self, name: str) -> Handler | None:
        """The handler of that name, if it is in the box."""
        return self._get(name) if name in self._made or name in self._makers else None

    def __iter__(self) -> Iterator[Handler]:
        return map(self._get, list(dict.fromkeys((*self._made, *self._makers))))

    @property
    def known(self) -> Registry:
        """All of them."""
        return Registry(self)

    def _get(self, name: str) -> Handler:
        if name not in self._made:
            self._made[name] = self._makers[name]()
        return self._made[name]

    def _make_shell(self) -> Handler:
        from timeball.handlers.builtin.shell import Shell, ShellPayload

        rules = replace(shell_rules_of(self._settings), database_uid=self._database_uid)
        shell = Shell(rules, self._root, self._secrets)
        return typed_handler("shell.command", shell, ShellPayload)

    def _make_email(self) -> Handler:
        from timeball.handlers.builtin.email import Email, EmailPayload

        return typed_handler("email.send", Email(mail_server_of(self._settings), self._clock), EmailPayload)

    def _make_publish(self) -> Handler:
        from timeball.handlers.builtin.queue_publish import PublishPayload, QueuePublish, read_allowed

        self._publish = QueuePublish(read_allowed(self._settings.queue_allow), self._secrets)
        return typed_handler("queue.publish", self._publish, PublishPayload)

    async def close(self) -> None:
        """Close what handlers have opened."""
        await self._webhook.close()
        if self._publish is not None:
            await self._publish.close()


def egress_of(settings: HandlerSettings) -> EgressPolicy:
    """The rules for addresses; SettingsError if the allow-list cannot be read."""
    try:
        openings = tuple(map(parse_egress_rule, settings.webhook_allow))
    except InvalidInput as error:
        raise SettingsError([f"TIMEBALL_WEBHOOK_ALLOW: {error}"]) from None
    return EgressPolicy(openings, settings.webhook_ports, settings.webhook_http)


def signing_secrets_of(settings: HandlerSettings) -> tuple[str, ...]:
    """The names of the secrets that sign webhooks; SettingsError if one is not a name, which may be the secret itself."""
    problems = [
        f"item {number} of TIMEBALL_WEBHOOK_SIGNING_SECRETS is not the name of a secret, expected capital letters, digits "
        "and _, as in BILLING; what it stands for is set as TIMEBALL_SECRET_BILLING"
        for number, name in enumerate(settings.webhook_signing_secrets, start=1)
        if not is_secret_name(name)
    ]
    if problems:
        raise SettingsError(problems)
    return settings.webhook_signing_secrets


def shell_rules_of(settings: HandlerSettings) -> ShellRules:
    """What commands may do; nothing at all unless they are enabled."""
    from timeball.handlers.builtin.shell import ShellRules

    return ShellRules(
        programs=settings.shell_programs if settings.shell_enabled else (),
        variables=settings.shell_env,
        user=settings.shell_user,
        cpu_seconds=settings.shell_cpu_seconds,
        memory_bytes=settings.shell_memory_mb * _MEGABYTE,
        file_bytes=settings.shell_file_mb * _MEGABYTE,
        output_bytes=settings.shell_output_mb * _MEGABYTE,
    )


def mail_server_of(settings: HandlerSettings) -> MailServer | None:
    """The mail server, if there is one."""
    if settings.smtp_url is None:
        return None
    from timeball.handlers.builtin.email import read_mail_server

    return read_mail_server(settings.smtp_url.get_secret_value(), settings.smtp_from, settings.smtp_recipients)
