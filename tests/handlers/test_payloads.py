from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from tests.handlers.builtin.support import check_payload
from timeball.config.settings import HandlerSettings, load_settings
from timeball.domain.handler import PayloadMismatch
from timeball.env import SystemClock
from timeball.errors import InvalidInput, SettingsError
from timeball.handlers.catalogue import BuiltinHandlers, entry_of
from timeball.handlers.registry import Registry, make_handler


@pytest.fixture
def handlers(tmp_path) -> Registry:
    return BuiltinHandlers(HandlerSettings(), SystemClock(), tmp_path).known


def test_a_payload_is_checked_against_the_model_of_its_handler(handlers):
    check_payload(handlers, "http.webhook", '{"url": "https://example.com"}')

    with pytest.raises(PayloadMismatch, match="url is missing; colour is unknown"):
        check_payload(handlers, "http.webhook", '{"colour": "red"}')


def test_an_unknown_handler_is_allowed(handlers):
    check_payload(handlers, "app.mail:send", '{"anything": 1}')


def test_a_refusal_does_not_repeat_what_was_given(handlers):
    with pytest.raises(PayloadMismatch) as caught:
        check_payload(handlers, "http.webhook", '{"url": "https://me:hunter2@example.com", "headers": ["hunter2"]}')

    assert "hunter2" not in str(caught.value)


def test_fields_are_encoded_by_name(handlers):
    binder = handlers.get("http.webhook").binder

    assert json.loads(binder.encode((), {"url": "https://example.com"})) == {"url": "https://example.com"}
    with pytest.raises(InvalidInput, match="by name"):
        binder.encode(("https://example.com",), {})


def test_the_catalogue_has_a_sentence_and_a_json_schema_for_every_handler(handlers):
    catalogue = {handler.name: entry_of(handler) for handler in handlers}

    assert set(catalogue) == set(handlers.names())
    assert all(entry.description.endswith(".") for entry in catalogue.values())
    assert all(entry.payload_schema["type"] == "object" for entry in catalogue.values())
    webhook = catalogue["http.webhook"].payload_schema
    assert webhook["required"] == ["url"]
    assert webhook["additionalProperties"] is False
    assert "json" in webhook["properties"]
    json.dumps([asdict(entry) for entry in catalogue.values()])


def test_the_catalogue_knows_the_parameters_of_python_handlers():
    def send(order: int, to: str = "me") -> None:
        """Send it."""

    def odd(thing: Unknown) -> None:  # noqa: F821
        """Unknown here."""

    known, unknown = entry_of(make_handler(send, name="send")), entry_of(make_handler(odd, name="odd"))

    assert unknown.payload_schema["properties"] == {"thing": {"title": "Thing"}}
    assert known.payload_schema["properties"]["order"]["type"] == "integer"
    assert known.payload_schema["required"] == ["order"]
    assert known.example == {"order": 1, "to": "me"}


def test_the_settings_are_named_as_people_know_them(monkeypatch):
    monkeypatch.setenv("TIMEBALL_WEBHOOK_ALLOW", "10.0.0.0/8:8080, billing.internal")
    monkeypatch.setenv("TIMEBALL_WEBHOOK_PORTS", "443,9443")

    settings = load_settings()

    assert settings.webhook_allow == ("10.0.0.0/8:8080", "billing.internal")
    assert settings.webhook_ports == (443, 9443)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("webhook_allow", ("10.0.0.1/8",)),
        ("shell_programs", ("backup.sh",)),
        ("shell_programs", ("/opt/../bin/sh",)),
        ("shell_user", "nobody-of-that-name"),
        # The secret itself may be mistaken for its name.
        ("webhook_signing_secrets", ("BILLING", "whsec_canary")),
    ],
)
def test_settings_of_handlers_that_make_no_sense_stop_the_start(name, value, tmp_path):
    with pytest.raises(SettingsError, match=f"TIMEBALL_{name.upper()}") as refused:
        BuiltinHandlers(HandlerSettings(shell_enabled=True, **{name: value}), SystemClock(), tmp_path)

    assert "canary" not in str(refused.value)
