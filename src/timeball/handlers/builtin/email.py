"""`email.send`: one message through the administrator's mail server, `TIMEBALL_SMTP_URL`."""

from __future__ import annotations

import binascii
import re
import socket
from base64 import b64decode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    field_validator,
    model_validator,
)

from timeball.current import current
from timeball.domain.values.json_text import MAX_PAYLOAD_BYTES
from timeball.env import Clock
from timeball.errors import SettingsError, TimeballError, quote_text
from timeball.handlers.binding import HandlerRefused, Payload
from timeball.handlers.builtin.secrets import SecretScope, SecretStore

if TYPE_CHECKING:
    from email.headerregistry import Address
    from email.message import EmailMessage

_SECONDS = 30.0
_MOST_RECIPIENTS = 100
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_BARE = re.compile(rf"[A-Za-z0-9!#$%&'*+/=?^_`{{|}}~.-]{{1,64}}@{_LABEL}(?:\.{_LABEL})*")
_NAMED = re.compile(rf"([^<>\"@,;:\\\x00-\x1f\x7f]{{1,100}}?) ?<({_BARE.pattern})>")


def _check_line(value: str) -> str:
    """Header injection begins with a line break; the other control characters have no business here either."""
    if any(character < " " or character in "\x7f\x85\u2028\u2029" for character in value):
        raise ValueError("contains a line break or another control character")
    # The library decodes it and writes what was inside as it is, line breaks too.
    if "?=" in value.partition("=?")[2]:
        raise ValueError("contains an encoded word (=?...?=), expected plain text")
    return value


def _check_address(value: str) -> str:
    _check_line(value)
    if len(value) > 400 or not (_BARE.fullmatch(value) or _NAMED.fullmatch(value)):
        raise ValueError("is not a mail address, expected someone@example.com or Some One <someone@example.com>")
    return value


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


MailAddress = Annotated[str, AfterValidator(_check_address)]
MailAddresses = Annotated[tuple[MailAddress, ...], BeforeValidator(_as_list)]
HeaderLine = Annotated[str, AfterValidator(_check_line)]


class Attachment(Payload):
    """A file beside the message."""

    filename: Annotated[HeaderLine, StringConstraints(min_length=1, max_length=200, pattern=r"^[^/\\]+$")]
    content: str = Field(max_length=MAX_PAYLOAD_BYTES, description="Its bytes as base64.")
    content_type: str = Field(
        default="application/octet-stream",
        pattern=r"^(application|audio|font|image|model|text|video)/[a-zA-Z0-9.+-]{1,100}$",
    )

    @field_validator("content")
    @classmethod
    def _check_content(cls, value: str) -> str:
        try:
            b64decode(value, validate=True)
        except binascii.Error:
            raise ValueError("is not base64") from None
        return value


class EmailPayload(Payload):
    """One message."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"to": ["ada@example.com"], "subject": "The report", "message": "It is done."}]}
    )

    to: MailAddresses = Field(min_length=1, examples=[["ada@example.com"]])
    cc: MailAddresses = ()
    bcc: MailAddresses = ()
    subject: Annotated[HeaderLine, StringConstraints(max_length=900)]
    message: str = Field(max_length=MAX_PAYLOAD_BYTES, description="The text.")
    html: str | None = Field(default=None, max_length=MAX_PAYLOAD_BYTES, description="The same as HTML.")
    reply_to: MailAddress | None = None
    attachments: tuple[Attachment, ...] = Field(default=(), max_length=20)

    @model_validator(mode="after")
    def _check_number(self) -> Self:
        if len(self.recipients()) > _MOST_RECIPIENTS:
            raise ValueError(f"there are more than {_MOST_RECIPIENTS} recipients")
        return self

    def recipients(self) -> list[str]:
        """The bare addresses the message goes to, each once."""
        return list(dict.fromkeys(_bare(address) for address in (*self.to, *self.cc, *self.bcc)))


class MailFailed(TimeballError):
    """The mail server could not be reached, or did not take the message for now."""

    code = "mail_failed"


class MailRejected(HandlerRefused):
    """The mail server does not take the message, or it may not be sent from here."""

    code = "mail_rejected"


@dataclass(frozen=True, slots=True, kw_only=True)
class MailServer:
    """How the mail server is reached."""

    host: str
    port: int
    has_tls: bool
    needs_starttls: bool
    user: str | None
    password: str | None
    sender: str
    recipients: tuple[str, ...] = ()

    def admits(self, address: str) -> bool:
        """Whether mail may go to an address: to any, unless there is a list of addresses and domains."""
        lowered = address.lower()
        return not self.recipients or lowered in self.recipients or lowered.rpartition("@")[2] in self.recipients


def read_mail_server(url: str, sender: str | None, recipients: Iterable[str] = ()) -> MailServer:
    """Read `TIMEBALL_SMTP_URL`; SettingsError if it cannot be used. It never repeats the URL: a password stands in it."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
        options = parse_qs(parts.query, strict_parsing=True) if parts.query else {}
    except ValueError:
        raise SettingsError(["TIMEBALL_SMTP_URL cannot be read, expected smtp://user:password@host:port"]) from None
    tls = options.get("tls", ["required"])[0]
    is_known = (
        tls in ("none", "required") and options.keys() <= {"tls"} and parts.path in ("", "/") and not parts.fragment
    )
    if parts.scheme not in ("smtp", "smtps") or not host or not is_known:
        raise SettingsError(
            ["TIMEBALL_SMTP_URL cannot be used, expected smtp:// or smtps://, a host, and at most ?tls=none"]
        )
    user = None if parts.username is None else unquote(parts.username)
    from_address = sender or user or ""
    if not (_BARE.fullmatch(from_address) or _NAMED.fullmatch(from_address)):
        unset = "TIMEBALL_SMTP_FROM is not set, and the user of TIMEBALL_SMTP_URL is not a mail address"
        found = unset if sender is None else f'TIMEBALL_SMTP_FROM is "{quote_text(sender)}"'
        raise SettingsError([f"{found}, expected the address of the sender, as in jobs@example.com"])
    has_tls = parts.scheme == "smtps"
    return MailServer(
        host=host,
        port=port or (465 if has_tls else 587),
        has_tls=has_tls,
        needs_starttls=not has_tls and tls == "required" and (host not in _LOOPBACK or "tls" in options),
        user=user,
        password=None if parts.password is None else unquote(parts.password),
        sender=from_address,
        recipients=tuple(entry.lower().removeprefix("@") for entry in recipients),
    )


