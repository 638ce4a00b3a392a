"""References in payloads on the command line."""

from __future__ import annotations

from tests.cli.conftest import Cli


def test_the_next_run_of_a_job_is_shown_with_its_payload(cli: Cli) -> None:
    payload = '{"file": {"$text": "report-{scheduled_date}.csv"}}'
    assert cli("jobs", "create", "report", "test.echo", "--cron", "0 3 * * *", "--payload", payload).code == 0
    assert cli("jobs", "create", "plain", "test.echo", "--cron", "0 3 * * *").code == 0

    shown = cli("jobs", "next", "report", "-n", "1")

    day = cli("jobs", "next", "report", "-n", "1", "--json").json[0]["at"][:10]
    assert f'payload of the next run: {{"file": "report-{day}.csv"}}' in shown.out + shown.err
    assert "payload of the next run" not in cli("jobs", "next", "plain", "-n", "1").err


def test_a_wrong_reference_is_named_with_those_that_there_are(cli: Cli) -> None:
    refused = cli("jobs", "create", "report", "test.echo", "--payload", '{"day": {"$now": "today"}}')

    assert refused.code != 0
    assert "$now names today, expected scheduled_for, scheduled_date, previous_scheduled_for" in refused.err
