"""`timeball alerts`, and what `timeball queues expect` and `jobs edit --set expect=` write."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from tests.cli.conftest import Cli
from tests.conftest import FreshDatabase
from tests.support.factories import make_alert
from timeball.domain.alerts import Severity, format_alert_id
from timeball.env import Env
from timeball.store.store import Store


@pytest.fixture
def open_alert(fresh_database: FreshDatabase) -> Callable[..., str]:
    """Opens an alert, as an evaluation does, and gives its id."""

    async def work(name: str, fields: dict[str, Any]) -> str:
        store = Store(fresh_database.dsn, Env())
        await store.open(migrates=False)
        alert = await make_alert(store, name, **fields)
        await store.close()
        return format_alert_id(alert)

    return lambda name="mail", **fields: asyncio.run(work(name, fields))


def test_alerts_are_listed_shown_acknowledged_and_asked_again(cli: Cli, open_alert: Callable[..., str]) -> None:
    assert "no alert is open" in cli("alerts").err + cli("alerts").out
    alert = open_alert("mail")

    listed = cli("alerts").out
    known = orjson.loads(cli("alerts", "acknowledge", alert, "--until", "2h", "--reason", "on it", "--json").out)
    shown = cli("alerts", "show", alert).out
    unknown = orjson.loads(cli("alerts", "unacknowledge", alert, "--json").out)

    assert alert in listed
    assert "queue mail: 3 waiting, no worker serves it" in listed
    assert (known["state"], known["acknowledgement"]["by"]) == ("acknowledged", "cli:ana")
    assert known["acknowledgement"]["until"] is not None
    assert "on it" in shown
    assert (unknown["state"], unknown["acknowledgement"]) == ("open", None)


def test_alerts_are_chosen_by_state_severity_and_queue(cli: Cli, open_alert: Callable[..., str]) -> None:
    mail, slow = open_alert("mail"), open_alert("slow", severity=Severity.WARNING)

    def ids(*options: str) -> list[str]:
        return [alert["id"] for alert in orjson.loads(cli("alerts", "list", *options, "--json").out)]

    assert ids("--queue", "mail") == [mail]
    assert ids("--severity", "warning") == [slow]
    assert ids("--state", "resolved") == []
    assert sorted(ids("--state", "resolved", "--state", "open")) == sorted([mail, slow])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("alerts", "list", "--state", "dead"), "expected pending, open, acknowledged or resolved"),
        (("alerts", "list", "--severity", "high"), "expected critical or warning"),
        (("alerts", "show", "alr_nothing"), "alert"),
        (("queues", "expect", "mail"), "expected --max-oldest-wait or --must-be-served"),
        (("queues", "expect", "mail", "--max-oldest-wait", "soon"), "expected a span"),
    ],
)
def test_what_cannot_be_is_refused(cli: Cli, arguments: tuple[str, ...], words: str) -> None:
    done = cli(*arguments)

    assert done.code != 0
    assert words in done.err


def test_what_is_expected_of_a_queue_is_written_and_taken_back(cli: Cli) -> None:
    first = orjson.loads(cli("queues", "expect", "mail", "--max-oldest-wait", "5m", "--must-be-served", "--json").out)
    shown = cli("queues", "show", "mail").out
    second = orjson.loads(cli("queues", "expect", "mail", "--max-oldest-wait", "none", "--json").out)

    assert (first["max_oldest_wait_seconds"], first["must_be_served"]) == (300, True)
    assert "oldest waits at most 5m, served" in shown
    assert (second["max_oldest_wait_seconds"], second["must_be_served"]) == (None, True)


def test_what_is_expected_of_a_job_is_set_and_taken_away(cli: Cli) -> None:
    cli("jobs", "create", "nightly", "test.echo", "--cron", "0 2 * * *")

    done = cli("jobs", "edit", "nightly", "--set", 'expect={"succeed_every": "26h"}', "--json")
    wrong = cli("jobs", "edit", "nightly", "--set", 'expect={"succeed_every": "soon"}')
    gone = cli("jobs", "edit", "nightly", "--set", "expect=null", "--json")

    assert done.code == 0, done.err
    assert orjson.loads(done.out)["expect"] == {"succeed_every": "26h"}
    assert "succeed_every is" in wrong.err
    assert orjson.loads(gone.out)["expect"] is None
