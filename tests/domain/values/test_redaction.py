"""Values under secret keys are hidden; values under keys that merely sound similar are not."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from timeball.domain.execution import MAX_MESSAGE, ErrorInfo, LogBuffer
from timeball.domain.values.redaction import REDACTED, redact, refuse_redacted
from timeball.errors import PayloadError


def test_values_under_keys_that_sound_like_secrets_are_hidden_but_references_may_be_seen() -> None:
    payload = {
        "password": "x",
        "headers": {"Authorization": "Bearer abc", "X-Api-Key": "k", "Accept": "text/html"},
        "nested": [{"client_secret": {"a": 1}}, {"access_token": {"$secret": "TOKEN"}}],
        "signing_secret": [{"$secret": "OLD"}, {"$secret": "NEW"}],
        "secrets": [{"$secret": "OLD"}, "plain"],
        "token": None,
    }

    assert redact(payload) == {
        "password": REDACTED,
        "headers": {"Authorization": REDACTED, "X-Api-Key": REDACTED, "Accept": "text/html"},
        "nested": [{"client_secret": REDACTED}, {"access_token": {"$secret": "TOKEN"}}],
        "signing_secret": [{"$secret": "OLD"}, {"$secret": "NEW"}],
        "secrets": REDACTED,
        "token": None,
    }


@pytest.mark.parametrize("key", ["author", "authors", "author_id", "co-author", "compass_heading", "keyboard"])
def test_innocent_keys_are_shown(key: str) -> None:
    assert redact({key: "seen"}) == {key: "seen"}


@pytest.mark.parametrize(
    "key", ["authorization", "auth", "oauth2", "smtp_pass", "PWD", "apiKey", "signing-key", "Set-Cookie", "dsn"]
)
def test_the_common_names_of_secrets_are_known(key: str) -> None:
    assert redact({key: "hidden"}) == {key: REDACTED}


def test_the_password_in_an_address_is_hidden() -> None:
    shown = redact({"url": "amqp://worker:hunter2@rabbit:5672/", "plain": ["https://example.com/a@b"]})

    assert shown == {"url": f"amqp://worker:{REDACTED}@rabbit:5672/", "plain": ["https://example.com/a@b"]}


def test_a_password_that_contains_an_at_sign_is_hidden_completely() -> None:
    assert redact("redis://:hunt@er2@cache:6379/0") == f"redis://:{REDACTED}@cache:6379/0"


def test_a_secret_query_parameter_is_hidden() -> None:
    url = "https://example.com/hook?day=7&access_token=hunter2&sig=hunter3#part, then https://b.co/?api_key=hunter4"

    assert redact({"url": url}) == {
        "url": f"https://example.com/hook?day=7&access_token={REDACTED}&sig={REDACTED}#part, "
        f"then https://b.co/?api_key={REDACTED}"
    }


@pytest.mark.parametrize("value", [REDACTED, {"a": [REDACTED]}, f"amqp://u:{REDACTED}@h"])
def test_a_redacted_value_is_not_stored(value: object) -> None:
    with pytest.raises(PayloadError, match="hidden value"):
        refuse_redacted(value)


URL = "postgresql://bob:pass@word@db.internal/app?sslmode=require&token=t0ken"


def test_passwords_in_addresses_are_kept_out_of_errors_before_anything_is_cut() -> None:
    long = "x" * (MAX_MESSAGE // 2 - 30)
    error = ErrorInfo(
        type="OperationalError",
        message=f"{long} {URL} {long}",
        traceback=f"  File a.py, line 1\n    connect('{URL}')\n",
        top_frame=f"a.py:1 in connect {URL}",
    )

    for text in (error.message, error.traceback or "", error.top_frame or ""):
        assert not any(part in text for part in ("pass@", "@word", "word@", "t0ken"))
    assert "postgresql://bob:" in (error.traceback or "")


def test_passwords_in_addresses_are_kept_out_of_logs() -> None:
    buffer = LogBuffer()
    buffer.add(datetime(2026, 1, 1, tzinfo=UTC), "info", f"connecting to {URL}")

    (line,) = buffer.close()

    assert line.message.startswith("connecting to postgresql://bob:")
    assert "word" not in line.message
    assert "t0ken" not in line.message
