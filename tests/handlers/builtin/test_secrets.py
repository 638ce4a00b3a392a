from __future__ import annotations

import pytest

from timeball.handlers.secrets import Disclosure, SecretMissing, SecretReference, Secrets


def reference(name: str) -> SecretReference:
    return SecretReference.model_validate({"$secret": name})


def test_a_secret_comes_from_the_environment_before_the_folder(tmp_path):
    (tmp_path / "BOTH").write_text("from the folder")
    (tmp_path / "FILE").write_text("from a file\n")
    secrets = Secrets(tmp_path, {"TIMEBALL_SECRET_BOTH": "from the environment"})

    assert secrets.reveal("BOTH") == "from the environment"
    assert secrets.reveal("FILE") == "from a file"


def test_only_what_is_meant_as_a_secret_can_be_had_from_the_environment():
    secrets = Secrets(environment={"TIMEBALL_DATABASE_URL": "postgresql://...", "HOME": "/root"})

    for name in ("HOME", "TIMEBALL_DATABASE_URL", "DATABASE_URL"):
        with pytest.raises(SecretMissing):
            secrets.reveal(name)


@pytest.mark.parametrize("name", ["../etc/passwd", "/etc/passwd", "a", "A/B", "", "A" * 101, "A\n", "A.B"])
def test_the_name_of_a_secret_is_no_path(name):
    with pytest.raises(ValueError, match="secret"):
        reference(name)


def test_a_disclosed_secret_is_blotted_out_in_all_its_spellings():
    secret = 'p"w/with space+é'
    disclosure = Disclosure(Secrets(environment={"TIMEBALL_SECRET_A": secret}))

    assert disclosure.reveal(reference("A")) == secret
    assert disclosure.reveal("plain") == "plain"

    spelled = 'p"w/with space+é, p\\"w/with space+\\u00e9, p%22w%2Fwith%20space%2B%C3%A9, cCJ3L3dpdGggc3BhY2Urw6k='
    assert "w" not in disclosure.redact(spelled).replace("[secret]", "")


def test_references_are_revealed_however_deep_they_stand():
    disclosure = Disclosure(Secrets(environment={"TIMEBALL_SECRET_A": "value"}))

    revealed = disclosure.reveal_within({"a": [{"$secret": "A"}, {"$secret": "A", "more": 1}], "b": None})

    assert revealed == {"a": ["value", {"$secret": "A", "more": 1}], "b": None}
