"""`timeball jobs backfill`: what would run, and an operation that is followed or left to the API."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.cli.test_ledger import silence  # noqa: F401
from timeball.cli.session import CliSession

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "backfill.md"


@pytest.mark.usefixtures("silence")
def test_a_dry_run_counts_by_verdict_and_reason(cli: Cli) -> None:
    done = cli("jobs", "backfill", "beat", "--from", "2h", "--dry-run")

    assert done.lines == [["ran", "", "9", "0"], ["skipped", "misfire", "5", "5"]]
    assert "would run beat 5 times" in done.err
    assert CliSession().talk(lambda client: client.operations.list()).data == []


@pytest.mark.usefixtures("silence")
def test_a_backfill_asks_before_and_becomes_an_operation(cli: Cli) -> None:
    unasked = cli("jobs", "backfill", "beat", "--from", "2h")
    begun = cli(
        "jobs", "backfill", "beat", "--from", "2h", "--only", "all", "--max-running", "3", "--yes", "--json", "n=1"
    ).json

    assert unasked.code != 0
    assert "--yes" in unasked.err
    (operation,) = CliSession().talk(lambda client: client.operations.list()).data
    assert (operation.id, operation.action, operation.state) == (begun["id"], "backfill", "pending")


def test_the_commands_of_the_page_on_backfills_run(cli: Cli) -> None:
    assert cli("jobs", "create", "nightly", "test.echo", "--cron", "0 3 * * *").code == 0
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    commands = [line.split()[1:] for block in blocks for line in block.splitlines()]

    ends = [(cli(*command).code, command) for command in commands]

    assert len(commands) == 4
    assert [command for code, command in ends if code] == []


def test_a_backfill_is_followed_to_its_end(cli: Cli) -> None:
    assert cli("jobs", "create", "nightly", "test.echo", "--cron", "0 3 * * *").code == 0

    done = cli("jobs", "backfill", "nightly", "--from", "7d", "--yes", "--wait")

    assert done.code == 0
    assert "backfill nightly: 0 done" in done.err
