"""Every handler that can be scheduled: built in, or of an installed package; with its schema and documentation.

An installed package names its handlers as entry points of the group `timeball.handlers`:

    [project.entry-points."timeball.handlers"]
    "acme.greet" = "acme_handlers:greet"

The name is the handler's name; it leads to a function, as one would declare it with `@tb.handler`, or to a `Handler`.
The built-in handlers are made from their settings, and keep their connections open.

A payload is checked here when a job is created or changed. The payload of a handler that is not known here is not checked: a worker may
have that handler.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from timeball.config.settings import HandlerSettings
from timeball.domain.handler import Handler, HandlerContract, HandlerOptions, example_of, first_sentence
from timeball.env import Clock, Env
from timeball.errors import InvalidInput, SettingsError
from timeball.handlers.binding import ModelBinder, typed_handler
from timeball.handlers.builtin.alert_delivery import DeliveryLog
from timeball.handlers.builtin.egress import EgressPolicy, parse_egress_rule
from timeball.handlers.builtin.files import FilePayload, FileWrite, FolderCreate, FolderPayload
from timeball.handlers.builtin.path_sandbox import PathSandbox
from timeball.handlers.builtin.secrets import SecretStore, SecretUseRecorder, is_secret_name
from timeball.handlers.builtin.system import Cleanup, CleanupPayload, HistoryTrimmer, testing_handlers
from timeball.handlers.builtin.webhook import Webhook, WebhookPayload, host_of
from timeball.handlers.registry import Registry, make_handler

if TYPE_CHECKING:
    from timeball.domain.alert_messages import ChannelCall
    from timeball.domain.alert_routes import AlertDeliveryId
    from timeball.domain.webhook import WebhookAnswer
    from timeball.handlers.builtin.email import MailServer
    from timeball.handlers.builtin.queue_publish import QueuePublish
    from timeball.handlers.builtin.shell import ShellRules

ENTRY_POINT_GROUP = "timeball.handlers"


def installed_handlers(found: Iterable[EntryPoint] | None = None) -> tuple[Handler, ...]:
    """The handlers of all installed packages. One that cannot be loaded stops the start: its jobs would wait for ever."""
    points = entry_points(group=ENTRY_POINT_GROUP) if found is None else found
    return tuple(_load(point) for point in sorted(points, key=lambda point: point.name))


def installed_names() -> tuple[str, ...]:
    """The names under which installed packages bring handlers along; nothing is loaded."""
    return tuple(sorted(entry_points(group=ENTRY_POINT_GROUP).names))


def installed_handler(name: str) -> Handler:
    """The installed handler of that name; InvalidInput if its package is broken, or there is none."""
    points = list(entry_points(group=ENTRY_POINT_GROUP, name=name))
    if not points:
        raise InvalidInput(f"no installed package brings a handler {name}", field="handler")
    return _load(points[0])


def _load(point: EntryPoint) -> Handler:
    try:
        loaded: Any = point.load()
    except (Exception, SystemExit) as error:
        # SystemExit too: a package that wants to end the process ends only its own part in it.
        raise InvalidInput(
            f"handler {point.name} of {_package(point)} cannot be loaded from {point.value}: {error!r}",
            hint="repair or uninstall the package",
        ) from error
    if isinstance(loaded, Handler):
        return replace(loaded, name=point.name)
    if not callable(loaded):
        raise InvalidInput(
            f"handler {point.name} of {_package(point)} is {type(loaded).__name__}, expected a function or a Handler"
        )
    return make_handler(loaded, name=point.name)


def _package(point: EntryPoint) -> str:
    return "an unknown package" if point.dist is None else f"{point.dist.name} {point.dist.version}"


_LONGEST_DOC = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerDescription:
    """A handler as people choose it: a sentence, the JSON Schema of its payload, an example, and how it runs."""

    name: str
    description: str
    run_style: str
    payload_schema: dict[str, Any]
    example: Any
    is_enabled_here: bool


class HandlerCollection(Protocol):
    """Handlers, by name and one after the other."""

    def find(self, name: str) -> Handler | None: ...

    def __iter__(self) -> Iterator[Handler]: ...


class HandlerCatalogue:
    """The handlers that this process knows: the built-in ones (*known*), of which *enabled* may run here, and the installed ones."""

    def __init__(self, known: HandlerCollection, enabled: Iterable[str]) -> None:
        self._known = known
        self._enabled = frozenset(enabled)
        self._installed: dict[str, Handler | None] = {}

    def find(self, name: str) -> Handler | None:
        """The handler of that name, if it is known here."""
        return self._known.find(name) or self._find_installed(name)

    def _find_installed(self, name: str) -> Handler | None:
        if name not in self._installed and name in self._installed_names:
            try:
                self._installed[name] = installed_handler(name)
            except InvalidInput:
                # A package that is broken here may be whole on the workers.
                self._installed[name] = None
        return self._installed.get(name)

    @cached_property
    def _installed_names(self) -> frozenset[str]:
        # Read once: it opens a file of every installed package, ten milliseconds that each enqueue would pay.
        return frozenset(installed_names())

    def knows(self, name: str) -> bool:
        """Whether it is built in or of an installed package."""
        return self.find(name) is not None

    def check(self, schema: Mapping[str, Any], name: str, payload: str) -> None:
        """Raises `PayloadMismatch` for a payload that does not fit the published schema of a handler."""
        from timeball.handlers.payloads import check_payload  # a program that only enqueues needs none

        check_payload(schema, name, payload)

    def checker(self, name: str) -> Callable[[str], object] | None:
        """A function that refuses payloads which this handler could never accept."""
        handler = self.find(name)
        binder = None if handler is None else handler.binder
        return binder.check_stored if isinstance(binder, ModelBinder) else None

    def entries(self) -> list[HandlerDescription]:
        """All handlers, by name."""
        installed = filter(None, (self._find_installed(name) for name in self._installed_names))
        handlers = sorted([*self._known, *installed], key=lambda handler: handler.name)
        return [entry_of(handler, is_enabled=self._is_enabled(handler.name)) for handler in handlers]

    def _is_enabled(self, name: str) -> bool:
        return name in self._enabled or self._known.find(name) is None


def entry_of(handler: Handler, *, is_enabled: bool = True) -> HandlerDescription:
    """A handler as the catalogue shows it."""
    schema = handler.binder.schema()
    return HandlerDescription(
        name=handler.name,
        description=_description(handler),
        run_style=handler.style.value,
        payload_schema=schema,
        example=example_of(schema),
        is_enabled_here=is_enabled,
    )


def _description(handler: Handler) -> str:
    return first_sentence(_doc(handler))


def _doc(handler: Handler) -> str:
    function: Any = handler.function
    return inspect.getdoc(function if inspect.isroutine(function) else type(function)) or ""


def contract_of(handler: Handler) -> HandlerContract:
    """What a worker publishes of a handler."""
    usual, given = inherited_options(HandlerOptions()), inherited_options(handler.options)
    return HandlerContract(
        name=handler.name,
        schema=handler.binder.schema(),
        options={name: value for name, value in given.items() if value != usual[name]},
        doc=_doc(handler)[:_LONGEST_DOC].replace("\0", ""),
        run_style=handler.style.value,
    )


def inherited_options(options: HandlerOptions) -> dict[str, Any]:
    """What a handler gives to its jobs, as JSON."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in options.job_fields().items()}


