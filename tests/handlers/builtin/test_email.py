from __future__ import annotations

import asyncio
import email
import json
import socket
import ssl
import subprocess
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import EmailMessage
from email.policy import default
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, Envelope, LoginPassword

from tests.handlers.builtin.support import attempt_at, check_payload, die, fail, succeed
from tests.support.broker_servers import free_port
from timeball.config.settings import HandlerSettings, load_settings
from timeball.domain.handler import Handler, PayloadMismatch
from timeball.env import SystemClock
from timeball.errors import SettingsError
from timeball.handlers.binding import typed_handler
from timeball.handlers.builtin.email import Email, EmailPayload, read_mail_server
from timeball.handlers.catalogue import BuiltinHandlers
from timeball.handlers.registry import Registry

MESSAGE = {"to": "ada@example.com", "subject": "Hello", "message": "How are you?"}


class PostOffice:
    """A mail server that keeps what it takes, and refuses what it is told to."""

    def __init__(self) -> None:
        self.envelopes: list[Envelope] = []
        self.refusals: dict[str, str] = {}
        self.data_reply = "250 OK"
        self.logins: list[LoginPassword] = []

    async def handle_RCPT(self, _server, _session, envelope, address, _options):  # noqa: N802
        if address in self.refusals:
            return self.refusals[address]
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, _server, _session, envelope):  # noqa: N802
        if self.data_reply.startswith("2"):
            self.envelopes.append(envelope)
        return self.data_reply

    def authenticate(self, _server, _session, _envelope, _mechanism, login):
        self.logins.append(login)
        return AuthResult(success=login.password == b"s3cret-canary", handled=False)

    def letter(self) -> EmailMessage:
        (envelope,) = self.envelopes
        return email.message_from_bytes(envelope.content, policy=default)


@contextmanager
def running(office: PostOffice, **options: Any) -> Iterator[int]:
    port = free_port()
    controller = Controller(office, hostname="127.0.0.1", port=port, **options)
    controller.start()
    try:
        yield port
    finally:
        controller.stop()


@pytest.fixture
def office() -> PostOffice:
    return PostOffice()


def mail(url: str, sender: str | None = "Timeball <timeball@example.com>", recipients: tuple[str, ...] = ()) -> Handler:
    return typed_handler("email.send", Email(read_mail_server(url, sender, recipients), SystemClock()), EmailPayload)


