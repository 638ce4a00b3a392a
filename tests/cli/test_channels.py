"""`timeball channels` and `timeball alert-routes`: settings as words, secrets by name, and a test that says how it ended."""

from __future__ import annotations

from typing import Any

import orjson

from tests.cli.conftest import Cli
from tests.conftest import FreshDatabase
from tests.sdk.conftest import running_node
from timeball import Timeball
from timeball.config.settings import load_settings


def created(cli: Cli, *words: str) -> dict[str, Any]:
    done = cli(*words, "--json")
    assert done.code == 0, done.err
    document: dict[str, Any] = orjson.loads(done.out)
    return document


def test_settings_are_words_and_secrets_are_named(cli: Cli) -> None:
    hook = created(
        cli,
        *("channels", "create", "hook", "webhook", "url=https://example.com/a", "headers.X-Team=ops"),
        *(
            "--secret",
            "headers.Authorization=TOKEN",
            "--secret",
            "signing_secret=OLD",
            "--secret",
            "signing_secret=NEW",
        ),
    )
    mail = created(cli, "channels", "create", "mail", "email", "to=a@example.com", "to=b@example.com")
    chat = created(cli, "channels", "create", "chat", "slack", "--secret", "url=SLACK_URL", "--description", "all")

    assert hook["settings"] == {
        "url": "https://example.com/a",
        "headers": {"X-Team": "ops", "Authorization": {"$secret": "TOKEN"}},
        "signing_secret": [{"$secret": "OLD"}, {"$secret": "NEW"}],
    }
    assert mail["settings"] == {"to": ["a@example.com", "b@example.com"]}
    assert (chat["settings"], chat["description"]) == ({"url": {"$secret": "SLACK_URL"}}, "all")
    assert [line.split()[0] for line in cli("channels").out.splitlines()] == ["chat", "hook", "mail"]


def test_an_edit_keeps_the_settings_that_are_not_given(cli: Cli) -> None:
    created(cli, "channels", "create", "mail", "email", "to=a@example.com", "cc=b@example.com")

    one = created(cli, "channels", "edit", "mail", "to=c@example.com")
    none = created(cli, "channels", "edit", "mail", "cc=")

    assert one["settings"] == {"to": ["c@example.com"], "cc": ["b@example.com"]}
    assert none["settings"] == {"to": ["c@example.com"]}


def test_a_plain_secret_is_refused_and_not_repeated(cli: Cli) -> None:
    refused = cli("channels", "create", "chat", "slack", "url=https://hooks.slack.com/canary")

    assert refused.code == 2
    assert "url is a plain value, expected the name of a secret" in refused.err
    assert "canary" not in refused.err


def test_routes_have_quiet_hours_and_repetitions_in_words(cli: Cli) -> None:
    created(cli, "channels", "create", "mail", "email", "to=a@example.com")
    route = created(
        cli,
        *("alert-routes", "create", "all", "--to", "mail", "--severity", "critical", "--queue", "a", "--queue", "b"),
        *("--quiet", "22:00-07:00 Europe/Berlin mon,tue", "--quiet", "00:00-00:00 sun", "--repeat-every", "4h"),
    )
    edited = created(cli, "alert-routes", "edit", "all", "--repeat-every", "0", "--quiet", "", "--queue", "")
    wrong = cli("alert-routes", "edit", "all", "--quiet", "at night")

    assert route["quiet_hours"][0] == {
        "from": "22:00",
        "until": "07:00",
        "timezone": "Europe/Berlin",
        "days": ["mon", "tue"],
    }
    assert (route["quiet_hours"][1]["days"], route["repeat_every_seconds"]) == (["sun"], 14_400)
    assert (route["severity"], route["queues"]) == ("critical", ["a", "b"])
    assert (edited["quiet_hours"], edited["repeat_every_seconds"], edited["queues"]) == ([], None, [])
    assert wrong.code == 2
    assert 'expected a span such as "22:00-07:00 Europe/Berlin"' in wrong.err


def test_a_test_that_fails_says_why_and_ends_with_1(cli: Cli, fresh_database: FreshDatabase) -> None:
    created(cli, "channels", "create", "chat", "slack", "--secret", "url=NOT_THERE")
    settings = load_settings(database_url=fresh_database.dsn, migrate=False)

    with running_node(Timeball(settings=settings), settings):
        done = cli("channels", "test", "chat")

    assert done.code == 1
    assert "failed" in done.out
    assert "this worker has no secret NOT_THERE" in done.out
    assert "failed" in cli("channels", "deliveries", "chat").out