class ChannelDeliveries(DeliveryLog, SecretUseRecorder, Protocol):
    """The deliveries of alerts, and the record of the secrets that channels use."""


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
        deliveries: Callable[[], ChannelDeliveries] | None = None,
    ) -> None:
        self._settings = settings
        self._deliveries = deliveries
        self._channel_webhook: Webhook | None = None
        self._database_uid = database_uid
        self._clock = clock
        self._secrets = SecretStore(settings.secrets_dir, uses=uses)
        if problems := self._secrets.problems():
            raise SettingsError(problems)
        self._root = PathSandbox(settings.files_root or data_dir / "files")
        self._webhook = self._make_webhook(self._secrets)
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
            "alert.deliver": self._make_alert_delivery,
        }
        is_set_up = {
            "shell.command": settings.shell_enabled,
            "email.send": settings.smtp_url is not None,
            "queue.publish": bool(settings.queue_allow),
            "system.cleanup": history is not None,
            "alert.deliver": deliveries is not None,
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

        return typed_handler("shell.command", Shell(self._shell_rules(), self._root, self._secrets), ShellPayload)

    def _shell_rules(self) -> ShellRules:
        return replace(shell_rules_of(self._settings), database_uid=self._database_uid)

    def _make_email(self) -> Handler:
        from timeball.handlers.builtin.email import Email, EmailPayload

        return typed_handler("email.send", Email(mail_server_of(self._settings), self._clock), EmailPayload)

    def _make_publish(self) -> Handler:
        from timeball.handlers.builtin.queue_publish import PublishPayload, QueuePublish, read_allowed

        self._publish = QueuePublish(read_allowed(self._settings.queue_allow), self._secrets)
        return typed_handler("queue.publish", self._publish, PublishPayload)

    async def post(self, url: str, headers: Mapping[str, str], body: bytes, timeout: timedelta) -> WebhookAnswer:
        """Send a message of an outgoing webhook, by the same rules for addresses as the handler `http.webhook`."""
        return await self._webhook.post(url, headers, body, timeout)

    def _make_alert_delivery(self) -> Handler:
        from timeball.handlers.builtin.alert_delivery import AlertDeliveryPayload, AlertSender, channel_of

        sender = AlertSender(self._deliveries, self._send_to_channel, self._settings.public_url)
        return typed_handler("alert.deliver", sender, AlertDeliveryPayload, target=channel_of)

    async def deliver_alert(self, delivery_id: AlertDeliveryId, attempt: int, env: Env) -> None:
        """Send a message of an alert as a worker would, in a process that has claimed nothing."""
        from timeball.handlers.builtin.alert_delivery import deliver_unclaimed

        await deliver_unclaimed(self._get("alert.deliver").function, delivery_id, attempt, env)

    async def _send_to_channel(self, call: ChannelCall, message_id: str) -> Mapping[str, Any]:
        """Send a message by the handler it is for. Its secrets are used by the channel, not by the job that delivers it."""
        from timeball.handlers.builtin.alert_delivery import ChannelUnavailable

        deliveries = None if self._deliveries is None else self._deliveries()
        secrets = SecretStore(self._settings.secrets_dir, uses=deliveries)
        match call.handler:
            case "email.send":
                from timeball.handlers.builtin.email import EmailPayload

                if self._settings.smtp_url is None:
                    raise ChannelUnavailable("this worker has no mail server: TIMEBALL_SMTP_URL is not set")
                mail: Mapping[str, Any] = await self._get("email.send").function(
                    EmailPayload.model_validate(call.payload)
                )
                return mail
            case "shell.command":
                from timeball.handlers.builtin.shell import Shell, ShellPayload

                if not self._settings.shell_enabled:
                    raise ChannelUnavailable("this worker runs no commands: TIMEBALL_SHELL_ENABLED is not set")
                shell = Shell(self._shell_rules(), self._root, secrets)
                return await shell.run(ShellPayload.model_validate(call.payload), call.variables)
            case _:
                if self._channel_webhook is None:
                    self._channel_webhook = self._make_webhook(secrets)
                return await self._channel_webhook.send(WebhookPayload.model_validate(call.payload), message_id)

    def _make_webhook(self, secrets: SecretStore) -> Webhook:
        settings = self._settings
        return Webhook(egress_of(settings), secrets, self._clock, signing_secrets=signing_secrets_of(settings))

    async def close(self) -> None:
        """Close what handlers have opened."""
        await self._webhook.close()
        if self._channel_webhook is not None:
            await self._channel_webhook.close()
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
