"""`timeball next`: when a schedule or a job fires, with what clock changes, calendars and freezes do to it."""

from __future__ import annotations

import csv

import pytest

from tests.cli.conftest import Cli


@pytest.fixture
def weekend(cli: Cli) -> None:
    assert cli("calendars", "create", "weekend", "sat", "sun").code == 0


def test_an_expression_is_computed_without_a_server_and_printed_for_programs(cli: Cli) -> None:
    arguments = ("next", "30 2 * * *", "--tz", "Europe/Berlin", "--after", "2027-03-27T12:00:00Z", "-n", "2")

    first, second = cli(*arguments, "--json", "--url", "http://nowhere.invalid").json
    table = list(csv.DictReader(cli(*arguments, "-o", "csv").out.splitlines()))

    assert first == {
        "at": "2027-03-28T01:00:00Z",
        "local": "2027-03-28T03:00:00+02:00",
        "is_due": True,
        "note": "moved_by_gap",
    }
    assert [row["at"] for row in table] == [first["at"], second["at"]]


def test_a_recurrence_rule_is_computed_without_a_server_and_told_in_words(cli: Cli) -> None:
    arguments = ("next", "RRULE:FREQ=DAILY;BYHOUR=2;BYMINUTE=30;BYMONTH=3", "--tz", "Europe/Berlin")

    printed = cli(*arguments, "--after", "2027-03-27T12:00:00Z", "-n", "1", "--url", "http://nowhere.invalid")

    assert printed.out.startswith("Every day in March at 02:30 (Europe/Berlin)\n")
    assert "2027-03-28" in printed.out
    assert "never fires" in cli("next", "RRULE:FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30").err


def test_a_job_by_a_recurrence_rule_is_made_shown_and_changed(cli: Cli) -> None:
    rule = "RRULE:FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=9"
    made = cli("jobs", "create", "closing", "test.echo", "--cron", rule, "--tz", "Europe/Berlin", "--json")
    assert made.code == 0, made.err

    assert len(cli("next", "closing", "-n", "3", "--json").json) == 3
    assert rule in cli("jobs", "show", "closing").out
    assert [job["name"] for job in cli("jobs", "list", "--kind", "rrule", "--json").json] == ["closing"]


def test_a_job_is_named_and_its_calendars_and_freezes_are_told(cli: Cli, weekend: None) -> None:
    cli("jobs", "create", "daily", "test.echo", "--cron", "0 9 * * *", "--skip-on", "weekend")
    frozen = cli("freeze", "--job", "daily", "--until", "30d", "--reason", "release")
    assert frozen.code == 0, frozen.err

    times = cli("next", "daily", "-n", "7", "--json").json
    plain = cli("next", "daily", "-n", "7")

    assert [time["is_due"] for time in times].count(True) == 7
    assert next((time["count"], time["calendars"]) for time in times if not time["is_due"]) == (2, ["weekend"])
    assert "2 left out by calendar: weekend" in plain.out
    assert "frozen" in plain.out
    assert plain.out == cli("jobs", "next", "daily", "-n", "7").out


def test_calendars_and_a_shift_are_tried_on_an_expression(cli: Cli, weekend: None) -> None:
    arguments = ("next", "0 9 15 * *", "--skip-on", "weekend", "--after", "2026-11-01T00:00:00Z", "-n", "1", "--json")

    left_out, _ = cli(*arguments).json
    moved = cli(*arguments, "--shift", "next").json[-1]

    assert (left_out["at"], left_out["is_due"], left_out["calendars"]) == ("2026-11-15T09:00:00Z", False, ["weekend"])
    assert (moved["at"], moved["note"]) == ("2026-11-16T09:00:00Z", "moved_by_calendar")
    assert "closed" in cli("next", "0 9 * * *", "--only-on", "closed").err


def test_a_job_takes_no_options_of_an_expression(cli: Cli) -> None:
    cli("jobs", "create", "nightly report", "test.echo", "--every", "1h")

    refused = cli("next", "nightly report", "--tz", "Europe/Berlin")

    assert refused.code != 0
    assert "nightly report is a job, which has its own schedule" in refused.err
    assert cli("next", "nightly report", "-n", "1").code == 0
    assert "nobody" in cli("next", "nobody").err
