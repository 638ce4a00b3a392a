"""Very many at once are an operation, which a command follows to its end, with or without a server."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Cli
from tests.cli.test_explain import Terminal
from timeball.cli.output import Printer
from timeball.cli.session import CliSession


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three executions are too many to be done at once."""
    monkeypatch.setattr("timeball.api.resources.operations.MAX_INLINE", 2)


def make_runs(number: int) -> list[str]:
    jobs = [{"handler": "test.echo", "queue": "mail"} for _ in range(number)]
    made = CliSession().talk(lambda client: client.jobs.create_many(jobs))
    return [item.execution_id or "" for item in made.results]


def states(ids: list[str]) -> set[str]:
    found = CliSession().talk(lambda client: client.executions.list(limit=200))
    return {run.state for run in found.data if run.id in ids}


def test_an_operation_is_followed_to_its_end(cli: Cli) -> None:
    ids = make_runs(4)

    done = cli("runs", "cancel", "--queue", "mail", "--yes", "--reason", "too many")

    assert [line[:2] for line in done.lines] == [[one, "done"] for one in sorted(ids, reverse=True)]
    assert "cancel executions: 4 done" in done.err
    assert states(ids) == {"cancelled"}


def test_what_an_operation_could_not_do_is_told_and_ends_with_an_error(cli: Cli) -> None:
    ids = make_runs(3)
    cli("runs", "cancel", ids[0])

    done = cli("runs", "cancel", *ids)

    assert done.code == 1
    assert "1 of 3 failed" in done.err
    assert done.out.count("\tdone\t") == 2
    assert "\tfailed\t" in done.out


def test_no_wait_prints_the_operation(cli: Cli) -> None:
    ids = make_runs(3)

    begun = cli("runs", "cancel", *ids, "--no-wait", "--json").json
    operations = CliSession().talk(lambda client: client.operations.list())

    assert [one.id for one in operations.data] == [begun["id"]]
    assert (begun["state"], begun["total"]) == ("pending", 3)
    # The next API process does all of it.
    assert operations.data[0].state == "pending"
    assert states(ids) == {"queued"}


def test_a_dry_run_tells_the_exact_number_and_does_nothing(cli: Cli) -> None:
    ids = make_runs(4)

    done = cli("runs", "cancel", "--queue", "mail", "--dry-run")

    assert "would cancel executions: 4" in done.err
    assert states(ids) == {"queued"}


def test_few_are_done_within_the_call(cli: Cli) -> None:
    ids = make_runs(2)

    assert {line[1] for line in cli("runs", "cancel", *ids).lines} == {"done"}
    assert states(ids) == {"cancelled"}


def test_people_are_told_of_those_that_failed(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = make_runs(3)
    cli("runs", "cancel", ids[0])
    shown = Terminal()
    monkeypatch.setattr(CliSession, "printer", property(lambda self: Printer(self.output, self.times, out=shown)))

    done = cli("runs", "cancel", *ids)

    assert "1 of 3 failed" in done.err
    assert ids[0] in shown.getvalue()
    assert ids[1] not in shown.getvalue()