class Email:
    """Send one mail through the administrator's mail server."""

    def __init__(self, server: MailServer | None, clock: Clock) -> None:
        self._server = server
        self._clock = clock

    async def __call__(self, payload: EmailPayload) -> dict[str, Any]:
        server = self._server
        if server is None:
            raise MailRejected("this worker has no mail server: TIMEBALL_SMTP_URL is not set")
        recipients = payload.recipients()
        strangers = [address for address in recipients if not server.admits(address)]
        if strangers:
            raise MailRejected(f"mail may not go to {', '.join(strangers[:5])}: TIMEBALL_SMTP_RECIPIENTS")
        message = _compose(payload, server.sender, self._clock)
        refused = await _deliver(server, message, recipients)
        for address, reason in refused.items():
            current.log(f"{address} was refused: {reason}", level="warning")
        return {"message_id": message["Message-ID"], "accepted": len(recipients) - len(refused), "refused": refused}


async def _deliver(server: MailServer, message: EmailMessage, recipients: list[str]) -> dict[str, str]:
    """Send the message; returns the refused recipients with the reasons, if at least one other was accepted."""
    # Here and not above: a worker that sends no mail has no use for it.
    import aiosmtplib

    disclosure = SecretScope(SecretStore(environment={}))
    disclosure.hide(server.password or "")
    where = f"{server.host}:{server.port}"
    try:
        refused, _ = await aiosmtplib.send(
            message,
            sender=_bare(server.sender),
            recipients=recipients,
            hostname=server.host,
            port=server.port,
            use_tls=server.has_tls,
            start_tls=server.needs_starttls,
            username=server.user if server.password is not None else None,
            password=server.password,
            local_hostname=socket.gethostname(),
            timeout=_SECONDS,
        )
    except aiosmtplib.SMTPRecipientsRefused as error:
        said = {one.recipient: f"{one.code} {one.message}" for one in error.recipients}
        is_for_good = all(one.code >= 500 for one in error.recipients)
        raise _failure(f"{where} refuses all recipients: {_told(said)}", disclosure, is_for_good=is_for_good) from None
    except aiosmtplib.SMTPResponseException as error:
        said_so = f"{where} says {error.code} {error.message}"
        raise _failure(said_so, disclosure, is_for_good=error.code >= 500) from None
    except (aiosmtplib.SMTPException, OSError) as error:
        is_wrong = not isinstance(error, OSError)
        raise _failure(f"{where}: {type(error).__name__}: {error}", disclosure, is_for_good=is_wrong) from None
    return {address: disclosure.redact(f"{reply.code} {reply.message}")[:500] for address, reply in refused.items()}


def _failure(text: str, disclosure: SecretScope, *, is_for_good: bool) -> TimeballError:
    said = disclosure.redact(" ".join(text.split()))[:2_000]
    return MailRejected(said) if is_for_good else MailFailed(said)


def _told(refused: Mapping[str, str]) -> str:
    return "; ".join(f"{address}: {reason}" for address, reason in list(refused.items())[:5])


def _compose(payload: EmailPayload, sender: str, clock: Clock) -> EmailMessage:
    # Here and not above: most workers never send a mail, and have no memory for how one is written.
    from email.message import EmailMessage
    from email.policy import SMTP

    message = EmailMessage(policy=SMTP)
    message["From"] = _header(sender)
    message["To"] = [_header(address) for address in payload.to]
    if payload.cc:
        message["Cc"] = [_header(address) for address in payload.cc]
    if payload.reply_to is not None:
        message["Reply-To"] = _header(payload.reply_to)
    message["Subject"] = payload.subject
    message["Date"] = clock.now()
    message["Message-ID"] = f"<{current.execution_id}@{_bare(sender).rpartition('@')[2]}>"
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(payload.message)
    if payload.html is not None:
        message.add_alternative(payload.html, subtype="html")
    for attachment in payload.attachments:
        main, _, sub = attachment.content_type.partition("/")
        message.add_attachment(b64decode(attachment.content), maintype=main, subtype=sub, filename=attachment.filename)
    return message


def _header(address: str) -> Address:
    from email.headerregistry import Address

    named = _NAMED.fullmatch(address)
    return Address(named[1] if named else "", addr_spec=_bare(address))


def _bare(address: str) -> str:
    named = _NAMED.fullmatch(address)
    return named[2] if named else address
