"""The words of the command line, as they were promised."""

from __future__ import annotations

import pytest

from tests.cli.command_tree import all_commands

ALONE = "up api scheduler worker watch run next why tail top forecast check doctor verify plan apply"
NOUNS = {
    "jobs": "list show create edit pause resume trigger duplicate delete next sync import export backfill cancel",
    "runs": "list show logs watch cancel retry export",
    "dead": "list groups show retry discard export",
    "queues": "list show pause resume limit purge",
    "workers": "list show drain",
    "templates": "list show create edit use delete",
    "calendars": "list show create import edit delete",
    "webhooks": "list show create edit rotate test deliveries delivery redeliver delete",
    "keys": "list create revoke",
    "db": "status migrate",
}


def options_of(*words: str) -> set[str]:
    command = dict(all_commands())[words]
    return {name for parameter in command.params for name in parameter.opts}


def test_every_word_is_there() -> None:
    present = {words for words, _ in all_commands()}

    promised = {(word,) for word in ALONE.split()} | {
        (noun, verb) for noun, verbs in NOUNS.items() for verb in verbs.split()
    }
    assert promised <= present


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (("up",), {"--demo"}),
        (("run",), {"--in", "--at", "--cron", "--every", "--wait"}),
        (("next",), {"--tz"}),
        (("jobs",), {"-o", "--json", "--time", "--url", "-q"}),
        (("jobs", "sync"), {"--dry-run", "--prune", "--yes"}),
        (("runs", "cancel"), {"--dry-run", "--yes", "--no-wait", "--reason"}),
        (("dead", "retry"), {"--dry-run", "--yes", "--no-wait", "--all"}),
    ],
)
def test_every_option_is_there(words: tuple[str, ...], options: set[str]) -> None:
    assert options <= options_of(*words)
