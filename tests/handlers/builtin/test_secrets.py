from __future__ import annotations

import re

import pytest

from timeball.config.settings import HandlerSettings
from timeball.env import SystemClock
from timeball.errors import SettingsError
from timeball.handlers.builtin.secrets import (
    SecretBinding,
    SecretMissing,
    SecretReference,
    SecretRefused,
    SecretScope,
    SecretStore,
    names_in,
)
from timeball.handlers.builtin.webhook import WebhookPayload
from timeball.handlers.catalogue import BuiltinHandlers


def reference(name: str) -> SecretReference:
    return SecretReference.model_validate({"$secret": name})


def test_a_secret_comes_from_the_environment_before_the_folder(tmp_path):
    (tmp_path / "BOTH").write_text("from the folder")
    (tmp_path / "FILE").write_text("from a file\n")
    secrets = SecretStore(tmp_path, {"TIMEBALL_SECRET_BOTH": "from the environment"})

    assert secrets.reveal("BOTH") == "from the environment"
    assert secrets.reveal("FILE") == "from a file"


def test_only_what_is_meant_as_a_secret_can_be_had_from_the_environment():
    secrets = SecretStore(environment={"TIMEBALL_DATABASE_URL": "postgresql://...", "HOME": "/root"})

    for name in ("HOME", "TIMEBALL_DATABASE_URL", "DATABASE_URL"):
        with pytest.raises(SecretMissing):
            secrets.reveal(name)


@pytest.mark.parametrize("name", ["../etc/passwd", "/etc/passwd", "a", "A/B", "", "A" * 101, "A\n", "A.B"])
def test_the_name_of_a_secret_is_no_path(name):
    with pytest.raises(ValueError, match="secret"):
        reference(name)


def test_a_disclosed_secret_is_blotted_out_in_all_its_spellings():
    secret = 'p"w/with space+é'
    disclosure = SecretScope(SecretStore(environment={"TIMEBALL_SECRET_A": secret}))

    assert disclosure.reveal(reference("A")) == secret
    assert disclosure.reveal("plain") == "plain"

    spelled = 'p"w/with space+é, p\\"w/with space+\\u00e9, p%22w%2Fwith%20space%2B%C3%A9, cCJ3L3dpdGggc3BhY2Urw6k='
    assert "w" not in disclosure.redact(spelled).replace("[secret]", "")


def test_references_are_revealed_however_deep_they_stand():
    disclosure = SecretScope(SecretStore(environment={"TIMEBALL_SECRET_A": "value"}))

    revealed = disclosure.reveal_within({"a": [{"$secret": "A"}, {"$secret": "A", "more": 1}], "b": None})

    assert revealed == {"a": ["value", {"$secret": "A", "more": 1}], "b": None}


# where a secret may go


@pytest.mark.parametrize(
    ("allowed", "host", "is_one"),
    [
        ("api.example.com", "api.example.com", True),
        ("api.example.com", "API.example.com.", True),
        ("API.Example.com", "api.example.com", True),
        ("api.example.com", "evil-api.example.com", False),
        ("api.example.com", "api.example.com.evil.org", False),
        ("*.internal", "billing.internal", True),
        ("*.internal", "a.b.internal", True),
        ("*.internal", "internal", False),
        ("*.internal", "evilinternal", False),
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.1", "127.0.0.10", False),
        ("[::1]", "::1", True),
        ("a.example,b.example", "b.example", True),
        ("a.example,b.example", "c.example", False),
    ],
)
def test_a_secret_goes_to_the_hosts_that_it_is_bound_to(allowed, host, is_one):
    secrets = SecretStore(environment={"TIMEBALL_SECRET_A": "value", "TIMEBALL_SECRET_A_HOSTS": allowed})

    if is_one:
        secrets.binding("A").check_host(host)
        return
    with pytest.raises(SecretRefused, match=re.escape(f"the secret A is not for the host {host}")) as caught:
        secrets.binding("A").check_host(host)
    assert "TIMEBALL_SECRET_A_HOSTS" in str(caught.value)


def test_a_secret_is_for_the_queues_and_handlers_that_it_is_bound_to(tmp_path):
    (tmp_path / "A_QUEUES").write_text("billing, mail\n")
    environment = {"TIMEBALL_SECRET_A": "value", "TIMEBALL_SECRET_A_HANDLERS": "http.webhook"}
    binding = SecretStore(tmp_path, environment).binding("A")

    assert binding == SecretBinding("A", (), ("billing", "mail"), ("http.webhook",))
    binding.check("mail", "http.webhook")
    with pytest.raises(SecretRefused, match="not for the queue default, it is bound to the queues billing, mail"):
        binding.check("default", "http.webhook")
    with pytest.raises(
        SecretRefused, match=r"not for the handler shell\.command, it is bound to the handlers http\.webhook"
    ):
        binding.check("mail", "shell.command")


def test_what_is_bound_to_hosts_is_for_commands_only_if_they_are_named():
    hosts = ("api.example.com",)

    with pytest.raises(SecretRefused, match=r"not for a command.*TIMEBALL_SECRET_A_HANDLERS"):
        SecretBinding("A", hosts).check_host(None)
    SecretBinding("A", hosts, handlers=("shell.command",)).check_host(None)
    SecretBinding("A").check_host(None)


@pytest.mark.parametrize("name", ["A_HOSTS", "A_QUEUES", "A_HANDLERS"])
def test_a_binding_is_no_secret(name):
    with pytest.raises(ValueError, match="secret"):
        reference(name)


@pytest.mark.parametrize(
    ("variable", "value", "problem"),
    [
        ("TIMEBALL_SECRET_B_HOSTS", "a.example", "TIMEBALL_SECRET_B_HOSTS is set, but this worker has no secret B"),
        ("TIMEBALL_SECRET_A_HOSTS", " , ", "TIMEBALL_SECRET_A_HOSTS is empty"),
        (
            "TIMEBALL_SECRET_A_HOSTS",
            "https://a.example",
            "TIMEBALL_SECRET_A_HOSTS has 'https://a.example', expected a host name",
        ),
        ("TIMEBALL_SECRET_A_HOSTS", "a.example:443", "expected a host name"),
        ("TIMEBALL_SECRET_A_HOSTS", "a.*.example", "expected a host name"),
        ("TIMEBALL_SECRET_A_QUEUES", "", "TIMEBALL_SECRET_A_QUEUES is empty"),
    ],
)
def test_a_binding_that_cannot_be_meant_is_refused_at_the_start(tmp_path, monkeypatch, variable, value, problem):
    monkeypatch.setenv("TIMEBALL_SECRET_A", "value")
    monkeypatch.setenv(variable, value)

    with pytest.raises(SettingsError) as caught:
        BuiltinHandlers(HandlerSettings(), SystemClock(), tmp_path)

    assert problem in str(caught.value)
    assert "value" not in str(caught.value)


def test_all_references_of_a_payload_are_found():
    payload = WebhookPayload.model_validate(
        {
            "url": "https://example.com",
            "headers": {"A": {"$secret": "IN_HEADER"}, "B": "plain"},
            "json": {"deep": [{"$secret": "IN_BODY"}, {"$secret": "NOT", "more": 1}]},
            "signing_secret": [{"$secret": "SIGNS"}, {"$secret": "SIGNS_TOO"}],
        }
    )

    assert set(names_in(payload)) == {"IN_HEADER", "IN_BODY", "SIGNS", "SIGNS_TOO"}
