"""Channels: what their settings may be, and how each mistake is told, without a secret in it."""

from __future__ import annotations

from typing import Any

import pytest

from timeball.domain.channels import CHANNEL_FIELDS, ChannelKind, check_channel, check_settings
from timeball.errors import InvalidInput

SECRET = {"$secret": "ALERTS_TOKEN"}
GOOD: dict[ChannelKind, dict[str, Any]] = {
    ChannelKind.WEBHOOK: {
        "url": "https://example.com/alerts",
        "headers": {"X-Team": "ops", "Authorization": SECRET},
        "signing_secret": [SECRET, {"$secret": "OLD"}],
    },
    ChannelKind.SLACK: {"url": SECRET},
    ChannelKind.EMAIL: {"to": ["ops@example.com"], "cc": ["boss@example.com"]},
    ChannelKind.PAGERDUTY: {"routing_key": SECRET, "region": "eu"},
    ChannelKind.COMMAND: {"command": "page.sh", "args": ["--now", SECRET], "env": {"TOKEN": SECRET}},
}


@pytest.mark.parametrize("kind", ChannelKind)
def test_good_settings_are_kept_as_they_are(kind: ChannelKind) -> None:
    channel = check_channel("on-call", kind.value, GOOD[kind], "who is on call")

    assert (channel.kind, channel.settings) == (kind, GOOD[kind])
    assert set(GOOD[kind]) <= {field.name for field in CHANNEL_FIELDS[kind]}


def test_a_channel_knows_the_secrets_that_it_names() -> None:
    assert check_channel("a", "webhook", GOOD[ChannelKind.WEBHOOK]).secrets == ("ALERTS_TOKEN", "OLD")
    assert check_channel("a", "email", GOOD[ChannelKind.EMAIL]).secrets == ()


@pytest.mark.parametrize(
    ("kind", "settings", "pointer", "words"),
    [
        ("slack", {}, "/settings/url", 'url is missing, expected the name of a secret: {"$secret": "ALERTS_TOKEN"}'),
        (
            "slack",
            {"url": "https://hooks.slack.com/services/canary"},
            "/settings/url",
            'url is a plain value, expected the name of a secret: {"$secret": "ALERTS_TOKEN"}',
        ),
        ("slack", {"url": {"$secret": "slack"}}, "/settings/url", "url names no secret, expected capital letters"),
        ("slack", {"url": {"$secret": "SLACK_HOSTS"}}, "/settings/url", "url names no secret"),
        ("slack", {"url": SECRET, "channel": "#ops"}, "/settings/channel", "channel is unknown, expected url"),
        ("pagerduty", {"routing_key": "canary" * 5}, "/settings/routing_key", "routing_key is a plain value"),
        (
            "pagerduty",
            {"routing_key": SECRET, "region": "mars"},
            "/settings/region",
            'region is "mars", expected us or eu',
        ),
        ("webhook", {"url": 7}, "/settings/url", "url is 7, expected an address such as https://example.com/alerts"),
        ("webhook", {"url": "https://a.example/?token=canary"}, "/settings/url", "url is a plain value"),
        ("webhook", {"url": "https://ada:canary@a.example/"}, "/settings/url", "url is a plain value"),
        (
            "webhook",
            {"url": "https://a.example/", "headers": {"Authorization": "Bearer canary"}},
            "/settings/headers/Authorization",
            "headers.Authorization is a plain value, expected the name of a secret",
        ),
        (
            "webhook",
            {"url": "https://a.example/", "headers": {"X-Team": 7}},
            "/settings/headers/X-Team",
            "headers.X-Team is 7, expected",
        ),
        (
            "webhook",
            {"url": "https://a.example/", "signing_secret": "whsec_canary"},
            "/settings/signing_secret",
            "signing_secret is a plain value",
        ),
        (
            "email",
            {"to": "ops@example.com"},
            "/settings/to",
            "to is a text of 15 characters, expected a list of up to 100",
        ),
        ("email", {"to": [7]}, "/settings/to/0", "to.0 is 7, expected a list of up to 100 texts"),
        ("email", {"to": ["a@example.com"], "bc": []}, "/settings/bc", "bc is unknown"),
        ("command", {}, "/settings/command", "command is missing, expected text of up to 4,000 characters"),
        (
            "command",
            {"command": "page.sh", "env": {"API_TOKEN": "canary"}},
            "/settings/env/API_TOKEN",
            "env.API_TOKEN is a plain value",
        ),
    ],
)
def test_each_mistake_is_told_with_what_was_expected_and_without_a_secret(
    kind: str, settings: dict[str, Any], pointer: str, words: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_settings(ChannelKind(kind), settings)

    (error,) = [one for one in caught.value.errors if one["pointer"] == pointer]
    assert words in error["detail"]
    assert f"the settings do not fit the kind {kind}" in str(caught.value)
    assert "canary" not in f"{caught.value} {caught.value.errors} {caught.value.hint}"


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(InvalidInput) as caught:
        check_settings(ChannelKind.EMAIL, {"cc": 7, "subject": "x"})

    assert {one["pointer"] for one in caught.value.errors} == {"/settings/to", "/settings/cc", "/settings/subject"}


def test_a_plain_secret_is_answered_with_where_it_belongs() -> None:
    with pytest.raises(InvalidInput) as caught:
        check_settings(ChannelKind.SLACK, {"url": "https://hooks.slack.com/services/canary"})

    assert caught.value.hint is not None
    assert "TIMEBALL_SECRET_NAME" in caught.value.hint


@pytest.mark.parametrize("name", ["", " ", "two words", "a/b", "-dash", "x" * 101, 7])
def test_a_name_can_stand_in_an_address(name: Any) -> None:
    with pytest.raises(InvalidInput, match="name"):
        check_channel(name, "email", GOOD[ChannelKind.EMAIL])


def test_an_unknown_kind_is_told_those_that_exist() -> None:
    with pytest.raises(InvalidInput, match=r'kind is "fax", expected webhook, slack, email, pagerduty or command'):
        check_channel("a", "fax", {})