@pytest.fixture
def send(office: PostOffice) -> Iterator[Handler]:
    with running(office) as port:
        yield mail(f"smtp://127.0.0.1:{port}")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for localhost, signed by itself, and its key in one file."""
    folder = tmp_path_factory.mktemp("tls")
    both = folder / "both.pem"
    key, made = folder / "key.pem", folder / "certificate.pem"
    subject = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1")
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-keyout",
            key,
            "-out",
            made,
            "-days",
            "2",
            *subject,
        ],
        check=True,
        capture_output=True,
    )
    both.write_text(key.read_text() + made.read_text())
    return both


def tls(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


# what it does


async def test_a_message_is_sent_with_all_its_parts(send, office):
    result = await succeed(
        send,
        {
            "to": ["Ada Lovelace <ada@example.com>", "bob@example.com"],
            "cc": "carl@example.com",
            "bcc": ["dora@example.com", "ada@example.com"],
            "subject": "Grüße ✓",
            "message": "Guten Tag,\n.\nein Punkt",
            "html": "<p>Guten Tag</p>",
            "reply_to": "desk@example.com",
            "attachments": [
                {"filename": "größe.csv", "content": b64encode(b"a;b\n").decode(), "content_type": "text/csv"}
            ],
        },
    )

    letter = office.letter()
    people = ["ada@example.com", "bob@example.com", "carl@example.com", "dora@example.com"]
    assert office.envelopes[0].rcpt_tos == people
    assert office.envelopes[0].mail_from == "timeball@example.com"
    assert letter["From"] == "Timeball <timeball@example.com>"
    assert letter["To"] == "Ada Lovelace <ada@example.com>, bob@example.com"
    assert (letter["Cc"], letter["Reply-To"], letter["Subject"]) == ("carl@example.com", "desk@example.com", "Grüße ✓")
    assert "dora" not in str(letter)
    assert "Punkt" in letter.get_body(("plain",)).get_content()
    assert letter.get_body(("html",)).get_content().strip() == "<p>Guten Tag</p>"
    (attachment,) = letter.iter_attachments()
    assert (attachment.get_filename(), attachment.get_content()) == ("größe.csv", "a;b\n")
    assert result == {"message_id": letter["Message-ID"], "accepted": 4, "refused": {}}


async def test_the_message_id_is_the_same_in_every_attempt(send, office):
    for _ in range(2):
        await succeed(send, MESSAGE)

    ids = {email.message_from_bytes(envelope.content)["Message-ID"] for envelope in office.envelopes}
    assert ids == {"<exe_00000000000000000000000001@example.com>"}


# refusals


async def test_a_permanent_refusal_is_not_tried_again(send, office):
    office.refusals["ada@example.com"] = "550 no such user"

    said = await die(send, MESSAGE)

    assert "refuses all recipients: ada@example.com: 550 no such user" in said


async def test_a_temporary_refusal_is_tried_again(send, office):
    office.refusals["ada@example.com"] = "451 greylisted, come back later"

    outcome = await fail(send, MESSAGE)

    assert outcome.is_retryable
    assert "451 greylisted" in outcome.error.message


async def test_recipients_of_both_kinds_are_tried_again(send, office):
    office.refusals = {"ada@example.com": "550 no such user", "bob@example.com": "452 mailbox full"}

    assert (await fail(send, MESSAGE | {"to": ["ada@example.com", "bob@example.com"]})).is_retryable


@pytest.mark.parametrize(("reply", "is_retryable"), [("554 spam", False), ("452 disk full", True)])
async def test_a_refusal_of_the_message_is_told_apart_too(send, office, reply, is_retryable):
    office.data_reply = reply

    outcome = await fail(send, MESSAGE)

    assert outcome.is_retryable is is_retryable
    assert reply in outcome.error.message


async def test_a_message_that_some_may_have_is_sent_and_the_others_are_named(send, office):
    office.refusals["bob@example.com"] = "550 no such user"
    attempt = attempt_at(send, MESSAGE | {"to": ["ada@example.com", "bob@example.com"]})

    result = await succeed(send, None, attempt)

    assert result["accepted"] == 1
    assert result["refused"] == {"bob@example.com": "550 no such user"}
    assert attempt.sink.lines == [("warning", "bob@example.com was refused: 550 no such user")]


async def test_a_mail_server_that_is_away_is_tried_again():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        outcome = await fail(mail(f"smtp://127.0.0.1:{unused.getsockname()[1]}"), MESSAGE)

    assert outcome.is_retryable


async def test_a_mail_server_that_hangs_up_is_tried_again():
    async def hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 hello\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]

        assert (await fail(mail(f"smtp://127.0.0.1:{port}"), MESSAGE)).is_retryable


# security defaults


@pytest.mark.parametrize(
    "more",
    [
        {"subject": "Hello\r\nBcc: victim@example.com"},
        {"subject": "Hello\nBcc: victim@example.com"},
        {"subject": "Hello\u2028Bcc: victim@example.com"},
        {"subject": "Hello\0"},
        {"subject": "=?utf-8?q?Hello=0d=0aBcc=3a_victim=40example.com?="},
        {"subject": "a subject =?utf-8?B?SGVsbG8NCkJjYzogdmljdGltQGV4YW1wbGUuY29t?= of several words"},
        {"to": "=?utf-8?q?Ada=0d=0aBcc=3a_victim=40example.com?= <ada@example.com>"},
        {"cc": "=?utf-8?q?ada=0d=0a?=@example.com"},
        {"reply_to": "=?utf-8?q?Ada=0aX-Evil=3a_yes?= <ada@example.com>"},
        {"attachments": [{"filename": "=?utf-8?q?a=0d=0aX-Evil=3a_yes?=", "content": ""}]},
        {"to": "ada@example.com\r\nRCPT TO:<victim@example.com>"},
        {"to": "ada@example.com>\r\nDATA"},
        {"to": "ada@example.com, victim@example.com"},
        {"to": "<ada@example.com>"},
        {"to": "Ada\r\nBcc: victim@example.com <ada@example.com>"},
        {"to": "ada@example.com\n"},
        {"to": []},
        {"to": "ada"},
        {"cc": ["ada@exa mple.com"]},
        {"reply_to": "a@example.com\r\nX-Evil: yes"},
        {"bcc": "a@example.com\rb@example.com"},
        {"attachments": [{"filename": "a\r\nX-Evil: yes", "content": ""}]},
        {"attachments": [{"filename": "../../etc/passwd", "content": ""}]},
        {"attachments": [{"filename": "a", "content": "", "content_type": "text/plain\r\nX-Evil: yes"}]},
        {"attachments": [{"filename": "a", "content": "", "content_type": "multipart/mixed"}]},
        {"attachments": [{"filename": "a", "content": "not base64!"}]},
        {"from": "boss@example.com"},
        {"headers": {"X": "y"}},
        {"to": [f"a{number}@example.com" for number in range(101)]},
    ],
)
def test_header_and_envelope_injection_is_refused_when_the_job_is_created(more):
    with pytest.raises(PayloadMismatch):
        check_payload(Registry([mail("smtp://127.0.0.1")]), "email.send", json.dumps(MESSAGE | more))


async def test_what_merely_looks_odd_is_still_sent(send, office):
    await succeed(send, MESSAGE | {"subject": "is 2?=2 and 1=?", "message": "=?utf-8?q?a=0d=0ab?="})

    assert office.letter()["Subject"] == "is 2?=2 and 1=?"
    assert office.letter().get_content().strip() == "=?utf-8?q?a=0d=0ab?="


async def test_text_that_looks_like_a_header_or_an_end_stays_text(send, office):
    await succeed(send, MESSAGE | {"message": "X-Evil: yes\r\n\r\n.\r\nMAIL FROM:<evil@example.com>\r\n"})

    assert len(office.envelopes) == 1
    assert "X-Evil" not in office.letter()
    assert "MAIL FROM" in office.letter().get_content()


async def test_tls_is_required_beyond_this_machine(office, monkeypatch):
    """A server (or a host in between) that offers no STARTTLS gets neither the password nor the mail."""
    real = asyncio.BaseEventLoop.getaddrinfo

    async def resolve(self, host, *rest, **options):
        return await real(self, "127.0.0.1" if host == "mail.example.com" else host, *rest, **options)

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", resolve)
    with running(office, authenticator=office.authenticate, auth_require_tls=False) as port:
        await die(mail(f"smtp://user:s3cret-canary@mail.example.com:{port}"), MESSAGE)

        assert not office.envelopes
        assert not office.logins
        await succeed(mail(f"smtp://mail.example.com:{port}?tls=none"), MESSAGE)


async def test_a_certificate_of_an_unknown_authority_is_refused(office, certificate):
    with running(office, ssl_context=tls(certificate)) as port:
        await fail(mail(f"smtps://localhost:{port}"), MESSAGE)

    assert not office.envelopes


@pytest.mark.parametrize("scheme", ["smtp", "smtps"])
async def test_mail_goes_by_tls_with_user_and_password(office, certificate, monkeypatch, scheme):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    context = tls(certificate)
    at_once = {"ssl_context": context, "auth_require_tls": False}
    options = at_once if scheme == "smtps" else {"tls_context": context, "require_starttls": True}
    with running(office, authenticator=office.authenticate, **options) as port:
        await succeed(mail(f"{scheme}://ada:s3cret-canary@localhost:{port}?tls=required"), MESSAGE)
        said = await die(mail(f"{scheme}://ada:wrong-canary@localhost:{port}?tls=required"), MESSAGE)

    assert len(office.envelopes) == 1
    assert "535" in said
    assert "wrong-canary" not in said


async def test_recipients_are_checked_against_the_policy(office):
    with running(office) as port:
        send = mail(f"smtp://127.0.0.1:{port}", recipients=("example.com", "boss@elsewhere.org"))

        await succeed(send, MESSAGE | {"cc": "BOSS@elsewhere.org"})
        for stranger in ("eve@evil.com", "eve@example.com.evil.com", "eve@sub.example.com", "eve@notexample.com"):
            assert "may not go to" in await die(send, MESSAGE | {"bcc": stranger})

    assert len(office.envelopes) == 1


@pytest.mark.parametrize(
    ("url", "sender"),
    [
        ("http://canary@example.com", "a@example.com"),
        ("smtp://", "a@example.com"),
        ("smtp://host:canary", "a@example.com"),
        ("smtp://canary@host?tls=maybe", "a@example.com"),
        ("smtp://canary@host?starttls=off", "a@example.com"),
        ("smtp://canary@host/path", "a@example.com"),
        ("smtp://host", None),
        ("smtp://host", "a@example.com\r\nBcc: b@example.com"),
    ],
)
def test_a_mail_server_that_cannot_be_used_stops_the_start_and_is_not_repeated(url, sender):
    with pytest.raises(SettingsError, match="TIMEBALL_SMTP_") as caught:
        read_mail_server(url, sender)

    assert "canary" not in str(caught.value)


def test_the_password_of_the_mail_server_is_not_shown_with_the_settings(monkeypatch):
    monkeypatch.setenv("TIMEBALL_SMTP_URL", "smtp://ada:canary@example.com")

    assert "canary" not in repr(load_settings())


def test_a_worker_without_a_mail_server_claims_no_mail(tmp_path):
    without = BuiltinHandlers(HandlerSettings(), SystemClock(), tmp_path)
    with_one = BuiltinHandlers(
        HandlerSettings(smtp_url="smtp://127.0.0.1", smtp_from="a@b.co"), SystemClock(), tmp_path
    )

    assert "email.send" not in Registry(without.handlers)
    assert "email.send" in without.known
    assert "email.send" in Registry(with_one.handlers)
